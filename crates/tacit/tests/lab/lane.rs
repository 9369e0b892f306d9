//! Sets up every way in which tacit can relay a stream: with each action, in each role, with and
//! without engines. If a test must pass for all these ways, it uses this module.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, sync_channel};

use tacit_sys::socket::{self, OnClose};

use crate::harness::{Agent, Lab, PATIENCE, connect, free_port};

/// The two programs at the ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Client,
    Server,
}

impl Program {
    pub const BOTH: [Self; 2] = [Self::Client, Self::Server];
}

/// Their sockets.
pub struct Ends {
    pub client: TcpStream,
    pub server: TcpStream,
}

/// The same, by who goes first in a test.
pub struct Turns {
    pub first: TcpStream,
    pub second: TcpStream,
}

impl Ends {
    pub fn first(self, first: Program) -> Turns {
        match first {
            Program::Client => Turns { first: self.client, second: self.server },
            Program::Server => Turns { first: self.server, second: self.client },
        }
    }

    pub fn try_clone(&self) -> Self {
        let client = self.client.try_clone().unwrap();
        let server = self.server.try_clone().unwrap();
        Self { client, server }
    }
}

/// What was read to the end of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// It ended in order.
    Ended(Vec<u8>),
    /// It ended in a reset.
    Reset(Vec<u8>),
}

impl Received {
    /// What came before a reset; `name` is what is tested.
    pub fn expect_reset(self, name: &str) -> Vec<u8> {
        match self {
            Self::Reset(bytes) => bytes,
            Self::Ended(bytes) => panic!("{name}: a clean end after {} bytes", bytes.len()),
        }
    }
}

/// A plain client's address and a plain server's end, with tacit between them.
pub struct Lane {
    pub name: &'static str,
    /// Who carries the bytes, from the client to the server.
    pub agents: Vec<Agent>,
    entry: SocketAddr,
    accepted: Receiver<TcpStream>,
    _lab: Lab,
}

impl Lane {
    /// One agent, in clear.
    pub fn permit() -> Self {
        Self::permit_with("")
    }

    /// The same with more tables in the policy.
    pub fn permit_with(tables: &str) -> Self {
        let lab = Lab::new();
        let entry = free_port();
        let (app, accepted) = app();
        let agent = lab.agent(&format!(
            r#"
            [[rule]]
            name = "clear"
            listen = "127.0.0.1:{entry}"
            connect = "{app}"
            permit = true
            log = true
            {tables}
            "#
        ));
        let entry = (Ipv4Addr::LOCALHOST, entry).into();
        Self { name: "permit", agents: vec![agent], entry, accepted, _lab: lab }
    }

    /// Two agents, the client's and the server's, with TLS between them.
    pub fn tls() -> Self {
        Self::tls_with("", |far| far)
    }

    /// The same with engines that set connections up; none where the machine has no CPU for them.
    pub fn engines() -> Option<Self> {
        let tables = engine_table("")?;
        Some(Self { name: "engines", ..Self::tls_on(&tables, "", |far| far) })
    }

    /// The same; `between` gets the server agent's address and returns the one to dial.
    pub fn tls_through(between: impl FnOnce(SocketAddr) -> SocketAddr) -> Self {
        Self::tls_with("", between)
    }

    /// The same with more keys in the client's `tls` table.
    pub fn tls_with(more: &str, between: impl FnOnce(SocketAddr) -> SocketAddr) -> Self {
        Self::tls_on("", more, between)
    }

    /// The same with more tables in both policies.
    pub fn tls_on(
        tables: &str,
        more: &str,
        between: impl FnOnce(SocketAddr) -> SocketAddr,
    ) -> Self {
        let lab = Lab::new();
        let entry = free_port();
        let far = free_port();
        let (app, accepted) = app();
        let server = lab.agent(&format!(
            r#"
            [[rule]]
            name = "in"
            listen = "127.0.0.1:{far}"
            connect = "{app}"
            tls = {{ role = "server", identity = "localhost", client-cert = "none" }}
            log = true
            {tables}
            "#
        ));
        let far = between((Ipv4Addr::LOCALHOST, far).into());
        let client = lab.agent(&format!(
            r#"
            [[rule]]
            name = "out"
            listen = "127.0.0.1:{entry}"
            connect = "{far}"
            tls = {{ role = "client", trust = "ca", server-name = "localhost"{more} }}
            log = true
            {tables}
            "#
        ));
        let entry = (Ipv4Addr::LOCALHOST, entry).into();
        Self { name: "tls", agents: vec![client, server], entry, accepted, _lab: lab }
    }

    pub fn both() -> [Self; 2] {
        [Self::permit(), Self::tls()]
    }

