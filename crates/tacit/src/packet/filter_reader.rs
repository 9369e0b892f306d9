//! Defines [`FilterReader`]: the copy of the filter rules that one direction of a tunnel uses.
//!
//! If a packet is fragmented, the reader compares only the first fragment with the rules. If this
//! fragment is denied, the receiver cannot reassemble the packet.

use std::sync::Arc;

use tacit_core::policy::filter::{
    FilterEffect, FilterPacket, FilterVerdict, PacketPath, TransportHeader, WindowStates,
};
use tacit_ipsec::esp::DropReason;
use tacit_ipsec::packet::IpPacket;

use super::direction::Direction;
use super::filter::{FilterRules, TunnelFilter};
use super::tunnel::opens_connection;
use crate::clock;

/// What the rules say about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilterResult {
    /// No rule matches.
    Unmatched,
    /// The rule at this position permits it.
    Permitted(u32),
    /// The rule at this position denies it.
    Denied(u32),
}

/// The rules as one direction of a tunnel uses them.
#[derive(Debug)]
pub(super) struct FilterReader {
    shared: Arc<TunnelFilter>,
    generation: u64,
    rules: Arc<FilterRules>,
    windows: WindowStates,
    /// The second of `windows`.
    unix_s: i64,
}

impl FilterReader {
    pub(super) fn new(shared: Arc<TunnelFilter>) -> Self {
        let (rules, generation) = shared.read();
        let unix_s = clock::now_unix_s();
        let windows = rules.classifier.windows_at(unix_s);
        Self { shared, generation, rules, windows, unix_s }
    }

    /// Whether there is no rule.
    pub(super) fn is_empty(&self) -> bool {
        self.rules.classifier.is_empty()
    }

    /// Takes over other rules, and windows that have opened or closed. Returns whether results may
    /// be others now.
    pub(super) fn follow(&mut self) -> bool {
        self.follow_at(clock::now_unix_s)
    }

    fn follow_at(&mut self, now_unix_s: impl FnOnce() -> i64) -> bool {
        if self.shared.has_changed(self.generation) {
            *self = Self::new(Arc::clone(&self.shared));
            return true;
        }
        if !self.rules.classifier.has_windows() {
            return false;
        }
        let unix_s = now_unix_s();
        if unix_s == self.unix_s {
            return false;
        }
        self.unix_s = unix_s;
        let windows = self.rules.classifier.windows_at(unix_s);
        std::mem::replace(&mut self.windows, windows) != self.windows
    }

    /// Compares a packet with the rules.
    pub(super) fn compare(
        &self,
        direction: Direction,
        packet: &IpPacket,
        bytes: &[u8],
    ) -> FilterResult {
        if self.is_empty() || is_later_fragment(packet) {
            return FilterResult::Unmatched;
        }
        let packet = filter_packet(direction, packet, bytes);
        let found = self.rules.classifier.decide(&packet, &self.windows);
        match found.map(|element| (element.outcome, element.rule)) {
            Some((FilterEffect::Decided { verdict: FilterVerdict::Permit, .. }, Some(rule))) => {
                FilterResult::Permitted(rule)
            }
            Some((FilterEffect::Decided { .. }, Some(rule))) => FilterResult::Denied(rule),
            _ => FilterResult::Unmatched,
        }
    }

    /// Counts a packet for the rule that has decided about it.
    ///
    /// # Errors
    /// The rule denies it.
    pub(super) fn count(&self, result: FilterResult) -> Result<(), DropReason> {
        let (rule, decision) = match result {
            FilterResult::Unmatched => return Ok(()),
            FilterResult::Permitted(rule) => (rule, Ok(())),
            FilterResult::Denied(rule) => (rule, Err(DropReason::Filter)),
        };
        let counter = usize::try_from(rule).ok().and_then(|rule| self.rules.counters.get(rule));
        if let Some(counter) = counter {
            counter.count(1);
        }
        decision
    }
}

/// Whether an earlier fragment decides. Tunnels permit only protocols whose first fragment has
/// ports, or a type and a code.
fn is_later_fragment(packet: &IpPacket) -> bool {
    packet.is_fragment && packet.ports.is_none()
}

