//! Records why the agent relays a connection of a program, instead of giving the program a socket
//! of the agent's network namespace.
//!
//! When the agent learns the reason, the program's socket has no local address yet. So the agent
//! uses the destination to find the connection to which a reason belongs. If a program opens
//! several connections to one destination at the same time, a connection may get the reason of
//! another connection.
//!
//! Limits: at most [`WAITING_MAX`] reasons wait for their connections, and at most [`WAITING_MAX`]
//! connections wait for their reasons. Each reason or connection waits at most [`WAITING_LASTS`].
//! If too many wait, the oldest reason or connection stops waiting. A connection that stops waiting
//! stays open, but gets no reason.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::protocol::RelayReason;

/// The maximum number of reasons, and of connections, that wait for each other.
const WAITING_MAX: usize = 64;
/// How long they wait. The kernel sends a SYN at once.
const WAITING_LASTS: Duration = Duration::from_secs(2);

/// The reason of a connection, once it is known.
pub type KnownReason = Arc<OnceLock<RelayReason>>;

/// The reasons and connections of one run.
#[derive(Debug, Default)]
pub(super) struct RelayReasons(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    reasons: Queue<RelayReason>,
    connections: Queue<KnownReason>,
}

impl RelayReasons {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, remote: SocketAddr, reason: RelayReason) {
        let mut waiting = self.lock();
        match waiting.connections.take(remote) {
            // It has no reason yet, so this sets it.
            Some(connection) => drop(connection.set(reason)),
            None => waiting.reasons.put(remote, reason),
        }
    }

    pub(super) fn of_connection(&self, remote: SocketAddr) -> KnownReason {
        let mut waiting = self.lock();
        if let Some(reason) = waiting.reasons.take(remote) {
            return Arc::new(OnceLock::from(reason));
        }
        let later = KnownReason::default();
        waiting.connections.put(remote, Arc::clone(&later));
        later
    }
}

/// What waits, by destination, the oldest first.
#[derive(Debug)]
struct Queue<T>(VecDeque<(SocketAddr, Instant, T)>);

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Queue<T> {
    fn put(&mut self, remote: SocketAddr, one: T) {
        if self.0.len() >= WAITING_MAX {
            self.0.pop_front();
        }
        self.0.push_back((remote, Instant::now(), one));
    }

    fn take(&mut self, remote: SocketAddr) -> Option<T> {
        while self.0.front().is_some_and(|(_, since, _)| since.elapsed() > WAITING_LASTS) {
            self.0.pop_front();
        }
        let place = self.0.iter().position(|(at, ..)| *at == remote)?;
        self.0.remove(place).map(|(.., one)| one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_and_connection_meet_in_any_order() {
        let reasons = RelayReasons::default();
        let at = |port| SocketAddr::from(([10, 9, 8, 7], port));
        reasons.note(at(1), RelayReason::Dup);
        let early = reasons.of_connection(at(2));
        assert_eq!(reasons.of_connection(at(1)).get(), Some(&RelayReason::Dup));
        assert_eq!(early.get(), None);
        reasons.note(at(2), RelayReason::Bound);
        assert_eq!(early.get(), Some(&RelayReason::Bound));
        for _ in 0..WAITING_MAX {
            reasons.note(at(3), RelayReason::Async);
        }
        reasons.note(at(4), RelayReason::Async);
        assert_eq!(reasons.lock().reasons.0.len(), WAITING_MAX);
    }
}
