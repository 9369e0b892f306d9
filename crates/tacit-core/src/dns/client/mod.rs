//! Implements a DNS client as a state machine without I/O. For each query of a program, the client
//! chooses the server, the socket and the time to send.
//!
//! ```text
//!   ask ──┐                                        ┌──> Open, Send, Close   sockets
//!   received, socket_failed ──> DnsClient ──> next_action ──> Stream        a query over TCP
//!   streamed, tick ──┘                             └──> Finish              the result of a query
//! ```
//!
//! The client first queries the server that the program chose. If no answer arrives within
//! [`NEXT_DELAY`], the client also queries the next server. With `tacit agent --host`, the client
//! queries only the server that the program chose ([`Servers`]).
//!
//! To reject forged answers, the client checks the server, the ID and the question of each answer.
//! In each query, the client randomly chooses upper or lower case for each letter of the name. The
//! name in the answer must have the same case, letter by letter. If a server changes the case, the
//! client sends the query again in lower case.
//!
//! If several programs send the same query, the client sends only one query for all of them.
//!
//! Limits: at most [`WAITING_MAX`] queries wait for an answer. The client sends at most
//! [`TRIES_MAX`] messages for each query. After a query has ended, slower servers may still answer
//! it. The client expects at most [`LATE_MAX`] of these late answers.

mod order;
mod sockets;
mod timers;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::configuration::ResolverOptions;
use super::health::Health;
use super::message::EDNS_BYTES;
use super::outgoing::{OutgoingQuery, Style};
use super::query::Query;
use super::response::{Match, is_about_form, is_refusal, is_truncated, matches};
use order::{delay, order};
use sockets::{SocketSet, SocketSlot};
use timers::{TimerKind, Timers};

pub use order::{NEXT_DELAY, SUSPECTED_DELAY, ServerList, Servers};
pub use sockets::{QUERIES_PER_SOCKET_MAX, SOCKET_LIFE, SOCKETS_PER_SERVER};

/// Maximum number of waiting queries.
pub const WAITING_MAX: usize = 4096;
/// Maximum number of messages to all servers for one query.
pub const TRIES_MAX: u32 = 32;
/// The largest number of late answers that the client expects.
pub const LATE_MAX: usize = 1024;

/// A program's query that waits for its answer.
#[derive(Clone, Debug)]
pub struct QueryWaiter<T> {
    /// The query, as the program sent it.
    pub query: Query,
    /// The maximum size of the answer.
    pub bytes_max: usize,
    /// The origin of the query. A query with the same origin and ID is a repetition.
    pub from: T,
}

/// What the caller must do next.
#[derive(Debug)]
pub enum ClientAction<T> {
    /// Open a UDP socket connected to the server.
    Open {
        /// The number of the new socket.
        socket: u64,
        /// The address of the DNS server.
        server: SocketAddr,
    },
    /// Send a datagram.
    Send {
        /// The number of the socket.
        socket: u64,
        /// The complete DNS message.
        message: Vec<u8>,
    },
    /// Close a socket.
    Close {
        /// The number of the socket.
        socket: u64,
    },
    /// Send the query over TCP, and pass the answer to [`DnsClient::streamed`].
    Stream {
        /// The number of the query.
        number: u64,
        /// The address of the DNS server.
        server: SocketAddr,
        /// The DNS message, without the two bytes of its length.
        message: Vec<u8>,
        /// How long to wait for the answer.
        time: Duration,
    },
    /// Send the answer to the programs that wait for it.
    Finish(FinishedQuery<T>),
}

/// A query that has ended.
#[derive(Debug)]
pub struct FinishedQuery<T> {
    /// The response of a server; `None` if no server has answered.
    pub response: Option<Vec<u8>>,
    /// The queries of programs that wait for this response.
    pub waiters: Vec<QueryWaiter<T>>,
}

/// The error for a new query when [`WAITING_MAX`] queries wait already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// The data that the client needs for each call.
pub struct QueryContext<'c> {
    /// The current time.
    pub now: Instant,
    /// Which DNS servers do not answer.
    pub health: &'c mut Health,
    /// A source of unpredictable numbers.
    pub random: &'c mut dyn FnMut() -> u64,
}

