//! Tests the lines of the log and of the audit log. Also tests that these logs contain no secrets,
//! and that a full disk delays no connection.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{
    Agent, Lab, TACIT, connect, echo, free_port, policy, signal_process, text_of, wait_for,
};
use crate::peers::{TlsClient, audit_line, is_reset, ping};

fn rules(tls: u16, clear: u16, deny: u16) -> String {
    let app = echo();
    format!(
        r#"
        [[rule]]
        name = "in"
        listen = "127.0.0.1:{tls}"
        connect = "{app}"
        log = true
        tls = {{ role = "server", identity = "localhost", client-cert = "required", trust = "ca" }}
        [[rule]]
        name = "clear"
        listen = "127.0.0.1:{clear}"
        connect = "{app}"
        permit = true
        [[rule]]
        name = "never"
        listen = "127.0.0.1:{deny}"
        deny = true
        "#
    )
}

fn alice() -> Value {
    json!({ "cert": "alice.pem", "key": "alice.key" })
}

#[test]
fn the_audit_log_has_a_line_for_each_allowed_denied_and_failed_connection() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    let [tls, clear, deny] = [(); 3].map(|()| free_port());
    let agent = lab.agent_with(&rules(tls, clear, deny), &["--log-format", "json"]);
    let allowed = TlsClient::open(&lab, tls, &alice());
    let failed = TlsClient::open(&lab, tls, &json!({}));
    let mut permitted = connect(("127.0.0.1", clear));
    assert!(ping(&mut permitted));
    let mut denied = connect(("127.0.0.1", deny));
    assert!(is_reset(&mut denied));
    let port = |stream: &std::net::TcpStream| u64::from(stream.local_addr().unwrap().port());
    for (from, outcome, rule) in [
        (allowed.port(), "allowed", "in"),
        (failed.port(), "failed", "in"),
        (port(&permitted), "allowed", "clear"),
        (port(&denied), "denied", "never"),
    ] {
        // Clients of different rules may have the same port.
        let line = audit_line(&agent, 0, from, |line| line["rule"] == rule);
        assert_eq!(line["outcome"], outcome, "{line}");
        assert!(line["time"].is_string(), "{line}");
    }
    assert_eq!(audit_line(&agent, 0, allowed.port(), |line| line["rule"] == "in")["peer"], "alice");
    assert_eq!(agent.audit().lines().count(), 4);
    let mode = std::fs::metadata(&agent.audit).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    drop(allowed);
    wait_for("the end in the log", || agent.log().contains("\"closed\""));
    for line in agent.log().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["time"].is_string() && line["level"].is_string(), "{line}");
    }
    assert!(!agent.log().contains("\"rule\":\"clear\""), "no line about connections that succeed");
}

/// Waits for a line that stands for others, and returns how many it stands for.
fn left_out(agent: &Agent, event: &str) -> u64 {
    let is_it = |line: &&str| line.contains(event) && line.contains(" left-out=");
    wait_for("the line with the count", || agent.log().lines().any(|line| is_it(&line)));
    let log = agent.log();
    log.lines()
        .filter(is_it)
        .map(|line| line.rsplit('=').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

#[test]
fn refused_clients_are_one_line_a_second_and_all_of_them_are_audited() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&format!(
        "[[rule]]\nname = \"elsewhere\"\nlisten = \"127.0.0.1:{port}\"\n\
         connect = \"{}\"\nremote = \"10.9.8.0/24\"\npermit = true\n",
        echo()
    ));
    for _ in 0..20 {
        assert!(is_reset(&mut connect(("127.0.0.1", port))));
    }
    let written = || agent.log().lines().filter(|line| line.contains(" denied ")).count() as u64;
    wait_for("the audit log", || agent.audit().lines().count() == 20);
    wait_for("the count", || written() + left_out(&agent, " denied ") == 20);
    let left_out = left_out(&agent, " denied ");
    assert!(left_out >= 10, "{}", agent.log());
    let shown = agent.show("refused");
    assert_eq!(shown["refused"][0]["count"], 20, "{shown}");
    assert_eq!(shown["refused"][0]["kind"], "client", "{shown}");
}

#[test]
fn failures_with_one_remote_end_are_one_line_a_second_and_all_of_them_are_audited() {
    let lab = Lab::new();
    let port = free_port();
    let gone = free_port();
    let agent = lab.agent(&format!(
        "[[rule]]\nname = \"gone\"\nlisten = \"127.0.0.1:{port}\"\n\
         connect = \"127.0.0.1:{gone}\"\npermit = true\n"
    ));
    for _ in 0..20 {
        assert!(is_reset(&mut connect(("127.0.0.1", port))));
    }
    let written = || agent.log().lines().filter(|line| line.contains(" failed ")).count() as u64;
    wait_for("the audit log", || agent.audit().lines().count() == 20);
    wait_for("the count", || written() + left_out(&agent, " failed ") == 20);
    let left_out = left_out(&agent, " failed ");
    assert!(left_out >= 10, "{}", agent.log());
}

