//! Tests the exit status of the command line, and the messages for wrong arguments.

use std::process::Output;

use crate::harness::{Lab, TACIT, text_of, wait_for};
use crate::public::Public;
use crate::run::ORDINARY;

#[test]
fn exit_status_distinguishes_usage_policy_and_failure() {
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
    let help = lab.run(TACIT, &[]).stderr;
    assert!(help.starts_with(b"TLS by policy for programs"), "help is not an error");
    let output = lab.run(TACIT, &["rleoad"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("reload"), "the nearest verb");
}

#[test]
fn a_full_disk_is_a_failure_only_if_the_output_is_lost() {
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
        ("--help >/dev/full", 1),
        ("run --help >/dev/full", 1),
        ("--version >/dev/full", 1),
        ("completions bash | head -c 1 >/dev/null", 0),
    ] {
        let output = lab.run("sh", &["-c", &format!("{TACIT} {command}")]);
        assert_eq!(output.status.code(), Some(code), "{command}");
        if command.ends_with(" >/dev/full") {
            let said = text_of(&output);
            assert!(
                said.contains("error[output-failed]: cannot write to standard output"),
                "{said}"
            );
        }
    }
    let pipes = ["--help", "--version", "show --help"];
    for command in pipes {
        let script = format!("{TACIT} {command} | true; echo ${{PIPESTATUS[0]}}");
        let output = lab.run("bash", &["-c", &script]);
        assert_eq!((&*output.stdout, &*output.stderr), (&b"0\n"[..], &b""[..]), "{command}");
    }
}

#[test]
fn a_lack_of_open_files_is_an_error_with_a_reason() {
    let lab = Lab::new();
    let rule = "[[rule]]\nname = \"r\"\nlisten = \"unix:@few\"\ndeny = true\n";
    lab.write("good.toml", crate::harness::policy(rule));
    let agent = "agent --policy good.toml --control few.sock";
    for limit in 6..=11 {
        for (command, codes) in [
            (agent, [1, 78]),
            ("agent --policy good.toml --control few.sock --no-supervisor", [1, 78]),
            ("run --policy good.toml -- true", [125, 125]),
        ] {
            let script = format!("ulimit -n {limit}; exec {TACIT} {command}");
            let output = lab.run("sh", &["-c", &script]);
            let said = text_of(&output);
            assert!(!said.contains("panicked"), "{limit}: {command}: {said}");
            let code = output.status.code().unwrap();
            assert!(codes.contains(&code), "{limit}: {command}: {code}: {said}");
            // With ten, the supervisor can create its runtime.
            if command.starts_with("agent ") && limit < 10 {
                assert!(said.contains("Too many open files"), "{limit}: {said}");
                assert!(said.contains("fix: raise the limit of open files"), "{limit}: {said}");
            }
        }
    }
}

#[test]
fn the_variable_tacit_policy_is_used_without_policy_option() {
    let lab = Lab::new();
    let rule = "[[rule]]\nname = \"r\"\ndirection = \"outbound\"\npermit = true\n";
    lab.write("good.toml", crate::harness::policy(rule));
    lab.write("bad.toml", "nonsense");
    let explain = "explain --direction outbound --remote 192.0.2.1:80";
    for (variable, words, code) in [
        ("good.toml", "check", 0),
        ("bad.toml", "check", 78),
        ("bad.toml", "check good.toml", 0),
        ("good.toml", explain, 0),
        ("bad.toml", explain, 78),
        ("bad.toml", &format!("{explain} --policy good.toml"), 0),
        ("bad.toml", "agent", 78),
        ("good.toml", "agent --policy bad.toml", 78),
        ("good.toml", "run -- true", 0),
        ("bad.toml", "run -- true", 125),
        ("bad.toml", "run --policy good.toml -- true", 0),
        ("bad.toml", "run -p good.toml -- true", 0),
        ("good.toml", "agent -p bad.toml", 78),
        ("bad.toml", "run --tls --ca ca.pem -- true", 0),
        ("", "check", 64),
        ("", "run -- true", 64),
        ("", "agent", 64),
        ("", explain, 64),
    ] {
        let mut command = lab.command(TACIT);
        command.args(words.split(' ')).env("TACIT_POLICY", variable);
        let output = command.output().unwrap();
        let said = text_of(&output);
        assert_eq!(output.status.code(), Some(code), "TACIT_POLICY={variable} {words}: {said}");
    }
}

