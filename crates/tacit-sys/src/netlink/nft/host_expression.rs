//! Encodes nftables expressions that check the fwmark, the conntrack entry, the sender or the
//! interface of a packet. Only the nftables rules of `tacit agent --host` use these expressions.

use std::net::IpAddr;
use std::time::Duration;

use super::agent::INBOUND_PORT;
use super::filter_expression::FilterExpression;
use super::flow_expression::FlowExpression;
use super::primitive::{
    ACCEPT, EQUAL, META_L4PROTO, META_MARK, NETWORK, NOT_EQUAL, NftFamily, PLAIN_V4, PacketEnd,
    REGISTER_1, REGISTER_32_00, REGISTER_VERDICT, Redirect, SOCKET_TRANSPARENT, TRANSPORT, compare,
    expression, is_in_addresses, is_in_ports, jump, keep, load, load_end, look_up, mask, meta,
    redirect_to, socket_that_takes_it,
};
use crate::netlink::message::NetlinkRequest;
use crate::netlink::route::LO;

/// How long an address is captured after the last packet to it. It is not shorter than the time of
/// an element that is added: a packet would shorten it.
pub const USED_TIME: Duration = Duration::from_secs((8 * 24 + 1) * 3600);

/// The map of ports to parts.
pub(super) const PORTS: &str = "nameports";

/// The set of the control groups of units.
pub const UNITS: &str = "units";

/// A condition of a rule, or an action on the packets that meet all conditions.
#[derive(Clone, Copy, Debug)]
pub(super) enum HostExpression {
    /// The bits of the packet's mark have this value.
    MarkIs(MarkBits),
    /// The bits of the packet's mark have another value.
    MarkIsNot(MarkBits),
    /// Sets the bits of the packet's mark to this value; other bits keep their value.
    SetMark(MarkBits),
    /// The bits of the mark of the packet's connection have this value.
    ConnectionMarkIs(MarkBits),
    /// The bits of the mark of the packet's connection have another value.
    ConnectionMarkIsNot(MarkBits),
    SetConnectionMark(MarkBits),
    /// The packet goes in the direction opposite to the first packet of its connection.
    IsReply,
    /// The packet goes in the direction of the first packet of its connection.
    IsOriginal,
    /// Whether the host's own NAT has changed the destination of the connection.
    IsRewritten(bool),
    /// The packet has another header than that of IPv4 without options.
    HasMoreThanPlainV4,
    /// The packet contains a source route.
    SourceRouted(SourceRoute),
    /// A socket of this user sends the packet.
    OfUser(u32),
    /// A socket of this group sends the packet.
    OfGroup(u32),
    /// A socket in this control group, or in one below it, sends the packet.
    OfCgroup(CgroupId),
    /// A socket sends the packet whose control group at this level is that of a unit.
    OfUnits(u32),
    /// The packet came in on `lo`.
    FromLo,
    /// The packet came in on another interface than `lo`.
    NotFromLo,
    /// The packet came in on the interface with this name.
    ReceivedOn(InterfaceName),
    /// The packet goes out on `lo`.
    ToLo,
    /// The packet goes out on another interface than `lo`.
    NotToLo,
    /// The packet goes out on another interface than the one with this name.
    NotSentOn(InterfaceName),
    /// The address belongs to this host.
    IsLocal(PacketEnd),
    /// The address does not belong to this host.
    IsForeign(PacketEnd),
    /// The kernel gives the address the type anycast: of this host, or of others.
    IsAnycast(PacketEnd),
    /// The kernel gives the address another type.
    IsNotAnycast(PacketEnd),
    /// The route of the destination leaves by no interface. Only for the hook `prerouting`.
    StaysHere,
    /// The destination address is in this range of addresses of one family.
    ToAddresses {
        first: IpAddr,
        last: IpAddr,
    },
    /// The destination port is in this range.
    ToPorts {
        first: u16,
        last: u16,
    },
    /// A condition on flows, or a note of one.
    Flow(FlowExpression),
    /// The verdict that the map of this name has for the destination address and port. If the map
    /// has none, the next rule decides.
    Verdict(SectionMap, NftFamily),
    /// Counts the packet for the element with its destination address and port. If there is none,
    /// the next rule decides.
    Counted(SectionMap, NftFamily),
    /// The destination address and the part of protocol and port are in the set of this name. The
    /// element then gets its whole time again.
    Named(&'static str, NftFamily),
    /// The source address and port are in the set of this name.
    SentFrom(&'static str, NftFamily),
    /// Whether the socket that sends or receives the packet is transparent.
    Transparent(bool),
    /// A socket receives the packet, possibly a listening one.
    AnySocket,
    /// Sends the packet to the agent's socket for clients of this host's programs. If there is no
    /// socket, the next rule decides.
    ToInbound(Redirect),
    /// The chain of this section decides. If it has no verdict, the next rule decides.
    ToSection(usize),
    /// A condition on single packets, or a lookup.
    Filter(FilterExpression),
}

/// The map of destinations that one section of rules has for one protocol and IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SectionMap {
    pub(super) base: &'static str,
    pub(super) section: usize,
}

impl SectionMap {
    pub(super) fn name(self) -> String {
        format!("{}_{}", self.base, self.section)
    }

