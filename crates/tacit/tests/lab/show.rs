//! Tests the output of the `tacit show` commands, and which users may read it.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Agent, Lab, TACIT, connect, echo, free_port, text_of, wait_for};
use crate::peers::{TlsClient, ping};
use crate::programs::{client_rule, server_rule};
use crate::public::copy_program;

/// An agent with its ports.
struct Forwarding {
    agent: Agent,
    clear: u16,
    tls: u16,
}

/// An agent with a rule of each role, one of which leads to the other.
fn agent(lab: &Lab) -> Forwarding {
    let clear = free_port();
    let tls = free_port();
    let inward = server_rule("in", tls, &echo().to_string(), "");
    let agent = lab.agent(&(inward + &client_rule("out", clear, tls, "")));
    Forwarding { agent, clear, tls }
}

/// The cells of a table's line that begins with a word.
fn cells(table: &str, first: &str) -> Vec<String> {
    let line = table
        .lines()
        .find(|line| line.split_whitespace().next() == Some(first))
        .unwrap_or_else(|| panic!("no line {first} in\n{table}"));
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
}

#[test]
fn connections_show_both_sockets_tls_and_peer() {
    let lab = Lab::new();
    let Forwarding { agent, clear, tls } = agent(&lab);
    let mut stream = connect(("127.0.0.1", clear));
    assert!(ping(&mut stream));
    let shown = agent.show("connections");
    let find = |rule: &str| shown.as_array().unwrap().iter().find(|c| c["rule"] == rule).unwrap();
    let out = find("out");
    let inward = find("in");
    assert_eq!(out["remote"], stream.local_addr().unwrap().to_string());
    assert_eq!(out["connect"], format!("127.0.0.1:{tls}"));
    assert_eq!((&out["role"], &inward["role"]), (&json!("client"), &json!("server")));
    for (connection, identity) in [(out, "localhost"), (inward, "alice")] {
        let tls = &connection["tls"];
        assert_eq!(tls["version"], "1.3", "{connection}");
        assert_eq!(tls["suite"], "TLS_AES_128_GCM_SHA256");
        assert_eq!(tls["group"], "X25519MLKEM768");
        assert_eq!(tls["check"]["result"], "valid");
        assert!(tls["peer"]["identity"].as_str().unwrap().contains(identity), "{connection}");
        assert_eq!((&connection["bytes-in"], &connection["bytes-out"]), (&json!(1), &json!(1)));
        assert_eq!(
            (&connection["state"], &connection["policy"]),
            (&json!("open"), &json!("current"))
        );
        assert!(connection["accepted-tcp"].is_object() && connection["connected-tcp"].is_object());
    }
    let table = agent.ok(&["show", "connections", "--wide"]);
    for connection in [out, inward] {
        let cells = cells(&table, &connection["id"].to_string());
        for key in ["rule", "role", "state", "policy", "remote", "connect"] {
            assert!(
                cells.contains(&connection[key].as_str().unwrap().to_owned()),
                "{key}: {table}"
            );
        }
        for key in ["version", "suite", "group"] {
            let value = connection["tls"][key].as_str().unwrap().to_owned();
            assert!(cells.contains(&value), "{key}: {table}");
        }
    }
}

#[test]
fn on_loopback_no_socket_of_the_agent_has_the_hosts_congestion_control() {
    let lab = Lab::new();
    let port = free_port();
    // A name that no kernel has is refused; elsewhere the host's own would stay.
    let agent = lab.agent(&format!(
        "[agent]\ncongestion-control = \"no-such\"\n[[rule]]\nname = \"r\"\n\
         listen = \"127.0.0.1:{port}\"\nconnect = \"{}\"\npermit = true\n",
        echo()
    ));
    assert!(agent.log().contains(" warn congestion-control-refused "), "{}", agent.log());
    let mut stream = connect(("127.0.0.1", port));
    assert!(ping(&mut stream));
    let shown = agent.show("connections");
    for socket in ["accepted-tcp", "connected-tcp"] {
        assert_eq!(shown[0][socket]["congestion-control"], "reno", "{socket}: {shown}");
    }
}

