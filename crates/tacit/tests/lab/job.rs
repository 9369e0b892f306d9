//! Tests `tacit run` as a job of a shell: inherited descriptors, signals, and exit status.

use std::process::Output;

use crate::harness::{Lab, text_of};
use crate::public::Public;
use crate::run::{ORDINARY, POLICY};

/// Runs a script as each kind of user there is, in a directory that all can read. In it,
/// `tacit_run` is `tacit run` with a policy, and `$scratch` a directory of the script's own.
pub fn as_each_user(script: &str) -> Vec<Output> {
    let is_root = rustix::process::geteuid().is_root();
    let lab = Lab::new();
    lab.write("run.toml", POLICY);
    lab.write("inherit.py", include_str!("../peers/inherit.py"));
    lab.write("refuse.py", include_str!("../peers/refuse.py"));
    lab.write("ring.py", include_str!("../peers/ring.py"));
    lab.write("rights.py", include_str!("../peers/rights.py"));
    lab.write("terminal.py", include_str!("../peers/terminal.py"));
    lab.write("lease.py", include_str!("../peers/lease.py"));
    let public = Public::of(&lab);
    let users = [Some(""), is_root.then_some(ORDINARY)];
    let outputs = users.into_iter().flatten().map(|user| {
        let script = format!(
            "scratch=$(mktemp -d)\ntrap 'rm -rf $scratch' EXIT\n\
             tacit_run() {{ ./tacit run --policy run.toml \"$@\"; }}\n\
             gone() {{ for try in $(seq 1000); do kill -0 \"$(cat $scratch/$1)\" 2>/dev/null || \
             return 0; sleep 0.02; done; return 1; }}\n\
             {script}"
        );
        let mut words = user.split_whitespace().chain([
            "timeout",
            "--foreground",
            "120",
            "bash",
            "-c",
            &script,
        ]);
        let mut command = lab.command(words.next().unwrap());
        command.args(words).current_dir(&public.directory);
        command.env_remove("XDG_RUNTIME_DIR").output().unwrap()
    });
    outputs.collect()
}

/// Runs the script and expects its standard output.
pub fn expect(script: &str, wanted: &str) {
    for output in as_each_user(script) {
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.trim_end(), wanted, "{}", text_of(&output));
    }
}

#[test]
fn a_signal_ends_a_launcher_that_waits_for_its_agent() {
    expect(
        "echo version = 1 >$scratch/policy
         coproc python3 lease.py $scratch/policy; read -u ${COPROC[0]}
         for signal in HUP TERM; do
             ./tacit run --policy $scratch/policy -- true & launcher=$!
             until pgrep -P $launcher >/dev/null; do sleep 0.02; done
             sleep 0.5
             kill -$signal $launcher
             wait $launcher
             echo $?
         done",
        "129\n143",
    );
}

#[test]
fn a_run_whose_policy_is_a_fifo_fails() {
    expect(
        "mkfifo $scratch/policy
         ./tacit run --policy $scratch/policy -- true 2>$scratch/said; echo $?
         grep -q 'it is a FIFO, not a regular file' $scratch/said && echo refused",
        "125\nrefused",
    );
}

#[test]
fn the_launcher_continues_with_a_program_that_was_continued_or_killed_alone() {
    for (signal, wanted) in [("CONT", "7"), ("KILL", "137")] {
        expect(
            &format!(
                "./tacit run --policy run.toml -- \
                 sh -c 'echo $$ >'$scratch'/pid; kill -STOP $$; exit 7' & launcher=$!
                 until grep -q ') T ' /proc/$launcher/stat; do sleep 0.02; done
                 kill -{signal} $(cat $scratch/pid); wait $launcher 2>/dev/null; echo $?"
            ),
            wanted,
        );
    }
}

#[test]
fn an_inherited_network_socket_is_refused_unless_it_is_named() {
    let each = |how: &str, wanted: &str| expect(&format!("python3 inherit.py {how}"), wanted);
    each("pass", "125  True True");
    each("pass --inherit-fd N", "0 ran False False");
    each("stdin", "125  True True");
    each("stdin --inherit-fd 0", "0 ran False False");
    each("none", "0 ran False False");
    each("none --inherit-fd 9", "125  False True");
}

#[test]
fn an_inherited_io_uring_is_refused_unless_it_is_named_and_its_calls_always() {
    expect("python3 ring.py", "125  True True");
    expect("python3 ring.py --inherit-fd N", "0 ENOSYS False False");
}

#[test]
fn a_run_is_one_job_of_its_terminal() {
    expect(
        "python3 terminal.py $scratch",
        "interrupted\nstopped and continued\nwent on in the background\nread the terminal\n\
         gave the terminal to a shell and back\n\
         served a daemon while the job was stopped\n\
         stopped and continued before the program started",
    );
}

#[test]
fn signals_sent_to_the_launcher_reach_the_program() {
    let send = |trap: &str| {
        format!(
            "./tacit run --policy run.toml -- sh -c '{trap} echo >$scratch/up; \
             for n in $(seq 600); do sleep 0.1; done' & launcher=$!\n\
             while [ ! -e $scratch/up ]; do sleep 0.01; done; rm $scratch/up\n\
             kill -TERM $launcher; wait $launcher 2>/dev/null; echo $?"
        )
    };
    let trapped = send("trap \"exit 9\" TERM;");
    expect(&format!("export scratch\n{trapped}\n{}", send("")), "9\n143");
}

