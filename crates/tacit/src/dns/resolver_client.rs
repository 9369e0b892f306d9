//! Answers the DNS queries that one worker thread receives from programs.
//!
//! ```text
//!   query ──> verdict ──> DnsClient ──> resolver (UDP, TCP) ──> DnsClient ──> answer
//! ```
//!
//! Queries do not wait for each other. The [`DnsClient`], a state machine without I/O, stores
//! unanswered queries. Before the program gets an answer, the agent records each address in the
//! answer, with the name from the query.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Instant;

use tacit_core::dns::{
    ClientAction, DnsClient, FinishedQuery, Query, QueryContext, QueryWaiter, ResolverOptions,
    ResponseCode, Servers, TooMany, Verdict, for_program, is_truncated, refuse,
};
use tacit_core::dns::{asked_address, name_answer};
use tacit_core::meter::Component;
use tacit_core::packet;
use tacit_sys::datagram::{self, send_packet};
use tacit_sys::watch::{READABLE_OR_ERROR, Watched};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::AbortHandle;

use super::Forwarder;
use super::upstream::{DATAGRAM_BYTES_MAX, Entropy, STREAMS_MAX, Upstream, ask_by_stream, receive};
use crate::ledger::metered;
use crate::log::Event;
use crate::run::Outside;
use crate::run::link::protocol::OpenKind;

/// The number of answers that are read from one socket before other tasks run.
const BATCH_MAX: usize = 64;

/// Sends the DNS queries of one run on one thread to resolvers.
#[derive(Debug)]
pub struct ResolverClient {
    forwarder: Arc<Forwarder>,
    /// Sends complete packets to programs. Answers come from the address that the program asked. No
    /// socket is bound to that address, because a program may want to bind it.
    raw: Option<Arc<OwnedFd>>,
    client: RefCell<DnsClient<Origin>>,
    sockets: RefCell<HashMap<u64, Upstream>>,
    streams: Semaphore,
    entropy: RefCell<Entropy>,
    timer: RefCell<Option<Timer>>,
    buffer: RefCell<Vec<u8>>,
}

/// When the client must be called next.
#[derive(Debug)]
struct Timer {
    at: Instant,
    task: AbortHandle,
}

/// The origin of a query.
#[derive(Debug)]
pub(super) enum Origin {
    Datagram { program: SocketAddr, requested: SocketAddr },
    Stream(oneshot::Sender<Vec<u8>>),
}

impl PartialEq for Origin {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Datagram { program, requested },
                Self::Datagram { program: other_program, requested: other_requested },
            ) => program == other_program && requested == other_requested,
            // Answers over a stream are not sent here.
            _ => false,
        }
    }
}

impl ResolverClient {
    /// Creates the client of one run for the calling thread. It sends the answers to datagrams
    /// through `raw`, a socket inside the run.
    #[must_use]
    pub fn new(forwarder: Arc<Forwarder>, raw: Option<Arc<OwnedFd>>) -> Rc<Self> {
        Rc::new(Self {
            forwarder,
            raw,
            client: RefCell::new(DnsClient::new()),
            sockets: RefCell::default(),
            streams: Semaphore::new(STREAMS_MAX),
            entropy: RefCell::default(),
            timer: RefCell::default(),
            buffer: RefCell::new(vec![0; DATAGRAM_BYTES_MAX]),
        })
    }

    /// Takes a query that arrived in a datagram.
    ///
    /// # Errors
    /// Too many queries are waiting.
    pub fn take_datagram(
        self: &Rc<Self>,
        message: &[u8],
        program: SocketAddr,
        requested: SocketAddr,
    ) -> Result<(), TooMany> {
        let origin = Origin::Datagram { program, requested };
        match Query::read(message) {
            Ok(query) => {
                let bytes_max = query.datagram_bytes_max();
                self.take(QueryWaiter { query, bytes_max, from: origin }, requested)
            }
            Err(_) => {
                if let Some(response) = refuse(message, ResponseCode::FormatError) {
                    self.respond(origin, response);
                }
                Ok(())
            }
        }
    }

