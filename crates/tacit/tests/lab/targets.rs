//! Tests rules with several targets: which target gets a connection, and what tacit does while a
//! target is down. tacit must skip such a target, and use the target again when it is up.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::harness::{Agent, Lab, connect, free_port, serve, text_of, wait_for};
use crate::peers::is_reset;
use crate::restart::wait_for_successor;

/// A server at a port that says its name to each client, until it is stopped.
struct Named {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Named {
    fn start(port: u16, name: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                // The client may have gone.
                let _ = stream.write_all(name.as_bytes());
            }
        });
        Self { port, stop, thread: Some(thread) }
    }

    fn stop(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A rule that permits, and connects to a list of targets.
fn rule(listen: u16, targets: &[String], more: &str) -> String {
    format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{listen}\"\nconnect = {targets:?}\n\
         permit = true\n{more}\n"
    )
}

fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Which server a new connection reaches.
fn reached(port: u16) -> String {
    let mut name = String::new();
    connect(("127.0.0.1", port)).read_to_string(&mut name).unwrap();
    name
}

fn lines(agent: &Agent, event: &str) -> usize {
    agent.log().lines().filter(|line| line.contains(&format!(" {event} "))).count()
}

#[test]
fn a_target_that_is_down_is_skipped_and_comes_back() {
    let lab = Lab::new();
    let [listen, first, second] = [(); 3].map(|()| free_port());
    let socket = format!("unix:{}", lab.path("nothing.sock").display());
    let targets = [at(first), socket.clone(), at(second)];
    let serving = Named::start(second, "second");
    let agent = lab.agent(&rule(listen, &targets, "log = true"));
    for _ in 0..5 {
        assert_eq!(reached(listen), "second");
    }
    agent.wait_for_log(&format!(" warn target-down rule=r target={} ", at(first)));
    agent.wait_for_log(&format!(" warn target-down rule=r target={socket} "));
    wait_for("all to be closed", || lines(&agent, "closed") == 5);
    assert_eq!(lines(&agent, "target-down"), 2, "one line each: {}", agent.log());
    assert!(agent.log().contains(&format!("connect={}", at(second))), "{}", agent.log());
    let shown = &agent.show("rules")["rules"][0];
    assert_eq!(shown["connect"], targets.join(","));
    assert_eq!(shown["failures"], 0, "a connection that was served did not fail");
    assert_eq!(shown["targets"]["order"], "first");
    let down: Vec<_> = (0..3).map(|place| &shown["targets"]["states"][place]["down"]).collect();
    assert_eq!(down, [true, true, false], "{shown}");
    let metrics = agent.ok(&["show", "metrics"]);
    assert!(metrics.contains("tacit_targets_down{rule=\"r\"} 2\n"), "{metrics}");

    // Those that are skipped are the last resort.
    serving.stop();
    let _back = Named::start(first, "first");
    assert_eq!(reached(listen), "first");
    agent.wait_for_log(&format!(" info target-up rule=r target={}", at(first)));
    agent.wait_for_log(&format!(" warn target-down rule=r target={} ", at(second)));
    assert_eq!(reached(listen), "first");
    assert!(agent.ok(&["show", "metrics"]).contains("tacit_targets_down{rule=\"r\"} 2\n"));
}

#[test]
fn a_successor_skips_the_targets_that_are_down() {
    let lab = Lab::new();
    let [listen, first, second] = [(); 3].map(|()| free_port());
    let _serving = Named::start(second, "second");
    let agent = lab.agent(&rule(listen, &[at(first), at(second)], ""));
    assert_eq!(reached(listen), "second");
    agent.ok(&["restart"]);
    wait_for_successor(&agent, &agent.serving_pids()[..1]);
    let shown = &agent.show("rules")["rules"][0];
    let down = [0, 1].map(|place| &shown["targets"]["states"][place]["down"]);
    assert_eq!(down, [true, false], "{shown}");
    let table = agent.ok(&["show", "rules"]);
    assert!(table.contains(&format!(" ({}),{} ", at(first), at(second))), "{table}");
    // It is skipped: were it tried, a second line would say that it is down.
    assert_eq!(reached(listen), "second");
    agent.wait_for_log(" target-down ");
    assert_eq!(lines(&agent, "target-down"), 1, "{}", agent.log());
}

