//! Counts the system calls and the heap allocations of the relay.
//!
//! ```text
//! client ──> agent ══ TLS ══> agent ──> server       all in this process; each agent has one
//!                                                    data worker, whose calls are counted
//! ```
//!
//! In each direction, the relay moves the data in batches. For each batch, the relay makes one read
//! and one write, and allocates no memory. All other system calls of the relay only wait, or read
//! the CPU clock for the ledger.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at the first unexpected result"
)]
#![allow(unreachable_pub, reason = "only this test program uses it")]
#![allow(dead_code, reason = "the lab's tools, of which this test needs some")]

#[path = "../../../tacit-sys/tests/counting.rs"]
mod counting;
#[path = "../lab/harness.rs"]
mod harness;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use counting::{SystemCalls, allocations};
use harness::{Lab, PATIENCE, connect, free_port, policy, wait_for};
use tacit::agent::{self, AgentOptions, PassedSockets};
use tacit::log::{Format, LogDestination};

/// An agent of this process.
struct Counted {
    name: &'static str,
    control: PathBuf,
    calls: Arc<SystemCalls>,
    worker: u32,
}

impl Drop for Counted {
    /// Has the agent end by itself: it is a thread, which cannot be killed.
    fn drop(&mut self) {
        let mut drain = Command::new(harness::TACIT);
        drain.arg("drain").arg("--control").arg(&self.control);
        assert!(drain.output().unwrap().status.success() || std::thread::panicking());
        wait_for("the end of the agent", || !self.control.exists());
    }
}

/// What a worker has done since it started.
struct SoFar {
    /// By number.
    calls: BTreeMap<i64, u64>,
    allocations: u64,
}

/// What a worker did meanwhile.
#[derive(Debug, Default, PartialEq, Eq)]
struct Done {
    reads: u64,
    writes: u64,
    /// By number, waits and clocks left out.
    others: BTreeMap<i64, u64>,
    allocations: u64,
}

impl Counted {
    fn start(name: &'static str, lab: &Lab, rules: &str) -> Self {
        // A signer would be started by the program that this test is.
        let rules = format!("[agent]\nworkers = 1\nsigner = false\nsandbox = false\n{rules}");
        let options = AgentOptions {
            policy: lab.write(&format!("{name}.toml"), policy(&rules)),
            control: lab.path(&format!("{name}.sock")),
            log: LogDestination::StandardError,
            log_format: Format::Text,
            launcher: None,
            audit: None,
            level: tacit::log::LogLevel::Warn,
            enrol: None,
            private: false,
            link: tacit::run::link::choice::LinkChoice::None,
            resolvers: Vec::new(),
            host: false,
            confirm: None,
            last_policy: None,
            take_over: false,
        };
        let control = options.control.clone();
        let calls = SystemCalls::of(move || {
            agent::run(options, PassedSockets::Listening(Vec::new()), None).expect("an agent");
        });
        wait_for("the agent", || control.exists());
        let mut worker = None;
        wait_for("its worker", || {
            worker = calls.thread_named("data-0");
            worker.is_some()
        });
        Self { name, control, calls, worker: worker.unwrap() }
    }

    fn so_far(&self) -> SoFar {
        SoFar { calls: self.calls.of_thread(self.worker), allocations: allocations(self.worker) }
    }

    fn since(&self, before: &SoFar) -> Done {
        let now = self.so_far();
        let allocations = now.allocations - before.allocations;
        let mut done = Done { allocations, ..Done::default() };
        for (number, total) in now.calls {
            let count = total - before.calls.get(&number).copied().unwrap_or(0);
            match number {
                _ if count == 0 || WAITS.contains(&number) => {}
                // The accounts ask once a window, which is many batches.
                libc::SYS_clock_gettime if count < BATCHES_MIN => {}
                _ if READS.contains(&number) => done.reads += count,
                _ if WRITES.contains(&number) => done.writes += count,
                _ => _ = done.others.insert(number, count),
            }
        }
        done
    }
}

const READS: [i64; 4] = [libc::SYS_read, libc::SYS_readv, libc::SYS_recvfrom, libc::SYS_recvmsg];
const WRITES: [i64; 4] = [libc::SYS_write, libc::SYS_writev, libc::SYS_sendto, libc::SYS_sendmsg];
#[cfg(target_arch = "x86_64")]
const WAITS: [i64; 2] = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait];
#[cfg(not(target_arch = "x86_64"))]
const WAITS: [i64; 1] = [libc::SYS_epoll_pwait];

/// A client and a server with two agents between them, and what may be between those.
struct Pair {
    client: TcpStream,
    server: TcpStream,
    /// They end after the connections that they wait for.
    agents: [Counted; 2],
    _lab: Lab,
}

