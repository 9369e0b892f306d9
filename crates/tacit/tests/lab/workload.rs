//! Tests `tacit workload`: client and server as separate processes, connected directly and through
//! agents.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Output, Stdio};

use serde_json::{Value, json};

use crate::harness::{Agent, Lab, TACIT, free_port, signal_process, text_of, wait_for};

/// A program that is ended with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        signal_process(self.0.id(), "TERM");
        let _ = self.0.wait();
    }
}

/// A server end.
struct Server {
    child: Ended,
    address: String,
}

impl Server {
    fn start(lab: &Lab) -> Self {
        Self::listening(lab, &[])
    }

    fn listening(lab: &Lab, more: &[&str]) -> Self {
        let words = ["workload", "interactive", "server", "--threads", "2", "--json"];
        let mut command = lab.command(TACIT);
        let mut child = command.args(words).args(more).stdout(Stdio::piped()).spawn().unwrap();
        let mut printed = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut printed).unwrap();
        let line: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(line["pid"], child.id());
        Self { child: Ended(child), address: line["listening"].as_str().unwrap().to_owned() }
    }
}

/// Runs a client with these words, split at spaces.
fn client(lab: &Lab, words: &str) -> Output {
    let words: Vec<_> = ["workload"].into_iter().chain(words.split_whitespace()).collect();
    lab.run(TACIT, &words)
}

