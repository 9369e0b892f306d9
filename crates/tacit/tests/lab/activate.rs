//! Tests rules with `activate`, which start programs for connections. The tests check when a
//! program starts, what the agent passes to the program, and which limits apply. They also check
//! what happens when a program, the agent or the starter ends. The starter is the process that
//! starts the programs.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{
    Agent, Lab, PATIENCE, connect, free_port, signal_process, text_of, wait_for, wait_for_or,
};
use crate::peers::ping;
use crate::programs::Peer;
use crate::restart::wait_for_successor;

/// Waiting connections of the test with many; the variable `WAITING_CONNECTIONS` sets another
/// number.
const WAITING: usize = 1000;

const CAT: &str = "command = \"/bin/cat\"";
const TLS: &str = "tls = { role = \"server\", identity = \"localhost\", client-cert = \"none\" }";

/// A program that answers each line with its process and what it got.
const REPORT: &str = r#"
import os, socket, sys
fds = os.environ.get("LISTEN_FDS")
if fds:
    assert os.environ["LISTEN_PID"] == str(os.getpid()), os.environ
    stream = socket.socket(fileno=3).makefile("rwb")
else:
    stream = socket.socket(fileno=os.dup(0)).makefile("rwb")
for line in stream:
    names = ",".join(sorted(os.environ))
    remote = os.environ.get("REMOTE_ADDR")
    stream.write(f"{os.getpid()} {os.getuid()} {fds} {remote} {names}\n".encode())
    stream.flush()
"#;

/// A program for all connections: it answers each line with its process.
const SERVER: &str = r#"
import os, socket, threading
assert os.environ["LISTEN_PID"] == str(os.getpid()) and os.environ["LISTEN_FDS"] == "1"
def serve(stream):
    for line in stream.makefile("rb"):
        if line == b"die\n":
            os._exit(3)
        stream.sendall(b"%d\n" % os.getpid())
    stream.close()
listener = socket.socket(fileno=3)
while True:
    stream, _ = listener.accept()
    threading.Thread(target=serve, args=(stream,)).start()
"#;

/// A policy with one rule at a port, and its activation.
fn policy(port: u16, activation: &str, action: &str) -> String {
    format!(
        "[activate.program]\n{activation}\n[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{port}\"\n\
         activate = \"program\"\n{action}\n"
    )
}

/// A command that runs a program of several lines, which a policy cannot contain.
fn python(text: &str) -> String {
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("command = [\"/usr/bin/python3\", \"-c\", \"exec(bytes.fromhex('{hex}'))\"]")
}

/// The children of a process, with the first word of the command line of each.
fn children(pid: u32) -> Vec<(u32, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists = tasks.map(|task| task.unwrap().path().join("children"));
    let lists: Vec<_> = lists.map(|list| std::fs::read_to_string(list).unwrap()).collect();
    let pids = lists.iter().flat_map(|list| list.split_whitespace());
    let named = |pid: &str| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        (pid.parse().unwrap(), line.replace('\0', " ").trim().to_owned())
    };
    pids.map(named).collect()
}

/// The process that starts the programs of an agent.
fn starter(agent: &Agent) -> u32 {
    let all = children(*agent.serving_pids().last().unwrap());
    all.iter().find(|(_, line)| line == "tacit starter").unwrap_or_else(|| panic!("{all:?}")).0
}

