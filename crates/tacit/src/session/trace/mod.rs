//! Implements traces. A trace gives an operator the decrypted bytes of connections, or the keys for
//! the decryption.
//!
//! ```text
//!   worker ── copy of the bytes ────────────> queue ──> thread `trace` ──> pcapng
//!   handshake ── lines of the key log ──────> queue ──────┘           └──> key log
//! ```
//!
//! A worker never waits for a trace. If the queue is full, the worker drops the copy and counts it;
//! the connection loses nothing. Without a trace, a worker only reads a flag. The thread `trace`
//! writes to descriptors that the command `tacit trace` has opened.
//!
//! If a connection is already open, its trace begins in the middle of the stream. The key log has
//! only the keys of handshakes after the start of the trace.
//!
//! Limits: [`TRACES_MAX`] traces at a time; [`TRACE_DURATION_MAX`] and [`TRACE_BYTES_MAX`] for each
//! trace; [`QUEUE_BYTES_MAX`] and [`QUEUE_EVENTS_MAX`] for the queue of a trace.

mod active;
mod report;
mod selection;
mod writer;

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use serde::Serialize;
use tacit_core::pcapng::{Side, StreamEnd};
use tacit_sys::sandbox::{self, CapabilitySet, WorkerSockets};
use tacit_tls::KeyLogLine;
use tokio::sync::oneshot;

use crate::ledger::on_own_thread;
use crate::log::{AuditOutcome, Event, Log};

use super::record::ConnectionRecord;
pub use active::Trace;
use active::TraceEvent;
pub use report::{TraceEndReason, TraceReport, TraceStarted, TraceState};
pub use selection::TraceSelection;
use writer::Writer;

/// The maximum number of traces at the same time; further ones are refused.
pub const TRACES_MAX: usize = 4;
/// The maximum duration of a trace.
pub const TRACE_DURATION_MAX: Duration = Duration::from_secs(24 * 3600);
/// The largest number of bytes that one trace may write to its files.
pub const TRACE_BYTES_MAX: u64 = 1 << 30;
/// The maximum payload of one trace that waits to be written.
pub const QUEUE_BYTES_MAX: usize = 16 << 20;
/// The maximum number of events of one trace that wait to be written.
pub const QUEUE_EVENTS_MAX: usize = 8192;

/// The traces of an agent that are in progress.
#[derive(Default)]
pub struct Traces {
    active: ArcSwap<Vec<Arc<Trace>>>,
    /// The number of traces whose thread has not ended.
    running: AtomicUsize,
    last_id: AtomicU64,
    /// Gets the traces of tunnels that start.
    tunnels: Mutex<Option<TunnelListener>>,
}

/// Writes the keys of the tunnels that exist to a trace that has started.
type TunnelListener = Box<dyn Fn(&Arc<Trace>) + Send>;

/// The connections of a trace, its requester and its limits.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TraceOptions {
    /// Its connections.
    pub of: TraceSelection,
    /// The user who requests it.
    pub user: String,
    /// The process that requests it.
    pub pid: i32,
    /// The file of the bytes, as the command names it.
    pub pcap: Option<String>,
    /// The file of the keys, as the command names it.
    pub keylog: Option<String>,
    /// The maximum duration of the trace.
    #[serde(skip)]
    pub duration: Duration,
    /// The maximum number of bytes that the trace writes.
    pub bytes_max: u64,
}

/// The files that a trace writes: one or both.
#[derive(Debug)]
pub struct TraceFiles {
    /// The file for the decrypted bytes, as pcapng.
    pub capture: Option<File>,
    /// The file for the keys.
    pub key_log: Option<File>,
}

/// Whether the thread of a trace drops the rights that workers drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadRights {
    /// The thread keeps its system calls and capabilities.
    Kept,
    /// The thread cannot open files or start programs.
    GivenUp,
}

/// A trace that has started.
#[derive(Debug)]
pub struct StartedTrace {
    /// The trace.
    pub trace: Arc<Trace>,
    /// The report of the trace, when it has ended.
    pub report: oneshot::Receiver<TraceReport>,
    /// Keeps the slot until the report was sent to the client.
    _slot: Arc<TraceSlot>,
}

/// Why a trace cannot start.
#[derive(Debug)]
pub enum TraceRefused {
    /// The maximum number of traces is in progress.
    TooMany,
    /// The kernel cannot create a thread.
    NoThread(io::Error),
}

