//! Tests `tacit restart`: a new agent takes over the listening sockets of the old agent, and no
//! connection is refused or reset.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::harness::{
    Agent, FileLease, Lab, PATIENCE, TACIT, connect, echo, free_port, policy, signal_process,
    text_of, wait_for,
};
use crate::peers::{dial, exchange, ping};

fn permit(name: &str, listen: &str, connect: impl std::fmt::Display) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\nlisten = {listen:?}\nconnect = \"{connect}\"\n\
         permit = true\n"
    )
}

/// Waits until a successor of `before` serves.
pub fn wait_for_successor(agent: &Agent, before: &[u32]) -> u32 {
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
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicUsize::new(0));
        let threads = (0..threads)
            .map(|_| {
                let stop = Arc::clone(&stop);
                let done = Arc::clone(&done);
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
fn restarts_under_load_refuse_and_reset_no_connection() {
    let lab = Lab::new();
    let front = free_port();
    let tls = free_port();
    let app = echo();
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
    let port = free_port();
    let app = echo();
    let path = lab.path("app.sock");
    let unix = format!("unix:{}", path.display());
    let rules = permit("tcp", &format!("127.0.0.1:{port}"), app) + &permit("unix", &unix, app);
    let agent = lab.agent(&rules);
    let before = agent.serving_pids();
    let file = lab.write("taken", "");
    let taken = rules + &permit("taken", &format!("unix:{}", file.display()), app);
    for (text, reason) in [("nonsense = 1\n".into(), "nonsense"), (taken, "not a socket")] {
        agent.write_policy(&text);
        let failed = agent.verb(&["restart"]);
        let shown = text_of(&failed);
        assert_eq!(failed.status.code(), Some(1), "{shown}");
        assert!(shown.contains(reason) && shown.contains("cannot start a new agent"), "{shown}");
        agent.wait_for_log(" restart-failed ");
        wait_for("the successor's end", || agent.serving_pids() == before);
        assert!(ping(&mut connect(("127.0.0.1", port))));
        assert!(path.exists(), "the socket file is the serving agent's");
        assert!(ping(&mut *dial(&unix)));
        assert_eq!(agent.show("rules")["rules"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn a_restart_whose_successor_is_killed_fails() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&permit("tcp", &format!("127.0.0.1:{port}"), echo()));
    let before = agent.serving_pids();
    // The successor cannot read its policy.
    let held = FileLease::new(&agent.policy);
    let mut restart = begin_restart(&agent);
    let refused = text_of(&agent.verb(&["reload"]));
    assert!(refused.contains("a new agent is starting"), "{refused}");
    let starting = || agent.serving_pids().into_iter().find(|pid| !before.contains(pid));
    wait_for("the successor", || starting().is_some());
    signal_process(starting().unwrap(), "KILL");
    assert_eq!(restart.wait().unwrap().code(), Some(1));
    agent.wait_for_log("ended before it served");
    drop(held);
    agent.ok(&["reload"]);
    agent.ok(&["restart"]);
    assert!(ping(&mut connect(("127.0.0.1", port))));
}

/// Requests a restart, and waits until the successor is being started.
fn begin_restart(agent: &Agent) -> Child {
    let before = agent.serving_pids();
    let mut command = Command::new(TACIT);
    command.args(["restart", "--control"]).arg(&agent.control);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("the successor's start", || agent.serving_pids() != before);
    child
}

#[test]
fn the_last_agent_removes_socket_files() {
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
fn a_socket_file_outside_the_new_policy_is_removed() {
    let lab = Lab::new();
    let port = free_port();
    let app = echo();
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
fn a_signal_to_reload_kills_no_agent_that_is_starting() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&permit("tcp", &format!("127.0.0.1:{port}"), echo()));
    for round in 1..=4 {
        agent.ok(&["restart"]);
        std::thread::sleep(Duration::from_millis(4 * round));
        agent.signal("HUP");
        let serving = || agent.log().matches(" serving ").count() as u64;
        wait_for("the successor", || serving() == round + 1);
        assert!(ping(&mut connect(("127.0.0.1", port))));
    }
    assert!(!agent.log().contains("was killed"), "{}", agent.log());
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
fn activated(lab: &Lab, listen: &str, rules: &str, arguments: &[&str]) -> Agent {
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
    let file = lab.write("activated.toml", policy(rules));
    let log = lab.path("activated.log");
    let control = lab.path("activated.sock");
    let audit = lab.path("activated.jsonl");
    let child = lab
        .command("python3")
        .args(["-c", WRAPPER, listen, TACIT, "agent", "--policy"])
        .arg(&file)
        .arg("--control")
        .arg(&control)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let agent = Agent { child, policy: file, control, audit, log };
    agent.wait_until_serving();
    agent
}

#[test]
fn sockets_of_the_service_manager_are_used_without_a_supervisor() {
    let lab = Lab::new();
    let tcp = format!("127.0.0.1:{}", free_port());
    let rules = permit("tcp", &tcp, echo());
    let mut agent = activated(&lab, &tcp, &rules, &["--no-supervisor"]);
    // The address is taken: only with the socket that was passed can the agent serve there.
    assert!(ping(&mut connect(tcp.as_str())));
    agent.signal("TERM");
    assert!(agent.child.wait().unwrap().success());
    assert!(TcpStream::connect(&tcp).is_err());
}

#[test]
fn sockets_of_the_service_manager_are_used_and_survive_a_restart() {
    let lab = Lab::new();
    let port = free_port();
    let app = echo();
    let tcp = format!("127.0.0.1:{port}");
    let agent = activated(&lab, &tcp, &permit("tcp", &tcp, app), &[]);
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
    let mut agent = activated(&lab, &unix, &permit("unix", &unix, echo()), &[]);
    assert!(ping(&mut *dial(&unix)));
    let before = agent.serving_pids();
    agent.ok(&["restart"]);
    let successor = wait_for_successor(&agent, &before);
    wait_for("the old agent's end", || agent.serving_pids() == [successor]);
    assert!(ping(&mut *dial(&unix)));
    agent.signal("TERM");
    assert!(agent.child.wait().unwrap().success());
    assert!(path.exists(), "the process that created it removes it");
}

/// Starts a second agent with the policy and the control socket of one that runs, to its end.
fn start_again(lab: &Lab, agent: &Agent, arguments: &[&str]) -> String {
    let policy = agent.policy.to_str().unwrap();
    let control = agent.control.to_str().unwrap();
    let start = [&["agent", "--policy", policy, "--control", control], arguments].concat();
    let output = lab.run(TACIT, &start);
    assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn an_agent_whose_supervisor_was_killed_answers_its_operator() {
    let lab = Lab::new();
    let listen = format!("127.0.0.1:{}", free_port());
    let agent = lab.agent(&permit("before", &listen, echo()));
    let pid = agent.serving_pids()[0];
    agent.signal("KILL");
    agent.wait_for_log("supervisor-gone");
    let mut held = connect(listen.as_str());
    assert!(ping(&mut held));
    assert_eq!(agent.show("connections").as_array().unwrap().len(), 1);
    agent.write_policy(&permit("after", &listen, echo()));
    agent.ok(&["reload"]);
    assert_eq!(agent.show("rules")["rules"][0]["name"], "after");
    let refused = agent.verb(&["restart"]);
    assert_eq!(refused.status.code(), Some(1));
    let reason = text_of(&refused);
    let supervisor = format!("process {}, has ended", agent.child.id());
    assert!(reason.contains(&supervisor) && reason.contains("tacit drain"), "{reason}");
    let second = start_again(&lab, &agent, &[]);
    let policy = agent.policy.to_str().unwrap();
    let kill = format!("kill {pid}");
    for part in [&format!("process {pid}, policy {policy}"), "tacit drain --control", &kill] {
        assert!(second.contains(part), "{part}: {second}");
    }
    assert_eq!(agent.ok(&["close", "--stale"]), "closed 1\n");
    assert!(ping(&mut connect(listen.as_str())), "it still serves");
    agent.ok(&["drain"]);
    wait_for("the agent's end", || !agent.control.exists());
    assert!(TcpStream::connect(&listen).is_err());
}

#[test]
fn an_error_about_an_address_in_use_names_the_process() {
    let lab = Lab::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap().to_string();
    let mut agent = lab.try_agent(&permit("taken", &taken, echo()), &[]);
    assert_eq!(agent.child.wait().unwrap().code(), Some(1));
    let own = format!("process {} (", std::process::id());
    let log = agent.log();
    assert!(log.contains("Address already in use") && log.contains(&own), "{log}");

    // An agent protects its memory: whose its sockets are, only root sees.
    let listen = format!("127.0.0.1:{}", free_port());
    let first = lab.agent(&permit("first", &listen, echo()));
    let mut second = lab.try_agent(&permit("second", &listen, echo()), &[]);
    assert_eq!(second.child.wait().unwrap().code(), Some(1));
    let log = second.log();
    if rustix::process::geteuid().is_root() {
        let pid = format!("process {} (", first.serving_pids()[0]);
        assert!(log.contains(&pid) && log.contains(first.policy.to_str().unwrap()), "{log}");
    } else {
        assert!(log.contains("a process of user"), "{log}");
    }
    assert!(ping(&mut connect(listen.as_str())));
}

/// Starts an agent without a supervisor, as a service manager does: with a socket for its state.
fn unsupervised(lab: &Lab, rules: &str) -> (Agent, UnixDatagram) {
    let file = lab.write("direct.toml", policy(rules));
    let log = lab.path("direct.log");
    let control = lab.path("direct.sock");
    let audit = lab.path("direct.jsonl");
    let states = UnixDatagram::bind(lab.path("notify")).unwrap();
    states.set_read_timeout(Some(PATIENCE)).unwrap();
    let child = lab
        .command(TACIT)
        .args(["agent", "--no-supervisor", "--policy"])
        .arg(&file)
        .arg("--control")
        .arg(&control)
        .env("NOTIFY_SOCKET", lab.path("notify"))
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let agent = Agent { child, policy: file, control, audit, log };
    agent.wait_until_serving();
    (agent, states)
}

#[test]
fn an_agent_without_supervisor_explains_how_to_restart() {
    let lab = Lab::new();
    let listen = format!("127.0.0.1:{}", free_port());
    let (mut agent, states) = unsupervised(&lab, &permit("tcp", &listen, echo()));
    let mut state = [0; 256];
    let length = states.recv(&mut state).unwrap();
    let pid = agent.child.id();
    let ready = format!("READY=1\nSTATUS=agent {pid} is ready");
    assert_eq!(std::str::from_utf8(&state[..length]).unwrap(), ready);
    assert_eq!(agent.serving_pids(), [0; 0], "there is no agent besides this process");
    assert!(ping(&mut connect(listen.as_str())));
    let refused = agent.verb(&["restart"]);
    assert_eq!(refused.status.code(), Some(1));
    let reason = text_of(&refused);
    assert!(reason.contains("--no-supervisor") && reason.contains("systemctl restart"), "{reason}");
    agent.signal("USR2");
    agent.wait_for_log("restart-refused");
    agent.signal("HUP");
    agent.wait_for_log(" reloaded ");
    let second = start_again(&lab, &agent, &["--no-supervisor"]);
    assert!(second.contains(&format!("process {pid}, policy ")), "{second}");
    agent.ok(&["drain"]);
    assert!(agent.child.wait().unwrap().success());
    assert!(!agent.control.exists());
}
