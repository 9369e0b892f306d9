//! Implements two processes of the namespace tests: the launcher, and the helper. In these tests,
//! the launcher also acts as the agent.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tacit_sys::namespace::{self, NamespaceSockets, Netlinks};
use tacit_sys::netlink::nft::{self, Element};
use tacit_sys::netlink::route::{self, Families, SourceAddresses};
use tacit_sys::netlink::{self, IpProtocol, Netlink, diag};
use tacit_sys::spawn::{self, ConnectCalls, LauncherState, SpawnOptions};
use tacit_sys::syn_log::Copies;
use tacit_sys::tun::Tun;
use tacit_sys::{IpVersion, descriptor, transparent};

use super::agent::Agent;

pub(crate) const BOTH: Families = Families { v4: true, v6: true };

/// Runs the scenario with this name.
pub(crate) fn run(scenario: &str) {
    let original = LauncherState::capture();
    let (_, scenario) =
        super::scenarios::ALL.iter().find(|(name, _)| *name == scenario).expect("a scenario");
    scenario(&original);
}

/// A namespace, with the agent's sockets outside.
pub(crate) struct Run<'a> {
    pub(crate) sockets: NamespaceSockets,
    pub(crate) route: Netlink,
    pub(crate) netfilter: Netlink,
    pub(crate) diagnosis: Netlink,
    original: &'a LauncherState,
    helper: Child,
    channel: UnixStream,
    agent: Option<Agent>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(families: Families, original: &'a LauncherState) -> Self {
        Self::try_new(families, original).unwrap_or_else(|text| panic!("no namespace: {text}"))
    }

    /// Returns the helper's reason if it fails.
    pub(crate) fn try_new(families: Families, original: &'a LauncherState) -> Result<Self, String> {
        Self::with_copies(families, original, Copies::OfRule)
    }

    /// Uses copies of SYNs from this source.
    pub(crate) fn with_copies(
        families: Families,
        original: &'a LauncherState,
        copies: Copies,
    ) -> Result<Self, String> {
        let (mut channel, theirs) = UnixStream::pair().unwrap();
        let me = std::process::id();
        let copies = if copies == Copies::OfInterface { "interface" } else { "rule" };
        let orders = format!("{me} {} {} {copies}", families.v4, families.v6);
        let mut command = super::role("helper", &orders);
        let mut helper = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn().unwrap();
        drop(command);
        let mut text = vec![0; 4096];
        let received = descriptor::receive(&channel, &mut text).unwrap();
        let mut descriptors = received.descriptors;
        if descriptors.is_empty() {
            helper.wait().unwrap();
            return Err(String::from_utf8_lossy(&text[..received.bytes]).into_owned());
        }
        // The helper has closed its copies of the sockets: from now on these are the only ones.
        channel.read_exact(&mut [0]).unwrap();
        let diagnosis = Netlink::adopt(descriptors.pop().unwrap());
        let netfilter = Netlink::adopt(descriptors.pop().unwrap());
        let route = Netlink::adopt(descriptors.pop().unwrap());
        let sockets = NamespaceSockets::from_descriptors(descriptors).unwrap();
        let agent = Some(Agent::start(&sockets));
        Ok(Self { sockets, route, netfilter, diagnosis, original, helper, channel, agent })
    }

    fn agent(&self) -> &Agent {
        self.agent.as_ref().unwrap()
    }

    /// Closes the sockets of an agent that ends; the run's own descriptors stay open.
    pub(crate) fn end_agent(&mut self) {
        self.agent = None;
        let null = || File::open("/dev/null").unwrap().into();
        (self.sockets.tcp4, self.sockets.udp4) = (null(), null());
        (self.sockets.tcp6, self.sockets.udp6) = (None, None);
        (self.sockets.syn_log, self.sockets.hold4) = (null(), null());
        self.sockets.hold6 = None;
    }

    /// Changes which destinations are captured.
    pub(crate) fn change(
        &mut self,
        remove: &[Element],
        add: &[Element],
    ) -> Result<(), netlink::Error> {
        nft::change(&mut self.netfilter, remove, add)?;
        self.agent().change(remove, add);
        Ok(())
    }

    /// Captures only these destinations.
    pub(crate) fn replace_all(&mut self, all: &[Element]) -> Result<(), netlink::Error> {
        nft::replace_all(&mut self.netfilter, all)?;
        self.agent().replace_all(all);
        Ok(())
    }

    /// Removes the table with all nftables rules, as `nft delete table inet tacit` would.
    pub(crate) fn remove_rules(&self) {
        let mut batch = netfilter_message(BATCH_BEGIN, 0, BATCH_HEAD);
        let mut table = TABLE_HEAD.to_vec();
        table.extend_from_slice(&attribute(1, b"tacit\0"));
        batch.extend(netfilter_message(DELETE_TABLE, ACKNOWLEDGE, &table));
        batch.extend(netfilter_message(BATCH_END, 0, BATCH_HEAD));
        rustix::net::send(&self.netfilter, &batch, rustix::net::SendFlags::empty()).unwrap();
        let mut answer = [0; 256];
        rustix::net::recv(&self.netfilter, &mut answer[..], rustix::net::RecvFlags::empty())
            .unwrap();
        // The error number follows the header of 16 bytes.
        assert_eq!(answer[16..20], [0; 4], "the table cannot be removed");
    }

    pub(crate) fn start(&self, orders: &[&str]) -> Program {
        self.start_hiding(orders, &[])
    }

    pub(crate) fn start_hiding(&self, orders: &[&str], hide: &[PathBuf]) -> Program {
        let mut command = super::role("program", &orders.join("\n"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let user = (!rustix::process::geteuid().is_root()).then(|| self.sockets.user.as_fd());
        let inside = SpawnOptions {
            network: self.sockets.network.as_fd(),
            user,
            hide,
            original: self.original,
            dies_with_parent: true,
            cpus: &[],
            listener_to: None,
            connects: ConnectCalls::Allowed,
        };
        let started = spawn::spawn(command, &inside).unwrap();
        assert!(started.not_hidden.is_empty(), "{:?}", started.not_hidden);
        let mut child = started.child;
        let answers = BufReader::new(child.stdout.take().unwrap());
        Program { child, mounts: started.mounts, answers }
    }

    /// Runs a program with these commands and returns its answers.
    pub(crate) fn answers(&self, orders: &[&str]) -> Vec<String> {
        let mut program = self.start(orders);
        orders.iter().map(|_| program.answer()).collect()
    }

    /// Returns the socket at which captured connections arrive.
    pub(crate) fn listener(&self, version: IpVersion) -> &OwnedFd {
        match version {
            IpVersion::V4 => &self.sockets.tcp4,
            IpVersion::V6 => self.sockets.tcp6.as_ref().unwrap(),
        }
    }

    /// Returns the socket at which captured datagrams arrive.
    pub(crate) fn receiver(&self, version: IpVersion) -> &OwnedFd {
        match version {
            IpVersion::V4 => &self.sockets.udp4,
            IpVersion::V6 => self.sockets.udp6.as_ref().unwrap(),
        }
    }

    /// Requests a spoofed-source socket from the helper.
    pub(crate) fn spoofed_source_socket(
        &mut self,
        protocol: IpProtocol,
        version: IpVersion,
    ) -> OwnedFd {
        let kind = if protocol == IpProtocol::Tcp { b't' } else { b'u' };
        let digit = if version == IpVersion::V4 { b'4' } else { b'6' };
        self.channel.write_all(&[kind, digit]).unwrap();
        let mut received = descriptor::receive(&self.channel, &mut [0; 8]).unwrap();
        received.descriptors.pop().unwrap()
    }

    /// Requests a TUN device from the helper.
    pub(crate) fn tun(&mut self) -> Tun {
        self.channel.write_all(b"n-").unwrap();
        let mut received = descriptor::receive(&self.channel, &mut [0; 8]).unwrap();
        Tun::from_descriptor(received.descriptors.pop().unwrap()).unwrap()
    }
}

impl Run<'_> {
    /// Kills the helper and starts another one in the same namespaces. The new helper first runs
    /// the commands of [`rejoin`], and then works like the first one.
    pub(crate) fn replace_helper(&mut self) {
        self.helper.kill().unwrap();
        self.helper.wait().unwrap();
        let (channel, theirs) = UnixStream::pair().unwrap();
        let mut command = super::role("rejoin", &std::process::id().to_string());
        self.helper = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn().unwrap();
        drop(command);
        self.channel = channel;
        let user = (!rustix::process::geteuid().is_root()).then(|| self.sockets.user.as_fd());
        let both = [Some(self.sockets.network.as_fd()), user];
        let namespaces: Vec<_> = both.into_iter().flatten().collect();
        descriptor::send(&self.channel, b"+", &namespaces).unwrap();
        self.channel.read_exact(&mut [0]).unwrap();
        // The new helper has captured this itself.
        self.agent().change(&[], &captured_by_rejoined());
    }
}

