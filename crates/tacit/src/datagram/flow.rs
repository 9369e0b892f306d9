//! Relays the datagrams of one UDP flow until the flow ends. A flow has one socket inside the
//! program's network namespace, and one outside.

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tacit_core::datagram::DatagramKey;
use tacit_core::flow::{Address, Flow, Protocol};
use tacit_core::icmp::PACKET_BYTES_MAX;
use tacit_core::meter::Component;
use tacit_core::policy::Answers;
use tacit_sys::datagram::AnswerSources;
use tacit_sys::datagram_queue::{DATAGRAMS_MAX, DatagramQueue};
use tacit_sys::watch::{READABLE_OR_ERROR, Watched, watch};
use tacit_sys::{IpVersion, datagram, transparent};
use tokio::io::Ready;
use tokio::io::unix::AsyncFdReadyGuard;
use tokio::sync::Notify;

use super::answerers::{Answerer, Answerers};
use super::icmp_errors::{cause_of, cause_of_notice, send_icmp_error};
use super::socket::{DatagramShared, Receiver};
use super::{BATCH_MAX, FLUSH_DATAGRAMS_MAX};
use crate::clock;
use crate::ledger::{charged, meter};
use crate::live::LiveAction;
use crate::session::{Connection, Failure, account};

/// The maximum number of errors about earlier datagrams that are read before a later one is
/// dropped.
const NOTICES_MAX: usize = 16;
/// The interval between two attempts to send while the socket has no room.
const ROOM_POLL: Duration = Duration::from_millis(1);

/// The parts of the lane that a flow uses.
pub(super) trait FlowHost {
    /// The state that all threads share.
    fn shared(&self) -> &DatagramShared;
    /// The socket that received its first datagrams.
    fn receiver(&self) -> &Receiver;
    /// The receive buffer; not used across an `await`.
    fn scratch(&self) -> RefMut<'_, Vec<u8>>;
    /// The buffer for several datagrams; not used across an `await`.
    fn queue(&self) -> RefMut<'_, DatagramQueue>;
    /// Called when the flow has sent a datagram.
    fn touch(&self, key: &DatagramKey);
    /// Called when a reply has arrived.
    fn note_answer(&self, key: &DatagramKey);
    /// Called when a datagram was dropped.
    fn count_drop(&self);
    /// Whether there is a flow with these ends.
    fn is_open(&self, key: &DatagramKey) -> bool;
    /// Takes the datagrams that arrived before the flow had a socket of its own.
    fn drain(self: &Rc<Self>);
    /// Has the current policy decide about a datagram whose flow it may not permit as before. A
    /// flow with the ends `key` relays or rejects the datagram.
    fn decide_again(self: &Rc<Self>, key: DatagramKey, payload: &[u8]);
    /// Called when the flow has ended. Later datagrams begin another flow.
    fn forget(&self, relay: &FlowRelay);
}

/// Relays one flow.
#[derive(Debug)]
pub(super) struct FlowRelay {
    pub(super) key: DatagramKey,
    /// The flow, which rules match.
    pub(super) flow: Flow,
    pub(super) connection: Connection,
    /// The generation of the policy that permitted it last.
    generation: Cell<u64>,
    /// The destination's address outside.
    pub(super) target: SocketAddr,
    /// The socket outside, which also receives answers from other ports.
    dialled: Watched,
    /// The socket inside, bound to the destination's address. It is created after the flow begins.
    spoofed: OnceCell<Watched>,
    /// The other sources of answers.
    pub(super) answerers: Answerers,
    /// The datagrams for which the socket outside had no room, at most [`DATAGRAMS_MAX`].
    unsent: RefCell<VecDeque<Vec<u8>>>,
    /// Whether a new policy ends the flow.
    is_decided_again: Cell<bool>,
    over: Notify,
}

/// The destination's address outside.
pub(super) fn target_of(key: &DatagramKey, flow: &Flow) -> SocketAddr {
    match flow.remote {
        Address::Inet(remote) => remote,
        _ => key.destination,
    }
}

