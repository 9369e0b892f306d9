//! Encodes the expressions of which packet rules consist.
//!
//! Each [`Expression`] is one condition or action, such as "the port is 53". It becomes one to
//! three expressions of the kernel: load a value into register 1, compare it, and continue only if
//! it matches. Every number is in network order, except a packet mark.

use std::net::IpAddr;

use super::agent::{AGENT_PORT, HOLD_PORT, REFUSED_PREFIX, SYN_LOG_GROUP};
use crate::netlink::message::NetlinkRequest;

/// IPv4 or IPv6, as the rules tell packets apart (`NFPROTO_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NftFamily {
    V4,
    V6,
}

/// A condition, or what happens to the packet that met all of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expression {
    /// The packet carries this mark.
    Mark(u32),
    NftFamily(NftFamily),
    /// The transport protocol has this number.
    Transport(u8),
    /// A TCP segment that does not open a connection.
    PastSyn,
    /// Goes to 127.0.0.0/8.
    ToLoopbackV4,
    To(IpAddr),
    /// Goes to an address of the namespace's own: it is in the set of this name.
    ToOwn(&'static str, NftFamily),
    ToPort(u16),
    /// Destination address and port are in the set of this name.
    Captured(&'static str, NftFamily),
    /// ICMP or ICMPv6 of this type.
    IcmpType(u8),
    /// A socket of the program takes it: one that listens there itself.
    OwnSocket,
    /// To the agent's socket; without one, the next rule decides.
    ToAgent(Redirect),
    /// To the agent's socket that drops it; without one, the next rule decides.
    ToHold(Redirect),
    /// A copy of the packet's headers goes to the agent.
    CopyToAgent,
    /// The same of a packet that the kernel refuses.
    ReportToAgent,
    /// No more packets than so many a second.
    AtMostPerSecond(u64),
    Accept,
    Drop,
    Reset,
    PortUnreachable,
}

/// Which of the agent's sockets a packet is led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    Any,
    V4,
    V6,
}

impl Expression {
    /// Writes the kernel's expressions, each named as a part of the message.
    pub(super) fn write(self, rule: &mut NetlinkRequest) {
        match self {
            Self::Mark(mark) => {
                meta(rule, META_MARK);
                compare(rule, EQUAL, &mark.to_ne_bytes());
            }
            Self::NftFamily(family) => {
                meta(rule, META_NFPROTO);
                compare(rule, EQUAL, &[if family == NftFamily::V4 { 2 } else { 10 }]);
            }
            Self::Transport(number) => {
                meta(rule, META_L4PROTO);
                compare(rule, EQUAL, &[number]);
            }
            Self::PastSyn => {
                load(rule, TRANSPORT, 13, 1, REGISTER_1);
                mask(rule, &[SYN | ACK]);
                compare(rule, NOT_EQUAL, &[SYN]);
            }
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
            Self::Captured(set, family) => captured(rule, set, family),
            Self::IcmpType(number) => {
                load(rule, TRANSPORT, 0, 1, REGISTER_1);
                compare(rule, EQUAL, &[number]);
            }
            Self::OwnSocket => {
                own_socket(rule);
                compare(rule, EQUAL, &[0]);
            }
            Self::ToAgent(redirect) => redirect_to(rule, AGENT_PORT, redirect),
            Self::ToHold(redirect) => redirect_to(rule, HOLD_PORT, redirect),
            Self::CopyToAgent => copy(rule, None),
            Self::ReportToAgent => copy(rule, Some(REFUSED_PREFIX)),
            Self::AtMostPerSecond(count) => limit(rule, count),
            Self::Accept => verdict(rule, ACCEPT),
            Self::Drop => verdict(rule, DROP),
            Self::Reset => reject(rule, REJECT_TCP_RST),
            Self::PortUnreachable => reject(rule, REJECT_ICMPX),
        }
    }
}

/// One expression: a list element that holds its name and what it needs.
fn expression(
    rule: &mut NetlinkRequest,
    name: &'static str,
    data: impl FnOnce(&mut NetlinkRequest),
) {
    rule.part(name);
    rule.nest(1, |element| {
        element.text(1, name);
        element.nest(2, data);
    });
}

fn meta(rule: &mut NetlinkRequest, key: u32) {
    expression(rule, "meta", |data| {
        data.be32(2, key);
        data.be32(1, REGISTER_1);
    });
}