impl fmt::Debug for QueryContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("now", &self.now).finish_non_exhaustive()
    }
}

/// A DNS client with its open queries. `T` identifies the program that sent a query.
#[derive(Debug)]
pub struct DnsClient<T> {
    exchanges: HashMap<u64, Exchange<T>>,
    by_question: HashMap<Arc<OutgoingQuery>, u64>,
    begun: u64,
    waiting: usize,
    sockets: SocketSet<Open>,
    timers: Timers,
    late: VecDeque<Late>,
    actions: VecDeque<ClientAction<T>>,
}

/// A query that is in progress.
#[derive(Debug)]
struct Exchange<T> {
    requested: Arc<OutgoingQuery>,
    waiters: Vec<QueryWaiter<T>>,
    /// The servers in the order in which this query uses them. `next` is the number of servers that
    /// were queried in this round.
    order: Vec<SocketAddr>,
    next: usize,
    round: u32,
    options: ResolverOptions,
    /// When the client continues with the next server.
    due: Instant,
    /// The messages that no server has answered yet.
    open: Vec<SocketSlot>,
    tries: u32,
    /// Whether to use EDNS (extensions of DNS). True until a server rejects EDNS.
    edns: bool,
    /// The DNS message that is being sent over TCP.
    stream: Option<Vec<u8>>,
    /// A refusal or a truncated answer. The program gets it if no server sends a better answer.
    fallback: Option<Vec<u8>>,
}

/// A message that its server has not answered yet.
#[derive(Debug)]
struct Open {
    exchange: u64,
    server: SocketAddr,
    sent: Instant,
    style: Style,
    message: Vec<u8>,
}

/// A message of an ended query. The server may still answer the message.
#[derive(Debug)]
struct Late {
    slot: SocketSlot,
    exchange: u64,
    until: Instant,
}

impl<T: PartialEq> DnsClient<T> {
    /// Creates a client without queries.
    #[must_use]
    pub fn new() -> Self {
        Self {
            exchanges: HashMap::new(),
            by_question: HashMap::new(),
            begun: 0,
            waiting: 0,
            sockets: SocketSet::new(),
            timers: Timers::default(),
            late: VecDeque::new(),
            actions: VecDeque::new(),
        }
    }

    /// Starts a query. `to` is the server that the program chose.
    ///
    /// # Errors
    /// [`WAITING_MAX`] queries wait already.
    pub fn ask(
        &mut self,
        waiter: QueryWaiter<T>,
        to: SocketAddr,
        servers: Servers<'_>,
        cx: &mut QueryContext<'_>,
    ) -> Result<(), TooMany> {
        let requested = OutgoingQuery::new(&waiter.query);
        let (requested, options) = match servers {
            Servers::AnyOf(list) => (requested, list.options),
            Servers::Chosen(options) => (requested.only_to(to), options),
        };
        if let Some(number) = self.by_question.get(&requested).copied() {
            return self.join(number, waiter, to, cx);
        }
        if self.waiting >= WAITING_MAX {
            return Err(TooMany);
        }
        let number = self.begun;
        self.begun += 1;
        let turn = usize::try_from(number).unwrap_or(0);
        let order = match servers {
            Servers::AnyOf(list) => order(list, Some(to), turn, cx.health, cx.now),
            Servers::Chosen(_) => vec![to],
        };
        let requested = Arc::new(requested);
        self.by_question.insert(Arc::clone(&requested), number);
        let exchange = Exchange {
            requested,
            waiters: vec![waiter],
            order,
            next: 0,
            round: 0,
            options,
            due: cx.now,
            open: Vec::new(),
            tries: 0,
            edns: true,
            stream: None,
            fallback: None,
        };
        self.waiting += 1;
        self.exchanges.insert(number, exchange);
        self.advance(number, cx);
        Ok(())
    }

