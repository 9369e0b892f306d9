//! The kernel's questions about sockets that programs are refused: the helper answers each and
//! reports it.
//!
//! ```text
//!   kernel ── Listener::take ──> helper ── HelperReport, at once or after 100 ms ──> agent
//!          <── Listener::answer ──┘
//! ```
//!
//! Every question is answered whether or not an agent takes the report: a report that finds no room
//! is sent later, with all that came meanwhile. A program that asks again and again costs its own
//! time: it waits for each answer, and one is given for each turn of the helper's loop, which
//! serves the agent as often. Why the helper does this is said in `tacit_sys::spawn`'s
//! `notify.rs`.
//!
//! Limits: a report for each kind of socket every [`REPORT_INTERVAL`], of which there are 67. Of
//! repetitions in the last of these intervals of a run the count may be lost.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFlags, Timespec};
use rustix::net::{SendFlags, send};
use tacit_core::refusal::RefusedSocketKind;
use tacit_sys::descriptor;
use tacit_sys::spawn::{Call, NotifyListener, RefusedCall};

use crate::run::protocol::{self, HelperReport, RefusedSocket};

/// How often one kind of socket is reported.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// What the kernel asks, and what of it is not reported yet.
#[derive(Debug, Default)]
pub(super) struct Notices {
    source: Source,
    /// Whether it is to be said that nothing can be reported.
    is_unreported: bool,
    /// To the agent, and while it is replaced, to its successor, which is the last.
    reporters: Vec<UnixStream>,
    refused: BTreeMap<RefusedSocketKind, Refused>,
}

/// Where questions come from.
#[derive(Debug, Default)]
enum Source {
    /// None can come.
    #[default]
    None,
    /// The listener comes from here, when the program starts.
    Awaited(UnixStream),
    Listening(NotifyListener),
}

/// Refusals of one kind.
#[derive(Debug, Default)]
struct Refused {
    /// Since the last report.
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
    /// Those of a listener that is still to come.
    pub(super) fn awaited(from: UnixStream) -> Self {
        Self { source: Source::Awaited(from), ..Self::default() }
    }

    /// Whether the kernel asks, or will.
    pub(super) fn can_come(&self) -> bool {
        !matches!(self.source, Source::None)
    }

    /// What to wait for: the source, if there is one, then the sockets that receive the reports.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let source = match &self.source {
            Source::None => None,
            Source::Awaited(from) => Some(from.as_fd()),
            Source::Listening(listener) => Some(listener.as_fd()),
        };
        source.into_iter().chain(self.reporters.iter().map(AsFd::as_fd))
    }

    /// When there is something to do at the latest.
    pub(super) fn timeout(&self) -> Option<Timespec> {
        let waits = self.is_unreported || self.refused.values().any(|refused| refused.times > 0);
        let wait = waits && !self.reporters.is_empty();
        wait.then(|| Timespec::try_from(REPORT_INTERVAL).ok()).flatten()
    }

    /// Reports there from now on.
    pub(super) fn report_on(&mut self, line: UnixStream) {
        self.reporters.push(line);
        self.report_due(Instant::now());
    }

    /// Does what is to be done; `events` are those of [`Self::descriptors`].
    pub(super) fn serve(&mut self, events: &[PollFlags]) {
        let (source, reporters) = events.split_at(usize::from(self.can_come()).min(events.len()));
        // They say nothing: what is readable there is the end.
        let mut ended = reporters.iter().map(|event| !event.is_empty());
        self.reporters.retain(|_| !ended.next().unwrap_or(false));
        if let Some(event) = source.first().filter(|event| !event.is_empty()) {
            self.serve_source(*event);
        }
        self.report_due(Instant::now());
    }

    fn serve_source(&mut self, event: PollFlags) {
        self.source = match std::mem::take(&mut self.source) {
            Source::None => Source::None,
            Source::Awaited(from) => match receive(&from) {
                Some(listener) => Source::Listening(listener),
                None => {
                    self.is_unreported = true;
                    Source::None
                }
            },
            Source::Listening(mut listener) => {
                let served = if event.contains(PollFlags::IN) {
                    self.answer_one(&mut listener)
                } else {
                    // The last program has ended.
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
                // Without the listener the kernel refuses what comes.
                if served.is_ok() { Source::Listening(listener) } else { Source::None }
            }
        }
    }

    /// Reports before it answers: the program may end with the answer, and the run with it.
    fn answer_one(&mut self, listener: &mut NotifyListener) -> io::Result<()> {
        let Some(call) = listener.take()? else { return Ok(()) };
        if let Some(socket) = socket_of(call.call) {
            let now = Instant::now();
            let refused = self.refused.entry(socket).or_default();
            refused.times = refused.times.saturating_add(1);
            if refused.is_due(now) {
                refused.program = program_of(listener, &call);
                self.report_due(now);
            }
        }
        listener.answer(&call)
    }

    fn report_due(&mut self, now: Instant) {
        let Some(reporter) = self.reporters.last() else { return };
        if self.is_unreported {
            self.is_unreported = !write(reporter, &HelperReport::Unreported);
        }
        for (socket, refused) in &mut self.refused {
            if refused.times == 0 || !refused.is_due(now) {
                continue;
            }
            let Refused { times, program, .. } = refused;
            let report = RefusedSocket { socket: *socket, times: *times, program: program.clone() };
            if !write(reporter, &HelperReport::Refused(report)) {
                return;
            }
            refused.times = 0;
            refused.reported = Some(now);
        }
    }
}

/// The listener of the program's filter; `None`: it has none.
fn receive(from: &UnixStream) -> Option<NotifyListener> {
    let mut received = descriptor::receive(from, &mut [0; 1]).ok()?;
    NotifyListener::adopt(received.descriptors.pop()?).ok()
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

/// Writes a report whole or not at all; returns whether it is written. The agent of another user
/// may take its time: the program must not wait for it.
fn write(reporter: &UnixStream, report: &HelperReport) -> bool {
    let Ok(frame) = protocol::encode(report) else { return false };
    let sent = send(reporter, &frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    let is_whole = sent.is_ok_and(|bytes| bytes == frame.len());
    if !is_whole && sent.is_ok() {
        // What comes after half a frame is no frame: the agent sees the end.
        let _ = reporter.shutdown(std::net::Shutdown::Both);
    }
    is_whole
}

#[cfg(test)]
mod tests;
