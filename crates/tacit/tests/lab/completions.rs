//! Tests the shell completion of names and ids that a running agent knows.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::harness::{Lab, TACIT, connect, echo, free_port, text_of, wait_for};

/// A directory for the shell's `PATH` and for the control socket of the agent.
fn runtime(lab: &Lab) -> PathBuf {
    let directory = lab.path("runtime");
    std::fs::create_dir_all(directory.join("tacit")).unwrap();
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(directory.join("tacit"), private.clone()).unwrap();
    std::fs::set_permissions(&directory, private).unwrap();
    std::os::unix::fs::symlink(TACIT, directory.join("tacit-program")).unwrap();
    directory
}

fn bash(lab: &Lab, runtime: &std::path::Path, words: &[&str]) -> String {
    let script = format!(
        "tacit() {{ [ \"$1$#\" != names2 ] || set -- \"$@\" --control ./agent.sock; \
         ./runtime/tacit-program \"$@\"; }}; . <(tacit completions bash); \
         COMP_WORDS=(tacit {}); COMP_CWORD={}; _tacit_with_names tacit \"${{COMP_WORDS[-1]}}\" \
         \"${{COMP_WORDS[-2]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len()
    );
    let mut command = Command::new("bash");
    let output = command
        .args(["-c", &script])
        .current_dir(&lab.directory)
        .env("XDG_RUNTIME_DIR", runtime)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "", "{words:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What fish offers for a command line.
fn fish(lab: &Lab, line: &str) -> String {
    let script =
        format!("{NAMES_OF_AGENT_FISH}; tacit completions fish | source; complete -C '{line}'");
    let output = Command::new("fish")
        .args(["--no-config", "-c", &script])
        .current_dir(&lab.directory)
        .env("HOME", &lab.directory)
        .output()
        .expect("fish is needed: scripts/install-deps.sh installs it");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "", "{line}");
    String::from_utf8(output.stdout).unwrap()
}

const NAMES_OF_AGENT_FISH: &str = "function tacit; \
     if test \"$argv[1]\" = names; and test (count $argv) = 2; \
     set -a argv --control ./agent.sock; end; \
     ./runtime/tacit-program $argv; end";

/// Types a line and a TAB at zsh, and returns the line that it then has.
fn zsh(lab: &Lab, line: &str) -> String {
    let script = format!("{}/tests/peers/zsh.py", env!("CARGO_MANIFEST_DIR"));
    let output = lab.run("python3", &[&script, line]);
    assert!(output.status.success(), "{}", text_of(&output));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

#[test]
fn shells_complete_rules_and_ids_of_a_running_agent() {
    let lab = Lab::new();
    let runtime = runtime(&lab);
    let offered = bash(&lab, &runtime, &["show", "policy", ""]);
    assert!(!offered.contains("front"), "without an agent: {offered}");
    let port = free_port();
    let rule = format!(
        "[[rule]]\nname = \"front\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         permit = true\n",
        echo()
    );
    let agent = lab.agent(&rule);
    std::os::unix::fs::symlink(&agent.control, lab.path("agent.sock")).unwrap();
    let held = connect(("127.0.0.1", port));
    wait_for("the connection", || !agent.show("connections").as_array().unwrap().is_empty());
    let id = agent.show("connections")[0]["id"].to_string();
    let has = |words: &[&str], wanted: &str| {
        let offered = bash(&lab, &runtime, words);
        assert!(offered.lines().any(|line| line == wanted), "{words:?}: {offered}");
    };
    has(&["show", "policy", "fr"], "front");
    has(&["show", "connections", "--rule", ""], "front");
    has(&["show", "connections", ""], &id);
    has(&["close", ""], &id);
    has(&["close", "--control", "./agent.sock", ""], &id);
    has(&["close", "--control", "=", "./agent.sock", ""], &id);
    has(&["sho"], "show");
    let offered = bash(&lab, &runtime, &["show", "connections", "--rule", ""]);
    assert_eq!(offered, "front\n", "the value is no file");
    let offered = bash(&lab, &runtime, &["close", "--control", "./absent.sock", ""]);
    assert!(!offered.lines().any(|line| line == id), "another agent: {offered}");
    for (line, wanted) in [
        ("tacit show policy fr", "front"),
        ("tacit show connections --rule fr", "front"),
        ("tacit show connections ", &id),
        ("tacit close ", &id),
        ("tacit trace fr", "front"),
        ("tacit close --control ./agent.sock ", &id),
        ("tacit show connections --control=./agent.sock --rule fr", "front"),
        ("tacit restar", "restart"),
    ] {
        let offered = fish(&lab, line);
        let mut words = offered.lines().filter_map(|line| line.split('\t').next());
        assert!(words.any(|word| word == wanted), "fish: {line}: {offered}");
        let begin = line.rsplit_once(' ').unwrap().0;
        assert_eq!(zsh(&lab, line), format!("{begin} {wanted}"), "zsh: {line}");
    }
    let line = "tacit close --control ./absent.sock ";
    let offered = fish(&lab, line);
    assert!(!offered.lines().any(|line| line.starts_with(&id)), "another agent: {offered}");
    drop(held);
}

#[test]
fn every_shell_of_the_manual_has_a_script() {
    let manual = include_str!("../../../../docs/tacit.1");
    let (_, shells) = manual.split_once(".It Cm completions Cm ").unwrap();
    let shells: Vec<_> = shells.lines().next().unwrap().split(" | ").collect();
    assert_eq!(shells, ["bash", "elvish", "fish", "powershell", "zsh"]);
    let lab = Lab::new();
    for shell in shells {
        let script = lab.tacit(&["completions", shell]);
        let option = if shell == "fish" { "-l policy" } else { "--policy" };
        for word in ["connections", "reload", option] {
            assert!(script.contains(word), "{shell} does not complete {word}");
        }
        for hidden in ["signer", "starter"] {
            assert!(!script.contains(hidden), "{shell} completes {hidden}");
        }
    }
}
