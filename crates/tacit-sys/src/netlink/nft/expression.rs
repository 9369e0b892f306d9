//! Encodes the conditions and actions of nftables rules for the kernel.
//!
//! An [`Expression`] is one condition or action, such as "the port is 53". It is encoded as one to
//! three nftables expressions. For example, the first nftables expression loads a value into
//! register 1, and the second compares this value. All numbers except fwmarks are in network byte
//! order.

use std::net::IpAddr;

use super::agent::{AGENT_PORT, HOLD_PORT, REFUSED_PREFIX};
use super::host_expression::HostExpression;
use super::primitive::{
    ACCEPT, ACK, ARPHRD_NONE, DROP, EQUAL, ICMPX_PORT_UNREACHABLE, ICMPX_PROHIBITED, META_IIFTYPE,
    META_L4PROTO, META_MARK, META_NFPROTO, NETWORK, NOT_EQUAL, NftFamily, PacketEnd, REGISTER_1,
    REJECT_ICMPX, REJECT_TCP_RST, Redirect, SOCKET_MARK, SOCKET_TRANSPARENT, SYN, TRANSPORT,
    compare, copy, go_to, jump, limit, load, load_end, look_up, mask, meta, redirect_to, reject,
    socket_that_takes_it, verdict,
};
use crate::netlink::message::NetlinkRequest;

/// A condition of a rule, or an action on the packets that meet all conditions.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expression {
    /// The packet has this mark.
    Mark(u32),
    NftFamily(NftFamily),
    /// The packet was written to a TUN device.
    FromTun,
    /// The transport protocol has this number.
    Transport(u8),
    /// A TCP segment that opens a connection.
    Syn,
    /// A TCP segment that does not open a connection.
    PastSyn,
    /// A TCP segment without SYN, which may have data.
    WithoutSyn,
    /// The destination is in 127.0.0.0/8.
    ToLoopbackV4,
    To(IpAddr),
    /// The destination is one of the namespace's own addresses: it is in the set of this name.
    ToOwn(&'static str, NftFamily),
    ToPort(u16),
    /// Destination address and port are in the set of this name.
    Captured(&'static str, NftFamily),
    /// The packet is ICMP or ICMPv6 of this type.
    IcmpType(u8),
    /// A socket of the program receives the packet: the program listens at this port itself.
    OwnSocket,
    /// A socket with this mark receives the packet.
    MarkedSocket(u32),
    /// Sends the packet to the agent's socket. If there is no socket, the next rule decides.
    ToAgent(Redirect),
    /// Sends the packet to the agent's socket that drops it. If there is no socket, the next rule
    /// decides.
    ToHold(Redirect),
    /// Copies the headers of the packet to the agent.
    CopyToAgent,
    /// Copies the headers of a packet that the kernel refuses to the agent.
    ReportToAgent,
    /// Matches at most this number of packets in a second, and this many more at once.
    AtMostPerSecond {
        packets: u64,
        burst: u32,
    },
    /// This chain decides.
    Goto(&'static str),
    /// This chain decides. If it has no verdict, the next rule decides.
    Jump(&'static str),
    Accept,
    Drop,
    Reset,
    PortUnreachable,
    /// Refuses the packet as "administratively prohibited".
    Prohibited,
    /// An expression for captured hosts.
    Host(HostExpression),
}

impl Expression {
    /// Writes the kernel's expressions, each named as a part of the message.
    pub(super) fn write(self, rule: &mut NetlinkRequest) {
        match self {
            Self::Mark(mark) => compare_meta(rule, META_MARK, &mark.to_ne_bytes()),
            Self::NftFamily(family) => {
                let number = if family == NftFamily::V4 { 2 } else { 10 };
                compare_meta(rule, META_NFPROTO, &[number]);
            }
            Self::FromTun => compare_meta(rule, META_IIFTYPE, &ARPHRD_NONE.to_ne_bytes()),
            Self::Transport(number) => compare_meta(rule, META_L4PROTO, &[number]),
            Self::Syn => compare_flags(rule, SYN | ACK, EQUAL, SYN),
            Self::PastSyn => compare_flags(rule, SYN | ACK, NOT_EQUAL, SYN),
            Self::WithoutSyn => compare_flags(rule, SYN, EQUAL, 0),
            Self::ToLoopbackV4 => {
                load(rule, NETWORK, 16, 1, REGISTER_1);
                compare(rule, EQUAL, &[127]);
            }
            Self::To(IpAddr::V4(address)) => {
                load(rule, NETWORK, 16, 4, REGISTER_1);
                compare(rule, EQUAL, &address.octets());
            }
            Self::To(IpAddr::V6(address)) => {
                load(rule, NETWORK, 24, 16, REGISTER_1);
                compare(rule, EQUAL, &address.octets());
            }
            Self::ToOwn(set, family) => {
                let (offset, len) = if family == NftFamily::V4 { (16, 4) } else { (24, 16) };
                load(rule, NETWORK, offset, len, REGISTER_1);
                look_up(rule, set);
            }
            Self::ToPort(port) => {
                load(rule, TRANSPORT, 2, 2, REGISTER_1);
                compare(rule, EQUAL, &port.to_be_bytes());
            }
            Self::Captured(set, family) => {
                load_end(rule, PacketEnd::Destination, family);
                look_up(rule, set);
            }
            Self::IcmpType(number) => {
                load(rule, TRANSPORT, 0, 1, REGISTER_1);
                compare(rule, EQUAL, &[number]);
            }
            Self::OwnSocket => {
                socket_that_takes_it(rule, SOCKET_TRANSPARENT);
                compare(rule, EQUAL, &[0]);
            }
            Self::Prohibited => reject(rule, REJECT_ICMPX, ICMPX_PROHIBITED),
            Self::Host(expression) => expression.write(rule),
            Self::MarkedSocket(mark) => {
                socket_that_takes_it(rule, SOCKET_MARK);
                compare(rule, EQUAL, &mark.to_ne_bytes());
            }
            Self::ToAgent(redirect) => redirect_to(rule, AGENT_PORT, redirect),
            Self::ToHold(redirect) => redirect_to(rule, HOLD_PORT, redirect),
            Self::CopyToAgent => copy(rule, None),
            Self::ReportToAgent => copy(rule, Some(REFUSED_PREFIX)),
            Self::AtMostPerSecond { packets, burst } => limit(rule, packets, burst),
            Self::Goto(chain) => go_to(rule, chain),
            Self::Jump(chain) => jump(rule, chain),
            Self::Accept => verdict(rule, ACCEPT),
            Self::Drop => verdict(rule, DROP),
            Self::Reset => reject(rule, REJECT_TCP_RST, 0),
            Self::PortUnreachable => reject(rule, REJECT_ICMPX, ICMPX_PORT_UNREACHABLE),
        }
    }
}

/// Compares a property of the packet that is not in its headers.
fn compare_meta(rule: &mut NetlinkRequest, key: u32, value: &[u8]) {
    meta(rule, key);
    compare(rule, EQUAL, value);
}

/// Compares some flags of a TCP segment.
fn compare_flags(rule: &mut NetlinkRequest, flags: u8, operation: u32, value: u8) {
    load(rule, TRANSPORT, 13, 1, REGISTER_1);
    mask(rule, &[flags], &[0]);
    compare(rule, operation, &[value]);
}
