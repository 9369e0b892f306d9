//! Defines the settings of a captured host: `[host]` of a policy.

use serde::{Deserialize, Serialize};

/// `[host]`: what applies when the agent captures the flows of all programs of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSettings {
    /// What happens to flows that programs open and no rule matches.
    pub unmatched: Unmatched,
    /// The two bits of packet marks that tacit uses.
    pub mark: u32,
}

impl HostSettings {
    /// The mark that applies unless the policy sets one: bits that neither Docker, kube-proxy nor
    /// Tailscale uses.
    pub const MARK_DEFAULT: u32 = 0x3000_0000;
}

/// What happens to flows that no rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unmatched {
    /// They go to their destinations, and never reach the agent.
    Permit,
    /// The kernel refuses them.
    Deny,
}

impl Unmatched {
    /// The word the policy uses for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Deny => "deny",
        }
    }
}
