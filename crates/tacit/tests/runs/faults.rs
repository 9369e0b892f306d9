//! Tests faults: a process dies, a table is full, or the policy changes. tacit must lose no byte,
//! and must send no byte in clear.

use crate::network::Network;
use crate::programs::WEB;

const ECHO: &str = "start python3 $PEERS/echo.py 7000; await 7000\n";

/// Where the processes of a run are: `launcher` is its launcher's, which `started` has begun in the
/// background; `process NAME...` finds others. All connections of the run are relayed, and need no
/// helper when they open.
const PROCESSES: &str = r#"
started() {
    ordinary exec ./tacit run --policy run.toml --path relay -- "$@" <&0 & launcher=$!
    background+=($launcher)
}
process() {
    local pid
    for pid in $(pgrep -P $launcher) $(pgrep -P $(pgrep -d , -P $launcher)); do
        case " $* " in *" $(cat /proc/$pid/comm) "*) echo $pid ;; esac
    done 2>/dev/null
}
"#;

#[test]
fn an_agent_killed_at_any_moment_leaks_nothing_and_nothing_is_reached_without_it() {
    let script = "python3 $PEERS/killing.py 200 60 tls.example 7000";
    let said = Network::new(&[7000], ECHO).ok(script);
    assert!(!said.contains("WRONG"), "{said}");
    let mut counts = said.split(' ').map(|word| word.parse::<u32>().unwrap_or(0));
    let made = counts.next().unwrap();
    let loaded = counts.next().unwrap();
    assert!(made >= 10 && loaded > made / 3, "hardly any rounds, or hardly any load: {said}");
}

/// A program that keeps one connection, and on each line of input says whether that still echoes
/// and how a new one to a name goes.
const ASKED: &str = r#"
import socket, sys
def echo(stream):
    try:
        stream.sendall(b"?")
        return "works" if stream.recv(1) == b"?" else "END"
    except OSError as error:
        return type(error).__name__
old = socket.create_connection((sys.argv[1], 7000), 20)
print("ready", flush=True)
for line in sys.stdin:
    try:
        new = echo(socket.create_connection((line.strip(), 7000), 20))
    except socket.gaierror:
        new = "unknown name"
    except OSError as error:
        new = type(error).__name__
    print("old", echo(old), "new", new, flush=True)
"#;

/// Starts that program in a run and asks it; `ask NAME` prints the answer.
fn asked(script: &str) -> String {
    let setup = format!(
        "{ECHO}{PROCESSES}\ncat >asked.py <<'END'\n{ASKED}\nEND\nmkfifo to from\n\
         ask() {{ echo $1 >&8; read -t 30 -u 9 answer; echo \"$answer\"; }}\n\
         exec 8<>to 9<>from\nstarted /usr/bin/python3 asked.py tls.example <to >from 8>&- 9>&-\n\
         read -t 30 -u 9 answer\n"
    );
    Network::new(&[7000], &setup).ok(script)
}

/// What is open stays open, protected as it was; nothing is opened any more.
#[test]
fn a_killed_launcher_leaves_a_program_that_reaches_nothing_new() {
    let said = asked(
        "ask tls.example
         helper=$(process tacit-helper); all=\"$helper $(process tacit-supervise tacit-agent)\"
         kill -9 $launcher
         ended() { for pid; do ! grep -qs '^State:.[^ZX]' /proc/$pid/status || return; done; }
         until_true ended $helper
         # The agent takes note in its own time.
         closed() { case $(ask 10.9.8.8) in *Refused*) ;; *) false ;; esac; }
         until_true closed
         ask 10.9.8.8; ask 10.9.8.7; ask clear.example
         exec 8>&-
         until_true ended $all",
    );
    let lines: Vec<_> = said.lines().collect();
    let refused = "old works new ConnectionRefusedError";
    let unknown = "old works new unknown name";
    assert_eq!(lines, ["old works new works", refused, refused, unknown], "{said}");
}

