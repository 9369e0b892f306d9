//! Holds the SYNs of a run's programs until the agent has connected to their destinations, so that
//! `connect` returns the true result to the program.
//!
//! ```text
//! program ── SYN ──> kernel inside ── copy ──> take_next ──>  HeldSyn     dial
//!                                     the same SYN <── HeldSyn::connect    it answered
//!                 connected ──> listener ── accept ──> HeldSyn::connect    both sockets
//!                                  RST or ICMP <── HeldSyn::refuse         it did not
//! ```
//!
//! Any thread may read the copy of a SYN, and any thread may accept the released connection: it
//! passes the socket to the thread that has dialled the destination.
//!
//! Limits: [`HELD_MAX`](tacit_core::held::HELD_MAX) held SYNs, [`ACCEPT_WAIT_MAX`] from the release
//! of a SYN to its connection.

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
use tacit_sys::datagram::send_packet;
use tacit_sys::netlink::nflog;
use tacit_sys::socket::{self, AcceptedSocket, SocketAddress};
use tacit_sys::syn_log::SynLog;
use tokio::sync::{Notify, oneshot};

use crate::address;

/// How long a released connection may take to arrive: a program that has given up tells no one.
pub const ACCEPT_WAIT_MAX: Duration = Duration::from_secs(3);
/// When the listener is looked at again first, where the kernel has not completed the connection
/// within the call that released it; the pauses double.
const ACCEPT_POLL_MIN: Duration = Duration::from_micros(250);
/// Connections that no thread waits for, until one takes them; more are reset.
const STRAYS_MAX: usize = 4096;

/// The sockets of one IP version.
#[derive(Debug)]
pub struct HoldSockets {
    /// Connections arrive here.
    pub listener: Arc<OwnedFd>,
    /// SYNs are held while it is open.
    pub hold: OwnedFd,
    /// Releases SYNs.
    pub release: OwnedFd,
    /// Sends errors in the name of destinations.
    pub raw: Arc<OwnedFd>,
}

/// The held SYNs of one run.
#[derive(Debug)]
pub struct Hold {
    log: SynLog,
    v4: HoldSockets,
    v6: Option<HoldSockets>,
    flows: Mutex<HeldFlows<oneshot::Sender<OwnedFd>>>,
    strays: Mutex<VecDeque<AcceptedSocket>>,
    stray_arrived: Notify,
    overruns: AtomicU64,
}

/// What the program's connect returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynAnswer {
    /// `ECONNREFUSED`.
    Reset,
    /// What the cause means.
    Unreachable(IcmpError),
    /// Nothing yet: the program sends its SYN again, until it gives up.
    Silence,
}

/// What a copy of a packet stands for.
#[derive(Debug)]
pub enum HoldEvent {
    /// A flow that begins.
    Syn(HeldSyn),
    /// A packet that the kernel inside has refused.
    Refused(Protocol, FlowEnds),
}

fn refused(packet: &[u8]) -> Option<HoldEvent> {
    match Syn::parse(packet) {
        Some(syn) => Some(HoldEvent::Refused(Protocol::Tcp, syn.key)),
        None => Some(HoldEvent::Refused(Protocol::Udp, datagram_ends(packet)?)),
    }
}

impl Hold {
    /// Holds what the log copies, `held_max` SYNs at most.
    ///
    /// # Errors
    /// There are no sockets for IPv4.
    pub fn new(log: OwnedFd, sockets: Vec<HoldSockets>, held_max: usize) -> io::Result<Self> {
        let mut sockets = sockets.into_iter();
        let v4 = sockets.next().ok_or(io::ErrorKind::InvalidData)?;
        let v6 = sockets.next();
        Ok(Self {
            log: SynLog::adopt(log)?,
            v4,
            v6,
            flows: Mutex::new(HeldFlows::new(held_max)),
            strays: Mutex::default(),
            stray_arrived: Notify::new(),
            overruns: AtomicU64::new(0),
        })
    }

    /// Copies of SYNs arrive here.
    #[must_use]
    pub fn log(&self) -> &SynLog {
        &self.log
    }

    /// The sockets of each IP version.
    pub fn sockets(&self) -> impl Iterator<Item = &HoldSockets> {
        [Some(&self.v4), self.v6.as_ref()].into_iter().flatten()
    }

    /// How many SYNs are held.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// How often the kernel found no room for copies; programs have sent those SYNs again.
    #[must_use]
    pub fn overruns(&self) -> u64 {
        self.overruns.load(Ordering::Relaxed)
    }

    /// Holds nothing new any more: a successor takes what programs send from here on.
    pub fn close(&self) {
        self.lock().clear();
    }

