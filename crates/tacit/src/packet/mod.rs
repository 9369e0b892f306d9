//! Encrypts and decrypts the packets of IPsec tunnels, and moves them between TUN devices and
//! peers.
//!
//! ```text
//!  programs ── TUN device of a run ─┐                         ┌─ ESP in UDP ── peer
//!  programs ── TUN device of a run ─┴─ thread `tacit-packet` ─┴─ ESP in UDP ── peer
//!                                          │         ^
//!                                   events v         │ orders
//!                                        the IKE thread
//!
//!  events   received IKE messages, packets that need a new tunnel, keys that need a successor
//!  orders   devices and tunnels to add or remove
//! ```
//!
//! [`PacketWorker`] is the handle of the thread. The thread owns all devices and tunnels of one
//! [`Underlay`] (the sockets to the peers). The thread does not know the policy: each [`Tunnel`]
//! contains a list of the permitted flows. The thread drops packets for which there is no tunnel,
//! and never sends them in clear.
//!
//! Normally, one thread serves both directions. If this thread is an engine (a thread with a CPU of
//! its own) and is saturated, a second thread, `tacit-receive`, can serve the inbound direction
//! (see `plan`).
//!
//! Without an engine, there is no second thread, because measurements show no clear benefit:
//! * A permanent second thread makes a stream on two idle CPUs 13 % faster, with 9 % less CPU time.
//!   But if other programs also use the CPUs, a request takes 1.6 ms instead of 65 us.
//! * A second thread that runs only during large transfers does not delay requests. But this thread
//!   does not make streams on busy CPUs faster.
//!
//! The address of a peer can change only if the tunnel to the peer has [`PeerAddress::Roaming`].
//! The thread takes the new address from a packet that passes the integrity check and has the
//! highest sequence number so far.
//!
//! In reading order: `tunnel`, `answers`, `filter`, `filter_reader`, `flow_cache`, `table`,
//! `halves`, `outbound`, `inbound`, `plan`, `polling`, `thread`, `spill`, `order`, `inbound_half`,
//! `pipeline`.

mod accounts;
mod answers;
mod context;
mod device;
mod direction;
mod filter;
mod filter_reader;
mod flow_cache;
mod halves;
mod inbound;
mod inbound_half;
mod lease;
mod order;
mod outbound;
mod pipeline;
mod plan;
mod polling;
mod spill;
mod statistics;
mod table;
#[cfg(test)]
pub(crate) mod testing;
mod thread;
mod tunnel;
mod underlay;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use tacit_ipsec::EspSpi;
use tacit_ipsec::esp::{DropReason, KeyLengthError};
use tacit_ipsec::packet::IpPacket;
use tacit_sys::sandbox::WorkerRights;
use tacit_sys::tun::Tun;

pub use accounts::TunnelAccounts;
pub(crate) use accounts::tunnel_packet;
pub(crate) use direction::Direction;
pub use filter::{FilterCounter, TunnelFilter, TunnelFilters};
pub use lease::{TunLease, TunLeaseWatch};
pub use plan::{PacketEngine, PacketThreads};
pub use spill::SpillLimits;
pub use statistics::{
    PacketStatistics, PacketThreadState, PacketVolume, SaVolume, Traffic, TunnelStatistics,
};
pub use tunnel::{FlowOpener, PeerAddress, TunId, Tunnel, TunnelFlow, TunnelPackets};
pub use underlay::{RawKind, RawUnderlay, Underlay};

use context::{Context, ThreadRole};
use halves::InstalledTunnel;
use inbound_half::{NoOrder, Receiving, SharedInbound};
use order::Order;
use pipeline::Pipeline;
use spill::SpillMeter;
use statistics::Counters;
use thread::{PacketThread, ThreadParts, ThreadSetup};

/// The handle of the threads. The threads end when the handle is dropped.
#[derive(Debug)]
pub struct PacketWorker {
    underlay: Arc<Underlay>,
    counters: Arc<Counters>,
    next_tun: AtomicU64,
    pipeline: PacketThread<Order>,
    /// Receives while the engine is saturated; `None`: the pipeline always receives.
    second: Option<PacketThread<NoOrder>>,
}

/// Where the thread reports events.
pub trait PacketEvents: Send {
    /// Takes an event without waiting.
    ///
    /// # Errors
    /// The event is lost, for this reason.
    fn take(&mut self, event: PacketEvent) -> Result<(), DropReason>;
}

