//! Handles the `connect` calls of programs under `tacit run`. This code runs in the helper, the
//! process that acts inside the run's namespaces. There are two kinds of connections:
//!
//! * *Handed*: the program gets a socket of the agent's network, and the bytes of the connection do
//!   not pass through the agent.
//! * *Relayed*: the kernel executes the call, and the agent relays the connection.
//!
//! ```text
//!   connect ─┬─> no rule permits a handed socket for this address: the kernel executes the call
//!            └─> otherwise: the helper asks the agent, and examines the program's socket meanwhile
//!                  ├─> the socket cannot be replaced: the kernel executes the call
//!                  └─> the agent sends a socket: the helper connects this socket, and
//!                      replaces the program's socket with it
//! ```
//!
//! The kernel may execute all calls on sockets of the run's own network namespace. The nftables
//! rules capture the traffic of these sockets. But a handed socket could reach any destination. So
//! the kernel never executes `connect`, `listen`, `bind` or a send with `MSG_FASTOPEN` on a handed
//! socket. Instead, the agent decides about each new connection. A program cannot set options that
//! redirect the packets of a handed socket, such as a source route: the program gets `EPERM`.
//!
//! The helper connects a socket before the program gets this socket. The helper keeps no duplicate
//! of the socket, because otherwise the program could not close its connection.
//!
//! Limits: at most [`CALLS_MAX`] calls wait for the agent or for their connection. A call waits at
//! most [`ANSWER_WAIT_MAX`] for the agent. A waiting call needs [`DESCRIPTORS_PER_CALL`]
//! descriptors, so fewer calls wait if the limit of open files is low. Above these limits, the
//! agent relays the connections.

mod channel;
mod examine;
mod swap;
mod waiting;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFlags, Timespec};
use rustix::process::{Resource, getrlimit};
use tacit_sys::IpVersion;
use tacit_sys::handed::{
    self, Caller, ConnectState, Destination, SocketOptions, StatusFlags, UNCONNECTED,
};
use tacit_sys::spawn::{Call, NotifiedCall, NotifyListener, NotifyReply};

use crate::run::protocol::{ConnectQuestion, FromConnects, RelayReason, SocketOwner};
use channel::{AgentChannel, Answer, Message};
use examine::{Examined, Origin, SocketProperties};
use waiting::WaitingConnects;

/// The maximum number of calls that wait for the agent or for their connection.
const CALLS_MAX: usize = 4096;
/// As many calls may always wait.
const CALLS_MIN: usize = 16;
/// The largest number of descriptors that this process has open for one call: of the thread, of its
/// directory of descriptors, of the program's socket, and of the agent's.
const DESCRIPTORS_PER_CALL: usize = 4;
/// The descriptors that this process needs for all else.
const OTHER_DESCRIPTORS: usize = 128;
/// How long the agent may take for an answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(1);
/// The maximum number of messages of the agent that are handled before other work.
const MESSAGES_MAX: usize = 64;
/// The time between two looks at calls that wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The state of all connections that programs are opening.
#[derive(Debug, Default)]
pub(super) struct ConnectHandler {
    /// The number of the run's network namespace; `None` before the first call.
    inside: Option<u64>,
    /// The thread of the last call. It often calls again.
    last_caller: Option<Rc<Caller>>,
    agent: AgentChannel,
    /// Whether a program has ever got a socket of the agent.
    has_handed: bool,
    /// The options of fresh sockets of the run, and of the agent.
    fresh: Templates,
    pending: BTreeMap<u64, PendingConnect>,
    last_number: u64,
    waiting: WaitingConnects,
}

/// The maximum number of calls in a process that may open so many descriptors.
fn calls_max(descriptors: Option<u64>) -> usize {
    let descriptors =
        descriptors.map_or(usize::MAX, |limit| limit.try_into().unwrap_or(usize::MAX));
    (descriptors.saturating_sub(OTHER_DESCRIPTORS) / DESCRIPTORS_PER_CALL).min(CALLS_MAX)
}

/// The options of fresh sockets, by IP version.
#[derive(Debug, Default)]
struct Templates {
    inside: [Option<SocketOptions>; 2],
    outside: [Option<SocketOptions>; 2],
}

/// A `connect` call that waits for its reply.
#[derive(Debug)]
struct ConnectCall {
    call: Call,
    caller: Rc<Caller>,
    socket: ProgramSocket,
}

