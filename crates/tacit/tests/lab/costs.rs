//! Tests the ledger (the agent's record of its CPU time). The agent must charge each microsecond to
//! exactly one rule and component. Also tests that `tacit show` reports the CPU time.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use serde_json::{Value, json};

use crate::harness::{Agent, Lab, connect, echo, free_port, text_of, wait_for};
use crate::peers::ping;
use crate::programs::{client_rule, server_rule};

/// Exchanges of the tests: enough for many windows of the accounting.
const EXCHANGES: u64 = 3000;

/// An agent whose first rule leads to its second, with a rule that no client uses.
fn agent(lab: &Lab) -> (Agent, u16) {
    let clear = free_port();
    let tls = free_port();
    let idle = format!(
        "[[rule]]\nname = \"idle\"\nlisten = \"127.0.0.1:{}\"\nconnect = \"{}\"\npermit = true\n",
        free_port(),
        echo()
    );
    let inward = server_rule("in", tls, &echo().to_string(), "");
    let agent = lab.agent(&[inward, client_rule("out", clear, tls, ""), idle].concat());
    (agent, clear)
}

fn load(port: u16, exchanges: u64) {
    let mut stream = connect(("127.0.0.1", port));
    let mut bytes = [7; 500];
    for _ in 0..exchanges {
        stream.write_all(&bytes).unwrap();
        stream.read_exact(&mut bytes).unwrap();
    }
}

/// All exchanges, until they stand in the ledger: counts are published with the window they fall
/// into.
fn load_and_settle(agent: &Agent, port: u16) {
    load(port, EXCHANGES);
    let settled = || rule(&agent.show("costs"), &json!("in"))["messages-sent"] == EXCHANGES;
    wait_for("all messages in the ledger", settled);
}

fn rule<'a>(costs: &'a Value, name: &Value) -> &'a Value {
    costs["rules"].as_array().unwrap().iter().find(|rule| rule["rule"] == *name).unwrap()
}

/// The CPU time of a rule by component, all places together.
fn components(rule: &Value) -> BTreeMap<String, f64> {
    let cells = rule["cpu-us"].as_object().unwrap();
    let sum =
        |cell: &Value| cell.as_object().unwrap().values().map(|us| us.as_f64().unwrap()).sum();
    cells.iter().map(|(component, cell)| (component.clone(), sum(cell))).collect()
}

fn us(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no figure: {value}"))
}

#[test]
fn the_ledger_accounts_for_the_cpu_time_of_the_agent() {
    let lab = Lab::new();
    let (agent, clear) = agent(&lab);
    load_and_settle(&agent, clear);
    let costs = agent.show("costs");
    let rules = costs["rules"].as_array().unwrap();
    let in_cells: f64 = rules.iter().flat_map(|rule| components(rule).into_values()).sum();
    let all = us(&costs["agent-cpu-us"]);
    let captured = us(&costs["captured-cpu-us"]);
    assert!((in_cells - captured).abs() < 1.0, "{in_cells} us in cells, {captured} us captured");
    assert!(captured <= all, "{captured} of {all}");
    assert!(us(&costs["uncaptured-percent"]) <= 3.0, "{costs:#}");
    assert!(us(&costs["accounting"]["percent"]) > 0.0);
    for name in ["in", "out"] {
        let rule = rule(&costs, &json!(name));
        assert_eq!(rule["bytes-sent"], 500 * EXCHANGES, "{rule:#}");
        assert_eq!(rule["bytes-received"], 500 * EXCHANGES);
        assert_eq!(rule["messages-received"], EXCHANGES);
        assert_eq!((&rule["connections"], &rule["handshakes"]), (&json!(1), &json!(1)));
        let usage = components(rule);
        for component in ["accept", "handshake", "seal", "open", "receive", "send", "policy"] {
            assert!(usage[component] > 0.0, "{name} used no CPU time for {component}: {usage:?}");
        }
        let handshake = &rule["cpu-us"]["handshake"];
        assert_eq!((us(&handshake["general"]), us(&handshake["engine"])), (0.0, 0.0));
        assert!(us(&handshake["eligible"]) > 0.0, "the time counts as eligible");
        let carrying: f64 =
            ["seal", "open", "receive", "send"].map(|what| usage[what]).iter().sum();
        let each = us(&rule["cpu-us-per-message"]);
        assert!((each * 2.0 * EXCHANGES as f64 / carrying - 1.0).abs() < 0.01, "{rule:#}");
    }
    let idle = rule(&costs, &json!("idle"));
    assert!(components(idle).values().all(|us| *us == 0.0), "{idle:#}");
    assert!(components(rule(&costs, &Value::Null))["control"] > 0.0, "the agent itself");
}

#[test]
fn the_threads_that_read_a_large_policy_are_charged_to_the_agent() {
    let rule = |number: u16| {
        format!(
            "[[rule]]\nname = \"r{number}\"\ndirection = \"outbound\"\n\
             remote = \"10.{}.{}.0/24\"\nremote-ports = 443\npermit = true\n",
            number / 250,
            number % 250
        )
    };
    let lab = Lab::new();
    let agent = lab.agent(&(0..5000).map(rule).collect::<String>());
    for _ in 0..3 {
        agent.ok(&["reload"]);
    }
    let costs = agent.show("costs");
    assert!(us(&costs["uncaptured-percent"]) <= 3.0, "{}", costs["uncaptured-percent"]);
}

