//! Decides which clients may connect without TLS, for rules that accept both TLS and clear text
//! (`accept = "both"`).
//!
//! A client that has completed a TLS handshake may not connect in clear again. After `tacit close
//! --clear`, all clients need TLS.
//!
//! Each rule has a table with the addresses of clients that have used TLS. When the table is full,
//! all clients need TLS. A reload keeps the table. At `tacit restart`, the agent sends the table to
//! its successor process. If the agent ends without a successor, the table is lost.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tacit_core::flow::Address;
use tacit_core::policy::{ClearClients, ClientProtocol};

use super::tls_sources::TlsSources;
use crate::address::Source;

/// The record of one rule about its clients.
#[derive(Debug, Default)]
pub struct ClearAccess {
    /// Whether every client needs TLS from now on.
    ended: AtomicBool,
    /// The sources with a completed handshake.
    tls_sources: Mutex<TlsSources>,
}

/// A [`ClearAccess`] as one agent hands it to its successor.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClearAccessState {
    /// Whether every client needs TLS.
    ended: bool,
    /// The sources with a completed handshake.
    tls_sources: TlsSources,
}

impl ClearAccess {
    /// The protocol of a client, at a time in seconds since 1970.
    #[must_use]
    pub fn protocol_of(
        &self,
        clients: &ClearClients,
        client: &Address,
        unix_s: i64,
    ) -> ClientProtocol {
        let protocol = clients.protocol_of(client.ip(), unix_s);
        if protocol == ClientProtocol::Tls || self.needs_tls(client) {
            return ClientProtocol::Tls;
        }
        protocol
    }

    /// Whether a client needs TLS even though the rule accepts clear clients.
    fn needs_tls(&self, client: &Address) -> bool {
        if self.ended.load(Ordering::Relaxed) {
            return true;
        }
        let sources = self.tls_sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.is_full() || sources.contains(Source::of(client))
    }

    /// Notes that a client has completed a TLS handshake; returns whether that fills the table.
    #[must_use]
    pub fn note_tls(&self, client: &Address) -> bool {
        let mut sources = self.tls_sources.lock().unwrap_or_else(PoisonError::into_inner);
        if sources.is_full() {
            return false;
        }
        sources.add(Source::of(client));
        sources.is_full()
    }

    /// Accepts only clients with TLS from now on. A connection in clear that the caller does not
    /// find open afterwards closes itself, by [`Self::has_ended_after_opening`].
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether [`Self::end`] was called.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether [`Self::end`] was called, for a connection that was marked as open just before: it
    /// returns true if the caller of `end` did not see the mark.
    #[must_use]
    pub fn has_ended_after_opening(&self) -> bool {
        fence(Ordering::SeqCst);
        self.has_ended()
    }

    /// A copy for a successor.
    #[must_use]
    pub fn state(&self) -> ClearAccessState {
        let sources = self.tls_sources.lock().unwrap_or_else(PoisonError::into_inner);
        ClearAccessState { ended: self.has_ended(), tls_sources: sources.clone() }
    }

    /// Adds the state of the predecessor.
    pub fn adopt(&self, state: ClearAccessState) {
        if state.ended {
            self.end();
        }
        let mut sources = self.tls_sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.extend(state.tls_sources);
    }
}

#[cfg(test)]
mod tests {
    use super::super::TLS_SOURCES_MAX;
    use super::*;

    const DETECTS: ClearClients = ClearClients { sources: Vec::new(), until: None };

    fn client(number: u32) -> Address {
        let ip = std::net::Ipv4Addr::from_bits(0x0a00_0000 + number);
        Address::Inet((ip, 1000).into())
    }

    #[test]
    fn a_client_that_used_tls_needs_it_from_then_on() {
        let access = ClearAccess::default();
        assert_eq!(access.protocol_of(&DETECTS, &client(1), 0), ClientProtocol::Detect);
        assert!(!access.note_tls(&client(1)));
        assert_eq!(access.protocol_of(&DETECTS, &client(1), 0), ClientProtocol::Tls);
        assert_eq!(access.protocol_of(&DETECTS, &client(2), 0), ClientProtocol::Detect);
        let successor = ClearAccess::default();
        successor.adopt(access.state());
        assert_eq!(successor.protocol_of(&DETECTS, &client(1), 0), ClientProtocol::Tls);
        assert_eq!(successor.protocol_of(&DETECTS, &client(2), 0), ClientProtocol::Detect);
    }

    #[test]
    fn the_end_counts_for_all_clients_and_for_the_successor() {
        let access = ClearAccess::default();
        access.end();
        let successor = ClearAccess::default();
        successor.adopt(access.state());
        for access in [access, successor] {
            assert_eq!(access.protocol_of(&DETECTS, &client(1), 0), ClientProtocol::Tls);
        }
    }

    #[test]
    fn a_full_table_accepts_no_client_in_clear() {
        let access = ClearAccess::default();
        let max = u32::try_from(TLS_SOURCES_MAX).unwrap();
        for number in 1..max {
            assert!(!access.note_tls(&client(number)), "{number}");
        }
        assert_eq!(access.protocol_of(&DETECTS, &client(max), 0), ClientProtocol::Detect);
        assert!(access.note_tls(&client(max)), "the last place");
        assert!(!access.note_tls(&client(max)), "reported once");
        assert_eq!(access.protocol_of(&DETECTS, &client(max + 1), 0), ClientProtocol::Tls);
    }
}