#[test]
fn where_all_targets_are_down_the_connection_fails() {
    let lab = Lab::new();
    let [listen, first, second] = [(); 3].map(|()| free_port());
    let agent = lab.agent(&rule(listen, &[at(first), at(second)], ""));
    for _ in 0..3 {
        assert!(is_reset(&mut connect(("127.0.0.1", listen))));
    }
    agent.wait_for_log(&format!("cannot connect to {}: Connection refused", at(second)));
    wait_for("all to fail", || agent.show("rules")["rules"][0]["failures"] == 3);
    wait_for("the audit log", || agent.audit().lines().count() == 3);
    assert_eq!(lines(&agent, "target-down"), 2, "{}", agent.log());
}

#[test]
fn round_robin_spreads_over_all_threads_and_survives_a_reload() {
    let lab = Lab::new();
    let listen = free_port();
    let servers = ["a", "b", "c"].map(|name| Named::start(free_port(), name));
    let targets = servers.each_ref().map(|server| at(server.port));
    let order = "order = \"round-robin\"\n";
    let workers = "[agent]\nworkers = 2\n";
    let agent = lab.agent(&format!("{workers}{}", rule(listen, &targets, order)));
    let all: String = (0..30).map(|_| reached(listen)).collect();
    assert_eq!(all, "abc".repeat(10));
    assert_eq!(reached(listen), "a");
    // The rule changes, and its targets do not.
    let more = format!("{order}log = true");
    agent.write_policy(&format!("{workers}{}", rule(listen, &targets, &more)));
    agent.ok(&["reload"]);
    assert_eq!([(); 3].map(|()| reached(listen)).concat(), "bca");
    let [a, b, c] = servers;
    b.stop();
    let all: String = (0..20).map(|_| reached(listen)).collect();
    let count = |name: &str| all.matches(name).count();
    assert!(count("b") == 0 && count("a").abs_diff(count("c")) <= 2, "{all}");
    agent.wait_for_log(" target-down ");
    assert_eq!(lines(&agent, "target-down"), 1, "{}", agent.log());
    drop((a, c));
}

/// A target that answers no SYN: its listener has as many connections as it takes.
struct Silent {
    address: SocketAddr,
    _listener: TcpListener,
    _waiting: TcpStream,
}

impl Silent {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        let waiting = TcpStream::connect(address).unwrap();
        Self { address, _listener: listener, _waiting: waiting }
    }
}

#[test]
fn a_target_that_does_not_answer_leaves_time_for_the_next() {
    let lab = Lab::new();
    let [listen, second] = [(); 2].map(|()| free_port());
    let silent = Silent::start();
    let _serving = Named::start(second, "second");
    let targets = [silent.address.to_string(), "nothing.invalid:1".into(), at(second)];
    let agent = lab.agent(&rule(listen, &targets, "connect-timeout = \"3s\""));
    assert_eq!(reached(listen), "second");
    let silent = silent.address;
    agent.wait_for_log(&format!(
        "reason=\"cannot connect to {silent}: no answer within the timeout\""
    ));
    agent.wait_for_log(
        "reason=\"cannot connect to nothing.invalid:1: tacit could not resolve the name",
    );
    assert_eq!(reached(listen), "second");
}

/// Two TLS servers, each before a program that is the second of its targets, and a client rule that
/// has both as targets, in one agent.
struct Tls {
    agent: Agent,
    listen: u16,
}

impl Tls {
    /// The first server has a certificate for the name localhost alone, the second one for its
    /// address alone; `hosts` are what the client calls them.
    fn start(lab: &Lab, hosts: [&str; 2], order: &str, tls: &str) -> Self {
        if !lab.path("names").exists() {
            std::fs::create_dir(lab.path("names")).unwrap();
            for file in ["ca.pem", "ca.key"] {
                std::fs::copy(lab.path(file), lab.path("names").join(file)).unwrap();
            }
            for name in ["localhost", "127.0.0.1"] {
                lab.tacit(&["ca", "issue", name, "--dir", "names"]);
            }
        }
        let [listen, named, numbered, nobody] = [(); 4].map(|()| free_port());
        let program = serve(|mut stream| drop(stream.write_all(b"served")));
        let server = |name: &str, host: &str, port: u16| {
            format!(
                "[identity.{name}]\ncert = \"names/{host}.pem\"\nkey = \"names/{host}.key\"\n\
                 [[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\n\
                 connect = [\"127.0.0.1:{nobody}\", \"{program}\"]\n\
                 tls = {{ role = \"server\", identity = \"{name}\", client-cert = \"none\" }}\n"
            )
        };
        let [first, second] = hosts;
        let client = format!(
            "[[rule]]\nname = \"client\"\nlisten = \"127.0.0.1:{listen}\"\n\
             connect = [\"{first}:{named}\", \"{second}:{numbered}\"]\norder = \"{order}\"\n\
             tls = {{ role = \"client\", trust = \"ca\"{tls} }}\n"
        );
        let servers =
            server("named", "localhost", named) + &server("numbered", "127.0.0.1", numbered);
        Self { agent: lab.agent(&(servers + &client)), listen }
    }

