//! Tests engines. An engine sets up connections on a CPU of its own, and hands these connections
//! over to workers. If all engines are saturated, connections spill to workers or wait.
//!
//! The tests `transparency`, `relay` and `kill` check that engines do not change the bytes or the
//! urgent data of a connection. These tests also check that an engine does not change how a
//! connection ends (end of stream or reset).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::{Value, json};

use crate::harness::{Agent, Lab, TACIT, connect, echo, free_port, text_of, wait_for, wait_for_or};
use crate::lane::{Lane, engine_table};
use crate::peers::{TlsClient, is_reset, ping};
use crate::programs::pattern;

/// An agent with its ports.
struct Forwarding {
    agent: Agent,
    clear: u16,
    tls: u16,
}

/// An agent with engines whose rules connect to each other with TLS.
fn agent(lab: &Lab, engine: &str, relay: &str) -> Forwarding {
    let clear = free_port();
    let tls = free_port();
    let agent = lab.agent(&format!(
        r#"
        {engine}
        [[rule]]
        name = "in"
        listen = "127.0.0.1:{tls}"
        connect = "{}"
        tls = {{ role = "server", identity = "localhost", client-cert = "none", relay = "{relay}" }}
        [[rule]]
        name = "out"
        listen = "127.0.0.1:{clear}"
        connect = "localhost:{tls}"
        tls = {{ role = "client", trust = "ca", relay = "{relay}" }}
        "#,
        echo()
    ));
    Forwarding { agent, clear, tls }
}

/// What `show engines` says of a thread.
fn thread(agent: &Agent, name: &str) -> Value {
    let shown = agent.show("engines");
    let found = shown["threads"].as_array().unwrap().iter().find(|one| one["thread"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {shown}")).clone()
}

fn counts<const N: usize>(thread: &Value, keys: [&str; N]) -> [u64; N] {
    keys.map(|key| thread[key].as_u64().unwrap_or_else(|| panic!("{key}: {thread}")))
}

/// The CPUs that each thread of the agent may run on, by the thread's name.
fn affinities(agent: &Agent) -> BTreeMap<String, String> {
    let pid = *agent.serving_pids().last().unwrap();
    let mut all = BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let path = task.unwrap().path();
        let Ok(status) = std::fs::read_to_string(path.join("status")) else { continue };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().to_owned()
        };
        all.insert(field("Name:"), field("Cpus_allowed_list:"));
    }
    all
}

#[test]
fn engines_set_up_all_connections_and_hand_each_over_once() {
    let Some(engine) = engine_table("spill = false") else { return };
    let lab = Lab::new();
    let Forwarding { agent, clear, .. } = agent(&lab, &engine, "worker");
    let mut open: Vec<_> = (0..20).map(|_| connect(("127.0.0.1", clear))).collect();
    assert!(open.iter_mut().all(ping));
    let engine = thread(&agent, "engine-0");
    let worker = thread(&agent, "data-0");
    let keys = ["handshakes", "handed", "spilled", "relays", "in-flight"];
    assert_eq!(counts(&engine, keys), [40, 40, 0, 0, 0], "{engine}");
    let keys = ["handshakes", "handed", "connections", "relays"];
    assert_eq!(counts(&worker, keys), [0, 40, 40, 40], "{worker}");
    assert!(engine["cpu-us"].as_f64().unwrap() > 40.0 * 50.0, "a handshake's CPU time: {engine}");

    let cpu = engine["cpu"].to_string();
    let affinities = affinities(&agent);
    assert_eq!(affinities["engine-0"], cpu);
    for (name, cpus) in affinities.iter().filter(|(name, _)| *name != "engine-0") {
        let mut numbers = cpus.split([',', '-']);
        assert!(numbers.all(|number| number != cpu), "{name} may run on {cpus}");
    }
    assert!(affinities.contains_key("data-0") && affinities.contains_key("engine-0"));
    let all = tacit_sys::schedule::allowed_cpus().unwrap().len();
    assert_eq!(agent.show("costs")["cpus"], all, "the CPU of the engine is counted");

    drop(open);
    wait_for("the connections' end", || {
        counts(&thread(&agent, "data-0"), ["connections", "relays"]) == [0, 0]
    });
    let table = agent.ok(&["show", "engines"]);
    assert!(
        table.contains("if all engines are saturated, connections wait; workers: 1, at most"),
        "{table}"
    );
    assert!(table.lines().any(|line| line.starts_with("engine-0  ")), "{table}");
}

