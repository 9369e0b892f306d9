//! Evaluates filter rules. A filter rule permits or denies single packets. With `tacit agent
//! --host`, these are the packets of the host. With `tacit run`, these are the packets in the IPsec
//! tunnels of the program.
//!
//! The policy contains filter rules and rules for flows (`permit`, `deny`, `tls`) in one list. The
//! first policy rule that matches a packet decides. If that rule is for flows, or if no policy rule
//! matches, the packet continues to the nftables rules for flows.
//!
//! `scan` defines the meaning of the rules: it compares a packet with one rule after another.
//! [`FilterPlan`] gives the same result, and needs fewer lookups. The plan converts filter rules to
//! elements of nftables sets and maps, and collects the elements in groups. All elements of a group
//! restrict the same fields of a packet, so one lookup searches the whole group.
//!
//! ```text
//! FilterRule ──scan──> the first rule that matches, and why earlier rules do not match
//!            ──plan──> groups of elements ──> nftables sets and maps, for packets of the host
//!                                        ├──> PacketClassifier: hash tables, for packets in
//!                                        │    IPsec tunnels
//!                                        └──> decide: compares all elements, to explain the result
//! ```

mod capture_file;
mod classifier;
mod packet;
mod plan;
mod scan;
#[cfg(test)]
mod tests;

pub use capture_file::{CaptureFileError, PACKETS_MAX, captured_packets};
pub use classifier::{PacketClassifier, WindowStates};
pub use packet::{FilterPacket, PacketPath, PacketTextError, TransportHeader};
pub(super) use packet::{is_interface_name, protocol_names, protocol_number};
pub use plan::{
    FILTER_ELEMENTS_MAX, FILTER_LOGGED_MAX, FILTER_LOOKUPS_MAX, FILTER_SCHEDULES_MAX, FilterEffect,
    FilterElement, FilterField, FilterGate, FilterGroup, FilterLimit, FilterPlan, FilterSchedule,
    GroupKey, LoggedRule, PacketClasses, PacketViews,
};
pub(super) use plan::{FlowArea, PlanScope};
pub use scan::{FilterDecision, FilterMismatch, filter_scan};

pub use super::filter_rule::{
    Discard, FilterLog, FilterRule, FilterVerdict, FragmentMatch, Opener, PacketDirection,
    PacketSelectors, Routing,
};

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;
/// The transport protocols whose headers begin with two ports: TCP, UDP, DCCP, SCTP and UDP-Lite.
pub(super) const WITH_PORTS: [u8; 5] = [TCP, UDP, 33, 132, 136];
