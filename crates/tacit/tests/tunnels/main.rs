//! Tests programs under `tacit run` whose packets pass through a tunnel to strongSwan.
//!
//! ```text
//!   program ── tacit run ── 10.99.0.1 w0 ══ w1 10.99.0.2 charon ── 10.2.0.1, fd00:2::1: servers
//! ```
//!
//! `charon` is the IKE daemon of strongSwan. The servers also answer packets that bypass the
//! tunnel, so an answer does not prove that the packets passed through the tunnel. A counter on w0
//! detects packets in clear. If the tests run as root, the programs run as an ordinary user. The
//! tests need strongSwan, which the script `scripts/install-deps.sh` installs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at the first unexpected result"
)]
#![allow(unreachable_pub, reason = "only this test program uses it")]

mod algorithms;
mod certificates;
mod displays;
mod expiry;
mod filters;
#[allow(dead_code, reason = "the lab's tools, of which these tests need some")]
#[path = "../lab/fits.rs"]
mod fits;
mod flood;
#[allow(dead_code, reason = "the lab's tools, of which these tests need some")]
#[path = "../lab/harness.rs"]
mod harness;
mod keys;
mod kills;
mod manual;
mod paths;
mod programs;
#[allow(dead_code, reason = "the lab's tools, of which these tests need some")]
#[path = "../lab/public.rs"]
mod public;
mod refusals;
mod rekey;
mod restarts;
mod without_udp;

use std::path::PathBuf;
use std::process::Command;

use crate::harness::{Lab, text_of};
use crate::public::Public;

const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers");
const CHARON: &str = "/usr/lib/ipsec/charon";
/// Whose programs they are.
const ORDINARY: &str = "54321";

/// Web servers behind the tunnel; a later rule would permit the same in clear.
const WEB: &str = r#"
[[rule]]
name = "web"
direction = "outbound"
remote = ["10.2.0.0/24", "fd00:2::/64"]
remote-ports = 80
ipsec = { ike = "branch" }
[[rule]]
name = "clear"
direction = "outbound"
remote = ["10.2.0.0/24", "fd00:2::/64"]
remote-ports = [80, 9007]
permit = true
"#;

/// One test: what the policy and the peer have, and what happens.
struct Scenario<'a> {
    rules: &'a str,
    inner: &'a str,
    steps: &'a str,
}

impl Scenario<'_> {
    /// Runs the steps, and returns what they print.
    fn output(&self) -> String {
        assert!(PathBuf::from(CHARON).exists(), "{CHARON} is missing: run scripts/install-deps.sh");
        let is_assigned = self.inner == "\"gateway\"";
        let begin = concat!(
            include_str!("../peers/processes.sh"),
            include_str!("hosts.sh"),
            include_str!("begin.sh")
        )
        .replace("@RULES@", self.rules)
        .replace("@INNER@", self.inner)
        .replace("@POOLS@", if is_assigned { "inner" } else { "" })
        .replace("@REMOTE@", if is_assigned { "dynamic" } else { "10.1.0.1/32,fd01::1/128" });
        run_script(&format!("{begin}\n{}", self.steps))
    }
}