impl ConnectCall {
    /// Answers the call.
    ///
    /// As soon as the program has the answer, it may close its socket. A duplicate that this
    /// process still had would keep the connection open, and its registrations in epoll instances:
    /// their events would arrive under a number that the program may use for another socket.
    fn reply(self, listener: &mut NotifyListener, reply: NotifyReply) -> io::Result<()> {
        let call = self.call;
        drop(self);
        listener.reply(&call, reply)
    }
}

/// A call whose answer from the agent is pending.
#[derive(Debug)]
struct PendingConnect {
    connect: ConnectCall,
    properties: SocketProperties,
    /// The socket that has come before the answer.
    given: Option<OwnedFd>,
    until: Instant,
}

/// The socket of a program that connects.
#[derive(Debug)]
struct ProgramSocket {
    /// Its number in the program.
    number: i32,
    /// A duplicate.
    file: OwnedFd,
    version: IpVersion,
    origin: Origin,
    flags: StatusFlags,
}

/// The errors that programs get.
mod errno {
    pub(super) const EBADF: i32 = 9;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EFAULT: i32 = 14;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const EALREADY: i32 = 114;
    pub(super) const EINPROGRESS: i32 = 115;
}

impl ConnectHandler {
    /// Asks this agent from now on. Its network namespace has this number.
    pub(super) fn ask(
        &mut self,
        agent: OwnedFd,
        outside: u64,
        listener: Option<&mut NotifyListener>,
    ) {
        self.leave_agent(listener);
        self.fresh.outside = Default::default();
        self.agent.begin(agent, outside);
    }