/// The programs that an agent has started and that run.
fn programs(agent: &Agent) -> BTreeSet<u32> {
    let running = |(_, line): &(u32, String)| !line.is_empty();
    children(starter(agent)).into_iter().filter(running).map(|(pid, _)| pid).collect()
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn states(agent: &Agent) -> Vec<String> {
    let connections = agent.show("connections");
    let state = |one: &Value| one["state"].as_str().unwrap().to_owned();
    connections.as_array().unwrap().iter().map(state).collect()
}

fn wait_for_states(agent: &Agent, wanted: &[&str]) {
    let sorted = || {
        let mut states = states(agent);
        states.sort();
        states
    };
    wait_for_or("the states", || sorted() == wanted, || format!("{:?} {}", sorted(), agent.log()));
}

/// One line there and back.
fn ask(stream: &TcpStream) -> String {
    (&mut &*stream).write_all(b"line\n").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer.trim_end().to_owned()
}

fn s_client(lab: &Lab, port: u16) -> Peer {
    let words = format!(
        "s_client -connect 127.0.0.1:{port} -CAfile ca.pem -verify_return_error -quiet -no_ign_eof"
    );
    Peer::start(lab.command("openssl").args(words.split_whitespace()))
}

#[test]
fn the_first_message_over_tls_starts_a_program() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&policy(port, CAT, TLS));
    let mut client = s_client(&lab, port);
    wait_for_states(&agent, &["waiting"]);
    assert_eq!(agent.show("connections")[0]["tls"]["version"], "1.3");
    assert!(programs(&agent).is_empty());
    client.say("hello\n");
    client.wait_for("hello\n");
    assert_eq!((states(&agent), programs(&agent).len()), (vec!["open".to_owned()], 1));
    client.say("again\n");
    client.wait_for("again\n");
    assert_eq!(programs(&agent).len(), 1);
    assert!(client.end().succeeded);
    wait_for("the end of the program", || programs(&agent).is_empty());
}

#[test]
fn a_program_inherits_no_capability_of_the_agent() {
    let lab = Lab::new();
    let port = free_port();
    let report = "command = [\"/bin/sh\", \"-c\", \"grep Cap /proc/self/status\"]\n\
                  on = \"connection\"";
    let file =
        lab.write("caps.toml", crate::harness::policy(&policy(port, report, "permit = true")));
    let log = lab.path("caps.log");
    let control = lab.path("caps.sock");
    // A user without rights of its own, as under systemd with `AmbientCapabilities`: also in a user
    // namespace, which has only root.
    let ambient = "--securebits=+noroot --inh-caps=+net_raw --ambient-caps=+net_raw";
    let as_root = match rustix::process::geteuid().is_root() {
        true => "setpriv",
        false => "unshare -r setpriv",
    };
    let mut words = as_root.split(' ').chain(ambient.split(' '));
    let child = lab
        .command(words.next().unwrap())
        .args(words)
        .args([crate::harness::TACIT, "agent", "--no-supervisor", "--policy"])
        .arg(&file)
        .arg("--control")
        .arg(&control)
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let audit = lab.path("caps.jsonl");
    let agent = Agent { child, policy: file, control, audit, log };
    agent.wait_until_serving();
    let mut said = String::new();
    connect(("127.0.0.1", port)).read_to_string(&mut said).unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert!(said.contains(&format!("{set}:\t0000000000000000\n")), "{said}{}", agent.log());
    }
}

#[test]
fn a_client_that_ends_without_a_message_starts_nothing() {
    for action in [TLS, "permit = true"] {
        let lab = Lab::new();
        let port = free_port();
        let agent = lab.agent(&policy(port, "command = \"/bin/false\"\nstarts = 1", action));
        if action == TLS {
            let client = s_client(&lab, port);
            wait_for_states(&agent, &["waiting"]);
            assert!(client.end().succeeded);
        } else {
            let mut client = connect(("127.0.0.1", port));
            wait_for_states(&agent, &["waiting"]);
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "an end in order");
        }
        wait_for_states(&agent, &[]);
        assert!(!agent.log().contains("program-failed"), "{}", agent.log());
    }
}

#[test]
fn a_connection_starts_a_program_that_speaks_first() {
    let lab = Lab::new();
    let port = free_port();
    let greet = "command = [\"/bin/echo\", \"hello; $HOME\", \"*\"]\non = \"connection\"";
    let _agent = lab.agent(&policy(port, greet, "permit = true"));
    let mut said = String::new();
    connect(("127.0.0.1", port)).read_to_string(&mut said).unwrap();
    assert_eq!(said, "hello; $HOME *\n", "no shell reads the command");
}

