//! What the parts of the table are called.

/// The maps of destinations, by protocol and IP version.
pub(super) const MAPS: [&str; 4] = ["tcp4", "tcp6", "udp4", "udp6"];
/// The sets of captured ports, by IP version.
pub(super) const INBOUND: [&str; 2] = ["in4", "in6"];

/// A chain of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chain {
    Capture,
    Refuse,
    Prohibit,
    Output,
    Rewritten,
    Prerouting,
    Postrouting,
}

impl Chain {
    /// Those that others lead to come first.
    pub(super) const ALL: [Self; 7] = [
        Self::Capture,
        Self::Refuse,
        Self::Prohibit,
        Self::Output,
        Self::Rewritten,
        Self::Prerouting,
        Self::Postrouting,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::Refuse => "refuse",
            Self::Prohibit => "prohibit",
            Self::Output => "output",
            Self::Rewritten => "rewritten",
            Self::Prerouting => "prerouting",
            Self::Postrouting => "postrouting",
        }
    }

    /// Where packets enter it; `None`: other chains lead there.
    pub(super) fn hook(self) -> Option<Hook> {
        let (kind, number, priority) = match self {
            Self::Capture | Self::Refuse | Self::Prohibit => return None,
            Self::Prerouting => ("filter", 0, PRIORITY_MANGLE),
            Self::Output => ("route", 3, PRIORITY_MANGLE),
            Self::Rewritten => ("filter", 3, PRIORITY_PAST_NAT),
            Self::Postrouting => ("filter", 4, PRIORITY_MANGLE),
        };
        Some(Hook { kind, number, priority })
    }
}

/// Where packets enter a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hook {
    pub(super) kind: &'static str,
    pub(super) number: u32,
    pub(super) priority: i32,
}

const PRIORITY_MANGLE: i32 = -150;
/// Behind the rewriting of destinations, which is at -100, and behind IPVS.
const PRIORITY_PAST_NAT: i32 = -90;
