//! Tests how the agent reports refusals in a run. Each refusal must be in the log, in `tacit show
//! refused` and in the metrics.

use serde_json::Value;

use crate::network::Network;

/// Rules for Python alone: what another program opens at the same addresses is captured, and then
/// no rule matches it.
const FOR_PYTHON: &str = r#"
[[rule]]
name = "python"
direction = "outbound"
remote = "10.9.8.7"
remote-ports = 7000
program = "/usr/bin/python3*"
permit = true
[[rule]]
name = "python-udp"
direction = "outbound"
protocol = "udp"
remote = "10.9.8.7"
remote-ports = 7000
program = "/usr/bin/python3*"
permit = true
"#;

/// A program that stays after it was refused something, until `go` is there.
pub(crate) const STAY: &str = r#"
export XDG_RUNTIME_DIR=$PWD/scratch
control() { ls -d $XDG_RUNTIME_DIR/tacit-run-*/agent.sock; }
# Runs a script that is refused something, and asks the agent while the run lives.
refused() {
    echo "$1; touch scratch/done; until [ -e scratch/go ]; do sleep 0.05; done" >refused.sh
    run bash refused.sh >scratch/out 2>scratch/err & client=$!
    until_true [ -e scratch/done ]
    shift; "$@"
    touch scratch/go; wait $client
}
show() { ordinary ./tacit show "$@" --control $(control); }
"#;

/// Rules for names: no other name is asked for.
fn by_name() -> Network {
    Network::new(&[7000], STAY)
}

/// Rules for an address: every name may have it.
fn by_address() -> Network {
    Network::new(&[], STAY).with_rules(FOR_PYTHON)
}

/// The refusals of a script, as JSON.
pub(crate) fn refusals(network: &Network, script: &str) -> Vec<Value> {
    let said = network.ok(&format!("refused '{script}' show refused --json"));
    let mut shown: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    match shown["refused"].take() {
        Value::Array(refusals) => refusals,
        other => panic!("{other}"),
    }
}

#[test]
fn a_name_that_no_rule_can_match_is_reported() {
    let seen = refusals(&by_name(), "getent ahostsv4 other.example; getent ahostsv4 other.example");
    let [one] = &*seen else { panic!("{seen:?}") };
    assert_eq!(one["kind"], "name");
    assert_eq!(one["destination"], "other.example");
    assert_eq!(one["why"], "no-rule");
    assert_eq!(one["run"]["name"], "bash");
    assert!(one["count"].as_u64() >= Some(2), "{one}");
    assert_eq!(one["next"], "add remote = \"other.example\" to an outbound rule");
}