    /// Whether so many connections are served.
    fn served(&self, count: usize) -> Vec<bool> {
        let one = |_| {
            let mut text = String::new();
            let read = connect(("127.0.0.1", self.listen)).read_to_string(&mut text);
            read.is_ok() && text == "served"
        };
        (0..count).map(one).collect()
    }
}

#[test]
fn each_tls_server_proves_the_name_of_its_own_target() {
    let lab = Lab::new();
    let own = Tls::start(&lab, ["localhost", "127.0.0.1"], "round-robin", "");
    assert_eq!(own.served(4), [true; 4], "{}", own.agent.log());
    wait_for("the servers' first targets", || lines(&own.agent, "target-down") == 2);
    let one = Tls::start(
        &lab,
        ["localhost", "127.0.0.1"],
        "round-robin",
        ", server-name = \"localhost\"",
    );
    assert_eq!(one.served(4), [true, false, true, false], "{}", one.agent.log());
}

#[test]
fn a_handshake_that_fails_is_no_reason_to_try_another_target() {
    let lab = Lab::new();
    let swapped = Tls::start(&lab, ["127.0.0.1", "localhost"], "first", "");
    assert_eq!(swapped.served(3), [false; 3], "{}", swapped.agent.log());
    let down = |line: &&str| line.contains(" target-down rule=client ");
    assert_eq!(swapped.agent.log().lines().filter(down).count(), 0, "{}", swapped.agent.log());
    let explained = |more: &[&str]| {
        let policy = swapped.agent.policy.to_str().unwrap();
        let peer = ["explain", "--policy", policy, "--peer", "names/localhost.pem"];
        let arguments = [&peer[..], &["--rule", "client"], more].concat();
        text_of(&lab.run(crate::harness::TACIT, &arguments))
    };
    assert!(
        explained(&[]).contains("use --name to select one of the targets: 127.0.0.1, localhost")
    );
    assert!(explained(&["--name", "localhost"]).contains("served"));
    assert!(explained(&["--name", "127.0.0.1"]).contains("refused"));
}

/// A mail server in clear that answers one EHLO with its name.
fn mail_server(name: &'static str) -> SocketAddr {
    serve(move |mut stream| {
        let _ = stream.write_all(format!("220 {name}\r\n").as_bytes());
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        while let Some(Ok(line)) = lines.next() {
            let answer = match line.as_str() {
                "QUIT" => "221 bye\r\n".to_owned(),
                _ => format!("250 {name}\r\n"),
            };
            let _ = stream.write_all(answer.as_bytes());
        }
    })
}

/// A server of SMTP is dialled for its greeting, and again when the client has proved itself.
#[test]
fn a_connection_that_is_dialled_twice_stays_with_its_target() {
    let lab = Lab::new();
    let [listen, far] = [(); 2].map(|()| free_port());
    let servers = [mail_server("a"), mail_server("b")].map(|server| server.to_string());
    let _agent = lab.agent(&format!(
        "[[rule]]\nname = \"near\"\nlisten = \"127.0.0.1:{listen}\"\n\
         connect = \"localhost:{far}\"\n\
         tls = {{ role = \"client\", trust = \"ca\", starttls = \"smtp\" }}\n\
         [[rule]]\nname = \"far\"\nlisten = \"127.0.0.1:{far}\"\nconnect = {servers:?}\n\
         order = \"round-robin\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"none\", \
         starttls = \"smtp\" }}\n"
    ));
    for name in ["a", "b", "a", "b"] {
        let mut stream = connect(("127.0.0.1", listen));
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), format!("220 {name}"));
        stream.write_all(b"EHLO me\r\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), format!("250 {name}"));
    }
}

#[test]
fn a_dial_failure_names_the_name_and_what_failed() {
    let lab = Lab::new();
    let listen = free_port();
    let closed = free_port();
    let fails = |target: &str, wanted: &str| {
        let rule = rule(listen, &[target.to_owned()], "connect-timeout = \"500ms\"");
        let agent = lab.agent(&rule);
        drop(connect(("127.0.0.1", listen)));
        agent.wait_for_log(wanted);
    };
    fails(
        "nothing.invalid:1",
        "cannot connect to nothing.invalid:1: tacit could not resolve the name",
    );
    let refused = format!("localhost:{closed}: cannot connect to 127.0.0.1:{closed}: Connection");
    fails(&format!("localhost:{closed}"), &refused);
}