#[test]
fn thousands_of_connections_wait_with_one_descriptor_each_and_no_process() {
    let count = std::env::var("WAITING_CONNECTIONS").map_or(WAITING, |text| text.parse().unwrap());
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&policy(port, CAT, TLS));
    let pid = *agent.serving_pids().last().unwrap();
    let before = descriptors(pid);
    let peer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/waiting.py");
    let arguments = [peer, &port.to_string(), "ca.pem", &count.to_string()];
    let mut client = Peer::start(lab.command("python3").args(arguments));
    // Many handshakes take longer than other steps.
    let deadline = Instant::now() + PATIENCE * 10;
    while !client.said().contains('\n') && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    client.wait_for(&format!("open {count}\n"));
    let waiting = || states(&agent).iter().filter(|state| *state == "waiting").count();
    wait_for("all to wait", || waiting() == count);
    let held = descriptors(pid) - before;
    println!("{count} connections wait: {held} descriptors, {} processes", programs(&agent).len());
    // Worker threads that were started meanwhile have some.
    assert!((count..count + 64).contains(&held), "{held} descriptors");
    assert!(programs(&agent).is_empty());
    client.say("20\n");
    client.wait_for("answered 20\n");
    assert_eq!((programs(&agent).len(), waiting()), (20, count - 20));
    client.say("20\n");
    client.wait_for("answered 20\n");
    assert_eq!(programs(&agent).len(), 20);
    assert!(client.end().succeeded);
    wait_for("the end of the programs", || programs(&agent).is_empty());
}

#[test]
fn a_program_gets_its_socket_and_nothing_of_the_agent() {
    for (socket, fds) in [("stdin", "None"), ("listen-fds", "1")] {
        let lab = Lab::new();
        let port = free_port();
        let mut activation = python(REPORT) + &format!("\nsocket = \"{socket}\"");
        let mut user = rustix::process::geteuid().as_raw();
        if user == 0 {
            activation.push_str("\nuser = \"nobody\"");
            user = 65534;
        }
        let rules = policy(port, &activation, "permit = true");
        let agent = lab.agent_with_variable(&rules, "SECRET", "1");
        let stream = connect(("127.0.0.1", port));
        let answer = ask(&stream);
        let words: Vec<_> = answer.split(' ').collect();
        let [pid, uid, given, remote, names] = words[..] else { panic!("{answer}") };
        assert_eq!((uid, given, remote), (&*user.to_string(), fds, "127.0.0.1"), "{answer}");
        assert!(programs(&agent).contains(&pid.parse().unwrap()), "{answer}");
        let names: BTreeSet<_> = names.split(',').collect();
        assert!(names.contains("PATH") && names.contains("TACIT_ACTIVATE"), "{answer}");
        assert!(!names.contains("SECRET"), "{answer}");
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count);
        assert!(open.is_ok_and(|open| open <= 6), "{answer}");
    }
}

#[test]
fn a_program_that_cannot_be_started_ends_the_connection_and_is_logged() {
    for (activation, reason) in [
        ("command = \"/no/such/program\"", "No such file or directory"),
        ("command = \"/etc/passwd\"", "Permission denied"),
    ] {
        for on in ["message", "connection"] {
            let lab = Lab::new();
            let port = free_port();
            let activation = format!("{activation}\non = \"{on}\"");
            let agent = lab.agent(&policy(port, &activation, "permit = true"));
            let mut stream = connect(("127.0.0.1", port));
            assert!(!ping(&mut stream));
            agent.wait_for_log(reason);
            assert!(agent.log().contains("[activate.program]"), "{}", agent.log());
            wait_for_states(&agent, &[]);
            let client = &mut connect(("127.0.0.1", port));
            assert!(!ping(client), "further clients are refused too");
        }
    }
}

#[test]
fn no_more_processes_run_than_max_and_other_connections_wait() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&policy(port, &format!("{CAT}\nmax = 2"), "permit = true"));
    let mut clients: Vec<_> = (0..4).map(|_| connect(("127.0.0.1", port))).collect();
    for client in &mut clients[..2] {
        assert!(ping(client));
    }
    for client in &mut clients[2..] {
        client.write_all(b"p").unwrap();
    }
    wait_for_states(&agent, &["open", "open", "waiting", "waiting"]);
    assert_eq!(programs(&agent).len(), 2);
    drop(clients.remove(0));
    let mut back = [0];
    clients[1].read_exact(&mut back).unwrap();
    assert_eq!(&back, b"p", "the third client gets the free process");
    assert_eq!(programs(&agent).len(), 2);
}

#[test]
fn a_program_is_not_started_more_often_than_starts() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&policy(port, "command = \"/bin/false\"\nstarts = 3", "permit = true"));
    for _ in 0..4 {
        assert!(!ping(&mut connect(("127.0.0.1", port))));
    }
    agent.wait_for_log("the program was started 3 times in 10 s");
    agent.wait_for_log("exit status 1");
    let log = agent.log();
    assert!(log.contains("program-failed") && log.contains("exit status 1"), "{log}");
}

