//! Registers an open connection or datagram flow in the table, and counts what it does until it
//! ends.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tacit_core::flow::Flow;
use tacit_core::policy::Deny;
use tokio::sync::OwnedSemaphorePermit;

use crate::clock;
use crate::ledger::{Count, meter};
use crate::live::{LiveAction, LiveRule, NoRule};
use crate::net::{Position, Security};
use crate::run::Scope;

use super::quotas::{QuotaExceeded, QuotaPermit};
use super::record::{ConnectionRecord, Opening};
use super::table::ConnectionTable;
use super::tls_control::TlsControl;

/// A connection with its verdict; leaves the table when dropped.
#[derive(Debug)]
pub struct Connection {
    record: Arc<ConnectionRecord>,
    table: Arc<ConnectionTable>,
    /// That of the accepted socket, which decides what counts as sent.
    accepted_security: Cell<Security>,
    /// Where the last bytes came from.
    last_origin: Cell<Option<Position>>,
    _permits: Permits,
}

/// What a connection has of the agent's limits; given back when dropped. Two forms, because every
/// connection has the first and few have more.
#[derive(Debug)]
#[expect(dead_code, reason = "it is there to be dropped")]
enum Permits {
    AgentOnly(OwnedSemaphorePermit),
    /// Of limits that the policy sets, too.
    WithQuota(Box<(OwnedSemaphorePermit, QuotaPermit)>),
}

impl Permits {
    fn new(permit: OwnedSemaphorePermit, counted: Option<QuotaPermit>) -> Self {
        match counted {
            None => Self::AgentOnly(permit),
            Some(counted) => Self::WithQuota(Box::new((permit, counted))),
        }
    }
}

/// Where the bytes and messages of one direction are counted.
struct DirectionTotals<'a> {
    bytes: &'a AtomicU64,
    messages: &'a AtomicU32,
    /// The same in the account of the rule.
    bytes_count: Count,
    messages_count: Count,
}

impl Connection {
    /// Begins a connection: it has a number from here on, and displays show it. `accepted` is what
    /// protects the bytes on the accepted socket; `counted` is its part of the policy's limits.
    #[must_use]
    pub fn open(
        table: &Arc<ConnectionTable>,
        opening: Opening,
        accepted: Security,
        permit: OwnedSemaphorePermit,
        counted: Option<QuotaPermit>,
    ) -> Self {
        opening.rule.counters.count_hit();
        let record = table.insert(opening);
        meter::count(record.account(), [(Count::Connections, 1)]);
        Self {
            record,
            table: Arc::clone(table),
            accepted_security: Cell::new(accepted),
            last_origin: Cell::new(None),
            _permits: Permits::new(permit, counted),
        }
    }

    /// What displays see of it.
    #[must_use]
    pub fn record(&self) -> &Arc<ConnectionRecord> {
        &self.record
    }

    /// From here on the connection carries bytes.
    pub fn mark_open(&self) {
        self.record.open.store(true, Ordering::Relaxed);
    }

    /// A handshake is complete: its peer is checked again when a certificate of its chain expires,
    /// and soon where the rule was replaced meanwhile, perhaps for its trust.
    pub fn note_peer(&self) {
        let tls = self.record.tls.get();
        let Some(trusted) = tls.as_ref().and_then(|tls| tls.trusted.as_ref()) else { return };
        if let Some(end) = trusted.chain.next_end(clock::now_unix_s()) {
            self.table.note_end(end);
        }
        if self.record.rule.is_replaced() {
            self.table.note_outdated();
        }
    }

    /// The connection continues without TLS, as its rule allows.
    pub fn go_on_in_clear(&self) {
        self.accepted_security.set(Security::Clear);
    }

    /// Counts payload that went into TLS, or onward from the accepted socket of two clear ones.
    pub fn count_sent(&self, bytes: usize) {
        self.count(bytes, self.sender());
    }

    /// Counts payload that came out of TLS, or back to the accepted socket of two clear ones.
    pub fn count_received(&self, bytes: usize) {
        self.count(bytes, self.sender().other());
    }

    /// The socket that what is sent comes from.
    fn sender(&self) -> Position {
        match self.accepted_security.get() {
            Security::Clear => Position::Downstream,
            Security::Tls => Position::Upstream,
        }
    }

    fn count(&self, bytes: usize, origin: Position) {
        if bytes == 0 {
            // No message either.
            return;
        }
        let record = &self.record;
        let totals = match origin {
            Position::Downstream => DirectionTotals {
                bytes: &record.sent_bytes,
                messages: &record.sent_messages,
                bytes_count: Count::BytesSent,
                messages_count: Count::MessagesSent,
            },
            Position::Upstream => DirectionTotals {
                bytes: &record.received_bytes,
                messages: &record.received_messages,
                bytes_count: Count::BytesReceived,
                messages_count: Count::MessagesReceived,
            },
        };
        let begins = self.last_origin.replace(Some(origin)) != Some(origin);
        // One writer: no need for locked adds.
        let bytes_total = totals.bytes.load(Ordering::Relaxed) + bytes as u64;
        totals.bytes.store(bytes_total, Ordering::Relaxed);
        if begins {
            let messages_total = totals.messages.load(Ordering::Relaxed).wrapping_add(1);
            totals.messages.store(messages_total, Ordering::Relaxed);
        }
        let counted =
            [(totals.bytes_count, bytes as u64), (totals.messages_count, u64::from(begins))];
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
        drop(self.record.tls_control().and_then(TlsControl::take_requests));
    }
}

/// What no rule permits.
#[derive(Debug)]
pub struct RefusedFlow {
    /// The rule that was found, or why there is none.
    pub rule: Result<Arc<LiveRule>, NoRule>,
    /// Its source and its destination.
    pub flow: Flow,
    /// Where it was captured; `None`: it came to a forwarding rule.
    pub scope: Option<Scope>,
    /// The limit that is reached, although the rule permits it.
    pub exceeded: Option<QuotaExceeded>,
}

impl RefusedFlow {
    /// What a program reads as the reason.
    #[must_use]
    pub fn deny(&self) -> Deny {
        match self.rule.as_ref().map(|rule| &rule.action) {
            Ok(LiveAction::Deny(deny)) => *deny,
            _ => Deny::Refused,
        }
    }
}