#[test]
fn zone_transfers_are_refused_and_reported_with_their_type() {
    let said = by_name().ok(r#"
        log=$HOME/.local/state/tacit/run.log
        refused 'python3 "$PEERS/ask.py" tcp 192.0.2.53 clear.example 252 clear.example 251' \
            show refused --json >shown
        cat scratch/out
        tr -d ' \n' <shown | grep -o '"destination":"[^"]*"'
        for kind in AXFR IXFR; do
            logged=" denied .*kind=name .*\"clear.example ($kind)\" why=not-offered"
            until_true grep -q "$logged" $log
        done"#);
    assert_eq!(
        said,
        "clear.example 252: code 5, 0 answers\nclear.example 251: code 5, 0 answers\n\
         \"destination\":\"clear.example(IXFR)\"\n\
         \"destination\":\"clear.example(AXFR)\"\n"
    );
}

#[test]
fn a_connection_that_no_rule_matches_is_reported() {
    let seen = refusals(&by_address(), "(exec 3<>/dev/tcp/10.9.8.7/7000; read line <&3)");
    let [one] = &*seen else { panic!("{seen:?}") };
    assert_eq!(one["kind"], "connection");
    assert_eq!(one["destination"], "10.9.8.7:7000");
    assert!(one["program"].as_str().is_some_and(|file| file.ends_with("/bash")), "{one}");
    let next = "add remote = \"10.9.8.7\" and remote-ports = 7000 to an outbound rule";
    assert_eq!(one["next"], next);
}

#[test]
fn a_connection_to_an_uncaptured_address_is_reported() {
    let seen = refusals(&by_name(), "(exec 3<>/dev/tcp/192.0.2.7/80)");
    let [one] = &*seen else { panic!("{seen:?}") };
    assert_eq!(one["destination"], "192.0.2.7:80");
    assert_eq!(one["count"], 1, "a SYN that is repeated is one refusal: {one}");
    let next = "add remote = \"192.0.2.7\" and remote-ports = 80 to an outbound rule";
    assert_eq!(one["next"], next);
}

#[test]
fn datagrams_that_no_rule_permits_are_reported() {
    let seen = refusals(&by_address(), "(exec 3<>/dev/udp/10.9.8.7/7000; echo one >&3; sleep 0.2)");
    let [one] = &*seen else { panic!("{seen:?}") };
    assert_eq!(one["kind"], "datagram");
    assert_eq!(one["destination"], "10.9.8.7:7000");
    assert!(one["next"].as_str().unwrap().contains("protocol = \"udp\""), "{one}");
}

#[test]
fn datagrams_that_the_kernel_of_the_run_refuses_are_reported() {
    let network = by_name().with_ipv6();
    let script = "(exec 3<>/dev/udp/192.0.2.7/7000; echo one >&3; echo two >&3 2>&1; sleep 0.2)
        (exec 3<>/dev/udp/2001:db8:5::5/7001; echo one >&3; sleep 0.2)";
    let seen = refusals(&network, script);
    let [six, four] = &*seen else { panic!("{seen:?}") };
    assert_eq!(four["kind"], "datagram");
    assert_eq!(four["destination"], "192.0.2.7:7000");
    assert!(four["next"].as_str().unwrap().contains("protocol = \"udp\""), "{four}");
    assert_eq!(six["destination"], "[2001:db8:5::5]:7001");
}

#[test]
fn connections_to_own_addresses_without_a_listener_are_reported() {
    let script = "(exec 3<>/dev/tcp/127.0.0.1/81); sleep 0.1; (exec 3<>/dev/tcp/192.168.77.1/82)
        sleep 0.1; (exec 3<>/dev/udp/127.0.0.1/83; echo one >&3; sleep 0.2)";
    let seen = refusals(&by_name(), script);
    let [udp, own, tcp] = &*seen else { panic!("{seen:?}") };
    for (one, kind, destination) in [
        (tcp, "connection", "127.0.0.1:81"),
        (own, "connection", "192.168.77.1:82"),
        (udp, "datagram", "127.0.0.1:83"),
    ] {
        assert_eq!((&one["kind"], &one["destination"]), (&kind.into(), &destination.into()));
        assert_eq!(one["why"], "no-listener");
        let next = one["next"].as_str().unwrap();
        assert!(
            next.ends_with(
                "; for a server in the run, start a program that listens on this address"
            ),
            "{next}"
        );
    }
    assert_eq!(tcp["count"], 1, "{tcp}");
}

#[test]
fn denied_connections_are_logged() {
    let rules = "[[rule]]\nname = \"no-address\"\ndirection = \"outbound\"\n\
        remote = \"192.0.2.9\"\ndeny = true\n\
        [[rule]]\nname = \"no-name\"\ndirection = \"outbound\"\n\
        remote = \"bad.example\"\ndeny = true\n";
    let said = Network::new(&[], "").with_rules(rules).ok(r#"
        log=$HOME/.local/state/tacit/run.log
        run bash -c 'getent ahostsv4 bad.example; exec 3<>/dev/tcp/192.0.2.9/80' 2>/dev/null
        until_true grep -q 'destination=192.0.2.9:80' $log
        until_true grep -q 'destination=bad.example' $log
        # What repeats is written at the end of its second, or of the agent.
        grep -m 1 -c ' denied rule=no-name kind=name .* destination=bad.example why=denied' $log
        grep -c ' warn denied rule=no-address kind=connection .* why=denied' $log"#);
    assert_eq!(said, "1\n1\n");
}

#[test]
fn broadcast_and_multicast_have_their_own_reason() {
    let script = "(exec 3<>/dev/udp/224.0.0.251/5353; echo one >&3; sleep 0.2)";
    let seen = refusals(&by_name(), script);
    let [one] = &*seen else { panic!("{seen:?}") };
    assert_eq!(one["why"], "not-offered");
    assert_eq!(
        one["next"],
        "no rule can allow this flow: runs do not support broadcast or multicast"
    );
}

#[test]
fn refusals_are_a_table_and_a_metric() {
    let said = by_name().ok("both() { show refused; show metrics | grep ^tacit_refused_total; }
        refused 'getent ahostsv4 other.example; getent ahostsv4 more.example' both");
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].starts_with("LAST "), "{said}");
    assert!(lines[1].contains(" more.example "), "newest first: {said}");
    assert!(lines[2].contains(" other.example "), "{said}");
    assert!(lines[2].ends_with("add remote = \"other.example\" to an outbound rule"), "{said}");
    let count =
        lines.iter().find_map(|line| line.strip_prefix("tacit_refused_total{why=\"no-rule\"} "));
    assert!(count.is_some_and(|count| count.parse::<u64>().unwrap() >= 2), "{said}");
    assert!(said.contains("tacit_refused_total{why=\"denied\"} 0"), "{said}");
}

#[test]
fn the_log_of_a_run_stays_out_of_what_its_program_writes() {
    let said = by_name().ok(r#"
        log=$HOME/.local/state/tacit/run.log
        run bash -c 'getent ahostsv4 other.example; echo mine >&2' 2>err; cat err
        # The agent writes when it comes to it.
        until_true grep -q 'destination=other.example' $log
        stat -c %a $log
        grep -m 1 -c ' warn denied .* destination=other.example .* launcher=bash\[[0-9]*\]' $log"#);
    assert_eq!(said, "mine\n600\n1\n");
}

#[test]
fn the_log_of_a_run_goes_where_the_command_line_says() {
    let said = by_name().ok(r#"
        for destination in stderr none ./scratch/own.log; do
            RUN_OPTIONS="--log $destination"
            # An agent ends a little later than its run, and may still write: a file for each.
            err=err-$(basename $destination)
            run getent ahostsv4 other.example 2>$err
            [ $destination != stderr ] || until_true grep -q ' warn denied ' $err
            grep -m 1 -c ' warn denied ' $err
        done
        until_true grep -q ' warn denied ' scratch/own.log
        grep -m 1 -c ' warn denied ' scratch/own.log
        grep -c ' info ' scratch/own.log
        RUN_OPTIONS='--log ./scratch/all.log --log-level info'
        run true; until_true grep -qs ' info ' scratch/all.log
        grep -m 1 -c ' info ' scratch/all.log
        ls $HOME/.local 2>/dev/null
        RUN_OPTIONS='--log ./missing/own.log'
        run true 2>err; echo status $?
        grep -c 'cannot open log file ./missing/own.log: ' err"#);
    assert_eq!(said, "1\n0\n0\n1\n0\n1\nstatus 125\n1\n");
}

#[test]
fn the_end_of_a_run_is_reported_on_standard_error() {
    let said = by_name().ok(r#"
        RUN_OPTIONS='--log none'
        echo nonsense >>run.toml
        run true 2>err; echo status $?
        grep -c 'run.toml:[0-9]*:[0-9]*: ' err"#);
    assert_eq!(said, "status 125\n1\n");
}

/// One run asks for names without end, and what it may of the audit log is used up.
#[test]
fn a_run_with_many_refusals_does_not_suppress_those_of_others() {
    let said = by_name().ok(r#"
        cat >ask.py <<'P'
import os, socket, struct, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.connect(("192.0.2.53", 53))
def ask(name, number):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    udp.send(struct.pack(">6H", number & 0xffff, 0x100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1")
    udp.recv(512)
if sys.argv[1] == "flood":
    number = 0
    while not os.path.exists("scratch/go"):
        number += 1; ask(f"f{number}.example", number)
else:
    for number in range(30): ask(f"quiet{number}.example", number)
P
        cp run.toml policy.toml; chmod 644 policy.toml
        ordinary exec ./tacit agent --policy policy.toml --control scratch/control \
            --enrol scratch/enrol --audit scratch/audit 2>agent.log & background+=($!)
        until_true [ -S scratch/enrol ]
        for n in 1 2; do
            ordinary ./tacit run --agent scratch/enrol --name flood -- python3 ask.py flood &
        done
        until_true grep -q 'audit-lines-left-out.*"run":"flood"' scratch/audit
        ordinary ./tacit run --agent scratch/enrol --name quiet -- python3 ask.py quiet
        touch scratch/go
        audited() { [ $(grep -c '"run":"quiet"' scratch/audit) = 30 ]; }
        logged() { [ $(grep -c 'denied .*run=quiet' agent.log) = 30 ]; }
        until_true audited; until_true logged
        ordinary ./tacit show refused --control scratch/control | grep -c ' quiet .*quiet'
        grep '"event":"audit-lines-left-out"' scratch/audit | grep -c quiet || true"#);
    assert_eq!(said, "30\n0\n");
}