    /// Answers a query that arrived over a stream; `None` if the message is not a query.
    pub async fn answer_stream(
        self: &Rc<Self>,
        message: &[u8],
        requested: SocketAddr,
    ) -> Option<Vec<u8>> {
        let Ok(query) = Query::read(message) else {
            return refuse(message, ResponseCode::FormatError);
        };
        let failed = query.refused(ResponseCode::ServerFailure);
        let (answer, answered) = oneshot::channel();
        let waiter =
            QueryWaiter { query, bytes_max: usize::from(u16::MAX), from: Origin::Stream(answer) };
        if self.take(waiter, requested).is_err() {
            return Some(failed);
        }
        Some(answered.await.unwrap_or(failed))
    }

    /// Closes all sockets when no query waits for an answer any more: no further query follows.
    pub fn end(self: &Rc<Self>) {
        self.with_client(|client, _| client.retire_sockets());
    }

    fn take(
        self: &Rc<Self>,
        waiter: QueryWaiter<Origin>,
        requested: SocketAddr,
    ) -> Result<(), TooMany> {
        let Some(waiter) = self.answer_alias(waiter) else { return Ok(()) };
        let Some(reading) = self.forwarder.resolvers.reading() else {
            return self.take_now(waiter, requested);
        };
        let resolver = Rc::clone(self);
        tokio::task::spawn_local(metered(Component::Control, async move {
            reading.await;
            // If too many queries wait, the program sends this one again.
            let _ = resolver.take_now(waiter, requested);
        }));
        Ok(())
    }

    fn take_now(
        self: &Rc<Self>,
        waiter: QueryWaiter<Origin>,
        requested: SocketAddr,
    ) -> Result<(), TooMany> {
        let current = self.forwarder.resolvers.current();
        match self.forwarder.verdict(&waiter.query.question, &current.search) {
            Verdict::Refuse(why) => {
                self.forwarder.note_refused(&waiter.query.question, why);
                self.respond(waiter.from, waiter.query.refused(why));
                Ok(())
            }
            Verdict::NotAllowed => {
                self.forwarder.note_refused(&waiter.query.question, ResponseCode::Refused);
                self.respond(waiter.from, waiter.query.refused(ResponseCode::Refused));
                Ok(())
            }
            Verdict::Forward => {
                if let Some(response) = self.forwarder.run().outside.host_answer(&waiter.query) {
                    let response = Some(response);
                    self.finish(FinishedQuery { response, waiters: vec![waiter] });
                    return Ok(());
                }
                let servers = if self.forwarder.run().is_host() {
                    Servers::Chosen(ResolverOptions::default())
                } else {
                    Servers::AnyOf(&current.servers)
                };
                self.with_client(|client, cx| client.ask(waiter, requested, servers, cx))
            }
        }
    }

    /// Answers a query for the name of an alias address, which resolvers do not know; returns any
    /// other query.
    fn answer_alias(self: &Rc<Self>, waiter: QueryWaiter<Origin>) -> Option<QueryWaiter<Origin>> {
        let query = &waiter.query;
        let requested =
            asked_address(&query.question).filter(|address| self.forwarder.is_reserved(*address));
        let Some(alias) = requested else { return Some(waiter) };
        let name = self.forwarder.run().alias_name(alias);
        let answer =
            name.and_then(|name| name_answer(&query.refused(ResponseCode::NoRecords), &name));
        let answer = answer.unwrap_or_else(|| query.refused(ResponseCode::NoSuchName));
        self.respond(waiter.from, answer);
        None
    }

