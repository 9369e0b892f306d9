//! Holds the SYN packets of programs under `tacit run` until the agent has connected to their
//! destinations. So `connect` returns the true result to the program.
//!
//! ```text
//! program ── SYN ──> kernel ───────── copy ──> take_next ──> HeldSyn; the agent connects
//! if the destination accepted:        the same SYN <── HeldSyn::connect
//!                 connected ──> listener ── accept ──> HeldSyn::connect returns this socket
//! if the destination refused:          RST or ICMP <── HeldSyn::refuse
//! ```
//!
//! The agent releases a SYN by sending the same packet again, to its own listener. Any thread may
//! accept the resulting connection. This thread passes the socket to the thread that connected to
//! the destination.
//!
//! Limits: [`HELD_MAX`](tacit_core::held::HELD_MAX) held SYNs, [`ACCEPT_WAIT_MAX`] from the release
//! of a SYN until the listener accepts the connection.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tacit_core::flow::{Address, Protocol};
use tacit_core::held::{FlowEnds, HeldFlows, Syn, SynState, datagram_ends};
use tacit_core::icmp::IcmpError;
use tacit_core::policy::filter::{FilterPacket, PacketPath};
use tacit_sys::datagram::send_packet;
use tacit_sys::netlink::nflog::{self, FilterHook, LogCause};
use tacit_sys::socket::{self, AcceptedSocket, SocketAddress};
use tacit_sys::syn_log::SynLog;
use tokio::sync::{Notify, oneshot};

use super::host::HostNetwork;
use crate::address;

/// How long a released connection may take to arrive. If the program has given up, none arrives.
pub const ACCEPT_WAIT_MAX: Duration = Duration::from_secs(3);
/// The first interval between two checks of the listener, if the kernel has not completed the
/// connection within the call that released it. The intervals double.
const ACCEPT_POLL_MIN: Duration = Duration::from_micros(250);
/// The maximum number of accepted connections that no thread waits for; more are reset.
const STRAYS_MAX: usize = 4096;

/// The sockets of one IP version.
#[derive(Debug)]
pub struct HoldSockets {
    /// The listener for released connections.
    pub listener: Arc<OwnedFd>,
    /// The socket that keeps SYNs held while it is open.
    pub hold: OwnedFd,
    /// The socket that releases SYNs.
    pub release: OwnedFd,
    /// The socket that sends errors from the addresses of destinations.
    pub raw: Arc<OwnedFd>,
}

/// The held SYNs of one run.
#[derive(Debug)]
pub struct Hold {
    log: SynLog,
    host: Arc<HostNetwork>,
    v4: HoldSockets,
    v6: Option<HoldSockets>,
    flows: Mutex<HeldFlows<oneshot::Sender<OwnedFd>>>,
    strays: Mutex<VecDeque<AcceptedSocket>>,
    stray_arrived: Notify,
    overruns: AtomicU64,
}

/// The answer to a held SYN, which determines what `connect` of the program returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynAnswer {
    /// `ECONNREFUSED`.
    Reset,
    /// The error of this ICMP message.
    Unreachable(IcmpError),
    /// No answer: the kernel of the program sends its SYN again until it gives up.
    Silence,
}

/// The meaning of a copied packet.
#[derive(Debug)]
pub enum HoldEvent {
    /// A SYN of a new connection.
    Syn(HeldSyn),
    /// A packet that the kernel inside the run has refused.
    Refused(Protocol, FlowEnds),
    /// A packet about which a filter rule of the host has decided.
    Filtered(FilteredPacket),
}

/// A packet that a filter rule logs.
#[derive(Debug)]
pub struct FilteredPacket {
    /// The name of the rule.
    pub rule: String,
    /// The packet; the interface is not known.
    pub packet: FilterPacket,
}

fn filtered(packet: &[u8], rule: &str, hook: FilterHook) -> Option<HoldEvent> {
    let unknown = String::new;
    let path = match hook {
        FilterHook::Input => PacketPath::In(unknown()),
        FilterHook::Output => PacketPath::Out(unknown()),
        FilterHook::Forward => PacketPath::Routed { received: unknown(), sent: unknown() },
    };
    let packet = FilterPacket::of_bytes(path, packet)?;
    Some(HoldEvent::Filtered(FilteredPacket { rule: rule.to_owned(), packet }))
}

