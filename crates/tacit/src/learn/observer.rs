//! Combines lists of sockets and copies of packets, and finds out who owns a connection.
//!
//! ```text
//! outbound   a SYN is sent, and a socket of this host has sent it; then a server accepts it
//! inbound    a program of this host listens at the port, and the kernel accepts a connection
//! ```
//!
//! So packets from the network alone add no rule. Packets that are forwarded belong to no socket.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_core::flow::{Direction, Protocol};
use tacit_core::held::FlowEnds;
use tacit_core::learn::{FlowOwner, LearntFlow, LearntTraffic, SeenPacket};
use tacit_core::policy::unit_of;
use tacit_sys::packet_watch::{COPY_BYTES_MAX, PacketCopy, PacketWatch};

use super::LearnError;
use crate::host::{Owners, ProgramSearch, default_agent_mark};
use crate::run::protocol::{SocketEnds, SocketOwner};

/// How long searches for programs may take in a second. A search reads the descriptors of all
/// processes.
const SEARCH_TIME_MAX: Duration = Duration::from_millis(200);
/// How long copies that wait at the end are read.
const LAST_PACKETS_TIME_MAX: Duration = Duration::from_secs(1);
/// The longest path of a program.
const PATH_CHARACTERS_MAX: usize = 256;
const SECOND: Duration = Duration::from_secs(1);

/// Observes the connections of this host.
pub(super) struct Observer {
    packets: PacketWatch,
    owners: Owners,
    traffic: LearntTraffic,
    /// The unit whose programs are observed; `None`: all.
    unit: Option<String>,
    buffer: Vec<u8>,
    /// The owners of listening sockets by their ports, since the last list.
    listeners: HashMap<u16, Option<FlowOwner>>,
    /// How long searches for programs took in the second that began then.
    searched: Duration,
    second: Instant,
    /// Why a list of sockets failed.
    list_error: Option<io::Error>,
}

impl Observer {
    pub(super) fn open(unit: Option<String>) -> Result<Self, LearnError> {
        let mut observer = Self {
            packets: PacketWatch::open().map_err(LearnError::Packets)?,
            owners: Owners::open().map_err(LearnError::Sockets)?,
            traffic: LearntTraffic::default(),
            unit,
            buffer: vec![0; COPY_BYTES_MAX],
            listeners: HashMap::new(),
            searched: Duration::ZERO,
            second: Instant::now(),
            list_error: None,
        };
        observer.list_sockets();
        match observer.list_error.take() {
            Some(error) => Err(LearnError::Sockets(error)),
            None => Ok(observer),
        }
    }

    /// The socket that is readable if copies wait.
    pub(super) fn packets(&self) -> Arc<OwnedFd> {
        Arc::clone(self.packets.socket())
    }

    pub(super) fn traffic(&self) -> &LearntTraffic {
        &self.traffic
    }

    /// The number of copies for which the kernel had no room.
    pub(super) fn packets_lost(&self) -> u32 {
        self.packets.dropped().unwrap_or(0)
    }

    /// Why the last list of sockets that failed has failed.
    pub(super) fn list_error(&self) -> Option<&io::Error> {
        self.list_error.as_ref()
    }

    /// Counts the connected sockets.
    pub(super) fn list_sockets(&mut self) {
        self.listeners.clear();
        let now = Instant::now();
        self.traffic.expire(now);
        match self.owners.list(default_agent_mark()) {
            Ok(sockets) => sockets.into_iter().for_each(|socket| {
                self.count(socket.direction, socket.ends, flow_owner(socket.owner), now);
            }),
            Err(error) => self.list_error = Some(error),
        }
    }