#[test]
fn a_rule_can_keep_relays_on_the_engine() {
    let Some(engine) = engine_table("spill = false") else { return };
    let lab = Lab::new();
    let Forwarding { agent, clear, .. } = agent(&lab, &engine, "engine");
    let mut stream = connect(("127.0.0.1", clear));
    assert!(ping(&mut stream));
    let engine = thread(&agent, "engine-0");
    let keys = ["handshakes", "handed", "relays", "in-flight", "connections"];
    assert_eq!(counts(&engine, keys), [2, 0, 2, 0, 2], "{engine}");
    let worker = thread(&agent, "data-0");
    assert_eq!(counts(&worker, ["connections", "handed"]), [0, 0], "{worker}");
    let bytes = pattern(4 << 20);
    assert!(crate::harness::exchange(stream, &bytes) == bytes);
}

#[test]
fn a_saturated_engine_spills_to_workers_and_counts_it() {
    let Some(engine) = engine_table("queue = 1") else { return };
    let lab = Lab::new();
    let Forwarding { agent, tls, .. } = agent(&lab, &engine, "worker");
    // A silent client keeps the engine's only slot until its time is over.
    let mut silent = connect(("127.0.0.1", tls));
    wait_for("the silent client", || thread(&agent, "engine-0")["state"] == "saturated");
    let client = TlsClient::open(&lab, tls, &json!({ "ca": "ca.pem" }));
    assert_eq!(client.result["reply"], "ping", "{}", client.result);
    let engine = thread(&agent, "engine-0");
    let worker = thread(&agent, "data-0");
    assert_eq!(counts(&engine, ["spilled", "handshakes", "in-flight"]), [1, 0, 1], "{engine}");
    assert_eq!(counts(&worker, ["handshakes", "connections"]), [1, 1], "{worker}");
    let _ = silent.shutdown(Shutdown::Both);
    let _ = silent.read(&mut [0; 16]);
    wait_for("the engine's slot", || thread(&agent, "engine-0")["state"] == "idle");
    drop(TlsClient::open(&lab, tls, &json!({ "ca": "ca.pem" })));
    assert_eq!(counts(&thread(&agent, "engine-0"), ["spilled", "handshakes"]), [1, 1]);
}

#[test]
fn without_spill_connections_wait_in_the_kernel() {
    let Some(engine) = engine_table("queue = 1\nspill = false") else { return };
    let lab = Lab::new();
    let Forwarding { agent, tls, .. } = agent(&lab, &engine, "worker");
    let silent = connect(("127.0.0.1", tls));
    wait_for("the silent client", || thread(&agent, "engine-0")["state"] == "saturated");
    std::thread::scope(|scope| {
        let client = scope.spawn(|| TlsClient::open(&lab, tls, &json!({ "ca": "ca.pem" })));
        wait_for("the client in the queue of the kernel", || queued(tls) == 1);
        let shown = agent.show("connections");
        assert_eq!(shown.as_array().unwrap().len(), 1, "no thread has accepted it: {shown}");
        drop(silent);
        assert_eq!(client.join().unwrap().result["reply"], "ping");
    });
    let worker = thread(&agent, "data-0");
    assert_eq!(counts(&worker, ["handshakes", "handed"]), [0, 1], "{worker}");
    assert_eq!(thread(&agent, "engine-0")["spilled"], 0);
}

/// Connections that wait to be accepted at a port of 127.0.0.1.
fn queued(port: u16) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let listening = format!("0100007F:{port:04X} 00000000:0000 0A ");
    let line = table.lines().find_map(|line| line.split_once(&listening)).unwrap().1;
    u64::from_str_radix(line.split([':', ' ']).nth(1).unwrap(), 16).unwrap()
}

/// Both ends say all they have at once, and end.
fn talk_at_once(lane: &Lane, connections: usize, bytes: &[u8]) {
    std::thread::scope(|scope| {
        for _ in 0..connections {
            let mut client = lane.dial();
            scope.spawn(move || {
                client.write_all(bytes).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                let mut back = Vec::new();
                client.read_to_end(&mut back).unwrap();
                assert!(back == bytes, "{} of {} bytes", back.len(), bytes.len());
            });
        }
        for _ in 0..connections {
            let mut server = lane.accept();
            scope.spawn(move || {
                let mut writer = server.try_clone().unwrap();
                let sent = bytes.to_vec();
                let writing = std::thread::spawn(move || {
                    writer.write_all(&sent).unwrap();
                    writer.shutdown(Shutdown::Write).unwrap();
                });
                let mut got = Vec::new();
                server.read_to_end(&mut got).unwrap();
                writing.join().unwrap();
                assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
            });
        }
    });
}

