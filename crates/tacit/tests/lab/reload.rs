//! Tests reloads of a running agent. A policy is installed completely or not at all. If a file
//! cannot be loaded, the agent continues to use the old content of this file.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::certificates::{self, Ca, LeafKind};
use crate::harness::{
    Agent, FileLease, Lab, TACIT, connect, echo, free_port, serve, text_of, wait_for,
};
use crate::peers::{TlsClient, is_reset, ping, write_pair};

fn permit(name: &str, port: u16, to: SocketAddr) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{to}\"\n\
         permit = true\n"
    )
}

fn refused(agent: &Agent) -> String {
    let output = agent.verb(&["reload"]);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_reload_that_fails_changes_nothing() {
    let lab = Lab::new();
    let port = free_port();
    let other = free_port();
    let app = echo();
    let agent = lab.agent(&permit("a", port, app));
    let mut held = connect(("127.0.0.1", port));
    assert!(ping(&mut held));
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = occupied.local_addr().unwrap().port();
    for (rules, words) in [
        ("[[rule]\nname = 1\n".to_owned(), "policy-0.toml:2:"),
        (permit("b", other, app) + "deny = true\n", "two actions"),
        (permit("b", other, app) + &permit("c", taken, app), "in use"),
        (
            permit("b", other, app) + "[identity.gone]\ncert = \"gone.pem\"\nkey = \"gone.key\"\n",
            "gone.pem",
        ),
    ] {
        let policy = agent.policy.file_name().unwrap().to_str().unwrap().to_owned();
        let words = words.replace("policy-0.toml", &policy);
        agent.write_policy(&rules);
        let said = refused(&agent);
        assert!(said.contains("the policy was not installed") && said.contains(&words), "{said}");
        let user = Command::new("id").arg("-un").output().unwrap().stdout;
        let user = String::from_utf8(user).unwrap();
        agent.wait_for_log(" error reload-refused by=\"process ");
        agent.wait_for_log(&format!(
            " of user {}\" reason=\"the policy was not installed:",
            user.trim_end()
        ));
        assert!(TcpStream::connect(("127.0.0.1", other)).is_err(), "{words}");
        let rules = agent.show("rules");
        assert_eq!((&rules["generation"], &rules["rules"][0]["name"]), (&json!(1), &json!("a")));
        assert!(ping(&mut held) && ping(&mut connect(("127.0.0.1", port))));
        agent.signal("HUP");
        agent.wait_for_log(" error reload-refused by=\"a signal\" ");
    }
    assert_eq!(agent.show("connections")[0]["policy"], "current");
}

#[test]
fn a_reload_changes_rules_and_keeps_open_connections() {
    let lab = Lab::new();
    let [kept, changed, removed, added] = [(); 4].map(|()| free_port());
    let app = echo();
    let agent = lab.agent(
        &(permit("kept", kept, app)
            + &permit("changed", changed, app)
            + &permit("removed", removed, app)),
    );
    let mut held = [kept, changed, removed].map(|port| connect(("127.0.0.1", port)));
    assert!(held.iter_mut().all(ping));
    let line = |agent: &Agent, place: usize| agent.show("rules")["rules"][place]["line"].as_u64();
    let line_before = line(&agent, 0).unwrap();
    // Other lines, other order: the same rule all the same.
    agent.write_policy(
        &("\n\n".to_owned()
            + &permit("added", added, app)
            + &permit("kept", kept, app)
            + &format!("{}log = true\n", permit("changed", changed, app))),
    );
    let said = agent.ok(&["reload"]);
    for words in ["generation 2", "added: added", "changed: changed", "removed: removed"] {
        assert!(said.contains(words), "{said}");
    }
    assert!(ping(&mut connect(("127.0.0.1", added))));
    assert!(TcpStream::connect(("127.0.0.1", removed)).is_err());
    assert!(held.iter_mut().all(ping), "open connections continue");
    let stale = |agent: &Agent| -> Vec<(String, String)> {
        let all = agent.show("connections");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        all.as_array().unwrap().iter().map(|c| (text(&c["rule"]), text(&c["policy"]))).collect()
    };
    wait_for("the passing connection's end", || stale(&agent).len() == 3);
    let expected = [("kept", "current"), ("changed", "stale"), ("removed", "stale")];
    assert_eq!(stale(&agent), expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    assert_eq!(agent.show("rules")["rules"][1]["hits"], 1, "counters outlive a reload");
    assert_eq!(line(&agent, 1), Some(line_before + 7), "two lines and a rule precede it");
    assert!(agent.ok(&["close", "--stale"]).contains("closed 2"));
    let [first, second, third] = &mut held;
    assert!(is_reset(second) && is_reset(third) && ping(first));
    assert_eq!(agent.verb(&["close", "999"]).status.code(), Some(1));
}

#[test]
fn an_agent_answers_while_a_policy_is_read() {
    let lab = Lab::new();
    let port = free_port();
    let added = free_port();
    let app = echo();
    let one = permit("a", port, app);
    let two = one.clone() + &permit("b", added, app);
    let agent = lab.agent(&one);
    agent.write_policy(&two);
    // Opening the file takes as long as the test wants.
    let lease = FileLease::new(&agent.policy);
    let reload = || {
        let mut command = Command::new(TACIT);
        command.args(["reload", "--control"]).arg(&agent.control);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let is_read = || thread_names(&agent).iter().any(|name| name == "reload");
    let served = || {
        let mut passing = connect(("127.0.0.1", port));
        ping(&mut passing) && limit(&agent, "connections") > 0
    };

    let first = reload();
    wait_for("the reload", is_read);
    assert!(served());
    assert_eq!(agent.show("rules")["generation"], 1);
    let second = reload();
    drop(lease);
    let output = first.wait_with_output().unwrap();
    assert!(text_of(&output).contains("generation 2"), "{}", text_of(&output));
    assert!(ping(&mut connect(("127.0.0.1", added))));
    // What was asked for meanwhile reads the file again.
    let output = second.wait_with_output().unwrap();
    assert!(text_of(&output).contains("generation 3"), "{}", text_of(&output));

    agent.write_policy(&one);
    let lease = FileLease::new(&agent.policy);
    let mut held = connect(("127.0.0.1", port));
    assert!(ping(&mut held));
    // The thread of the last reload may still be ending.
    wait_for("the end of the last reload", || !is_read());
    let late = reload();
    wait_for("the reload", is_read);
    agent.ok(&["drain"]);
    drop(lease);
    let output = late.wait_with_output().unwrap();
    let said = text_of(&output);
    assert!(said.contains("the policy was not installed: the agent is ending"), "{said}");
    assert!(TcpStream::connect(("127.0.0.1", added)).is_err());
    assert!(ping(&mut held));
    drop(held);
    wait_for("the end of the drain", || agent.is_dead());
}

#[test]
fn an_ending_agent_answers_the_reload_in_progress() {
    let lab = Lab::new();
    let agent = lab.agent(&permit("a", free_port(), echo()));
    let _lease = FileLease::new(&agent.policy);
    let mut command = Command::new(TACIT);
    command.args(["reload", "--control"]).arg(&agent.control);
    let reload = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("the reload", || thread_names(&agent).iter().any(|name| name == "reload"));
    agent.signal("TERM");
    let said = text_of(&reload.wait_with_output().unwrap());
    assert!(said.contains("the policy was not installed: the agent is ending"), "{said}");
}

#[test]
fn a_signal_ends_an_agent_that_is_reading_a_policy() {
    let lab = Lab::new();
    let agent = lab.agent(&permit("a", free_port(), echo()));
    let _lease = FileLease::new(&agent.policy);
    agent.signal("HUP");
    wait_for("the reload", || thread_names(&agent).iter().any(|name| name == "reload"));
    agent.signal("TERM");
    wait_for("the end", || agent.is_dead());
}

#[test]
fn a_reload_reads_no_fifo() {
    let lab = Lab::new();
    let rule = permit("a", free_port(), echo());
    let agent = lab.agent(&rule);
    let text = std::fs::read_to_string(&agent.policy).unwrap();
    let make_fifo = |path: &std::path::Path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    make_fifo(&lab.path("included.toml"));
    let including = text.replacen('\n', "\ninclude = \"included.toml\"\n", 1);
    std::fs::write(&agent.policy, including).unwrap();
    let said = refused(&agent);
    assert!(said.contains("included.toml: it is a FIFO, not a regular file"), "{said}");
    std::fs::remove_file(&agent.policy).unwrap();
    make_fifo(&agent.policy);
    let said = refused(&agent);
    assert!(
        said.contains("cannot read the policy file: it is a FIFO, not a regular file"),
        "{said}"
    );
    std::fs::remove_file(&agent.policy).unwrap();
    agent.write_policy(&rule);
    assert!(agent.ok(&["reload"]).contains("generation 2"));
}

/// The names of the threads of all agents there are.
fn thread_names(agent: &Agent) -> Vec<String> {
    let mut names = Vec::new();
    for pid in agent.serving_pids() {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        names.extend(tasks.filter_map(|task| {
            let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
            Some(name.trim().to_owned())
        }));
    }
    names
}

#[test]
fn a_rule_that_changes_from_tls_to_clear_resets_its_connections() {
    let lab = Lab::new();
    let port = free_port();
    let cut = serve(|stream| {
        let mut byte = [0];
        let _ = std::io::Read::read(&mut &stream, &mut byte);
        rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO)).unwrap();
    });
    let agent = lab.agent(&format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{cut}\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"none\" }}\n"
    ));
    agent.write_policy(&permit("r", port, cut));
    agent.ok(&["reload"]);
    let mut stream = connect(("127.0.0.1", port));
    std::io::Write::write_all(&mut stream, b"x").unwrap();
    assert!(is_reset(&mut stream), "a reset does not look like a close");
}