/// The same, expecting a report in JSON.
fn report(lab: &Lab, words: &str) -> Value {
    let output = client(lab, &format!("{words} --json -"));
    assert!(output.status.success(), "{words}: {}", text_of(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in
        ["version", "mode", "summary", "kernel", "cpus", "settings", "figures", "tables", "charts"]
    {
        assert!(!report[key].is_null(), "{key}: {report}");
    }
    assert_eq!(report["version"], 1);
    report
}

/// A client's words, and figures with their exact values, or only above zero where that depends on
/// the machine.
type Mode = (&'static str, &'static [(&'static str, Option<f64>)]);

const MODES: [Mode; 9] = [
    (
        "interactive client --seconds 200ms --warm-up 10ms --connections 3",
        &[("exchanges", None), ("latency_p999_us", None), ("cpu_us_per_exchange", None)],
    ),
    (
        "request-reply client --seconds 300ms --warm-up 10ms --rate 200 --request 500 \
         --reply 1MiB --connections 2",
        &[("latency_p99_us", None), ("service_p99_us", None), ("cpu_us_per_exchange", None)],
    ),
    (
        "stream client out --bytes 3000000 --connections 2",
        &[("mb", Some(6.0)), ("mb_per_s", None), ("cpu_us_per_mb", None)],
    ),
    (
        "stream client in --bytes 1MiB --connections 3",
        &[("mb", Some(3.145_73)), ("mb_per_s", None), ("cpu_us_per_mb", None)],
    ),
    (
        "connect client --connections 60 --at-once 3",
        &[("connections", Some(60.0)), ("latency_p50_us", None), ("cpu_us_per_connection", None)],
    ),
    (
        "stream client out --bytes 500000 --times 3 --connections 2",
        &[("mb", Some(3.0)), ("seconds", None)],
    ),
    (
        "connect client --connections 20 --at-once 3 --bytes 5000 --warm-up 0",
        &[("connections", Some(20.0)), ("latency_p99_us", None), ("seconds", None)],
    ),
    (
        "ramp client --connections 60 --step 20 --ramps 2 --pause 20ms",
        &[("latency_p50_us", None), ("cpu_us_per_connection", None)],
    ),
    (
        "start-stop client --connections 40",
        &[("starts_per_s", None), ("stops_per_s", None), ("cpu_us_per_stop", None)],
    ),
];

fn assert_modes(lab: &Lab, more: &str, component: &str) {
    for (words, figures) in MODES {
        let report = report(lab, &format!("{words} {more}"));
        assert_eq!(report["mode"], words.split(' ').next().unwrap());
        for (key, wanted) in figures {
            let found = report["figures"][key].as_f64();
            let found = found.unwrap_or_else(|| panic!("{words}: no {key}: {report}"));
            assert!(wanted.map_or(found > 0.0, |wanted| found == wanted), "{words} {key} {found}");
        }
        let parts = report["tables"][0]["rows"].as_array().unwrap();
        let names: Vec<_> = parts.iter().map(|row| row["component"].as_str().unwrap()).collect();
        assert_eq!(names, ["client", component, "all"], "{words}");
        let us: Vec<_> = parts.iter().map(|row| row["CPU us"].as_f64().unwrap()).collect();
        assert!(us.iter().all(|us| *us > 0.0), "{words}: {us:?}");
        assert!((us[0] + us[1] - us[2]).abs() <= us[2] * 1e-4, "{words}: {us:?}");
    }
}

#[test]
fn every_mode_measures_and_reports() {
    let lab = Lab::new();
    let server = Server::start(&lab);
    let more = format!("--connect {} --cpu-of far={}", server.address, server.child.0.id());
    assert_modes(&lab, &more, "far");
}

/// The two ends of mutual TLS in one agent; returns the way in.
fn between(lab: &Lab, to: &str) -> (Agent, String) {
    let [entry, tls] = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let rules = format!(
        "[[rule]]\nname = \"near\"\nlisten = \"{entry}\"\nconnect = \"{tls}\"\n\
         tls = {{ role = \"client\", trust = \"ca\", identity = \"alice\", \
         server-name = \"localhost\" }}\n\
         [[rule]]\nname = \"far\"\nlisten = \"{tls}\"\nconnect = \"{to}\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", trust = \"ca\", \
         client-cert = \"required\" }}\n"
    );
    (lab.agent(&rules), entry)
}

#[test]
fn every_mode_works_through_mutual_tls_and_charges_the_agents_children() {
    let lab = Lab::new();
    let server = Server::start(&lab);
    let (agent, entry) = between(&lab, &server.address);
    // The process that was started only keeps the agent: what its child works is counted with it.
    let more = format!("--connect {entry} --cpu-of agent={}", agent.child.id());
    assert_modes(&lab, &more, "agent");
    let before = agent.show("rules")["rules"][0]["hits"].as_u64().unwrap();
    let words = "start-stop client --connections 30";
    let report = report(&lab, &format!("{words} --connect {entry} --inbound {}", server.address));
    assert!(report["figures"]["start_inbound_p50_us"].as_f64().unwrap() > 0.0);
    let after = agent.show("rules")["rules"][0].clone();
    // 30 and 30 by turns, after a warm-up of as many.
    assert_eq!(after["hits"].as_u64().unwrap() - before, 60, "{after}");
    assert_eq!(after["failures"], 0);
}

/// Rows of the table whose title begins so, by the word in their first column.
fn rows(report: &Value, title: &str) -> BTreeMap<String, Value> {
    let tables = report["tables"].as_array().unwrap();
    let table = tables.iter().find(|table| table["title"].as_str().unwrap().starts_with(title));
    let rows = table.unwrap_or_else(|| panic!("no {title}: {report}"))["rows"].as_array().unwrap();
    let word = |row: &Value| {
        ["component", "count"].iter().find_map(|key| row[key].as_str().map(str::to_owned))
    };
    rows.iter().map(|row| (word(row).unwrap(), row.clone())).collect()
}

const COSTS: &str = "CPU time of the agents by component, for each ";
const COUNTS: &str = "Totals of the agents' counters";

#[test]
fn an_agents_ledger_says_what_each_unit_was_spent_on() {
    let lab = Lab::new();
    let server = Server::start(&lab);
    let (agent, entry) = between(&lab, &server.address);
    let more = format!("--connect {entry} --ledger-of agent={}", agent.control.display());
    let report = report(&lab, &format!("interactive client --seconds 300ms {more}"));
    let costs = rows(&report, COSTS);
    let us = |row: &str| costs[row]["agent us/exchange"].as_f64().unwrap();
    for component in ["seal", "open", "receive", "send", "control", "all"] {
        assert!(us(component) > 0.0, "{component}: {costs:?}");
    }
    assert_eq!(us("handshake"), 0.0, "they were done before: {costs:?}");
    let components =
        ["accept", "handshake", "seal", "open", "receive", "send", "policy", "control"];
    let sum: f64 = components.iter().map(|component| us(component)).sum();
    assert!((sum + us("uncaptured") - us("all")).abs() <= us("all") * 0.01, "{costs:?}");
    // Two rules carry each request and each reply.
    let exchanges = report["figures"]["exchanges"].as_f64().unwrap();
    let counts = rows(&report, COUNTS);
    for row in ["messages from clients", "messages sent to clients"] {
        assert_eq!(counts[row]["agent"].as_f64().unwrap(), 2.0 * exchanges, "{counts:?}");
    }
    // The agent's process counts without another word.
    let cpu = rows(&report, "CPU time by component, per exchange");
    assert!(cpu["agent"]["CPU us"].as_f64().unwrap() > 0.0, "{cpu:?}");
}

#[test]
fn displays_find_the_agent_of_the_only_run() {
    let lab = Lab::new();
    lab.write("run.toml", crate::run::POLICY);
    std::fs::create_dir(lab.path("runtime")).unwrap();
    let tacit = |words: &str| {
        let mut command = lab.command(TACIT);
        command.args(words.split(' ')).env("XDG_RUNTIME_DIR", lab.path("runtime"));
        command
    };
    let show = || tacit("show refused").output().unwrap();
    let start = || {
        let run = Ended(tacit("run --policy run.toml -- sleep 600").spawn().unwrap());
        let control = format!("runtime/tacit-run-{}/agent.sock", run.0.id());
        let path = lab.path(&control);
        let words = format!("show refused --control {}", path.display());
        wait_for("the run", || tacit(&words).output().unwrap().status.success());
        (run, control)
    };
    let none = show();
    assert!(text_of(&none).contains("no agent answers at"), "{}", text_of(&none));
    let (_first, first) = start();
    assert!(show().status.success(), "{}", text_of(&show()));
    let (_second, second) = start();
    let both = show();
    assert_eq!(both.status.code(), Some(1));
    let said = text_of(&both);
    assert!(said.contains("the private agents of several runs"), "{said}");
    assert!(said.contains(&first) && said.contains(&second), "{said}");
    let of_run = "agent.sock (";
    assert_eq!(said.matches(of_run).count(), 2, "{said}");
    assert_eq!(said.matches("run --policy run.toml -- sleep 600)").count(), 2, "{said}");
}

#[test]
fn the_private_agent_of_a_run_is_found_by_its_launcher() {
    let lab = Lab::new();
    let server = Server::start(&lab);
    let rule = "version = 1\n[[rule]]\nname = \"out\"\ndirection = \"outbound\"\n\
                remote = [\"192.0.2.1\"]\npermit = true\n";
    lab.write("run.toml", rule);
    std::fs::create_dir(lab.path("runtime")).unwrap();
    let words = ["run", "--policy", "run.toml", "--", "sleep", "60"];
    let mut command = lab.command(TACIT);
    command.args(words).env("XDG_RUNTIME_DIR", lab.path("runtime"));
    let run = Ended(command.spawn().unwrap());
    let control = lab.path(&format!("runtime/tacit-run-{}/agent.sock", run.0.id()));
    // The file exists shortly before the agent listens.
    wait_for("the private agent", || UnixStream::connect(&control).is_ok());
    let words = format!(
        "workload connect client --connections 3 --connect {} --ledger-of run={} --json -",
        server.address,
        run.0.id()
    );
    let mut client = lab.command(TACIT);
    client.args(words.split(' ')).env("XDG_RUNTIME_DIR", lab.path("runtime"));
    let output = client.output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows(&report, COUNTS)["connections"]["run"], 0.0, "{report}");
    assert!(rows(&report, COSTS)["control"]["run us/connection"].as_f64().unwrap() > 0.0);
}

/// A chart by its title, as the number of points of each of its series.
fn chart(report: &Value, title: &str) -> BTreeMap<String, usize> {
    let charts = report["charts"].as_array().unwrap();
    let chart = charts.iter().find(|chart| chart["title"] == title);
    let series = chart.unwrap_or_else(|| panic!("no {title}: {report}"))["series"].as_array();
    let points = |one: &Value| one["points"].as_array().unwrap().len();
    let named = |one: &Value| (one["name"].as_str().unwrap().to_owned(), points(one));
    series.unwrap().iter().map(named).collect()
}

#[test]
fn the_sending_end_and_the_sockets_of_agents_are_sampled() {
    let lab = Lab::new();
    let server = Server::start(&lab);
    let (agent, entry) = between(&lab, &server.address);
    let more = format!(
        "--seconds 2s --connections 1 --connect {entry} --html page.html --ledger-of near={}",
        agent.control.display()
    );
    for (direction, sender) in [("in", "server"), ("out", "client")] {
        let report = report(&lab, &format!("stream client {direction} {more}"));
        for title in
            ["congestion window", "smoothed round-trip time", "deviation of the round-trip time"]
        {
            let series = chart(&report, title);
            assert_eq!(series.len(), 2, "{direction}: {series:?}");
            for end in [sender, "near, TLS"] {
                assert!(series.get(end).is_some_and(|points| *points > 1), "{end}: {series:?}");
            }
        }
    }
}

#[test]
fn ends_meet_at_unix_sockets() {
    let lab = Lab::new();
    let server = Server::listening(&lab, &["--listen", "unix:server.sock"]);
    assert_eq!(server.address, "unix:server.sock");
    let tls = free_port();
    let rules = format!(
        "[[rule]]\nname = \"near\"\nlisten = \"unix:{entry}\"\nconnect = \"localhost:{tls}\"\n\
         tls = {{ role = \"client\", trust = \"ca\" }}\n\
         [[rule]]\nname = \"far\"\nlisten = \"127.0.0.1:{tls}\"\nconnect = \"unix:{server}\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"none\" }}\n",
        entry = lab.path("near.sock").display(),
        server = lab.path("server.sock").display(),
    );
    let agent = lab.agent(&rules);
    for connect in ["unix:server.sock", "unix:near.sock"] {
        let more = format!("--connect {connect} --cpu-of far={}", server.child.0.id());
        assert_modes(&lab, &more, "far");
    }
    assert!(agent.show("rules")["rules"][1]["hits"].as_u64().unwrap() > 0);
    drop(server);
    let words = "interactive client --connect unix:server.sock";
    let output = client(&lab, words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot connect to unix:server.sock: Connection refused"), "{said}");
    // What a server that was killed has left is replaced.
    Server::listening(&lab, &["--listen", "unix:server.sock"]);
}

#[test]
fn ramps_by_several_ways_take_turns() {
    let lab = Lab::new();
    let server = Server::start(&lab);
    let (agent, entry) = between(&lab, &server.address);
    let words = format!(
        "ramp client --connections 40 --step 20 --ramps 3 --pause 10ms --label clear \
         --connect {} --also tls={entry} --ledger-of agent={}",
        server.address,
        agent.control.display()
    );
    let report = report(&lab, &words);
    assert_eq!(report["settings"]["ways"], json!(["clear", "tls"]));
    assert_eq!(report["settings"]["line_of"], "agent");
    let tables = report["tables"].as_array().unwrap();
    let beside = tables.iter().find(|table| table["rows"][0].get("route").is_some()).unwrap();
    let more = beside["rows"][1]["difference to clear"].as_f64().unwrap();
    assert!(beside["rows"][1]["route"] == "tls" && more > 0.0, "{beside}");
    let counts = tables.iter().filter(|table| table["rows"][0]["count"] == "connections");
    let opened: Vec<_> = counts.map(|table| &table["rows"][0]["agent"]).collect();
    // Two rules, three ramps of forty.
    assert_eq!(opened, [&json!(0.0), &json!(240.0)], "{report}");
}

#[test]
fn full_and_resumed_handshakes_are_distinguished() {
    let lab = Lab::new();
    let server = Server::start(&lab);
    let (agent, entry) = between(&lab, &server.address);
    let words = format!(
        "connect client --connections 40 --at-once 1 --connect {entry} --ledger-of agent={}",
        agent.control.display()
    );
    let counts = rows(&report(&lab, &words), COUNTS);
    let count = |row: &str| counts[row]["agent"].as_f64().unwrap();
    assert_eq!(count("connections"), 80.0, "each is one of both rules: {counts:?}");
    assert_eq!(count("handshakes, resumed"), 80.0, "{counts:?}");
    assert_eq!(count("handshakes, full"), 0.0, "{counts:?}");
    let around = words.replace(&entry, &server.address);
    let counts = rows(&report(&lab, &around), COUNTS);
    assert!(counts.values().all(|row| row["agent"] == 0.0), "{counts:?}");
}

#[test]
fn reports_are_text_json_and_a_page_and_stand_beside_each_other() {
    let lab = Lab::new();
    let server = Server::start(&lab);
    let words = format!(
        "interactive client --seconds 400ms --warm-up 10ms --label first --json a.json \
         --connect {}",
        server.address
    );
    let first = client(&lab, &format!("{words} --html a.html --progress"));
    assert!(first.status.success(), "{}", text_of(&first));
    let said = String::from_utf8_lossy(&first.stdout);
    for line in [
        "interactive: 10 connections, requests and replies of 100 bytes, closed loop",
        "label: first",
        "note: the client sends the next request only after a reply (closed loop)",
    ] {
        assert!(said.lines().any(|found| found.starts_with(line)), "{line}: {said}");
    }
    let check = "import sys, xml.etree.ElementTree as tree\n\
                 page = open('a.html').read().removeprefix('<!DOCTYPE html>')\n\
                 root = tree.fromstring(page)\n\
                 print(len(root.findall('.//svg')), len(root.findall('.//script')), \
                 len(root.findall('.//polyline')) > 0)";
    let checked = lab.run("python3", &["-c", check]);
    assert_eq!(String::from_utf8_lossy(&checked.stdout), "7 0 True\n", "{}", text_of(&checked));

    let again = words.replace("first", "second").replace("a.json", "b.json");
    let second = client(&lab, &format!("{again} --beside a.json"));
    let said = String::from_utf8_lossy(&second.stdout);
    assert!(said.contains("first  ratio"), "{said}");
    let json: Value = serde_json::from_slice(&std::fs::read(lab.path("b.json")).unwrap()).unwrap();
    assert_eq!(json["label"], "second");
    assert_eq!(json["beside"]["label"], "first");
    assert!(json["beside"]["ratios"]["exchanges_per_s"].as_f64().unwrap() > 0.0, "{json}");
}

#[test]
fn progress_is_printed_every_second_on_request() {
    let lab = Lab::new();
    let server = Server::start(&lab);
    let words = format!("interactive client --seconds 1500ms --connect {}", server.address);
    let quiet = client(&lab, &words);
    assert!(quiet.stderr.is_empty(), "{}", text_of(&quiet));
    let told = client(&lab, &format!("{words} --progress"));
    let lines = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(lines.starts_with("   1 s ") && lines.contains("exchanges"), "{lines}");
}

/// A client that this test steers.
struct Steered {
    child: Ended,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Steered {
    fn start(lab: &Lab, words: &str) -> Self {
        let mut command = lab.command(TACIT);
        command.arg("workload").args(words.split(' ')).arg("--steered");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child: Ended(child), input, output }
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    fn go(&mut self) -> Value {
        writeln!(self.input.as_mut().unwrap(), "go").unwrap();
        self.next()
    }

    fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.0.wait().unwrap().success());
    }
}

#[test]
fn a_steered_client_waits_before_it_measures_and_before_it_closes() {
    let lab = Lab::new();
    let server = Server::start(&lab);
    let (agent, entry) = between(&lab, &server.address);
    let open = || agent.show("connections").as_array().unwrap().len();
    let exchange = "request-reply client --connections 3 --seconds 100ms --warm-up 10ms";
    for (mode, key, held) in [
        (exchange, "exchanges", 3),
        ("stream client out --bytes 100000 --connections 2", "mb", 2),
        ("connect client --connections 5 --bytes 100 --warm-up 0", "connections", 0),
    ] {
        let mut client = Steered::start(&lab, &format!("{mode} --connect {entry}"));
        let ready = client.next();
        assert_eq!(ready["ready"], true);
        assert_eq!(ready["pid"], client.child.0.id());
        let report = client.go();
        assert!(report["figures"][key].as_f64().unwrap() > 0.0, "{mode}: {report}");
        assert!(report["figures"]["seconds"].as_f64().unwrap() > 0.0, "{mode}: {report}");
        // One connection is one of both rules.
        wait_for("those that were closed", || open() == 2 * held);
        client.end();
        wait_for("the end of the others", || open() == 0);
    }
}

#[test]
fn a_steered_ramp_waits_after_each_step() {
    let lab = Lab::new();
    let server = Server::start(&lab);
    let words = "ramp client --connections 50 --step 20 --ramps 1 --pause 1ms --connect";
    let mut client = Steered::start(&lab, &format!("{words} {}", server.address));
    assert_eq!(client.next()["ready"], true);
    for held in [20, 40, 50] {
        assert_eq!(client.go()["held"], held);
    }
    assert_eq!(client.go()["mode"], "ramp");
    client.end();
}

#[test]
fn a_far_end_that_starts_later_is_waited_for() {
    let lab = Lab::new();
    let address = format!("127.0.0.1:{}", free_port());
    let words = format!("workload connect client --connections 2 --wait 60s --connect {address}");
    let mut command = lab.command(TACIT);
    command.args(words.split(' ')).stdout(Stdio::null());
    let mut client = Ended(command.spawn().unwrap());
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(client.0.try_wait().unwrap().is_none(), "it waits");
    let _server = Server::listening(&lab, &["--listen", &address]);
    assert!(client.0.wait().unwrap().success());
}

#[test]
fn failed_measurements_are_reported_with_their_status() {
    let lab = Lab::new();
    let server = Server::start(&lab);
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let stranger = deaf.local_addr().unwrap();
    std::thread::spawn(move || deaf.incoming().for_each(drop));
    let to = &server.address;
    for (words, status, told) in [
        (format!("interactive client --connect {to} --connections 0"), 64, "from 1 to 1000"),
        (format!("interactive client --connect {to} --bytes 1GiB"), 64, "16777216"),
        (format!("interactive client --connect {to} --rate 0"), 64, "rate per second"),
        (format!("interactive client --connect {to} --seconds 2d"), 64, "at most one day"),
        (format!("interactive client --connect {to} --cpu-of x"), 64, "process id"),
        (
            format!("interactive client --connect {to} --rate 1e6 --seconds 1h"),
            64,
            "--rate multiplied by --seconds",
        ),
        (
            format!("interactive client --connect {to} --bytes 16MiB --connections 100"),
            64,
            "fewer connections",
        ),
        (format!("stream client --connect {to}"), 64, "DIRECTION"),
        (format!("ramp client --connect {to} --connections 10001"), 64, "10000"),
        (format!("ramp client --connect {to} --connections 10 --step 20"), 64, "--step 20"),
        (format!("ramp client --connect {to} --also {to}"), 64, "preferred=127.0.0.1:7102"),
        (
            format!("start-stop client --connect {to} --inbound {to} --connections 9000"),
            64,
            "for all addresses is 18000",
        ),
        (format!("connect client --connect {to} --steered --json -"), 64, "cannot be used with"),
        ("interactive client --connect 127.0.0.1:1".to_owned(), 1, "workload MODE server"),
        ("interactive client --connect nonsense".to_owned(), 1, "cannot resolve nonsense"),
        (
            format!("connect client --connect {stranger} --connections 3"),
            1,
            "opening a connection failed",
        ),
        (format!("interactive client --connect {to} --cpu-of gone=4194303"), 1, "gone=4194303"),
        (format!("connect client --connect {to} --ledger-of agent.sock"), 64, "near=agent.sock"),
        (format!("connect client --connect {to} --ledger-of x=gone.sock"), 1, "no agent answers"),
        (format!("connect client --connect {to} --ledger-of x=4194303"), 1, "tacit run"),
        (format!("connect client --connect {to} --connections 3 --json /nowhere/x"), 1, "/nowhere"),
        (format!("connect client --connect {to} --connections 3 --beside ca.pem"), 1, "ca.pem"),
        (format!("interactive server --listen {to}"), 1, "cannot listen"),
    ] {
        let output = client(&lab, &words);
        assert_eq!(output.status.code(), Some(status), "{words}: {}", text_of(&output));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(told), "{words}: {said}");
    }
}
