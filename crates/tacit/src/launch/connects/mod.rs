//! Handles the `connect` calls of programs under `tacit run`. It decides which path the bytes of a
//! connection take:
//!
//! * *Handed*: the program gets a socket of the agent's network. Its bytes do not pass through the
//!   agent.
//! * *Relayed*: the kernel executes the call, and the agent relays the connection.
//!
//! ```text
//!   connect ──> examine the socket ── replaceable ───> question ──> agent
//!                   │ not replaceable                                  answer, with a socket
//!                   v                                                       v
//!               relayed: the kernel proceeds        swap: options, descriptor, epoll, connect
//! ```
//!
//! The kernel may execute calls on a socket of the run's own network namespace, because packet
//! rules capture its traffic. A handed socket could reach any destination. So the kernel never
//! executes `connect`, `listen` or a send with `MSG_FASTOPEN` on it; the agent decides about each
//! new connection. All other sockets are not changed.
//!
//! This code runs in the helper, the process that acts inside the run's namespaces.
//!
//! Limits: [`ASKED_MAX`] questions at a time, each for [`ANSWER_WAIT_MAX`];
//! [`waiting::WAITING_MAX`] waiting calls. Above these limits, connections are relayed.

mod examine;
mod swap;
mod waiting;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFlags, Timespec};
use tacit_sys::IpVersion;
use tacit_sys::handed::{
    self, Caller, ConnectState, Destination, SocketOptions, StatusFlags, UNCONNECTED,
};
use tacit_sys::spawn::{Call, NotifiedCall, NotifyListener, NotifyReply};

use crate::run::protocol::{
    self, ConnectAnswer, ConnectQuestion, Frame, FromConnects, RelayReason, SocketOwner,
};
use examine::{Examined, Origin};
use waiting::WaitingConnects;

/// The maximum number of questions without an answer.
const ASKED_MAX: usize = 4096;
/// How long the agent may take for an answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(1);
/// The time between two looks at calls that wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The state of all connections that programs are opening.
#[derive(Debug, Default)]
pub(super) struct ConnectHandler {
    /// The number of the run's network namespace; `None` before the first call.
    inside: Option<u64>,
    /// The number of the agent's network namespace; `None` before an agent gave it.
    outside: Option<u64>,
    /// Whether a program has ever got a socket of the agent.
    has_handed: bool,
    /// The options of fresh sockets of the run, and of the agent.
    fresh: Templates,
    agent: Option<UnixStream>,
    asked: BTreeMap<u64, Asked>,
    last_number: u64,
    waiting: WaitingConnects,
}

/// The options of fresh sockets, by IP version.
#[derive(Debug, Default)]
struct Templates {
    inside: [Option<SocketOptions>; 2],
    outside: [Option<SocketOptions>; 2],
}

fn index(version: IpVersion) -> usize {
    match version {
        IpVersion::V4 => 0,
        IpVersion::V6 => 1,
    }
}

