//! Finds the program, user and control group of a socket of the host. Also lists the sockets that
//! are connected to other hosts.
//!
//! The kernel reports the user and the control group of a socket over netlink (`sock_diag`). The
//! nftables rules of the host select packets by the same two values. This module finds the program
//! only if the calling process may inspect other processes (`CAP_SYS_PTRACE`).
//!
//! Limits: at most [`OWNERS_TIME_MAX`] to find the owners for one request, and at most
//! [`COVERAGE_SOCKETS_MAX`] sockets in the list.

use std::collections::{HashMap, HashSet};
use std::io;
use std::iter;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tacit_core::coverage::COVERAGE_SOCKETS_MAX;
use tacit_core::flow::{self, Direction};
use tacit_core::policy::HostSettings;
use tacit_sys::IpVersion;
use tacit_sys::netlink::diag::{self, DiagSocket};
use tacit_sys::netlink::nft::host::HostMarks;
use tacit_sys::netlink::{self, Netlink, Subsystem};
use tacit_sys::owner;
use tacit_sys::sandbox::{self, CapabilitySet};

use crate::address;
use crate::cgroups::Cgroups;
use crate::run::kernel_terms::ip_protocol;
use crate::run::protocol::{HostSocket, SocketEnds, SocketOwner};

/// Time limit for the owners of one request, because other requests wait meanwhile. An owner that
/// is not found in time is unknown.
const OWNERS_TIME_MAX: Duration = Duration::from_millis(200);
/// The process from which all others descend.
const INIT: u32 = 1;

/// Looks up owners in the network namespace of this process.
#[derive(Debug)]
pub(crate) struct Owners {
    diagnosis: Netlink,
    cgroups: Cgroups,
    sees_programs: bool,
    /// The programs of sockets that were listed, by their numbers.
    programs: HashMap<u64, Option<SeenProgram>>,
}

/// Whether the program of a socket is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramSearch {
    /// In all processes, which takes milliseconds.
    EachProcess,
    /// Only the user and the control group are read.
    Omitted,
}

/// What holds a socket.
#[derive(Clone, Debug)]
struct SeenProgram {
    pid: u32,
    path: Option<PathBuf>,
}

/// The connected sockets of a host.
struct Connected {
    sockets: Vec<(flow::Protocol, DiagSocket)>,
    /// The ports on which sockets listen for TCP.
    listening: HashSet<u16>,
}

impl Owners {
    /// # Errors
    /// The kernel has no socket diagnosis.
    pub(crate) fn open() -> io::Result<Self> {
        let diagnosis = Netlink::open(Subsystem::SocketDiagnosis).map_err(io::Error::other)?;
        let sees_programs = sandbox::capabilities()?.contains(CapabilitySet::SYS_PTRACE);
        let cgroups = Cgroups::new(Instant::now());
        Ok(Self { diagnosis, cgroups, sees_programs, programs: HashMap::new() })
    }

    /// Returns the owners in the order of the request. Flows come from programs of this host and
    /// from these interfaces.
    pub(super) fn find(
        &mut self,
        all: &[SocketEnds],
        forwarded: &[String],
    ) -> Vec<Option<SocketOwner>> {
        let until = Instant::now() + OWNERS_TIME_MAX;
        let in_time = |ends| (Instant::now() < until).then_some(ends);
        all.iter().map(|ends| self.find_one(*in_time(ends)?, forwarded)).collect()
    }

    fn find_one(&mut self, ends: SocketEnds, forwarded: &[String]) -> Option<SocketOwner> {
        let SocketEnds { protocol, program, peer } = ends;
        let found = diag::owner(&mut self.diagnosis, ip_protocol(protocol), program, peer).ok()?;
        // A socket of this host that is bound to no address has the port of a container's flow by
        // chance.
        let is_bound =
            |socket: &DiagSocket| canonical(socket.local).ip() == program.ip().to_canonical();
        let is_found = found.as_ref().is_some_and(is_bound);
        if !is_found && !forwarded.is_empty() && is_elsewhere(program.ip()) {
            return Some(no_program_of_host());
        }
        let socket = found.filter(|socket| is_held(socket, ends))?;
        Some(self.described(&socket, ProgramSearch::EachProcess))
    }

    /// Returns the owner of the socket that uses a flow; `None` if it is a socket of the agent, or
    /// none of this host.
    pub(crate) fn user_of(
        &mut self,
        ends: SocketEnds,
        search: ProgramSearch,
    ) -> Option<SocketOwner> {
        let socket = self.socket(ends).filter(|socket| is_held(socket, ends))?;
        Some(self.described(&socket, search))
    }