impl Run<'_> {
    /// Waits until a program listens at this address. The kernel does not report this, so the
    /// function polls.
    pub(crate) fn wait_for_listener(&mut self, at: SocketAddr) {
        let listens = |run: &mut Self| {
            let all = diag::listeners(&mut run.diagnosis, IpVersion::of(at.ip())).unwrap();
            all.iter().any(|listener| listener.local == at)
        };
        while !listens(self) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let _ = self.channel.shutdown(std::net::Shutdown::Both);
        let status = self.helper.wait().unwrap();
        assert!(status.success() || std::thread::panicking(), "helper: {status}");
    }
}

/// A program inside the namespace; it ends when this is dropped.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) mounts: Option<OwnedFd>,
    answers: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        assert!(status.success() || std::thread::panicking(), "program: {status}");
    }
}

/// Waits until the socket is readable.
pub(crate) fn wait(socket: BorrowedFd<'_>) {
    let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&patience)).unwrap();
    assert_eq!(ready, 1, "nothing arrived");
}

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// The subsystem nftables (10), and its message `DELTABLE` (2).
const DELETE_TABLE: u16 = 10 << 8 | 2;
const ACKNOWLEDGE: u16 = 4;
/// `nfgenmsg`: family, version and, for a batch, the subsystem.
const BATCH_HEAD: &[u8] = &[0, 0, 0, 10];
/// The family `inet`.
const TABLE_HEAD: &[u8] = &[1, 0, 0, 0];