    /// Reads a copy of a packet; returns false if there is none.
    pub(super) fn read_packet(&mut self) -> io::Result<bool> {
        let PacketCopy { bytes, is_sent } = match self.packets.receive(&mut self.buffer) {
            Ok(copy) => copy,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            // An interface has gone down: its error does not concern the others.
            Err(error) if error.kind() == io::ErrorKind::NetworkDown => return Ok(true),
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        match self.buffer.get(..bytes).and_then(SeenPacket::parse) {
            Some(SeenPacket::Question(exchange)) => self.traffic.take_question(exchange, now),
            Some(SeenPacket::Answer { exchange, addresses })
                if self.traffic.was_asked(&exchange, now) =>
            {
                self.take_server(exchange.ends, now);
                self.traffic.take_names(&exchange.name, &addresses);
            }
            Some(SeenPacket::ServerHello(ends)) => self.traffic.note_tls(ends),
            Some(SeenPacket::Opened(ends)) => self.take_opened(ends, now),
            Some(SeenPacket::Accepted(ends)) if is_sent => self.take_inbound(ends, now),
            Some(SeenPacket::Accepted(ends)) => {
                self.traffic.accept(ends, now);
            }
            Some(SeenPacket::Answer { .. }) | None => {}
        }
        Ok(true)
    }

    /// Reads the copies that wait at the end.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.packets.end()?;
        let until = Instant::now() + LAST_PACKETS_TIME_MAX;
        while self.read_packet()? && Instant::now() < until {}
        Ok(())
    }

    /// A SYN is sent.
    fn take_opened(&mut self, ends: FlowEnds, now: Instant) {
        let FlowEnds { program, destination: peer } = ends;
        let socket = SocketEnds { protocol: Protocol::Tcp, program, peer };
        let owner = match self.look_up(|owners, search| owners.user_of(socket, search)) {
            Some(owner) => flow_owner(owner),
            // The program has closed it already.
            None if self.owners.has_socket(socket) => FlowOwner::default(),
            None => return,
        };
        if self.is_observed(&owner) {
            self.traffic.open(ends, owner, now);
        }
    }

    /// The kernel accepts a connection.
    fn take_inbound(&mut self, FlowEnds { program, destination }: FlowEnds, now: Instant) {
        let Some(owner) = self.listener(destination) else { return };
        let protocol = Protocol::Tcp;
        let ends = SocketEnds { protocol, program: destination, peer: program };
        self.count(Direction::Inbound, ends, owner, now);
    }

    /// The owner of the socket that listens at this address.
    fn listener(&mut self, local: SocketAddr) -> Option<FlowOwner> {
        if let Some(known) = self.listeners.get(&local.port()) {
            return known.clone();
        }
        let found = self.look_up(|owners, search| owners.listener_at(local, search));
        let found = found.map(flow_owner);
        self.listeners.insert(local.port(), found.clone());
        found
    }

    /// A DNS server answers. The program is not known: its socket is often closed by now.
    fn take_server(&mut self, ends: FlowEnds, now: Instant) {
        if self.unit.is_none() {
            let FlowEnds { program: local, destination: remote } = ends;
            let direction = Direction::Outbound;
            let protocol = Protocol::Udp;
            self.traffic.count(LearntFlow { direction, protocol, local, remote, owner: None }, now);
        }
    }

    /// Counts a connection of the observed unit.
    fn count(&mut self, direction: Direction, ends: SocketEnds, owner: FlowOwner, now: Instant) {
        if self.is_observed(&owner) {
            let SocketEnds { protocol, program: local, peer: remote } = ends;
            let owner = Some(owner);
            self.traffic.count(LearntFlow { direction, protocol, local, remote, owner }, now);
        }
    }

    fn is_observed(&self, owner: &FlowOwner) -> bool {
        self.unit.is_none() || self.unit == owner.unit
    }

    /// Looks up a socket, with its program if there is time for a search in this second.
    fn look_up(
        &mut self,
        find: impl FnOnce(&mut Owners, ProgramSearch) -> Option<SocketOwner>,
    ) -> Option<SocketOwner> {
        let now = Instant::now();
        if now.duration_since(self.second) >= SECOND {
            self.second = now;
            self.searched = Duration::ZERO;
        }
        if self.searched >= SEARCH_TIME_MAX {
            return find(&mut self.owners, ProgramSearch::Omitted);
        }
        let found = find(&mut self.owners, ProgramSearch::EachProcess);
        if found.is_some() {
            self.searched += now.elapsed();
        }
        found
    }
}

fn flow_owner(owner: SocketOwner) -> FlowOwner {
    let cut = |path: String| path.chars().take(PATH_CHARACTERS_MAX).collect();
    FlowOwner {
        unit: owner.cgroup.as_deref().and_then(unit_of).map(str::to_owned).map(cut),
        user: owner.user,
        program: owner.program.map(|path| cut(path.display().to_string())),
    }
}
