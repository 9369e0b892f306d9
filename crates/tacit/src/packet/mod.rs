//! Encrypts and decrypts the packets of IPsec tunnels, and moves them between TUN devices and
//! peers.
//!
//! ```text
//!  programs ── TUN device of a run ─┐                         ┌─ ESP in UDP ── peer
//!  programs ── TUN device of a run ─┴─ thread `tacit-packet` ─┴─ ESP in UDP ── peer
//!                                          │         ^
//!           IKE messages, first packets,   v         │  devices, tunnels, IKE messages to send
//!           expiring keys                the IKE thread
//! ```
//!
//! [`PacketWorker`] is the handle of the thread. The thread owns all devices and tunnels of one
//! [`UdpUnderlay`] (the UDP sockets to the peers). The thread does not know the policy: each
//! [`Tunnel`] contains the flows that it permits. The thread drops packets for which there is no
//! tunnel, and never sends them in clear.
//!
//! One thread serves both directions. With a thread for each direction, a stream on two idle CPUs
//! is 13 % faster and costs 9 % less CPU time. But if other programs use the CPUs too, a request
//! takes 1.6 ms instead of 65 us.
//!
//! The address of a peer can change only if its tunnel has [`PeerAddress::Roaming`]. The thread
//! takes the new address from a packet that passes the integrity check and has the highest sequence
//! number so far.
//!
//! In reading order: `tunnel`, `answers`, `flow_cache`, `table`, `outbound`, `inbound`, `thread`.

mod answers;
mod context;
mod device;
mod flow_cache;
mod inbound;
mod lease;
mod outbound;
mod statistics;
mod table;
mod thread;
mod tunnel;
mod underlay;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use tacit_ipsec::EspSpi;
use tacit_ipsec::esp::{DropReason, KeyLengthError};
use tacit_ipsec::packet::IpPacket;
use tacit_sys::sandbox::WorkerRights;
use tacit_sys::tun::Tun;

pub use lease::{TunLease, TunLeaseWatch};
pub use statistics::{PacketStatistics, SaVolume, TunnelStatistics};
pub use tunnel::{FlowOpener, PeerAddress, TunId, Tunnel, TunnelFlow};
pub use underlay::UdpUnderlay;

use context::Context;
use statistics::Counters;
use table::InstalledTunnel;
use thread::{COMMANDS_MAX, Command, PacketThread};

/// The handle of the thread. The thread ends when the handle is dropped.
#[derive(Debug)]
pub struct PacketWorker {
    underlay: Arc<UdpUnderlay>,
    counters: Arc<Counters>,
    commands: SyncSender<Command>,
    wake: Arc<OwnedFd>,
    next_tun: AtomicU64,
    thread: Option<JoinHandle<()>>,
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
    /// much data. Repeated each second.
    RekeyDue(EspSpi),
    /// The peer of the tunnel with this inbound SPI has another address, to which packets are sent
    /// from now on.
    PeerMoved {
        /// The SPI.
        spi: EspSpi,
        /// The new address.
        to: SocketAddr,
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
    /// Starts the thread. Events are sent to a bounded queue of the caller.
    ///
    /// # Errors
    /// The thread or its descriptors cannot be created.
    pub fn start(underlay: UdpUnderlay, events: impl PacketEvents + 'static) -> io::Result<Self> {
        let underlay = Arc::new(underlay);
        let counters = Arc::<Counters>::default();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (commands, orders) = sync_channel(COMMANDS_MAX);
        let context = Context::new(Arc::clone(&underlay), Arc::clone(&counters), Box::new(events));
        let thread = PacketThread::new(Arc::clone(&wake), orders, context)?;
        let thread = std::thread::Builder::new()
            .name("tacit-packet".to_owned())
            .spawn(move || thread.run())?;
        let next_tun = AtomicU64::new(1);
        Ok(Self { underlay, counters, commands, wake, next_tun, thread: Some(thread) })
    }

    /// Makes the thread give up the rights that moving packets does not need: capabilities, files,
    /// programs, new threads. The process has set `no_new_privs` before the thread was started.
    ///
    /// # Errors
    /// The kernel does not support it, or the thread has ended.
    pub fn confine(&self, rights: WorkerRights) -> io::Result<()> {
        let (done, result) = sync_channel(1);
        self.order(Command::Confine(rights, done)).map_err(io::Error::other)?;
        result.recv().map_err(io::Error::other)?
    }

    /// Reads and writes this device from now on.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn add_tun(&self, tun: Tun) -> Result<TunId, PacketWorkerError> {
        let id = TunId(self.next_tun.fetch_add(1, Ordering::Relaxed));
        self.order(Command::AddTun(id, tun))?;
        Ok(id)
    }

    /// Closes a device and removes its tunnels.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn remove_tun(&self, tun: TunId) -> Result<(), PacketWorkerError> {
        self.counters.remove_tun(tun);
        self.order(Command::RemoveTun(tun))
    }

    /// Adds a tunnel. Its inbound packets are accepted from now on; packets are sent through it
    /// after [`Self::activate`].
    ///
    /// # Errors
    /// The keys have wrong lengths, another tunnel has the inbound SPI, or the thread has ended.
    pub fn install(&self, tunnel: Tunnel) -> Result<(), PacketWorkerError> {
        let installed = InstalledTunnel::new(tunnel).map_err(PacketWorkerError::KeyLength)?;
        let spi = installed.inbound.spi();
        if !self.counters.add(spi, installed.counters()) {
            return Err(PacketWorkerError::SpiInUse(spi));
        }
        self.order(Command::Install(Box::new(installed)))
    }

    /// Sends packets through the tunnel with this inbound SPI, in preference to those before it.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn activate(&self, inbound_spi: EspSpi) -> Result<(), PacketWorkerError> {
        self.order(Command::Activate(inbound_spi))
    }

    /// Sends the packets of the tunnel with this inbound SPI to another address of its peer, if the
    /// tunnel has [`PeerAddress::Roaming`].
    ///
    /// # Errors
    /// The thread has ended.
    pub fn move_peer(&self, inbound_spi: EspSpi, to: SocketAddr) -> Result<(), PacketWorkerError> {
        self.order(Command::MovePeer(inbound_spi, to))
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
        self.order(Command::Remove(inbound_spi))
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
        self.counters.snapshot()
    }

    /// Gives an order to the thread. Waits if too many orders wait.
    fn order(&self, command: Command) -> Result<(), PacketWorkerError> {
        self.commands.send(command).map_err(|_| PacketWorkerError::Ended)?;
        rustix::io::write(&self.wake, &1_u64.to_ne_bytes())
            .map_err(|_| PacketWorkerError::Ended)?;
        Ok(())
    }
}

impl Drop for PacketWorker {
    fn drop(&mut self) {
        // If the thread has ended already, it needs no order.
        let _ = self.order(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
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
                write!(f, "another tunnel has the inbound SPI {:08x}", spi.number())
            }
            Self::Ended => write!(f, "the thread tacit-packet has ended; this is a bug in tacit"),
        }
    }
}

impl std::error::Error for PacketWorkerError {}