#[test]
fn rules_identities_and_limits_are_the_same_as_text_and_json() {
    let lab = Lab::new();
    let Forwarding { agent, clear, tls } = agent(&lab);
    let mut stream = connect(("127.0.0.1", clear));
    assert!(ping(&mut stream));
    TlsClient::run(&lab, tls, &json!({}));
    agent.wait_for_log(" warn failed ");
    // The log has the failure before the connection is closed.
    wait_for("the end of the failed connection", || agent.show("rules")["rules"][0]["open"] == 1);
    let rules = agent.show("rules");
    let table = agent.ok(&["show", "rules"]);
    let inward = &rules["rules"][0];
    assert_eq!(
        (&inward["hits"], &inward["failures"], &inward["open"]),
        (&2.into(), &1.into(), &1.into())
    );
    assert_eq!((&inward["client-cert"], &rules["default"]), (&json!("required"), &json!("deny")));
    let cells_of_in = cells(&table, "in");
    assert_eq!(&cells_of_in[..3], ["in", "tls", "server"], "{table}");
    assert_eq!(&cells_of_in[5..8], ["1", "2", "1"], "{table}");
    assert_eq!(cells_of_in[8], inward["last-hit"].as_str().unwrap());

    let identities = agent.show("identities");
    let table = agent.ok(&["show", "identities"]);
    for identity in identities["identities"].as_array().unwrap() {
        let cells = cells(&table, identity["name"].as_str().unwrap());
        assert!(cells.contains(&identity["certificate"]["subject"].as_str().unwrap().to_owned()));
        assert_eq!(identity["rules"].as_array().unwrap().len(), 1, "{identity}");
    }
    assert_eq!(identities["trusts"][0]["anchors"], 1);
    assert!(!identities.to_string().contains("PRIVATE"));

    let limits = agent.show("limits");
    let table = agent.ok(&["show", "limits"]);
    for limit in limits.as_array().unwrap() {
        let cells = cells(&table, limit["name"].as_str().unwrap());
        let max = match &limit["max"] {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            number => number.to_string(),
        };
        assert_eq!(cells[1], max, "{table}");
    }
    let used = limits.as_array().unwrap().iter().find(|l| l["name"] == "connections").unwrap();
    assert_eq!(used["used"], 2);
}

#[test]
fn other_users_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    let Forwarding { agent, .. } = agent(&lab);
    let mode = std::fs::metadata(&agent.control).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    if !rustix::process::geteuid().is_root() {
        println!("skipped: asking as another user, which only root can try");
        return;
    }
    // Even where the modes of files let everybody in, the agent does not.
    let open = std::env::temp_dir().join(format!("tacit-lab-{}", std::process::id()));
    std::fs::create_dir_all(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::set_permissions(&agent.control, std::fs::Permissions::from_mode(0o777)).unwrap();
    let program = open.join("tacit");
    let control = open.join("agent.sock");
    copy_program(&program);
    let rules =
        format!("[[rule]]\nname = \"r\"\nlisten = \"unix:@{}\"\ndeny = true\n", open.display());
    let open_agent = lab.try_agent(&rules, &[]);
    open_agent.wait_until_serving();
    std::fs::rename(&open_agent.control, &control).unwrap();
    std::fs::set_permissions(&control, std::fs::Permissions::from_mode(0o777)).unwrap();
    for verb in [&["show", "rules"][..], &["reload"], &["drain"], &["restart"], &["close", "1"]] {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--clear-groups"])
            .arg(&program)
            .args(verb)
            .arg("--control")
            .arg(&control)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{verb:?}: {}", text_of(&output));
        assert_eq!(output.stdout, b"", "{verb:?}");
    }
    open_agent.wait_for_log("user 65534 may not control this agent");
    assert_eq!(open_agent.serving_pids().len(), 1);
    let _ = std::fs::remove_dir_all(&open);
}

