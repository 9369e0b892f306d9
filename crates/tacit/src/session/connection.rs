//! Adds open connections and datagram flows to the table that `tacit show connections` reads. Also
//! counts the bytes and messages of each connection and each flow.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tacit_core::flow::Flow;
use tacit_core::pcapng::{Side, StreamEnd};
use tacit_core::policy::Deny;
use tokio::sync::OwnedSemaphorePermit;

use crate::clock;
use crate::ledger::{Count, meter};
use crate::live::{LiveAction, LiveRule, NoRule};
use crate::net::{Position, Security};
use crate::run::Scope;

use super::end::{BrokenSocket, ConnectionEnd};
use super::quotas::{QuotaExceeded, QuotaPermit};
use super::record::{ConnectionRecord, Opening};
use super::table::ConnectionTable;
use super::tls_control::TlsControl;

/// An admitted connection. It is removed from the table when it is dropped.
#[derive(Debug)]
pub struct Connection {
    record: Arc<ConnectionRecord>,
    table: Arc<ConnectionTable>,
    /// The protection of the accepted socket, which determines the direction that counts as sent.
    accepted_security: Cell<Security>,
    /// The socket from which the last bytes came.
    last_origin: Cell<Option<Position>>,
    _permits: Permits,
}

/// The permits of a connection from the agent's limits, which are released when it is dropped.
/// There are two forms to save memory, because most connections have only one permit.
#[derive(Debug)]
#[expect(dead_code, reason = "no code reads the permits; dropping a permit releases the permit")]
enum Permits {
    AgentOnly(OwnedSemaphorePermit),
    /// With a permit from limits of the policy.
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

/// The counters of bytes and messages in one direction.
struct DirectionTotals<'a> {
    bytes: &'a AtomicU64,
    messages: &'a AtomicU32,
    /// The counter in the account of the rule.
    bytes_count: Count,
    messages_count: Count,
}

impl Connection {
    /// Opens a connection: gives it a number, and adds it to the table. `accepted` is the
    /// protection of the accepted socket; `counted` is its permit from limits of the policy.
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

    /// The record of the connection.
    #[must_use]
    pub fn record(&self) -> &Arc<ConnectionRecord> {
        &self.record
    }

    /// Marks the connection as established.
    pub fn mark_open(&self) {
        self.record.mark_open();
        if self.is_traced() {
            self.table.traces().note_open(&self.record);
        }
    }

