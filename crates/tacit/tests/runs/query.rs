//! `$TACIT_QUERY`: programs ask how their connections are protected, and get an answer about no
//! other connection.

use serde_json::{Value, json};

use crate::network::Network;

/// The examples, as a user would take them.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/query");

/// A server that sends back what it gets, and whatever questions a test has.
const ECHO: &str = r#"
cat >echo.py <<'P'
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while bytes := self.request.recv(65536):
            self.request.sendall(bytes)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads, request_queue_size = True, True, 1024
Server(("10.9.8.7", 9000), Echo).serve_forever()
P
start python3 echo.py
await 9000
export XDG_RUNTIME_DIR=$PWD/scratch
"#;

fn network() -> Network {
    Network::new(&[9000], ECHO).with_build(&format!(
        "cp {EXAMPLES}/*.py . && cc -Wall -Wextra -Werror -o query {EXAMPLES}/query.c"
    ))
}

/// The lines of a text, as JSON.
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| json!(line))).collect()
}

#[test]
fn the_examples_say_how_a_connection_is_protected() {
    for network in network().for_each_user() {
        let text = network.ok("run ./query tls.example 9000; echo $?
             run python3 query.py tls.example 9000; echo $?
             run ./query clear.example 9000; echo $?");
        let said = lines(&text);
        for tls in [&said[0], &said[2]] {
            assert_eq!(tls["policy"], "enabled", "{text}");
            assert_eq!(tls["connection"], "secure");
            assert_eq!((&tls["rule"], &tls["role"]), (&json!("tls"), &json!("client")));
            assert_eq!((&tls["version"], &tls["check"]), (&json!("1.3"), &json!("ok")));
            assert_eq!(
                (&tls["peer"], &tls["suite"]),
                (&json!("tls.example"), &json!("TLS_AES_128_GCM_SHA256"))
            );
            assert_eq!((&tls["group"], &tls["reason"]), (&json!("X25519MLKEM768"), &Value::Null));
        }
        let clear = &said[4];
        assert_eq!(
            (&clear["policy"], &clear["connection"]),
            (&json!("not-enabled"), &json!("clear"))
        );
        assert_eq!((&clear["rule"], &clear["version"]), (&json!("clear"), &Value::Null));
        assert_eq!([&said[1], &said[3], &said[5]], [0, 0, 1]);
    }
}