#[test]
fn displays_report_that_no_agent_answers() {
    let lab = Lab::new();
    let output = lab.run(TACIT, &["show", "rules", "--control", "nobody.sock"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no agent answers at nobody.sock") && said.contains("fix: "), "{said}");
}

#[test]
fn the_installed_policy_is_shown_and_explained_after_the_file_has_changed() {
    let lab = Lab::new();
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let agent = lab.agent(&server_rule("front", port, "127.0.0.1:9", ""));
    let show = |more: &[&str]| {
        let words = ["show", "policy", "--control", agent.control.to_str().unwrap()];
        lab.run(TACIT, &[&words[..], more].concat())
    };
    let value: Value = serde_json::from_slice(&show(&["--json"]).stdout).unwrap();
    assert_eq!((&value["version"], &value["generation"]), (&1.into(), &1.into()), "{value}");
    assert!(value["file"].as_str().unwrap().starts_with('/'), "{value}");
    assert_eq!(value["rules"][0]["name"], "front", "{value}");
    let line = &value["rules"][0]["line"];
    let text = String::from_utf8(show(&["front"]).stdout).unwrap();
    assert!(text.contains(&format!("[[rule]] front, line {line}\n")), "{text}");
    let is_default = |line: &str| line.split_whitespace().eq(["tls.min-version", "default", "1.2"]);
    assert!(text.lines().any(is_default) && text.contains(&listen), "{text}");
    assert!(!text.contains("[identity."), "one rule alone: {text}");
    let unknown = show(&["fornt"]);
    assert_eq!(unknown.status.code(), Some(1), "{}", text_of(&unknown));
    assert!(text_of(&unknown).contains("has no rule `fornt`"), "{}", text_of(&unknown));
    // What is in the file by now is not installed.
    std::fs::write(&agent.policy, "version = 1\n").unwrap();
    let flow = ["--listen", &listen, "--remote", "192.0.2.1:1"];
    let words = ["explain", "--control", agent.control.to_str().unwrap()];
    let said = lab.tacit(&[&words[..], &flow].concat());
    assert_eq!(said, format!("line {line}: rule `front` matches: tls\n"));
}

#[test]
fn one_connection_is_shown_with_every_fact_and_as_a_series() {
    let lab = Lab::new();
    let Forwarding { agent, clear, .. } = agent(&lab);
    let mut held = connect(("127.0.0.1", clear));
    assert!(ping(&mut held));
    let shown = agent.show("connections");
    let of = |rule: &str| shown.as_array().unwrap().iter().find(|one| one["rule"] == rule).unwrap();
    let id = of("out")["id"].to_string();
    let text = agent.ok(&["show", "connections", &id]);
    for words in ["TLS version", "certificate", "valid", "accepted socket", "ssthresh-segments"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let value: Value =
        serde_json::from_str(&agent.ok(&["show", "connections", &id, "--json"])).unwrap();
    for key in ["sha256", "serial"] {
        let of_peer = value["connections"][0]["tls"]["chain"][0][key].as_str().unwrap();
        assert!(text.contains(of_peer), "{key} {of_peer}: {text}");
    }
    let tcp = &value["connections"][0]["connected-tcp"];
    assert!(tcp["segments-out"].as_u64() > Some(0), "{value}");
    assert!(tcp["send-buffer-bytes"].as_u64() > Some(0), "{value}");
    let once = agent.ok(&["show", "connections", &id, "--csv"]);
    assert_eq!(once.lines().count(), 2, "{once}");
    // The series ends with its connection.
    let control = agent.control.to_str().unwrap();
    let series = ["show", "connections", &id, "--csv", "--interval", "20ms", "--control", control];
    let series = lab.command(TACIT).args(series).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    drop(held);
    let series = series.wait_with_output().unwrap();
    assert!(series.status.success(), "{}", text_of(&series));
    let lines = String::from_utf8(series.stdout).unwrap();
    assert!(lines.lines().count() > 2 && lines.starts_with("time,bytes-in,"), "{lines}");
}

#[test]
fn an_unknown_id_is_an_error_and_filters_take_what_they_name() {
    let lab = Lab::new();
    let Forwarding { agent, clear, .. } = agent(&lab);
    let mut held = connect(("127.0.0.1", clear));
    assert!(ping(&mut held));
    let unknown = agent.verb(&["show", "connections", "4711"]);
    assert_eq!(unknown.status.code(), Some(1), "{}", text_of(&unknown));
    assert!(text_of(&unknown).contains("no open connection has the id 4711"));
    let wrong = agent.verb(&["show", "connections", "front"]);
    assert_eq!(wrong.status.code(), Some(64), "{}", text_of(&wrong));
    let count =
        |more: &[&str]| agent.ok(&[&["show", "connections"], more].concat()).lines().count() - 1;
    for (filter, expected) in [
        (&["--rule", "in"][..], 1),
        (&["--state", "open"], 2),
        (&["--state", "stale"], 0),
        (&["--run", "none"], 0),
        (&["--remote", "127.0.0.0/8"], 2),
        (&["--remote", "192.0.2.1"], 0),
    ] {
        assert_eq!(count(filter), expected, "{filter:?}");
    }
    for wrong in [&["connections", "1", "--wide"][..], &["rules", "--csv"], &["limits", "x"]] {
        let refused = agent.verb(&[&["show"], wrong].concat());
        assert_eq!(refused.status.code(), Some(64), "{}", text_of(&refused));
    }
}

/// The displays with tables.
const TABLES: [&[&str]; 23] = [
    &["connections"],
    &["connections", "1"],
    &["rules"],
    &["filters"],
    &["policy"],
    &["runs"],
    &["engines"],
    &["identities"],
    &["limits"],
    &["refused"],
    &["audit"],
    &["coverage"],
    &["ike"],
    &["sa"],
    &["stats"],
    &["traces"],
    &["unix"],
    &["cpus", "--interval", "100ms"],
    &["costs"],
    &["costs", "--by", "component"],
    &["costs", "--by", "program"],
    &["costs", "--by", "connection"],
    &["costs", "--interval", "100ms"],
];

#[test]
fn tables_fit_the_terminal_and_are_whole_without_one() {
    let lab = Lab::new();
    let Forwarding { agent, clear, tls: _ } = agent(&lab);
    let mut stream = connect(("127.0.0.1", clear));
    assert!(ping(&mut stream));
    lab.write("columns.py", include_str!("../peers/columns.py"));
    let control = agent.control.to_str().unwrap();
    let on_terminal = |columns: &str, arguments: &[&str]| {
        let before = ["columns.py", columns, TACIT, "show", "--control", control];
        let output = lab.run("python3", &[&before, arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text_of(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    for display in TABLES {
        let shown = on_terminal("80", display);
        assert!(!shown.is_empty(), "{display:?}");
        for line in shown.lines() {
            assert!(line.chars().count() <= 80, "{display:?}: {line}\n{shown}");
        }
    }
    // These have no figures that change between two commands.
    for display in [&["limits"][..], &["identities"], &["policy"]] {
        let whole = agent.ok(&[&["show"], display].concat());
        assert!(whole.lines().any(|line| line.chars().count() > 80), "{whole}");
        assert_eq!(on_terminal("80", &[display, &["--wide"]].concat()), whole, "{display:?}");
        assert_eq!(on_terminal("1000", display), whole, "{display:?}");
        let narrow = on_terminal("80", display);
        let words = |text: &str| text.split_whitespace().collect::<String>();
        if display == ["policy"] {
            assert_eq!(words(&narrow), words(&whole), "a policy has no cut cells");
        }
    }
}
