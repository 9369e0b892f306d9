//! Stores `connect` calls of blocking sockets until their connections are established.
//!
//! A signal does not interrupt a `connect` call that the helper process handles. So the helper
//! repeatedly checks the waiting threads for pending signals, [`LOOKS_MAX`] threads at a time. If a
//! thread has a signal, the helper ends the call of this thread.
//!
//! Limit: at most [`CALLS_MAX`](super::CALLS_MAX) calls, including those that wait for the agent.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use tacit_sys::handed::{self, Caller, ConnectState, PendingSignal, UNCONNECTED};
use tacit_sys::spawn::{Call, NotifyListener, NotifyReply};

use super::examine::reply_of;
use super::{ConnectCall, LOOK_INTERVAL, ProgramSocket, errno};

/// The maximum number of calls whose signals are read at a time.
const LOOKS_MAX: usize = 128;
/// The number of events that are read at a time.
const EVENTS_MAX: usize = 64;

/// The calls that wait.
#[derive(Debug, Default)]
pub(super) struct WaitingConnects {
    /// Watches their sockets; `None` before the first call.
    epoll: Option<OwnedFd>,
    calls: BTreeMap<u64, Watched>,
    last_key: u64,
    /// The call whose signals are read next.
    next_look: u64,
    looked: Option<Instant>,
}

/// A call that waits for the connection of a handed socket.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) call: Call,
    pub(super) caller: Rc<Caller>,
    /// The handed socket.
    pub(super) given: OwnedFd,
    /// The program's own socket, which it gets back if the connection fails; `None` if that is not
    /// possible.
    pub(super) old: Option<ProgramSocket>,
    /// The number of the agent's answer; `None` if the program has called `connect` again.
    pub(super) number: Option<u64>,
}

#[derive(Debug)]
struct Watched {
    waiting: Waiting,
    until: Option<Instant>,
    /// Whether a signal of the process was pending at the last look.
    had_signal: bool,
}

impl Waiting {
    /// Closes the duplicates of the program's sockets, as is necessary before an answer
    /// ([`ConnectCall::reply`]).
    fn into_call(self) -> Call {
        self.call
    }
}

impl WaitingConnects {
    /// The number of calls that wait.
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Readable if a connection was established or has failed.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().map(AsFd::as_fd)
    }

    /// Answers a call when its connection, which is in this state, is established or has failed.
    /// Returns the error if it has failed already.
    ///
    /// # Errors
    /// The listener has failed.
    pub(super) fn add(
        &mut self,
        listener: &mut NotifyListener,
        waiting: Waiting,
        state: ConnectState,
    ) -> io::Result<Option<io::Error>> {
        if state != ConnectState::Connecting {
            return finish(listener, waiting);
        }
        let timeout = handed::connect_timeout(waiting.given.as_fd()).ok().flatten();
        let until = timeout.map(|timeout| Instant::now() + timeout);
        self.last_key += 1;
        let key = self.last_key;
        if let Err(error) = self.watch(key, &waiting.given) {
            listener.reply(&waiting.into_call(), reply_of(&error))?;
            return Ok(Some(error));
        }
        self.calls.insert(key, Watched { waiting, until, had_signal: false });
        Ok(None)
    }

    /// The program calls `connect` again on a blocking socket that is connecting.
    ///
    /// # Errors
    /// The listener has failed.
    pub(super) fn add_again(
        &mut self,
        listener: &mut NotifyListener,
        connect: ConnectCall,
    ) -> io::Result<()> {
        let ConnectCall { call, caller, socket } = connect;
        let waiting = Waiting { call, caller, given: socket.file, old: None, number: None };
        self.add(listener, waiting, ConnectState::Connecting).map(drop)
    }

    fn watch(&mut self, key: u64, socket: &OwnedFd) -> io::Result<()> {
        let epoll = match self.epoll.take() {
            Some(epoll) => epoll,
            None => epoll::create(CreateFlags::CLOEXEC)?,
        };
        let epoll = self.epoll.insert(epoll);
        Ok(epoll::add(epoll, socket, EventData::new_u64(key), EventFlags::OUT)?)
    }

    /// Answers the calls whose connections are established or have failed. Returns the numbers of
    /// the failed ones with their errors.
    pub(super) fn serve(
        &mut self,
        listener: &mut NotifyListener,
    ) -> Vec<(Option<u64>, Option<io::Error>)> {
        let Some(epoll) = &self.epoll else { return Vec::new() };
        let mut space = [const { MaybeUninit::<Event>::uninit() }; EVENTS_MAX];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(epoll, &mut space, Some(&at_once)) else {
            return Vec::new();
        };
        let keys: Vec<_> = events.iter().map(|event| event.data.u64()).collect();
        let mut ended = Vec::new();
        for key in keys {
            // `finish` would wait for a connection that is not established.
            let is_connecting = |watched: &Watched| {
                matches!(handed::state(watched.waiting.given.as_fd()), Ok(ConnectState::Connecting))
            };
            if self.calls.get(&key).is_some_and(is_connecting) {
                continue;
            }
            let Some(waiting) = self.take(key) else { continue };
            let number = waiting.number;
            let error = finish(listener, waiting).unwrap_or(None);
            ended.push((number, error));
        }
        ended
    }

    /// Removes a call. Its socket is not watched any more, although the program has it open.
    fn take(&mut self, key: u64) -> Option<Waiting> {
        let Watched { waiting, .. } = self.calls.remove(&key)?;
        if let Some(epoll) = &self.epoll {
            // If this fails, it was not watched.
            let _ = epoll::delete(epoll, &waiting.given);
        }
        Some(waiting)
    }

    /// Ends calls that a signal interrupts, whose time is over, or whose thread was killed.
    pub(super) fn look(&mut self, listener: &mut NotifyListener) {
        let now = Instant::now();
        if self.looked.is_some_and(|looked| now.duration_since(looked) < LOOK_INTERVAL) {
            return;
        }
        self.looked = Some(now);
        let mut keys: Vec<u64> =
            self.calls.range(self.next_look..).map(|(key, _)| *key).take(LOOKS_MAX).collect();
        self.next_look = keys.last().map_or(0, |last| last + 1);
        if keys.len() < LOOKS_MAX {
            self.next_look = 0;
        }
        for key in keys.drain(..) {
            let Some(watched) = self.calls.get_mut(&key) else { continue };
            let reply = match watched.look(listener, now) {
                Looked::Waits => continue,
                Looked::Gone => None,
                Looked::Ends(reply) => Some(reply),
            };
            let Some(waiting) = self.take(key) else { continue };
            if let Some(reply) = reply {
                // An error means that all programs have ended.
                let _ = listener.reply(&waiting.into_call(), reply);
            }
        }
    }
}