fn netfilter_message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    const REQUEST: u16 = 1;
    let length = u32::try_from(16 + body.len()).unwrap();
    let mut message = length.to_ne_bytes().to_vec();
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&(REQUEST | flags).to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(body);
    message
}

/// A netlink attribute with its padding.
fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + payload.len()).unwrap();
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Accepts a captured connection, and returns it with its original destination.
pub(crate) fn accept(listener: &OwnedFd) -> (OwnedFd, SocketAddr) {
    wait(listener.as_fd());
    let socket = tacit_sys::socket::accept(listener.as_fd()).unwrap().socket;
    let original = rustix::net::getsockname(&socket).unwrap();
    (socket, SocketAddr::try_from(original).unwrap())
}

pub(crate) fn element(protocol: IpProtocol, first: &str, last: &str, ports: [u16; 2]) -> Element {
    let [first_port, last_port] = ports;
    let [first, last] = [first, last].map(|text| text.parse().unwrap());
    Element { protocol, first, last, first_port, last_port }
}

/// The helper: creates the namespace, sends the sockets, and creates more on request until the end.
pub(crate) fn help(orders: &str) {
    let words: Vec<_> = orders.split(' ').collect();
    let families = Families { v4: words[1] == "true", v6: words[2] == "true" };
    let mut channel = File::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let copies = (words[3] == "interface").then_some(Copies::OfInterface);
    let made = namespace::create(words[0].parse().unwrap(), families, copies).and_then(|made| {
        let sockets = namespace::sockets(made.copies)?;
        Ok((made, sockets))
    });
    let (namespace, sockets) = match made {
        Ok(made) => made,
        Err(error) => {
            channel.write_all(error.to_string().as_bytes()).unwrap();
            return;
        }
    };
    assert_eq!(namespace.missing, [""; 0]);
    assert!(namespace.large_segments.v4 && namespace.large_segments.v6, "{namespace:?}");
    // The host decides which of the two is used.
    assert!(["cubic", "reno"].contains(&&*namespace.congestion_control), "{namespace:?}");
    let mut all = sockets.descriptors();
    let Netlinks { route, netfilter, diagnosis } = &namespace.netlinks;
    all.extend([route.as_fd(), netfilter.as_fd(), diagnosis.as_fd()]);
    descriptor::send(&channel, b"+", &all).unwrap();
    drop((sockets, namespace));
    channel.write_all(b"+").unwrap();
    make_sockets(channel);
}