    /// The descriptors to poll: the agent, the connections that programs wait for, and the end of
    /// the last caller.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let caller = self.last_caller.iter().filter_map(|last| last.end());
        self.agent.descriptor().into_iter().chain(self.waiting.descriptor()).chain(caller)
    }

    /// The time until a call needs attention.
    pub(super) fn timeout(&self) -> Option<Timespec> {
        let has_work = !self.pending.is_empty() || !self.waiting.is_empty() || self.agent.is_full();
        has_work.then(|| Timespec::try_from(LOOK_INTERVAL).ok()).flatten()
    }

    /// Handles the events of [`Self::descriptors`], and calls that have waited for too long.
    pub(super) fn serve(&mut self, events: &[PollFlags], listener: Option<&mut NotifyListener>) {
        self.agent.flush();
        let Some(listener) = listener else {
            // All programs have ended, or none has started. The agent may say what to ask about.
            self.last_caller = None;
            self.pending.clear();
            self.waiting = WaitingConnects::default();
            let has_event = events.first().is_some_and(|event| !event.is_empty());
            if has_event && self.agent.receive().is_err() {
                self.agent.end();
            }
            return;
        };
        let mut events = events.iter().map(|event| !event.is_empty());
        let mut has_event = |polled: Option<_>| polled.is_some() && events.next() == Some(true);
        let of_agent = has_event(self.agent.descriptor());
        let of_waiting = has_event(self.waiting.descriptor());
        if has_event(self.last_caller.as_ref().and_then(|last| last.end())) {
            self.last_caller = None;
        }
        if of_agent {
            self.take_messages(listener);
        }
        if of_waiting {
            for (number, end) in self.waiting.serve(listener) {
                self.report_end(number, end);
            }
        }
        self.waiting.look(listener);
        self.give_up_waiting_for_answers(listener);
    }

    /// Takes the messages of the agent, but not more than [`MESSAGES_MAX`] at a time.
    fn take_messages(&mut self, listener: &mut NotifyListener) {
        for _ in 0..MESSAGES_MAX {
            match self.agent.receive() {
                Ok(Some(Message::Socket { number, given })) => {
                    // Without a pending call, the socket is closed.
                    if let Some(pending) = self.pending.get_mut(&number) {
                        pending.given = given;
                    }
                }
                Ok(Some(Message::Answer(answer))) => self.take_answer(listener, answer),
                Ok(None) => return,
                Err(_) => return self.leave_agent(Some(listener)),
            }
        }
    }

    fn report_end(&mut self, number: Option<u64>, error: Option<io::Error>) {
        let (Some(number), Some(error)) = (number, error) else { return };
        let error = Some(error.raw_os_error().unwrap_or(errno::EACCES));
        self.agent.send_or_queue(FromConnects::Ended { number, error });
    }

    /// Handles a call that connects, listens, gives a socket an address, or sets an option of its
    /// route. Returns a call that sets such an option of a handed socket: it must be reported, and
    /// then refused.
    ///
    /// # Errors
    /// The listener has failed.
    pub(super) fn take(
        &mut self,
        listener: &mut NotifyListener,
        call: Call,
    ) -> io::Result<Option<Call>> {
        let Ok(caller) = self.caller(call.thread) else {
            return listener.reply(&call, self.unknown()).map(|()| None);
        };
        let call = match examine::with_arguments(&caller, call) {
            Ok(call) => call,
            Err(reply) => return listener.reply(&call, reply).map(|()| None),
        };
        if let NotifiedCall::SetRoute(number) = call.call {
            return self.set_route(listener, &caller, call, number);
        }
        self.handle(listener, caller, call).map(|()| None)
    }

    /// Opens the thread of a call.
    fn caller(&mut self, thread: u32) -> io::Result<Rc<Caller>> {
        if let Some(last) = self.last_caller.as_ref().filter(|last| last.is_still(thread)) {
            return Ok(Rc::clone(last));
        }
        let caller = Rc::new(Caller::open(thread)?);
        // Otherwise its descriptors would stay open after its end.
        self.last_caller = caller.end().is_some().then(|| Rc::clone(&caller));
        Ok(caller)
    }

    /// The kernel sets an option of a route only on sockets of the run.
    fn set_route(
        &mut self,
        listener: &mut NotifyListener,
        caller: &Caller,
        call: Call,
        number: i32,
    ) -> io::Result<Option<Call>> {
        let reply = match self.examine(caller, number) {
            Examined::Replied(reply) => reply,
            Examined::Tcp(ProgramSocket { origin: Origin::Inside, .. }) => NotifyReply::Proceed,
            Examined::Tcp(ProgramSocket { origin: Origin::Handed, .. }) => return Ok(Some(call)),
        };
        listener.reply(&call, reply).map(|()| None)
    }

    /// Handles a call whose arguments are known.
    fn handle(
        &mut self,
        listener: &mut NotifyListener,
        caller: Rc<Caller>,
        call: Call,
    ) -> io::Result<()> {
        let (number, address) = match call.call {
            NotifiedCall::Connect { descriptor, address, length } => {
                (descriptor, Some((address, length)))
            }
            NotifiedCall::Listen(descriptor)
            | NotifiedCall::Bind(descriptor)
            | NotifiedCall::FastOpen(descriptor) => (descriptor, None),
            NotifiedCall::Refused(refused) => {
                return listener.reply(&call, NotifyReply::Error(refused.errno()));
            }
            NotifiedCall::Socketcall(_) | NotifiedCall::SetRoute(_) => {
                return listener.reply(&call, self.unknown());
            }
        };
        let socket = match self.examine(&caller, number) {
            Examined::Replied(reply) => return listener.reply(&call, reply),
            Examined::Tcp(socket) => socket,
        };
        match (address, socket.origin) {
            (Some(address), Origin::Inside) => {
                self.connect_inside(listener, ConnectCall { call, caller, socket }, address)
            }
            (Some(address), Origin::Handed) => {
                self.connect_handed(listener, ConnectCall { call, caller, socket }, address)
            }
            (None, Origin::Inside) => {
                ConnectCall { call, caller, socket }.reply(listener, NotifyReply::Proceed)
            }
            (None, Origin::Handed) => {
                self.without_connect(listener, ConnectCall { call, caller, socket })
            }
        }
    }

    /// A socket of the run connects.
    fn connect_inside(
        &mut self,
        listener: &mut NotifyListener,
        connect: ConnectCall,
        (address, length): (u64, i32),
    ) -> io::Result<()> {
        let ConnectCall { call, caller, socket } = &connect;
        let destination = examine::read_destination(caller, address, length, socket.version);
        // What was read belongs to the caller only if it still waits.
        if !listener.is_waiting(call) {
            return Ok(());
        }
        let remote = match destination {
            Ok(Destination::Inet(remote)) if self.may_be_handed(remote) => remote,
            _ => return self.relay(listener, connect),
        };
        if !matches!(handed::state(socket.file.as_fd()), Ok(ConnectState::Unconnected)) {
            return self.relay(listener, connect);
        }
        if let Some(reason) = examine::first_doubt(socket) {
            return self.relay_with_reason(listener, connect, None, remote, reason);
        }
        self.question(listener, connect, remote)
    }

    fn may_be_handed(&self, remote: SocketAddr) -> bool {
        examine::is_elsewhere(remote) && self.agent.is_asked_about(remote)
    }

    /// A socket of the agent connects again. The kernel must not execute the call.
    fn connect_handed(
        &mut self,
        listener: &mut NotifyListener,
        connect: ConnectCall,
        (address, length): (u64, i32),
    ) -> io::Result<()> {
        let ConnectCall { call, caller, socket } = &connect;
        let destination = examine::read_destination(caller, address, length, socket.version);
        if !listener.is_waiting(call) {
            return Ok(());
        }
        let file = socket.file.as_fd();
        let destination = match destination {
            Ok(Destination::Unspecified) => {
                // The peer of a connection that is open gets a reset, as from the kernel.
                let _ = handed::disconnect(file);
                let reply = match self.give_back(listener, &connect) {
                    Ok(()) => NotifyReply::Done,
                    Err(_) => NotifyReply::Error(errno::EBADF),
                };
                return connect.reply(listener, reply);
            }
            Ok(destination) => destination,
            Err(reply) => return connect.reply(listener, reply),
        };
        if matches!(handed::state(file), Ok(ConnectState::Connecting))
            && !socket.flags.is_nonblocking
        {
            if !self.has_room() {
                return connect.reply(listener, NotifyReply::Error(errno::EALREADY));
            }
            return self.waiting.add_again(listener, connect);
        }
        match handed::connection_result(file) {
            Ok(()) => return connect.reply(listener, NotifyReply::Done),
            Err(error) if error.raw_os_error() == Some(UNCONNECTED) => {}
            Err(error) => return connect.reply(listener, examine::reply_of(&error)),
        }
        match destination {
            Destination::Inet(remote)
                if self.may_be_handed(remote) && examine::first_doubt(socket).is_none() =>
            {
                self.question(listener, connect, remote)
            }
            _ => self.relay(listener, connect),
        }
    }

    /// A call on a handed socket that is not `connect`.
    fn without_connect(
        &mut self,
        listener: &mut NotifyListener,
        connect: ConnectCall,
    ) -> io::Result<()> {
        let state = handed::state(connect.socket.file.as_fd());
        let reply = match (connect.call.call, state) {
            // The address is one of the run.
            (NotifiedCall::Bind(_), Ok(ConnectState::Unconnected)) => {
                return self.relay(listener, connect);
            }
            // It was inherited: no handed socket can listen.
            (NotifiedCall::Listen(_), Ok(ConnectState::Listening)) => NotifyReply::Proceed,
            (NotifiedCall::Listen(_) | NotifiedCall::Bind(_), _) => {
                NotifyReply::Error(errno::EINVAL)
            }
            _ => NotifyReply::Error(errno::EOPNOTSUPP),
        };
        connect.reply(listener, reply)
    }

    fn has_room(&self) -> bool {
        let calls = self.pending.len() + self.waiting.len();
        calls < CALLS_MIN || calls < calls_max(getrlimit(Resource::Nofile).current)
    }

    /// Asks the agent whether the program gets a socket, and examines the socket meanwhile.
    fn question(
        &mut self,
        listener: &mut NotifyListener,
        connect: ConnectCall,
        remote: SocketAddr,
    ) -> io::Result<()> {
        let ConnectCall { call, caller, socket } = &connect;
        if !self.has_room() {
            let reason = RelayReason::Limit;
            return self.relay_with_reason(listener, connect, None, remote, reason);
        }
        self.last_number += 1;
        let number = self.last_number;
        let program = std::fs::read_link(format!("/proc/{}/exe", call.thread)).ok();
        let owner = SocketOwner { pid: Some(call.thread), program, user: None, cgroup: None };
        let ipv6 = socket.version == IpVersion::V6;
        let question = ConnectQuestion { number, remote, ipv6, owner, socket_first: true };
        if !self.agent.ask(&FromConnects::Question(question)) {
            return self.relay(listener, connect);
        }
        let until = Instant::now() + ANSWER_WAIT_MAX;
        match self.fresh.examine_closely(caller, socket) {
            Ok(properties) => {
                let pending = PendingConnect { connect, properties, given: None, until };
                self.pending.insert(number, pending);
                Ok(())
            }
            Err(reason) => self.relay_with_reason(listener, connect, Some(number), remote, reason),
        }
    }

    /// Finishes the call that an answer of the agent is about.
    fn take_answer(&mut self, listener: &mut NotifyListener, answer: Answer) {
        let Answer { number, to, given, error } = answer;
        let Some(mut pending) = self.pending.remove(&number) else {
            // The call was answered without it.
            self.agent.send_or_queue(FromConnects::Ended { number, error: None });
            return;
        };
        // An error of the listener means that all programs have ended.
        let _ = match (to, given.or_else(|| pending.given.take())) {
            (Some(to), Some(given)) => self.swap(listener, pending, number, to, given),
            (Some(_), None) => {
                self.agent.send_or_queue(FromConnects::Ended { number, error: None });
                self.relay(listener, pending.connect)
            }
            (None, _) => match error {
                Some(error) => pending.connect.reply(listener, NotifyReply::Error(error)),
                None => self.relay(listener, pending.connect),
            },
        };
    }

    fn give_up_waiting_for_answers(&mut self, listener: &mut NotifyListener) {
        let now = Instant::now();
        while let Some(oldest) = self.pending.first_entry() {
            if oldest.get().until > now {
                return;
            }
            let number = *oldest.key();
            let pending = oldest.remove();
            let _ = self.relay(listener, pending.connect);
            // A link may have told the agent of a socket that has not arrived.
            self.agent.send_or_queue(FromConnects::Ended { number, error: None });
        }
    }

    /// The agent has closed its channel.
    fn leave_agent(&mut self, listener: Option<&mut NotifyListener>) {
        self.agent.end();
        let pending = std::mem::take(&mut self.pending);
        let Some(listener) = listener else { return };
        for pending in pending.into_values() {
            let _ = self.relay(listener, pending.connect);
        }
    }

    /// The same as [`Self::relay`]; the agent shows this reason.
    fn relay_with_reason(
        &mut self,
        listener: &mut NotifyListener,
        connect: ConnectCall,
        number: Option<u64>,
        remote: SocketAddr,
        reason: RelayReason,
    ) -> io::Result<()> {
        let relayed = self.relay(listener, connect);
        self.agent.send_or_queue(FromConnects::Relayed { number, remote, reason });
        relayed
    }

    /// Lets the kernel execute the call on an inside socket; a handed socket is replaced by one
    /// before.
    fn relay(&mut self, listener: &mut NotifyListener, connect: ConnectCall) -> io::Result<()> {
        let reply = match connect.socket.origin {
            Origin::Inside => self.proceed_if_same(&connect),
            Origin::Handed => match self.give_back(listener, &connect) {
                Ok(()) => NotifyReply::Proceed,
                Err(_) => NotifyReply::Error(errno::EBADF),
            },
        };
        connect.reply(listener, reply)
    }

    /// Another thread may have put another socket under the number since it was examined.
    fn proceed_if_same(&self, connect: &ConnectCall) -> NotifyReply {
        let ConnectCall { caller, socket, .. } = connect;
        if self.has_handed
            && matches!(caller.is_same_file(socket.file.as_fd(), socket.number), Ok(false))
        {
            return NotifyReply::Error(errno::EBADF);
        }
        NotifyReply::Proceed
    }

    /// Resets the connection of a handed socket.
    pub(super) fn reset(launcher: u32, inode: u32) -> Result<(), String> {
        let held = tacit_sys::owner::descriptor(launcher, inode).ok_or(
            "cannot find the socket: no process of the run has the socket open, or tacit cannot \
             read the descriptors of the process that has it",
        )?;
        let file = Caller::open(held.pid).and_then(|caller| caller.descriptor(held.number));
        let file = file.map_err(|error| error.to_string())?;
        let found = handed::identity(file.as_fd()).map_err(|error| error.to_string())?;
        if found.inode != inode {
            return Err("the program has already closed the socket".to_owned());
        }
        handed::disconnect(file.as_fd()).map_err(|error| error.to_string())
    }
}

impl ProgramSocket {
    /// Whether the descriptor refers to the same file as before.
    fn is_in_place(&self, caller: &Caller) -> bool {
        caller.is_same_file(self.file.as_fd(), self.number).unwrap_or(false)
    }
}

/// Why the program keeps an inside socket.
fn reason_of(error: &io::Error) -> RelayReason {
    match error.kind() {
        io::ErrorKind::Unsupported => RelayReason::Option,
        _ => RelayReason::Kernel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_few_descriptors_has_few_calls() {
        assert_eq!(calls_max(None), CALLS_MAX);
        assert_eq!(calls_max(Some(1 << 20)), CALLS_MAX);
        assert_eq!(calls_max(Some(1024)), 224);
        assert_eq!(calls_max(Some(64)), 0);
    }
}