fn load(rule: &mut NetlinkRequest, base: u32, offset: u32, len: u32, register: u32) {
    expression(rule, "payload", |data| {
        data.be32(1, register);
        data.be32(2, base);
        data.be32(3, offset);
        data.be32(4, len);
    });
}

fn compare(rule: &mut NetlinkRequest, operation: u32, value: &[u8]) {
    expression(rule, "cmp", |data| {
        data.be32(1, REGISTER_1);
        data.be32(2, operation);
        data.nest(3, |held| held.attribute(1, value));
    });
}

fn mask(rule: &mut NetlinkRequest, bits: &[u8; 1]) {
    expression(rule, "bitwise", |data| {
        data.be32(1, REGISTER_1);
        data.be32(2, REGISTER_1);
        data.be32(3, 1);
        data.nest(4, |held| held.attribute(1, bits));
        data.nest(5, |held| held.attribute(1, &[0]));
    });
}

/// The key of the set stands in registers side by side: the address, then the port.
fn captured(rule: &mut NetlinkRequest, set: &'static str, family: NftFamily) {
    let (offset, len, port_register) = match family {
        NftFamily::V4 => (16, 4, REGISTER_32_01),
        NftFamily::V6 => (24, 16, REGISTER_2),
    };
    load(rule, NETWORK, offset, len, REGISTER_1);
    load(rule, TRANSPORT, 2, 2, port_register);
    look_up(rule, set);
}

fn look_up(rule: &mut NetlinkRequest, set: &'static str) {
    expression(rule, "lookup", |data| {
        data.text(1, set);
        data.be32(2, REGISTER_1);
    });
}

fn own_socket(rule: &mut NetlinkRequest) {
    expression(rule, "socket", |data| {
        data.be32(1, SOCKET_TRANSPARENT);
        data.be32(2, REGISTER_1);
    });
}

fn copy(rule: &mut NetlinkRequest, prefix: Option<&str>) {
    expression(rule, "log", |data| {
        data.attribute(1, &SYN_LOG_GROUP.to_be_bytes());
        if let Some(prefix) = prefix {
            data.text(2, prefix);
        }
        data.be32(3, COPIED_BYTES_MAX);
    });
}

fn limit(rule: &mut NetlinkRequest, per_second: u64) {
    expression(rule, "limit", |data| {
        data.attribute(1, &per_second.to_be_bytes());
        data.attribute(2, &1_u64.to_be_bytes());
        data.be32(4, LIMIT_PACKETS);
    });
}

fn redirect_to(rule: &mut NetlinkRequest, port: u16, redirect: Redirect) {
    expression(rule, "immediate", |data| {
        data.be32(1, REGISTER_1);
        data.nest(2, |held| held.attribute(1, &port.to_be_bytes()));
    });
    expression(rule, "tproxy", |data| {
        data.be32(
            1,
            match redirect {
                Redirect::Any => 0,
                Redirect::V4 => 2,
                Redirect::V6 => 10,
            },
        );
        data.be32(3, REGISTER_1);
    });
    verdict(rule, ACCEPT);
}

fn verdict(rule: &mut NetlinkRequest, code: u32) {
    expression(rule, "immediate", |data| {
        data.be32(1, REGISTER_VERDICT);
        data.nest(2, |held| held.nest(2, |verdict| verdict.be32(1, code)));
    });
}

fn reject(rule: &mut NetlinkRequest, kind: u32) {
    expression(rule, "reject", |data| {
        data.be32(1, kind);
        if kind == REJECT_ICMPX {
            data.attribute(2, &[ICMPX_PORT_UNREACHABLE]);
        }
    });
}

/// All headers of IP and TCP with their options.
pub(in crate::netlink) const COPIED_BYTES_MAX: u32 = 128;
/// `NFT_LIMIT_PKTS`.
const LIMIT_PACKETS: u32 = 0;
const REGISTER_VERDICT: u32 = 0;
/// The first of four registers of 16 bytes.
const REGISTER_1: u32 = 1;
const REGISTER_2: u32 = 2;
/// The second four bytes of the first register.
const REGISTER_32_01: u32 = 9;
const META_MARK: u32 = 3;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const SOCKET_TRANSPARENT: u32 = 0;
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
const REJECT_TCP_RST: u32 = 1;
const REJECT_ICMPX: u32 = 2;
const ICMPX_PORT_UNREACHABLE: u8 = 1;