#[test]
fn an_unknown_id_to_close_is_a_failure() {
    let lab = Lab::new();
    let agent = lab.agent("[[rule]]\nname = \"r\"\nlisten = \"unix:@unknown-id\"\ndeny = true\n");
    let output = agent.verb(&["close", "4711"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text_of(&output).contains("no open connection has the id 4711"), "{output:?}");
}

#[test]
fn the_first_line_of_the_log_names_policy_and_addresses() {
    let lab = Lab::new();
    let rule = "[[rule]]\nname = \"r\"\nlisten = \"unix:@first-line\"\ndeny = true\n";
    let agent = lab.agent(rule);
    let log = agent.log();
    let line = log.lines().find(|line| line.contains(" serving ")).unwrap();
    let policy = format!("policy={}", agent.policy.display());
    assert!(line.contains(&policy) && line.contains("listen=unix:@first-line"), "{line}");
}

#[test]
fn the_version_names_what_it_was_built_from() {
    let lab = Lab::new();
    let short = lab.tacit(&["-V"]);
    assert_eq!(short, format!("tacit {}\n", env!("CARGO_PKG_VERSION")));
    let long = lab.tacit(&["--version"]);
    assert!(long.starts_with(&short), "{long}");
    for part in ["target ", "rustls ", "aws-lc-rs "] {
        assert!(long.contains(part), "{long}");
    }
    assert!(!long.contains('/'), "no path: {long}");
    let hint = lab.run(TACIT, &["version"]);
    assert!(text_of(&hint).contains("fix: use tacit --version"), "{}", text_of(&hint));
}

#[test]
fn a_run_that_cannot_start_is_reported_once() {
    let lab = Lab::new();
    let rule = "[[rule]]\nname = \"r\"\ndirection = \"inbound\"\nlisten = \"192.0.2.10:8080\"\n\
                local-ports = 8085\npermit = true\n";
    lab.write("p.toml", crate::harness::policy(rule));
    let mut command = lab.command(TACIT);
    command.args(["run", "--policy", "p.toml", "--", "true"]).env("XDG_STATE_HOME", &lab.directory);
    let output = command.output().unwrap();
    let said = text_of(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert_eq!(said.matches("cannot listen on 192.0.2.10:8080").count(), 1, "{said}");
    // The agent ends a little later than the command.
    let log = || std::fs::read_to_string(lab.path("tacit/run.log")).unwrap_or_default();
    wait_for("the line of the log", || log().contains(" error run-refused "));
    assert_eq!(log().matches(" error run-refused ").count(), 1, "{}", log());
}

/// Becomes a user without a runtime directory.
fn as_ordinary_user(script: &str) -> Output {
    let lab = Lab::new();
    // All tests have the same abstract addresses.
    let name = lab.directory.file_name().unwrap().to_string_lossy().into_owned();
    let rule = format!("[[rule]]\nname = \"r\"\nlisten = \"unix:@{name}\"\ndeny = true\n");
    lab.write("p.toml", crate::harness::policy(&rule));
    let public = Public::of(&lab);
    let mut words: Vec<_> = ORDINARY.split(' ').collect();
    if !rustix::process::geteuid().is_root() {
        words.clear();
    }
    words.extend(["timeout", "60", "env", "-i", "PATH=/usr/bin:/bin", "bash", "-c"]);
    let script = format!(
        "export TMPDIR=$PWD/scratch; own=$TMPDIR/tacit-$(id -u)\n\
         until_there() {{ for try in $(seq 500); do [ -e $1 ] && return; sleep 0.02; done; }}\n\
         {script}"
    );
    words.push(&script);
    let mut command = lab.command(words[0]);
    command.args(&words[1..]).current_dir(&public.directory).output().unwrap()
}

#[test]
fn without_a_runtime_directory_agent_and_displays_use_a_private_one() {
    let output = as_ordinary_user(
        "./tacit agent --policy p.toml 2>scratch/log & agent=$!
         until_there $own/agent.sock
         stat -c '%a %F' $own
         ./tacit show rules | grep -o '^r '
         ./tacit drain >/dev/null; wait $agent; echo ended $?",
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "700 directory\nr \nended 0\n", "{}", text_of(&output));
}

#[test]
fn displays_find_the_only_run_if_a_killed_agent_left_the_default_socket() {
    let output = as_ordinary_user(
        "./tacit agent --no-supervisor --policy p.toml 2>scratch/log & agent=$!
         until ./tacit show rules >/dev/null 2>&1; do sleep 0.02; done
         kill -9 $agent; wait $agent 2>/dev/null; [ -S $own/agent.sock ] && echo left
         printf 'version = 1\n[[rule]]\nname = \"out\"\ndirection = \"outbound\"\n\
            remote = \"192.0.2.1\"\npermit = true\n' >scratch/run.toml
         ./tacit run --policy scratch/run.toml --log none -- bash -c '
            touch scratch/up; until [ -e scratch/end ]; do sleep 0.02; done' & run=$!
         until_there scratch/up
         ./tacit show rules | grep -o '^out '
         touch scratch/end; wait $run; echo ended $?",
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "left\nout \nended 0\n", "{}", text_of(&output));
}

#[test]
fn the_refusals_of_an_agent_name_the_runs_that_have_agents_of_their_own() {
    let output = as_ordinary_user(
        "./tacit agent --policy p.toml 2>scratch/log & agent=$!
         until_there $own/agent.sock
         ./tacit show refused | grep -c 'agent of its own'
         printf 'version = 1\n[[rule]]\nname = \"out\"\ndirection = \"outbound\"\n\
            remote = \"192.0.2.1\"\npermit = true\n' >scratch/run.toml
         ./tacit run --policy scratch/run.toml --log none -- bash -c '
            touch scratch/up; until [ -e scratch/end ]; do sleep 0.02; done' & run=$!
         until_there scratch/up
         ./tacit show refused | grep -o \"add --control $TMPDIR/tacit-run-$run/agent.sock (\"
         ./tacit show refused --json | grep -c 'of its own'
         touch scratch/end; wait $run; ./tacit drain >/dev/null; wait $agent",
    );
    let said = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[2]), (3, "0", "0"), "{}", text_of(&output));
}

