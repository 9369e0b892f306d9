//! Configures tacit: two agents, each with one rule and one worker thread.
//!
//! The sockets use the same congestion control as the sockets of the other compared programs.

use super::plan::{Plan, Proxy, Side, without};
use crate::certs::SERVER_NAME;
use crate::tls_settings::TlsSettings;

pub(super) const PROXY: Proxy = proxy(config);

/// The same without the ledger.
pub(super) const UNMETERED: Proxy = proxy(|plan| without(&config(plan), "accounting"));

/// The same, but every handshake verifies the whole chain, as the other peers do.
pub(super) const WITHOUT_CHAIN_CACHE: Proxy = proxy(|plan| without(&config(plan), "chain-cache"));

const fn proxy(config: fn(&Plan<'_>) -> String) -> Proxy {
    Proxy {
        program: |setting| setting.tacit.clone(),
        version: "--version",
        extension: "toml",
        config,
        // A relative path keeps the path of the control socket short.
        arguments: |name| {
            let control = format!("{name}.sock");
            ["agent", "--control", &control, "--policy"].map(str::to_owned).to_vec()
        },
    }
}

fn config(plan: &Plan<'_>) -> String {
    let Plan { side, listen, connect, settings, setting, .. } = plan;
    let name = side.name();
    let congestion = &setting.congestion;
    let role = match side {
        Side::Client => format!(r#"server-name = "{SERVER_NAME}""#),
        Side::Server => r#"client-cert = "required""#.to_owned(),
    };
    format!(
        r#"version = 1

[agent]
workers            = 1
congestion-control = "{congestion}"

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
{tls}"#,
        tls = tls(*settings)
    )
}

/// The `tls` keys of a rule for these TLS settings.
pub(super) fn tls(settings: TlsSettings) -> String {
    format!(
        "\
min-version = \"{}\"
suites      = [\"{}\"]
groups      = [\"x25519\"]
resumption  = {}
",
        settings.version(),
        settings.suite(),
        settings.resumes()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::plan::tests::setting;

    #[test]
    fn tacit_takes_both_policies_on_all_terms() {
        let [listen, connect] = ["127.0.0.1:1", "127.0.0.1:2"].map(|text| text.parse().unwrap());
        let setting = setting();
        for settings in TlsSettings::ALL {
            for side in [Side::Client, Side::Server] {
                for proxy in [PROXY, UNMETERED, WITHOUT_CHAIN_CACHE] {
                    let plan = Plan { side, listen, connect, settings, setting: &setting };
                    let text = (proxy.config)(&plan);
                    let parsed = tacit_core::policy::parse(&text);
                    assert!(parsed.policy.is_some(), "{parsed:?}\n{text}");
                }
            }
        }
    }
}