    /// Lets a program wait for a query that is already in progress. If the program waits already,
    /// it has repeated its query, and the client may send the query again.
    fn join(
        &mut self,
        number: u64,
        waiter: QueryWaiter<T>,
        to: SocketAddr,
        cx: &mut QueryContext<'_>,
    ) -> Result<(), TooMany> {
        let Some(exchange) = self.exchanges.get_mut(&number) else { return Ok(()) };
        let is_repeated = exchange
            .waiters
            .iter()
            .any(|other| other.from == waiter.from && other.query.id == waiter.query.id);
        if !is_repeated {
            if self.waiting >= WAITING_MAX {
                return Err(TooMany);
            }
            self.waiting += 1;
            exchange.waiters.push(waiter);
        }
        let chosen = exchange.order.iter().find(|server| **server == to).copied();
        let server = match (chosen, is_repeated) {
            (Some(server), _) => server,
            (None, true) if let Some(first) = exchange.order.first() => *first,
            (None, _) => return Ok(()),
        };
        let open = exchange.open.iter().filter_map(|slot| self.sockets.get(*slot));
        let sent = open.filter(|open| open.server == server).map(|open| open.sent).max();
        let is_wanted = match sent {
            None => exchange.stream.is_none(),
            Some(sent) => is_repeated && sent + SUSPECTED_DELAY <= cx.now,
        };
        if is_wanted {
            self.send(number, server, Style::USUAL, cx);
        }
        Ok(())
    }

    /// Queries the next server, starts the next round, or finishes the query.
    fn advance(&mut self, number: u64, cx: &mut QueryContext<'_>) {
        let Some(exchange) = self.exchanges.get_mut(&number) else { return };
        if exchange.next >= exchange.order.len() {
            let is_last = exchange.round + 1 >= exchange.options.attempts;
            if is_last || exchange.fallback.is_some() || exchange.order.is_empty() {
                return self.give_up(number, cx);
            }
            exchange.round += 1;
            exchange.next = 0;
        }
        let server = exchange.order[exchange.next];
        exchange.next += 1;
        let kind = if exchange.next >= exchange.order.len() {
            TimerKind::Timeout(exchange.options.timeout)
        } else if delay(server, cx.health, cx.now) == SUSPECTED_DELAY {
            TimerKind::Suspected
        } else {
            TimerKind::Next
        };
        // Some firewalls drop queries with EDNS. Programs that need its flags get no answer then.
        let may_use_edns = exchange.round == 0 || exchange.requested.needs_edns();
        let style = Style { edns: exchange.edns && may_use_edns, ..Style::USUAL };
        self.wait(number, kind, cx.now);
        self.send(number, server, style, cx);
    }

    fn wait(&mut self, number: u64, kind: TimerKind, now: Instant) {
        let Some(exchange) = self.exchanges.get_mut(&number) else { return };
        exchange.due = now + kind.delay();
        let due = exchange.due;
        let exchanges = &self.exchanges;
        self.timers.push(kind, number, due, |number, due| {
            exchanges.get(&number).is_some_and(|exchange| exchange.due == due)
        });
    }

    /// Sends the query to a server over UDP.
    fn send(&mut self, number: u64, server: SocketAddr, style: Style, cx: &mut QueryContext<'_>) {
        let Some(exchange) = self.exchanges.get_mut(&number) else { return };
        if exchange.tries >= TRIES_MAX {
            return;
        }
        exchange.tries += 1;
        let open = Open { exchange: number, server, sent: cx.now, style, message: Vec::new() };
        let reserved = self.sockets.reserve(server, open, cx.now, cx.random);
        let slot = reserved.slot;
        let message = exchange.requested.message(slot.id, style, cx.random);
        if let Some(open) = self.sockets.entry(slot) {
            open.message.clone_from(&message);
        }
        exchange.open.push(slot);
        if reserved.is_new {
            self.actions.push_back(ClientAction::Open { socket: slot.socket, server });
        }
        self.actions.push_back(ClientAction::Send { socket: slot.socket, message });
    }

