//! Tests that tacit refuses unsupported kinds of sockets in a run. tacit must always refuse and
//! report these sockets, even when the agent or the helper has died.

use serde_json::Value;

use crate::network::Network;
use crate::refused::{STAY, refusals};

/// Says the error of each socket that it is told to make, by family or `io_uring`. A line `wait
/// FILE` waits until that is there.
const MAKE: &str = r#"
cat >make.py <<'P'
import ctypes, errno, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    got = libc.syscall(number, *arguments)
    return "made" if got >= 0 else errno.errorcode[ctypes.get_errno()]
def make(kind):
    if kind == "io_uring": return call(425, 1, 0)
    try: socket.socket(int(kind), socket.SOCK_DGRAM).close()
    except OSError as error: return errno.errorcode[error.errno]
    return "made"
arguments = iter(sys.argv[1:])
for one in arguments:
    if one == "touch": open(next(arguments), "w").close()
    elif one == "wait":
        awaited = next(arguments)
        while not os.path.exists(awaited): time.sleep(0.02)
    else: print(one, make(one), flush=True)
P
"#;

fn network() -> Network {
    Network::new(&[], &format!("{STAY}{MAKE}"))
}

fn one<'a>(seen: &'a [Value], destination: &str) -> &'a Value {
    let found = seen.iter().find(|one| one["destination"] == destination);
    found.unwrap_or_else(|| panic!("{destination} is missing: {seen:?}"))
}

#[test]
fn refused_sockets_are_reported() {
    let make = "python3 make.py 40 17 io_uring 38 31 60 1000 77777 2 16 >scratch/made; sleep 0.3";
    let network = network();
    for network in network.for_each_user() {
        let seen = refusals(&network, make);
        let kinds = ["AF_VSOCK", "AF_PACKET", "io_uring", "AF_ALG", "AF_BLUETOOTH", "family 60"];
        for kind in kinds {
            let one = one(&seen, kind);
            assert_eq!(one["kind"], "socket", "{one}");
            assert_eq!(one["why"], "not-offered", "{one}");
            assert_eq!(one["run"]["name"], "bash", "{one}");
            assert_eq!(one["count"], 1, "{one}");
            assert_eq!(one["next"], "no rule can allow this type of socket in a run", "{one}");
            let program = one["program"].as_str();
            assert!(program.is_some_and(|file| file.contains("/python3")), "{one}");
        }
        assert_eq!(one(&seen, "socket address family 64 or higher")["count"], 2, "{seen:?}");
        assert_eq!(seen.len(), kinds.len() + 1, "{seen:?}");
    }
}

