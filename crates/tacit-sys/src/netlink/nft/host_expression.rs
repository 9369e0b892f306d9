//! Encodes the expressions that only the rules of a captured host use: conditions on marks,
//! connections and interfaces.

use super::agent::INBOUND_PORT;
use super::primitive::{
    ACCEPT, EQUAL, META_MARK, NOT_EQUAL, NftFamily, PacketEnd, REGISTER_1, REGISTER_VERDICT,
    Redirect, SOCKET_TRANSPARENT, compare, expression, load_end, look_up, mask, meta, redirect_to,
    socket_that_takes_it,
};
use crate::netlink::message::NetlinkRequest;

/// A condition, or what happens to the packet that met all of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum HostExpression {
    /// The bits of the packet's mark under the mask are these.
    MarkIs(MarkBits),
    /// Gives the bits of the packet's mark under the mask this value; the others stay.
    SetMark(MarkBits),
    /// The same of the mark of the packet's connection.
    ConnectionMarkIs(MarkBits),
    SetConnectionMark(MarkBits),
    /// Answers the packet that began its connection.
    IsReply,
    /// Sent by a socket of this user.
    OfUser(u32),
    /// Came in on `lo`.
    FromLo,
    /// Came in elsewhere.
    NotFromLo,
    /// Goes out elsewhere than on `lo`.
    NotToLo,
    /// The address is one of this host's.
    IsLocal(PacketEnd),
    /// The address is not one of this host's.
    IsForeign(PacketEnd),
    /// The verdict that the map of this name has for destination address and port; without one,
    /// the next rule decides.
    Verdict(&'static str, NftFamily),
    /// Source address and port are in the set of this name.
    SentFrom(&'static str, NftFamily),
    /// The socket that sends or takes the packet is transparent, or is not.
    Transparent(bool),
    /// Some socket takes the packet, be it one that listens.
    AnySocket,
    /// To the agent's socket for clients of this host's programs; without one, the next rule
    /// decides.
    ToInbound(Redirect),
    Goto(&'static str),
}

/// Some bits of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MarkBits {
    pub(super) mask: u32,
    pub(super) value: u32,
}

impl HostExpression {
    /// Writes the kernel's expressions, each named as a part of the message.
    pub(super) fn write(self, rule: &mut NetlinkRequest) {
        match self {
            Self::MarkIs(bits) => {
                meta(rule, META_MARK);
                mask(rule, &bits.mask.to_ne_bytes(), &[0; 4]);
                compare(rule, EQUAL, &bits.value.to_ne_bytes());
            }
            Self::SetMark(bits) => {
                meta(rule, META_MARK);
                set_bits(rule, bits);
                store(rule, "meta", [META_KEY, META_SREG], META_MARK);
            }
            Self::ConnectionMarkIs(bits) => {
                connection(rule, CT_MARK);
                mask(rule, &bits.mask.to_ne_bytes(), &[0; 4]);
                compare(rule, EQUAL, &bits.value.to_ne_bytes());
            }
            Self::SetConnectionMark(bits) => {
                connection(rule, CT_MARK);
                set_bits(rule, bits);
                store(rule, "ct", [CT_KEY, CT_SREG], CT_MARK);
            }
            Self::IsReply => {
                connection(rule, CT_DIRECTION);
                compare(rule, EQUAL, &[CT_REPLY]);
            }
            Self::OfUser(user) => {
                meta(rule, META_SKUID);
                compare(rule, EQUAL, &user.to_ne_bytes());
            }
            Self::FromLo => {
                meta(rule, META_IIF);
                compare(rule, EQUAL, &LO.to_ne_bytes());
            }
            Self::NotFromLo => {
                meta(rule, META_IIF);
                compare(rule, NOT_EQUAL, &LO.to_ne_bytes());
            }
            Self::NotToLo => {
                meta(rule, META_OIF);
                compare(rule, NOT_EQUAL, &LO.to_ne_bytes());
            }
            Self::IsLocal(end) => {
                address_type(rule, end);
                compare(rule, EQUAL, &RTN_LOCAL.to_ne_bytes());
            }
            Self::IsForeign(end) => {
                address_type(rule, end);
                compare(rule, NOT_EQUAL, &RTN_LOCAL.to_ne_bytes());
            }
            Self::Verdict(map, family) => {
                load_end(rule, PacketEnd::Destination, family);
                look_up_verdict(rule, map);
            }
            Self::SentFrom(set, family) => {
                load_end(rule, PacketEnd::Source, family);
                look_up(rule, set);
            }
            Self::Transparent(is_transparent) => {
                socket_that_takes_it(rule, SOCKET_TRANSPARENT);
                compare(rule, EQUAL, &[u8::from(is_transparent)]);
            }
            Self::AnySocket => socket_that_takes_it(rule, SOCKET_TRANSPARENT),
            Self::ToInbound(redirect) => redirect_to(rule, INBOUND_PORT, redirect),
            Self::Goto(chain) => go_to(rule, chain),
        }
    }
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

/// Loads what kind of address one end of the packet has (`RTN_*`).
fn address_type(rule: &mut NetlinkRequest, end: PacketEnd) {
    expression(rule, "fib", |data| {
        let flag = match end {
            PacketEnd::Source => FIB_SOURCE,
            PacketEnd::Destination => FIB_DESTINATION,
        };
        data.be32(1, REGISTER_1);
        data.be32(2, FIB_ADDRESS_TYPE);
        data.be32(3, flag);
    });
}

fn look_up_verdict(rule: &mut NetlinkRequest, map: &'static str) {
    expression(rule, "lookup", |data| {
        data.text(1, map);
        data.be32(2, REGISTER_1);
        data.be32(3, REGISTER_VERDICT);
    });
}

fn go_to(rule: &mut NetlinkRequest, chain: &str) {
    expression(rule, "immediate", |data| {
        data.be32(1, REGISTER_VERDICT);
        data.nest(2, |held| write_goto(held, chain));
    });
}

/// The verdict that continues in a chain and does not come back.
pub(super) fn write_goto(data: &mut NetlinkRequest, chain: &str) {
    data.nest(2, |verdict| {
        verdict.be32(1, GOTO);
        verdict.text(2, chain);
    });
}

/// The verdict that lets a packet pass.
pub(super) fn write_accept(data: &mut NetlinkRequest) {
    data.nest(2, |verdict| verdict.be32(1, ACCEPT));
}

const META_IIF: u32 = 4;
const META_OIF: u32 = 5;
const META_SKUID: u32 = 10;
/// Attributes of `meta` and `ct`.
const META_KEY: u16 = 2;
const META_SREG: u16 = 3;
const CT_DREG: u16 = 1;
const CT_KEY: u16 = 2;
const CT_SREG: u16 = 4;
const CT_DIRECTION: u32 = 1;
const CT_MARK: u32 = 3;
/// `IP_CT_DIR_REPLY`.
const CT_REPLY: u8 = 1;
const FIB_ADDRESS_TYPE: u32 = 3;
const FIB_SOURCE: u32 = 1;
const FIB_DESTINATION: u32 = 2;
const RTN_LOCAL: u32 = 2;
/// `lo` is the first interface of every namespace.
const LO: u32 = 1;
/// `NFT_GOTO`.
const GOTO: u32 = (-4_i32).cast_unsigned();
