//! Defines the settings of a captured host: `[host]` of a policy.

use serde::{Deserialize, Serialize};

use super::diagnostic::SourcePosition;

/// The settings in `[host]`, which apply when the agent captures the flows of all programs of its
/// host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSettings {
    /// What happens to flows of programs that match no rule.
    pub unmatched: Unmatched,
    /// The two bits of packet marks that tacit uses.
    pub mark: u32,
    /// Where the table begins in the policy text.
    pub position: SourcePosition,
}

impl HostSettings {
    /// The default mark: two bits that Docker, kube-proxy and Tailscale do not use.
    pub const MARK_DEFAULT: u32 = 0x3000_0000;
}

/// What happens to flows that no rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unmatched {
    /// They pass to their destinations without the agent.
    Permit,
    /// The kernel refuses them.
    Deny,
}

impl Unmatched {
    /// Returns the word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Deny => "deny",
        }
    }
}