    /// Whether a socket of this host uses a flow, or has used it and is closed: the kernel keeps
    /// closed sockets for a time, without their owners.
    pub(crate) fn has_socket(&mut self, ends: SocketEnds) -> bool {
        self.socket(ends).is_some_and(|socket| {
            canonical(socket.local) == canonical(ends.program)
                && canonical(socket.peer) == canonical(ends.peer)
        })
    }

    /// Returns the owner of the socket that listens for TCP at this address; `None` if it is a
    /// socket of the agent, or no program of this host listens there.
    pub(crate) fn listener_at(
        &mut self,
        local: SocketAddr,
        search: ProgramSearch,
    ) -> Option<SocketOwner> {
        // No connection has this peer, so the kernel finds the listening socket.
        let peer = SocketAddr::new(IpVersion::of(local.ip()).unspecified(), 0);
        let ends = SocketEnds { protocol: flow::Protocol::Tcp, program: local, peer };
        let listens = |socket: &DiagSocket| {
            socket.inode != 0 && socket.peer.port() == 0 && socket.local.port() == local.port()
        };
        let socket = self.socket(ends).filter(listens)?;
        Some(self.described(&socket, search))
    }

    fn socket(&mut self, ends: SocketEnds) -> Option<DiagSocket> {
        let SocketEnds { protocol, program, peer } = ends;
        let found = diag::owner(&mut self.diagnosis, ip_protocol(protocol), program, peer);
        found.ok().flatten().filter(|socket| !is_of_agent(socket, default_agent_mark()))
    }

    fn described(&mut self, socket: &DiagSocket, search: ProgramSearch) -> SocketOwner {
        let searches = self.sees_programs && search == ProgramSearch::EachProcess;
        let program = searches.then(|| holder(socket.inode)).flatten();
        let user = address::user_name(socket.uid);
        self.owner(socket, program, user)
    }

    fn owner(
        &mut self,
        socket: &DiagSocket,
        program: Option<SeenProgram>,
        user: String,
    ) -> SocketOwner {
        let id = socket.cgroup;
        SocketOwner {
            pid: program.as_ref().map(|program| program.pid),
            program: program.and_then(|program| program.path),
            user: Some(user),
            cgroup: id.and_then(|id| self.cgroups.path(id, Instant::now())).map(str::to_owned),
        }
    }

    /// Lists the connected sockets of programs, to other hosts, without those of the agent.
    pub(crate) fn list(&mut self, agent_mark: u32) -> io::Result<Vec<HostSocket>> {
        let Connected { mut sockets, listening } = self.connected()?;
        sockets.retain(|(_, one)| !is_of_agent(one, agent_mark));
        // Both ends of a connection within the host are in the list.
        let here: HashSet<_> = sockets.iter().map(|(_, one)| (one.local, one.peer)).collect();
        sockets.retain(|(_, one)| {
            !one.peer.ip().is_loopback()
                && one.peer.ip() != one.local.ip()
                && !here.contains(&(one.peer, one.local))
        });
        sockets.truncate(COVERAGE_SOCKETS_MAX);
        self.search_programs(&sockets);
        let mut users: HashMap<u32, String> = HashMap::new();
        let listed = sockets.into_iter().map(|(protocol, socket)| {
            let is_inbound =
                protocol == flow::Protocol::Tcp && listening.contains(&socket.local.port());
            let program = self.programs.get(&socket.cookie).cloned().flatten();
            let user = users.entry(socket.uid).or_insert_with(|| address::user_name(socket.uid));
            HostSocket {
                ends: SocketEnds { protocol, program: socket.local, peer: socket.peer },
                cookie: socket.cookie,
                direction: if is_inbound { Direction::Inbound } else { Direction::Outbound },
                owner: self.owner(&socket, program, user.clone()),
            }
        });
        Ok(listed.collect())
    }

    /// Lists all connected sockets, and the ports on which sockets listen.
    fn connected(&mut self) -> io::Result<Connected> {
        let mut all = Connected { sockets: Vec::new(), listening: HashSet::new() };
        for version in IpVersion::ALL {
            match self.connected_over(version, &mut all) {
                // The kernel may lack IPv6.
                Err(error) if version == IpVersion::V4 => return Err(io::Error::other(error)),
                Ok(()) | Err(_) => {}
            }
        }
        for (_, socket) in &mut all.sockets {
            (socket.local, socket.peer) = (canonical(socket.local), canonical(socket.peer));
        }
        Ok(all)
    }