#[test]
fn refused_sockets_have_their_errors_a_metric_and_a_line_of_the_log() {
    let said = network().ok(r#"
        log=$HOME/.local/state/tacit/run.log
        both() { show refused | grep AF_VSOCK; show metrics | grep 'total{why="not-offered"}'; }
        refused 'python3 make.py 40 40 40 17 io_uring 1 2 10 16 >scratch/made; sleep 0.3' both
        cat scratch/made
        until_true grep -q 'destination=io_uring' $log
        # The line of those that came later is written with the agent's end, before or after this.
        grep -v ' times=' $log >first.log
        grep -c ' warn denied .*kind=socket .* destination=AF_VSOCK why=not-offered ' first.log
        grep -c '=AF_VSOCK .*next="no rule can allow this type of socket in a run"' first.log"#);
    assert!(said.contains(" socket "), "{said}");
    assert!(said.contains("tacit_refused_total{why=\"not-offered\"} 5\n"), "{said}");
    let made = "40 EAFNOSUPPORT\n40 EAFNOSUPPORT\n40 EAFNOSUPPORT\n17 EAFNOSUPPORT\n\
                io_uring ENOSYS\n1 made\n2 made\n10 made\n16 made\n";
    assert!(said.contains(made), "{said}");
    assert!(said.ends_with("\n1\n1\n"), "one line a second: {said}");
}

#[test]
fn refused_sockets_are_audited_with_their_number() {
    let network = Network::new(&[], &format!("{STAY}{MAKE}"));
    let said = network.ok(r#"
        cp run.toml policy.toml; chmod 644 policy.toml
        ordinary exec ./tacit agent --policy policy.toml --control scratch/control \
            --enrol scratch/enrol --audit scratch/audit 2>agent.log & background+=($!)
        until_true [ -S scratch/enrol ]
        counted() { ordinary ./tacit show refused --json --control scratch/control |
            tr -d ' ' | grep -q '"count":5'; }
        ordinary ./tacit run --agent scratch/enrol -- sh -c '
            python3 make.py 40 40 40 40 40; sleep 0.3'
        audited() {
            python3 -c 'import json
lines = [json.loads(line) for line in open("scratch/audit")]
of_sockets = [int(one.get("times", 1)) for one in lines if one.get("kind") == "socket"]
assert sum(of_sockets) >= 5' 2>/dev/null
        }
        until_true counted; until_true audited
        cat scratch/audit"#);
    let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let sockets: Vec<_> = lines.filter(|line| line["kind"] == "socket").collect();
    let times = |line: &Value| match &line["times"] {
        Value::Null => 1,
        times => times.as_u64().or_else(|| times.as_str()?.parse().ok()).unwrap(),
    };
    assert_eq!(sockets.iter().map(times).sum::<u64>(), 5, "{said}");
    assert!(sockets.iter().all(|line| line["destination"] == "AF_VSOCK"), "{said}");
}

#[test]
fn the_name_of_a_program_does_not_control_the_terminal_of_the_operator() {
    let said = network().ok(r#"
        name=$'scratch/a\nb\e[31m'
        cp /usr/bin/python3 "$name"
        refused '"$(echo scratch/a?b*)" make.py 40' show refused
        log=$HOME/.local/state/tacit/run.log
        until_true grep -q 'destination=AF_VSOCK' $log
        grep -c 'destination=AF_VSOCK' $log"#);
    assert!(!said.contains('\u{1b}'), "{said:?}");
    let [headings, row, "1"] = *said.lines().collect::<Vec<_>>() else { panic!("{said}") };
    assert!(headings.starts_with("LAST"), "{said}");
    assert!(row.contains("AF_VSOCK") && row.contains(r"/a\nb\u{1b}[31m  not-offered"), "{said}");
}

#[test]
fn a_program_that_ends_at_once_is_reported() {
    let said = network().ok(r#"
        log=$HOME/.local/state/tacit/run.log
        run python3 make.py 40 38
        until_true grep -q 'destination=AF_ALG' $log
        grep -c 'destination=AF_VSOCK' $log"#);
    assert_eq!(said, "40 EAFNOSUPPORT\n38 EAFNOSUPPORT\n1\n");
}

#[test]
fn a_successor_of_the_agent_shows_refused_sockets_too() {
    let said = network().ok(r#"
        run python3 make.py 40 touch scratch/done wait scratch/go 38 touch scratch/more \
            wait scratch/end >scratch/made & client=$!
        until_true [ -e scratch/done ]
        ordinary ./tacit restart --control $(control) >/dev/null
        # The successor has the run, and no refusal yet.
        has_run() { show runs --json | grep -q '"name"' && ! show refused | grep -q AF_VSOCK; }
        until_true has_run
        touch scratch/go; until_true [ -e scratch/more ]
        seen() { show refused | grep AF_ALG; }
        until_true seen >/dev/null; seen | grep -c ' socket '
        touch scratch/end; wait $client; cat scratch/made"#);
    assert_eq!(said, "1\n40 EAFNOSUPPORT\n38 EAFNOSUPPORT\n");
}

#[test]
fn sockets_are_refused_at_once_when_the_agent_or_the_helper_is_killed() {
    let said = network().ok(r#"
        for victim in tacit-agent tacit-helper both; do
            rm -f scratch/done scratch/go
            run timeout 20 python3 make.py 40 touch scratch/done wait scratch/go 40 io_uring \
                >scratch/made 2>scratch/err & client=$!
            until_true [ -e scratch/done ]
            launcher=$(basename $(dirname $(control))); launcher=${launcher#tacit-run-}
            helper=$(pgrep -x -P $launcher tacit-helper)
            agent=$(pgrep -x -P $(pgrep -x -P $launcher tacit-supervise) tacit-agent)
            ended() { ! grep -qs '^State:.[^ZX]' /proc/$1/status; }
            [ $victim = tacit-helper ] || { kill -9 $agent; until_true ended $agent; }
            [ $victim = tacit-agent ] || { kill -9 $helper; until_true ended $helper; }
            touch scratch/go; wait $client; echo $victim $? $(cat scratch/made)
        done"#);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "tacit-agent 0 40 EAFNOSUPPORT 40 EAFNOSUPPORT io_uring ENOSYS", "{said}");
    for (line, victim) in lines[1..].iter().zip(["tacit-helper", "both"]) {
        // With the helper the listener is gone: the kernel answers.
        let wanted = format!("{victim} 0 40 EAFNOSUPPORT 40 ENOSYS io_uring ENOSYS");
        assert_eq!(*line, wanted, "{said}");
    }
    assert_eq!(lines.len(), 3, "{said}");
}

#[test]
fn a_nested_run_refuses_the_same_sockets() {
    let said = network().ok(r#"
        log=$HOME/.local/state/tacit/run.log
        printf 'version = 1\n[[rule]]\nname = "all"\ndirection = "outbound"\n' >inner.toml
        printf 'remote = "*.example"\npermit = true\n' >>inner.toml
        run bash -c './tacit run --policy inner.toml -- python3 make.py 40 io_uring 2; \
            python3 make.py 17'
        until_true grep -q 'destination=AF_PACKET' $log
        until_true grep -q 'refused-sockets-unreported' $log
        grep -c 'refused-sockets-unreported' $log; grep -c 'destination=AF_VSOCK' $log || true"#);
    assert_eq!(said, "40 EAFNOSUPPORT\nio_uring ENOSYS\n2 made\n17 EAFNOSUPPORT\n1\n0\n");
}

/// Every thread asks as often as it can, one of them is killed at it, and signals arrive meanwhile.
#[test]
fn a_program_that_creates_many_sockets_does_not_block_others() {
    let said = network().ok(r#"
        cat >flood.py <<'P'
import os, signal, socket, sys, threading, time
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
end, made = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    try: socket.socket(40)
    except InterruptedError: pass
    except OSError as error: made += 1; assert error.errno == 97
signal.setitimer(signal.ITIMER_REAL, 0)
print("flooded", made > 1000, flush=True)
P
        run bash -c 'for n in 1 2 3; do python3 flood.py 2 & done
            python3 flood.py 60 & killed=$!; sleep 0.5; kill -9 $killed
            for n in 1 2 3 4 5; do getent ahostsv4 other$n.example; done
            wait; touch scratch/done; sleep 0.3; until [ -e scratch/go ]; do sleep 0.05; done' \
            >scratch/out 2>scratch/err & client=$!
        until_true [ -e scratch/done ]
        show refused | grep -c ' other[1-5].example '
        [ $(show refused | grep AF_VSOCK | awk '{print $2}') -gt 3000 ] && echo counted
        touch scratch/go; wait $client
        lines=$(grep -c 'destination=AF_VSOCK' $HOME/.local/state/tacit/run.log)
        [ $lines -lt 8 ] && echo limited; grep flooded scratch/out"#);
    assert_eq!(said, "5\ncounted\nlimited\nflooded True\nflooded True\nflooded True\n");
}