#[test]
fn errors_have_an_identifier_and_the_next_step() {
    let lab = Lab::new();
    let rule = "[[rule]]\nname = \"r\"\nlisten = \"unix:@next-step\"\ndeny = true\n";
    lab.write("p.toml", crate::harness::policy(rule));
    let agent = lab.agent(rule);
    let control = agent.control.display();
    for (words, id) in [
        ("run --policy p.toml --netns ./absent -- true".to_owned(), "no-namespace"),
        ("run --policy p.toml --pid 4194305 -- true".to_owned(), "no-namespace"),
        ("run --tls --ca absent.pem --print-policy".to_owned(), "tls-options"),
        ("run --agent ./absent.sock -- true".to_owned(), "run-not-served"),
        (
            "agent --policy p.toml --control ./other.sock --log ./absent/log".to_owned(),
            "log-unusable",
        ),
        ("agent --policy p.toml --control ./other.sock --log fd:77".to_owned(), "log-unusable"),
        ("workload interactive server --listen 192.0.2.1:1".to_owned(), "cannot-listen"),
        ("workload interactive client --connect 127.0.0.1:1".to_owned(), "no-server"),
        ("project --costs absent.json".to_owned(), "no-interval"),
        ("explain --policy p.toml --peer absent.pem --rule nosuch".to_owned(), "no-answer"),
        (format!("show policy nosuch --control {control}"), "refused-by-agent"),
        (format!("show connections 4711 --control {control}"), "refused-by-agent"),
        ("test absent.toml".to_owned(), "test-file-unreadable"),
        (format!("close 4711 --control {control}"), "no-connection"),
        ("shwo rules".to_owned(), "usage"),
        ("reload --nosuch".to_owned(), "usage"),
        ("ca issue x --dyas 3".to_owned(), "usage"),
    ] {
        let output = lab.run(TACIT, &words.split(' ').collect::<Vec<_>>());
        let said = text_of(&output);
        assert!(!output.status.success(), "{words}: {said}");
        let has_step =
            said.split_once(&format!("tacit: error[{id}]: ")).is_some_and(|(_, rest)| {
                rest.lines().nth(1).is_some_and(|line| line.starts_with("    fix: "))
            });
        assert!(has_step, "{words}: {said}");
    }
}