impl PacketEvents for SyncSender<PacketEvent> {
    fn take(&mut self, event: PacketEvent) -> Result<(), DropReason> {
        self.try_send(event).map_err(|_| DropReason::Queue)
    }
}

/// What the thread reports. A full queue loses events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketEvent {
    /// An IKE message has arrived.
    Ike(IkeDatagram),
    /// No tunnel takes a packet of this device. Reported once a second for each destination.
    Demand {
        /// The device.
        tun: TunId,
        /// The headers of the packet.
        packet: IpPacket,
    },
    /// Packets of this device were refused, because no tunnel took them in time. Reported once a
    /// second for each destination.
    Refused {
        /// The device.
        tun: TunId,
        /// The headers of the first of these packets.
        packet: IpPacket,
        /// Their number.
        count: u64,
    },
    /// The keys of the tunnel with this inbound SPI need a successor, because they have protected
    /// much data. Repeated several times a second while packets arrive.
    RekeyDue(EspSpi),
    /// The peer of the tunnel with this inbound SPI has another address, to which packets are sent
    /// from now on.
    PeerMoved {
        /// The SPI.
        spi: EspSpi,
        /// The new address.
        to: SocketAddr,
    },
    /// The path of the tunnel with this inbound SPI takes packets of another length than was
    /// reported before. Reported at most once a second, and for each new tunnel.
    PathLearnt {
        /// The SPI.
        spi: EspSpi,
        /// The length of the longest packet that is not fragmented.
        inner_bytes_max: usize,
    },
}

/// An IKE message of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IkeDatagram {
    /// The sender.
    pub from: SocketAddr,
    /// The message, without the non-ESP marker.
    pub message: Vec<u8>,
}

/// Why an order has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketWorkerError {
    /// The keys do not have the lengths that their cipher requires.
    KeyLength(KeyLengthError),
    /// Another tunnel has this inbound SPI.
    SpiInUse(EspSpi),
    /// The thread has ended, because of a fault in tacit.
    Ended,
}

impl PacketWorker {
    /// Starts the threads. Events are sent to a bounded queue of the caller.
    ///
    /// # Errors
    /// The threads or their descriptors cannot be created, or the kernel refuses the CPU or the
    /// scheduling class of the engine.
    pub fn start(
        underlay: Underlay,
        events: impl PacketEvents + Clone + 'static,
        threads: PacketThreads,
    ) -> io::Result<Self> {
        let PacketThreads { engine, second } = threads;
        let underlay = Arc::new(underlay);
        let counters = Arc::<Counters>::default();
        let parts = ThreadParts::new()?;
        let meter = second.map(SpillMeter::new);
        let second = second.map(|limits| Ok::<_, io::Error>((limits, ThreadParts::new()?)));
        let second = second.transpose()?;
        let context = Context::new(&underlay, &counters, Direction::Inbound, events.clone());
        let limits = second.as_ref().map(|(limits, parts)| (*limits, parts.descriptors()));
        let inbound = SharedInbound::new(context, parts.descriptors(), parts.sender(), limits)?;
        let context = Context::new(&underlay, &counters, Direction::Outbound, events);
        let pipeline = Pipeline::new(context, parts.descriptors(), inbound.clone(), meter);
        let setup = |name, role, engine| {
            let counters = Arc::clone(&counters);
            ThreadSetup { name, role, engine, counters }
        };
        let pipeline =
            parts.start(setup("tacit-packet", ThreadRole::Pipeline, engine), pipeline)?;
        let receiving = |(_, parts): (_, ThreadParts<_>)| {
            parts
                .start(setup("tacit-receive", ThreadRole::Second, None), Receiving(inbound.clone()))
        };
        let second = second.map(receiving).transpose()?;
        Ok(Self { underlay, counters, next_tun: AtomicU64::new(1), pipeline, second })
    }

    /// Makes the threads give up the rights that moving packets does not need: capabilities, files,
    /// programs, new threads. The process has set `no_new_privs` before the threads were started.
    ///
    /// # Errors
    /// The kernel does not support it, or a thread has ended.
    pub fn confine(&self, rights: WorkerRights) -> io::Result<()> {
        if let Some(second) = &self.second {
            second.confine(rights)?;
        }
        self.pipeline.confine(rights)
    }

