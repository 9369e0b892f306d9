//! Detects that this host sends to the peers of tunnels from another address, because its addresses
//! or its routes have changed. Then each connection sends a message to its peer at once, so that
//! the peer sends to the other address.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use super::kernel::local;
use super::thread::IkeThread;

impl IkeThread {
    /// Compares the source addresses if that is due.
    pub(super) fn check_sources(&mut self, now: Instant) {
        if self.sources.take_due(now) {
            let locals = self.context.locals.clone();
            self.follow_sources(now, |remote| local(&locals, remote));
        }
    }

    /// Makes connections continue from the address from which this host sends to their peers now.
    pub(super) fn follow_sources(
        &mut self,
        now: Instant,
        source_towards: impl Fn(SocketAddr) -> SocketAddr,
    ) {
        let mut found = BTreeMap::new();
        for at in 0..self.connections.len() {
            let one = &mut self.connections[at];
            let Some(open) = &mut one.open else { continue };
            let source = found.entry(one.remote).or_insert_with_key(|to| source_towards(*to));
            // Without a route to the peer, there is no address yet.
            if !source.ip().is_unspecified() && *source != open.local() {
                open.note_local_address(now, *source);
                self.drain(at);
            }
        }
    }
}