#[test]
fn settings_that_need_a_restart_are_reported_and_unchanged() {
    let lab = Lab::new();
    let rule = permit("r", free_port(), echo());
    let agent = lab.agent(&rule);
    agent.write_policy(&format!("[agent]\nworkers = 2\n[limits]\nhandshakes = 8\n{rule}"));
    for _ in 0..2 {
        let said = agent.ok(&["reload"]);
        assert!(
            said.contains(
                "[agent] changed, but a reload cannot apply this change: run `tacit restart`"
            ),
            "{said}"
        );
        assert!(
            said.contains(
                "[limits] changed, but a reload cannot apply this change: run `tacit restart`"
            ),
            "{said}"
        );
        assert_eq!(limit(&agent, "handshakes"), 1024);
    }
    let before = agent.serving_pids();
    agent.ok(&["restart"]);
    wait_for("the successor", || {
        let pids = agent.serving_pids();
        pids.len() == 1 && pids != before
    });
    assert_eq!((limit(&agent, "handshakes"), limit(&agent, "workers")), (8, 2));
}

fn limit(agent: &Agent, name: &str) -> u64 {
    let limits = agent.show("limits");
    let found = limits.as_array().unwrap().iter().find(|limit| limit["name"] == name);
    found.unwrap()["max"].as_u64().unwrap()
}