#[test]
fn no_log_and_no_display_holds_a_secret() {
    let lab = Lab::new();
    let [tls, clear, deny] = [(); 3].map(|()| free_port());
    let agent = lab.agent(&rules(tls, clear, deny));
    let held = TlsClient::open(&lab, tls, &alice());
    assert_eq!(held.result["reply"], "ping");
    TlsClient::run(&lab, tls, &json!({}));
    // Certificate and key the wrong way round, and a key in the place of the policy.
    let key = std::fs::read_to_string(lab.path("localhost.key")).unwrap();
    std::fs::rename(lab.path("localhost.key"), lab.path("kept")).unwrap();
    std::fs::copy(lab.path("localhost.pem"), lab.path("localhost.key")).unwrap();
    lab.write("localhost.pem", &key);
    agent.wait_for_log("file-refused");
    let mut said = agent.log() + &agent.audit();
    for what in ["connections", "rules", "identities", "limits"] {
        said += &agent.ok(&["show", what, "--json"]);
    }
    lab.write("bad.toml", &key);
    said += &text_of(&lab.run(TACIT, &["check", "bad.toml"]));
    let lines = key.lines().filter(|line| !line.starts_with("-----") && line.len() > 8);
    for secret in lines {
        assert!(!said.contains(secret), "{said}");
    }
    assert!(!said.contains("PRIVATE KEY-----"), "{said}");
}

/// Starts an agent whose logs go to a disk that is full.
fn with_full_disk(lab: &Lab, rules: &str, audit: &str) -> Agent {
    let file = lab.write("full.toml", policy(rules));
    let control = lab.path("full.sock");
    let child = lab
        .command(TACIT)
        .args(["agent", "--policy", "full.toml", "--control", "full.sock", "--audit", audit])
        .stdin(Stdio::null())
        .stderr(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap())
        .spawn()
        .unwrap();
    let audit = lab.path("none");
    let log = lab.path("none");
    let agent = Agent { child, policy: file, control, audit, log };
    wait_for("the agent", || agent.verb(&["show", "limits"]).status.success());
    agent
}

#[test]
fn a_full_disk_delays_no_connection_and_lost_lines_are_counted() {
    let lab = Lab::new();
    let [tls, clear, deny] = [(); 3].map(|()| free_port());
    let mut agent = with_full_disk(&lab, &rules(tls, clear, deny), "/dev/full");
    for _ in 0..5 {
        assert!(ping(&mut connect(("127.0.0.1", clear))));
        assert_eq!(TlsClient::run(&lab, tls, &alice())["reply"], "ping");
        assert!(is_reset(&mut connect(("127.0.0.1", deny))));
    }
    let lost = || {
        let limits = agent.show("limits");
        let all = limits.as_array().unwrap();
        let queue = all.iter().find(|limit| limit["name"] == "log-queue-lines").unwrap();
        queue["used"].as_u64().unwrap()
    };
    wait_for("the loss to be counted", || lost() >= 15);
    agent.ok(&["reload"]);
    agent.signal("TERM");
    assert_eq!(agent.child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_agent_does_not_start_without_its_audit_log() {
    let lab = Lab::new();
    let rules = "[[rule]]\nname = \"r\"\nlisten = \"unix:@tacit-audit\"\ndeny = true\n";
    lab.write("p.toml", policy(rules));
    let words = ["agent", "--policy", "p.toml", "--control", "c.sock", "--audit", "no/where"];
    let output = lab.run(TACIT, &words);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("audit log no/where"), "{said}");
}

#[test]
fn the_log_goes_to_a_descriptor_and_has_the_chosen_level() {
    let lab = Lab::new();
    let port = free_port();
    lab.write(
        "p.toml",
        format!(
            "version = 1\n[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{port}\"\n\
             connect = \"127.0.0.1:1\"\npermit = true\n"
        ),
    );
    let script = "exec 7>fd.log; \"$0\" agent --policy p.toml --control ./a.sock --log fd:7 \
                  --log-level \"$1\" --log-format json >/dev/null 2>&1 & echo $!";
    for (level, is_logged) in [("info", true), ("error", false)] {
        let said = lab.run("bash", &["-c", script, TACIT, level]);
        let pid: u32 = String::from_utf8(said.stdout).unwrap().trim().parse().unwrap();
        wait_for("the control socket", || lab.path("a.sock").exists());
        let log = || std::fs::read_to_string(lab.path("fd.log")).unwrap();
        wait_for("the agent", || {
            lab.run(TACIT, &["show", "rules", "--control", "a.sock"]).status.success()
        });
        let has_line = || log().contains("\"event\":\"serving\"");
        if is_logged {
            wait_for("its first line", has_line);
        }
        assert_eq!(has_line(), is_logged, "{}", log());
        signal_process(pid, "TERM");
        wait_for("the end of the agent", || !lab.path("a.sock").exists());
    }
    let missing = lab.run(TACIT, &["agent", "--policy", "p.toml", "--log", "fd:77"]);
    let said = text_of(&missing);
    assert!(said.contains("error[log-unusable]: cannot write the log to fd:77: "), "{said}");
}
