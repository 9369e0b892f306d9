//! Encodes single nftables expressions with their attributes.
//!
//! All numbers except fwmarks are in network byte order.

use std::net::IpAddr;
use std::time::Duration;

use super::agent::SYN_LOG_GROUP;
use crate::netlink::message::NetlinkRequest;

/// IPv4 or IPv6, as rules distinguish packets (`NFPROTO_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NftFamily {
    V4,
    V6,
}

/// One end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketEnd {
    Source,
    Destination,
}

/// The agent's socket to which a packet is redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    Any,
    V4,
}

/// Appends an expression: a list element with its name and its attributes.
pub(super) fn expression(
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

pub(super) fn meta(rule: &mut NetlinkRequest, key: u32) {
    expression(rule, "meta", |data| {
        data.be32(2, key);
        data.be32(1, REGISTER_1);
    });
}

pub(super) fn load(rule: &mut NetlinkRequest, base: u32, offset: u32, len: u32, register: u32) {
    expression(rule, "payload", |data| {
        data.be32(1, register);
        data.be32(2, base);
        data.be32(3, offset);
        data.be32(4, len);
    });
}

pub(super) fn compare(rule: &mut NetlinkRequest, operation: u32, value: &[u8]) {
    expression(rule, "cmp", |data| {
        data.be32(1, REGISTER_1);
        data.be32(2, operation);
        data.nest(3, |held| held.attribute(1, value));
    });
}

/// Continues if register 1 is in the range, ends included.
pub(super) fn within(rule: &mut NetlinkRequest, first: &[u8], last: &[u8]) {
    expression(rule, "range", |data| {
        data.be32(1, REGISTER_1);
        data.be32(2, EQUAL);
        data.nest(3, |held| held.attribute(1, first));
        data.nest(4, |held| held.attribute(1, last));
    });
}

/// Keeps the bits of register 1 that are set in `bits`, and inverts the bits of `turned`.
pub(super) fn mask(rule: &mut NetlinkRequest, bits: &[u8], turned: &[u8]) {
    expression(rule, "bitwise", |data| {
        data.be32(1, REGISTER_1);
        data.be32(2, REGISTER_1);
        data.be32(3, u32::try_from(bits.len()).unwrap_or_default());
        data.nest(4, |held| held.attribute(1, bits));
        data.nest(5, |held| held.attribute(1, turned));
    });
}

/// Loads the key of a set into adjacent registers: the address, then the port.
pub(super) fn load_end(rule: &mut NetlinkRequest, end: PacketEnd, family: NftFamily) {
    let (source, len, port_register) = match family {
        NftFamily::V4 => (12, 4, REGISTER_32_01),
        NftFamily::V6 => (8, 16, REGISTER_2),
    };
    let (address, port) = match end {
        PacketEnd::Source => (source, 0),
        PacketEnd::Destination => (source + len, 2),
    };
    load(rule, NETWORK, address, len, REGISTER_1);
    load(rule, TRANSPORT, port, 2, port_register);
}

pub(super) fn look_up(rule: &mut NetlinkRequest, set: &'static str) {
    expression(rule, "lookup", |data| {
        data.text(1, set);
        data.be32(2, REGISTER_1);
    });
}

/// Loads a property of the socket that receives the packet.
pub(super) fn socket_that_takes_it(rule: &mut NetlinkRequest, key: u32) {
    expression(rule, "socket", |data| {
        data.be32(1, key);
        data.be32(2, REGISTER_1);
    });
}

pub(super) fn copy(rule: &mut NetlinkRequest, prefix: Option<&str>) {
    expression(rule, "log", |data| {
        data.attribute(1, &SYN_LOG_GROUP.to_be_bytes());
        if let Some(prefix) = prefix {
            data.text(2, prefix);
        }
        data.be32(3, COPIED_BYTES_MAX);
    });
}

pub(super) fn limit(rule: &mut NetlinkRequest, per_second: u64, burst: u32) {
    expression(rule, "limit", |data| {
        data.attribute(1, &per_second.to_be_bytes());
        data.attribute(2, &1_u64.to_be_bytes());
        data.be32(3, burst);
        data.be32(4, LIMIT_PACKETS);
    });
}

pub(super) fn redirect_to(rule: &mut NetlinkRequest, port: u16, redirect: Redirect) {
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
            },
        );
        data.be32(3, REGISTER_1);
    });
    verdict(rule, ACCEPT);
}

pub(super) fn verdict(rule: &mut NetlinkRequest, code: u32) {
    expression(rule, "immediate", |data| {
        data.be32(1, REGISTER_VERDICT);
        data.nest(2, |held| held.nest(2, |verdict| verdict.be32(1, code)));
    });
}

