//! Defines a trace that is in progress: its options, its counters, and the queue into which workers
//! copy bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::SystemTime;

use tacit_core::pcapng::{Side, StreamEnd, segments};
use tacit_tls::KeyLogLine;

use crate::clock::Rfc3339;
use crate::session::record::ConnectionRecord;

use super::report::{TraceEndReason, TraceState};
use super::{QUEUE_BYTES_MAX, QUEUE_EVENTS_MAX, TraceOptions, TraceSelection};

/// A trace in progress.
#[derive(Debug)]
pub struct Trace {
    /// Counts from 1 since the agent started.
    pub id: u64,
    /// Its connections, its requester and its limits.
    pub options: TraceOptions,
    /// When it started.
    pub started: SystemTime,
    pub(super) counts: TraceCounts,
    queue: SyncSender<TraceMessage>,
    queued_bytes: AtomicUsize,
    /// A [`TraceEndReason`] as a number; 0: it has not ended.
    end: AtomicU8,
}

/// The counters of a trace.
#[derive(Debug, Default)]
pub(super) struct TraceCounts {
    /// Connections that it has recorded.
    pub(super) connections: AtomicU64,
    /// Packets in the capture.
    pub(super) packets: AtomicU64,
    /// Packets that are not in the capture.
    pub(super) dropped: AtomicU64,
    /// Lines in the key log.
    pub(super) keys: AtomicU64,
    /// Lines that are not in the key log.
    pub(super) keys_dropped: AtomicU64,
    /// Bytes written to both files.
    pub(super) bytes: AtomicU64,
}

impl TraceCounts {
    pub(super) fn add(count: &AtomicU64, number: usize) {
        count.fetch_add(number as u64, Ordering::Relaxed);
    }

    pub(super) fn read(count: &AtomicU64) -> u64 {
        count.load(Ordering::Relaxed)
    }
}

/// A message to the thread of a trace.
#[derive(Debug)]
pub(super) enum TraceMessage {
    /// An event of a connection.
    Connection(ConnectionEvent),
    /// Lines for the key log.
    Keys(Vec<KeyLogLine>),
    /// The trace has ended.
    Wake,
}

/// Something that happened to a connection.
#[derive(Debug)]
pub(super) struct ConnectionEvent {
    pub(super) record: Arc<ConnectionRecord>,
    pub(super) time: SystemTime,
    /// How many bytes client and server had sent before.
    pub(super) positions: [u64; 2],
    pub(super) event: TraceEvent,
}

/// An event of a connection.
#[derive(Debug)]
pub(super) enum TraceEvent {
    /// The connection relays bytes from now on.
    Opened,
    /// One side sent bytes.
    Bytes { from: Side, bytes: Vec<u8> },
    /// The connection has ended.
    Ended(StreamEnd),
}

impl TraceEvent {
    fn payload_bytes(&self) -> usize {
        match self {
            Self::Bytes { bytes, .. } => bytes.len(),
            Self::Opened | Self::Ended(_) => 0,
        }
    }

    /// The number of packets for the event.
    pub(super) fn packets(&self) -> usize {
        match self {
            Self::Bytes { bytes, .. } => segments(bytes.len()),
            Self::Opened | Self::Ended(StreamEnd::Orderly) => 3,
            Self::Ended(StreamEnd::Reset(_)) => 1,
        }
    }
}

impl Trace {
    /// Creates a trace, and the receiver for its thread.
    pub(super) fn new(id: u64, options: TraceOptions) -> (Self, Receiver<TraceMessage>) {
        let (queue, messages) = sync_channel(QUEUE_EVENTS_MAX);
        let trace = Self {
            id,
            options,
            started: SystemTime::now(),
            counts: TraceCounts::default(),
            queue,
            queued_bytes: AtomicUsize::new(0),
            end: AtomicU8::new(0),
        };
        (trace, messages)
    }

    /// Whether it is in progress and records the connection.
    #[must_use]
    pub fn is_of(&self, record: &ConnectionRecord) -> bool {
        self.end_reason().is_none() && self.options.of.includes(record)
    }

    /// Whether it is in progress and records the keys of the tunnels to this peer.
    #[must_use]
    pub fn is_of_tunnels(&self, ike: &str) -> bool {
        let is_meant = matches!(&self.options.of, TraceSelection::Ike(name) if name == ike);
        is_meant && self.end_reason().is_none()
    }

    /// Ends it. Only the first reason is kept.
    pub fn end(&self, reason: TraceEndReason) {
        let order = Ordering::AcqRel;
        let _ = self.end.compare_exchange(0, reason as u8, order, Ordering::Acquire);
        // If the queue is full, the thread of the trace is awake anyway.
        let _ = self.queue.try_send(TraceMessage::Wake);
    }

    /// Why it has ended, if it has.
    #[must_use]
    pub fn end_reason(&self) -> Option<TraceEndReason> {
        TraceEndReason::of_number(self.end.load(Ordering::Acquire))
    }

    /// The state for displays.
    pub(super) fn state(&self) -> TraceState {
        TraceState {
            id: self.id,
            of: self.options.of.to_string(),
            user: self.options.user.clone(),
            pid: self.options.pid,
            pcap: self.options.pcap.clone(),
            keylog: self.options.keylog.clone(),
            since: Rfc3339(self.started),
            until: Rfc3339(self.started + self.options.duration),
            max_bytes: self.options.bytes_max,
            connections: TraceCounts::read(&self.counts.connections),
            packets: TraceCounts::read(&self.counts.packets),
            dropped: TraceCounts::read(&self.counts.dropped),
            keys: TraceCounts::read(&self.counts.keys),
            bytes: TraceCounts::read(&self.counts.bytes),
        }
    }

    pub(super) fn offer_bytes(&self, record: &Arc<ConnectionRecord>, from: Side, bytes: &[u8]) {
        if self.queued_bytes.load(Ordering::Relaxed) + bytes.len() > QUEUE_BYTES_MAX {
            TraceCounts::add(&self.counts.dropped, segments(bytes.len()));
            return;
        }
        self.offer(record, TraceEvent::Bytes { from, bytes: bytes.to_vec() });
    }

    /// Queues an event, or drops and counts it.
    pub(super) fn offer(&self, record: &Arc<ConnectionRecord>, event: TraceEvent) {
        let payload_bytes = event.payload_bytes();
        let packets = event.packets();
        // Counted before the event is sent, because the thread subtracts it afterwards.
        self.queued_bytes.fetch_add(payload_bytes, Ordering::Relaxed);
        let message = TraceMessage::Connection(ConnectionEvent {
            record: Arc::clone(record),
            time: SystemTime::now(),
            positions: [record.sent_bytes(), record.received_bytes()],
            event,
        });
        if self.queue.try_send(message).is_err() {
            self.queued_bytes.fetch_sub(payload_bytes, Ordering::Relaxed);
            TraceCounts::add(&self.counts.dropped, packets);
        }
    }

    /// Queues lines for the key log, or drops and counts them.
    pub fn offer_keys(&self, lines: &[KeyLogLine]) {
        if self.queue.try_send(TraceMessage::Keys(lines.to_vec())).is_err() {
            TraceCounts::add(&self.counts.keys_dropped, lines.len());
        }
    }

    /// Records that the thread has taken an event from the queue.
    pub(super) fn note_taken(&self, event: &TraceEvent) {
        self.queued_bytes.fetch_sub(event.payload_bytes(), Ordering::Relaxed);
    }
}
