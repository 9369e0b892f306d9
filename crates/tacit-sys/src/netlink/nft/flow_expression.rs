//! Encodes conditions of nftables rules, for `tacit agent --host`. With these conditions, the
//! kernel recognises the packets of a flow, and needs no connection tracking. The conditions
//! compare header fields, and look up the flow of the packet in nftables sets.

use std::net::IpAddr;
use std::time::Duration;

use super::primitive::{
    EQUAL, NETWORK, NOT_EQUAL, NftFamily, PLAIN_V4, PacketEnd, REGISTER_1, REGISTER_32_00,
    TRANSPORT, compare, expression, is_in_addresses, is_in_ports, keep, load, look_up, mask,
};
use crate::netlink::message::NetlinkRequest;

/// A condition on the flow of a packet, or a note of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum FlowExpression {
    /// The source address is in this range of addresses of one family.
    FromAddresses { first: IpAddr, last: IpAddr },
    /// The source port is in this range.
    FromPorts { first: u16, last: u16 },
    /// The packet has the header of IPv4 without options.
    IsPlainV4,
    /// A packet of IPv4 has this transport protocol.
    ProtocolV4(u8),
    /// A packet of IPv4 has a destination address with these leading bits.
    ToPrefixV4 { mask: u32, value: u32 },
    /// The destination port has these leading bits.
    ToPortPrefix { mask: u16, value: u16 },
    /// Of these flags of a TCP segment, the second ones are set, and the others are not.
    Flags(u8, u8),
    /// One of these flags of a TCP segment is set.
    AnyFlag(u8),
    /// The flow of the packet is in the set of this name.
    InFlows(&'static str, FlowKey),
    /// The flow of the packet is not in the set of this name.
    NotInFlows(&'static str, FlowKey),
    /// The flow of the packet is in the set of this name from now on, for this time. If the set is
    /// full, the next rule decides.
    KeepFlow(&'static str, FlowKey, Duration),
}

/// How the key of a flow is loaded: addresses and ports as packets of a program have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowKey {
    /// The packet comes from the program.
    Sent(NftFamily),
    /// The packet goes to the program.
    Received(NftFamily),
}

impl FlowExpression {
    /// Writes the kernel's expressions, each named as a part of the message.
    pub(super) fn write(self, rule: &mut NetlinkRequest) {
        match self {
            Self::FromAddresses { first, last } => {
                is_in_addresses(rule, PacketEnd::Source, first, last);
            }
            Self::FromPorts { first, last } => is_in_ports(rule, PacketEnd::Source, first, last),
            Self::IsPlainV4 => {
                load(rule, NETWORK, 0, 1, REGISTER_1);
                compare(rule, EQUAL, &[PLAIN_V4]);
            }
            Self::ProtocolV4(number) => {
                load(rule, NETWORK, 9, 1, REGISTER_1);
                compare(rule, EQUAL, &[number]);
            }
            Self::ToPrefixV4 { mask: bits, value } => {
                load(rule, NETWORK, 16, 4, REGISTER_1);
                mask(rule, &bits.to_be_bytes(), &[0; 4]);
                compare(rule, EQUAL, &value.to_be_bytes());
            }
            Self::ToPortPrefix { mask: bits, value } => {
                load(rule, TRANSPORT, 2, 2, REGISTER_1);
                mask(rule, &bits.to_be_bytes(), &[0; 2]);
                compare(rule, EQUAL, &value.to_be_bytes());
            }
            Self::Flags(of, are) => {
                load_flags(rule, of);
                compare(rule, EQUAL, &[are]);
            }
            Self::AnyFlag(of) => {
                load_flags(rule, of);
                compare(rule, NOT_EQUAL, &[0]);
            }
            Self::InFlows(set, key) => {
                load_flow(rule, key);
                look_up(rule, set);
            }
            Self::NotInFlows(set, key) => {
                load_flow(rule, key);
                expression(rule, "lookup", |data| {
                    data.text(1, set);
                    data.be32(2, REGISTER_1);
                    data.be32(5, LOOKUP_INVERTED);
                });
            }
            Self::KeepFlow(set, key, time) => {
                load_flow(rule, key);
                keep(rule, set, time);
            }
        }
    }
}

/// Loads these flags of a TCP segment.
fn load_flags(rule: &mut NetlinkRequest, of: u8) {
    load(rule, TRANSPORT, 13, 1, REGISTER_1);
    mask(rule, &[of], &[0]);
}

/// Loads both addresses and both ports, those of the program first.
fn load_flow(rule: &mut NetlinkRequest, key: FlowKey) {
    let (FlowKey::Sent(family) | FlowKey::Received(family)) = key;
    let (source, len, ports) = match family {
        NftFamily::V4 => (12, 4, REGISTER_32_00 + 2),
        NftFamily::V6 => (8, 16, REGISTER_32_00 + 8),
    };
    match key {
        FlowKey::Sent(_) => {
            load(rule, NETWORK, source, 2 * len, REGISTER_1);
            load(rule, TRANSPORT, 0, 2, ports);
            load(rule, TRANSPORT, 2, 2, ports + 1);
        }
        FlowKey::Received(_) => {
            load(rule, NETWORK, source + len, len, REGISTER_1);
            load(rule, NETWORK, source, len, REGISTER_32_00 + len / 4);
            load(rule, TRANSPORT, 2, 2, ports);
            load(rule, TRANSPORT, 0, 2, ports + 1);
        }
    }
}

/// `NFT_LOOKUP_F_INV`.
const LOOKUP_INVERTED: u32 = 1;
