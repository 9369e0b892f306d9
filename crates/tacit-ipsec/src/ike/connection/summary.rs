//! Defines [`IkeSummary`]: the state of one IKE connection, for the output of `tacit show ike`.

use std::time::Instant;

use super::sa::{IkeRole, IkeSa};
use super::tunnel::TunnelState;
use super::{IkeConnection, IkePath};
use crate::child::EspSpi;

/// The state of a connection.
#[derive(Clone, Debug)]
pub struct IkeSummary {
    /// The addresses outside of the tunnel.
    pub path: IkePath,
    /// Which side this is in the IKE SA: the initiator sent its first request.
    pub role: IkeRole,
    /// The SPIs of the current IKE SA, that of the initiator first; `None` before there are keys.
    pub spis: Option<(u64, u64)>,
    /// When this side replaces the keys of the IKE SA.
    pub rekey_at: Option<Instant>,
    /// When the keys of the IKE SA must no longer be used.
    pub expires_at: Option<Instant>,
    /// The message ID of the next request of this side.
    pub next_request: u32,
    /// The message ID of the next request of the peer.
    pub expected_request: u32,
    /// Whether a request of this side has no response yet.
    pub is_waiting: bool,
    /// When the last authentic message or packet of the peer arrived, or the attempt began.
    pub last_received_at: Instant,
    /// Whether a NAT is in front of this side.
    pub is_behind_nat: bool,
    /// Whether a NAT is in front of the peer.
    pub is_peer_behind_nat: bool,
    /// Whether both sides join fragments (RFC 7383).
    pub has_fragments: bool,
    /// What was sent and received besides whole messages that came the first time.
    pub traffic: IkeTraffic,
    /// The child SAs.
    pub children: Vec<ChildSummary>,
}

/// What a connection has sent more than once, and in fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IkeTraffic {
    /// Requests that were sent again, because no response came in time.
    pub retransmitted: u64,
    /// Fragments that were sent.
    pub fragments_sent: u64,
    /// Fragments that were received, each once.
    pub fragments_received: u64,
}

/// The state of a child SA.
#[derive(Clone, Copy, Debug)]
pub struct ChildSummary {
    /// The SPI of packets that this side receives.
    pub inbound: EspSpi,
    /// When this side replaces it.
    pub rekey_at: Instant,
    /// When it must no longer be used.
    pub expires_at: Instant,
    /// Whether another one replaces it, or it is being deleted.
    pub is_ending: bool,
}

impl IkeConnection {
    /// Returns the state for displays.
    #[must_use]
    pub fn summary(&self) -> IkeSummary {
        let sa = self.sa(self.current).or_else(|| self.sas.first());
        let role = sa.map_or(IkeRole::Initiator, IkeSa::role);
        let ids = sa.map(IkeSa::message_ids).unwrap_or_default();
        let children = self.tunnels.iter().filter_map(|one| {
            Some(ChildSummary {
                inbound: EspSpi::new(one.inbound)?,
                rekey_at: one.rekey_at,
                expires_at: one.expires_at,
                is_ending: one.state != TunnelState::Active,
            })
        });
        IkeSummary {
            path: self.path,
            role,
            spis: sa.map(|sa| (sa.spis.initiator, sa.spis.responder)),
            rekey_at: sa.map(|sa| sa.rekey_at),
            expires_at: sa.map(|sa| sa.expires_at),
            next_request: ids.0,
            expected_request: ids.1,
            is_waiting: self.opening.is_some() || sa.is_some_and(|sa| sa.outstanding.is_some()),
            last_received_at: self.last_received_at,
            is_behind_nat: self.is_behind_nat,
            is_peer_behind_nat: self.is_peer_behind_nat,
            has_fragments: sa.is_some_and(|sa| sa.has_fragments),
            traffic: self.traffic,
            children: children.collect(),
        }
    }
}