fn refused(packet: &[u8]) -> Option<HoldEvent> {
    match Syn::parse(packet) {
        Some(syn) => Some(HoldEvent::Refused(Protocol::Tcp, syn.key)),
        None => Some(HoldEvent::Refused(Protocol::Udp, datagram_ends(packet)?)),
    }
}

impl Hold {
    /// The held SYNs of a run, at most `held_max`, with the source of copies and the addresses of
    /// the host.
    ///
    /// # Errors
    /// There are no sockets for IPv4.
    pub fn new(
        log: OwnedFd,
        host: &Arc<HostNetwork>,
        sockets: Vec<HoldSockets>,
        held_max: usize,
    ) -> io::Result<Self> {
        let mut sockets = sockets.into_iter();
        let v4 = sockets.next().ok_or(io::ErrorKind::InvalidData)?;
        let v6 = sockets.next();
        Ok(Self {
            log: SynLog::adopt(log)?,
            host: Arc::clone(host),
            v4,
            v6,
            flows: Mutex::new(HeldFlows::new(held_max)),
            strays: Mutex::default(),
            stray_arrived: Notify::new(),
            overruns: AtomicU64::new(0),
        })
    }

    /// The source of copies of SYNs.
    #[must_use]
    pub fn log(&self) -> &SynLog {
        &self.log
    }

    /// The sockets of each IP version.
    pub fn sockets(&self) -> impl Iterator<Item = &HoldSockets> {
        [Some(&self.v4), self.v6.as_ref()].into_iter().flatten()
    }

    /// The number of held SYNs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// How often the kernel had no room for a copy. The program's kernel sends those SYNs again.
    #[must_use]
    pub fn overruns(&self) -> u64 {
        self.overruns.load(Ordering::Relaxed)
    }

    /// Stops holding new SYNs, because a successor reads them from now on.
    pub fn close(&self) {
        self.lock().clear();
    }

    /// Reads the next copy of a packet; `None` if it does not begin a flow.
    ///
    /// # Errors
    /// `WouldBlock`, or the source has failed.
    pub fn take_next(self: &Arc<Self>) -> io::Result<Option<HoldEvent>> {
        let mut report = [0; nflog::REPORT_BYTES_MAX];
        let packet = match self.log.receive(&mut report) {
            Err(error) if nflog::is_overrun(&error) => {
                self.overruns.fetch_add(1, Ordering::Relaxed);
                return Ok(None);
            }
            received => received?,
        };
        let Some(nflog::LoggedPacket { packet, cause }) = packet else { return Ok(None) };
        match cause {
            LogCause::Opens => {}
            LogCause::Refused => return Ok(refused(packet)),
            LogCause::Filtered { rule, hook } => return Ok(filtered(packet, rule, hook)),
        }
        let Some(syn) = Syn::parse(packet) else { return Ok(None) };
        let mut accepted = None;
        let seen = self.lock().see(syn.key, syn.sequence, || {
            let (waiter, receiver) = oneshot::channel();
            accepted = Some(receiver);
            waiter
        });
        Ok(match (seen, accepted) {
            (SynState::New, Some(accepted)) => {
                Some(HoldEvent::Syn(HeldSyn { hold: Arc::clone(self), syn, accepted }))
            }
            (SynState::Released, _) => {
                // If this fails, the program's kernel sends its SYN again.
                let _ = self.release(&syn);
                None
            }
            _ => None,
        })
    }

    /// Accepts connections that the predecessor has released and not accepted.
    pub fn take_waiting(&self) {
        for sockets in self.sockets() {
            // Connections that cannot be accepted now are accepted with the next one.
            let _ = self.accept(sockets);
        }
    }

    /// Waits for a connection that no thread waits for: the predecessor has released it, or its
    /// thread has given up.
    pub async fn next_stray(&self) -> AcceptedSocket {
        loop {
            let stray = self.strays().pop_front();
            match stray {
                Some(stray) => return stray,
                None => self.stray_arrived.notified().await,
            }
        }
    }

    /// Releases a SYN, and passes accepted connections to their threads.
    fn release(&self, syn: &Syn) -> io::Result<()> {
        let Some(sockets) = self.sockets_of(syn.key) else { return Ok(()) };
        let mut syn = syn.clone();
        if self.host.has(syn.key.program.ip()) {
            // A SYN of a container comes over another interface than `lo`.
            syn.announce_segments_of_lo();
        }
        send_packet(sockets.release.as_fd(), &syn.released(), syn.key.destination.ip())?;
        self.accept(sockets)
    }