fn captured_by_rejoined() -> [Element; 1] {
    [element(IpProtocol::Tcp, "10.9.8.7", "10.9.8.7", [8081, 8081])]
}

/// A helper that replaces one that was killed: it joins the namespaces, captures and routes
/// addresses itself, and then continues like the first one.
pub(crate) fn rejoin(orders: &str) {
    let mut channel = File::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let received = descriptor::receive(&channel, &mut [0]).unwrap().descriptors;
    let user = received.get(1).map(AsFd::as_fd);
    let parent = orders.parse().unwrap();
    let mut netlinks = namespace::join(parent, received[0].as_fd(), user).unwrap();
    // An existing entry may be requested again.
    route::allow(&mut netlinks.route, BOTH, SourceAddresses::default()).unwrap();
    nft::change(&mut netlinks.netfilter, &[], &captured_by_rejoined()).unwrap();
    let listeners = diag::listeners(&mut netlinks.diagnosis, IpVersion::V4).unwrap();
    assert!(listeners.iter().any(|one| one.local.port() == nft::AGENT_PORT), "{listeners:?}");
    channel.write_all(b"+").unwrap();
    make_sockets(channel);
}

fn make_sockets(mut channel: File) {
    let mut request = [0; 2];
    while channel.read_exact(&mut request).is_ok() {
        if request[0] == b'n' {
            let tun = Tun::open("tacit%d").unwrap();
            descriptor::send(&channel, b"+", &[tun.as_fd()]).unwrap();
            continue;
        }
        let protocol = if request[0] == b't' { IpProtocol::Tcp } else { IpProtocol::Udp };
        let version = if request[1] == b'4' { IpVersion::V4 } else { IpVersion::V6 };
        let wanted = transparent::spoofed_source_spec(protocol, version, nft::SocketMarks::OF_RUNS);
        let socket = transparent::make(wanted).unwrap();
        descriptor::send(&channel, b"+", &[socket.as_fd()]).unwrap();
    }
}

/// Starts another program than this binary inside, and returns the error.
pub(crate) fn start_error(run: &Run<'_>, program: &str) -> spawn::SpawnError {
    let user = (!rustix::process::geteuid().is_root()).then(|| run.sockets.user.as_fd());
    let inside = SpawnOptions {
        network: run.sockets.network.as_fd(),
        user,
        hide: &[],
        original: run.original,
        dies_with_parent: false,
        cpus: &[],
        listener_to: None,
        connects: ConnectCalls::Allowed,
    };
    spawn::spawn(Command::new(program), &inside).unwrap_err()
}