/// A packet as filter rules see it. The name of the peer is not compared again.
fn filter_packet(direction: Direction, packet: &IpPacket, bytes: &[u8]) -> FilterPacket {
    let IpPacket { source, destination, protocol, ports, .. } = *packet;
    FilterPacket {
        path: match direction {
            Direction::Outbound => PacketPath::ToTunnel(String::new()),
            Direction::Inbound => PacketPath::FromTunnel(String::new()),
        },
        source,
        destination,
        protocol,
        header: match (ports, protocol) {
            (None, _) => TransportHeader::Other,
            (Some(_), ICMP | ICMPV6) => {
                let [kind, code] = *bytes
                    .get(packet.transport_at..)
                    .and_then(<[u8]>::first_chunk)
                    .unwrap_or(&[0; 2]);
                TransportHeader::Icmp { kind, code }
            }
            (Some((source, destination)), _) => {
                let opens = opens_connection(packet, bytes);
                TransportHeader::Ports { source, destination, opens }
            }
        },
        is_fragment: false,
    }
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

#[cfg(test)]
mod tests {
    use tacit_core::packet::datagram;

    use super::*;
    use crate::packet::filter::testing::Filtered;

    fn query(port: u16) -> (IpPacket, Vec<u8>) {
        let [from, to] = ["10.1.0.1:4000".to_owned(), format!("10.2.0.1:{port}")];
        let bytes = datagram(from.parse().unwrap(), to.parse().unwrap(), b"x").unwrap();
        (IpPacket::parse(&bytes).unwrap(), bytes)
    }

    fn compare(reader: &FilterReader, port: u16) -> FilterResult {
        let (packet, bytes) = query(port);
        reader.compare(Direction::Outbound, &packet, &bytes)
    }

    const PERMIT_DNS: &str = "filter = \"permit\"\nprotocol = \"udp\"\nremote-ports = 53";
    const DENY: &str = "filter = \"deny\"";

    #[test]
    fn a_tunnel_gets_the_rules_of_a_reload_and_counts_by_rule() {
        let mut filtered = Filtered::new(&[PERMIT_DNS, DENY]);
        let mut reader = FilterReader::new(filtered.filters.of("branch"));
        assert_eq!(compare(&reader, 53), FilterResult::Permitted(0));
        assert_eq!(compare(&reader, 54), FilterResult::Denied(1));
        assert!(!reader.follow());
        assert_eq!(reader.count(FilterResult::Permitted(0)), Ok(()));
        assert_eq!(reader.count(FilterResult::Denied(1)), Err(DropReason::Filter));
        let counted: Vec<_> = filtered.counters.iter().map(|one| one.packets()).collect();
        assert_eq!(counted, [1, 1]);
        filtered.install(&[DENY]);
        assert!(reader.follow());
        assert_eq!(compare(&reader, 53), FilterResult::Denied(0));
        filtered.install(&[] as &[&str]);
        assert!(reader.follow() && reader.is_empty());
        assert_eq!(compare(&reader, 53), FilterResult::Unmatched);
    }

    #[test]
    fn the_first_fragment_of_a_packet_decides() {
        let mut filtered = Filtered::new(&[DENY]);
        let reader = FilterReader::new(filtered.filters.of("branch"));
        let (packet, bytes) = query(53);
        let first = IpPacket { is_fragment: true, ..packet };
        let later = IpPacket { ports: None, ..first };
        let result = |packet| reader.compare(Direction::Inbound, &packet, &bytes);
        assert_eq!(result(first), FilterResult::Denied(0));
        assert_eq!(result(later), FilterResult::Unmatched);
    }

    /// The clock is set from 02:00 to 03:00 and from 03:00 to 02:00, and by hand.
    #[test]
    fn windows_open_and_close_as_the_clock_says_also_if_it_is_set() {
        let when = "when = { hours = \"01:30-02:30\", zone = \"Europe/Berlin\" }";
        let mut filtered = Filtered::new(&[format!("{PERMIT_DNS}\n{when}"), DENY.to_owned()]);
        let mut reader = FilterReader::new(filtered.filters.of("branch"));
        let mut applies = None;
        for (time, is_open) in [
            ("2026-03-29T00:29:59Z", false),
            ("2026-03-29T00:30:00Z", true),
            ("2026-03-29T00:59:59Z", true),
            ("2026-03-29T01:00:00Z", false),
            ("2026-10-25T00:29:59Z", true),
            ("2026-10-25T00:30:00Z", false),
            ("2026-10-25T01:00:00Z", true),
            ("2026-10-25T01:30:00Z", false),
            // Back to a time at which it was open.
            ("2026-03-29T00:45:00Z", true),
            ("2027-01-01T12:00:00Z", false),
        ] {
            let at = time.parse::<jiff::Timestamp>().unwrap().as_second();
            let has_changed = reader.follow_at(|| at);
            if let Some(before) = applies {
                assert_eq!(has_changed, before != is_open, "{time}");
            }
            let wanted = if is_open { FilterResult::Permitted(0) } else { FilterResult::Denied(1) };
            assert_eq!(compare(&reader, 53), wanted, "{time}");
            applies = Some(is_open);
        }
    }
}
