//! Tests the signer process. No other process holds the private keys, and the signer uses the keys
//! only to sign handshakes.

use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use tacit_tls::signer::wire::{MESSAGE_BYTES_MAX, SignerRequest};

use crate::harness::{Agent, Lab, connect, echo, exchange, free_port, signal_process, wait_for};
use crate::peers::ping;

/// An agent that is both ends of a TLS connection, and the port of the end in clear.
fn both_ends(lab: &Lab, agent: &str) -> (Agent, u16) {
    let front = free_port();
    let out = free_port();
    let rules = format!(
        "{agent}[[rule]]\nname = \"front\"\nlisten = \"127.0.0.1:{front}\"\n\
         connect = \"{}\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"required\", \
         trust = \"ca\" }}\n\
         [[rule]]\nname = \"out\"\nlisten = \"127.0.0.1:{out}\"\n\
         connect = \"127.0.0.1:{front}\"\n\
         tls = {{ role = \"client\", identity = \"alice\", trust = \"ca\", \
         server-name = \"localhost\", resumption = false }}\n",
        echo()
    );
    (lab.agent(&rules), out)
}

/// The processes with this name below an agent's.
fn below(parent: u32, name: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap() {
        let pid = entry.unwrap().file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(stat) =
            pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok())
        else {
            continue;
        };
        let words: Vec<_> = stat.split_whitespace().collect();
        if words[1] == format!("({name})") && words[3] == parent.to_string() {
            found.extend(pid);
        }
    }
    found
}

fn signers(agent: &Agent) -> Vec<u32> {
    below(*agent.serving_pids().last().unwrap(), "signer")
}

/// Stops a process. Its threads continue until the kernel has run the thread that gets the signal.
fn stop(pid: u32) {
    signal_process(pid, "STOP");
    let is_stopped = |thread: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap();
        stat.split_whitespace().nth(2) == Some("T")
    };
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    wait_for("the stop", || threads().all(|thread| is_stopped(thread.unwrap())));
}

fn serves(port: u16) -> bool {
    let mut stream = connect(("127.0.0.1", port));
    ping(&mut stream)
}

#[test]
fn connections_outlive_a_signer_and_the_next_one_has_the_keys() {
    let lab = Lab::new();
    let (agent, port) = both_ends(&lab, "");
    let mut held = connect(("127.0.0.1", port));
    assert!(ping(&mut held));
    let before = signers(&agent);
    assert_eq!(before.len(), 1, "one signer for all keys and threads");
    signal_process(before[0], "KILL");
    agent.wait_for_log(" error signer-ended ");
    assert!(ping(&mut held));
    wait_for("a new signer", || serves(port));
    let after = signers(&agent);
    assert!(after.len() == 1 && after != before);
    assert!(ping(&mut held));
}

#[test]
fn without_a_signer_handshakes_fail_with_a_reason() {
    let lab = Lab::new();
    let (agent, port) = both_ends(&lab, "");
    assert!(serves(port));
    let signer = signers(&agent)[0];
    stop(signer);
    let mut refused: TcpStream = connect(("127.0.0.1", port));
    refused.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert!(refused.read(&mut [0]).is_err(), "it is reset");
    agent.wait_for_log("not-signed");
    signal_process(signer, "CONT");
    wait_for("the signer", || serves(port));
}

#[test]
fn a_signer_ends_with_its_agent() {
    let lab = Lab::new();
    let (agent, port) = both_ends(&lab, "");
    assert!(serves(port));
    let signer = signers(&agent)[0];
    // It is the agent that signals are for.
    signal_process(signer, "TERM");
    signal_process(signer, "INT");
    assert!(serves(port));
    signal_process(*agent.serving_pids().last().unwrap(), "KILL");
    wait_for("the signer's end", || !std::path::Path::new(&format!("/proc/{signer}")).exists());
}

/// The value of a line in `/proc/PID/status`.
fn status(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

/// The writable mappings without a file that are not marked to be left out of core dumps.
fn dumped(pid: u32) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut mapping = "";
    let mut found = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("VmFlags:") {
            Some(flags) => {
                let words: Vec<_> = mapping.split_whitespace().collect();
                let is_own = words[1].starts_with("rw") && words[4] == "0";
                if is_own && !flags.split_whitespace().any(|flag| flag == "dd") {
                    found.push(mapping.to_owned());
                }
            }
            None if line.split_whitespace().next().is_some_and(|word| !word.ends_with(':')) => {
                mapping = line;
            }
            None => {}
        }
    }
    found
}

#[test]
fn the_memory_of_a_signer_is_in_no_core_dump_and_locked_if_there_is_no_limit() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can read the files of processes that hide their memory");
        return;
    }
    let lab = Lab::new();
    let rules = format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{}\"\nconnect = \"{}\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"none\" }}\n",
        free_port(),
        echo()
    );
    for limit in ["-l unlimited", "-l 64"] {
        let agent = lab.agent_within(&rules, limit);
        let [signer] = signers(&agent)[..] else { panic!("one signer") };
        let limits = std::fs::read_to_string(format!("/proc/{signer}/limits")).unwrap();
        let locked = limits.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
        let is_unlimited = locked.contains("unlimited");
        if !is_unlimited && limit == "-l unlimited" {
            println!("skipped: locked memory, because CAP_SYS_RESOURCE is missing");
        }
        assert_eq!(status(signer, "VmLck") != "0 kB", is_unlimited, "{limit}");
        let serving = *agent.serving_pids().last().unwrap();
        for pid in [agent.child.id(), serving, signer] {
            let filter = std::fs::read_to_string(format!("/proc/{pid}/coredump_filter")).unwrap();
            assert_eq!(filter.trim(), "00000000", "{pid}");
        }
        assert_eq!(status(serving, "VmLck"), "0 kB", "bytes of connections may be swapped");
        assert_eq!(dumped(signer), Vec::<String>::new(), "marked by MADV_DONTDUMP");
        assert!(!dumped(serving).is_empty());
    }
}

