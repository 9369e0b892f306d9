//! Tests the smallest complete setup: a client agent connected to a server agent.

use crate::harness::{Lab, connect, echo, exchange, free_port};

#[test]
fn bytes_cross_a_client_and_a_server_agent() {
    let lab = Lab::new();
    let tls = free_port();
    let clear = free_port();
    let app = echo();
    let server = lab.agent(&format!(
        r#"
        [[rule]]
        name = "in"
        listen = "127.0.0.1:{tls}"
        connect = "{app}"
        tls = {{ role = "server", identity = "localhost", client-cert = "required", trust = "ca" }}
        "#
    ));
    let client = lab.agent(&format!(
        r#"
        [[rule]]
        name = "out"
        listen = "127.0.0.1:{clear}"
        connect = "localhost:{tls}"
        tls = {{ role = "client", identity = "alice", trust = "ca" }}
        "#
    ));
    let sent: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    assert!(exchange(connect(("127.0.0.1", clear)), &sent) == sent);
    assert_eq!(server.show("rules")["rules"][0]["hits"], 1);
    assert_eq!(client.show("rules")["rules"][0]["failures"], 0);
}
