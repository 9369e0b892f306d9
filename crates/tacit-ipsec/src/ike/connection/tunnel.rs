//! Defines the data that IKE stores for each child SA (the keys of a tunnel).

use std::time::{Duration, Instant};

use crate::ike::proposal::EspProposal;

/// A child SA.
#[derive(Clone, Debug)]
pub(super) struct Tunnel {
    /// The SPI of packets that this side receives.
    pub(super) inbound: u32,
    /// The SPI of packets that the peer receives.
    pub(super) outbound: u32,
    pub(super) proposal: EspProposal,
    pub(super) state: TunnelState,
    /// When this side replaces it.
    pub(super) rekey_at: Instant,
    /// When it must no longer be used.
    pub(super) expires_at: Instant,
}

/// What happens to a child SA next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TunnelState {
    Active,
    /// Another one replaces it. The side that made that one deletes this one, and this side does so
    /// after a time.
    Replaced {
        until: Instant,
    },
    /// This side has requested its deletion.
    Deleting,
}

impl Tunnel {
    /// When something is to be done.
    pub(super) fn next_time(&self) -> Option<Instant> {
        match self.state {
            TunnelState::Active => Some(self.rekey_at.min(self.expires_at)),
            TunnelState::Replaced { until } => Some(until),
            TunnelState::Deleting => None,
        }
    }
}

/// When keys that are used for `lifetime` are replaced: after nine tenths of it, and up to a tenth
/// earlier, so that both sides seldom do so at once (RFC 7296 section 2.8).
pub(super) fn rekey_delay(lifetime: Duration, random: u8) -> Duration {
    let early = lifetime / 10 * u32::from(random) / 256;
    lifetime / 10 * 9 - early
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_replaced_before_they_expire() {
        let lifetime = Duration::from_secs(1000);
        assert_eq!(rekey_delay(lifetime, 0), Duration::from_secs(900));
        assert!(rekey_delay(lifetime, 255) > Duration::from_secs(800));
    }
}