/// The state of a call that waits.
enum Looked {
    Waits,
    /// Its thread was killed.
    Gone,
    Ends(NotifyReply),
}

impl Watched {
    fn look(&mut self, listener: &NotifyListener, now: Instant) -> Looked {
        let signal = self.waiting.caller.pending_signal();
        if !listener.is_waiting(&self.waiting.call) {
            return Looked::Gone;
        }
        if self.until.is_some_and(|until| until <= now) {
            return Looked::Ends(NotifyReply::Error(errno::EINPROGRESS));
        }
        let had_signal = std::mem::take(&mut self.had_signal);
        match signal {
            Ok(PendingSignal::Certain) => Looked::Ends(NotifyReply::Interrupted),
            // If no other thread has taken it since, it is for this one.
            Ok(PendingSignal::OfProcess) if had_signal => Looked::Ends(NotifyReply::Interrupted),
            Ok(PendingSignal::OfProcess) => {
                self.had_signal = true;
                Looked::Waits
            }
            Ok(PendingSignal::None) | Err(_) => Looked::Waits,
        }
    }
}

/// Answers a call whose connection is established or has failed; returns the error.
///
/// # Errors
/// The listener has failed.
fn finish(listener: &mut NotifyListener, waiting: Waiting) -> io::Result<Option<io::Error>> {
    let Waiting { call, caller, given, old, .. } = &waiting;
    let error = match handed::connection_result(given.as_fd()) {
        Ok(()) => {
            listener.reply(&waiting.into_call(), NotifyReply::Done)?;
            return Ok(None);
        }
        Err(error) if error.raw_os_error() == Some(UNCONNECTED) => {
            handed::interrupted_connection(given.as_fd())
        }
        Err(error) => error,
    };
    if let Some(old) = old
        && caller.is_same_file(given.as_fd(), old.number).unwrap_or(false)
        && let Ok(flags) = caller.descriptor_flags(old.number)
    {
        // If this fails, the program keeps the handed socket, on which no call proceeds.
        let _ = listener.replace_descriptor(call, old.number, old.file.as_fd(), flags);
    }
    listener.reply(&waiting.into_call(), reply_of(&error))?;
    Ok(Some(error))
}
