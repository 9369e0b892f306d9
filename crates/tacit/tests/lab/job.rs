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
             gone() {{ ! kill -0 \"$(cat $scratch/$1)\" 2>/dev/null; }}\n\
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
