//! Defines the names of the maps, sets and chains in the nftables table for `tacit agent --host`.

/// The maps of destinations, by protocol and IP version.
pub(super) const MAPS: [&str; 4] = ["tcp4", "tcp6", "udp4", "udp6"];
/// The sets of captured ports, by IP version.
pub(super) const INBOUND: [&str; 2] = ["in4", "in6"];
/// The sets of addresses with names, by IP version.
pub(super) const NAMED: [&str; 2] = ["named4", "named6"];

/// The sets of flows that programs have opened and that go to the agent, in the order of [`MAPS`].
pub(super) const KEPT: [&str; 4] = ["kept_tcp4", "kept_tcp6", "kept_udp4", "kept_udp6"];
/// The sets of flows that clients have opened, in the order of [`MAPS`].
pub(super) const CLIENTS: [&str; 4] = ["client_tcp4", "client_tcp6", "client_udp4", "client_udp6"];

/// How a table finds out who opened a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Openers {
    /// By connection tracking.
    Tracked,
    /// By the sets [`KEPT`] and [`CLIENTS`].
    InSets,
}

/// A chain of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chain {
    Capture,
    Refuse,
    Prohibit,
    Forwarding,
    Forwarded,
    Marked,
    Headers,
    Noted,
    Output,
    Rewritten,
    Routed,
    Returned,
    Clients,
    Closed,
    Input,
    Prerouting,
    Postrouting,
    KeepV4,
    KeepV6,
    ServeV4,
    ServeV6,
    Filling,
    Candidates,
    Unusual,
    Answered,
    Looped,
    Strays,
    FilterDrop,
    FilterIcmp,
    FilterReset,
    FilterRoutedDrop,
    FilterRoutedIcmp,
    FilterRoutedReset,
    FilterIn,
    FilterOut,
    FilterForward,
    FilterFragments,
}

impl Chain {
    /// All chains. A chain to which others refer comes before them.
    pub(super) const ALL: [Self; 37] = [
        Self::FilterDrop,
        Self::FilterIcmp,
        Self::FilterReset,
        Self::FilterRoutedDrop,
        Self::FilterRoutedIcmp,
        Self::FilterRoutedReset,
        Self::FilterIn,
        Self::FilterOut,
        Self::FilterForward,
        Self::FilterFragments,
        Self::KeepV4,
        Self::KeepV6,
        Self::ServeV4,
        Self::ServeV6,
        Self::Filling,
        Self::Capture,
        Self::Refuse,
        Self::Prohibit,
        Self::Forwarding,
        Self::Forwarded,
        Self::Marked,
        Self::Headers,
        Self::Noted,
        Self::Output,
        Self::Rewritten,
        Self::Routed,
        Self::Returned,
        Self::Clients,
        Self::Closed,
        Self::Input,
        Self::Candidates,
        Self::Unusual,
        Self::Answered,
        Self::Looped,
        Self::Prerouting,
        Self::Postrouting,
        Self::Strays,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::Refuse => "refuse",
            Self::Prohibit => "prohibit",
            Self::Forwarding => "forwarding",
            Self::Forwarded => "forwarded",
            Self::Marked => "marked",
            Self::Headers => "headers",
            Self::Noted => "noted",
            Self::Output => "output",
            Self::Rewritten => "rewritten",
            Self::Routed => "routed",
            Self::Returned => "returned",
            Self::Clients => "clients",
            Self::Closed => "closed",
            Self::Input => "input",
            Self::Prerouting => "prerouting",
            Self::Postrouting => "postrouting",
            Self::KeepV4 => "keep4",
            Self::KeepV6 => "keep6",
            Self::ServeV4 => "serve4",
            Self::ServeV6 => "serve6",
            Self::Filling => "filling",
            Self::Candidates => "candidates",
            Self::Unusual => "unusual",
            Self::Answered => "answered",
            Self::Looped => "looped",
            Self::Strays => "strays",
            Self::FilterDrop => "filter_drop",
            Self::FilterIcmp => "filter_icmp",
            Self::FilterReset => "filter_reset",
            Self::FilterRoutedDrop => "filter_routed_drop",
            Self::FilterRoutedIcmp => "filter_routed_icmp",
            Self::FilterRoutedReset => "filter_routed_reset",
            Self::FilterIn => "filter_in",
            Self::FilterOut => "filter_out",
            Self::FilterForward => "filter_forward",
            Self::FilterFragments => "filter_fragments",
        }
    }

    /// Whether it is for containers only. Each hook costs time for every packet.
    pub(super) fn is_for_containers(self) -> bool {
        matches!(self, Self::Forwarding | Self::Forwarded | Self::Routed)
    }

    /// Whether it is for filters of single packets.
    pub(super) fn is_for_filters(self) -> bool {
        self.name().starts_with("filter_")
    }

    /// The hook at which packets enter the chain; `None` if they enter it from other chains.
    pub(super) fn hook(self) -> Option<Hook> {
        let (kind, number, priority) = match self {
            Self::Capture | Self::Refuse | Self::Prohibit | Self::Forwarding => return None,
            Self::Marked | Self::Headers | Self::Noted => return None,
            Self::Returned | Self::Clients | Self::Closed => return None,
            Self::KeepV4 | Self::KeepV6 | Self::ServeV4 | Self::ServeV6 => return None,
            Self::Filling | Self::Candidates | Self::Unusual => return None,
            Self::Answered | Self::Looped => return None,
            Self::FilterDrop | Self::FilterIcmp | Self::FilterReset => return None,
            Self::FilterRoutedDrop | Self::FilterRoutedIcmp => return None,
            Self::FilterRoutedReset | Self::FilterIn | Self::FilterOut => return None,
            Self::Input => ("filter", 1, PRIORITY_MANGLE),
            Self::FilterForward => ("filter", 2, PRIORITY_MANGLE),
            Self::FilterFragments => ("filter", 0, PRIORITY_BEFORE_FRAGMENTS),
            Self::Strays => ("route", 3, PRIORITY_MANGLE + 1),
            Self::Forwarded => ("filter", 0, PRIORITY_MANGLE - 1),
            Self::Prerouting => ("filter", 0, PRIORITY_MANGLE),
            Self::Output => ("route", 3, PRIORITY_MANGLE),
            Self::Rewritten => ("filter", 3, PRIORITY_PAST_NAT),
            Self::Routed => ("filter", 2, PRIORITY_PAST_NAT),
            Self::Postrouting => ("filter", 4, PRIORITY_MANGLE),
        };
        Some(Hook { kind, number, priority })
    }
}

/// A hook of the kernel, at which packets enter a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hook {
    pub(super) kind: &'static str,
    pub(super) number: u32,
    pub(super) priority: i32,
}

const PRIORITY_MANGLE: i32 = -150;
/// Before the kernel reassembles fragments (priority -400).
const PRIORITY_BEFORE_FRAGMENTS: i32 = -450;
/// After NAT of destinations (priority -100), and after IPVS.
const PRIORITY_PAST_NAT: i32 = -90;
