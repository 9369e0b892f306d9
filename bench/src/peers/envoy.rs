//! Configures Envoy with one worker. Envoy's TLS library, BoringSSL, does not let the user choose
//! the TLS 1.3 cipher suite.

use serde_json::{Value, json};

use super::plan::{Plan, Proxy, Side};
use crate::certs::SERVER_NAME;

pub(super) const PROXY: Proxy = Proxy {
    program: |setting| setting.target.join("bench-peers/envoy/_bin/envoy"),
    version: "--version",
    extension: "json",
    config,
    arguments: |_| {
        let quiet = ["--disable-hot-restart", "--log-level", "error"];
        [&["--concurrency", "1"], &quiet[..], &["--config-path"]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect()
    },
};

/// Envoy's buffer limit per connection and direction; the default.
const BUFFER_BYTES_MAX: u32 = 1024 * 1024;

/// The connection limit; the default of 1024 would be too low.
const CONNECTIONS_MAX: u32 = 16_384;

fn config(plan: &Plan<'_>) -> String {
    let (bind, dial) = match plan.side {
        Side::Client => (None, Some(tls(plan))),
        Side::Server => (Some(tls(plan)), None),
    };
    let chain = with_tls(
        json!({
            "filters": [{
                "name": "envoy.filters.network.tcp_proxy",
                "typed_config": {
                    "@type": type_url("filters.network.tcp_proxy.v3.TcpProxy"),
                    "stat_prefix": "bench",
                    "cluster": "bench",
                },
            }],
        }),
        bind,
    );
    let endpoint = json!({ "endpoint": { "address": address(plan.connect) } });
    let cluster = with_tls(
        json!({
            "name": "bench",
            "type": "STATIC",
            "per_connection_buffer_limit_bytes": BUFFER_BYTES_MAX,
            "circuit_breakers": { "thresholds": [{ "max_connections": CONNECTIONS_MAX }] },
            "load_assignment": {
                "cluster_name": "bench",
                "endpoints": [{ "lb_endpoints": [endpoint] }],
            },
        }),
        dial,
    );
    let listener = json!({
        "name": "bench",
        "address": address(plan.listen),
        "per_connection_buffer_limit_bytes": BUFFER_BYTES_MAX,
        "filter_chains": [chain],
    });
    let config = json!({ "static_resources": { "listeners": [listener], "clusters": [cluster] } });
    format!("{config:#}\n")
}

fn tls(plan: &Plan<'_>) -> Value {
    let name = plan.side.name();
    let file = |name: String| json!({ "filename": plan.setting.dir.join(name) });
    let mut validation = json!({ "trusted_ca": file("ca.pem".to_owned()) });
    if plan.side == Side::Client {
        validation["match_typed_subject_alt_names"] =
            json!([{ "san_type": "DNS", "matcher": { "exact": SERVER_NAME } }]);
    }
    let common = json!({
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_3",
            "tls_maximum_protocol_version": "TLSv1_3",
            "ecdh_curves": ["X25519"],
        },
        "tls_certificates": [{
            "certificate_chain": file(format!("{name}.pem")),
            "private_key": file(format!("{name}.key")),
        }],
        "validation_context": validation,
    });
    let resumes = plan.settings.resumes();
    let context = match plan.side {
        Side::Client => json!({
            "@type": type_url("transport_sockets.tls.v3.UpstreamTlsContext"),
            "sni": SERVER_NAME,
            "max_session_keys": u32::from(resumes),
            "common_tls_context": common,
        }),
        Side::Server => json!({
            "@type": type_url("transport_sockets.tls.v3.DownstreamTlsContext"),
            "require_client_certificate": true,
            "disable_stateless_session_resumption": !resumes,
            "disable_stateful_session_resumption": !resumes,
            "common_tls_context": common,
        }),
    };
    json!({ "name": "envoy.transport_sockets.tls", "typed_config": context })
}

fn with_tls(mut place: Value, tls: Option<Value>) -> Value {
    if let Some(tls) = tls {
        place["transport_socket"] = tls;
    }
    place
}

fn address(address: std::net::SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip(), "port_value": address.port() } })
}

fn type_url(name: &str) -> String {
    format!("type.googleapis.com/envoy.extensions.{name}")
}
