//! Continues a connection when this side sends from another address than before.
//!
//! tacit does not support MOBIKE (RFC 4555). But every peer detects a NAT in front of tacit (module
//! `nat`), so the peer sends to the source address of the newest authentic message (RFC 7296
//! section 2.23). So this side sends a request at once. Otherwise, the peer would send to the old
//! address until the next liveness check.

use std::net::SocketAddr;
use std::time::Instant;

use super::IkeConnection;
use super::sa::{IkeSa, SaState};
use super::task::Wanted;

impl IkeConnection {
    /// Returns the address from which this side sends, as it knows it.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.path.local
    }

    /// Whether this side has got another address during this connection.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Notes the address from which this side sends now. If it is another one, this side sends a
    /// request to the peer, or repeats the one that has no response.
    pub fn note_local_address(&mut self, now: Instant, local: SocketAddr) {
        if local == self.path.local || self.has_ended {
            return;
        }
        self.path.local = local;
        let current = self.current;
        let is_usable = |sa: &&mut IkeSa| sa.state == SaState::Established && !sa.is_ending();
        let Some(sa) = self.sa_mut(current).filter(is_usable) else { return };
        let repeated = sa.retransmit_on_new_path(now);
        if repeated.is_none() {
            sa.want(Wanted::Liveness);
        }
        self.has_moved = true;
        if let Some(datagrams) = repeated {
            self.traffic.retransmitted += 1;
            self.transmit(now, datagrams);
        }
        self.send_wanted(now);
    }
}
