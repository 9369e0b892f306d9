//! Limits the number of concurrent TLS handshakes, so that one client address (source) or one rule
//! cannot block all others.
//!
//! A handshake waits until it gets a permit. There are limits for each source, each rule and the
//! agent. A quarter of the permits is reserved for sources that have no other handshake.
//!
//! ```text
//! acquire ─┬─ a permit is free ──────────────────────> granted
//!          └─ queued ─┬─ a permit becomes free ──────> granted to one waiting source
//!                     └─ another handshake is slow ──> the limiter ends it, and grants its permit
//! ```
//!
//! A free permit goes to the waiting source that has the fewest permits. If several sources have
//! equally few, a handshake that the agent initiates gets the permit. If there is none, the source
//! that has waited for the shortest time gets the permit.
//!
//! A handshake is slow if it takes longer than `SLOW`. The limiter ends a slow handshake in two
//! cases:
//! * The waiting source has `n` permits, and the source of the slow handshake has more than
//!   `2n + 1` permits.
//! * The waiting source has no permit, and the client of the slow handshake is silent: the client
//!   has sent no complete message. So silent clients cannot block other clients, even if the silent
//!   clients use many addresses.
//!
//! If several slow handshakes can be ended, the limiter ends the oldest handshake of the source
//! that has the most permits. The limiter never ends handshakes that the agent initiates.

mod queue;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tacit_core::flow::Address;
use tacit_core::policy::Limits;

use crate::address::Source;

use queue::{Admission, PermitQueue, PermitRequest};

/// The first pause between two searches of a waiting handshake for slow handshakes. The pauses
/// double, because thousands may wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Limits the handshakes in flight of the agent.
#[derive(Debug)]
pub struct HandshakeLimiter {
    queue: Mutex<PermitQueue>,
}

/// The side that starts the TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initiator {
    /// The peer, as a TLS client: its handshake may be displaced.
    Peer,
    /// The agent, as a TLS client.
    Agent,
}

/// Another source needed the permit, or too many handshakes wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Displaced;

/// The right to do one handshake; returned when dropped.
#[derive(Debug)]
pub struct HandshakePermit<'a> {
    limiter: &'a HandshakeLimiter,
    number: u64,
    request: PermitRequest,
}

impl HandshakePermit<'_> {
    /// Resolves when another handshake needs the permit.
    pub async fn displaced(&self) -> Displaced {
        self.request.signals.displaced.notified().await;
        Displaced
    }

    /// Reports that the peer gets an answer: it is not silent.
    pub fn note_answer(&self) {
        self.request.signals.is_answered.store(true, Ordering::Relaxed);
    }
}

impl Drop for HandshakePermit<'_> {
    fn drop(&mut self) {
        self.limiter.lock().leave(&self.request, self.number, Instant::now());
    }
}

/// A handshake in the queue; it leaves the queue when this is dropped.
struct QueueEntry<'a> {
    limiter: &'a HandshakeLimiter,
    number: u64,
    request: Option<PermitRequest>,
}

impl<'a> QueueEntry<'a> {
    /// The permit, once the queue has granted it.
    fn into_permit(mut self) -> Option<HandshakePermit<'a>> {
        let Self { limiter, number, .. } = self;
        self.request.take().map(|request| HandshakePermit { limiter, number, request })
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        if let Some(request) = &self.request {
            self.limiter.lock().give_up(request, self.number, Instant::now());
        }
    }
}

impl HandshakeLimiter {
    /// A limiter with a policy's limits; half of all connections may wait for a permit.
    #[must_use]
    pub fn new(limits: &Limits, connections_max: usize) -> Self {
        let waiting_max = (connections_max / 2).max(1);
        Self { queue: Mutex::new(PermitQueue::new(limits, waiting_max)) }
    }

    /// Handshakes in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.lock().in_flight()
    }

    /// Waits for a permit. `rule` is the number of handshakes of the rule that are in progress.
    ///
    /// # Errors
    /// Too many handshakes wait for a permit.
    pub async fn acquire(
        &self,
        rule: &Arc<AtomicUsize>,
        remote: &Address,
        initiator: Initiator,
    ) -> Result<HandshakePermit<'_>, Displaced> {
        let source = Source::of(remote);
        let rule = Arc::clone(rule);
        let request = PermitRequest { source, rule, initiator, signals: Arc::default() };
        let admission = self.lock().acquire(request.clone(), Instant::now());
        let (number, mut granted) = match admission {
            Admission::Granted(number) => {
                return Ok(HandshakePermit { limiter: self, number, request });
            }
            Admission::Queued(number, granted) => (number, granted),
        };
        let waiting = QueueEntry { limiter: self, number, request: Some(request.clone()) };
        let mut pause = LOOK_INTERVAL;
        loop {
            self.lock().displace_for(&request, Instant::now());
            match tokio::time::timeout(pause, &mut granted).await {
                Ok(Ok(())) => return waiting.into_permit().ok_or(Displaced),
                Ok(Err(_)) => return Err(Displaced),
                Err(_) => pause *= 2,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, PermitQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
