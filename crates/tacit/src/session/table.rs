//! Stores the records of open connections and datagram flows.
//!
//! `tacit show` can read the table while workers change the table. No thread waits for another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use super::record::{ConnectionRecord, Opening};
use super::trace::{Trace, Traces};

/// All open connections of the agent.
#[derive(Debug)]
pub struct ConnectionTable {
    records: papaya::HashMap<u64, Arc<ConnectionRecord>>,
    last_id: AtomicU64,
    /// The most connections that were open at a time since this was last taken.
    len_max: AtomicUsize,
    traces: Arc<Traces>,
    /// When the first certificate of a trusted peer expires, in unix seconds.
    next_end: AtomicI64,
    /// Whether a peer was checked by a rule that was replaced during its handshake.
    has_outdated: AtomicBool,
}

impl Default for ConnectionTable {
    fn default() -> Self {
        Self {
            records: papaya::HashMap::default(),
            last_id: AtomicU64::default(),
            len_max: AtomicUsize::default(),
            traces: Arc::default(),
            next_end: AtomicI64::new(i64::MAX),
            has_outdated: AtomicBool::default(),
        }
    }
}

impl ConnectionTable {
    /// Every open connection, in order of arrival.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Arc<ConnectionRecord>> {
        let mut records: Vec<_> = self.records.pin().values().cloned().collect();
        records.sort_by_key(|record| record.id);
        records
    }

    /// The number of open connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// The most connections that were open at a time since the last call.
    pub fn take_len_max(&self) -> usize {
        self.len_max.swap(0, Ordering::Relaxed)
    }

    /// Whether no connection is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the connection with this number.
    #[must_use]
    pub fn find(&self, id: u64) -> Option<Arc<ConnectionRecord>> {
        self.records.pin().get(&id).cloned()
    }

    /// Returns a connection for which the condition holds.
    #[must_use]
    pub fn find_where(
        &self,
        holds: impl Fn(&ConnectionRecord) -> bool,
    ) -> Option<Arc<ConnectionRecord>> {
        self.records.pin().values().find(|record| holds(record)).cloned()
    }

    /// The traces of its connections.
    #[must_use]
    pub fn traces(&self) -> &Arc<Traces> {
        &self.traces
    }

    /// Passes the open connections to a trace that has started, and records them from the current
    /// byte on; returns their number.
    #[must_use]
    pub fn trace_open(&self, trace: &Trace) -> usize {
        let records = self.records.pin();
        let of_trace = records.values().filter(|record| trace.is_of(record));
        of_trace.map(|record| record.mark_traced()).count()
    }

    /// Records that a certificate of an open connection's peer expires at this time, in unix
    /// seconds.
    pub(super) fn note_end(&self, end: i64) {
        self.next_end.fetch_min(end, Ordering::Relaxed);
    }

    /// Records that a peer was checked by a rule that was replaced during its handshake.
    pub(super) fn note_outdated(&self) {
        self.has_outdated.store(true, Ordering::Relaxed);
    }

    /// Whether a certificate of a peer has expired at `now`, in unix seconds. The pass that follows
    /// records the next expiry.
    pub fn take_ended(&self, now: i64) -> bool {
        let has_ended = self.next_end.load(Ordering::Relaxed) < now;
        if has_ended {
            self.next_end.store(i64::MAX, Ordering::Relaxed);
        }
        has_ended
    }

    /// Whether a peer was checked by a rule that was replaced during its handshake.
    pub fn take_outdated(&self) -> bool {
        self.has_outdated.swap(false, Ordering::Relaxed)
    }

    /// Records that a due pass could not run: the next pass checks every peer.
    pub fn ask_again(&self) {
        self.note_outdated();
    }

    /// Assigns a number to a connection, and adds it to the displays.
    pub(super) fn insert(&self, opening: Opening) -> Arc<ConnectionRecord> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let record = Arc::new(ConnectionRecord::new(id, opening));
        self.records.pin().insert(id, Arc::clone(&record));
        let len = self.records.len();
        // Read first: most insertions set no maximum, and workers share the number.
        if len > self.len_max.load(Ordering::Relaxed) {
            self.len_max.fetch_max(len, Ordering::Relaxed);
        }
        // This must be after the insertion: a trace that starts at the same time then sees either
        // the connection or this call.
        if self.traces.are_of(&record) {
            record.mark_traced();
        }
        record
    }

    pub(super) fn remove(&self, record: &ConnectionRecord) {
        self.records.pin().remove(&record.id);
    }
}