    /// Whether a trace may record it.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.record.is_traced()
    }

    /// Reports its end to the traces that record it.
    pub fn trace_end(&self, end: &ConnectionEnd) {
        if !self.is_traced() {
            return;
        }
        let cut_by = end.cut_by().map(|socket| match socket {
            BrokenSocket::Clear => self.sender(),
            BrokenSocket::Far => self.sender().other(),
        });
        let end = cut_by.map_or(StreamEnd::Orderly, |position| StreamEnd::Reset(side(position)));
        self.table.traces().note_end(&self.record, end);
        self.record.mark_untraced();
    }

    /// Schedules checks of the peer after a handshake: when a certificate of its chain expires, and
    /// soon if the rule was replaced during the handshake, because its trust may have changed.
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

    /// Marks the connection as continuing without TLS, as its rule allows.
    pub fn continue_in_clear(&self) {
        self.accepted_security.set(Security::Clear);
    }

    /// Counts payload as [`Self::count_sent`] does, and passes it to the traces of the connection.
    pub fn note_sent(&self, payload: &[u8]) {
        self.note_sent_pieces(payload.len(), || std::iter::once(payload));
    }

    /// Like [`Self::note_sent`], for payload in several pieces with this total length.
    pub fn note_sent_pieces<'p, I: Iterator<Item = &'p [u8]>>(
        &self,
        bytes: usize,
        pieces: impl FnOnce() -> I,
    ) {
        if self.is_traced() {
            self.trace_bytes(self.sender(), &mut pieces());
        }
        self.count_sent(bytes);
    }

    /// Counts payload as [`Self::count_received`] does, and passes it to the traces of the
    /// connection.
    pub fn note_received(&self, payload: &[u8]) {
        self.note_received_pieces(payload.len(), || std::iter::once(payload));
    }

    /// Like [`Self::note_received`], for payload in several pieces with this total length.
    pub fn note_received_pieces<'p, I: Iterator<Item = &'p [u8]>>(
        &self,
        bytes: usize,
        pieces: impl FnOnce() -> I,
    ) {
        if self.is_traced() {
            self.trace_bytes(self.sender().other(), &mut pieces());
        }
        self.count_received(bytes);
    }

    #[cold]
    fn trace_bytes(&self, origin: Position, pieces: &mut dyn Iterator<Item = &[u8]>) {
        self.table.traces().give_bytes(&self.record, side(origin), pieces);
    }

    /// Counts payload that was sealed, or without TLS, payload from the accepted socket.
    pub fn count_sent(&self, bytes: usize) {
        self.count(bytes, self.sender());
    }

    /// Counts payload that was opened, or without TLS, payload to the accepted socket.
    pub fn count_received(&self, bytes: usize) {
        self.count(bytes, self.sender().other());
    }

    /// The socket from which sent bytes come.
    fn sender(&self) -> Position {
        match self.accepted_security.get() {
            Security::Clear => Position::Downstream,
            Security::Tls => Position::Upstream,
        }
    }

    fn count(&self, bytes: usize, origin: Position) {
        if bytes == 0 {
            // No bytes, so no message.
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
        // There is only one writer, so a load and a store are sufficient.
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

    /// Sets the bytes of a connection whose bytes do not pass this process. Its messages are not
    /// known. A total never becomes lower: the kernel forgets its counters when a program resets
    /// the socket.
    pub fn set_totals(&self, sent: u64, received: u64) {
        let set = |to: &AtomicU64, total: u64| {
            total.saturating_sub(to.fetch_max(total, Ordering::Relaxed))
        };
        let record = &self.record;
        let [sent, received] =
            [set(&record.sent_bytes, sent), set(&record.received_bytes, received)];
        let counted = [(Count::BytesSent, sent), (Count::BytesReceived, received)];
        meter::count(record.account(), counted);
    }

    /// Sets the number of KeyUpdate messages sent so far.
    pub fn count_rekeys(&self, rekeys: u32) {
        self.record.rekeys.store(rekeys, Ordering::Relaxed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.is_traced() && self.record.is_open() {
            // The connection did not end itself: the agent resets it.
            self.table.traces().note_end(&self.record, StreamEnd::Reset(Side::Server));
        }
        self.table.remove(&self.record);
        // A requester that asked before there was a relay waits for an answer; dropping the
        // requests answers it.
        drop(self.record.tls_control().and_then(TlsControl::take_requests));
    }
}

/// The side of a stream that a socket leads to.
fn side(position: Position) -> Side {
    match position {
        Position::Downstream => Side::Client,
        Position::Upstream => Side::Server,
    }
}

/// A flow that the policy or a limit rejects.
#[derive(Debug)]
pub struct RefusedFlow {
    /// The rule that matched, or why there is none.
    pub rule: Result<Arc<LiveRule>, NoRule>,
    /// The flow.
    pub flow: Flow,
    /// The scope that captured it; `None` for a forwarding rule.
    pub scope: Option<Scope>,
    /// The limit that is reached, if the rule permits the flow.
    pub exceeded: Option<QuotaExceeded>,
}

impl RefusedFlow {
    /// Returns what the program gets: refused, unreachable or no answer.
    #[must_use]
    pub fn deny(&self) -> Deny {
        match self.rule.as_ref().map(|rule| &rule.action) {
            Ok(LiveAction::Deny(deny)) => *deny,
            _ => Deny::Refused,
        }
    }
}