#[test]
fn an_error_of_the_command_line_names_what_may_be_meant_or_the_help_of_the_command() {
    let lab = Lab::new();
    for (words, fix) in [
        ("shwo", "did you mean `show`?"),
        ("ca issue x --dyas 3", "did you mean `--days`?"),
        ("reload --nosuch", "see `tacit reload --help`"),
        ("ca issue", "see `tacit ca issue --help`"),
        ("show nosuch", "see `tacit show --help`"),
    ] {
        let output = lab.run(TACIT, &words.split(' ').collect::<Vec<_>>());
        let said = text_of(&output);
        assert_eq!(output.status.code(), Some(64), "{words}: {said}");
        assert!(said.contains(&format!("\n    fix: {fix}\n")), "{words}: {said}");
        assert!(!said.contains("tip:") && !said.contains("For more information"), "{said}");
    }
}

#[test]
fn a_private_directory_with_wrong_mode_or_a_link_is_not_used() {
    for made in ["mkdir -m 755 $own", "mkdir -m 700 scratch/other; ln -s $PWD/scratch/other $own"] {
        let output = as_ordinary_user(&format!(
            "{made}; ./tacit agent --policy p.toml; echo $?; ./tacit show rules; echo $?"
        ));
        let said = text_of(&output);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n1\n", "{said}");
        assert_eq!(said.matches("is not a directory of mode 0700").count(), 2, "{said}");
    }
}

#[test]
fn another_user_learns_who_may_control_the_agent() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let lab = Lab::new();
    let agent = lab.agent("[[rule]]\nname = \"r\"\nlisten = \"unix:@who-may\"\ndeny = true\n");
    let public = Public::of(&lab);
    let socket = public.directory.join("agent.sock");
    std::fs::hard_link(&agent.control, &socket).unwrap();
    let words: Vec<_> = ORDINARY.split(' ').collect();
    let mut command = lab.command(words[0]);
    command.args(&words[1..]).args(["./tacit", "show", "rules", "--control", "agent.sock"]);
    let output = command.current_dir(&public.directory).output().unwrap();
    let said = text_of(&output);
    assert!(
        said.contains("cannot connect to the agent at agent.sock: Permission denied"),
        "{said}"
    );
    assert!(said.contains("fix: run this command as the agent's user or as root"), "{said}");
}

#[test]
fn the_version_is_printed_with_a_small_letter_too() {
    let lab = Lab::new();
    assert_eq!(lab.tacit(&["-v"]), lab.tacit(&["-V"]));
    assert!(lab.tacit(&["-v"]).starts_with("tacit "));
    let wrong = lab.run(TACIT, &["check", "-v"]);
    assert_eq!(wrong.status.code(), Some(64));
}

