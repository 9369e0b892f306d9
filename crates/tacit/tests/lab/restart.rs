//! `tacit restart`: a successor takes the listening sockets; no connection is refused or cut.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::harness::{
    Agent, Lab, PATIENCE, TACIT, connect, echo, free_port, policy, signal_process, wait_for,
};
use crate::peers::{dial, exchange, ping};

fn permit(name: &str, listen: &str, connect: impl std::fmt::Display) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nlisten = {listen:?}\nconnect = \"{connect}\"\n\
         permit = true\n"
    )
}

/// Waits until a successor of `before` serves.
fn wait_for_successor(agent: &Agent, before: &[u32]) -> u32 {
    let newest = || agent.serving_pids().last().copied();
    wait_for("a successor", || newest().is_some_and(|pid| !before.contains(&pid)));
    let pid = newest().unwrap();
    let serving = || agent.log().matches(" serving ").count();
    wait_for("the successor to serve", || serving() == before.len() + 1);
    pid
}

/// Threads that connect, exchange and end in a loop, and count what fails.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    threads: Vec<std::thread::JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(address: &str, threads: usize) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let threads = (0..threads)
            .map(|_| {
                let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
                let address = address.to_owned();
                std::thread::spawn(move || hammer(&address, &stop, &done))
            })
            .collect();
        Self { stop, done, threads }
    }

    fn wait_for_more(&self, count: usize) {
        let goal = self.done.load(Ordering::Relaxed) + count;
        wait_for("more exchanges", || self.done.load(Ordering::Relaxed) >= goal);
    }

    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

fn hammer(address: &str, stop: &AtomicBool, done: &AtomicUsize) -> Vec<String> {
    let mut failures = Vec::new();
    let payload = [7; 3000];
    while !stop.load(Ordering::Relaxed) && failures.len() < 10 {
        let result = TcpStream::connect(address).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            exchange(Box::new(stream), &payload)
        });
        match result {
            Ok(back) if back == payload => {
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(back) => failures.push(format!("{} bytes came back", back.len())),
            Err(error) => failures.push(error.to_string()),
        }
    }
    failures
}