impl fmt::Display for TraceRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => write!(
                f,
                "cannot start the trace: {TRACES_MAX} traces are in progress, and this is the \
                 limit\n    fix: end a trace; `tacit show traces` lists the traces and their \
                 processes"
            ),
            Self::NoThread(error) => {
                write!(f, "cannot start the trace: cannot create a thread: {error}")
            }
        }
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").field("active", &self.active).finish_non_exhaustive()
    }
}

impl Traces {
    /// Starts a trace; connections that open from now on are traced.
    ///
    /// # Errors
    /// See [`TraceRefused`].
    pub fn start(
        self: &Arc<Self>,
        options: TraceOptions,
        files: TraceFiles,
        rights: ThreadRights,
        log: &Log,
    ) -> Result<StartedTrace, TraceRefused> {
        let slot = Arc::new(TraceSlot::take(self).ok_or(TraceRefused::TooMany)?);
        let of_thread = Arc::clone(&slot);
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (trace, messages) = Trace::new(id, options);
        let trace = Arc::new(trace);
        let writer = Writer::new(Arc::clone(&trace), messages, files);
        let thread_log = log.clone();
        let work = move || {
            give_up_rights(rights);
            let report = writer.run();
            log_end(&thread_log, id, &report);
            of_thread.remove_trace(id);
            report
        };
        let report = on_own_thread("trace", work).map_err(TraceRefused::NoThread)?;
        self.active.rcu(|active| {
            let mut active = Vec::clone(active);
            active.push(Arc::clone(&trace));
            active
        });
        log_start(log, &trace);
        if matches!(trace.options.of, TraceSelection::Ike(_)) {
            let listener = self.tunnels.lock().unwrap_or_else(PoisonError::into_inner);
            listener.iter().for_each(|listener| listener(&trace));
        }
        Ok(StartedTrace { trace, report, _slot: slot })
    }

    /// Ends all traces.
    pub fn end_all(&self, reason: TraceEndReason) {
        self.active.load().iter().for_each(|trace| trace.end(reason));
    }

    /// The number of traces that have not ended, or whose reports were not sent yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    /// Whether all have ended, and their reports were sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the traces in progress, for displays.
    #[must_use]
    pub fn show(&self) -> Vec<TraceState> {
        self.active.load().iter().map(|trace| trace.state()).collect()
    }

    /// Whether a trace records the connection.
    pub(super) fn are_of(&self, record: &ConnectionRecord) -> bool {
        self.active.load().iter().any(|trace| trace.is_of(record))
    }

    /// Whether a trace logs the keys of the connection.
    #[must_use]
    pub fn want_keys(&self, record: &ConnectionRecord) -> bool {
        self.active.load().iter().any(|trace| trace.options.keylog.is_some() && trace.is_of(record))
    }

    /// Calls this function for each trace of tunnels that starts.
    pub fn listen_for_tunnels(&self, listener: impl Fn(&Arc<Trace>) + Send + 'static) {
        let mut place = self.tunnels.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(Box::new(listener));
    }

    /// Whether a trace records the tunnels to the peer `[ike.NAME]`.
    #[must_use]
    pub fn are_of_tunnels(&self, ike: &str) -> bool {
        self.active.load().iter().any(|trace| trace.is_of_tunnels(ike))
    }

    /// Passes the keys of tunnels to the traces that record them.
    pub fn give_tunnel_keys(&self, ike: &str, lines: &[KeyLogLine]) {
        let active = self.active.load();
        let of_tunnels = active.iter().filter(|trace| trace.is_of_tunnels(ike));
        of_tunnels.for_each(|trace| trace.offer_keys(lines));
    }

    /// Passes the keys of a connection to the traces.
    pub fn give_keys(&self, record: &ConnectionRecord, lines: &[KeyLogLine]) {
        if lines.is_empty() {
            return;
        }
        let active = self.active.load();
        let logging = active.iter().filter(|trace| trace.options.keylog.is_some());
        logging.filter(|trace| trace.is_of(record)).for_each(|trace| trace.offer_keys(lines));
    }