    /// Accepts connections and passes them to their threads.
    fn accept(&self, sockets: &HoldSockets) -> io::Result<()> {
        loop {
            let accepted = match socket::accept(sockets.listener.as_fd()) {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The connection was reset before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            let waiter = key_of(&accepted).and_then(|key| self.lock().accept(key));
            match waiter {
                // If the thread has given up, the connection is reset.
                Some(waiter) => drop(waiter.send(accepted.socket)),
                None => self.add_stray(accepted),
            }
        }
    }

    fn add_stray(&self, accepted: AcceptedSocket) {
        let mut strays = self.strays();
        if strays.len() < STRAYS_MAX {
            strays.push_back(accepted);
            self.stray_arrived.notify_one();
        }
    }

    fn strays(&self) -> MutexGuard<'_, VecDeque<AcceptedSocket>> {
        self.strays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sockets_of(&self, key: FlowEnds) -> Option<&HoldSockets> {
        if key.destination.is_ipv4() { Some(&self.v4) } else { self.v6.as_ref() }
    }

    fn lock(&self) -> MutexGuard<'_, HeldFlows<oneshot::Sender<OwnedFd>>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key_of(accepted: &AcceptedSocket) -> Option<FlowEnds> {
    let program = as_in_packet(accepted.peer.as_ref()?)?;
    let local = socket::local_address(accepted.socket.as_fd()).ok()?;
    Some(FlowEnds { program, destination: as_in_packet(&local)? })
}

/// The address without the scope that the kernel adds to it.
fn as_in_packet(address: &SocketAddress) -> Option<SocketAddr> {
    match address::from_socket(address) {
        Address::Inet(address) => Some(SocketAddr::new(address.ip(), address.port())),
        Address::Path(_) | Address::Abstract(_) | Address::Unnamed => None,
    }
}

/// A held SYN. If this is dropped, the program gets no answer.
#[derive(Debug)]
pub struct HeldSyn {
    hold: Arc<Hold>,
    syn: Syn,
    accepted: oneshot::Receiver<OwnedFd>,
}

impl HeldSyn {
    /// The address of the program's socket.
    #[must_use]
    pub fn program(&self) -> SocketAddr {
        self.syn.key.program
    }

    /// The address that the program connects to.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.syn.key.destination
    }

    /// Waits until this SYN is obsolete: the program has started another connection between the
    /// same addresses, or a successor has the run.
    pub async fn replaced(&mut self) {
        // No connection is accepted before the SYN is released.
        let _ = (&mut self.accepted).await;
    }

    /// Sends an error from the address of the destination. The program is not connected.
    pub fn refuse(self, answer: SynAnswer) {
        let Some(sockets) = self.hold.sockets_of(self.syn.key) else { return };
        let packet = match answer {
            SynAnswer::Reset => Some(self.syn.reset()),
            SynAnswer::Unreachable(cause) => self.syn.unreachable(cause),
            SynAnswer::Silence => None,
        };
        if let Some(packet) = packet {
            // If the error is lost, the program's kernel sends its SYN again.
            let _ = send_packet(sockets.raw.as_fd(), &packet, self.syn.key.program.ip());
        }
    }

    /// Releases the SYN and waits for the connection; `None` if it does not arrive.
    pub async fn connect(mut self) -> Option<OwnedFd> {
        if !self.hold.lock().release(self.syn.key, self.syn.sequence) {
            return None;
        }
        // If this fails, it is tried again with the next SYN, and below.
        let _ = self.hold.release(&self.syn);
        if let Ok(socket) = self.accepted.try_recv() {
            return Some(socket);
        }
        tokio::time::timeout(ACCEPT_WAIT_MAX, self.wait()).await.ok().flatten()
    }

    /// Checks the listener at intervals: a task that waits for it would be woken by every
    /// connection of the run.
    async fn wait(&mut self) -> Option<OwnedFd> {
        let mut pause = ACCEPT_POLL_MIN;
        loop {
            if let Ok(accepted) = tokio::time::timeout(pause, &mut self.accepted).await {
                return accepted.ok();
            }
            let sockets = self.hold.sockets_of(self.syn.key)?;
            // Connections that cannot be accepted now wait in the kernel's queue.
            let _ = self.hold.accept(sockets);
            pause *= 2;
        }
    }
}

impl Drop for HeldSyn {
    fn drop(&mut self) {
        self.hold.lock().end(self.syn.key, self.syn.sequence);
    }
}