#[test]
fn no_connection_is_refused_or_cut_by_restarts_under_load() {
    let lab = Lab::new();
    let (front, tls, app) = (free_port(), free_port(), echo());
    let agent = lab.agent(&format!(
        r#"{}
        [[rule]]
        name = "in"
        listen = "127.0.0.1:{tls}"
        connect = "{app}"
        tls = {{ role = "server", identity = "localhost", client-cert = "none" }}
        [[rule]]
        name = "out"
        listen = "127.0.0.1:{front}"
        connect = "localhost:{tls}"
        tls = {{ role = "client", trust = "ca" }}
        "#,
        permit("path", &format!("unix:{}", lab.path("app.sock").display()), app)
    ));
    let mut held = connect(("127.0.0.1", front));
    assert!(ping(&mut held));
    let load = Load::start(&format!("127.0.0.1:{front}"), 3);
    let mut pids = agent.serving_pids();
    for round in 0..3 {
        load.wait_for_more(20);
        if round < 2 {
            agent.ok(&["restart"]);
        } else {
            agent.signal("USR2");
        }
        let successor = wait_for_successor(&agent, &pids);
        pids.push(successor);
        load.wait_for_more(20);
        assert!(ping(&mut held), "the open connection survives round {round}");
    }
    assert_eq!(load.end(), Vec::<String>::new());
    let megabyte: Vec<u8> = (0..250_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut back = vec![0; megabyte.len()];
    let mut writer = held.try_clone().unwrap();
    let sent = megabyte.clone();
    let sender = std::thread::spawn(move || writer.write_all(&sent).unwrap());
    held.read_exact(&mut back).unwrap();
    sender.join().unwrap();
    assert!(back == megabyte, "byte-exact across two restarts");
    assert_eq!(agent.serving_pids().len(), 2, "the first agent and the last one");
    drop(held);
    let newest = *pids.last().unwrap();
    wait_for("the first agent's end", || agent.serving_pids() == [newest]);
    assert!(ping(&mut connect(("127.0.0.1", front))));
}

#[test]
fn a_successor_that_cannot_start_changes_nothing() {
    let lab = Lab::new();
    let (port, app) = (free_port(), echo());
    let path = lab.path("app.sock");
    let unix = format!("unix:{}", path.display());
    let rules = permit("tcp", &format!("127.0.0.1:{port}"), app) + &permit("unix", &unix, app);
    let agent = lab.agent(&rules);
    let before = agent.serving_pids();
    let file = lab.write("taken", "");
    let taken = rules + &permit("taken", &format!("unix:{}", file.display()), app);
    for (text, reason) in [("nonsense = 1\n".into(), "nonsense"), (taken, "not a socket")] {
        agent.write_policy(&text);
        agent.ok(&["restart"]);
        agent.wait_for_log(reason);
        wait_for("the successor's end", || agent.serving_pids() == before);
        assert!(ping(&mut connect(("127.0.0.1", port))));
        assert!(path.exists(), "the socket file is the serving agent's");
        assert!(ping(&mut *dial(&unix)));
        assert_eq!(agent.show("rules")["rules"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn socket_files_are_left_to_the_successor_and_removed_by_the_last() {
    let lab = Lab::new();
    let path = lab.path("app.sock");
    let unix = format!("unix:{}", path.display());
    let mut agent = lab.agent(&permit("unix", &unix, echo()));
    let before = agent.serving_pids();
    agent.ok(&["restart"]);
    let successor = wait_for_successor(&agent, &before);
    wait_for("the old agent's end", || agent.serving_pids() == [successor]);
    assert!(ping(&mut *dial(&unix)));
    assert_eq!(agent.show("rules")["rules"][0]["hits"], 1);
    agent.signal("TERM");
    assert!(agent.child.wait().unwrap().success());
    assert!(!path.exists() && !agent.control.exists());
}

#[test]
fn a_socket_file_that_the_new_policy_does_not_want_goes_with_the_old_agent() {
    let lab = Lab::new();
    let (port, app) = (free_port(), echo());
    let path = lab.path("app.sock");
    let tcp = permit("tcp", &format!("127.0.0.1:{port}"), app);
    let unix = permit("unix", &format!("unix:{}", path.display()), app);
    let agent = lab.agent(&format!("{tcp}{unix}"));
    let before = agent.serving_pids();
    agent.write_policy(&tcp);
    agent.ok(&["restart"]);
    wait_for_successor(&agent, &before);
    wait_for("the file's end", || !path.exists());
    assert!(ping(&mut connect(("127.0.0.1", port))));
}

#[test]
fn an_agent_that_was_replaced_still_answers_at_a_socket_of_its_own() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&permit("tcp", &format!("127.0.0.1:{port}"), echo()));
    let mut held = connect(("127.0.0.1", port));
    assert!(ping(&mut held));
    let before = agent.serving_pids();
    agent.ok(&["restart"]);
    wait_for_successor(&agent, &before);
    let own = format!("{}.{}", agent.control.display(), before[0]);
    wait_for("the old agent's own socket", || std::fs::exists(&own).unwrap());
    let shown = lab.tacit(&["show", "connections", "--json", "--control", &own]);
    assert!(shown.contains("\"tcp\""), "{shown}");
    assert_eq!(agent.show("connections").as_array().unwrap().len(), 0);
    lab.tacit(&["close", "1", "--control", &own]);
    wait_for("the old agent's end", || agent.serving_pids().len() == 1);
    assert!(!std::fs::exists(&own).unwrap());
}

/// Starts the agent as systemd does: with the listening socket as descriptor 3.
fn activated(lab: &Lab, listen: &str, rules: &str) -> Agent {
    const WRAPPER: &str = "
import os, socket, sys
kind, name = sys.argv[1].split(':', 1)
s = socket.socket(socket.AF_UNIX if kind == 'unix' else socket.AF_INET)
s.bind(name if kind == 'unix' else (kind, int(name)))
s.listen(64)
if s.fileno() != 3: os.dup2(s.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
";
    let (file, log) = (lab.write("activated.toml", policy(rules)), lab.path("activated.log"));
    let (control, audit) = (lab.path("activated.sock"), lab.path("activated.jsonl"));
    let child = lab
        .command("python3")
        .args(["-c", WRAPPER, listen, TACIT, "agent", "--policy"])
        .arg(&file)
        .arg("--control")
        .arg(&control)
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let agent = Agent { child, policy: file, control, audit, log };
    agent.wait_until_serving();
    agent
}

#[test]
fn sockets_of_the_service_manager_are_used_and_survive_a_restart() {
    let lab = Lab::new();
    let (port, app) = (free_port(), echo());
    let tcp = format!("127.0.0.1:{port}");
    let agent = activated(&lab, &tcp, &permit("tcp", &tcp, app));
    assert!(ping(&mut connect(tcp.as_str())));
    let before = agent.serving_pids();
    agent.ok(&["restart"]);
    wait_for_successor(&agent, &before);
    assert!(ping(&mut connect(tcp.as_str())));
}

#[test]
fn a_socket_file_of_the_service_manager_is_never_removed() {
    let lab = Lab::new();
    let path = lab.path("activated-app.sock");
    let unix = format!("unix:{}", path.display());
    let mut agent = activated(&lab, &unix, &permit("unix", &unix, echo()));
    assert!(ping(&mut *dial(&unix)));
    let before = agent.serving_pids();
    agent.ok(&["restart"]);
    let successor = wait_for_successor(&agent, &before);
    wait_for("the old agent's end", || agent.serving_pids() == [successor]);
    assert!(ping(&mut *dial(&unix)));
    agent.signal("TERM");
    assert!(agent.child.wait().unwrap().success());
    assert!(path.exists(), "whoever made it removes it");
}

#[test]
fn an_agent_whose_parent_is_gone_keeps_serving() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&permit("tcp", &format!("127.0.0.1:{port}"), echo()));
    let pid = agent.serving_pids()[0];
    agent.signal("KILL");
    wait_for("the parent's end", || agent.is_dead());
    assert!(ping(&mut connect(("127.0.0.1", port))));
    let refused = agent.verb(&["restart"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("parent process is gone"));
    signal_process(pid, "TERM");
    wait_for("the agent's end", || !agent.control.exists());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}