    /// The set with the counters of the section.
    pub(super) fn counters(self) -> String {
        format!("count_{}_{}", self.base, self.section)
    }
}

/// The chain of a section.
pub(super) fn section_chain(section: usize) -> String {
    format!("section_{section}")
}

/// A control group, as the kernel's nftables rules name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CgroupId {
    /// How many levels it is below the root.
    pub level: u32,
    /// Its number, which no other group ever has.
    pub id: u64,
}

/// The name of an interface as the kernel compares it, with zeros at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterfaceName([u8; 16]);

impl InterfaceName {
    /// A longer name is cut: no interface has it.
    pub(super) fn new(name: &str) -> Self {
        let mut bytes = [0; 16];
        for (place, byte) in bytes.iter_mut().zip(name.bytes()) {
            *place = byte;
        }
        Self(bytes)
    }
}

/// The header in which a packet contains a source route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceRoute {
    /// The IPv4 option "loose source route".
    Loose,
    /// The IPv4 option "strict source route".
    Strict,
    /// The routing header of IPv6, of any type.
    Header,
}

/// Some bits of a mark, with their value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MarkBits {
    pub(super) mask: u32,
    pub(super) value: u32,
}

impl HostExpression {
    /// Writes the kernel's expressions, each named as a part of the message.
    pub(super) fn write(self, rule: &mut NetlinkRequest) {
        match self {
            Self::MarkIs(bits) => compare_mark(rule, EQUAL, bits),
            Self::MarkIsNot(bits) => compare_mark(rule, NOT_EQUAL, bits),
            Self::SetMark(bits) => {
                meta(rule, META_MARK);
                set_bits(rule, bits);
                store(rule, "meta", [META_KEY, META_SREG], META_MARK);
            }
            Self::ConnectionMarkIs(bits) => compare_connection_mark(rule, EQUAL, bits),
            Self::ConnectionMarkIsNot(bits) => compare_connection_mark(rule, NOT_EQUAL, bits),
            Self::SetConnectionMark(bits) => {
                connection(rule, CT_MARK);
                set_bits(rule, bits);
                store(rule, "ct", [CT_KEY, CT_SREG], CT_MARK);
            }
            Self::IsReply => compare_direction(rule, CT_REPLY),
            Self::IsOriginal => compare_direction(rule, CT_ORIGINAL),
            Self::IsRewritten(is_rewritten) => {
                connection(rule, CT_STATUS);
                mask(rule, &IPS_DST_NAT.to_ne_bytes(), &[0; 4]);
                let operation = if is_rewritten { NOT_EQUAL } else { EQUAL };
                compare(rule, operation, &[0; 4]);
            }
            Self::HasMoreThanPlainV4 => {
                load(rule, NETWORK, 0, 1, REGISTER_1);
                compare(rule, NOT_EQUAL, &[PLAIN_V4]);
            }
            Self::SourceRouted(route) => has_source_route(rule, route),
            Self::OfUser(user) => compare_owner(rule, META_SKUID, user),
            Self::OfGroup(group) => compare_owner(rule, META_SKGID, group),
            Self::OfCgroup(cgroup) => compare_cgroup(rule, cgroup),
            Self::OfUnits(level) => {
                cgroup_at(rule, level);
                look_up(rule, UNITS);
            }
            Self::FromLo => compare_with_lo(rule, META_IIF, EQUAL),
            Self::NotFromLo => compare_with_lo(rule, META_IIF, NOT_EQUAL),
            Self::ReceivedOn(name) => compare_interface_name(rule, META_IIFNAME, EQUAL, name),
            Self::NotSentOn(name) => compare_interface_name(rule, META_OIFNAME, NOT_EQUAL, name),
            Self::ToLo => compare_with_lo(rule, META_OIF, EQUAL),
            Self::NotToLo => compare_with_lo(rule, META_OIF, NOT_EQUAL),
            Self::ToAddresses { first, last } => {
                is_in_addresses(rule, PacketEnd::Destination, first, last);
            }
            Self::ToPorts { first, last } => is_in_ports(rule, PacketEnd::Destination, first, last),
            Self::Flow(expression) => expression.write(rule),
            Self::IsLocal(end) => compare_type(rule, end, EQUAL, RTN_LOCAL),
            Self::IsForeign(end) => compare_type(rule, end, NOT_EQUAL, RTN_LOCAL),
            Self::IsAnycast(end) => compare_type(rule, end, EQUAL, RTN_ANYCAST),
            Self::IsNotAnycast(end) => compare_type(rule, end, NOT_EQUAL, RTN_ANYCAST),
            Self::StaysHere => stays_here(rule),
            Self::Verdict(map, family) => {
                load_end(rule, PacketEnd::Destination, family);
                look_up_verdict(rule, &map.name());
            }
            Self::Counted(map, family) => count(rule, map, family),
            Self::Named(set, family) => look_up_name(rule, set, family),
            Self::SentFrom(set, family) => look_up_source(rule, set, family),
            Self::Transparent(is_transparent) => {
                socket_that_takes_it(rule, SOCKET_TRANSPARENT);
                compare(rule, EQUAL, &[u8::from(is_transparent)]);
            }
            Self::AnySocket => socket_that_takes_it(rule, SOCKET_TRANSPARENT),
            Self::ToInbound(redirect) => redirect_to(rule, INBOUND_PORT, redirect),
            Self::ToSection(section) => jump(rule, &section_chain(section)),
            Self::Filter(expression) => expression.write(rule),
        }
    }
}

