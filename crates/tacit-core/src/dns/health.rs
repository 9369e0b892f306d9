//! Records which DNS servers are slow, and which servers do not answer.
//!
//! If a server is slow, the client also queries the next server. If the next server answers first,
//! the slow server becomes *suspected*. The client prefers other servers to a suspected server.
//!
//! A server becomes *failing*, and also suspected, if it does not answer within its timeout, or if
//! the network returns an error. The agent logs when a server becomes failing. When a server
//! answers, it is no longer suspected or failing.
//!
//! Limits: a server stays suspected for [`SUSPECTED_FOR`]; at most [`SERVERS_MAX`] servers are
//! tracked.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a server stays suspected. This is longer than a restart takes. A later attempt costs
/// only one delay of one query.
pub const SUSPECTED_FOR: Duration = Duration::from_secs(30);
/// The largest number of servers that are tracked. No host has more.
pub const SERVERS_MAX: usize = 64;

/// The state of all servers.
#[derive(Debug, Default)]
pub struct Health {
    servers: HashMap<SocketAddr, Server>,
    changes: Vec<ServerChange>,
}

#[derive(Debug, Default)]
struct Server {
    answered: Option<Instant>,
    suspected_until: Option<Instant>,
    is_failing: bool,
}

/// A server started or stopped failing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerChange {
    /// The server.
    pub server: SocketAddr,
    /// The error; `None`: the server answers again.
    pub error: Option<String>,
}

impl Health {
    /// Whether the server gets only a short timeout.
    #[must_use]
    pub fn is_suspected(&self, server: SocketAddr, now: Instant) -> bool {
        let server = self.servers.get(&server);
        server.and_then(|server| server.suspected_until).is_some_and(|until| now < until)
    }

    /// The changes since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<ServerChange> {
        std::mem::take(&mut self.changes)
    }

    /// Records an answer.
    pub(super) fn answered(&mut self, server: SocketAddr, now: Instant) {
        let Some(known) = self.entry(server) else { return };
        known.answered = Some(now);
        known.suspected_until = None;
        if std::mem::take(&mut known.is_failing) {
            self.changes.push(ServerChange { server, error: None });
        }
    }

    /// Records that another server has answered first, for a query that was sent to this server at
    /// `sent`.
    pub(super) fn suspect(&mut self, server: SocketAddr, sent: Instant, now: Instant) {
        if let Some(known) = self.entry(server)
            && known.answered.is_none_or(|answered| answered < sent)
        {
            known.suspected_until = Some(now + SUSPECTED_FOR);
        }
    }

    /// Records that the server has not answered a query within the timeout; it was sent at `sent`.
    pub(super) fn silent(&mut self, server: SocketAddr, sent: Instant, now: Instant) {
        let is_answering = self
            .servers
            .get(&server)
            .and_then(|known| known.answered)
            .is_some_and(|answered| sent <= answered);
        if !is_answering {
            self.failed(server, "the DNS server did not answer in time", now);
        }
    }

    /// Records an error of the network.
    pub(super) fn failed(&mut self, server: SocketAddr, error: &str, now: Instant) {
        let Some(known) = self.entry(server) else { return };
        known.suspected_until = Some(now + SUSPECTED_FOR);
        if !std::mem::replace(&mut known.is_failing, true) {
            self.changes.push(ServerChange { server, error: Some(error.to_owned()) });
        }
    }

    /// `None` if too many servers are tracked, because the host's file has changed very often.
    fn entry(&mut self, server: SocketAddr) -> Option<&mut Server> {
        if self.servers.len() >= SERVERS_MAX && !self.servers.contains_key(&server) {
            self.servers.retain(|_, known| known.is_failing);
            if self.servers.len() >= SERVERS_MAX {
                return None;
            }
        }
        Some(self.servers.entry(server).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 53).into()
    }

    #[test]
    fn a_silent_server_is_remembered_for_a_while_and_reported_once() {
        let mut health = Health::default();
        let start = Instant::now();
        assert!(!health.is_suspected(server(1), start));
        health.suspect(server(1), start, start);
        assert!(health.is_suspected(server(1), start) && health.take_changes().is_empty());
        for _ in 0..3 {
            health.silent(server(1), start, start);
        }
        let error = Some("the DNS server did not answer in time".to_owned());
        assert_eq!(health.take_changes(), [ServerChange { server: server(1), error }]);
        assert!(!health.is_suspected(server(1), start + SUSPECTED_FOR));
        health.answered(server(1), start);
        assert!(!health.is_suspected(server(1), start));
        assert_eq!(health.take_changes(), [ServerChange { server: server(1), error: None }]);
        health.answered(server(1), start);
        assert!(health.take_changes().is_empty());
    }

    #[test]
    fn what_was_answered_since_speaks_for_a_server() {
        let mut health = Health::default();
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        health.answered(server(1), later);
        health.suspect(server(1), start, later);
        health.silent(server(1), start, later);
        assert!(!health.is_suspected(server(1), later) && health.take_changes().is_empty());
    }

    #[test]
    fn no_more_servers_are_remembered_than_the_limit() {
        let mut health = Health::default();
        let now = Instant::now();
        for last in 0..=u8::MAX {
            health.answered(server(last), now);
        }
        assert!(health.servers.len() <= SERVERS_MAX);
        for last in 0..=u8::MAX {
            health.failed(server(last), "gone", now);
        }
        assert_eq!(health.take_changes().len(), SERVERS_MAX);
    }
}