/// From where the rule of a flow accepts answers.
pub(super) fn answer_sources(connection: &Connection) -> AnswerSources {
    match connection.record().rule.rule.answers {
        Answers::Destination => AnswerSources::Destination,
        Answers::Any => AnswerSources::Any,
    }
}

/// Why a flow ended.
#[derive(Debug)]
pub(super) enum FlowEnd {
    /// It was idle for too long, was replaced by another flow, or its run has ended.
    Over,
    /// An operator closed it.
    Closed,
    /// The program closed its socket.
    ProgramGone,
    /// The agent makes a new flow with the same ends, or rejects it, because a new policy may not
    /// permit this one.
    DecidedAgain,
    /// The socket inside the run could not be created.
    NoSocket(io::Error),
}

impl fmt::Display for FlowEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Over => f.write_str(
                "either the flow was idle for too long, or another flow replaced this flow, or \
                 the run has ended",
            ),
            Self::Closed => f.write_str("an operator closed the flow"),
            Self::ProgramGone => f.write_str("the program closed its socket"),
            Self::DecidedAgain => f.write_str(
                "the newly installed policy does not permit the flow as before; the agent \
                 evaluated its rules again",
            ),
            Self::NoSocket(error) => {
                write!(f, "cannot create the flow's socket in the run: {error}")
            }
        }
    }
}

/// The ends of a datagram that is sent: as the program sees them, and the address outside.
#[derive(Debug)]
pub(super) struct SendEnds {
    pub(super) key: DatagramKey,
    pub(super) target: SocketAddr,
}

/// The result of a batch.
#[derive(Debug)]
pub(super) enum BatchResult {
    /// Nothing is left.
    Empty,
    /// There may be more datagrams.
    More,
    /// The socket outside had no room for some datagrams. The flow keeps them. More may wait.
    Full,
}

/// The result of sending one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// The datagram was sent, or an ICMP error was sent to the program.
    Done,
    /// The socket has no room now.
    Full,
}

/// A flow whose destination cannot be dialled.
#[derive(Debug)]
pub(super) struct NotDialled {
    pub(super) connection: Connection,
    pub(super) error: io::Error,
}

impl FlowRelay {
    /// Relays between the program and a socket outside that was opened for the flow.
    ///
    /// # Errors
    /// The socket could not be opened, or cannot be watched.
    pub(super) fn new(
        key: DatagramKey,
        flow: Flow,
        connection: Connection,
        generation: u64,
        socket: io::Result<OwnedFd>,
    ) -> Result<Self, NotDialled> {
        let target = target_of(&key, &flow);
        let dialled = socket.and_then(|socket| watch(Arc::new(socket), READABLE_OR_ERROR));
        match dialled {
            Ok(dialled) => Ok(Self {
                key,
                flow,
                connection,
                generation: Cell::new(generation),
                target,
                dialled,
                spoofed: OnceCell::new(),
                answerers: Answerers::default(),
                unsent: RefCell::default(),
                is_decided_again: Cell::new(false),
                over: Notify::new(),
            }),
            Err(error) => Err(NotDialled { connection, error }),
        }
    }

    /// Ends the flow.
    pub(super) fn end(&self) {
        self.over.notify_one();
    }

    /// Ends the flow, because a new policy may not permit it.
    pub(super) fn end_for_new_policy(&self) {
        self.is_decided_again.set(true);
        self.end();
    }

    /// Why [`Self::end`] was called.
    fn end_reason(&self) -> FlowEnd {
        if self.is_decided_again.get() { FlowEnd::DecidedAgain } else { FlowEnd::Over }
    }