    /// Runs a test on each, and on the one with engines, at the same time.
    pub fn each(test: impl Fn(&Self) + Sync) {
        std::thread::scope(|scope| {
            for lane in Self::both().into_iter().chain(Self::engines()) {
                let test = &test;
                scope.spawn(move || test(&lane));
            }
        });
    }

    /// A connection through the lane.
    pub fn open(&self) -> Ends {
        let client = self.dial();
        let server = self.accept();
        Ends { client, server }
    }

    /// A client's socket; its server's is still to be accepted.
    pub fn dial(&self) -> TcpStream {
        connect(self.entry)
    }

    /// The server's socket of the client that dialled.
    pub fn accept(&self) -> TcpStream {
        let server = self.accepted.recv_timeout(PATIENCE).expect("the connection to the server");
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        server.set_write_timeout(Some(PATIENCE)).unwrap();
        server
    }
}

/// `[engine]` on the last CPU there is, with more keys; none where it is the only one.
pub fn engine_table(more: &str) -> Option<String> {
    let cpus = tacit_sys::schedule::allowed_cpus().unwrap();
    let [_, .., last] = cpus.as_slice() else {
        println!("skipped: engines, which need a second CPU");
        return None;
    };
    Some(format!("[engine]\ncpus = \"{last}\"\n{more}\n"))
}

/// A server that hands its connections to the test.
fn app() -> (SocketAddr, Receiver<TcpStream>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = sync_channel(64);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if sender.send(stream).is_err() {
                return;
            }
        }
    });
    (address, receiver)
}

/// What a test does to the bytes between two agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Both directions end in order, in the middle of whatever is said.
    Cut,
    /// One bit of the byte there is changed.
    Flip,
}

/// Where harm is done.
#[derive(Clone, Copy, Debug)]
struct HarmAt {
    harm: Harm,
    /// Bytes that pass unharmed.
    after_bytes: usize,
}

/// Stands between two agents and does harm to the first connection once so many bytes have come
/// from one program's side.
pub fn tap(far: SocketAddr, harm: Harm, from: Program, after_bytes: usize) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(far).unwrap();
        let near_too = near.try_clone().unwrap();
        let far_too = far.try_clone().unwrap();
        let harm_at = HarmAt { harm, after_bytes };
        let there = (from == Program::Client).then_some(harm_at);
        let back = (from == Program::Server).then_some(harm_at);
        let forward = std::thread::spawn(move || pass(near, far, there));
        pass(far_too, near_too, back);
        forward.join().unwrap();
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, harm: Option<HarmAt>) {
    let mut passed = 0;
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut bytes = &mut buffer[..count];
        let due = harm.filter(|at| (passed..passed + count).contains(&at.after_bytes));
        match due {
            Some(HarmAt { harm: Harm::Cut, after_bytes }) => {
                bytes = &mut bytes[..after_bytes - passed];
            }
            Some(HarmAt { harm: Harm::Flip, after_bytes }) => bytes[after_bytes - passed] ^= 1,
            None => {}
        }
        passed += count;
        let was_cut = due.is_some_and(|at| at.harm == Harm::Cut);
        if to.write_all(bytes).is_err() || was_cut {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Ends a socket by a reset.
pub fn reset(stream: TcpStream) {
    socket::set_on_close(stream.as_fd(), OnClose::Reset).unwrap();
    drop(stream);
}

/// Reads until the end.
pub fn read_to_end(stream: &mut TcpStream) -> Received {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => Received::Ended(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Received::Reset(bytes),
        Err(error) => panic!("{error}, after {} bytes", bytes.len()),
    }
}

/// Reads exactly so many bytes.
pub fn read_some(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Writes until nothing more is taken for a while; returns how much was.
pub fn fill(mut stream: &TcpStream) -> usize {
    stream.set_write_timeout(Some(std::time::Duration::from_millis(700))).unwrap();
    let mut count = 0;
    let chunk = [7; 64 * 1024];
    while let Ok(written) = stream.write(&chunk) {
        count += written;
    }
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    count
}

/// Opens many connections and exchanges some bytes on each; returns both ends of all.
pub fn open_many(lane: &Lane, count: usize, bytes: usize) -> Vec<Ends> {
    let mut open = Vec::with_capacity(count);
    let sent = vec![5; bytes];
    let mut read = vec![0; bytes];
    for _ in 0..count {
        let Ends { mut client, mut server } = lane.open();
        client.write_all(&sent).unwrap();
        server.read_exact(&mut read).unwrap();
        server.write_all(&sent).unwrap();
        client.read_exact(&mut read).unwrap();
        open.push(Ends { client, server });
    }
    open
}

pub fn open_connections(agent: &Agent) -> usize {
    agent.show("connections").as_array().unwrap().len()
}
