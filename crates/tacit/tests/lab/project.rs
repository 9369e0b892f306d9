//! Tests `tacit project` with the measured CPU time of a real agent, and with invalid input.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;

use crate::fits::assert_fits;
use crate::harness::{Agent, Lab, TACIT, connect, echo, free_port, text_of};
use crate::peers::ping;

/// An agent with a client and a server of TLS, one of which leads to the other, and a permit.
fn agent(lab: &Lab) -> (Agent, [u16; 2]) {
    let clear = free_port();
    let tls = free_port();
    let plain = free_port();
    let echo = echo();
    let agent = lab.agent(&format!(
        r#"
        [[rule]]
        name = "out"
        listen = "127.0.0.1:{clear}"
        connect = "localhost:{tls}"
        tls = {{ role = "client", trust = "ca" }}
        [[rule]]
        name = "in"
        listen = "127.0.0.1:{tls}"
        connect = "{echo}"
        tls = {{ role = "server", identity = "localhost", client-cert = "none" }}
        [[rule]]
        name = "plain"
        listen = "127.0.0.1:{plain}"
        connect = "{echo}"
        permit = true
        "#
    ));
    (agent, [clear, plain])
}

/// Opens connections and exchanges a few messages on each.
fn load(port: u16) {
    for _ in 0..20 {
        let mut stream = connect(("127.0.0.1", port));
        assert!(ping(&mut stream));
        for _ in 0..20 {
            exchange(&mut stream);
        }
    }
}

fn exchange(stream: &mut TcpStream) {
    let mut back = [0; 3000];
    stream.write_all(&[7; 3000]).unwrap();
    stream.read_exact(&mut back).unwrap();
    assert!(back.iter().all(|&byte| byte == 7));
}

/// What a projection of two snapshots says.
fn project(lab: &Lab, question: &[&str]) -> Value {
    let files = ["project", "--json", "--costs", "before.json", "--costs", "after.json"];
    let answer = lab.tacit(&[&files[..], question].concat());
    assert_fits("project", &answer);
    serde_json::from_str(&answer).unwrap()
}

fn total(cell: &Value) -> f64 {
    ["general", "engine", "eligible"].iter().map(|place| cell[place].as_f64().unwrap()).sum()
}

fn rule(side: &Value, name: &str) -> f64 {
    let rules = side["rules"].as_array().unwrap();
    total(&rules.iter().find(|rule| rule["rule"] == name).unwrap()["percent"])
}

fn near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 1e-6, "{found} is not {wanted}");
}

/// An agent that did something between `before.json` and `after.json`.
fn measured(lab: &Lab) -> Agent {
    let (agent, ports) = agent(lab);
    lab.write("before.json", agent.ok(&["show", "costs", "--json"]));
    ports.into_iter().for_each(load);
    lab.write("after.json", agent.ok(&["show", "costs", "--json"]));
    agent
}

#[test]
fn a_projection_changes_only_the_requested_rules() {
    let lab = Lab::new();
    let _agent = measured(&lab);
    let same = project(&lab, &[]);
    near(total(&same["before"]["total"]), total(&same["after"]["total"]));
    near(same["work-per-cpu"].as_f64().unwrap(), 1.0);
    assert!(total(&same["before"]["components"]["seal"]) > 0.0, "{same:#}");

    let clear = project(&lab, &["--rule", "in=permit", "--rule", "out=permit"]);
    for component in ["handshake", "seal", "open"] {
        assert!(total(&clear["before"]["components"][component]) > 0.0, "{component}: {clear:#}");
        near(total(&clear["after"]["components"][component]), 0.0);
    }
    near(rule(&clear["before"], "plain"), rule(&clear["after"], "plain"));
    assert!(clear["work-per-cpu"].as_f64().unwrap() > 1.0);

    let tls = project(&lab, &["--rule", "plain=tls", "--scale", "3"]);
    assert!(rule(&tls["after"], "plain") > 3.0 * rule(&tls["before"], "plain"));
    near(rule(&tls["after"], "in"), 3.0 * rule(&tls["before"], "in"));
}

#[test]
fn suites_are_measured_and_assumptions_are_listed() {
    let lab = Lab::new();
    let _agent = measured(&lab);
    let other = project(&lab, &["--suite", "CHACHA20"]);
    near(rule(&other["after"], "plain"), rule(&other["before"], "plain"));
    assert_ne!(rule(&other["after"], "out"), rule(&other["before"], "out"));
    let assumed = other["assumptions"].to_string();
    for words in [
        "rule out",
        "rule in",
        "tacit has just measured",
        "TLS_CHACHA20",
        "keep their measured size",
    ] {
        assert!(assumed.contains(words), "{words}: {assumed}");
    }
    assert!(!assumed.contains("rule plain"), "{assumed}");
}

#[test]
fn eligible_work_of_a_running_agent_moves_to_engines() {
    let lab = Lab::new();
    let (agent, [clear, _]) = agent(&lab);
    let over = Arc::new(AtomicBool::new(false));
    let loader = thread::spawn({
        let over = Arc::clone(&over);
        move || {
            while !over.load(Ordering::Relaxed) {
                load(clear);
            }
        }
    });
    let cpus = thread::available_parallelism().unwrap().get();
    let question = ["project", "--interval", "500ms", "--engines", "1", "--rule", "out=engine"];
    let answer = agent.verb(&question);
    over.store(true, Ordering::Relaxed);
    loader.join().unwrap();
    if cpus == 1 {
        assert_eq!(answer.status.code(), Some(64), "{}", text_of(&answer));
        return;
    }
    assert!(answer.status.success(), "{}", text_of(&answer));
    let text = String::from_utf8(answer.stdout).unwrap();
    let line =
        text.lines().find(|line| line.starts_with("out ")).unwrap_or_else(|| panic!("{text}"));
    let cells: Vec<f64> =
        line.split_whitespace().skip(1).map(|cell| cell.parse().unwrap()).collect();
    let [_, engine_before, _, _, engine_after, _] = cells.try_into().unwrap();
    assert!(engine_before < engine_after, "{text}");
    assert!(text.contains("engines: 1"), "{text}");
}

#[test]
fn invalid_input_is_refused_with_its_exit_status() {
    let lab = Lab::new();
    let _agent = measured(&lab);
    lab.write("wrong.json", "{}");
    let earlier = "before.json";
    let later = "after.json";
    let all = thread::available_parallelism().unwrap().to_string();
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--costs", later, "--costs", earlier], 1, "not later"),
        (&["--costs", later, "--costs", later, "--costs", later], 64, "3 times"),
        (&["--costs", "wrong.json"], 1, "does not contain costs"),
        (&["--costs", "absent.json"], 1, "absent.json"),
        (&["--costs", later, "--engines", &all], 64, "for other work"),
        (
            &["--costs", later, "--rule", "absent=permit"],
            64,
            "the measured rules are in, out, plain",
        ),
        (&["--costs", later, "--rule", "in=tls"], 64, "already uses TLS"),
        (&["--costs", later, "--rule", "in=deny"], 64, "NAME=permit"),
        (&["--costs", later, "--interval", "1s"], 64, "cannot be used with"),
    ];
    for (question, status, words) in cases {
        let output = lab.run(TACIT, &[&["project"], question].concat());
        assert_eq!(output.status.code(), Some(status), "{question:?}: {}", text_of(&output));
        assert!(text_of(&output).contains(words), "{question:?}: {}", text_of(&output));
    }
}
