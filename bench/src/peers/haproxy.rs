//! Configures HAProxy in TCP mode, with one thread. With two threads, HAProxy used more CPU time in
//! every workload (measured on a machine with two CPUs).

use std::path::PathBuf;

use super::plan::{Plan, Proxy, Side};
use crate::certs::SERVER_NAME;

pub(super) const PROXY: Proxy = Proxy {
    program: |_| PathBuf::from("/usr/sbin/haproxy"),
    version: "-v",
    extension: "cfg",
    config,
    arguments: |_| ["-db", "-q", "-f"].map(str::to_owned).to_vec(),
};

/// The options for session resumption.
struct Sessions {
    cache: &'static str,
    tickets: &'static str,
    reuse: &'static str,
}

fn config(plan: &Plan<'_>) -> String {
    let Plan { side, listen, connect, settings, .. } = plan;
    let tls = format!("ssl crt {}.both.pem ca-file ca.pem verify required", side.name());
    // HAProxy can set the group only on the accepting side. The connecting side offers X25519 first
    // by default.
    let (bind, server) = match side {
        Side::Client => {
            (String::new(), format!("{tls} verifyhost {SERVER_NAME} sni str({SERVER_NAME})"))
        }
        Side::Server => (format!("{tls} curves X25519"), String::new()),
    };
    let sessions = if settings.resumes() {
        Sessions { cache: "20000", tickets: "", reuse: "" }
    } else {
        let reuse = "default-server no-ssl-reuse";
        Sessions { cache: "0", tickets: " no-tls-tickets", reuse }
    };
    let Sessions { cache, tickets, reuse } = sessions;
    format!(
        "\
global
    nbthread 1
    maxconn 4000
    tune.ssl.cachesize {cache}
    ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256
    ssl-default-bind-options ssl-min-ver TLSv1.3{tickets}
    ssl-default-server-ciphersuites TLS_AES_128_GCM_SHA256
    ssl-default-server-options ssl-min-ver TLSv1.3{tickets}

defaults
    mode tcp
    timeout connect 10s
    timeout client 60s
    timeout server 60s
    {reuse}

listen bench
    bind {listen} {bind}
    server app {connect} {server}
"
    )
}