    fn connected_over(
        &mut self,
        version: IpVersion,
        all: &mut Connected,
    ) -> Result<(), netlink::Error> {
        let listeners = diag::listeners(&mut self.diagnosis, version)?;
        all.listening.extend(listeners.iter().map(|one| one.local.port()));
        for protocol in [flow::Protocol::Tcp, flow::Protocol::Udp] {
            let found = diag::connected(&mut self.diagnosis, ip_protocol(protocol), version)?;
            all.sockets.extend(found.into_iter().map(|socket| (protocol, socket)));
        }
        Ok(())
    }

    /// Searches for the programs of sockets whose programs are not known, with one look at each
    /// process. What is not found in time is searched for again with the next list.
    fn search_programs(&mut self, sockets: &[(flow::Protocol, DiagSocket)]) {
        let open: HashSet<_> = sockets.iter().map(|(_, one)| one.cookie).collect();
        self.programs.retain(|cookie, _| open.contains(cookie));
        let unknown = sockets.iter().map(|(_, one)| one);
        let unknown = unknown.filter(|one| !self.programs.contains_key(&one.cookie));
        let mut wanted: HashMap<u32, u64> = unknown.map(|one| (one.inode, one.cookie)).collect();
        if !self.sees_programs || wanted.is_empty() {
            return;
        }
        let until = Instant::now() + OWNERS_TIME_MAX;
        for pid in iter::once(INIT).chain(owner::descendants(INIT)) {
            if Instant::now() >= until {
                return;
            }
            let mut path = None;
            // A process that has ended holds nothing any more.
            let _ = owner::each_socket(pid, |inode| {
                if let Some(cookie) = wanted.remove(&inode) {
                    let program = path.get_or_insert_with(|| SeenProgram::of(pid)).clone();
                    self.programs.insert(cookie, Some(program));
                }
                ControlFlow::Continue(())
            });
        }
        self.programs.extend(wanted.into_values().map(|cookie| (cookie, None)));
    }
}

impl SeenProgram {
    fn of(pid: u32) -> Self {
        Self { pid, path: std::fs::read_link(format!("/proc/{pid}/exe")).ok() }
    }
}

/// The mark of an agent's own sockets, unless its policy has `mark`.
pub(crate) fn default_agent_mark() -> u32 {
    // The default has two bits.
    HostMarks::new(HostSettings::MARK_DEFAULT).map_or(0, HostMarks::agent)
}

/// Whether a socket is the agent's: it is transparent, or marks its packets as the agent's.
fn is_of_agent(socket: &DiagSocket, agent_mark: u32) -> bool {
    socket.is_transparent || socket.mark.is_some_and(|mark| mark & agent_mark != 0)
}

/// Whether a program holds this socket and uses it for the flow. The kernel also finds listeners,
/// and sockets that their program has closed; it reports those as root's.
fn is_held(socket: &DiagSocket, ends: SocketEnds) -> bool {
    let local = canonical(socket.local);
    let is_own = local.port() == ends.program.port()
        && (local.ip().is_unspecified() || local.ip() == ends.program.ip().to_canonical());
    let is_connected = canonical(socket.peer) == canonical(ends.peer);
    let is_flows = match ends.protocol {
        flow::Protocol::Tcp => is_own && is_connected,
        // A socket that is not connected sends to every peer.
        flow::Protocol::Udp | flow::Protocol::Icmp => {
            is_own && (is_connected || socket.peer.port() == 0)
        }
    };
    socket.inode != 0 && is_flows
}

/// The owner of a flow that no program of this host has opened: rules that name owners are for
/// others.
fn no_program_of_host() -> SocketOwner {
    SocketOwner {
        pid: None,
        program: Some(PathBuf::new()),
        user: Some(String::new()),
        cgroup: Some(String::new()),
    }
}

/// Whether an address is not one of this host: it cannot be bound.
fn is_elsewhere(address: IpAddr) -> bool {
    let bound = UdpSocket::bind((address.to_canonical(), 0));
    bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn holder(inode: u32) -> Option<SeenProgram> {
    let is_init = inode != 0 && owner::holds(INIT, inode).unwrap_or(false);
    let pid = if is_init { INIT } else { owner::holder(INIT, inode)? };
    Some(SeenProgram::of(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_another_host_is_elsewhere() {
        assert!(is_elsewhere([192, 0, 2, 77].into()));
        for here in ["127.0.0.1", "::ffff:127.0.0.1", "fe80::1"] {
            assert!(!is_elsewhere(here.parse().unwrap()), "{here}");
        }
    }
}