impl Pair {
    fn new(more: &str, between: impl FnOnce(SocketAddr) -> SocketAddr) -> Self {
        let lab = Lab::new();
        let entry = free_port();
        let far = free_port();
        let app = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = Counted::start(
            "server",
            &lab,
            &format!(
                r#"
                [[rule]]
                name = "in"
                listen = "127.0.0.1:{far}"
                connect = "{}"
                tls = {{ role = "server", identity = "localhost", client-cert = "none" }}
                "#,
                app.local_addr().unwrap()
            ),
        );
        let far = between((Ipv4Addr::LOCALHOST, far).into());
        let client = Counted::start(
            "client",
            &lab,
            &format!(
                r#"
                [[rule]]
                name = "out"
                listen = "127.0.0.1:{entry}"
                connect = "{far}"
                tls = {{ role = "client", trust = "ca", server-name = "localhost"{more} }}
                "#
            ),
        );
        let agents = [client, server];
        let client = connect((Ipv4Addr::LOCALHOST, entry));
        let (server, _) = app.accept().unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        for app in [&client, &server] {
            app.set_nodelay(true).unwrap();
        }
        Self { client, server, agents, _lab: lab }
    }

    /// Sends `bytes` there and back, `rounds` times.
    fn exchange(&mut self, bytes: usize, rounds: usize) {
        let mut received = vec![0; bytes];
        for round in 0..rounds {
            let number = u8::try_from(round % 251).unwrap();
            let sent: Vec<u8> =
                (0..=255).cycle().map(|byte: u8| byte ^ number).take(bytes).collect();
            for (from, to) in [(&self.client, &self.server), (&self.server, &self.client)] {
                // More than the sockets hold would wait for its reader.
                std::thread::scope(|scope| {
                    scope.spawn(|| (&mut &*from).write_all(&sent).unwrap());
                    (&mut &*to).read_exact(&mut received).unwrap();
                });
                assert!(sent == received, "round {round}");
            }
        }
    }

    /// The same, and what each agent's worker did for it.
    fn count(&mut self, bytes: usize, rounds: usize) -> [Done; 2] {
        let before = [self.agents[0].so_far(), self.agents[1].so_far()];
        self.exchange(bytes, rounds);
        std::array::from_fn(|at| self.agents[at].since(&before[at]))
    }
}

const ROUNDS: usize = 200;
/// What a worker has to do for them: a batch each way.
const BATCHES_MIN: u64 = 2 * ROUNDS as u64;
/// Session tickets, first growth of whatever grows once.
const WARM_UP_ROUNDS: usize = 50;

/// Every suite seals and opens by other keys.
const SUITES: [&str; 3] = [
    r#", suites = ["TLS_AES_128_GCM_SHA256"]"#,
    r#", suites = ["TLS_CHACHA20_POLY1305_SHA256"]"#,
    r#", min-version = "1.2", suites = ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]"#,
];

#[test]
fn a_small_message_takes_one_read_and_one_write_and_no_allocation() {
    for suite in SUITES {
        let mut pair = Pair::new(suite, |far| far);
        pair.exchange(2048, WARM_UP_ROUNDS);
        let wanted = Done { reads: BATCHES_MIN, writes: BATCHES_MIN, ..Done::default() };
        let done = pair.count(2048, ROUNDS);
        for (agent, done) in pair.agents.iter().zip(&done) {
            assert_eq!(done, &wanted, "{} {suite}", agent.name);
        }
    }
}

#[test]
fn a_large_message_takes_one_read_for_each_write_and_no_allocation() {
    for suite in SUITES {
        let mut pair = Pair::new(suite, |far| far);
        pair.exchange(48 << 10, WARM_UP_ROUNDS);
        let done = pair.count(48 << 10, ROUNDS);
        for (agent, done) in pair.agents.iter().zip(&done) {
            assert!(done.writes >= BATCHES_MIN, "{} {suite}: {done:?}", agent.name);
            // A read that brings no whole record has nothing to write; the kernel may cut so.
            let readings = done.writes..done.writes + BATCHES_MIN / 10;
            assert!(readings.contains(&done.reads), "{} {suite}: {done:?}", agent.name);
            let rest = (&done.others, done.allocations);
            assert_eq!(rest, (&BTreeMap::new(), 0), "{} {suite}", agent.name);
        }
    }
}

#[test]
fn records_that_arrive_in_pieces_take_no_memory() {
    const PIECE_BYTES: usize = 700;
    for suite in SUITES {
        let mut pair = Pair::new(suite, |far| in_pieces(far, PIECE_BYTES));
        pair.exchange(3000, WARM_UP_ROUNDS);
        let done = pair.count(3000, ROUNDS);
        for (agent, done) in pair.agents.iter().zip(&done) {
            // Four pieces and a bit one way, a message the other.
            assert!(done.reads > 3 * ROUNDS as u64, "{} {suite}: {done:?}", agent.name);
            let rest = (&done.others, done.allocations);
            assert_eq!(rest, (&BTreeMap::new(), 0), "{} {suite}", agent.name);
        }
    }
}

/// Stands between the agents and hands bytes on in pieces that arrive apart.
fn in_pieces(far: SocketAddr, piece_bytes: usize) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(far).unwrap();
        for end in [&near, &far] {
            end.set_nodelay(true).unwrap();
        }
        let near_too = near.try_clone().unwrap();
        let far_too = far.try_clone().unwrap();
        std::thread::spawn(move || pass(near, far, piece_bytes));
        pass(far_too, near_too, piece_bytes);
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, piece_bytes: usize) {
    let mut piece = vec![0; piece_bytes];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..count]).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    let _ = to.shutdown(Shutdown::Write);
}