#[test]
fn check_reads_a_policy_from_standard_input() {
    let lab = Lab::new();
    std::fs::create_dir(lab.path("conf.d")).unwrap();
    lab.write("conf.d/a.toml", "[[rule]]\nname = \"a\"\nlisten = \"unix:@a\"\ndeny = true\n");
    let rule = "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:1\"\nconnect = \"127.0.0.1:2\"\n\
                tls = { role = \"server\", identity = \"localhost\", client-cert = \"none\" }\n";
    let policy = crate::harness::policy(rule);
    // Files are relative to the current directory, as for a policy there.
    let text = policy.replacen('\n', "\ninclude = \"conf.d/*.toml\"\n", 1);
    let output = lab.run_with_input(TACIT, &["check", "-"], text.as_bytes());
    let said = text_of(&output);
    assert!(output.status.success() && said.contains("policy OK, 2 rules"), "{said}");
    assert!(said.contains("includes conf.d/a.toml"), "{said}");
    let output = lab.run_with_input(TACIT, &["check", "-"], b"version = 1\nrlue = 1\n");
    assert_eq!(output.status.code(), Some(78));
    assert!(text_of(&output).contains("-:2:1: error[unknown-key]"), "{}", text_of(&output));
    let output = lab.run_with_input(TACIT, &["check", "-"], b"\xff");
    assert_eq!(output.status.code(), Some(78));
    assert!(text_of(&output).contains("error[unreadable-policy]"), "{}", text_of(&output));
}

#[test]
fn check_reads_a_pipe_of_the_shell_but_no_fifo() {
    let lab = Lab::new();
    let rule = "[[rule]]\nname = \"r\"\nlisten = \"unix:@x\"\ndeny = true\n";
    let policy = crate::harness::policy(rule);
    lab.write("good.toml", &policy);
    let output = lab.run_with_input(TACIT, &["check", "/dev/stdin"], policy.as_bytes());
    assert!(text_of(&output).contains("policy OK, 1 rule"), "{}", text_of(&output));
    let output = lab.run("bash", &["-c", &format!("{TACIT} check <(sleep 0.2; cat good.toml)")]);
    assert!(text_of(&output).contains("policy OK, 1 rule"), "{}", text_of(&output));
    assert!(lab.run("mkfifo", &["fifo"]).status.success());
    let output = lab.run(TACIT, &["check", "fifo"]);
    let said = text_of(&output);
    assert_eq!(output.status.code(), Some(78), "{said}");
    let reason = "cannot read the policy file: it is a FIFO, not a regular file";
    assert!(said.contains(reason), "{said}");
    // An agent reads its policy more than once.
    let script =
        format!("{TACIT} agent --policy <(cat good.toml) --control a.sock --no-supervisor");
    let said = text_of(&lab.run("bash", &["-c", &script]));
    assert!(said.contains(reason), "{said}");
}

#[test]
fn a_certificate_with_the_uri_of_a_workload_is_issued_and_mapped() {
    let lab = Lab::new();
    let uri = "spiffe://corp.example/ns/web";
    lab.tacit(&["ca", "issue", "workload", "--client", "--san", uri]);
    lab.tacit(&["ca", "issue", "workload", "--renew"]);
    let names = ["x509", "-in", "workload.pem", "-noout", "-ext", "subjectAltName"];
    let printed = lab.run("openssl", &names);
    assert!(text_of(&printed).contains(&format!("URI:{uri}")), "{}", text_of(&printed));
    lab.write(
        "p.toml",
        format!(
            "version = 1\n[[map.m]]\nuri = \"{uri}\"\nname = \"web\"\n[[rule]]\nname = \"r\"\n\
                 listen = \"unix:@r\"\ndeny = true\n"
        ),
    );
    let words = ["explain", "--policy", "p.toml", "--peer", "workload.pem", "--map", "m"];
    let explained = lab.tacit(&words);
    assert!(explained.contains("served as web"), "{explained}");
    let wrong = lab.run(TACIT, &["ca", "issue", "other", "--san", "spiffe:///ns"]);
    assert_eq!(wrong.status.code(), Some(64));
    assert!(text_of(&wrong).contains("spiffe://corp.example/web"), "{}", text_of(&wrong));
}
