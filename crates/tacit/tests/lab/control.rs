//! Tests which users may control an agent. Also tests that clients of the control socket cannot
//! block each other.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{
    Agent, Lab, PATIENCE, connect, echo, free_port, signal_process, text_of, wait_for, wait_for_or,
};
use crate::peers::ping;

const TACIT: &str = env!("CARGO_BIN_EXE_tacit");

fn permit(lab: &Lab) -> (Agent, String) {
    let listen = format!("127.0.0.1:{}", free_port());
    let app = echo();
    let agent = lab.agent(&format!(
        "[[rule]]\nname = \"r\"\nlisten = \"{listen}\"\nconnect = \"{app}\"\npermit = true\n"
    ));
    (agent, listen)
}

fn ask(stream: &UnixStream, line: &str) -> Value {
    let mut writer = stream;
    writeln!(writer, "{line}").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

#[test]
fn an_agent_that_ends_answers_the_requests_that_have_arrived() {
    let request = "{\"verb\":\"show\",\"what\":\"costs\"}";
    for _ in 0..8 {
        let lab = Lab::new();
        let (agent, _) = permit(&lab);
        let pid = *agent.serving_pids().last().unwrap();
        let early = UnixStream::connect(&agent.control).unwrap();
        assert!(ask(&early, request)["ok"].is_object());
        signal_process(pid, "STOP");
        let late = UnixStream::connect(&agent.control).unwrap();
        for mut stream in [&early, &late] {
            writeln!(stream, "{request}").unwrap();
        }
        signal_process(pid, "TERM");
        signal_process(pid, "CONT");
        for stream in [early, late] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut answer = String::new();
            BufReader::new(stream).read_line(&mut answer).unwrap();
            let is_refused = answer.contains("the agent is ending");
            assert!(is_refused || answer.starts_with("{\"ok\":{"), "{answer:?}");
        }
        wait_for_or("the agent to end", || agent.is_dead(), || agent.log());
    }
}

#[test]
fn only_a_successor_takes_over_an_agent() {
    let lab = Lab::new();
    let (agent, listen) = permit(&lab);
    let client = UnixStream::connect(&agent.control).unwrap();
    let guess = format!("{{\"verb\":\"take-over\",\"secret\":\"{}\"}}", "0".repeat(64));
    for request in ["{\"verb\":\"take-over\"}", &guess, "{\"verb\":\"release\"}"] {
        let answer = ask(&client, request);
        let refused = answer["error"].as_str().unwrap();
        assert!(refused.contains("only a successor"), "{request}: {answer}");
    }
    let by_hand = Command::new(TACIT)
        .args(["agent", "--supervised", "--take-over", "--policy"])
        .arg(&agent.policy)
        .arg("--control")
        .arg(&agent.control)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(text_of(&by_hand).contains("only a successor"), "{}", text_of(&by_hand));
    assert!(ping(&mut connect(listen.as_str())), "the agent in place serves");
    agent.ok(&["restart"]);
    wait_for("the successor", || agent.log().matches(" info serving ").count() == 2);
    assert!(ping(&mut connect(listen.as_str())));
}

#[test]
fn a_client_in_another_network_is_refused_even_after_its_exit() {
    let lab = Lab::new();
    let (agent, listen) = permit(&lab);
    let serving = *agent.serving_pids().last().unwrap();
    // The agent looks at the request when the process that sent it is no more.
    signal_process(serving, "STOP");
    let script = "import socket, sys\n\
                  s = socket.socket(socket.AF_UNIX)\n\
                  s.connect(sys.argv[1])\n\
                  s.sendall(b'{\"verb\":\"drain\",\"timeout_ms\":1}\\n')\n";
    let sent = Command::new("unshare")
        .args(["-rn", "python3", "-c", script])
        .arg(&agent.control)
        .output()
        .unwrap();
    assert!(sent.status.success(), "{}", text_of(&sent));
    signal_process(serving, "CONT");
    agent.wait_for_log("may not control this agent");
    assert!(ping(&mut connect(listen.as_str())), "it was not drained");
}

#[test]
fn sockets_that_linger_in_a_refused_enrolment_do_not_block_the_agent() {
    let lab = Lab::new();
    let enrol = lab.path("enrol.sock");
    let rule = format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{}\"\nconnect = \"127.0.0.1:9\"\n\
         permit = true\n",
        free_port()
    );
    let agent = lab.agent_with(&rule, &["--enrol", enrol.to_str().unwrap()]);
    // The last close of such a socket waits for the peer, which reads nothing. It is that of the
    // agent, which reads the message when the sender has closed its own.
    let serving = *agent.serving_pids().last().unwrap();
    signal_process(serving, "STOP");
    let script = r"
import socket, struct, sys
listener = socket.create_server(('127.0.0.1', 0))
lingering, accepted = [], []
for _ in range(4):
    client = socket.create_connection(listener.getsockname())
    accepted.append(listener.accept()[0])
    client.setblocking(False)
    try:
        while True: client.send(b'x' * 65536)
    except BlockingIOError: pass
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 600))
    lingering.append(client)
enrolment = socket.socket(socket.AF_UNIX)
enrolment.connect(sys.argv[1])
socket.send_fds(enrolment, [struct.pack('>I', 2) + b'{}'], [one.fileno() for one in lingering])
for one in lingering: one.close()
print('sent', flush=True)
sys.stdin.read()
";
    let mut sender = lab
        .command("python3")
        .args(["-c", script])
        .arg(&enrol)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut sent = String::new();
    BufReader::new(sender.stdout.take().unwrap()).read_line(&mut sent).unwrap();
    assert_eq!(sent, "sent\n");
    signal_process(serving, "CONT");
    agent.wait_for_log("enrolment-failed");
    assert!(agent.ok(&["show", "rules"]).contains('r'));
    drop(sender.stdin.take());
    sender.wait().unwrap();
}

#[test]
fn silent_clients_do_not_block_others() {
    let lab = Lab::new();
    let (agent, _) = permit(&lab);
    let memory = || agent.resident_bytes();
    assert!(agent.ok(&["show", "rules"]).contains('r'));
    let before = memory();
    let half_line = vec![b'x'; 60_000];
    let silent: Vec<_> = (0..300)
        .map(|_| {
            let mut stream = UnixStream::connect(&agent.control).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
            // One that was closed already for a newer one takes no more.
            let _ = stream.write_all(&half_line);
            stream
        })
        .collect();
    assert!(agent.ok(&["show", "rules"]).contains('r'));
    let is_open = |mut stream: &UnixStream| {
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        stream.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    wait_for("the end of most", || silent.iter().filter(|stream| is_open(stream)).count() <= 64);
    // A client that does not read its answers is not waited for either.
    let unread: Vec<_> = (0..64)
        .map(|_| {
            let mut stream = UnixStream::connect(&agent.control).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
            while stream.write_all(b"{\"verb\":\"show\",\"what\":\"limits\"}\n").is_ok() {}
            stream
        })
        .collect();
    let until = std::time::Instant::now() + 2 * PATIENCE;
    while !agent.verb(&["show", "rules"]).status.success() {
        assert!(std::time::Instant::now() < until, "no slot became free");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop((silent, unread));
    let most = before + MEMORY_LEFT_MAX;
    wait_for_or("the memory", || memory() < most, || format!("{before}, {}", memory()));
}

/// The bytes of memory that a flood may leave.
const MEMORY_LEFT_MAX: usize = 8 << 20;
