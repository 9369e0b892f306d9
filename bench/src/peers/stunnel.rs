//! Configures stunnel, which uses a thread for each connection.

use std::path::PathBuf;

use super::plan::{Plan, Proxy, Side};
use crate::certs::SERVER_NAME;

pub(super) const PROXY: Proxy = Proxy {
    program: |_| PathBuf::from("stunnel"),
    version: "-version",
    extension: "conf",
    config,
    arguments: |_| Vec::new(),
};

fn config(plan: &Plan<'_>) -> String {
    let Plan { side, listen, connect, settings, .. } = plan;
    let name = side.name();
    let role = match side {
        Side::Client => format!("client = yes\nsni = {SERVER_NAME}\ncheckHost = {SERVER_NAME}"),
        Side::Server => "requireCert = yes".to_owned(),
    };
    let sessions = match settings.resumes() {
        true => "",
        false => "options = NO_TICKET\nsessionResume = no",
    };
    format!(
        "\
foreground = yes
pid =
syslog = no
debug = err

[bench]
{role}
accept = {listen}
connect = {connect}
cert = {name}.pem
key = {name}.key
CAfile = ca.pem
verifyChain = yes
sslVersionMin = TLSv1.3
curves = X25519
ciphersuites = TLS_AES_128_GCM_SHA256
{sessions}
socket = l:TCP_NODELAY=1
socket = r:TCP_NODELAY=1
"
    )
}