#[test]
fn data_and_closes_before_the_hand_over_arrive_completely() {
    let Some(engine) = engine_table("") else { return };
    for lane in [Lane::engines().unwrap(), Lane::permit_with(&engine)] {
        // Short ones are over before they are handed over; long ones are in the middle of it.
        talk_at_once(&lane, 30, b"hello");
        talk_at_once(&lane, 4, &pattern(3_000_000));
        for agent in &lane.agents {
            wait_for("all connections' end", || agent.show("connections") == json!([]));
            let engine = thread(agent, "engine-0");
            assert_eq!(counts(&engine, ["handed", "spilled"]), [34, 0], "{}: {engine}", lane.name);
        }
    }
}

#[test]
fn an_operators_close_works_on_every_thread() {
    let Some(engine) = engine_table("") else { return };
    let lab = Lab::new();
    let Forwarding { agent, clear, .. } = agent(&lab, &engine, "worker");
    for round in 0..25 {
        let mut stream = connect(("127.0.0.1", clear));
        let near = stream.local_addr().unwrap().to_string();
        let id = || {
            let shown = agent.show("connections");
            let found = shown.as_array().unwrap().iter().find(|one| one["remote"] == near);
            found.map(|one| one["id"].to_string())
        };
        let mut found = None;
        wait_for("the connection", || {
            found = id();
            found.is_some()
        });
        // From before its handshake to well after the hand-over.
        std::thread::sleep(std::time::Duration::from_micros(300 * round));
        agent.ok(&["close", &found.unwrap()]);
        assert!(is_reset(&mut stream), "round {round}");
    }
    let none = || agent.show("connections") == json!([]);
    wait_for_or("all connections' end", none, || agent.log());
    let threads = agent.show("engines");
    for thread in threads["threads"].as_array().unwrap() {
        assert_eq!(counts(thread, ["connections", "relays"]), [0, 0], "{thread}");
    }
    let closed = || agent.log().matches("an operator closed the connection").count();
    wait_for_or("a line for each", || closed() >= 25, || agent.log());
    assert_eq!(closed(), 25);
}

#[test]
fn handed_over_connections_are_served_after_restart_and_drain() {
    let Some(engine) = engine_table("") else { return };
    let lab = Lab::new();
    let Forwarding { mut agent, clear, .. } = agent(&lab, &engine, "worker");
    let mut first = connect(("127.0.0.1", clear));
    assert!(ping(&mut first));
    let before = agent.serving_pids();
    agent.ok(&["restart"]);
    wait_for("a successor", || agent.log().matches(" serving ").count() == 2);
    // The agent in place needs its second connection to come through itself as well.
    let mut second = connect(("127.0.0.1", clear));
    assert!(ping(&mut second) && ping(&mut first));
    assert_eq!(counts(&thread(&agent, "engine-0"), ["handed"]), [2]);
    drop(first);
    wait_for("the first agent's end", || !agent.serving_pids().contains(&before[0]));
    agent.ok(&["drain"]);
    wait_for("refusal", || TcpStream::connect(("127.0.0.1", clear)).is_err());
    assert!(ping(&mut second));
    drop(second);
    assert!(agent.child.wait().unwrap().success());
}

/// The highest nice value there is.
const NICE_MAX: i32 = 19;

#[test]
fn engines_have_a_class_of_their_own() {
    // Other threads of the agent have the nice value that this test has. An engine gets another
    // one: a higher one where there is any, which every user may choose.
    let inherited = rustix::process::getpriority_process(None).unwrap();
    let wanted = if inherited < NICE_MAX { inherited + 1 } else { inherited - 1 };
    let table = engine_table(&format!("class = \"batch\"\nnice = {wanted}"));
    let Some(table) = table else { return };
    let lab = Lab::new();
    let Forwarding { agent, .. } = agent(&lab, &table, "worker");
    let engine = thread(&agent, "engine-0");
    let worker = thread(&agent, "data-0");
    assert_eq!(engine["class"], "batch");
    assert_eq!(engine["nice"], wanted);
    assert_eq!(worker["class"], "normal");
    assert_eq!(worker["nice"], inherited);
    let pid = *agent.serving_pids().last().unwrap();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut batch = 0;
    for task in tasks {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        // Fields 19 and 41 of proc_pid_stat(5), the first after the name being the third.
        let nice = fields[16];
        let policy = fields[38];
        if policy == "3" {
            batch += 1;
            assert_eq!(nice, wanted.to_string(), "{stat}");
            assert!(stat.contains("(engine-0)"), "{stat}");
        }
    }
    assert_eq!(batch, 1);
}