    /// Passes the bytes that one side of a connection sends to the traces, before they are counted.
    pub(super) fn give_bytes(
        &self,
        record: &Arc<ConnectionRecord>,
        from: Side,
        pieces: &mut dyn Iterator<Item = &[u8]>,
    ) {
        let mut bytes = Vec::new();
        pieces.for_each(|piece| bytes.extend_from_slice(piece));
        self.for_each_capture(record, |trace| trace.offer_bytes(record, from, &bytes));
    }

    /// Reports to the traces that a connection relays bytes from now on.
    pub(super) fn note_open(&self, record: &Arc<ConnectionRecord>) {
        self.for_each_capture(record, |trace| trace.offer(record, TraceEvent::Opened));
    }

    /// Reports to the traces that a connection has ended.
    pub(super) fn note_end(&self, record: &Arc<ConnectionRecord>, end: StreamEnd) {
        self.for_each_capture(record, |trace| trace.offer(record, TraceEvent::Ended(end)));
    }

    fn for_each_capture(&self, record: &ConnectionRecord, show: impl Fn(&Trace)) {
        let active = self.active.load();
        let mut is_traced = false;
        for trace in active.iter().filter(|trace| trace.is_of(record)) {
            is_traced = true;
            if trace.options.pcap.is_some() {
                show(trace);
            }
        }
        if !is_traced {
            record.mark_untraced();
            // A trace may have started since.
            if self.are_of(record) {
                record.mark_traced();
            }
        }
    }
}

/// One of the [`TRACES_MAX`] slots for traces, which is released when dropped.
#[derive(Debug)]
struct TraceSlot {
    traces: Arc<Traces>,
}

impl TraceSlot {
    fn take(traces: &Arc<Traces>) -> Option<Self> {
        let order = Ordering::AcqRel;
        let taken = traces.running.fetch_update(order, Ordering::Acquire, |running| {
            (running < TRACES_MAX).then_some(running + 1)
        });
        taken.is_ok().then(|| Self { traces: Arc::clone(traces) })
    }

    /// Removes the trace of this slot, which has ended.
    fn remove_trace(&self, id: u64) {
        self.traces.active.rcu(|active| {
            active.iter().filter(|trace| trace.id != id).cloned().collect::<Vec<_>>()
        });
    }
}

impl Drop for TraceSlot {
    fn drop(&mut self) {
        self.traces.running.fetch_sub(1, Ordering::AcqRel);
    }
}

fn give_up_rights(rights: ThreadRights) {
    if rights == ThreadRights::GivenUp {
        // Limits that the kernel does not support are missing, as in the sandbox of the agent,
        // which reports them.
        let _ = sandbox::keep_capabilities(CapabilitySet::empty());
        let _ = sandbox::filter_worker(WorkerSockets::Internet);
    }
}

fn about(event: Event, id: u64, of: &impl fmt::Display, user: &str, pid: i32) -> Event {
    event.value("id", id).field("of", of).field("user", user).value("pid", pid)
}

fn log_start(log: &Log, trace: &Trace) {
    let TraceOptions { of, user, pid, pcap, keylog, duration, bytes_max } = &trace.options;
    let mut event = about(Event::new("trace-started"), trace.id, of, user, *pid);
    for (name, file) in [("pcap", pcap), ("keylog", keylog)] {
        if let Some(file) = file {
            event = event.field(name, file);
        }
    }
    let event = event.value("seconds", duration.as_secs()).value("max-bytes", *bytes_max);
    log.warn(event.clone());
    log.audit(AuditOutcome::Allowed, event);
}

fn log_end(log: &Log, id: u64, report: &TraceReport) {
    let TraceReport { of, user, pid, reason, connections, packets, dropped, bytes, keys, .. } =
        report;
    let event = about(Event::new("trace-ended"), id, of, user, *pid)
        .field("reason", &report.why())
        .field("end", reason)
        .value("connections", *connections)
        .value("packets", *packets)
        .value("dropped", *dropped)
        .value("keys", *keys)
        .value("bytes", *bytes);
    log.warn(event.clone());
    log.audit(AuditOutcome::Allowed, event);
}

/// A trace was refused.
pub fn log_refused(log: &Log, of: &TraceSelection, user: &str, pid: i32, reason: &str) {
    let event = Event::new("trace-refused")
        .field("of", of)
        .field("user", user)
        .value("pid", pid)
        .field("reason", reason);
    log.warn(event.clone());
    log.audit(AuditOutcome::Denied, event);
}
