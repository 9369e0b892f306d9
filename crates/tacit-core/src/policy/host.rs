//! Defines the table `[host]` of a policy: the settings for capturing the traffic of a whole host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::diagnostic::SourcePosition;

/// The settings in `[host]`, which apply when the agent captures the flows of all programs of its
/// host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSettings {
    /// What happens to flows of programs that match no rule.
    pub unmatched: Unmatched,
    /// The two bits of packet marks that tacit uses.
    pub mark: u32,
    /// The bit of packet marks that rules with `unit` need; it is not one of `mark`.
    pub unit_mark: u32,
    /// Where the table begins in the policy text.
    pub position: SourcePosition,
    /// Whether the rules are applied.
    pub mode: HostMode,
    /// Names of interfaces whose flows are captured too: bridges with containers behind them.
    pub forwarded: Vec<String>,
    /// `classes`: the classes of interfaces, by name.
    pub classes: BTreeMap<String, u8>,
}

impl HostSettings {
    /// What happens to flows of programs that match no rule; in audit mode they pass.
    #[must_use]
    pub fn unmatched_in_effect(&self) -> Unmatched {
        match self.mode {
            HostMode::Enforce => self.unmatched,
            HostMode::Audit => Unmatched::Permit,
        }
    }

    /// The default mark: two bits that Docker, kube-proxy and Tailscale do not use.
    pub const MARK_DEFAULT: u32 = 0x3000_0000;

    /// The default bit for rules with `unit`: the first of these that is not in the mark.
    pub const UNIT_MARK_DEFAULTS: [u32; 3] = [0x4000_0000, 0x0800_0000, 0x0400_0000];
}

/// The most interfaces in `forwarded`.
pub const FORWARDED_MAX: usize = 16;

/// Whether the rules of a host are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostMode {
    /// They are.
    #[default]
    Enforce,
    /// Flows pass as they would without tacit; what the rules would do is reported.
    Audit,
}

impl HostMode {
    /// The word the policy uses for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Audit => "audit",
        }
    }
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