#[test]
fn an_agent_in_the_idle_class_warns_and_engines_have_their_own_class() {
    let Some(engine) = engine_table("") else { return };
    let lab = Lab::new();
    let rule = "[[rule]]\nname = \"r\"\nlisten = \"unix:@tacit-lab-idle\"\ndeny = true\n";
    lab.write("idle.toml", format!("version = 1\n{rule}{engine}"));
    let mut agent = lab
        .command("chrt")
        .args(["--idle", "0", TACIT, "agent", "--policy", "idle.toml", "--control", "idle.sock"])
        .stderr(std::fs::File::create(lab.path("idle.log")).unwrap())
        .spawn()
        .unwrap();
    let log = || std::fs::read_to_string(lab.path("idle.log")).unwrap();
    let ended = |agent: &mut std::process::Child| agent.try_wait().unwrap().is_some();
    wait_for_or("an agent", || log().contains(" serving ") || ended(&mut agent), log);
    if rustix::process::geteuid().is_root() {
        assert!(log().contains(" warn lowest-class class=idle "), "{}", log());
        let printed = lab.tacit(&["show", "engines", "--json", "--control", "idle.sock"]);
        let shown: Value = serde_json::from_str(&printed).unwrap();
        let classes = shown["threads"].as_array().unwrap().iter().map(|thread| &thread["class"]);
        assert_eq!(classes.collect::<Vec<_>>(), ["normal", "idle"], "{shown}");
    } else {
        assert!(log().contains("cannot set the scheduling class of [engine]"), "{}", log());
    }
    crate::harness::signal_process(agent.id(), "TERM");
    agent.wait().unwrap();
}

#[test]
fn cpus_that_cannot_be_set_aside_are_errors() {
    let lab = Lab::new();
    let cpus = tacit_sys::schedule::allowed_cpus().unwrap();
    let all: Vec<_> = cpus.iter().map(usize::to_string).collect();
    let rule = "[[rule]]\nname = \"r\"\nlisten = \"unix:@tacit-lab-r\"\ndeny = true\n";
    for (engine, wanted) in [
        ("1023".to_owned(), "`cpus` names CPU 1023, which does not exist"),
        (all.join(","), "reserves all CPUs that this process may use"),
    ] {
        let text = format!("version = 1\n[engine]\ncpus = \"{engine}\"\n{rule}");
        lab.write("bad.toml", text);
        let output = lab.run(TACIT, &["check", "bad.toml"]);
        assert_eq!(output.status.code(), Some(78), "{}", text_of(&output));
        let said = text_of(&output);
        assert!(said.contains("bad.toml:2:1: ") && said.contains(wanted), "{said}");
        assert!(said.contains("fix: "), "{said}");
    }
}

#[test]
fn a_reload_reports_that_engines_need_a_restart() {
    let Some(engine) = engine_table("") else { return };
    let lab = Lab::new();
    let rule = format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{}\"\nconnect = \"{}\"\npermit = true\n",
        free_port(),
        echo()
    );
    let agent = lab.agent(&format!("{rule}{engine}"));
    assert!(!agent.ok(&["reload"]).contains("restart"));
    // Where it stands does not matter.
    agent.write_policy(&format!("{engine}{rule}"));
    assert!(!agent.ok(&["reload"]).contains("restart"));
    agent.write_policy(&format!("{engine}queue = 5\n{rule}"));
    let said = agent.ok(&["reload"]);
    assert!(
        said.contains(
            "[engine] changed, but a reload cannot apply this change: run `tacit restart`"
        ),
        "{said}"
    );
    assert_eq!(thread(&agent, "engine-0")["queue"], 1024);
    agent.ok(&["restart"]);
    wait_for("a successor", || agent.log().matches(" serving ").count() == 2);
    wait_for("its engine", || thread(&agent, "engine-0")["queue"] == 5);
}

#[test]
fn workers_are_added_up_to_the_limit_while_all_are_busy() {
    let lab = Lab::new();
    let port = free_port();
    let app = echo();
    let agent = lab.agent(&format!(
        "[agent]\nworkers = 2\n[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{port}\"\n\
         connect = \"{app}\"\npermit = true\n"
    ));
    let workers = || agent.show("engines")["workers"].as_u64().unwrap();
    assert_eq!(workers(), 1);
    let mut idle: Vec<_> = (0..3).map(|_| connect(("127.0.0.1", port))).collect();
    assert!(idle.iter_mut().all(ping));
    assert_eq!(workers(), 1, "idle connections are no load");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut stream = connect(("127.0.0.1", port));
                let mut reader = stream.try_clone().unwrap();
                scope.spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
                let chunk = [1; 64 * 1024];
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    stream.write_all(&chunk).unwrap();
                }
                let _ = stream.shutdown(Shutdown::Both);
            });
        }
        let end = std::time::Instant::now() + 3 * crate::harness::PATIENCE;
        while workers() == 1 && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(workers(), 2, "{}", agent.show("engines"));
    assert!(idle.iter_mut().all(ping), "connections stay where they are");
    let mut later: Vec<_> = (0..20).map(|_| connect(("127.0.0.1", port))).collect();
    assert!(later.iter_mut().all(ping));
}