fn compare_mark(rule: &mut NetlinkRequest, operation: u32, bits: MarkBits) {
    meta(rule, META_MARK);
    compare_bits(rule, operation, bits);
}

fn compare_connection_mark(rule: &mut NetlinkRequest, operation: u32, bits: MarkBits) {
    connection(rule, CT_MARK);
    compare_bits(rule, operation, bits);
}

/// Compares the type of an address (`RTN_*`).
fn compare_type(rule: &mut NetlinkRequest, end: PacketEnd, operation: u32, kind: u32) {
    route_of(rule, end, FIB_ADDRESS_TYPE);
    compare(rule, operation, &kind.to_ne_bytes());
}

fn compare_bits(rule: &mut NetlinkRequest, operation: u32, bits: MarkBits) {
    mask(rule, &bits.mask.to_ne_bytes(), &[0; 4]);
    compare(rule, operation, &bits.value.to_ne_bytes());
}

/// Compares the user or the group of the socket that sends.
fn compare_owner(rule: &mut NetlinkRequest, property: u32, number: u32) {
    meta(rule, property);
    compare(rule, EQUAL, &number.to_ne_bytes());
}

fn compare_direction(rule: &mut NetlinkRequest, direction: u8) {
    connection(rule, CT_DIRECTION);
    compare(rule, EQUAL, &[direction]);
}

