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
    Prerouting,
    Postrouting,
}

impl Chain {
    /// Those that others lead to come first.
    pub(super) const ALL: [Self; 6] = [
        Self::Capture,
        Self::Refuse,
        Self::Prohibit,
        Self::Output,
        Self::Prerouting,
        Self::Postrouting,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::Refuse => "refuse",
            Self::Prohibit => "prohibit",
            Self::Output => "output",
            Self::Prerouting => "prerouting",
            Self::Postrouting => "postrouting",
        }
    }

    /// Its type and the number of its hook; `None`: other chains lead there.
    pub(super) fn hook(self) -> Option<(&'static str, u32)> {
        match self {
            Self::Capture | Self::Refuse | Self::Prohibit => None,
            Self::Prerouting => Some(("filter", 0)),
            Self::Output => Some(("route", 3)),
            Self::Postrouting => Some(("filter", 4)),
        }
    }
}
