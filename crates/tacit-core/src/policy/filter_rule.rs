//! Defines filter rules. A filter rule permits or denies single packets. With `tacit agent --host`,
//! filter rules apply to the packets of the host. With `tacit run`, filter rules apply to the
//! packets in the IPsec tunnels of the program.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::diagnostic::SourcePosition;
use super::selector::AddressSelector;
use super::when::When;

/// One filter rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterRule {
    /// The name, which is unique among all rules.
    pub name: String,
    /// The number of rules for flows that come before it.
    pub flows_before: usize,
    /// What happens to its packets.
    pub verdict: FilterVerdict,
    /// Which packets it matches.
    pub selectors: PacketSelectors,
    /// Which of its packets are logged.
    pub log: FilterLog,
    /// The position of the rule in the policy text.
    pub position: SourcePosition,
}

impl FilterRule {
    /// Whether both are equal, apart from their positions.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        Self { flows_before: 0, position: other.position, ..self.clone() }
            == Self { flows_before: 0, ..other.clone() }
    }

    /// Whether its packets are logged.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        match (self.log, self.verdict) {
            (FilterLog::All, _)
            | (FilterLog::Permit, FilterVerdict::Permit)
            | (FilterLog::Deny, FilterVerdict::Deny(_)) => true,
            (FilterLog::None, _)
            | (FilterLog::Permit, FilterVerdict::Deny(_))
            | (FilterLog::Deny, FilterVerdict::Permit) => false,
        }
    }
}

/// What a filter rule does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilterVerdict {
    /// The packet passes; no later rule applies.
    Permit,
    /// The packet is discarded.
    Deny(Discard),
}

impl FilterVerdict {
    /// The word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Deny(_) => "deny",
        }
    }
}

/// `discard`: the answer to a packet that is denied.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Discard {
    /// None.
    #[default]
    Silent,
    /// ICMP "administratively prohibited".
    Icmp,
    /// For TCP a reset, otherwise ICMP "port unreachable".
    Reset,
}

impl Discard {
    /// The words of the policy.
    pub const WORDS: [(&'static str, Self); 3] =
        [("silent", Self::Silent), ("icmp", Self::Icmp), ("reset", Self::Reset)];

    /// The word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Icmp => "icmp",
            Self::Reset => "reset",
        }
    }
}

/// `log` of a filter rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FilterLog {
    /// No packet is logged.
    #[default]
    None,
    /// Packets are logged if the rule permits.
    Permit,
    /// Packets are logged if the rule denies.
    Deny,
    /// Packets are logged.
    All,
}

impl FilterLog {
    /// The words of the policy.
    pub const WORDS: [(&'static str, Self); 4] =
        [("none", Self::None), ("permit", Self::Permit), ("deny", Self::Deny), ("all", Self::All)];

    /// The word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Permit => "permit",
            Self::Deny => "deny",
            Self::All => "all",
        }
    }
}

/// The conditions of a filter rule; all must hold. An empty list is no condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketSelectors {
    /// The direction of the packet.
    pub direction: PacketDirection,
    /// The numbers of transport protocols.
    pub protocols: Vec<u8>,
    /// The addresses of the near end.
    pub local: Vec<AddressSelector>,
    /// The ports of the near end.
    pub local_ports: Vec<RangeInclusive<u16>>,
    /// The addresses of the far end.
    pub remote: Vec<AddressSelector>,
    /// The ports of the far end.
    pub remote_ports: Vec<RangeInclusive<u16>>,
    /// The types of ICMP or ICMPv6 messages.
    pub icmp_types: Vec<u8>,
    /// The codes of ICMP or ICMPv6 messages.
    pub icmp_codes: Vec<u8>,
    /// Which end may open the TCP connection; `None`: both.
    pub opened_by: Option<Opener>,
    /// Whether the rule is for fragments, before the kernel reassembles them.
    pub fragments: FragmentMatch,
    /// The names of interfaces that receive the packet, or send it.
    pub interfaces: Vec<String>,
    /// Whether the packet is for this host, or for another one.
    pub routing: Routing,
    /// The times at which the rule applies; `None`: always.
    pub when: Option<When>,
    /// The names of `[ike.NAME]` and `[sa.NAME]`: the rule is for the packets inside the tunnels
    /// with these peers. Empty: it is for the packets of a captured host.
    pub tunnels: Vec<String>,
}

/// `direction` of a filter rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketDirection {
    /// From the remote end to the local end.
    Inbound,
    /// From the local end to the remote end.
    Outbound,
    /// Both.
    #[default]
    Both,
}

impl PacketDirection {
    /// The words of the policy.
    pub const WORDS: [(&'static str, Self); 3] =
        [("inbound", Self::Inbound), ("outbound", Self::Outbound), ("both", Self::Both)];

    /// The word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
            Self::Both => "both",
        }
    }
}

/// Whether a filter rule is for fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FragmentMatch {
    /// For whole packets.
    #[default]
    Whole,
    /// For fragments as they arrive.
    Fragments,
}

/// The end that may open a TCP connection. A segment that opens a connection from the other end
/// does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    /// The local end.
    Local,
    /// The remote end.
    Remote,
}

impl Opener {
    /// The words of the policy.
    pub const WORDS: [(&'static str, Self); 2] = [("local", Self::Local), ("remote", Self::Remote)];

    /// The word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

/// `routing`: which packets a filter rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// Packets to and from this host.
    #[default]
    Local,
    /// Packets that this host forwards.
    Routed,
    /// Both.
    Either,
}

impl Routing {
    /// The words of the policy.
    pub const WORDS: [(&'static str, Self); 3] =
        [("local", Self::Local), ("routed", Self::Routed), ("either", Self::Either)];

    /// The word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Routed => "routed",
            Self::Either => "either",
        }
    }
}