#[test]
fn one_process_serves_all_connections_and_the_next_replaces_it() {
    let lab = Lab::new();
    let port = free_port();
    let activation = python(SERVER) + "\nprocess = \"all\"";
    let mut agent = lab.agent(&policy(port, &activation, "permit = true"));
    let clients: Vec<_> = (0..20).map(|_| connect(("127.0.0.1", port))).collect();
    assert!(programs(&agent).is_empty());
    let answers: BTreeSet<_> = clients.iter().map(ask).collect();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(programs(&agent).len(), 1);
    (&mut &clients[0]).write_all(b"die\n").unwrap();
    for client in &clients[1..] {
        assert_eq!((&mut &*client).read(&mut [0]).unwrap_or(0), 0, "its connections end");
    }
    agent.wait_for_log("exit status 3");
    let next = ask(&connect(("127.0.0.1", port)));
    assert!(!answers.contains(&next), "{next}");
    let program: u32 = next.parse().unwrap();
    agent.signal("TERM");
    assert!(agent.child.wait().unwrap().success());
    let gone = || !std::path::Path::new(&format!("/proc/{program}")).exists();
    wait_for("the end of the program", gone);
}

#[test]
fn a_process_for_all_connections_that_crashes_at_once_is_not_restarted_forever() {
    let lab = Lab::new();
    let port = free_port();
    let activation = "command = \"/bin/false\"\nprocess = \"all\"\nstarts = 3";
    let agent = lab.agent(&policy(port, activation, "permit = true"));
    assert!(!ping(&mut connect(("127.0.0.1", port))), "the connection ends");
    assert!(!ping(&mut connect(("127.0.0.1", port))));
    agent.wait_for_log("the program was started 3 times in 10 s");
    wait_for_states(&agent, &[]);
}

#[test]
fn without_the_starter_open_connections_continue_and_further_ones_are_refused() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&policy(port, CAT, "permit = true"));
    let mut open = connect(("127.0.0.1", port));
    assert!(ping(&mut open));
    signal_process(starter(&agent), "KILL");
    agent.wait_for_log("starter-ended");
    assert!(ping(&mut open));
    assert!(!ping(&mut connect(("127.0.0.1", port))));
    agent.wait_for_log("the process that starts programs of [activate] tables has ended");
    let before = agent.serving_pids();
    agent.ok(&["restart"]);
    wait_for_successor(&agent, &before);
    assert!(ping(&mut connect(("127.0.0.1", port))), "a restart starts another");
}

#[test]
fn programs_read_the_end_of_their_input_when_the_agent_is_killed() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent_with(&policy(port, CAT, "permit = true"), &["--no-supervisor"]);
    let mut open = connect(("127.0.0.1", port));
    assert!(ping(&mut open));
    let agent_pid = agent.child.id();
    let (starter, _) =
        children(agent_pid).into_iter().find(|(_, line)| line == "tacit starter").unwrap();
    let (program, _) = children(starter).remove(0);
    signal_process(agent_pid, "KILL");
    for pid in [program, starter] {
        let ended = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.map_or(true, |stat| stat.rsplit(')').next().unwrap().starts_with(" Z"))
        };
        wait_for("the end of the program and of the starter", ended);
    }
    assert_eq!(open.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn a_reload_cannot_add_or_change_an_activation() {
    let lab = Lab::new();
    let port = free_port();
    let before = policy(port, CAT, "permit = true");
    let agent = lab.agent(&before);
    let added = before.clone() + "[activate.more]\ncommand = \"/bin/cat\"\n";
    let changed = policy(port, "command = [\"/bin/cat\", \"-u\"]", "permit = true");
    for wrong in [added, changed] {
        agent.write_policy(&wrong);
        let refused = agent.verb(&["reload"]);
        let said = text_of(&refused);
        assert!(!refused.status.success() && said.contains("a reload cannot add or change"));
        assert!(said.contains("tacit restart"), "{said}");
    }
    agent.write_policy(&before.replace("name = \"r\"", "name = \"renamed\""));
    agent.ok(&["reload"]);
    assert!(ping(&mut connect(("127.0.0.1", port))), "other changes are installed");
}