#[test]
fn a_killed_helper_is_replaced_and_nothing_is_lost() {
    let said = asked(
        "for round in 1 2 3; do
             helper=$(process tacit-helper); kill -9 $helper
             another() { now=$(process tacit-helper); [ -n \"$now\" ] && [ $now != $helper ]; }
             until_true another
             ask tls.example
         done
         # A name that was not asked for before: its address is captured by the new helper.
         ask clear.example",
    );
    assert_eq!(said.lines().collect::<Vec<_>>(), ["old works new works"; 4], "{said}");
}

/// The agent before drains as long as the old connection lives, and had the launcher's line too.
#[test]
fn a_helper_killed_after_a_restart_is_replaced_for_the_successor() {
    let said = asked(
        "control=$TMPDIR/tacit-run-$launcher/agent.sock
         ordinary ./tacit restart --control $control >/dev/null
         until_true succeeded $control ordinary
         for round in 1 2 3 4 5 6 7 8; do
             helper=$(process tacit-helper); kill -9 $helper
             another() { now=$(process tacit-helper); [ -n \"$now\" ] && [ $now != $helper ]; }
             until_true another
         done
         ask tls.example; ask clear.example",
    );
    assert_eq!(said.lines().collect::<Vec<_>>(), ["old works new works"; 2], "{said}");
}

/// Each program ends at another moment of a restart.
#[test]
fn agents_end_when_their_run_ends_during_a_restart() {
    let script = r#"
        supervisors=()
        for round in $(seq 0 24); do
            rm -f scratch/up ended
            started bash -c 'touch scratch/up; until [ -e ended ]; do sleep 0.002; done'
            until_true [ -e scratch/up ]
            supervisors+=($(process tacit-supervise))
            ordinary ./tacit restart --control $TMPDIR/tacit-run-$launcher/agent.sock \
                >/dev/null 2>&1 & restarting=$!
            sleep 0.$(printf %03d $((round * 8)))
            touch ended; wait $launcher $restarting
        done
        gone() { ! grep -qs '^State:.[^ZX]' /proc/$1/status; }
        for supervisor in ${supervisors[@]}; do until_true gone $supervisor; done
        echo ${#supervisors[@]} ended"#;
    assert_eq!(Network::new(&[], PROCESSES).ok(script), "25 ended\n");
}

#[test]
fn an_agent_short_of_descriptors_serves_all_in_turn() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can count the files that an agent has open");
        return;
    }
    let script = r#"
        started bash -c 'touch scratch/up; until [ -e limited ]; do sleep 0.02; done
            for count in 60 5; do
                timeout 60 /usr/bin/python3 $PEERS/clients.py tls.example 7000 $count 2>&1
            done' >out
        until_true [ -e scratch/up ]
        agent=$(process tacit-agent)
        open=$(ls /proc/$agent/fd | wc -l)
        prlimit --pid $agent --nofile=$((open + 20)):$((open + 20)); touch limited
        wait $launcher; cat out"#;
    let said = Network::new(&[7000], &format!("{ECHO}{PROCESSES}")).ok(script);
    assert_eq!(said, "60 ('10.9.8.8', 7000) right\n5 ('10.9.8.8', 7000) right\n");
}

#[test]
fn a_reload_under_load_drops_nothing() {
    let said = asked(
        "control=$TMPDIR/tacit-run-$launcher/agent.sock
         cp run.toml one.toml
         { cat run.toml; printf '[[rule]]\\nname = \"more\"\\ndirection = \"outbound\"\\n'
           printf 'remote = \"10.66.0.0/16\"\\npermit = true\\n'; } >two.toml
         (for round in $(seq 20); do
             cat two.toml >run.toml; ordinary ./tacit reload --control $control || echo FAILED
             cat one.toml >run.toml; ordinary ./tacit reload --control $control || echo FAILED
         done >reload.log 2>&1; touch reloaded) &
         asked=0
         while [ ! -e reloaded ] && kill -0 $launcher; do
             ask tls.example; ask clear.example; asked=$((asked + 2))
         done
         ! grep FAILED reload.log || cat reload.log; echo asked $((asked > 20))",
    );
    let (answers, rest) = said.split_once("asked ").unwrap();
    assert!(answers.lines().all(|line| line == "old works new works"), "{said}");
    assert_eq!(rest.trim(), "1", "hardly any load: {said}");
}

#[test]
fn a_client_killed_while_it_connects_leaves_nothing_behind() {
    let script = r#"
        run bash -c 'for round in $(seq 60); do
            /usr/bin/python3 $PEERS/clients.py tls.example 7000 20 >/dev/null 2>&1 & one=$!
            sleep 0.$(printf %03d $((RANDOM % 250))); kill -9 $one
        done 2>/dev/null
        wait 2>/dev/null
        /usr/bin/python3 $PEERS/clients.py tls.example 7000 20'
        none() { [ -z "$(ss -Htn state established dst 10.9.8.7)" ]; }
        until_true none; echo nothing left"#;
    let said = Network::new(&[7000], ECHO).ok(script);
    assert_eq!(said, "20 ('10.9.8.8', 7000) right\nnothing left\n");
}

#[test]
fn runs_nest_three_deep() {
    let script = r#"
        # The policy of a run is hidden from it: each has one of its own.
        printf '[[rule]]\nname = "all"\ndirection = "outbound"\nremote = "%s"\npermit = true\n' \
            '*.example' >rule
        for depth in 2 3; do { echo version = 1; cat rule; } >$depth.toml; done
        run ./tacit run --policy 2.toml -- ./tacit run --policy 3.toml -- \
            curl -sS http://tls.example:8080/small http://clear.example:8080/small
        # Refused by the outermost, whose answer the next one carries on.
        run ./tacit run --policy 2.toml -- ./tacit run --policy 3.toml -- \
            curl -sS http://tls.example:8081/small || echo refused
        run ./tacit run --policy 2.toml -- ./tacit run --policy 3.toml -- sh -c 'exit 9'
        echo status $?"#;
    let said = Network::new(&[8080], WEB).ok(script);
    assert_eq!(said, "small\nsmall\nrefused\nstatus 9\n");
}

#[test]
fn containers_that_allow_namespaces_hold_runs() {
    let script = r#"
        policy="--policy run.toml -- curl -sS http://tls.example:8080/small"
        ordinary unshare -Urmpf --mount-proc timeout 30 ./tacit run $policy
        ordinary setpriv --no-new-privs timeout 30 ./tacit run $policy
        ordinary unshare -Uc timeout 30 ./tacit run $policy"#;
    let said = Network::new(&[8080], WEB).ok(script);
    assert_eq!(said, "small\nsmall\nsmall\n");
}

/// A kernel that refuses is named with the setting, and nothing is run in clear.
#[test]
fn where_namespaces_are_refused_the_setting_is_named() {
    let script = r#"
        ordinary unshare --user --map-user=54321 --map-group=54321 --keep-caps bash -c '
            echo 0 >/proc/sys/user/max_user_namespaces
            setpriv --ambient-caps=-all --inh-caps=-all \
                ./tacit run --policy run.toml -- echo RUNS' 2>&1; echo status $?
        ordinary unshare --user --map-user=54321 --map-group=54321 --keep-caps bash -c '
            echo 0 >/proc/sys/user/max_net_namespaces
            setpriv --ambient-caps=-all --inh-caps=-all \
                ./tacit run --policy run.toml -- echo RUNS' 2>&1; echo status $?
        mkdir jail; mount --rbind / jail
        chroot jail $USER_OF_RUNS $PWD/tacit run --policy $PWD/run.toml -- echo RUNS 2>&1
        echo status $?"#;
    let said = Network::new(&[], "").ok(script);
    assert_eq!(said.matches("status 125").count(), 3, "{said}");
    for word in ["max_user_namespaces", "max_net_namespaces", "chroot"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(!said.contains("RUNS"), "{said}");
}