/// A TLS server rule with identity `web` and clients of trust `corp`, both from one CA each.
fn mutual(lab: &Lab) -> (Agent, u16) {
    let port = free_port();
    let agent = lab.agent(&format!(
        "[identity.web]\ncert = \"web.pem\"\nkey = \"web.key\"\n[trust.corp]\nca = \"corp.pem\"\n\
         [[rule]]\nname = \"in\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         [rule.tls]\nrole = \"server\"\nidentity = \"web\"\nclient-cert = \"required\"\n\
         trust = \"corp\"\n",
        echo()
    ));
    (agent, port)
}

fn put(lab: &Lab, name: &str, ca: &Ca) {
    let leaf = ca.leaf(LeafKind::Valid);
    write_pair(lab, name, &leaf.cert_pem, &leaf.key_pem);
}

#[test]
fn certificates_and_trust_are_loaded_when_their_files_change() {
    let lab = Lab::new();
    let first = Ca::new("first CA");
    let second = Ca::new("second CA");
    lab.write("first.pem", first.pem());
    lab.write("second.pem", second.pem());
    lab.write("corp.pem", first.pem());
    put(&lab, "web", &first);
    put(&lab, "one", &first);
    put(&lab, "two", &second);
    let (agent, port) = mutual(&lab);
    let meet = |ca: &str, own: &str| {
        let mut options = certificates::with(own);
        options["ca"] = json!(format!("{ca}.pem"));
        TlsClient::run(&lab, port, &options)["reply"] == "ping"
    };
    let mut options = certificates::with("one");
    options["ca"] = json!("first.pem");
    let held = TlsClient::open(&lab, port, &options);
    assert_eq!(held.result["reply"], "ping", "{}", held.result);
    assert!(!meet("second", "one") && !meet("first", "two"));

    // A key that does not belong to the certificate: the old pair stays, and it is told once.
    let other = second.leaf(LeafKind::Valid);
    lab.write("web.pem", &other.cert_pem);
    agent.wait_for_log(" error file-refused ");
    assert!(meet("first", "one"));
    write_pair(&lab, "web", &other.cert_pem, &other.key_pem);
    agent.wait_for_log(" info files-reloaded ");
    assert_eq!(agent.log().matches(" file-refused ").count(), 1, "{}", agent.log());
    assert!(meet("second", "one") && !meet("first", "one"));
    assert_eq!(agent.show("connections")[0]["policy"], "stale");

    lab.write("corp.pem", second.pem());
    wait_for("the new trust", || meet("second", "two"));
    assert!(!meet("second", "one"));
    drop(held);
}