/// Compares an interface of the packet with `lo`.
fn compare_with_lo(rule: &mut NetlinkRequest, interface: u32, operation: u32) {
    meta(rule, interface);
    compare(rule, operation, &LO.to_ne_bytes());
}

fn compare_interface_name(
    rule: &mut NetlinkRequest,
    property: u32,
    operator: u32,
    InterfaceName(name): InterfaceName,
) {
    meta(rule, property);
    compare(rule, operator, &name);
}

fn set_bits(rule: &mut NetlinkRequest, bits: MarkBits) {
    mask(rule, &(!bits.mask).to_ne_bytes(), &bits.value.to_ne_bytes());
}

/// Writes register 1 to a property of the packet or of its connection; `keys` are the attributes
/// for the property and for the register.
fn store(rule: &mut NetlinkRequest, name: &'static str, keys: [u16; 2], property: u32) {
    let [key, register] = keys;
    expression(rule, name, |data| {
        data.be32(key, property);
        data.be32(register, REGISTER_1);
    });
}

/// Loads a property of the packet's connection.
fn connection(rule: &mut NetlinkRequest, property: u32) {
    expression(rule, "ct", |data| {
        data.be32(CT_KEY, property);
        data.be32(CT_DREG, REGISTER_1);
    });
}

/// Continues if no interface leads to the destination.
fn stays_here(rule: &mut NetlinkRequest) {
    route_of(rule, PacketEnd::Destination, FIB_INTERFACE);
    compare(rule, EQUAL, &[0; 4]);
}

/// Loads a property of the route to one end of the packet: the type of the address (`RTN_*`), or
/// the interface.
fn route_of(rule: &mut NetlinkRequest, end: PacketEnd, property: u32) {
    expression(rule, "fib", |data| {
        let flag = match end {
            PacketEnd::Source => FIB_SOURCE,
            PacketEnd::Destination => FIB_DESTINATION,
        };
        data.be32(1, REGISTER_1);
        data.be32(2, property);
        data.be32(3, flag);
    });
}

/// Continues if the packet has a source route.
fn has_source_route(rule: &mut NetlinkRequest, route: SourceRoute) {
    let (operation, kind) = match route {
        SourceRoute::Loose => (EXTHDR_IPV4, IPOPT_LSRR),
        SourceRoute::Strict => (EXTHDR_IPV4, IPOPT_SSRR),
        SourceRoute::Header => (EXTHDR_IPV6, NEXTHDR_ROUTING),
    };
    expression(rule, "exthdr", |data| {
        data.be32(1, REGISTER_1);
        data.attribute(2, &[kind]);
        data.be32(3, 0);
        data.be32(4, 1);
        data.be32(5, EXTHDR_PRESENT);
        data.be32(6, operation);
    });
    compare(rule, EQUAL, &[1]);
}

/// Continues if the set of counters has the destination, and counts the packet.
fn count(rule: &mut NetlinkRequest, map: SectionMap, family: NftFamily) {
    load_end(rule, PacketEnd::Destination, family);
    expression(rule, "lookup", |data| {
        data.text(1, &map.counters());
        data.be32(2, REGISTER_1);
    });
}

/// Continues if the set has the source.
fn look_up_source(rule: &mut NetlinkRequest, set: &'static str, family: NftFamily) {
    load_end(rule, PacketEnd::Source, family);
    look_up(rule, set);
}

/// Continues if the set has the destination, and gives the element its whole time again.
fn look_up_name(rule: &mut NetlinkRequest, set: &'static str, family: NftFamily) {
    load_name_key(rule, family);
    look_up(rule, set);
    keep(rule, set, USED_TIME);
}