/// Runs a script in new namespaces, and returns what it prints.
fn run_script(script: &str) -> String {
    let lab = Lab::new();
    let public = Public::of(&lab);
    let is_root = rustix::process::geteuid().is_root();
    let user = if is_root {
        format!("setpriv --reuid={ORDINARY} --regid={ORDINARY} --clear-groups")
    } else {
        format!("unshare --user --map-user={ORDINARY} --map-group={ORDINARY}")
    };
    let owner = if is_root { ORDINARY } else { "" };
    let mut command = Command::new("timeout");
    let seconds = if std::env::var_os("IKE_FLOOD").is_some() { "900" } else { "150" };
    command.args(["--kill-after=5", seconds, "unshare"]);
    command.args(if is_root { &["-nm"][..] } else { &["-rnm"] });
    command.args(["bash", "-c", script]);
    command.current_dir(&public.directory).env("PEERS", PEERS);
    command.env("USER_OF_RUNS", user).env("OWNER_OF_RUNS", owner);
    let scratch = public.directory.join("scratch");
    let output = command.env("XDG_RUNTIME_DIR", scratch).output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs steps with [`WEB`] and addresses of the policy.
fn web(steps: &str) -> String {
    Scenario { rules: WEB, inner: r#"["10.1.0.1", "fd01::1"]"#, steps }.output()
}

#[test]
fn curl_reaches_a_server_behind_strongswan_and_only_udp_4500_is_on_the_wire() {
    let text = web("run bash -c '
            curl -sS -m 20 http://10.2.0.1/
            curl -sS -m 20 http://[fd00:2::1]/
            curl -sS -m 60 http://10.2.0.1/big | cmp - web/big && echo same'
        clear");
    assert_eq!(text, "from behind\nfrom behind\nsame\nonly UDP 4500\n");
}

/// A tunnel for programs that bind one of some ports.
const LOCAL_PORTS: &str = r#"
[[rule]]
name = "bound"
direction = "outbound"
remote = ["10.2.0.0/24", "fd00:2::/64"]
remote-ports = 80
local-ports = "6000-6009"
ipsec = { ike = "branch" }
"#;

#[test]
fn an_outbound_rule_with_local_ports_needs_a_bound_port() {
    let steps = "run bash -c '
            curl -sS -m 20 --local-port 6000-6009 http://10.2.0.1/
            curl -sS -m 20 --local-port 6000-6009 http://[fd00:2::1]/
            for other in \"http://[fd00:2::1]/\" \"--local-port 6010-6019 http://10.2.0.1/\"; do
                curl -s -m 20 $other; echo failed $?
            done'
        clear";
    let text = Scenario { rules: LOCAL_PORTS, inner: r#"["10.1.0.1", "fd01::1"]"#, steps }.output();
    assert_eq!(text, "from behind\nfrom behind\nfailed 7\nfailed 7\nonly UDP 4500\n");
}

/// All protocols, and an address that a run may be reached at.
const ALL: &str = r#"
[[rule]]
name = "web"
direction = "outbound"
remote = "10.2.0.0/24"
remote-ports = 80
ipsec = { ike = "branch" }
[[rule]]
name = "clear"
direction = "outbound"
remote = "10.2.0.1"
remote-ports = 9007
permit = true
[[rule]]
name = "echo"
direction = "outbound"
protocol = "udp"
remote = "10.2.0.0/24"
remote-ports = 5000
ipsec = { ike = "branch" }
[[rule]]
name = "ping"
direction = "outbound"
protocol = "icmp"
remote = "10.2.0.0/24"
ipsec = { ike = "branch" }
[[rule]]
name = "served"
direction = "inbound"
local-ports = 9070
ipsec = { ike = "branch" }
"#;

#[test]
fn ports_of_one_address_pass_in_a_tunnel_in_clear_or_not_at_all() {
    let steps = r#"run bash -c '
            curl -sS -m 20 http://10.2.0.1/
            curl -sS -m 20 http://10.2.0.1:9007/
            curl -sS -m 20 http://10.2.0.1:9300/ 2>&1 | grep -o "Couldn.t connect"
            ping -c 1 -W 5 10.2.0.1 | grep -o "1 received"
            python3 "$PEERS/datagrams.py" rounds 10.2.0.1 5000 3 100 1300 5000
            python3 "$PEERS/datagrams.py" see 10.2.0.1 5001 2>&1 | tail -n 1'
        clear"#;
    let text = Scenario { rules: ALL, inner: "\"10.1.0.1\"", steps }.output();
    let wanted = "from behind\nfrom behind\nCouldn't connect\n1 received\n\
                  100 bytes: 0 lost\n1300 bytes: 0 lost\n5000 bytes: 0 lost\n";
    assert!(text.starts_with(wanted), "{text}");
    assert!(text.ends_with("refused\ntcp 9007\n"), "{text}");
}

#[test]
fn a_host_behind_strongswan_reaches_only_the_port_that_an_inbound_rule_names() {
    let steps = r#"mkdir served; echo "from the run" >served/index.html
        started bash -c 'python3 -m http.server --directory served 9070 >/dev/null 2>&1 &
            python3 -m http.server --directory served 9071 >/dev/null 2>&1 & touch scratch/up
            wait'
        until_true [ -e scratch/up ]; sleep 1
        swan --initiate --child net >initiate 2>&1 || fail "$(cat initiate)"
        behind curl -sS -m 20 --interface 10.2.0.1 http://10.1.0.1:9070/
        behind curl -sS -m 3 --interface 10.2.0.1 http://10.1.0.1:9071/ 2>&1 | grep -o "timed out"
        clear"#;
    let text = Scenario { rules: ALL, inner: "\"10.1.0.1\"", steps }.output();
    assert_eq!(text, "from the run\ntimed out\nonly UDP 4500\n");
}

#[test]
fn a_run_that_peers_cannot_open_tunnels_to_reports_who_has_the_port() {
    let steps = r#"start python3 -c '
import socket, time
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind(("10.99.0.1", 4500))
time.sleep(100)'
        taken() { [ -n "$(ss -Hlun 'sport = 4500')" ]; }
        until_true taken
        agent
        enrolled curl -sS -m 20 http://10.2.0.1/
        until_true grep -q 'ike-port-not-available .*branch' agent.log
        grep -c 'ike-port-not-available .*branch' agent.log"#;
    let text = Scenario { rules: ALL, inner: "\"10.1.0.1\"", steps }.output();
    assert_eq!(text, "from behind\n1\n");
}

#[test]
fn a_gateway_opens_either_of_two_tunnels() {
    let second = r#"[[rule]]
name = "other"
direction = "inbound"
remote = "10.3.0.0/24"
local-ports = 9070
ipsec = { ike = "other" }
[ike.other]
peer = "10.99.0.2"
psk-file = "psk"
local-id = "other.example"
remote-id = "gw.example"
inner = "10.1.0.2"
"#;
    let rules = format!("{}\nremote = \"10.2.0.0/24\"\n{second}", ALL.trim_end());
    let steps = r#"behind ip address add 10.3.0.1/24 dev lo
        sed '/^connections/,/^}/!d; s/^    tacit/    second/; s/branch.example/other.example/
            s/10.2.0.0.24,fd00:2::.64/10.3.0.0\/24/; s/10.1.0.1.32,.*/10.1.0.2\/32/
            s/ net {/ far {/' swanctl/swanctl.conf >second.conf
        echo 'secrets { ike-2 { id-1 = gw.example
            id-2 = other.example
            secret = "a shared key of both sides" } }' >>second.conf
        cat second.conf >>swanctl/swanctl.conf
        swan --load-all >load 2>&1 || fail "$(cat load)"
        mkdir served; echo "from the run" >served/index.html
        started bash -c 'python3 -m http.server --directory served 9070 >/dev/null 2>&1 &
            touch scratch/up; wait'
        until_true [ -e scratch/up ]; sleep 1
        swan --initiate --child far >initiate 2>&1 || fail "$(cat initiate)"
        swan --initiate --child net >initiate 2>&1 || fail "$(cat initiate)"
        behind curl -sS -m 20 --interface 10.3.0.1 http://10.1.0.2:9070/
        behind curl -sS -m 20 --interface 10.2.0.1 http://10.1.0.1:9070/
        clear"#;
    let text = Scenario { rules: &rules, inner: "\"10.1.0.1\"", steps }.output();
    assert_eq!(text, "from the run\nfrom the run\nonly UDP 4500\n");
}

/// Rules whose ports the kernel gets in parts.
const RANGES: &str = r#"
[[rule]]
name = "clear"
direction = "outbound"
remote = "10.2.0.1"
remote-ports = 9007
permit = true
[[rule]]
name = "all"
direction = "outbound"
remote = "10.2.0.0/24"
ipsec = { ike = "branch" }
[[rule]]
name = "served"
direction = "inbound"
local-ports = 9070
ipsec = { ike = "branch" }
"#;

#[test]
fn a_rule_for_all_ports_has_room_for_another_before_it_and_ipv6_reaches_the_run() {
    let steps = r#"mkdir served; echo "from the run" >served/index.html
        started bash -c 'python3 -m http.server --bind :: --directory served 9070 >/dev/null 2>&1 &
            curl -sS -m 20 http://10.2.0.1/; curl -sS -m 20 http://10.2.0.1:9007/
            touch scratch/up; wait'
        until_true [ -e scratch/up ]; sleep 1
        behind curl -sS -m 20 --interface fd00:2::1 http://[fd01::1]:9070/
        clear"#;
    let text = Scenario { rules: RANGES, inner: r#"["10.1.0.1", "fd01::1"]"#, steps }.output();
    assert_eq!(text, "from behind\nfrom behind\nfrom the run\ntcp 9007\n");
}

#[test]
fn strongswan_assigns_the_address_of_a_run() {
    // The program starts when the run has the address.
    let steps = "run curl -sS -m 20 http://10.2.0.1/
        clear";
    let text = Scenario { rules: WEB, inner: "\"gateway\"", steps }.output();
    assert_eq!(text, "from behind\nonly UDP 4500\n");
}

#[test]
fn keys_are_replaced_under_a_stream_and_no_byte_is_lost() {
    let text = web("run bash -c 'curl -sS -m 60 --limit-rate 8M http://10.2.0.1/big |
            cmp - web/big && echo same' & program=$!
        until_true installed 1
        for round in 1 2 3; do
            swan --rekey --child net >rekey 2>&1 || fail rekey
            swan --rekey --ike tacit >rekey 2>&1 || fail rekey
        done
        wait $program
        clear");
    assert_eq!(text, "same\nonly UDP 4500\n");
}

/// A program that asks the server again and again.
const ASKS: &str = r#"started bash -c 'while :; do
        curl -sS -m 2 http://10.2.0.1/ >>scratch/said 2>&1; sleep 0.1; done'
    said() { [ "$(grep -c "from behind" scratch/said 2>/dev/null)" -ge "$1" ]; }
    until_true said 1
"#;

#[test]
fn nothing_is_sent_in_clear_after_the_agent_is_killed() {
    let text = web(&format!(
        "{ASKS} supervisor=$(process tacit-supervise); kill -9 $(pgrep -P $supervisor)
        refused() {{ grep -q 'connect to server' scratch/said; }}
        until_true refused; sleep 2
        clear"
    ));
    assert_eq!(text, "only UDP 4500\n");
}

#[test]
fn a_helper_that_is_killed_is_replaced_and_the_tunnel_continues() {
    // Programs whose connections get sockets of the host need the first helper.
    let text = web(&format!(
        "sed -i '1a path = \"relay\"' private/run.toml
        {ASKS} helper=$(process tacit-helper); kill -9 $helper
        replaced() {{ h=$(process tacit-helper) && [ -n \"$h\" ] && [ \"$h\" != $helper ]; }}
        until_true replaced
        count=$(grep -c 'from behind' scratch/said); until_true said $((count + 5))
        clear"
    ));
    assert_eq!(text, "only UDP 4500\n");
}

#[test]
fn nothing_is_sent_in_clear_after_the_peer_is_killed() {
    let text = web(&format!(
        "{ASKS} kill -9 $charon
        fails() {{ grep -q 'timed out' scratch/said; }}
        until_true fails; sleep 2
        clear"
    ));
    assert_eq!(text, "only UDP 4500\n");
}

#[test]
fn a_restart_makes_new_tunnels_and_a_reload_removes_them() {
    let text = web("agent
        enrolled bash -c 'while [ ! -e scratch/end ]; do
            curl -sS -m 5 http://10.2.0.1/ >>scratch/said 2>&1; sleep 0.1; done' & program=$!
        said() { [ \"$(grep -c 'from behind' scratch/said 2>/dev/null)\" -ge \"$1\" ]; }
        until_true said 1
        control restart >/dev/null || fail restart
        until_true sh -c '[ $(grep -c serving agent.log) = 2 ]'
        count=$(grep -c 'from behind' scratch/said); until_true said $((count + 5))
        clear
        sed -i '/^\\[\\[rule\\]\\]/,$d' private/run.toml
        control reload >/dev/null || fail reload
        empty() { ! swan --list-sas | grep -q ESTABLISHED; }
        until_true empty
        refused() { tail -n 1 scratch/said | grep -q 'connect to server'; }
        until_true refused
        touch scratch/end; wait $program; echo done");
    assert_eq!(text, "only UDP 4500\ndone\n");
}
