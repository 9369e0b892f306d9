//! Tests rules with `mode = "audit"`: the agent relays the flows unchanged. Commands such as `tacit
//! show audit` must report what each rule would have done without this mode.

use serde_json::Value;

use crate::network::Network;
use crate::refused::STAY;

const RULES: &str = r#"
[[rule]]
name = "no-web"
direction = "outbound"
remote = "clear.example"
remote-ports = 7001
mode = "audit"
deny = true
[[rule]]
name = "secure"
direction = "outbound"
remote = "10.9.8.7"
remote-ports = 7001
program = "/usr/bin/curl"
mode = "audit"
tls = { trust = "ca" }
[[rule]]
name = "datagrams"
direction = "outbound"
protocol = "udp"
remote = "10.9.8.7"
mode = "audit"
deny = true
"#;

/// A web server in clear, and an echo over UDP, at the same port.
const SERVERS: &str = r#"
mkdir site; echo hello >site/index.html
start python3 -m http.server --bind 10.9.8.7 --directory site 7001 >/dev/null 2>&1
start python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("10.9.8.7", 7001))
while True:
    data, peer = s.recvfrom(100)
    s.sendto(data, peer)'
await 7001
"#;

/// Sends a datagram and prints the reply.
const SENDS: &str = "python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(10)
s.sendto(b\"hi\", (\"10.9.8.7\", 7001))
print(s.recv(9).decode())'";

fn network() -> Network {
    Network::new(&[], &format!("{STAY}{SERVERS}")).with_rules(RULES)
}

#[test]
fn flows_pass_as_without_tacit_and_are_shown_with_what_would_be_done() {
    let said = network().ok(&format!(
        r#"cat >do.sh <<'END'
{SENDS}
curl -sS http://10.9.8.7:7001/ && curl -sS http://10.9.8.7:7001/ && curl -sS http://clear.example:7001/
END
        refused '. ./do.sh >scratch/answers' show audit --json
        cat scratch/answers >&2; [ "$(tr '\n' ' ' <scratch/answers)" = "hi hello hello hello " ]"#
    ));
    let shown: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    let rules = shown["rules"].as_array().unwrap();
    let expected = [
        ("no-web", "deny", 1, "clear.example:7001", "tcp"),
        ("secure", "tls", 2, "10.9.8.7:7001", "tcp"),
        ("datagrams", "deny", 1, "10.9.8.7:7001", "udp"),
    ];
    assert_eq!(rules.len(), expected.len(), "{shown}");
    for (rule, (name, would, count, destination, protocol)) in rules.iter().zip(expected) {
        assert_eq!((&rule["rule"], &rule["would"]), (&name.into(), &would.into()), "{shown}");
        assert_eq!(rule["total"], count, "{shown}");
        let [flow] = rule["flows"].as_array().unwrap().as_slice() else { panic!("{shown}") };
        assert_eq!(flow["count"], count, "{shown}");
        assert_eq!(flow["destination"], destination, "{shown}");
        assert_eq!(flow["protocol"], protocol, "{shown}");
    }
    let program = rules[1]["flows"][0]["program"].as_str().unwrap();
    assert!(program.ends_with("/curl"), "{shown}");
}

#[test]
fn log_and_table_name_the_action_that_is_not_enforced() {
    let said = network().ok(r#"log=$HOME/.local/state/tacit/run.log
        refused 'curl -sS http://clear.example:7001/' show audit
        until_true grep -q ' audited ' $log
        grep -o ' warn audited .*rule=no-web .*' $log"#);
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].starts_with("RULE "), "{said}");
    assert!(lines[1].contains("no-web") && lines[1].contains("deny"), "{said}");
    assert!(lines[1].contains("clear.example:7001"), "{said}");
    let logged = lines.iter().find(|line| line.contains("audited")).unwrap();
    assert!(logged.contains("would=deny") && logged.contains("clear.example:7001"), "{said}");
}
