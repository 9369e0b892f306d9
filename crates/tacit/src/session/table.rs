//! The table of open connections and flows of datagrams.
//!
//! Displays read it while the data path writes it; neither waits for the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::record::{Opening, Record};

/// All open connections of the agent.
#[derive(Debug, Default)]
pub struct Table {
    records: papaya::HashMap<u64, Arc<Record>>,
    last_id: AtomicU64,
}

impl Table {
    /// Every open connection, in order of arrival.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Arc<Record>> {
        let mut records: Vec<_> = self.records.pin().values().cloned().collect();
        records.sort_by_key(|record| record.id);
        records
    }

    /// How many are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether none is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// One of them.
    #[must_use]
    pub fn find(&self, id: u64) -> Option<Arc<Record>> {
        self.records.pin().get(&id).cloned()
    }

    /// One of which something holds.
    #[must_use]
    pub fn find_where(&self, holds: impl Fn(&Record) -> bool) -> Option<Arc<Record>> {
        self.records.pin().values().find(|record| holds(record)).cloned()
    }

    /// Gives a connection its number, and shows it to displays.
    pub(super) fn insert(&self, opening: Opening) -> Arc<Record> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let record = Arc::new(Record::new(id, opening));
        self.records.pin().insert(id, Arc::clone(&record));
        record
    }

    pub(super) fn remove(&self, record: &Record) {
        self.records.pin().remove(&record.id);
    }
}
