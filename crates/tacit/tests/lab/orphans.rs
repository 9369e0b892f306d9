//! Tests how `tacit run` handles processes that are still running after the program has ended.

use crate::harness::text_of;
use crate::job::{as_each_user, expect};

/// Starts one that its session's end does not reach, and waits until it has written its number.
const DAEMON: &str = "daemon='setsid -f sh -c \"$1 echo \\$\\$ >$scratch/new; \
    mv $scratch/new $scratch/pid; while :; do sleep 0.1; done\" >/dev/null 2>&1; \
    while [ ! -e $scratch/pid ]; do sleep 0.01; done'; export scratch\n";

#[test]
fn orphans_are_terminated_with_a_message() {
    let script =
        format!("{DAEMON} tacit_run -- sh -c \"$daemon; exit 7\" sh ''; echo $?; gone pid");
    for output in as_each_user(&script) {
        let text = text_of(&output);
        assert!(output.status.success(), "{text}");
        let counted = ["left 1 process running", "left 2 processes running"];
        assert!(counted.iter().any(|said| text.contains(said)), "itself and its sleep: {text}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "7\n");
    }
    expect(
        "export scratch; tacit_run -- sh -c '( ( sleep 100 & echo $! >$scratch/pid ) & ); \
         while [ ! -s $scratch/pid ]; do sleep 0.01; done'; gone pid && echo gone",
        "gone",
    );
}

#[test]
fn orphans_that_ignore_sigterm_are_killed() {
    let script = format!(
        "{DAEMON} tacit_run -- sh -c \"$daemon\" sh 'trap \"\" TERM HUP;'; gone pid && echo gone"
    );
    expect(&script, "gone");
}

#[test]
fn a_signal_ends_the_grace_time() {
    // The grace is five seconds; a second signal to the launcher ends it at once.
    let script = format!(
        "{DAEMON} timeout 60 ./tacit run --policy run.toml -- \
         sh -c \"$daemon\" sh 'trap \"\" TERM;' \
         2>$scratch/said & launcher=$!\n\
         while ! grep -q 'sends SIGTERM' $scratch/said; do sleep 0.01; done\n\
         kill -TERM $launcher; wait $launcher; echo $?; gone pid && echo gone"
    );
    expect(&script, "0\ngone");
}

#[test]
fn the_launcher_waits_for_a_service_until_a_signal() {
    expect(
        "export scratch; tacit_run --orphans wait -- sh -c 'setsid -f sh -c \"sleep 0.5; \
         echo done >\\$scratch/end\"'; cat $scratch/end",
        "done",
    );
    let script = format!(
        "{DAEMON} timeout 60 ./tacit run --policy run.toml --orphans=wait -- \
         sh -c \"echo \\$\\$ >$scratch/program; $daemon\" sh '' & launcher=$!\n\
         while [ ! -e $scratch/pid ] || kill -0 $(cat $scratch/program) 2>/dev/null; do\n\
         sleep 0.01; done\n\
         kill -TERM $launcher; wait $launcher; echo $?; gone pid && echo gone"
    );
    expect(&script, "0\ngone");
}

#[test]
fn orphans_that_are_left_continue_without_network() {
    let connect = "import socket, sys, time, os\n\
                   time.sleep(1)\n\
                   for port in (53, 80):\n\
                   \x20   try: socket.create_connection((\"10.9.8.7\", port), 5)\n\
                   \x20   except OSError as error: print(port, error.errno, flush=True)\n";
    let script = format!(
        "cat >$scratch/late.py <<'END'\n{connect}\nEND\nexport scratch\n\
         tacit_run --orphans leave -- sh -c 'setsid -f python3 $scratch/late.py >$scratch/late'\n\
         echo $?; for try in $(seq 300); do [ $(wc -l <$scratch/late) = 2 ] && break; sleep 0.02; \
         done; cat $scratch/late"
    );
    for output in as_each_user(&script) {
        let text = text_of(&output);
        let said = String::from_utf8_lossy(&output.stdout);
        let refused = ["0\n53 111\n80 111\n", "0\n53 101\n80 101\n"];
        assert!(refused.contains(&&*said), "refused, or unreachable on a host without: {text}");
    }
}

#[test]
fn orphans_that_end_while_the_program_runs_are_collected() {
    expect(
        "export scratch; tacit_run -- sh -c 'for n in 1 2 3 4 5; do setsid -f true; done; \
         launcher=$(ps -o ppid= -p $$); for try in $(seq 300); do \
         ps -o stat= --ppid $launcher | grep -q Z || break; sleep 0.02; done; \
         ps -o stat= --ppid $launcher | grep -c Z'",
        "0",
    );
}
