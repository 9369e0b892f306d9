//! Part of a link server: stores clients that wait for a stream. A run on another kernel can bind a
//! socket of this kernel over the link. When a client connects to this socket, the client gets a
//! number, its *ticket* (`framed.rs`). The client then waits until the link server on the other
//! kernel opens a stream with this ticket. The stream moves the bytes of the client.
//!
//! Each bound socket, with its clients, belongs to a *session*: a run that uses the link. When a
//! session ends, the server closes the connections of the session's clients.
//!
//! Limits: at most [`TICKETS_MAX`] clients of a link wait at the same time. One session has at most
//! [`TICKETS_OF_SESSION_MAX`] of these clients. All sessions from one host together have at most
//! [`TICKETS_OF_HOST_MAX`]; the certificate of the other link server identifies the host. Each
//! client waits at most [`TICKET_WAIT_MAX`].

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::session::CountedSocket;
use super::state::{OtherEnd, unused};
use crate::run::link::protocol::OpenRequest;

/// The maximum number of clients of a link that wait for a stream.
pub(super) const TICKETS_MAX: usize = 512;
/// The maximum number of those of one host with a certificate. The rest is for other hosts.
pub(super) const TICKETS_OF_HOST_MAX: usize = TICKETS_MAX / 4 * 3;
/// The maximum number of those of one session.
pub(super) const TICKETS_OF_SESSION_MAX: usize = TICKETS_MAX / 2;
/// How long a client waits for a stream.
pub(super) const TICKET_WAIT_MAX: Duration = Duration::from_secs(10);

/// Clients, by the random numbers of their tickets.
#[derive(Debug)]
pub(super) struct Tickets<C> {
    waiting: HashMap<u64, Ticket<C>>,
}

impl<C> Default for Tickets<C> {
    fn default() -> Self {
        Self { waiting: HashMap::new() }
    }
}

/// A client that waits for a stream of its session.
#[derive(Debug)]
pub(super) struct Ticket<C> {
    pub(super) session: u64,
    /// The other end of the session.
    pub(super) end: OtherEnd,
    pub(super) client: C,
}

/// A client of a bound socket.
pub(super) struct WaitingClient {
    pub(super) socket: OwnedFd,
    /// The request for the bound socket.
    pub(super) request: OpenRequest,
    pub(super) local: SocketAddr,
    pub(super) counted: CountedSocket,
}

impl std::fmt::Debug for WaitingClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingClient").field("local", &self.local).finish_non_exhaustive()
    }
}

impl<C> Tickets<C> {
    /// Adds a client; returns its number, or `None` if too many wait.
    pub(super) fn add(&mut self, ticket: Ticket<C>) -> io::Result<Option<u64>> {
        if !self.has_room(&ticket) {
            return Ok(None);
        }
        // Random, as sessions are.
        let number = unused(|number| self.waiting.contains_key(&number))?;
        self.waiting.insert(number, ticket);
        Ok(Some(number))
    }

    fn has_room(&self, ticket: &Ticket<C>) -> bool {
        let all = self.waiting.values();
        let of_session = all.clone().filter(|one| one.session == ticket.session).count();
        let is_host = matches!(ticket.end, OtherEnd::Host { .. });
        let of_host = all.filter(|one| is_host && one.end.is_same(&ticket.end)).count();
        self.waiting.len() < TICKETS_MAX
            && of_session < TICKETS_OF_SESSION_MAX
            && of_host < TICKETS_OF_HOST_MAX
    }

    /// Removes a client of a session.
    pub(super) fn take(&mut self, session: u64, number: u64) -> Option<C> {
        self.waiting.get(&number).filter(|ticket| ticket.session == session)?;
        self.waiting.remove(&number).map(|ticket| ticket.client)
    }

    /// Removes a client that has waited for too long.
    pub(super) fn expire(&mut self, number: u64) -> Option<Ticket<C>> {
        self.waiting.remove(&number)
    }

    /// Removes all clients of a session.
    pub(super) fn remove_all_of(&mut self, session: u64) -> Vec<C> {
        let removed = self.waiting.extract_if(|_, ticket| ticket.session == session);
        removed.map(|(_, ticket)| ticket.client).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::wire::handshake::PeerCertificate;

    fn host(sha256: &str) -> OtherEnd {
        let certificate =
            PeerCertificate { name: "guest".into(), sha256: sha256.into(), trusted: None };
        OtherEnd::Host { certificate, generation: 0 }
    }

    /// Adds clients until no more may wait; returns their number.
    fn fill(tickets: &mut Tickets<()>, session: u64, end: &OtherEnd) -> usize {
        let add = |_: &usize| {
            let ticket = Ticket { session, end: end.clone(), client: () };
            tickets.add(ticket).unwrap().is_some()
        };
        (0..2 * TICKETS_MAX).take_while(add).count()
    }

    #[test]
    fn one_host_leaves_tickets_for_clients_of_others() {
        let mut tickets = Tickets::default();
        let [one, other] = [host("aa"), host("bb")];
        let of_session = fill(&mut tickets, 1, &one);
        assert_eq!(of_session, TICKETS_OF_SESSION_MAX);
        assert_eq!(of_session + fill(&mut tickets, 2, &one), TICKETS_OF_HOST_MAX);
        assert_eq!(fill(&mut tickets, 3, &one), 0);
        assert_eq!(fill(&mut tickets, 4, &other), TICKETS_MAX - TICKETS_OF_HOST_MAX);
        assert_eq!(tickets.remove_all_of(1).len(), TICKETS_OF_SESSION_MAX);
        assert_eq!(fill(&mut tickets, 4, &other), TICKETS_OF_SESSION_MAX / 2);
    }

    #[test]
    fn the_machine_of_a_link_has_all_tickets_but_no_session_of_it() {
        let mut tickets = Tickets::default();
        let machine = OtherEnd::Process { uid: 0, pid: 1 };
        assert_eq!(fill(&mut tickets, 1, &machine), TICKETS_OF_SESSION_MAX);
        assert_eq!(fill(&mut tickets, 2, &machine), TICKETS_MAX - TICKETS_OF_SESSION_MAX);
    }

    #[test]
    fn only_the_session_of_a_ticket_takes_its_client() {
        let mut tickets = Tickets::default();
        let ticket = Ticket { session: 1, end: host("aa"), client: "client" };
        let number = tickets.add(ticket).unwrap().unwrap();
        assert_eq!(tickets.take(2, number), None);
        assert_eq!(tickets.take(1, number), Some("client"));
        assert_eq!(tickets.take(1, number), None);
    }
}