    /// Handles a datagram from a socket.
    pub fn received(&mut self, socket: u64, message: &[u8], cx: &mut QueryContext<'_>) {
        let Some(&[high, low]) = message.first_chunk::<2>() else { return };
        let slot = SocketSlot { socket, id: u16::from_be_bytes([high, low]) };
        let Some(open) = self.sockets.get(slot) else { return };
        let matched = matches(message, &open.message);
        if matched == Match::None {
            return;
        }
        let Open { exchange: number, server, sent, style, .. } = *open;
        self.release(slot);
        let answer_to = self.exchanges.get_mut(&number);
        if let Some(exchange) = answer_to {
            exchange.open.retain(|other| *other != slot);
        }
        let again = match matched {
            Match::Folded if style.mixed_case => Some(Style { mixed_case: false, ..style }),
            Match::Unreadable if style.edns => Some(Style { edns: false, ..style }),
            Match::Unreadable => return self.follow(number, cx),
            _ if style.edns && is_about_form(message) => Some(Style { edns: false, ..style }),
            _ => None,
        };
        if let Some(style) = again {
            if let Some(exchange) = self.exchanges.get_mut(&number) {
                exchange.edns = style.edns;
            }
            return self.send(number, server, style, cx);
        }
        cx.health.answered(server, cx.now);
        self.answered(number, server, sent, message, cx);
    }

    /// Handles an answer that matches its query.
    fn answered(
        &mut self,
        number: u64,
        server: SocketAddr,
        sent: Instant,
        message: &[u8],
        cx: &mut QueryContext<'_>,
    ) {
        let Some(exchange) = self.exchanges.get_mut(&number) else { return };
        if is_refusal(message) {
            exchange.fallback = Some(message.to_vec());
            return self.follow(number, cx);
        }
        let needs_all =
            || exchange.waiters.iter().any(|waiter| waiter.bytes_max > usize::from(EDNS_BYTES));
        if is_truncated(message) && needs_all() {
            if exchange.stream.is_some() {
                return;
            }
            exchange.fallback = Some(message.to_vec());
            let [low, high, ..] = (cx.random)().to_le_bytes();
            let id = u16::from_le_bytes([low, high]);
            let style = Style { edns: exchange.edns, ..Style::USUAL };
            let message = exchange.requested.message(id, style, cx.random);
            exchange.stream = Some(message.clone());
            let time = exchange.options.timeout;
            self.wait(number, TimerKind::Timeout(time), cx.now);
            self.actions.push_back(ClientAction::Stream { number, server, message, time });
            return;
        }
        for slot in &exchange.open {
            if let Some(open) = self.sockets.get(*slot).filter(|open| open.sent < sent) {
                cx.health.suspect(open.server, open.sent, cx.now);
            }
        }
        self.finish(number, Some(message.to_vec()), cx.now);
    }

    /// Handles the answer to a query over TCP. `None` means that no answer arrived in time.
    pub fn streamed(&mut self, number: u64, message: Option<Vec<u8>>, cx: &mut QueryContext<'_>) {
        let Some(exchange) = self.exchanges.get_mut(&number) else { return };
        let Some(requested) = exchange.stream.take() else { return };
        let is_answer = |message: &Vec<u8>| {
            matches!(matches(message, &requested), Match::Exact | Match::Folded)
                && !is_refusal(message)
        };
        match message.filter(is_answer) {
            Some(message) => self.finish(number, Some(message), cx.now),
            None => self.follow(number, cx),
        }
    }

    /// Handles a network error of a socket: the socket will receive no answers to its open queries.
    pub fn socket_failed(&mut self, socket: u64, error: &str, cx: &mut QueryContext<'_>) {
        let Some(server) = self.sockets.server(socket) else { return };
        cx.health.failed(server, error, cx.now);
        self.retire(socket);
        for slot in self.sockets.open(socket) {
            let Some(number) = self.sockets.get(slot).map(|open| open.exchange) else { continue };
            self.release(slot);
            if let Some(exchange) = self.exchanges.get_mut(&number) {
                exchange.open.retain(|other| *other != slot);
                self.follow(number, cx);
            }
        }
    }