    /// Calls the client, and carries out the actions that it returns.
    fn with_client<R>(
        self: &Rc<Self>,
        call: impl FnOnce(&mut DnsClient<Origin>, &mut QueryContext<'_>) -> R,
    ) -> R {
        let result = self.call(call);
        self.act();
        self.set_timer();
        result
    }

    fn call<R>(&self, call: impl FnOnce(&mut DnsClient<Origin>, &mut QueryContext<'_>) -> R) -> R {
        let mut entropy = self.entropy.borrow_mut();
        let mut random = || entropy.next();
        let mut health = self.forwarder.resolvers.health();
        let mut cx = QueryContext { now: Instant::now(), health: &mut health, random: &mut random };
        let result = call(&mut self.client.borrow_mut(), &mut cx);
        let changes = health.take_changes();
        drop(health);
        for change in changes {
            let server = &change.server;
            match &change.error {
                Some(error) => {
                    let event = Event::new("resolver-failed").field("resolver", server);
                    self.forwarder.log.warn(event.field("error", error));
                }
                None => {
                    let event = Event::new("resolver-back").field("resolver", server);
                    self.forwarder.log.info(event);
                }
            }
        }
        result
    }

    fn act(self: &Rc<Self>) {
        loop {
            let action = self.client.borrow_mut().next_action();
            match action {
                None => return,
                Some(ClientAction::Open { socket, server }) => self.open(socket, server),
                Some(ClientAction::Send { socket, message }) => self.send(socket, &message),
                Some(ClientAction::Close { socket }) => {
                    self.sockets.borrow_mut().remove(&socket);
                }
                Some(ClientAction::Stream { number, server, message, time }) => {
                    let resolver = Rc::clone(self);
                    let requested = async move {
                        let outside = &resolver.forwarder.run().outside;
                        let answer =
                            ask_by_stream(outside, &resolver.streams, server, &message, time).await;
                        resolver.with_client(|client, cx| client.streamed(number, answer, cx));
                    };
                    tokio::task::spawn_local(metered(Component::Control, requested));
                }
                Some(ClientAction::Finish(finished)) => self.finish(finished),
            }
        }
    }

    fn open(self: &Rc<Self>, number: u64, server: SocketAddr) {
        let mut upstream = Upstream::default();
        match &self.forwarder.run().outside {
            Outside::Host => {
                self.sockets.borrow_mut().insert(number, upstream);
                self.connected(number, datagram::dial(server));
            }
            Outside::Link(link) => {
                // Messages wait until the other side has opened the socket.
                let resolver = Rc::clone(self);
                let link = Arc::clone(link);
                let work = async move {
                    let socket = link.socket(OpenKind::Datagrams, server).await;
                    resolver.connected(number, socket);
                    resolver.act();
                    resolver.set_timer();
                };
                let task = tokio::task::spawn_local(metered(Component::Control, work));
                upstream.set_task(task.abort_handle());
                self.sockets.borrow_mut().insert(number, upstream);
            }
        }
    }

    /// Reads a socket from now on, and sends the messages that wait for it.
    fn connected(self: &Rc<Self>, number: u64, socket: io::Result<OwnedFd>) {
        let begun = socket.and_then(|socket| {
            let mut sockets = self.sockets.borrow_mut();
            // The client may have closed the socket meanwhile.
            let Some(upstream) = sockets.get_mut(&number) else { return Ok(Vec::new()) };
            let waiting = upstream.connect(socket);
            let read = Rc::clone(self).read(number, upstream.watched()?);
            let task = tokio::task::spawn_local(metered(Component::Control, read));
            upstream.set_task(task.abort_handle());
            Ok(waiting)
        });
        match begun {
            Ok(waiting) => waiting.iter().for_each(|message| self.send(number, message)),
            Err(error) => self.fail(number, &error),
        }
    }

    fn send(&self, number: u64, message: &[u8]) {
        let mut sockets = self.sockets.borrow_mut();
        // A socket that could not be opened was reported as failed.
        let Some(upstream) = sockets.get_mut(&number) else { return };
        if let Err(error) = upstream.send(message) {
            drop(sockets);
            self.fail(number, &error);
        }
    }

    /// The client handles the failure after its current step.
    fn fail(&self, number: u64, error: &io::Error) {
        self.call(|client, cx| client.socket_failed(number, &error.to_string(), cx));
    }

    /// Reads a socket until it is closed.
    async fn read(self: Rc<Self>, number: u64, watched: Watched) {
        loop {
            let Ok(mut ready) = watched.ready(READABLE_OR_ERROR).await else { return };
            for _ in 0..BATCH_MAX {
                let mut buffer = std::mem::take(&mut *self.buffer.borrow_mut());
                let received = receive(watched.get_ref(), &mut buffer);
                if let Ok(Some(count)) = received {
                    self.call(|client, cx| client.received(number, &buffer[..count], cx));
                }
                *self.buffer.borrow_mut() = buffer;
                match received {
                    Ok(Some(_)) => self.act(),
                    Ok(None) => {
                        ready.clear_ready();
                        break;
                    }
                    Err(error) => {
                        self.fail(number, &error);
                        self.act();
                    }
                }
            }
            self.set_timer();
            tokio::task::yield_now().await;
        }
    }

    /// Wakes the client when it has something to do.
    fn set_timer(self: &Rc<Self>) {
        let mut timer = self.timer.borrow_mut();
        let Some(at) = self.client.borrow().next_wake() else {
            // A waiting task would keep the data of the run in memory.
            return timer.take().into_iter().for_each(|timer| timer.task.abort());
        };
        match &*timer {
            Some(set) if set.at <= at => return,
            Some(set) => set.task.abort(),
            None => {}
        }
        let resolver = Rc::clone(self);
        let wait = async move {
            tokio::time::sleep_until(at.into()).await;
            resolver.timer.replace(None);
            resolver.with_client(DnsClient::tick);
        };
        let task = tokio::task::spawn_local(metered(Component::Control, wait)).abort_handle();
        *timer = Some(Timer { at, task });
    }

    /// Answers the waiting queries after the addresses in the answer have been captured. So the
    /// `connect` of a program always comes later.
    fn finish(self: &Rc<Self>, finished: FinishedQuery<Origin>) {
        let FinishedQuery { response, waiters } = finished;
        let resolver = Rc::clone(self);
        let Some(response) = response else {
            return self.answer(None, waiters);
        };
        let mut answer = Box::pin(async move {
            let Some(first) = waiters.first() else { return };
            let learnt = resolver.forwarder.learn(response, &first.query.question).await;
            let run = resolver.forwarder.run();
            if run.has_plan() && run.has_departed() {
                // The successor would not know the name. The program asks it again.
                return;
            }
            resolver.answer(learnt.as_deref(), waiters);
        });
        // Most answers contain nothing new, and are not worth a task of their own.
        let mut now = TaskContext::from_waker(Waker::noop());
        if Pin::new(&mut answer).poll(&mut now) == Poll::Pending {
            tokio::task::spawn_local(metered(Component::Control, answer));
        }
    }

    fn answer(&self, response: Option<&[u8]>, waiters: Vec<QueryWaiter<Origin>>) {
        for QueryWaiter { query, bytes_max, from } in waiters {
            // Over a stream an answer cannot be truncated.
            let response = response
                .filter(|one| matches!(from, Origin::Datagram { .. }) || !is_truncated(one));
            let written = response.and_then(|response| for_program(response, &query, bytes_max));
            let message = written.unwrap_or_else(|| query.refused(ResponseCode::ServerFailure));
            self.respond(from, message);
        }
    }

    fn respond(&self, to: Origin, message: Vec<u8>) {
        match to {
            // The program may have closed its stream.
            Origin::Stream(back) => drop(back.send(message)),
            Origin::Datagram { program, requested } => {
                let Some(raw) = &self.raw else { return };
                let Some(packet) = packet::datagram(requested, program, &message) else { return };
                if let Err(error) = send_packet(raw.as_fd(), &packet, program.ip()) {
                    self.forwarder.log.warn(Event::new("dns-failed").field("error", &error));
                }
            }
        }
    }
}