    /// Takes the next copy of a packet; `None`: it begins no flow.
    ///
    /// # Errors
    /// `WouldBlock`, or the log is broken.
    pub fn take_next(self: &Arc<Self>) -> io::Result<Option<HoldEvent>> {
        let mut report = [0; nflog::REPORT_BYTES_MAX];
        let packet = match self.log.receive(&mut report) {
            Err(error) if nflog::is_overrun(&error) => {
                self.overruns.fetch_add(1, Ordering::Relaxed);
                return Ok(None);
            }
            received => received?,
        };
        let Some(nflog::LoggedPacket { packet, is_refused }) = packet else { return Ok(None) };
        if is_refused {
            return Ok(refused(packet));
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
                // If it fails, the program sends its SYN once more.
                let _ = self.release(&syn);
                None
            }
            _ => None,
        })
    }

    /// Takes the connections that an agent before this one has released and did not take.
    pub fn take_waiting(&self) {
        for sockets in self.sockets() {
            // What cannot be accepted now comes with the next connection.
            let _ = self.accept(sockets);
        }
    }

    /// Waits for a connection that arrives although no thread waits for it: an agent before this
    /// one has released it, or its thread has given up.
    pub async fn next_stray(&self) -> AcceptedSocket {
        loop {
            let stray = self.strays().pop_front();
            match stray {
                Some(stray) => return stray,
                None => self.stray_arrived.notified().await,
            }
        }
    }

    /// Releases a SYN, and hands out the connections that have arrived by then.
    fn release(&self, syn: &Syn) -> io::Result<()> {
        let Some(sockets) = self.sockets_of(syn.key) else { return Ok(()) };
        send_packet(sockets.release.as_fd(), &syn.released(), syn.key.destination.ip())?;
        self.accept(sockets)
    }

    /// Hands out the connections that have arrived.
    fn accept(&self, sockets: &HoldSockets) -> io::Result<()> {
        loop {
            let accepted = match socket::accept(sockets.listener.as_fd()) {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The connection is gone.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            let waiter = key_of(&accepted).and_then(|key| self.lock().accept(key));
            match waiter {
                // Without a receiver it is reset: the thread has given up just now.
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

/// The address without what the kernel adds to it.
fn as_in_packet(address: &SocketAddress) -> Option<SocketAddr> {
    match address::from_socket(address) {
        Address::Inet(address) => Some(SocketAddr::new(address.ip(), address.port())),
        Address::Path(_) | Address::Abstract(_) | Address::Unnamed => None,
    }
}

/// A SYN that is held. The program gets no answer if this is dropped.
#[derive(Debug)]
pub struct HeldSyn {
    hold: Arc<Hold>,
    syn: Syn,
    accepted: oneshot::Receiver<OwnedFd>,
}

impl HeldSyn {
    /// The program's end.
    #[must_use]
    pub fn program(&self) -> SocketAddr {
        self.syn.key.program
    }

    /// Where it connects to.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.syn.key.destination
    }

    /// Waits until the program has given the flow up: it has begun another between the same ends,
    /// or a successor has the run.
    pub async fn replaced(&mut self) {
        // Nothing is accepted before it is released.
        let _ = (&mut self.accepted).await;
    }

    /// Answers in the name of the destination; the program is not connected.
    pub fn refuse(self, answer: SynAnswer) {
        let Some(sockets) = self.hold.sockets_of(self.syn.key) else { return };
        let packet = match answer {
            SynAnswer::Reset => Some(self.syn.reset()),
            SynAnswer::Unreachable(cause) => self.syn.unreachable(cause),
            SynAnswer::Silence => None,
        };
        if let Some(packet) = packet {
            // A program that misses it sends its SYN again.
            let _ = send_packet(sockets.raw.as_fd(), &packet, self.syn.key.program.ip());
        }
    }

    /// Releases the SYN and waits for the connection; `None`: it does not arrive.
    pub async fn connect(mut self) -> Option<OwnedFd> {
        if !self.hold.lock().release(self.syn.key, self.syn.sequence) {
            return None;
        }
        // What cannot be sent or accepted now is tried again when the SYN is, and below.
        let _ = self.hold.release(&self.syn);
        if let Ok(socket) = self.accepted.try_recv() {
            return Some(socket);
        }
        tokio::time::timeout(ACCEPT_WAIT_MAX, self.wait()).await.ok().flatten()
    }

    /// Looks at the listener from time to time: a task that waits for it would be woken by every
    /// connection of the run.
    async fn wait(&mut self) -> Option<OwnedFd> {
        let mut pause = ACCEPT_POLL_MIN;
        loop {
            if let Ok(accepted) = tokio::time::timeout(pause, &mut self.accepted).await {
                return accepted.ok();
            }
            let sockets = self.hold.sockets_of(self.syn.key)?;
            // What cannot be accepted now waits in the kernel's queue.
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
