//! A client of several servers, without I/O: which is asked what, when, and by which socket; whom
//! an answer is for.
//!
//! ```text
//!   ask ──┐                                     ┌──> Open, Send, Close   sockets
//!   received, socket_failed ──> Client ──> next_action ──> Stream        a question by TCP
//!   streamed, tick ──┘                          └──> Finish              to those that wait
//! ```
//!
//! The server that the program asked comes first; the next one after [`NEXT_DELAY`], or after
//! [`SUSPECTED_DELAY`] if the first was silent lately; all are heard until the first answer. A
//! refusal, or an error of the network, leads to the next at once. The last one of a round has its
//! whole time, as the host's file says, before the next round.
//!
//! An answer must come from the server by the socket that asked, with the question's number, and
//! repeat the question in the same case of letters. A server that folds case is asked a second time
//! in lower case, with another number: a forger has to guess right twice. By TCP the case is not
//! looked at.
//!
//! Equal questions in flight are one; each that asked gets the answer. What a program sends again
//! goes to the server again.
//!
//! Limits: [`WAITING_MAX`] questions wait; [`TRIES_MAX`] messages for one; [`LATE_MAX`] answers
//! that are no longer needed are awaited, to learn whether their server lives.

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

pub use order::{NEXT_DELAY, SUSPECTED_DELAY, ServerList};
pub use sockets::{QUESTIONS_PER_SOCKET_MAX, SOCKET_LIFE, SOCKETS_PER_SERVER};

/// Questions that wait for an answer; more are not taken.
pub const WAITING_MAX: usize = 4096;
/// Messages to all servers for one question.
pub const TRIES_MAX: u32 = 32;
/// Answers that are awaited although another server was faster.
pub const LATE_MAX: usize = 1024;

/// A program's query, and where its answer goes.
#[derive(Clone, Debug)]
pub struct QueryWaiter<T> {
    /// The query.
    pub query: Query,
    /// How long the answer may be.
    pub bytes_max: usize,
    /// Where it came from; equal ones with the same number are one query that was sent again.
    pub from: T,
}

/// What is to be done next.
#[derive(Debug)]
pub enum ClientAction<T> {
    /// Open a datagram socket that is connected to that server.
    Open {
        /// The number it has from now on.
        socket: u64,
        /// The server.
        server: SocketAddr,
    },
    /// Send a datagram.
    Send {
        /// By which socket.
        socket: u64,
        /// All of it.
        message: Vec<u8>,
    },
    /// Close a socket.
    Close {
        /// Which.
        socket: u64,
    },
    /// Ask by TCP, and give what comes to [`DnsClient::streamed`].
    Stream {
        /// The question.
        number: u64,
        /// The server.
        server: SocketAddr,
        /// Without its length.
        message: Vec<u8>,
        /// How long that may take.
        time: Duration,
    },
    /// Answer.
    Finish(FinishedQuery<T>),
}

/// A question that is over.
#[derive(Debug)]
pub struct FinishedQuery<T> {
    /// The server's message as it came; `None`: no server answered.
    pub response: Option<Vec<u8>>,
    /// Those that wait for it.
    pub waiters: Vec<QueryWaiter<T>>,
}

/// [`WAITING_MAX`] is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// What a client needs from outside at each call.
pub struct QueryContext<'c> {
    /// The time.
    pub now: Instant,
    /// What is known of servers.
    pub health: &'c mut Health,
    /// Numbers that cannot be guessed.
    pub random: &'c mut dyn FnMut() -> u64,
}

impl fmt::Debug for QueryContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("now", &self.now).finish_non_exhaustive()
    }
}

/// All questions that are open. `T` says where one came from.
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

/// One question that servers are being asked.
#[derive(Debug)]
struct Exchange<T> {
    asked: Arc<OutgoingQuery>,
    waiters: Vec<QueryWaiter<T>>,
    /// The servers in their order for this question, and how many of them this round has asked.
    order: Vec<SocketAddr>,
    next: usize,
    round: u32,
    options: ResolverOptions,
    /// When something else is to happen.
    due: Instant,
    /// Messages that are not answered yet.
    open: Vec<SocketSlot>,
    tries: u32,
    /// Whether no server has refused EDNS so far.
    edns: bool,
    /// The question that is being asked by TCP.
    stream: Option<Vec<u8>>,
    /// A refusal, or an answer that was cut: better than none.
    fallback: Option<Vec<u8>>,
}

/// One message that is not answered yet.
#[derive(Debug)]
struct Open {
    exchange: u64,
    server: SocketAddr,
    sent: Instant,
    style: Style,
    message: Vec<u8>,
}

/// A message whose answer is no longer needed.
#[derive(Debug)]
struct Late {
    slot: SocketSlot,
    exchange: u64,
    until: Instant,
}

impl<T: PartialEq> DnsClient<T> {
    /// Nothing is open.
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

