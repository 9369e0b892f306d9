//! Configures nginx with its stream module and one worker.

use std::path::PathBuf;

use super::plan::{Plan, Proxy, Side};
use crate::certs::SERVER_NAME;
use crate::tls_settings::TlsSettings;

pub(super) const PROXY: Proxy = Proxy {
    program: |_| PathBuf::from("/usr/sbin/nginx"),
    version: "-v",
    extension: "conf",
    config,
    // Messages before the configuration is read would go to a log file of the distribution.
    arguments: |_| ["-e", "stderr", "-c"].map(str::to_owned).to_vec(),
};

/// The path of the module in distributions, relative to nginx's prefix.
const MODULE: &str = "modules/ngx_stream_module.so";

fn config(plan: &Plan<'_>) -> String {
    let Plan { side, listen, connect, settings, setting, .. } = plan;
    let name = side.name();
    let file = |name: &str| setting.dir.join(name).display().to_string();
    let cert = file(&format!("{name}.pem"));
    let key = file(&format!("{name}.key"));
    let ca = file("ca.pem");
    let (tls, accepts) = match side {
        Side::Client => (
            format!(
                "\
        proxy_ssl on;
        proxy_ssl_name {SERVER_NAME};
        proxy_ssl_server_name on;
        proxy_ssl_verify on;
        proxy_ssl_trusted_certificate {ca};
        proxy_ssl_certificate {cert};
        proxy_ssl_certificate_key {key};
        proxy_ssl_protocols TLSv1.3;
        proxy_ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;
        proxy_ssl_conf_command Groups X25519;
        proxy_ssl_session_reuse {};",
                if settings.resumes() { "on" } else { "off" }
            ),
            "",
        ),
        Side::Server => (
            format!(
                "\
        ssl_certificate {cert};
        ssl_certificate_key {key};
        ssl_client_certificate {ca};
        ssl_verify_client on;
        ssl_protocols TLSv1.3;
        ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;
        ssl_ecdh_curve X25519;
        {}",
                sessions(*settings)
            ),
            " ssl",
        ),
    };
    let run = file(&format!("nginx-{}-{name}-{}", settings.name(), listen.port()));
    format!(
        "\
daemon off;
worker_processes 1;
pid {run}.pid;
error_log stderr error;
load_module {MODULE};
events {{ worker_connections 16384; }}
stream {{
    access_log off;
    proxy_buffer_size 16k;
    server {{
        listen {listen}{accepts} backlog=1024;
        tcp_nodelay on;
        proxy_pass {connect};
{tls}
    }}
}}
"
    )
}

/// The option for the session cache of the server side.
fn sessions(settings: TlsSettings) -> &'static str {
    match settings.resumes() {
        true => "ssl_session_cache shared:bench:1m;",
        false => "ssl_session_cache off;\n        ssl_session_tickets off;",
    }
}
