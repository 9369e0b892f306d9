//! A connection, or a flow of datagrams, for as long as it is open.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tacit_core::flow::{Address, Flow};
use tokio::sync::OwnedSemaphorePermit;

use crate::ledger::{Count, meter};
use crate::live::LiveRule;

use super::controls::Controls;
use super::record::{Opening, Record};
use super::table::Table;

/// A connection with its verdict; leaves the table when dropped.
#[derive(Debug)]
pub struct Connection {
    record: Arc<Record>,
    table: Arc<Table>,
    accepted_side: Cell<AcceptedSide>,
    /// Whether the last bytes came from the side that was accepted.
    last_from_accepted: Cell<Option<bool>>,
    _permit: OwnedSemaphorePermit,
}

/// What the accepted socket of a connection carries, which decides what counts as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedSide {
    /// Clear text.
    Clear,
    /// TLS records.
    Tls,
}

impl Connection {
    /// Begins a connection: it has a number from here on, and displays show it.
    #[must_use]
    pub fn open(
        table: &Arc<Table>,
        opening: Opening,
        accepted: AcceptedSide,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        opening.rule.counters.count_hit();
        let record = table.insert(opening);
        meter::count(record.account(), [(Count::Connections, 1)]);
        Self {
            record,
            table: Arc::clone(table),
            accepted_side: Cell::new(accepted),
            last_from_accepted: Cell::new(None),
            _permit: permit,
        }
    }

    /// What displays see of it.
    #[must_use]
    pub fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// From here on the connection carries bytes.
    pub fn mark_open(&self) {
        self.record.open.store(true, Ordering::Relaxed);
    }

    /// The rule allows it to go on without TLS, and so it does.
    pub fn go_on_in_clear(&self) {
        self.accepted_side.set(AcceptedSide::Clear);
    }

    /// Counts payload that went into TLS, or onward from the accepted leg of two clear ones.
    pub fn count_sent(&self, bytes: usize) {
        self.count(bytes, self.accepted_side.get() == AcceptedSide::Clear);
    }

    /// Counts payload that came out of TLS, or back to the accepted leg of two clear ones.
    pub fn count_received(&self, bytes: usize) {
        self.count(bytes, self.accepted_side.get() == AcceptedSide::Tls);
    }

    fn count(&self, bytes: usize, from_accepted: bool) {
        if bytes == 0 {
            // No message either.
            return;
        }
        let record = &self.record;
        let (counter, messages, counts) = if from_accepted {
            let counts = (Count::BytesSent, Count::MessagesSent);
            (&record.sent_bytes, &record.sent_messages, counts)
        } else {
            let counts = (Count::BytesReceived, Count::MessagesReceived);
            (&record.received_bytes, &record.received_messages, counts)
        };
        let begins = self.last_from_accepted.replace(Some(from_accepted)) != Some(from_accepted);
        // One writer: no need for locked adds.
        counter.store(counter.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
        if begins {
            let count = messages.load(Ordering::Relaxed).wrapping_add(1);
            messages.store(count, Ordering::Relaxed);
        }
        let counted = [(counts.0, bytes as u64), (counts.1, u64::from(begins))];
        meter::count(record.account(), counted);
    }

    /// Takes the number of KeyUpdates sent so far.
    pub fn count_rekeys(&self, rekeys: u32) {
        self.record.rekeys.store(rekeys, Ordering::Relaxed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.table.remove(&self.record);
        // Who asked before there was a relay holds the record, and waits for an answer.
        drop(self.record.controls().and_then(Controls::take_wishes));
    }
}

/// What no rule permits.
#[derive(Debug)]
pub struct Refused {
    /// The rule that denies; `None`: no rule matched.
    pub rule: Option<Arc<LiveRule>>,
    /// Where it arrived.
    pub local: Address,
    /// Who connected, or where it was to go.
    pub remote: Address,
}

impl Refused {
    /// A flow that this rule denies, or that no rule matches.
    #[must_use]
    pub fn new(rule: Option<&Arc<LiveRule>>, flow: Flow) -> Self {
        Self { rule: rule.map(Arc::clone), local: flow.local, remote: flow.remote }
    }
}