/// Loads the destination address and, from the map of ports, the part beside it. Protocol and port
/// stand in the registers behind the part; a port of no part ends the rule.
fn load_name_key(rule: &mut NetlinkRequest, family: NftFamily) {
    let (offset, len, part) = match family {
        NftFamily::V4 => (16, 4, REGISTER_32_00 + 1),
        NftFamily::V6 => (24, 16, REGISTER_32_00 + 4),
    };
    load(rule, NETWORK, offset, len, REGISTER_1);
    expression(rule, "meta", |data| {
        data.be32(META_KEY, META_L4PROTO);
        data.be32(1, part + 1);
    });
    load(rule, TRANSPORT, 2, 2, part + 2);
    expression(rule, "lookup", |data| {
        data.text(1, PORTS);
        data.be32(2, part + 1);
        data.be32(3, part);
    });
}

fn look_up_verdict(rule: &mut NetlinkRequest, map: &str) {
    expression(rule, "lookup", |data| {
        data.text(1, map);
        data.be32(2, REGISTER_1);
        data.be32(3, REGISTER_VERDICT);
    });
}

/// Compares the group of the socket that sends, or the group above it at the same level.
fn compare_cgroup(rule: &mut NetlinkRequest, CgroupId { level, id }: CgroupId) {
    cgroup_at(rule, level);
    compare(rule, EQUAL, &id.to_ne_bytes());
}

/// Loads the group of the socket that sends, or the group above it, at this level. If there is
/// none, the next rule decides.
fn cgroup_at(rule: &mut NetlinkRequest, level: u32) {
    expression(rule, "socket", |data| {
        data.be32(1, SOCKET_CGROUP);
        data.be32(2, REGISTER_1);
        data.be32(3, level);
    });
}

/// Writes the verdict that returns to the calling chain.
pub(super) fn write_return(data: &mut NetlinkRequest) {
    data.nest(2, |verdict| verdict.be32(1, RETURN));
}

/// Writes the verdict that accepts a packet.
pub(super) fn write_accept(data: &mut NetlinkRequest) {
    data.nest(2, |verdict| verdict.be32(1, ACCEPT));
}

const META_IIF: u32 = 4;
const META_OIF: u32 = 5;
const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_SKUID: u32 = 10;
const META_SKGID: u32 = 11;
/// `NFT_SOCKET_CGROUPV2`.
const SOCKET_CGROUP: u32 = 3;
/// Attributes of `meta` and `ct`.
const META_KEY: u16 = 2;
const META_SREG: u16 = 3;
const CT_DREG: u16 = 1;
const CT_KEY: u16 = 2;
const CT_SREG: u16 = 4;
const CT_DIRECTION: u32 = 1;
const CT_STATUS: u32 = 2;
const CT_MARK: u32 = 3;
/// Of `CT_STATUS`: the connection's destination was rewritten.
const IPS_DST_NAT: u32 = 1 << 5;
/// `IP_CT_DIR_ORIGINAL`.
const CT_ORIGINAL: u8 = 0;
/// `IP_CT_DIR_REPLY`.
const CT_REPLY: u8 = 1;
/// `NFT_EXTHDR_F_PRESENT` and `NFT_EXTHDR_OP_*`.
const EXTHDR_PRESENT: u32 = 1;
const EXTHDR_IPV6: u32 = 0;
const EXTHDR_IPV4: u32 = 2;
const IPOPT_LSRR: u8 = 131;
const IPOPT_SSRR: u8 = 137;
const NEXTHDR_ROUTING: u8 = 43;
/// `NFT_FIB_RESULT_OIF` and `NFT_FIB_RESULT_ADDRTYPE`.
const FIB_INTERFACE: u32 = 1;
const FIB_ADDRESS_TYPE: u32 = 3;
const FIB_SOURCE: u32 = 1;
const FIB_DESTINATION: u32 = 2;
const RTN_LOCAL: u32 = 2;
const RTN_ANYCAST: u32 = 4;
/// `NFT_RETURN`.
const RETURN: u32 = (-5_i32).cast_unsigned();
