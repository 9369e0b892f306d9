//! tacit itself: two agents with a rule each, as shipped.

use super::{Plan, Proxy, Side};
use crate::bench::certs::SERVER_NAME;

pub(super) const PROXY: Proxy = Proxy {
    program: |target| target.join("release/tacit"),
    version: "--version",
    extension: "toml",
    config,
    // The proxy's working directory keeps the path of the control socket short.
    arguments: |name| {
        let control = format!("{name}.sock");
        ["agent", "--control", &control, "--policy"].map(str::to_owned).to_vec()
    },
};

fn config(plan: &Plan<'_>) -> String {
    let Plan { side, listen, connect, .. } = plan;
    let name = side.name();
    let role = match side {
        Side::Client => format!(r#"server-name = "{SERVER_NAME}""#),
        Side::Server => r#"client-cert = "required""#.to_owned(),
    };
    format!(
        r#"version = 1

[identity.{name}]
cert = "{name}.pem"
key  = "{name}.key"

[trust.bench]
ca = "ca.pem"

[[rule]]
name    = "bench"
listen  = "{listen}"
connect = "{connect}"

[rule.tls]
role        = "{name}"
identity    = "{name}"
trust       = "bench"
{role}
min-version = "1.3"
groups      = ["x25519"]
resumption  = false
"#
    )
}