#[test]
fn the_callers_ignored_signals_are_inherited_and_a_broken_pipe_is_not() {
    expect("(trap '' HUP; tacit_run -- sh -c 'kill -HUP $$; echo alive')", "alive");
    let inside = "tacit_run -- bash -c 'yes | head -1 >/dev/null; echo ${PIPESTATUS[0]}'";
    expect(inside, "141");
    expect(&format!("(trap '' PIPE; {inside})"), "141");
    expect("tacit_run -- yes | head -1; echo ${PIPESTATUS[0]}", "y\n141");
}

#[test]
fn without_its_launcher_a_run_has_no_network_and_no_processes() {
    let connect = "import socket\n\
                   for address in (\"10.9.8.7\", \"127.0.0.53\"):\n\
                   \x20   try: socket.create_connection((address, 53), 5); print(\"reached\")\n\
                   \x20   except OSError as error: print(error.errno)\n";
    let script = format!(
        "cat >$scratch/late.py <<'END'\n{connect}\nEND\nexport scratch\n\
         export XDG_RUNTIME_DIR=$scratch\n\
         ./tacit run --policy run.toml -- sh -c 'echo >$scratch/up; for n in $(seq 600); do \
         [ -e $scratch/go ] && break; sleep 0.05; done; python3 $scratch/late.py >$scratch/new; \
         mv $scratch/new $scratch/late' & launcher=$!\n\
         while [ ! -e $scratch/up ]; do sleep 0.01; done\n\
         pgrep -f 'tacit run' -P $launcher >$scratch/own; kill -KILL $launcher\n\
         wait $launcher 2>/dev/null; wc -l <$scratch/own\n\
         for pid in $(cat $scratch/own); do echo $pid >$scratch/one; gone one && echo gone; done\n\
         ls -d $scratch/tacit-run-* 2>/dev/null && echo directory left\n\
         touch $scratch/go; while [ ! -e $scratch/late ]; do sleep 0.02; done; cat $scratch/late"
    );
    for output in as_each_user(&script) {
        let said = String::from_utf8_lossy(&output.stdout);
        let (own, refused) = said.split_at(said.len().min("2\ngone\ngone\n".len()));
        assert_eq!(own, "2\ngone\ngone\n", "helper and supervisor: {}", text_of(&output));
        assert!(["111\n111\n", "101\n111\n"].contains(&refused), "{}", text_of(&output));
    }
}

/// A launcher that was killed leaves its directory, and another user can guess the name.
#[test]
fn a_run_has_a_control_socket_although_the_name_of_its_directory_is_taken() {
    let script = r#"export scratch XDG_RUNTIME_DIR=$scratch
        for taken in "mkdir -m 0777" "ln -s /nonexistent"; do
            taken=$taken bash -c '
                echo $$ >$scratch/launcher; $taken $scratch/tacit-run-$$
                exec ./tacit run --policy run.toml -- sh -c "touch $scratch/up
                    until [ -e $scratch/go ]; do sleep 0.02; done"' &
            until [ -e $scratch/up ]; do sleep 0.02; done
            at=$scratch/tacit-run-$(cat $scratch/launcher)
            ./tacit show runs --control $at-1/agent.sock >/dev/null && echo answers
            ls -A $at/ 2>/dev/null
            touch $scratch/go; wait $!; rm $scratch/up $scratch/go
        done"#;
    expect(script, "answers\nanswers");
}

#[test]
fn a_run_has_the_rights_of_its_user_and_its_own_low_ports_and_echo_requests() {
    let script = "tacit_run -- python3 rights.py";
    for (output, rights) in as_each_user(script).into_iter().zip(rights()) {
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, format!("echo 0\n{rights}\n"), "{}", text_of(&output));
    }
}

/// What each user's program may have, in the order of [`as_each_user`].
fn rights() -> impl Iterator<Item = &'static str> {
    let is_root = rustix::process::geteuid().is_root();
    [is_root.then_some("less"), Some("none")].into_iter().flatten()
}

#[test]
fn under_sudo_a_run_belongs_to_the_caller() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be under sudo");
        return;
    }
    let script = "[ $(id -u) = 0 ] || { echo not root; exit; }\n\
        export SUDO_UID=$(id -u nobody) SUDO_GID=$(id -g nobody) SUDO_USER=nobody HOME=/kept\n\
        tacit_run -- sh -c 'id -un; id -Gn; echo $HOME; grep CapEff /proc/self/status'\n\
        tacit_run --as-root -- id -un\n\
        SUDO_UID=x tacit_run -- true 2>&1; echo $?";
    let outputs = as_each_user(script);
    let said = String::from_utf8_lossy(&outputs[0].stdout);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[..3], ["nobody", "nogroup", "/kept"], "{}", text_of(&outputs[0]));
    assert_eq!(lines[3], "CapEff:\t0000000000000000");
    assert_eq!(lines[4], "root");
    assert!(lines[5].contains("SUDO_UID is not a number"), "{said}");
    assert_eq!(lines[7], "125");
}