    /// Reads and writes this device from now on.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn add_tun(&self, tun: Tun) -> Result<TunId, PacketWorkerError> {
        let id = TunId(self.next_tun.fetch_add(1, Ordering::Relaxed));
        self.pipeline.order(Order::AddTun(id, tun))?;
        Ok(id)
    }

    /// Closes a device and removes its tunnels.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn remove_tun(&self, tun: TunId) -> Result<(), PacketWorkerError> {
        self.counters.remove_tun(tun);
        self.pipeline.order(Order::RemoveTun(tun))
    }

    /// Reads no more packets of programs: they wait in the devices for another agent. Packets of
    /// peers are still written to the devices.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn stop_reading(&self) -> Result<(), PacketWorkerError> {
        self.pipeline.order(Order::StopReading)
    }

    /// Adds a tunnel. Its inbound packets are accepted from now on; packets are sent through it
    /// after [`Self::activate`].
    ///
    /// # Errors
    /// The keys have wrong lengths, another tunnel has the inbound SPI, or the thread has ended.
    pub fn install(&self, tunnel: Tunnel) -> Result<(), PacketWorkerError> {
        let installed = InstalledTunnel::new(tunnel).map_err(PacketWorkerError::KeyLength)?;
        let spi = installed.spi;
        if !self.counters.add(spi, installed.counters()) {
            return Err(PacketWorkerError::SpiInUse(spi));
        }
        self.pipeline.order(Order::Install(Box::new(installed)))
    }

    /// Sends packets through the tunnel with this inbound SPI, in preference to those before it.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn activate(&self, inbound_spi: EspSpi) -> Result<(), PacketWorkerError> {
        self.pipeline.order(Order::Activate(inbound_spi))
    }

    /// Sends the packets of the tunnel with this inbound SPI to another address of its peer, if the
    /// tunnel has [`PeerAddress::Roaming`].
    ///
    /// # Errors
    /// The thread has ended.
    pub fn move_peer(&self, inbound_spi: EspSpi, to: SocketAddr) -> Result<(), PacketWorkerError> {
        self.pipeline.order(Order::MovePeer(inbound_spi, to))
    }

    /// Permits other packets in the tunnel with this inbound SPI. Its keys and sequence numbers
    /// stay.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn permit(
        &self,
        inbound_spi: EspSpi,
        packets: TunnelPackets,
    ) -> Result<(), PacketWorkerError> {
        self.pipeline.order(Order::Permit(inbound_spi, Box::new(packets)))
    }

    /// Returns how many packets the tunnel with this inbound SPI has sent.
    #[must_use]
    pub fn sent_packets(&self, inbound_spi: EspSpi) -> u64 {
        self.counters.sent_packets(inbound_spi)
    }

    /// Returns how many authentic packets the tunnel with this inbound SPI has received.
    #[must_use]
    pub fn received_packets(&self, inbound_spi: EspSpi) -> u64 {
        self.counters.received_packets(inbound_spi)
    }

    /// Removes the tunnel with this inbound SPI, in both directions.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn remove(&self, inbound_spi: EspSpi) -> Result<(), PacketWorkerError> {
        self.counters.remove(inbound_spi);
        self.pipeline.order(Order::Remove(inbound_spi))
    }

    /// Sends an IKE message, behind the non-ESP marker.
    ///
    /// # Errors
    /// The error of `sendmsg`, for example that there is no route.
    pub fn send_ike(&self, message: &[u8], to: SocketAddr) -> io::Result<()> {
        self.underlay.send_ike(message, to)
    }

    /// Sends a keepalive, which renews the mapping of a NAT.
    ///
    /// # Errors
    /// The error of `sendmsg`.
    pub fn send_keepalive(&self, to: SocketAddr) -> io::Result<()> {
        self.underlay.send_keepalive(to)
    }

    /// Returns the counters.
    #[must_use]
    pub fn statistics(&self) -> PacketStatistics {
        let threads = [Some(self.pipeline.state()), self.second.as_ref().map(PacketThread::state)];
        PacketStatistics {
            queue: self.underlay.receive_queue(),
            threads: threads.into_iter().flatten().collect(),
            ..self.counters.snapshot()
        }
    }
}

impl fmt::Display for PacketWorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyLength(error) => {
                write!(
                    f,
                    "the keys do not have the length that the cipher needs: {error:?}; this is a \
                     bug in tacit"
                )
            }
            Self::SpiInUse(spi) => {
                write!(f, "another tunnel already uses the inbound SPI {:08x}", spi.number())
            }
            Self::Ended => {
                write!(f, "a thread that moves packets has ended; this is a bug in tacit")
            }
        }
    }
}

impl std::error::Error for PacketWorkerError {}
