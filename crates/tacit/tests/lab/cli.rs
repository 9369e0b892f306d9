//! The command line: exit codes that scripts can rely on.

use crate::harness::{Lab, TACIT};

#[test]
fn exit_codes_tell_usage_policy_and_failure_apart() {
    let lab = Lab::new();
    lab.write("bad.toml", "nonsense");
    for (words, code) in [
        (&["frobnicate"][..], 64),
        (&[], 64),
        (&["agent"], 64),
        (&["show", "everything"], 64),
        (&["close"], 64),
        (&["drain", "--timeout", "soon"], 64),
        (&["check"], 64),
        (&["check", "nowhere.toml"], 78),
        (&["check", "bad.toml"], 78),
        (&["agent", "--policy", "nowhere.toml"], 78),
        // So a supervisor of an older version starts a successor.
        (&["agent", "--kept", "--take-over", "--policy", "nowhere.toml"], 78),
        (&["reload", "--control", "nowhere.sock"], 1),
        (&["--help"], 0),
        (&["--version"], 0),
        (&["completions", "bash"], 0),
    ] {
        let output = lab.run(TACIT, words);
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        let said = !output.stdout.is_empty();
        let complained = !output.stderr.is_empty();
        assert_eq!((said, complained), (code == 0, code != 0), "{words:?}");
    }
    let output = lab.run(TACIT, &["rleoad"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("reload"), "the nearest verb");
}

#[test]
fn a_full_disk_is_a_failure_only_where_the_answer_is_lost() {
    let lab = Lab::new();
    lab.write("bad.toml", "nonsense");
    let rule = "[[rule]]\nname = \"r\"\nlisten = \"unix:@x\"\ndeny = true\n";
    lab.write("good.toml", crate::harness::policy(rule));
    for (command, code) in [
        ("check bad.toml 2>/dev/full", 78),
        ("check nowhere.toml >/dev/full 2>&1", 78),
        ("show rules --control nowhere.sock 2>/dev/full", 1),
        ("frobnicate 2>/dev/full", 64),
        ("agent --policy bad.toml 2>/dev/full", 78),
        ("check good.toml >/dev/full", 1),
        ("completions bash >/dev/full", 1),
        ("completions bash | head -c 1 >/dev/null", 0),
    ] {
        let output = lab.run("sh", &["-c", &format!("{TACIT} {command}")]);
        assert_eq!(output.status.code(), Some(code), "{command}");
    }
}