/// Continues in a chain, and then after this rule if the chain has no verdict.
pub(super) fn jump(rule: &mut NetlinkRequest, chain: &str) {
    expression(rule, "immediate", |data| {
        data.be32(1, REGISTER_VERDICT);
        data.nest(2, |held| {
            held.nest(2, |verdict| {
                verdict.be32(1, JUMP);
                verdict.text(2, chain);
            });
        });
    });
}

/// Continues in a chain, and does not return.
pub(super) fn go_to(rule: &mut NetlinkRequest, chain: &str) {
    expression(rule, "immediate", |data| {
        data.be32(1, REGISTER_VERDICT);
        data.nest(2, |held| write_goto(held, chain));
    });
}

/// Writes the verdict that continues in a chain and does not return.
pub(super) fn write_goto(data: &mut NetlinkRequest, chain: &str) {
    data.nest(2, |verdict| {
        verdict.be32(1, GOTO);
        verdict.text(2, chain);
    });
}

pub(super) fn reject(rule: &mut NetlinkRequest, kind: u32, code: u8) {
    expression(rule, "reject", |data| {
        data.be32(1, kind);
        if kind == REJECT_ICMPX {
            data.attribute(2, &[code]);
        }
    });
}

/// Continues if a port is in the range, ends included.
pub(super) fn is_in_ports(rule: &mut NetlinkRequest, end: PacketEnd, first: u16, last: u16) {
    let offset = if end == PacketEnd::Source { 0 } else { 2 };
    load(rule, TRANSPORT, offset, 2, REGISTER_1);
    within(rule, &first.to_be_bytes(), &last.to_be_bytes());
}

/// Compares an address with the ends of a range, which are of the packet's family.
pub(super) fn is_in_addresses(
    rule: &mut NetlinkRequest,
    end: PacketEnd,
    first: IpAddr,
    last: IpAddr,
) {
    let first = octets(first);
    let (source, len) = if first.len() == 4 { (12, 4) } else { (8, 16) };
    let offset = if end == PacketEnd::Source { source } else { source + len };
    load(rule, NETWORK, offset, len, REGISTER_1);
    within(rule, &first, &octets(last));
}

/// The bytes of an address, in network order.
pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Adds the element whose key is in register 1, or gives it this time.
pub(super) fn keep(rule: &mut NetlinkRequest, set: &'static str, time: Duration) {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    expression(rule, "dynset", |data| {
        data.text(1, set);
        data.be32(3, DYNSET_UPDATE);
        data.be32(4, REGISTER_1);
        data.attribute(6, &ms.to_be_bytes());
    });
}

/// The largest size of the IP and TCP headers with their options.
pub(in crate::netlink) const COPIED_BYTES_MAX: u32 = 128;
/// `NFT_LIMIT_PKTS`.
pub(super) const LIMIT_PACKETS: u32 = 0;
pub(super) const REGISTER_VERDICT: u32 = 0;
/// The first of four registers of 16 bytes.
pub(super) const REGISTER_1: u32 = 1;
pub(super) const REGISTER_2: u32 = 2;
/// The second four bytes of the first register.
pub(super) const REGISTER_32_01: u32 = 9;
pub(super) const META_MARK: u32 = 3;
/// The hardware type of the interface that received the packet.
pub(super) const META_IIFTYPE: u32 = 8;
/// The hardware type of TUN devices.
pub(super) const ARPHRD_NONE: u16 = 0xfffe;
pub(super) const META_NFPROTO: u32 = 15;
pub(super) const META_L4PROTO: u32 = 16;
pub(super) const EQUAL: u32 = 0;
pub(super) const NOT_EQUAL: u32 = 1;
pub(super) const NETWORK: u32 = 1;
pub(super) const TRANSPORT: u32 = 2;
pub(super) const SYN: u8 = 0x02;
pub(super) const ACK: u8 = 0x10;
pub(super) const SOCKET_TRANSPARENT: u32 = 0;
pub(super) const SOCKET_MARK: u32 = 1;
pub(super) const DROP: u32 = 0;
pub(super) const ACCEPT: u32 = 1;
/// `NFT_JUMP`.
const JUMP: u32 = (-3_i32).cast_unsigned();
/// `NFT_GOTO`.
const GOTO: u32 = (-4_i32).cast_unsigned();
pub(super) const REJECT_TCP_RST: u32 = 1;
pub(super) const REJECT_ICMPX: u32 = 2;
pub(super) const ICMPX_PORT_UNREACHABLE: u8 = 1;
pub(super) const ICMPX_PROHIBITED: u8 = 3;
/// The first byte of an IPv4 header of 20 bytes.
pub(super) const PLAIN_V4: u8 = 0x45;
/// The first four bytes of the first register; the next four have the next number.
pub(super) const REGISTER_32_00: u32 = 8;
const DYNSET_UPDATE: u32 = 1;
