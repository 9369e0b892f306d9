//! `tacit run` as a job: what it inherits, the signals it gets, the status it ends with.

use std::process::Output;

use crate::harness::{Lab, text_of};
use crate::run::{ORDINARY, POLICY, Public};

/// Runs a script as each kind of user there is, in a directory that all can read. In it, `tacit_run`
/// is `tacit run` with a policy, and `$scratch` a directory of the script's own.
pub fn as_each_user(script: &str) -> Vec<Output> {
    let is_root = rustix::process::geteuid().is_root();
    let lab = Lab::new();
    lab.write("run.toml", POLICY);
    let public = Public::of(&lab);
    let users = [Some(""), is_root.then_some(ORDINARY)];
    let outputs = users.into_iter().flatten().map(|user| {
        let script = format!(
            "scratch=$(mktemp -d)\ntrap 'rm -rf $scratch' EXIT\n\
             tacit_run() {{ timeout --foreground 60 ./tacit run --policy run.toml \"$@\"; }}\n\
             gone() {{ for try in $(seq 50); do kill -0 \"$(cat $scratch/$1)\" 2>/dev/null || \
             return 0; sleep 0.02; done; return 1; }}\n\
             {script}"
        );
        let mut words = user.split_whitespace().chain(["bash", "-c", &script]);
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
fn an_inherited_network_socket_is_refused_unless_it_is_named() {
    let python = "import socket, subprocess, sys\n\
        listener = socket.create_server((\"127.0.0.1\", 0))\n\
        socket.create_connection(listener.getsockname()).detach()\n\
        listener.close()\n\
        kept = socket.create_server((\"127.0.0.1\", 0))\n\
        port = kept.getsockname()[1]\n\
        options = [word.replace(\"N\", str(kept.fileno())) for word in sys.argv[2:]]\n\
        stdin = kept if sys.argv[1] == \"stdin\" else None\n\
        passed = [kept.fileno()] if sys.argv[1] == \"pass\" else []\n\
        done = subprocess.run([\"timeout\", \"60\", \"./tacit\", \"run\", \"--policy\", \"run.toml\",\n\
        \x20   *options, \"--\", \"sh\", \"-c\", \"echo ran\"], stdin=stdin, pass_fds=passed, \n\
        \x20   capture_output=True, text=True)\n\
        says = \"network socket at 127.0.0.1:%d\" % port in done.stderr\n\
        print(done.returncode, done.stdout.strip(), says, \"--inherit-fd\" in done.stderr)\n";
    let each = |how: &str, wanted: &str| {
        expect(
            &format!(
                "cat >$scratch/start.py <<'END'\n{python}\nEND\n\
                         python3 $scratch/start.py {how}"
            ),
            wanted,
        );
    };
    each("pass", "125  True True");
    each("pass --inherit-fd N", "0 ran False False");
    each("stdin", "125  True True");
    each("stdin --inherit-fd 0", "0 ran False False");
    each("none", "0 ran False False");
    each("none --inherit-fd 9", "125  False True");
}