#[test]
fn a_connection_shows_what_it_has_cost() {
    let lab = Lab::new();
    let (agent, clear) = agent(&lab);
    let mut stream = connect(("127.0.0.1", clear));
    for _ in 0..50 {
        assert!(ping(&mut stream));
    }
    let shown = agent.show("connections");
    let shown = shown.as_array().unwrap();
    assert_eq!(shown.len(), 2);
    for connection in shown {
        assert!(us(&connection["cpu-us"]) > 0.0, "{connection:#}");
        assert_eq!(
            (&connection["messages-in"], &connection["messages-out"]),
            (&json!(50), &json!(50))
        );
    }
    let table = agent.ok(&["show", "costs", "--by", "connection"]);
    assert!(table.starts_with("ID  RULE"), "{table}");
    assert_eq!(table.lines().count(), 3, "{table}");
}

#[test]
fn a_silent_connection_has_no_messages() {
    let lab = Lab::new();
    let listen = free_port();
    let port = free_port();
    let greeter = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let agent = lab.agent(&format!(
        "[[rule]]\nname = \"plain\"\nlisten = \"127.0.0.1:{listen}\"\n\
         connect = \"127.0.0.1:{port}\"\npermit = true\n"
    ));
    let mut client = connect(("127.0.0.1", listen));
    let (mut server, _) = greeter.accept().unwrap();
    server.write_all(b"220 ready").unwrap();
    client.read_exact(&mut [0; 9]).unwrap();
    let messages = || {
        let shown = agent.show("connections");
        (shown[0]["messages-in"].clone(), shown[0]["messages-out"].clone())
    };
    assert_eq!(messages(), (json!(0), json!(1)));
    client.write_all(b"EHLO").unwrap();
    server.read_exact(&mut [0; 4]).unwrap();
    assert_eq!(messages(), (json!(1), json!(1)));
}

#[test]
fn an_interval_shows_only_what_falls_into_it() {
    let lab = Lab::new();
    let (agent, clear) = agent(&lab);
    load_and_settle(&agent, clear);
    let printed = agent.ok(&["show", "costs", "--interval", "100ms", "--json"]);
    let quiet: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(rule(&quiet, &json!("in"))["messages-sent"], 0);
    assert_eq!(rule(&quiet, &json!("in"))["cpu-us-per-message"], Value::Null);
    assert!(us(&quiet["interval-s"]) < us(&agent.show("costs")["interval-s"]));
}

#[test]
fn tables_have_a_row_for_each_rule_or_component() {
    let lab = Lab::new();
    let (agent, clear) = agent(&lab);
    load(clear, 10);
    let by_rule = agent.ok(&["show", "costs"]);
    let first_words = |table: &str| -> Vec<String> {
        let words = table.lines().map(|line| line.split("  ").next().unwrap_or_default());
        words.map(str::to_owned).collect()
    };
    assert_eq!(first_words(&by_rule)[..5], ["RULE", "(agent itself)", "idle", "in", "out"]);
    let by_component = agent.ok(&["show", "costs", "--by", "component"]);
    let rows = first_words(&by_component);
    assert_eq!((rows[0].as_str(), rows[2].as_str()), ("COMPONENT", "handshake"), "{by_component}");
    assert_eq!(rows[9], "(uncaptured)");
    for wrong in [&["show", "rules", "--by", "rule"][..], &["show", "limits", "--interval", "1s"]] {
        let refused = agent.verb(wrong);
        assert_eq!(refused.status.code(), Some(64), "{}", text_of(&refused));
    }
}

#[test]
fn cpu_time_of_a_removed_rule_stays_in_the_sum() {
    let lab = Lab::new();
    let (agent, clear) = agent(&lab);
    load_and_settle(&agent, clear);
    agent.write_policy("");
    agent.ok(&["reload"]);
    let removed = |costs: &Value| {
        let rules = costs["rules"].as_array().unwrap();
        rules.iter().find(|rule| rule["kind"] == "removed").cloned()
    };
    wait_for("the rules' connections to be gone", || removed(&agent.show("costs")).is_some());
    wait_for("both rules in the sum", || {
        removed(&agent.show("costs")).unwrap()["messages-sent"] == 2 * EXCHANGES
    });
    assert!(us(&agent.show("costs")["uncaptured-percent"]) <= 3.0);
}

#[test]
fn accounting_can_be_turned_off() {
    let lab = Lab::new();
    let listen = free_port();
    let rule = format!(
        "[agent]\naccounting = false\n[[rule]]\nname = \"plain\"\nlisten = \"127.0.0.1:{listen}\"\n\
         connect = \"{}\"\npermit = true\nlog = true\n",
        echo()
    );
    let agent = lab.agent(&rule);
    // Long enough for windows of every thread that accounts, the log's thread too.
    for _ in 0..5 {
        load(listen, 10);
        std::thread::sleep(std::time::Duration::from_millis(60));
    }
    let costs = agent.show("costs");
    assert_eq!(
        (&costs["captured-cpu-us"], &costs["accounting"]["stamps"]),
        (&json!(0.0), &json!(0))
    );
    assert!(agent.ok(&["show", "costs"]).contains("accounting = false"));
}
