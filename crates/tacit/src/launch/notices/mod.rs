//! Receives the kernel's notifications about system calls of a program. Refuses forbidden sockets
//! and forbidden socket options, and reports each refusal to the agent. `connects/` handles
//! notifications about `connect` calls, and decides which socket options a program may set.
//!
//! ```text
//!   kernel ── NotifyListener::take ──> helper ── HelperReport ──> agent
//!          <── NotifyListener::reply ──┘
//! ```
//!
//! The helper process answers each notification, even if no agent receives the report. If there is
//! no agent, the helper sends the report later. If a program repeats a refused call, it delays only
//! itself, because the kernel suspends the calling thread until the helper answers.
//!
//! Limit: one report for each kind of socket in each [`REPORT_INTERVAL`]. The report contains the
//! number of refused calls.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFlags, Timespec};
use rustix::io::Errno;
use tacit_core::refusal::RefusedSocketKind;
use tacit_sys::spawn::{
    Call, FilterOutcome, NotifiedCall, NotifyListener, NotifyReply, ReceivedFilter, RefusedCall,
};

use super::connects::ConnectHandler;
use crate::run::protocol::{ConnectsInForce, HelperReport, RefusedSocket, write_at_once};

/// Minimum time between two reports of one kind of socket.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// The notifications of the kernel, and the refusals that are not reported yet.
#[derive(Debug, Default)]
pub(super) struct Notices {
    source: Source,
    /// Whether to report that no refusals can be reported.
    is_unreported: bool,
    /// What the filter of the program does about calls that connect, once it is installed.
    connects: Option<ConnectsInForce>,
    /// Whether the present agent knows that.
    is_connects_reported: bool,
    /// Why a file cannot be hidden, if that is not reported yet.
    not_hidden: Option<String>,
    /// The connections to the agent and, while it is replaced, to its successor, which is last.
    reporters: Vec<UnixStream>,
    refused: BTreeMap<RefusedSocketKind, Refused>,
}

/// The source of notifications.
#[derive(Debug, Default)]
enum Source {
    /// No notifications will arrive.
    #[default]
    None,
    /// The listener is received through this socket when the program starts.
    Awaited(UnixStream),
    Listening(NotifyListener),
}

/// The refusals of one kind of socket.
#[derive(Debug, Default)]
struct Refused {
    /// The number since the last report.
    times: u64,
    program: Option<PathBuf>,
    reported: Option<Instant>,
}

impl Refused {
    fn is_due(&self, now: Instant) -> bool {
        self.reported.is_none_or(|reported| now.duration_since(reported) >= REPORT_INTERVAL)
    }
}

impl Notices {
    /// Waits for the listener.
    pub(super) fn awaited(from: UnixStream) -> Self {
        Self { source: Source::Awaited(from), ..Self::default() }
    }

    /// Whether notifications can arrive, now or later.
    pub(super) fn can_come(&self) -> bool {
        !matches!(self.source, Source::None)
    }

