//! Tests `tacit run` with unmodified programs. The connections of these programs use TLS outside of
//! the run.
//!
//! Each test has a network namespace of its own for the servers, and the run makes another network
//! namespace inside this namespace. If the tests run as root, the program is tested as root and as
//! an ordinary user.

use std::process::Output;

use crate::harness::{Lab, text_of};
use crate::public::Public;

/// What stands in the network of every test: a resolver that knows one name, and a TLS server
/// there that answers HTTP.
const NETWORK: &str = r#"
ip link set lo up
ip route add local 10.9.8.7/32 dev lo
ip link add v0 type veth peer name v1
ip link set v0 up
ip link set v1 up
ip addr add 192.168.77.1/24 dev v0
ip route add default via 192.168.77.2
python3 "$PEER" 5353 server.example 10.9.8.7 & resolver=$!
openssl s_server -accept 10.9.8.7:8080 -cert server.example.pem -key server.example.key \
    -www -quiet >/dev/null 2>&1 & server=$!
trap 'kill $resolver $server' EXIT
for try in $(seq 200); do
    (exec 3<>/dev/tcp/10.9.8.7/8080) 2>/dev/null && [ -e resolver.ready ] && break
    sleep 0.02
done
"#;

pub const POLICY: &str = r#"
version = 1
[trust.ca]
ca = "ca.pem"
[[rule]]
name = "orders"
direction = "outbound"
remote = "server.example"
remote-ports = 8080
tls = { trust = "ca" }
"#;

/// Runs a script in a network of its own; `run` in it is `tacit run` with the policy. As an
/// ordinary user too, where the one who tests may choose.
pub fn in_network(script: &str) -> Vec<Output> {
    let is_root = rustix::process::geteuid().is_root();
    let lab = Lab::new();
    lab.tacit(&["ca", "issue", "server.example"]);
    lab.write("run.toml", POLICY);
    let public = Public::of(&lab);
    let peer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/resolver.py");
    let outputs = [Some(""), is_root.then_some(ORDINARY)].into_iter().flatten().map(|user| {
        let script = format!(
            "{NETWORK}\nas_user() {{ {user} \"$@\"; }}\n\
             run() {{ as_user timeout 30 ./tacit run --policy run.toml \
             --resolver 127.0.0.1:5353 -- \"$@\"; }}\n{script}"
        );
        let mut command = lab.command("unshare");
        command.args(if is_root { &["-n"][..] } else { &["-r", "-n"] });
        command.args(["bash", "-c", &script]).current_dir(&public.directory).env("PEER", peer);
        let output = command.env_remove("XDG_RUNTIME_DIR").output().unwrap();
        let _ = std::fs::remove_file(public.directory.join("resolver.ready"));
        output
    });
    outputs.collect()
}

/// Changes to an unprivileged user.
pub const ORDINARY: &str = "setpriv --reuid=54321 --regid=54321 --clear-groups";

pub fn expect(script: &str, wanted: &str) {
    for output in in_network(script) {
        let text = text_of(&output);
        assert!(output.status.success() && text.contains(wanted), "{wanted}: {text}");
    }
}

#[test]
fn plain_curl_reaches_a_tls_server_by_its_name() {
    expect("run curl -sS --max-time 20 http://server.example:8080/", "TLS_AES_128_GCM_SHA256");
}

#[test]
fn a_name_that_no_rule_matches_is_not_resolved() {
    expect(
        "run curl -sS --max-time 20 http://other.example:8080/; [ $? = 6 ] && echo refused",
        "refused",
    );
}

#[test]
fn an_address_that_no_rule_matches_is_refused_at_once() {
    let connect = "import socket, sys\n\
                   try: socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)\n\
                   except OSError as error: print(type(error).__name__)";
    for (address, port) in [("10.9.8.8", "8080"), ("10.9.8.7", "8080"), ("192.168.77.9", "22")] {
        expect(&format!("run python3 -c '{connect}' {address} {port}"), "ConnectionRefusedError");
    }
}

#[test]
fn a_certificate_for_another_name_is_a_reset_and_no_byte_in_clear() {
    // The reset follows the connect at once: curl reports 7 if it comes before curl has seen the
    // connection, and 56 if it comes later.
    let script = "kill $server; wait $server\n\
                  openssl s_server -accept 10.9.8.7:8080 -cert localhost.pem -key localhost.key \
                  -quiet >got 2>/dev/null & server=$!\n\
                  for try in $(seq 200); do ss -Hltn src 10.9.8.7:8080 | grep -q . && break; \
                  sleep 0.02; done\n\
                  run curl -sS --max-time 20 http://server.example:8080/ 2>&1; status=$?\n\
                  [ $status = 56 -o $status = 7 ] && [ ! -s got ] && echo reset";
    expect(script, "reset");
}

#[test]
fn the_program_has_the_same_user_and_its_status_is_returned() {
    expect("run sh -c '[ $(id -u) = \"$0\" ]' $(run id -u) && echo same", "same");
    expect("run sh -c 'exit 7'; echo status $?", "status 7");
    expect("run sh -c 'kill -TERM $$'; echo status $?", "status 143");
    expect("run /nonexistent; echo status $?", "status 127");
    expect("run /nonexistent; true", "cannot run the program /nonexistent: No such file");
    expect("run /; echo status $?", "status 126");
    expect("run /; true", "cannot run the program /: Permission denied");
    expect("echo nonsense = 1 >>run.toml; run true; echo status $?", "status 125");
}