    /// Sends a datagram that the receiver has read.
    pub(super) fn send_early(&self, lane: &Rc<impl FlowHost>, payload: &[u8]) {
        if !self.is_permitted(&**lane) {
            // The sockets inside have newer datagrams. The flow sends them when it ends.
            self.end_for_new_policy();
            lane.forget(self);
            return lane.decide_again(self.key, payload);
        }
        if self.send(lane.receiver(), payload) == Sending::Full {
            lane.count_drop();
        }
    }

    /// Sends the datagrams that wait in the socket inside.
    ///
    /// # Errors
    /// The reason why the flow ends.
    fn send_batch(&self, lane: &impl FlowHost) -> Result<BatchResult, FlowEnd> {
        let Some(spoofed) = self.spoofed.get() else { return Ok(BatchResult::Empty) };
        if !self.is_permitted(lane) {
            return Err(FlowEnd::DecidedAgain);
        }
        lane.touch(&self.key);
        let mut queue = lane.queue();
        for _ in 0..BATCH_MAX / DATAGRAMS_MAX {
            meter::switch(Component::Receive);
            let received = match queue.receive(spoofed.get_ref().as_fd()) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(_) => return Err(FlowEnd::ProgramGone),
            };
            if let Some(first) = self.send_queue(lane.receiver(), &queue, received) {
                let rest = (first..received).map(|number| queue.payload(number).to_vec());
                self.unsent.borrow_mut().extend(rest);
                return Ok(BatchResult::Full);
            }
            if received < DATAGRAMS_MAX {
                return Ok(BatchResult::Empty);
            }
        }
        Ok(BatchResult::More)
    }

    /// Sends the datagrams of the program that wait in all sockets inside, because the flow ends.
    /// If the current policy does not permit the flow, this policy decides about the datagrams.
    pub(super) fn flush_sockets(&self, lane: &Rc<impl FlowHost>) {
        let unsent = self.unsent.take();
        self.send_or_decide_again(lane, None, unsent);
        self.flush_socket(lane, None);
        for answerer in self.answerers.all() {
            self.flush_socket(lane, Some(&answerer));
        }
    }

    /// Sends the datagrams of the program that wait in one socket inside, because the socket
    /// closes. It is the socket for this source of answers; `None`: the socket for the destination.
    pub(super) fn flush_socket(&self, lane: &Rc<impl FlowHost>, answerer: Option<&Answerer>) {
        let spoofed = answerer.map_or(&self.spoofed, |answerer| &answerer.spoofed);
        let Some(spoofed) = spoofed.get() else { return };
        let address = self.send_ends(answerer).key.destination;
        // Otherwise, a datagram that arrives after the last read is lost. If the call fails,
        // datagrams may arrive faster than this thread reads: the limits below end the loop.
        let _ = transparent::release_program(spoofed.get_ref().as_fd(), address);
        let mut count = 0;
        let mut failures = 0;
        while count < FLUSH_DATAGRAMS_MAX && failures < NOTICES_MAX {
            match receive_waiting(spoofed, &**lane) {
                Ok(waiting) => {
                    count += waiting.len().max(1);
                    self.send_or_decide_again(lane, answerer, waiting);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // An earlier datagram to the program has failed.
                Err(_) => failures += 1,
            }
        }
    }

    /// Sends datagrams if the current policy permits the flow. Otherwise, the policy decides about
    /// them as about datagrams of a new flow.
    fn send_or_decide_again(
        &self,
        lane: &Rc<impl FlowHost>,
        answerer: Option<&Answerer>,
        payloads: impl IntoIterator<Item = Vec<u8>>,
    ) {
        let is_permitted = self.is_permitted(&**lane)
            && answerer.is_none_or(|answerer| self.may_still_answer(&**lane, answerer));
        let ends = self.send_ends(answerer);
        for payload in payloads {
            if !is_permitted {
                lane.decide_again(ends.key, &payload);
            } else if self.send_to(lane.receiver(), &payload, &ends) == Sending::Full {
                lane.count_drop();
            }
        }
    }

    /// The ends of datagrams to another source of answers, or (`None`) to the destination.
    pub(super) fn send_ends(&self, answerer: Option<&Answerer>) -> SendEnds {
        let Some(answerer) = answerer else {
            return SendEnds { key: self.key, target: self.target };
        };
        let key = DatagramKey { program: self.key.program, destination: answerer.shown };
        SendEnds { key, target: answerer.address }
    }

    /// Sends the first datagrams of a queue to the destination. Returns the number of the first one
    /// for which the socket has no room.
    fn send_queue(
        &self,
        receiver: &Receiver,
        queue: &DatagramQueue,
        count: usize,
    ) -> Option<usize> {
        meter::switch(Component::Send);
        let mut next = 0;
        let mut failures = 0;
        while next < count {
            let sent = queue.send(self.dialled.get_ref().as_fd(), next..count, Some(self.target));
            match sent {
                Ok(sent) => {
                    let payloads = (next..next + sent).map(|number| queue.payload(number).len());
                    payloads.for_each(|bytes| self.connection.count_sent(bytes));
                    next += sent;
                    failures = 0;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(next),
                Err(error) => {
                    failures += 1;
                    let is_reported = self.report_notices(receiver) > 0;
                    if !is_reported {
                        self.report_error(receiver, &self.key, &error, queue.payload(next));
                    }
                    if !is_reported || failures >= NOTICES_MAX {
                        next += 1;
                        failures = 0;
                    }
                }
            }
        }
        None
    }

    /// Sends the replies that have arrived to the program. `ready` is what the socket outside has
    /// reported.
    fn receive_batch(
        self: &Rc<Self>,
        lane: &Rc<impl FlowHost + 'static>,
        spoofed: &Watched,
        ready: Ready,
    ) -> Result<BatchResult, FlowEnd> {
        if !self.is_permitted(&**lane) {
            return Err(FlowEnd::DecidedAgain);
        }
        lane.note_answer(&self.key);
        let mut queue = lane.queue();
        for _ in 0..BATCH_MAX / DATAGRAMS_MAX {
            meter::switch(Component::Receive);
            let received = match queue.receive(self.dialled.get_ref().as_fd()) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => {
                    if self.report_notices(lane.receiver()) == 0 {
                        self.report_error(lane.receiver(), &self.key, &error, &[]);
                    }
                    continue;
                }
            };
            meter::switch(Component::Send);
            self.deliver(lane, spoofed, &queue, received)?;
            if received < DATAGRAMS_MAX {
                if ready.is_error() {
                    self.report_notices(lane.receiver());
                }
                return Ok(BatchResult::Empty);
            }
        }
        Ok(BatchResult::More)
    }

    /// Sends the first datagrams of a queue to the program.
    fn deliver(
        self: &Rc<Self>,
        lane: &Rc<impl FlowHost + 'static>,
        spoofed: &Watched,
        queue: &DatagramQueue,
        count: usize,
    ) -> Result<(), FlowEnd> {
        let is_from_target = |number: usize| {
            let source = queue.source(number);
            source.is_some_and(|source| {
                (source.ip(), source.port()) == (self.target.ip(), self.target.port())
            })
        };
        let mut next = 0;
        while next < count {
            let end = (next..count).find(|number| !is_from_target(*number)).unwrap_or(count);
            if next == end {
                if let Some(source) = queue.source(next) {
                    self.answer_from(lane, source, queue.payload(next));
                }
                next += 1;
                continue;
            }
            match queue.send(spoofed.get_ref().as_fd(), next..end, None) {
                Ok(sent) => {
                    let payloads = (next..next + sent).map(|number| queue.payload(number).len());
                    payloads.for_each(|bytes| self.connection.count_received(bytes));
                    next += sent;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    return Err(FlowEnd::ProgramGone);
                }
                Err(_) => {
                    lane.count_drop();
                    next += 1;
                }
            }
        }
        Ok(())
    }

    /// Sends one datagram to the destination. The socket first reports errors of earlier ones.
    fn send(&self, receiver: &Receiver, payload: &[u8]) -> Sending {
        self.send_to(receiver, payload, &self.send_ends(None))
    }

    /// Sends one datagram to another source of answers, in the same way.
    pub(super) fn send_to(&self, receiver: &Receiver, payload: &[u8], ends: &SendEnds) -> Sending {
        meter::switch(Component::Send);
        for _ in 0..NOTICES_MAX {
            match datagram::send_to(self.dialled.get_ref().as_fd(), payload, ends.target) {
                Ok(()) => {
                    self.connection.count_sent(payload.len());
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sending::Full,
                Err(error) => {
                    if self.report_notices(receiver) == 0 {
                        self.report_error(receiver, &ends.key, &error, payload);
                        break;
                    }
                }
            }
        }
        Sending::Done
    }

    /// Reports the errors of earlier datagrams to the program; returns how many.
    fn report_notices(&self, receiver: &Receiver) -> usize {
        let mut quoted = [0; PACKET_BYTES_MAX];
        let dialled = self.dialled.get_ref().as_fd();
        for reported in 0..NOTICES_MAX {
            let Ok(Some(notice)) = datagram::take_notice(dialled, &mut quoted) else {
                return reported;
            };
            if let Some(cause) = cause_of_notice(notice.kind) {
                let quoted = quoted.get(..notice.bytes).unwrap_or_default();
                let key = self.key_of(notice.destination);
                send_icmp_error(receiver, &key, cause, quoted, notice.reporter);
            }
        }
        NOTICES_MAX
    }

    fn report_error(
        &self,
        receiver: &Receiver,
        key: &DatagramKey,
        error: &io::Error,
        payload: &[u8],
    ) {
        send_icmp_error(receiver, key, cause_of(error, None), payload, None);
    }

    /// The ends, as the program sees them, of what was sent to a destination outside.
    fn key_of(&self, destination: Option<SocketAddr>) -> DatagramKey {
        let answerer = destination.and_then(|destination| self.answerers.find(destination));
        let destination = answerer.map_or(self.key.destination, |answerer| answerer.shown);
        DatagramKey { program: self.key.program, destination }
    }

    /// Whether the current policy permits the flow. If the socket outside accepts answers from all
    /// addresses, the policy must permit such answers too.
    pub(super) fn is_permitted(&self, lane: &impl FlowHost) -> bool {
        let live = lane.shared().live.load();
        if live.generation == self.generation.get() {
            return true;
        }
        let mut now = Flow { at_unix_s: clock::now_unix_s(), ..self.flow.clone() };
        let rule = live.decide(&mut now);
        let needs_any = self.connection.record().rule.rule.answers == Answers::Any;
        let is_permitted = rule.is_ok_and(|rule| {
            matches!(rule.action, LiveAction::Permit)
                && (!needs_any || rule.rule.answers == Answers::Any)
        });
        if is_permitted {
            self.generation.set(live.generation);
        }
        is_permitted
    }

    /// Creates the socket inside, and relays until the flow ends.
    async fn relay(self: &Rc<Self>, lane: &Rc<impl FlowHost + 'static>) -> FlowEnd {
        let spoofed = match self.make_spoofed(&**lane, self.key.destination).await {
            Ok(spoofed) => self.spoofed.get_or_init(|| spoofed),
            Err(error) => return FlowEnd::NoSocket(error),
        };
        // Datagrams that arrived before are older than those of the new socket, so they are sent
        // first.
        lane.drain();
        self.connection.mark_open();
        account::opened(&lane.shared().log, &self.connection);
        meter::switch(Component::Receive);
        loop {
            let batch = tokio::select! {
                ready = spoofed.ready(READABLE_OR_ERROR) => {
                    self.turn(ready, |_| self.send_batch(&**lane))
                }
                ready = self.dialled.ready(READABLE_OR_ERROR) => {
                    self.turn(ready, |ready| self.receive_batch(lane, spoofed, ready))
                }
            };
            match batch {
                Ok(BatchResult::Full) => {
                    if let Err(end) = self.send_when_there_is_room(&**lane).await {
                        return end;
                    }
                }
                Ok(BatchResult::Empty) => continue,
                Ok(BatchResult::More) => {}
                Err(end) => return end,
            }
            tokio::task::yield_now().await;
        }
    }

    /// Relays one batch. Readiness is cleared when no datagram is left.
    pub(super) fn turn(
        &self,
        ready: io::Result<AsyncFdReadyGuard<'_, Arc<OwnedFd>>>,
        batch: impl FnOnce(Ready) -> Result<BatchResult, FlowEnd>,
    ) -> Result<BatchResult, FlowEnd> {
        let mut ready = ready.map_err(FlowEnd::NoSocket)?;
        let batch = batch(ready.ready())?;
        if matches!(batch, BatchResult::Empty) {
            ready.clear_ready();
        }
        Ok(batch)
    }

    /// A socket inside with an address outside, connected to the program.
    pub(super) async fn make_spoofed(
        &self,
        lane: &impl FlowHost,
        destination: SocketAddr,
    ) -> io::Result<Watched> {
        let program = self.key.program;
        let line = &lane.receiver().run.helper;
        let socket = line.socket(Protocol::Udp, IpVersion::of(destination.ip())).await?;
        datagram::enlarge_buffers(socket.as_fd())?;
        transparent::bind_spoofed_source(socket.as_fd(), destination, program)?;
        watch(Arc::new(socket), READABLE_OR_ERROR)
    }

    /// Sends the datagrams for which the socket outside had no room. Retries until there is room;
    /// the program's next datagrams wait in its socket. Readiness is no help: after an error the
    /// socket is always reported writable.
    ///
    /// # Errors
    /// A new policy does not permit the flow. The datagrams that are not sent stay in the queue.
    async fn send_when_there_is_room(&self, lane: &impl FlowHost) -> Result<(), FlowEnd> {
        loop {
            if !self.is_permitted(lane) {
                return Err(FlowEnd::DecidedAgain);
            }
            let sending = match self.unsent.borrow().front() {
                Some(payload) => self.send(lane.receiver(), payload),
                None => return Ok(()),
            };
            match sending {
                Sending::Done => drop(self.unsent.borrow_mut().pop_front()),
                Sending::Full => tokio::time::sleep(ROOM_POLL).await,
            }
        }
    }
}

/// Reads some of the datagrams that wait in a socket inside.
///
/// # Errors
/// `WouldBlock` if no datagram waits; other errors are about an earlier datagram to the program.
fn receive_waiting(spoofed: &Watched, lane: &impl FlowHost) -> io::Result<Vec<Vec<u8>>> {
    meter::switch(Component::Receive);
    let mut queue = lane.queue();
    let received = queue.receive(spoofed.get_ref().as_fd())?;
    Ok((0..received).map(|number| queue.payload(number).to_vec()).collect())
}

/// Relays a flow to its end.
pub(super) async fn relay(lane: Rc<impl FlowHost + 'static>, relay: Rc<FlowRelay>) {
    let record = relay.connection.record();
    let life = pin!(async {
        let end = tokio::select! {
            biased;
            () = relay.over.notified() => relay.end_reason(),
            () = record.closed() => FlowEnd::Closed,
            end = relay.relay(&lane) => end,
        };
        // Remove the flow first: datagrams that the policy decides about again need a new flow.
        lane.forget(&relay);
        relay.flush_sockets(&lane);
        relay.answerers.end();
        end
    });
    let spend = |ns| record.spend_ns(ns);
    let end = charged(record.account(), Component::Accept, life, spend).await;
    record.settle();
    match end {
        FlowEnd::NoSocket(error) => {
            account::failed(&lane.shared().log, &relay.connection, &Failure::Broken(error));
        }
        end => account::flow_ended(&lane.shared().log, &relay.connection, &end),
    }
}