    /// The descriptors to poll: the source, if there is one, then the connections to agents.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let source = match &self.source {
            Source::None => None,
            Source::Awaited(from) => Some(from.as_fd()),
            Source::Listening(listener) => Some(listener.as_fd()),
        };
        source.into_iter().chain(self.reporters.iter().map(AsFd::as_fd))
    }

    /// The time until the next report is due.
    pub(super) fn timeout(&self) -> Option<Timespec> {
        let waits = self.is_unreported
            || (self.connects.is_some() && !self.is_connects_reported)
            || self.not_hidden.is_some()
            || self.refused.values().any(|refused| refused.times > 0);
        let wait = waits && !self.reporters.is_empty();
        wait.then(|| Timespec::try_from(REPORT_INTERVAL).ok()).flatten()
    }

    /// Adds a connection to an agent.
    pub(super) fn report_on(&mut self, line: UnixStream) {
        self.reporters.push(line);
        self.is_connects_reported = false;
        self.report_due(Instant::now());
    }

    /// Reports why a file cannot be hidden; replaces an older reason that is not sent yet.
    pub(super) fn report_not_hidden(&mut self, reason: String) {
        self.not_hidden = Some(reason);
        self.report_due(Instant::now());
    }

    /// Handles the events of [`Self::descriptors`].
    pub(super) fn serve(&mut self, events: &[PollFlags], connects: &mut ConnectHandler) {
        let (source, reporters) = events.split_at(usize::from(self.can_come()).min(events.len()));
        // Agents send nothing here: an event means that the agent has closed the connection.
        let mut ended = reporters.iter().map(|event| !event.is_empty());
        self.reporters.retain(|_| !ended.next().unwrap_or(false));
        if let Some(event) = source.first().filter(|event| !event.is_empty()) {
            self.serve_source(*event, connects);
        }
        self.report_due(Instant::now());
    }

    /// The listener, while programs run.
    pub(super) fn listener(&mut self) -> Option<&mut NotifyListener> {
        match &mut self.source {
            Source::Listening(listener) => Some(listener),
            Source::None | Source::Awaited(_) => None,
        }
    }

    fn serve_source(&mut self, event: PollFlags, connects: &mut ConnectHandler) {
        self.source = match std::mem::take(&mut self.source) {
            Source::None => Source::None,
            Source::Awaited(from) => {
                let ReceivedFilter { listener, connects } = ReceivedFilter::receive(&from);
                self.connects = connects.map(in_force);
                match listener {
                    Some(listener) => Source::Listening(listener),
                    None => {
                        self.is_unreported = true;
                        Source::None
                    }
                }
            }
            Source::Listening(mut listener) => {
                let served = if event.contains(PollFlags::IN) {
                    self.answer_one(&mut listener, connects)
                } else {
                    // All programs have ended.
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
                // Without a listener, the kernel refuses the calls by itself.
                if served.is_ok() { Source::Listening(listener) } else { Source::None }
            }
        }
    }

    /// Reports before answering: the answer may end the program, and with it the run.
    fn answer_one(
        &mut self,
        listener: &mut NotifyListener,
        connects: &mut ConnectHandler,
    ) -> io::Result<()> {
        let Some(call) = listener.take()? else { return Ok(()) };
        let NotifiedCall::Refused(refused) = call.call else {
            let Some(call) = connects.take(listener, call)? else { return Ok(()) };
            self.note(listener, &call, RefusedSocketKind::RouteOption);
            return listener.reply(&call, NotifyReply::Error(Errno::PERM.raw_os_error()));
        };
        if let Some(socket) = socket_of(refused) {
            self.note(listener, &call, socket);
        }
        listener.reply(&call, NotifyReply::Error(refused.errno()))
    }

    /// Counts a refused call, and reports it if a report is due.
    fn note(&mut self, listener: &NotifyListener, call: &Call, socket: RefusedSocketKind) {
        let now = Instant::now();
        let refused = self.refused.entry(socket).or_default();
        refused.times = refused.times.saturating_add(1);
        if refused.is_due(now) {
            refused.program = program_of(listener, call);
            self.report_due(now);
        }
    }

    fn report_due(&mut self, now: Instant) {
        let Some(reporter) = self.reporters.last() else { return };
        if let Some(connects) = self.connects.filter(|_| !self.is_connects_reported) {
            self.is_connects_reported = write_at_once(reporter, &HelperReport::Connects(connects));
        }
        if self.is_unreported {
            self.is_unreported = !write_at_once(reporter, &HelperReport::Unreported);
        }
        if let Some(reason) = self.not_hidden.take() {
            let report = HelperReport::NotHidden(reason);
            if let (false, HelperReport::NotHidden(reason)) =
                (write_at_once(reporter, &report), report)
            {
                self.not_hidden = Some(reason);
            }
        }
        for (socket, refused) in &mut self.refused {
            if refused.times == 0 || !refused.is_due(now) {
                continue;
            }
            let Refused { times, program, .. } = refused;
            let report = RefusedSocket { socket: *socket, times: *times, program: program.clone() };
            if !write_at_once(reporter, &HelperReport::Refused(report)) {
                return;
            }
            refused.times = 0;
            refused.reported = Some(now);
        }
    }
}

fn in_force(outcome: FilterOutcome) -> ConnectsInForce {
    match outcome {
        FilterOutcome::Handled => ConnectsInForce::Handled,
        FilterOutcome::NotWanted => ConnectsInForce::NotWanted,
        FilterOutcome::TooOld => ConnectsInForce::TooOld,
        FilterOutcome::Nested => ConnectsInForce::Nested,
    }
}

fn socket_of(call: RefusedCall) -> Option<RefusedSocketKind> {
    match call {
        RefusedCall::Socket(family) => Some(RefusedSocketKind::of_family(family)),
        RefusedCall::Socketcall => Some(RefusedSocketKind::Socketcall),
        RefusedCall::IoUring => Some(RefusedSocketKind::IoUring),
        RefusedCall::Unknown => None,
    }
}

fn program_of(listener: &NotifyListener, call: &Call) -> Option<PathBuf> {
    let program = std::fs::read_link(format!("/proc/{}/exe", call.thread)).ok();
    program.filter(|_| listener.is_waiting(call))
}

#[cfg(test)]
mod tests;
