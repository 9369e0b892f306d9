//! Combines lists of sockets and copies of packets, and finds out who owns a connection.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_core::flow::{Direction, Protocol};
use tacit_core::held::FlowEnds;
use tacit_core::learn::{FlowOwner, LearntFlow, LearntTraffic, SeenPacket};
use tacit_core::policy::unit_of;
use tacit_sys::netlink::nft::AGENT_MARK;
use tacit_sys::packet_watch::{COPY_BYTES_MAX, PacketWatch};

use super::LearnError;
use crate::host::{Owners, ProgramSearch, is_elsewhere};
use crate::run::protocol::{SocketEnds, SocketOwner};

/// The maximum number of searches for the program of a connection in a second. A search reads the
/// descriptors of all processes.
pub(super) const SEARCHES_MAX: u32 = 20;
/// The maximum number of copies that are read after the end.
const LAST_PACKETS_MAX: usize = 65_536;
const SECOND: Duration = Duration::from_secs(1);

/// Observes the connections of this host.
pub(super) struct Observer {
    packets: PacketWatch,
    owners: Owners,
    traffic: LearntTraffic,
    /// The unit whose programs are observed; `None`: all.
    unit: Option<String>,
    buffer: Vec<u8>,
    /// The searches for programs in the second that began then.
    searches: u32,
    second: Instant,
    lost: u64,
}

impl Observer {
    pub(super) fn open(unit: Option<String>) -> Result<Self, LearnError> {
        Ok(Self {
            packets: PacketWatch::open().map_err(LearnError::Packets)?,
            owners: Owners::open().map_err(LearnError::Sockets)?,
            traffic: LearntTraffic::default(),
            unit,
            buffer: vec![0; COPY_BYTES_MAX],
            searches: 0,
            second: Instant::now(),
            lost: 0,
        })
    }

    /// The socket that is readable if copies wait.
    pub(super) fn packets(&self) -> Arc<OwnedFd> {
        Arc::clone(self.packets.socket())
    }

    pub(super) fn traffic(&self) -> &LearntTraffic {
        &self.traffic
    }

    pub(super) fn into_traffic(self) -> LearntTraffic {
        self.traffic
    }

    /// The number of packets that were copied and not read.
    pub(super) fn packets_lost(&self) -> u64 {
        self.lost
    }

    /// Counts the connected sockets. Sockets that cannot be listed now are in the next list.
    pub(super) fn list_sockets(&mut self) {
        self.lost = self.packets.dropped().map_or(self.lost, u64::from);
        let now = Instant::now();
        for socket in self.owners.list(AGENT_MARK).unwrap_or_default() {
            self.count_owned(socket.direction, socket.ends, Some(socket.owner));
        }
        self.traffic.expire(now);
    }

    /// Reads a copy of a packet; returns false if there is none.
    pub(super) fn read_packet(&mut self) -> io::Result<bool> {
        let bytes = match self.packets.receive(&mut self.buffer) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            // An interface has gone down: its error does not concern the others.
            Err(error) if error.kind() == io::ErrorKind::NetworkDown => return Ok(true),
            Err(error) => return Err(error),
        };
        match self.buffer.get(..bytes).and_then(SeenPacket::parse) {
            Some(SeenPacket::Answer { name, addresses }) => {
                self.traffic.take_names(&name, &addresses);
            }
            Some(SeenPacket::ServerHello { server, client }) => {
                self.traffic.note_tls(server, client);
            }
            Some(SeenPacket::Accepted(ends)) => self.take_accepted(ends),
            None => {}
        }
        Ok(true)
    }

    /// Reads the copies that wait at the end.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        for _ in 0..LAST_PACKETS_MAX {
            if !self.read_packet()? {
                break;
            }
        }
        self.lost = self.packets.dropped().map_or(self.lost, u64::from);
        Ok(())
    }

    /// Counts a connection that a server has accepted, if one of its ends is on this host.
    fn take_accepted(&mut self, FlowEnds { program, destination }: FlowEnds) {
        let is_within = destination.ip().is_loopback() || destination.ip() == program.ip();
        if is_within || is_known(&mut self.traffic, program, destination) {
            return;
        }
        let outbound = SocketEnds { protocol: Protocol::Tcp, program, peer: destination };
        let inbound = SocketEnds { program: destination, peer: program, ..outbound };
        let search = self.search();
        match [program, destination].map(|end| !is_elsewhere(end.ip())) {
            [true, false] => {
                // A connection that has ended already has no owner.
                let owner = self.owners.user_of(outbound, search);
                self.count_owned(Direction::Outbound, outbound, owner);
            }
            [false, true] => {
                let owner = self.owners.listener_at(destination, search);
                self.count_owned(Direction::Inbound, inbound, owner);
            }
            // Within the host, or forwarded.
            [true, true] | [false, false] => {}
        }
    }

    fn count_owned(&mut self, direction: Direction, ends: SocketEnds, owner: Option<SocketOwner>) {
        let SocketEnds { protocol, program: local, peer: remote } = ends;
        let owner = owner.map(flow_owner);
        self.count(LearntFlow { direction, protocol, local, remote, owner });
    }

    /// Counts a connection of the observed unit.
    fn count(&mut self, flow: LearntFlow) {
        let unit = flow.owner.as_ref().and_then(|owner| owner.unit.as_ref());
        if self.unit.is_none() || self.unit.as_ref() == unit {
            self.traffic.count(flow, Instant::now());
        }
    }

    /// Whether the program of the next connection is searched for.
    fn search(&mut self) -> ProgramSearch {
        let now = Instant::now();
        if now.duration_since(self.second) >= SECOND {
            self.second = now;
            self.searches = 0;
        }
        if self.searches >= SEARCHES_MAX {
            return ProgramSearch::Omitted;
        }
        self.searches += 1;
        ProgramSearch::EachProcess
    }
}

/// Whether the connection is counted already: the packet was sent again, or passes a second
/// interface.
fn is_known(traffic: &mut LearntTraffic, program: SocketAddr, destination: SocketAddr) -> bool {
    let now = Instant::now();
    let ends =
        [(Direction::Outbound, program, destination), (Direction::Inbound, destination, program)];
    ends.into_iter().any(|(direction, local, remote)| {
        let protocol = Protocol::Tcp;
        let flow = LearntFlow { direction, protocol, local, remote, owner: None };
        traffic.recognises(&flow, now)
    })
}

fn flow_owner(owner: SocketOwner) -> FlowOwner {
    FlowOwner {
        unit: owner.cgroup.as_deref().and_then(unit_of).map(str::to_owned),
        user: owner.user,
        program: owner.program.map(|path| path.display().to_string()),
    }
}