    /// Takes a question. `to` is the server that the program asked.
    ///
    /// # Errors
    /// Too many wait.
    pub fn ask(
        &mut self,
        waiter: QueryWaiter<T>,
        to: SocketAddr,
        servers: &ServerList,
        cx: &mut QueryContext<'_>,
    ) -> Result<(), TooMany> {
        let asked = OutgoingQuery::new(&waiter.query);
        if let Some(number) = self.by_question.get(&asked).copied() {
            return self.join(number, waiter, to, cx);
        }
        if self.waiting >= WAITING_MAX {
            return Err(TooMany);
        }
        let number = self.begun;
        self.begun += 1;
        let turn = usize::try_from(number).unwrap_or(0);
        let asked = Arc::new(asked);
        self.by_question.insert(Arc::clone(&asked), number);
        let exchange = Exchange {
            asked,
            waiters: vec![waiter],
            order: order(servers, Some(to), turn, cx.health, cx.now),
            next: 0,
            round: 0,
            options: servers.options,
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

    /// Adds a waiter to an open question; one that waits already has sent its query again.
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

    /// Asks the next server, or begins the next round, or ends.
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
        self.wait(number, kind, cx.now);
        self.send(number, server, Style::USUAL, cx);
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

    /// Sends the question to a server by datagram.
    fn send(&mut self, number: u64, server: SocketAddr, style: Style, cx: &mut QueryContext<'_>) {
        let Some(exchange) = self.exchanges.get_mut(&number) else { return };
        if exchange.tries >= TRIES_MAX {
            return;
        }
        exchange.tries += 1;
        let open = Open { exchange: number, server, sent: cx.now, style, message: Vec::new() };
        let reserved = self.sockets.reserve(server, open, cx.now, cx.random);
        let slot = reserved.slot;
        let message = exchange.asked.message(slot.id, style, cx.random);
        if let Some(open) = self.sockets.entry(slot) {
            open.message.clone_from(&message);
        }
        exchange.open.push(slot);
        if reserved.is_new {
            self.actions.push_back(ClientAction::Open { socket: slot.socket, server });
        }
        self.actions.push_back(ClientAction::Send { socket: slot.socket, message });
    }

    /// Takes what came by a socket.
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

    /// Takes an answer that is genuine.
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
            let message = exchange.asked.message(id, style, cx.random);
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

    /// Takes what came by TCP; `None`: nothing did in time.
    pub fn streamed(&mut self, number: u64, message: Option<Vec<u8>>, cx: &mut QueryContext<'_>) {
        let Some(exchange) = self.exchanges.get_mut(&number) else { return };
        let Some(asked) = exchange.stream.take() else { return };
        let is_answer = |message: &Vec<u8>| {
            matches!(matches(message, &asked), Match::Exact | Match::Folded) && !is_refusal(message)
        };
        match message.filter(is_answer) {
            Some(message) => self.finish(number, Some(message), cx.now),
            None => self.follow(number, cx),
        }
    }

    /// Takes an error of the network: none of the open questions of the socket will be answered.
    pub fn socket_failed(&mut self, socket: u64, error: &str, cx: &mut QueryContext<'_>) {
        let Some(server) = self.sockets.server(socket) else { return };
        cx.health.failed(server, error, cx.now);
        for slot in self.sockets.open(socket) {
            let Some(number) = self.sockets.get(slot).map(|open| open.exchange) else { continue };
            self.release(slot);
            if let Some(exchange) = self.exchanges.get_mut(&number) {
                exchange.open.retain(|other| *other != slot);
                self.follow(number, cx);
            }
        }
        if self.sockets.retire(socket) {
            self.actions.push_back(ClientAction::Close { socket });
        }
    }

    /// Goes on after a message that helped no further.
    fn follow(&mut self, number: u64, cx: &mut QueryContext<'_>) {
        let Some(exchange) = self.exchanges.get(&number) else { return };
        if exchange.next < exchange.order.len() {
            self.advance(number, cx);
        } else if exchange.open.is_empty() && exchange.stream.is_none() {
            self.give_up(number, cx);
        }
    }

    /// Ends with what there is.
    fn give_up(&mut self, number: u64, cx: &mut QueryContext<'_>) {
        let Some(exchange) = self.exchanges.get_mut(&number) else { return };
        let fallback = exchange.fallback.take();
        self.finish(number, fallback, cx.now);
    }

    fn finish(&mut self, number: u64, response: Option<Vec<u8>>, now: Instant) {
        let Some(exchange) = self.exchanges.remove(&number) else { return };
        self.by_question.remove(&exchange.asked);
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

    /// Awaits the oldest answer that is not needed no longer.
    fn forget_late(&mut self, silent: impl FnOnce(&Open)) {
        let Some(late) = self.late.pop_front() else { return };
        let Some(open) = self.sockets.get(late.slot) else { return };
        // The number may belong to another question by now.
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

    /// Does what is due; see [`Self::next_wake`].
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
            if self.sockets.retire(socket) {
                self.actions.push_back(ClientAction::Close { socket });
            }
        }
    }

    /// Closes each socket as soon as no question is open on it.
    pub fn retire_sockets(&mut self) {
        for socket in self.sockets.in_use() {
            if self.sockets.retire(socket) {
                self.actions.push_back(ClientAction::Close { socket });
            }
        }
    }

    fn next_due(&mut self, now: Instant) -> Option<u64> {
        let exchanges = &self.exchanges;
        self.timers.pop(now, |number, due| {
            exchanges.get(&number).is_some_and(|exchange| exchange.due == due)
        })
    }

    /// Notes the servers that have had their whole time for a question.
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

    /// When [`Self::tick`] has something to do; `None`: not before the next call of another.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        let late = self.late.front().map(|late| late.until);
        [self.timers.next(), late, self.sockets.next_end()].into_iter().flatten().min()
    }

    /// What is to be done; call it until there is nothing.
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
