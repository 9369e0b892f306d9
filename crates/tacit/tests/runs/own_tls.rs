//! Tests programs that use TLS themselves, when a rule with `tls` applies to their connections.

use crate::network::Network;

/// A server with TLS of its own at 10.9.8.8, and rules for it. Its log says what it was asked.
const SERVER: &str = r#"
# What the policy names is hidden inside.
cp ca.pem anchor.pem; chmod 644 anchor.pem
mkdir web; echo hello >web/file.txt
cat >server.py <<'P'
import http.server, ssl
class Server(http.server.ThreadingHTTPServer):
    def get_request(self):
        stream, client = super().get_request()
        return context.wrap_socket(stream, server_side=True, do_handshake_on_connect=False), client
    def handle_error(self, request, client): pass
class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *rest): super().__init__(*rest, directory="web")
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("tls.example.pem", "tls.example.key")
Server(("10.9.8.8", 8443), Handler).serve_forever()
P
start python3 server.py 2>server.log
is_open() { ss -Hltn 'src 10.9.8.8:8443' | grep -q .; }; until_true is_open
export XDG_RUNTIME_DIR=$PWD/scratch
log=$HOME/.local/state/tacit/run.log
"#;

fn network(on_tls: &str) -> Network {
    let rule = format!(
        "[[rule]]\nname = \"web\"\ndirection = \"outbound\"\nremote = \"tls.example\"\n\
         remote-ports = 8443\ntls = {{ trust = \"ca\"{on_tls} }}\n"
    );
    // The network makes certificates where it has ports of its own.
    Network::new(&[9000], SERVER).with_rules(&rule)
}

const FETCH: &str = "curl -sS --max-time 20 --cacert anchor.pem";

#[test]
fn a_program_with_its_own_tls_is_refused_and_the_fix_is_reported() {
    let said = network("").ok(&format!(
        "run {FETCH} http://tls.example:8443/file.txt
         run {FETCH} https://tls.example:8443/file.txt 2>&1 | grep -o 'alert access denied'
         until_true grep -q ' warn own-tls-refused ' $log
         grep -o ' warn own-tls-refused .*on-tls = .*pass.*' $log | grep -c ' rule=web '
         ordinary openssl s_client -connect 10.9.8.8:8443 -CAfile anchor.pem </dev/null 2>&1 |
             grep -q 'Verify return code: 0' && echo verified"
    ));
    assert_eq!(said, "hello\nalert access denied\n1\nverified\n");
}

#[test]
fn a_program_that_speaks_tls_later_is_refused_too() {
    // The handshake of the rule is complete, and its relay waits, when the program begins.
    let said = network("").ok(r#"run /usr/bin/python3 -c 'if True:
        import socket, ssl, time
        context = ssl.create_default_context(cafile="anchor.pem")
        stream = socket.create_connection(("tls.example", 8443), 20)
        time.sleep(0.5)
        try: context.wrap_socket(stream, server_hostname="tls.example")
        except ssl.SSLError as error: print(error.reason)'"#);
    assert!(said.contains("ACCESS_DENIED"), "{said}");
}

#[test]
fn on_tls_pass_relays_the_programs_own_tls_to_the_server_itself() {
    let said = network(", on-tls = \"pass\"").ok(&format!(
        "run {FETCH} http://tls.example:8443/file.txt
         run {FETCH} https://tls.example:8443/file.txt
         run /usr/bin/openssl s_client -connect tls.example:8443 -CAfile anchor.pem \
             -verify_hostname tls.example -verify_return_error </dev/null 2>/dev/null |
             grep -q 'Verify return code: 0' && echo verified
         run /usr/bin/python3 -c 'if True:
            import socket, ssl, time
            context = ssl.create_default_context(cafile=\"anchor.pem\")
            stream = socket.create_connection((\"tls.example\", 8443), 20)
            time.sleep(0.5)
            stream = context.wrap_socket(stream, server_hostname=\"tls.example\")
            stream.sendall(b\"GET /file.txt HTTP/1.0\\r\\n\\r\\n\")
            print(b\"\".join(iter(lambda: stream.recv(100), b\"\")).splitlines()[-1].decode())'"
    ));
    assert_eq!(said, "hello\nhello\nverified\nhello\n");
}
