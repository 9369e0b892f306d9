//! Computes the smallest range of addresses and ports that contains all destinations in an nftables
//! map.
//!
//! The kernel compares each packet with this range first. Most packets are outside of the range,
//! and need no expensive look-up in the map.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::super::expression::Expression;
use super::super::flow_expression::FlowExpression;
use super::super::host_expression::HostExpression;
use super::super::primitive::NftFamily;
use super::super::sets::Element;
use super::elements::map_of;
use super::names::MAPS;
use super::{HostTable, PacketVerdict};
use crate::netlink::protocol::IpProtocol;

/// A range of addresses of one family, and a range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    first: IpAddr,
    last: IpAddr,
    first_port: u16,
    last_port: u16,
}

impl Bounds {
    /// Those of elements of one family; `None`: there are none.
    pub(super) fn of<'e>(elements: impl Iterator<Item = &'e Element>) -> Option<Self> {
        let each = elements.map(|to| Self {
            first: to.first,
            last: to.last,
            first_port: to.first_port,
            last_port: to.last_port,
        });
        each.reduce(Self::with)
    }

    /// Those of all destinations of one of [`MAPS`] that the table does not simply let pass.
    pub(super) fn of_map(table: &HostTable<'_>, map: &str) -> Option<Self> {
        let outbound = table.sections.iter().flat_map(|section| section.outbound);
        let decided = outbound.filter(|one| one.verdict != PacketVerdict::Pass);
        let of_map = Self::of(decided.map(|one| &one.to).filter(|to| map_of(to) == map));
        let [tcp4, tcp6, udp4, _] = MAPS;
        let protocol = if [tcp4, tcp6].contains(&map) { IpProtocol::Tcp } else { IpProtocol::Udp };
        let family = if [tcp4, udp4].contains(&map) { NftFamily::V4 } else { NftFamily::V6 };
        let named = table.names.iter().flat_map(|names| names.ports);
        let named = named.filter(|one| one.protocol == protocol);
        let named = named.map(|one| Self::of_ports(family, one.first_port, one.last_port));
        let queries = table.names.map(|_| Self::of_ports(family, DNS_PORT, DNS_PORT));
        of_map.into_iter().chain(named).chain(queries).reduce(Self::with)
    }

    /// Those of all destinations of one of [`MAPS`] whose flows are counted, if some of them are
    /// outside of these bounds; `None`: there are none.
    pub(super) fn of_counted(
        table: &HostTable<'_>,
        map: &str,
        known: Option<Self>,
    ) -> Option<Self> {
        let counted = table.sections.iter().flat_map(|section| section.counted_in(map));
        let counted = Self::of(counted.map(|one| &one.to))?;
        let is_known = known.is_some_and(|known| known.with(counted) == known);
        (!is_known).then_some(counted)
    }

    fn of_ports(family: NftFamily, first_port: u16, last_port: u16) -> Self {
        let (first, last): (IpAddr, IpAddr) = if family == NftFamily::V4 {
            (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::BROADCAST.into())
        } else {
            (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::from(u128::MAX).into())
        };
        Self { first, last, first_port, last_port }
    }

    fn with(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
            first_port: self.first_port.min(other.first_port),
            last_port: self.last_port.max(other.last_port),
        }
    }

    /// Whether an address of the same family and a port are in the range.
    pub(super) fn contain(&self, address: IpAddr, port: u16) -> bool {
        (self.first..=self.last).contains(&address)
            && (self.first_port..=self.last_port).contains(&port)
    }

    /// The destination is in the range.
    pub(super) fn to(&self) -> [Expression; 2] {
        let Self { first, last, first_port, last_port } = *self;
        [
            HostExpression::ToAddresses { first, last },
            HostExpression::ToPorts { first: first_port, last: last_port },
        ]
        .map(Expression::Host)
    }

    /// The source is in the range.
    pub(super) fn from(&self) -> [Expression; 2] {
        let Self { first, last, first_port, last_port } = *self;
        [
            FlowExpression::FromAddresses { first, last },
            FlowExpression::FromPorts { first: first_port, last: last_port },
        ]
        .map(|one| Expression::Host(HostExpression::Flow(one)))
    }

    /// The destination of an IPv4 packet has the bits that all destinations have in common. The
    /// kernel evaluates this without calling a function.
    pub(super) fn near_v4(&self) -> Vec<Expression> {
        let (IpAddr::V4(first), IpAddr::V4(last)) = (self.first, self.last) else {
            return self.to().to_vec();
        };
        let mut conditions = Vec::new();
        let first = first.to_bits();
        let last = last.to_bits();
        // Shifting by all bits would overflow.
        let mask = u32::MAX.checked_shl(32 - (first ^ last).leading_zeros()).unwrap_or_default();
        if mask != 0 {
            conditions.push(FlowExpression::ToPrefixV4 { mask, value: first & mask });
        }
        conditions.extend(near_ports(self.first_port, self.last_port));
        let conditions = conditions.into_iter().map(HostExpression::Flow);
        conditions.map(Expression::Host).collect()
    }
}

/// The destination port has the bits that these ports and all between them have in common; `None`:
/// there are none.
pub(super) fn near_ports(first: u16, last: u16) -> Option<FlowExpression> {
    let mask = u16::MAX.checked_shl(16 - (first ^ last).leading_zeros()).unwrap_or_default();
    (mask != 0).then_some(FlowExpression::ToPortPrefix { mask, value: first & mask })
}

const DNS_PORT: u16 = 53;

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(first: [u8; 4], last: [u8; 4], first_port: u16, last_port: u16) -> Bounds {
        Bounds { first: first.into(), last: last.into(), first_port, last_port }
    }

    #[test]
    fn common_bits_contain_the_whole_range() {
        for (bounds, wanted) in [
            (bounds([10, 1, 0, 0], [10, 4, 255, 255], 1000, 2000), Some((0xfff8_0000, 0xf800))),
            (bounds([10, 0, 0, 1], [10, 0, 0, 1], 443, 443), Some((u32::MAX, u16::MAX))),
            (bounds([0; 4], [255; 4], 0, u16::MAX), None),
        ] {
            let found: Vec<_> = bounds
                .near_v4()
                .into_iter()
                .map(|one| match one {
                    Expression::Host(HostExpression::Flow(FlowExpression::ToPrefixV4 {
                        mask,
                        value,
                    })) => {
                        let IpAddr::V4(last) = bounds.last else { panic!("{bounds:?}") };
                        assert_eq!(last.to_bits() & mask, value);
                        mask
                    }
                    Expression::Host(HostExpression::Flow(FlowExpression::ToPortPrefix {
                        mask,
                        value,
                    })) => {
                        assert_eq!(bounds.last_port & mask, value);
                        mask.into()
                    }
                    other => panic!("{other:?}"),
                })
                .collect();
            let wanted = wanted.map(|(address, port): (u32, u16)| vec![address, port.into()]);
            assert_eq!(found, wanted.unwrap_or_default(), "{bounds:?}");
        }
    }
}