#[test]
fn replaced_links_are_loaded_at_once_by_a_reload() {
    let lab = Lab::new();
    let first = Ca::new("first CA");
    let second = Ca::new("second CA");
    lab.write("corp.pem", first.pem());
    put(&lab, "one", &first);
    for (version, ca) in [("v1", &first), ("v2", &second)] {
        std::fs::create_dir(lab.path(version)).unwrap();
        lab.write(&format!("{version}.pem"), ca.pem());
        put(&lab, &format!("{version}/web"), ca);
    }
    symlink("v1", lab.path("data")).unwrap();
    symlink("data/web.pem", lab.path("web.pem")).unwrap();
    symlink("data/web.key", lab.path("web.key")).unwrap();
    let (agent, port) = mutual(&lab);
    let meets = |ca: &str| {
        let mut options = certificates::with("one");
        options["ca"] = json!(format!("{ca}.pem"));
        TlsClient::run(&lab, port, &options)["reply"] == "ping"
    };
    assert!(meets("v1"));
    symlink("v2", lab.path("data-new")).unwrap();
    std::fs::rename(lab.path("data-new"), lab.path("data")).unwrap();
    if !agent.ok(&["reload"]).contains("changed: in") {
        agent.wait_for_log("files-reloaded");
    }
    assert!(meets("v2"));
    symlink("v1", lab.path("data-new")).unwrap();
    std::fs::rename(lab.path("data-new"), lab.path("data")).unwrap();
    wait_for("the first again", || meets("v1"));
}

#[test]
fn a_certificate_for_another_use_does_not_block_other_files() {
    let lab = Lab::new();
    let ca = Ca::new("CA");
    let second = Ca::new("second CA");
    let port = free_port();
    lab.write("corp.pem", ca.pem());
    lab.write("second.pem", second.pem());
    put(&lab, "web", &ca);
    put(&lab, "other", &ca);
    let agent = lab.agent(&format!(
        "[identity.web]\ncert = \"web.pem\"\nkey = \"web.key\"\n\
         [identity.other]\ncert = \"other.pem\"\nkey = \"other.key\"\n\
         [[rule]]\nname = \"in\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         tls = {{ role = \"server\", identity = \"web\", client-cert = \"none\" }}\n\
         [[rule]]\nname = \"out\"\nlisten = \"127.0.0.1:{}\"\nconnect = \"127.0.0.1:1\"\n\
         [rule.tls]\nrole = \"client\"\nidentity = \"other\"\nverify = \"none\"\n",
        echo(),
        free_port()
    ));
    let unfit = ca.leaf(LeafKind::ServerOnly);
    write_pair(&lab, "other", &unfit.cert_pem, &unfit.key_pem);
    agent.wait_for_log(" error file-refused ");
    put(&lab, "web", &second);
    wait_for("the renewed certificate", || {
        TlsClient::run(&lab, port, &json!({ "ca": "second.pem" }))["reply"] == "ping"
    });
    assert_eq!(agent.log().matches("file-refused").count(), 1, "{}", agent.log());
    assert!(agent.log().contains("allows serverAuth, but not clientAuth"), "{}", agent.log());
}

#[test]
fn a_key_that_other_users_can_read_is_not_loaded() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    let ca = Ca::new("CA");
    lab.write("corp.pem", ca.pem());
    put(&lab, "web", &ca);
    put(&lab, "one", &ca);
    let (agent, port) = mutual(&lab);
    let readable = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(lab.path("web.key"), readable).unwrap();
    agent.wait_for_log(" error file-refused ");
    assert!(agent.log().contains("web.key"), "{}", agent.log());
    assert_eq!(TlsClient::run(&lab, port, &certificates::with("one"))["reply"], "ping");
    assert!(refused(&agent).contains("the policy was not installed"));
}

#[test]
fn new_keys_and_certificates_of_tunnels_are_reported() {
    let lab = Lab::new();
    let ca = Ca::new("CA");
    put(&lab, "gw", &ca);
    let write_key = |key: &str| {
        let path = lab.write("psk", key);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    write_key("the first key of both sides");
    let peer = |name: &str, credentials: &str| {
        format!(
            "[ike.{name}]\npeer = \"192.0.2.1\"\n{credentials}\nlocal-id = \"db.example\"\n\
             inner = \"gateway\"\n"
        )
    };
    let agent = lab.agent(&format!(
        "[identity.gw]\ncert = \"gw.pem\"\nkey = \"gw.key\"\n{}{}{}",
        peer("shared", "psk-file = \"psk\""),
        peer("certified", "identity = \"gw\"\ntrust = \"ca\""),
        permit("a", free_port(), echo())
    ));
    let first_line = || agent.ok(&["reload"]).lines().next().unwrap().to_owned();
    assert_eq!(first_line(), "policy generation 2: no rule changed");
    write_key("the second key of both sides");
    assert_eq!(
        first_line(),
        "policy generation 3: no rule changed; new contents of the files of [ike.shared]"
    );
    put(&lab, "gw", &ca);
    agent.wait_for_log("files-reloaded new-contents=[identity.gw]");
    assert_eq!(first_line(), "policy generation 4: no rule changed");
    assert!(!agent.log().contains("key of both sides"), "{}", agent.log());
}