#[test]
fn a_policy_may_keep_its_keys_in_the_agent() {
    let lab = Lab::new();
    let (agent, port) = both_ends(&lab, "[agent]\nsigner = false\n");
    assert!(serves(port));
    assert_eq!(signers(&agent), Vec::<u32>::new());
}

#[test]
fn a_policy_without_identities_has_no_signer() {
    let lab = Lab::new();
    let port = free_port();
    let app = echo();
    let agent = lab.agent(&format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{app}\"\n\
         permit = true\n"
    ));
    assert_eq!(exchange(connect(("127.0.0.1", port)), b"x"), b"x");
    assert_eq!(signers(&agent), Vec::<u32>::new());
}

#[test]
fn renewed_keys_are_loaded_and_old_ones_forgotten() {
    let lab = Lab::new();
    let (agent, port) = both_ends(&lab, "");
    assert!(serves(port));
    let before = signers(&agent);
    for file in ["localhost.pem", "localhost.key"] {
        std::fs::remove_file(lab.path(file)).unwrap();
    }
    lab.tacit(&["ca", "issue", "localhost", "--san", "127.0.0.1"]);
    agent.wait_for_log(" info files-reloaded ");
    assert!(serves(port));
    assert_eq!(signers(&agent), before, "the same process has the new key");
}

/// Where the number of an ECDSA key stands in the memory of a process, in either order of bytes.
fn memory_holds(pid: u32, number: &[u8]) -> bool {
    let reversed: Vec<_> = number.iter().rev().copied().collect();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    maps.lines().filter(|line| line.contains(" rw")).any(|line| {
        let (from, rest) = line.split_once('-').unwrap();
        let to = rest.split_whitespace().next().unwrap();
        let from = u64::from_str_radix(from, 16).unwrap();
        let bytes = u64::from_str_radix(to, 16).unwrap() - from;
        let mut content = vec![0; usize::try_from(bytes).unwrap()];
        // Some mappings are the kernel's own and cannot be read.
        let _ = memory.seek(SeekFrom::Start(from)).and_then(|_| memory.read_exact(&mut content));
        content.windows(number.len()).any(|part| part == number || part == reversed)
    })
}

#[test]
fn no_key_is_in_the_memory_of_an_agent_with_a_signer() {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "skipped: only root reads the memory of an agent");
        return;
    }
    let lab = Lab::new();
    let PrivateKeyDer::Pkcs8(key) =
        PrivateKeyDer::from_pem_file(lab.path("localhost.key")).unwrap()
    else {
        panic!("another form of key");
    };
    // RFC 5915: the octets of the number follow the version.
    let der = key.secret_pkcs8_der();
    let head = [0x02, 0x01, 0x01, 0x04, 0x20];
    let at = der.windows(head.len()).position(|part| part == head).unwrap() + head.len();
    let number = &der[at..at + 32];
    for (setting, agent_has_it) in [("", false), ("[agent]\nsigner = false\n", true)] {
        let (agent, port) = both_ends(&lab, setting);
        assert!(serves(port));
        let serving = *agent.serving_pids().last().unwrap();
        assert_eq!(memory_holds(serving, number), agent_has_it, "{setting}");
        assert!(signers(&agent).into_iter().all(|signer| memory_holds(signer, number)));
    }
}

/// A signer without an agent, and what it answers to an order.
fn alone(orders: &[SignerRequest]) -> Vec<String> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let mut signer = Command::new(env!("CARGO_BIN_EXE_tacit"))
        .arg("signer")
        .stdin(theirs)
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let answers = orders.iter().map(|order| {
        rustix::io::write(&ours, &serde_json::to_vec(order).unwrap()).unwrap();
        let mut answer = vec![0; MESSAGE_BYTES_MAX];
        let bytes = rustix::io::read(&ours, &mut answer).unwrap();
        String::from_utf8_lossy(&answer[..bytes]).into_owned()
    });
    let answers = answers.collect();
    drop(ours);
    signer.wait().unwrap();
    answers
}

#[test]
fn a_signer_reads_only_its_files() {
    if !tacit_sys::sandbox::has_file_confinement() {
        eprintln!("skipped: this kernel has no Landlock");
        return;
    }
    let lab = Lab::new();
    let elsewhere = Lab::new();
    let load = |generation, from: &Lab| SignerRequest::Load {
        generation,
        cert: from.path("localhost.pem"),
        key: from.path("localhost.key"),
    };
    let confine = SignerRequest::Confine { read: vec![lab.path("")] };
    let answers = alone(&[load(1, &elsewhere), confine, load(2, &lab), load(3, &elsewhere)]);
    let [before, confined, inside, outside] = &*answers else { panic!("{answers:?}") };
    assert!(before.starts_with(r#"{"Ok":"#) && inside.starts_with(r#"{"Ok":"#), "{answers:?}");
    assert_eq!(confined, r#"{"Ok":null}"#);
    assert!(outside.contains("cannot be read by the agent's user"), "{outside}");
}