    /// Handles an unusable answer. Queries the next server; without one, waits for the answers that
    /// may still arrive.
    fn follow(&mut self, number: u64, cx: &mut QueryContext<'_>) {
        let Some(exchange) = self.exchanges.get(&number) else { return };
        let has_next = exchange.next < exchange.order.len();
        if has_next || exchange.open.is_empty() && exchange.stream.is_none() {
            self.advance(number, cx);
        }
    }

    /// Finishes the query with the best answer so far.
    fn give_up(&mut self, number: u64, cx: &mut QueryContext<'_>) {
        let Some(exchange) = self.exchanges.get_mut(&number) else { return };
        let fallback = exchange.fallback.take();
        self.finish(number, fallback, cx.now);
    }

    fn finish(&mut self, number: u64, response: Option<Vec<u8>>, now: Instant) {
        let Some(exchange) = self.exchanges.remove(&number) else { return };
        self.by_question.remove(&exchange.requested);
        self.waiting -= exchange.waiters.len();
        for slot in exchange.open {
            let Some(open) = self.sockets.get(slot) else { continue };
            let until = open.sent.max(now) + exchange.options.timeout;
            self.late.push_back(Late { slot, exchange: number, until });
        }
        while self.late.len() > LATE_MAX {
            self.forget_late(|_| {});
        }
        let waiters = exchange.waiters;
        self.actions.push_back(ClientAction::Finish(FinishedQuery { response, waiters }));
    }

    /// Stops expecting the oldest late answer.
    fn forget_late(&mut self, silent: impl FnOnce(&Open)) {
        let Some(late) = self.late.pop_front() else { return };
        let Some(open) = self.sockets.get(late.slot) else { return };
        // The ID may meanwhile belong to another query.
        if open.exchange == late.exchange {
            silent(open);
            self.release(late.slot);
        }
    }

    fn release(&mut self, slot: SocketSlot) {
        if self.sockets.release(slot) {
            self.actions.push_back(ClientAction::Close { socket: slot.socket });
        }
    }

    /// Handles the timers that have expired; see [`Self::next_wake`].
    pub fn tick(&mut self, cx: &mut QueryContext<'_>) {
        while let Some(number) = self.next_due(cx.now) {
            self.note_silent(number, cx);
            self.advance(number, cx);
        }
        while self.late.front().is_some_and(|late| late.until <= cx.now) {
            let QueryContext { now, health, .. } = cx;
            self.forget_late(|open| health.silent(open.server, open.sent, *now));
        }
        for socket in self.sockets.too_old(cx.now) {
            self.retire(socket);
        }
    }

    /// Stops using the current sockets for new queries. Closes each of these sockets as soon as it
    /// has no open query.
    pub fn retire_sockets(&mut self) {
        for socket in self.sockets.in_use() {
            self.retire(socket);
        }
    }

    /// Stops using a socket for new queries. Closes the socket if it has no open query.
    fn retire(&mut self, socket: u64) {
        if self.sockets.retire(socket) {
            self.actions.push_back(ClientAction::Close { socket });
        }
    }

    fn next_due(&mut self, now: Instant) -> Option<u64> {
        let exchanges = &self.exchanges;
        self.timers.pop(now, |number, due| {
            exchanges.get(&number).is_some_and(|exchange| exchange.due == due)
        })
    }

    /// Records the servers that did not answer within the timeout.
    fn note_silent(&mut self, number: u64, cx: &mut QueryContext<'_>) {
        let Some(exchange) = self.exchanges.get(&number) else { return };
        for slot in &exchange.open {
            if let Some(open) = self.sockets.get(*slot)
                && open.sent + exchange.options.timeout <= cx.now
            {
                cx.health.silent(open.server, open.sent, cx.now);
            }
        }
    }

    /// Returns when to call [`Self::tick`]; `None` if nothing is due.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        let late = self.late.front().map(|late| late.until);
        [self.timers.next(), late, self.sockets.next_end()].into_iter().flatten().min()
    }

    /// Returns the next action of the caller. The caller repeats the call until it gets `None`.
    pub fn next_action(&mut self) -> Option<ClientAction<T>> {
        self.actions.pop_front()
    }
}

impl<T: PartialEq> Default for DnsClient<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