/// A call about which the agent was asked.
#[derive(Debug)]
struct Asked {
    call: Call,
    caller: Caller,
    socket: ProgramSocket,
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
        agent: UnixStream,
        outside: u64,
        listener: Option<&mut NotifyListener>,
    ) {
        self.leave_agent(listener);
        self.agent = Some(agent);
        self.outside = Some(outside);
    }

    /// The descriptors to poll: the agent, and the connections that programs wait for.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let waiting = self.waiting.descriptor();
        self.agent.as_ref().map(AsFd::as_fd).into_iter().chain(waiting)
    }

    /// The time until a call needs attention.
    pub(super) fn timeout(&self) -> Option<Timespec> {
        let has_work = !self.asked.is_empty() || !self.waiting.is_empty();
        has_work.then(|| Timespec::try_from(LOOK_INTERVAL).ok()).flatten()
    }

    /// Handles the events of [`Self::descriptors`], and calls that have waited for too long.
    pub(super) fn serve(&mut self, events: &[PollFlags], listener: Option<&mut NotifyListener>) {
        let Some(listener) = listener else {
            // All programs have ended.
            self.asked.clear();
            self.waiting = WaitingConnects::default();
            if events.first().is_some_and(|event| !event.is_empty()) {
                self.agent = None;
            }
            return;
        };
        let has_agent = self.agent.is_some();
        let (of_agent, of_waiting) = events.split_at(usize::from(has_agent).min(events.len()));
        if of_agent.first().is_some_and(|event| !event.is_empty()) {
            self.read_answer(listener);
        }
        if of_waiting.first().is_some_and(|event| !event.is_empty()) {
            for (number, end) in self.waiting.serve(listener) {
                self.report_end(number, end);
            }
        }
        self.waiting.look(listener);
        self.give_up_waiting_for_answers(listener);
    }

    fn report_end(&mut self, number: Option<u64>, error: Option<io::Error>) {
        let (Some(number), Some(error)) = (number, error) else { return };
        let error = Some(error.raw_os_error().unwrap_or(errno::EACCES));
        self.send(&FromConnects::Ended { number, error });
    }

    /// Handles a call that connects or listens.
    ///
    /// # Errors
    /// The listener has failed.
    pub(super) fn take(&mut self, listener: &mut NotifyListener, call: Call) -> io::Result<()> {
        let (number, address) = match call.call {
            NotifiedCall::Connect { descriptor, address, length } => {
                (descriptor, Some((address, length)))
            }
            NotifiedCall::Listen(descriptor) | NotifiedCall::FastOpen(descriptor) => {
                (descriptor, None)
            }
            NotifiedCall::Refused(refused) => {
                return listener.reply(&call, NotifyReply::Error(refused.errno()));
            }
        };
        match self.examine(&call, number) {
            Examined::Replied(reply) => listener.reply(&call, reply),
            Examined::Tcp(caller, socket) => match (address, socket.origin) {
                (Some(address), Origin::Inside) => {
                    self.connect_inside(listener, (call, caller, socket), address)
                }
                (Some(address), Origin::Handed) => {
                    self.connect_handed(listener, (call, caller, socket), address)
                }
                (None, Origin::Inside) => listener.reply(&call, NotifyReply::Proceed),
                (None, Origin::Handed) => listener.reply(&call, without_connect(&call, &socket)),
            },
        }
    }

    /// A socket of the run connects.
    fn connect_inside(
        &mut self,
        listener: &mut NotifyListener,
        (call, caller, socket): (Call, Caller, ProgramSocket),
        (address, length): (u64, i32),
    ) -> io::Result<()> {
        let destination = examine::read_destination(&caller, address, length, socket.version);
        // What was read belongs to the caller only if it still waits.
        if !listener.is_waiting(&call) {
            return Ok(());
        }
        let remote = match destination {
            Ok(Destination::Inet(remote)) if examine::is_elsewhere(remote) => remote,
            _ => return listener.reply(&call, NotifyReply::Proceed),
        };
        let state = handed::state(socket.file.as_fd());
        if self.agent.is_none() || !matches!(state, Ok(ConnectState::Unconnected)) {
            return listener.reply(&call, NotifyReply::Proceed);
        }
        if let Some(reason) = self.doubt(&caller, &socket) {
            self.send(&FromConnects::Relayed { remote, reason });
            return listener.reply(&call, NotifyReply::Proceed);
        }
        self.question(listener, (call, caller, socket), remote)
    }

    /// A socket of the agent connects again. The kernel must not execute the call.
    fn connect_handed(
        &mut self,
        listener: &mut NotifyListener,
        (call, caller, socket): (Call, Caller, ProgramSocket),
        (address, length): (u64, i32),
    ) -> io::Result<()> {
        let destination = examine::read_destination(&caller, address, length, socket.version);
        if !listener.is_waiting(&call) {
            return Ok(());
        }
        let file = socket.file.as_fd();
        let destination = match destination {
            Ok(Destination::Unspecified) => {
                // The peer of a connection that is open gets a reset, as from the kernel.
                let _ = handed::disconnect(file);
                let reply = match self.give_back(listener, &call, &caller, &socket) {
                    Ok(()) => NotifyReply::Done,
                    Err(_) => NotifyReply::Error(errno::EBADF),
                };
                return listener.reply(&call, reply);
            }
            Ok(destination) => destination,
            Err(reply) => return listener.reply(&call, reply),
        };
        if matches!(handed::state(file), Ok(ConnectState::Connecting))
            && !socket.flags.is_nonblocking
        {
            return self.waiting.add_again(listener, (call, caller, socket));
        }
        match handed::connection_result(file) {
            Ok(()) => return listener.reply(&call, NotifyReply::Done),
            Err(error) if error.raw_os_error() == Some(UNCONNECTED) => {}
            Err(error) => return listener.reply(&call, examine::reply_of(&error)),
        }
        match destination {
            Destination::Inet(remote)
                if examine::is_elsewhere(remote)
                    && self.agent.is_some()
                    && self.doubt(&caller, &socket).is_none() =>
            {
                self.question(listener, (call, caller, socket), remote)
            }
            _ => self.relay(listener, &call, &caller, &socket),
        }
    }

    /// Asks the agent whether the program gets a socket.
    fn question(
        &mut self,
        listener: &mut NotifyListener,
        (call, caller, socket): (Call, Caller, ProgramSocket),
        remote: SocketAddr,
    ) -> io::Result<()> {
        self.last_number += 1;
        let number = self.last_number;
        let program = std::fs::read_link(format!("/proc/{}/exe", call.thread)).ok();
        let owner = SocketOwner { pid: Some(call.thread), program, user: None, cgroup: None };
        let ipv6 = socket.version == IpVersion::V6;
        let question = ConnectQuestion { number, remote, ipv6, owner };
        let has_room = self.asked.len() < ASKED_MAX && self.waiting.has_room();
        if !has_room || !self.send(&FromConnects::Question(question)) {
            return self.relay(listener, &call, &caller, &socket);
        }
        let until = Instant::now() + ANSWER_WAIT_MAX;
        self.asked.insert(number, Asked { call, caller, socket, until });
        Ok(())
    }

    /// Reads an answer of the agent, and finishes its call.
    fn read_answer(&mut self, listener: &mut NotifyListener) {
        let Some(agent) = &self.agent else { return };
        let Ok(Some(Frame { message, mut descriptors })) = protocol::read::<ConnectAnswer>(agent)
        else {
            return self.leave_agent(Some(listener));
        };
        let ConnectAnswer { number, to } = message;
        let given = to.zip(descriptors.pop());
        let Some(asked) = self.asked.remove(&number) else {
            // The answer is too late: its call was answered without it.
            self.send(&FromConnects::Ended { number, error: None });
            return;
        };
        let Asked { call, caller, socket, .. } = asked;
        // An error of the listener means that all programs have ended.
        let _ = match given {
            Some((to, given)) => self.swap(listener, (call, caller, socket), number, to, given),
            None => self.relay(listener, &call, &caller, &socket),
        };
    }

    fn give_up_waiting_for_answers(&mut self, listener: &mut NotifyListener) {
        let now = Instant::now();
        while let Some(oldest) = self.asked.first_entry() {
            if oldest.get().until > now {
                return;
            }
            let Asked { call, caller, socket, .. } = oldest.remove();
            let _ = self.relay(listener, &call, &caller, &socket);
        }
    }

    /// The agent has closed its channel.
    fn leave_agent(&mut self, listener: Option<&mut NotifyListener>) {
        self.agent = None;
        let asked = std::mem::take(&mut self.asked);
        let Some(listener) = listener else { return };
        for Asked { call, caller, socket, .. } in asked.into_values() {
            let _ = self.relay(listener, &call, &caller, &socket);
        }
    }

    /// Lets the kernel connect an inside socket; a handed socket is replaced by one before.
    fn relay(
        &mut self,
        listener: &mut NotifyListener,
        call: &Call,
        caller: &Caller,
        socket: &ProgramSocket,
    ) -> io::Result<()> {
        let reply = match socket.origin {
            Origin::Inside => self.proceed_if_same(caller, socket),
            Origin::Handed => match self.give_back(listener, call, caller, socket) {
                Ok(()) => NotifyReply::Proceed,
                Err(_) => NotifyReply::Error(errno::EBADF),
            },
        };
        listener.reply(call, reply)
    }

    /// Another thread may have put another socket under the number since it was examined.
    fn proceed_if_same(&self, caller: &Caller, socket: &ProgramSocket) -> NotifyReply {
        let is_same = caller.is_same_file(socket.file.as_fd(), socket.number);
        match is_same {
            Ok(false) if self.has_handed => NotifyReply::Error(errno::EBADF),
            _ => NotifyReply::Proceed,
        }
    }

    /// Sends a message to the agent; returns whether it was sent.
    fn send(&mut self, message: &FromConnects) -> bool {
        self.agent.as_ref().is_some_and(|agent| protocol::write_at_once(agent, message))
    }

    /// Resets the connection of a handed socket.
    pub(super) fn reset(launcher: u32, inode: u32) -> Result<(), String> {
        let held = tacit_sys::owner::descriptor(launcher, inode).ok_or(
            "no process of the run has the socket open, or the process hides its descriptors",
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

/// The reply to a call on a handed socket that is not `connect`.
fn without_connect(call: &Call, socket: &ProgramSocket) -> NotifyReply {
    let is_listening = matches!(handed::state(socket.file.as_fd()), Ok(ConnectState::Listening));
    match call.call {
        // It was inherited: no handed socket can listen.
        NotifiedCall::Listen(_) if is_listening => NotifyReply::Proceed,
        NotifiedCall::Listen(_) => NotifyReply::Error(errno::EINVAL),
        _ => NotifyReply::Error(errno::EOPNOTSUPP),
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
