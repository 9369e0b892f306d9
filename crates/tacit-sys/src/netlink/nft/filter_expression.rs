//! Encodes parts of the nftables rules that permit or deny single packets, for `tacit agent
//! --host`. These parts are conditions on the packet, and the look-up of the packet in an nftables
//! map.

use super::agent::FILTERED_PREFIX;
use super::primitive::{
    EQUAL, META_L4PROTO, META_NFPROTO, NETWORK, NOT_EQUAL, NftFamily, PacketEnd, REGISTER_1,
    REGISTER_32_00, REGISTER_VERDICT, TRANSPORT, compare, copy, expression, load, mask,
};
use crate::netlink::message::NetlinkRequest;

/// A part of the key of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyField {
    /// The address of the local end.
    Local,
    /// The address of the remote end.
    Remote,
    /// The port of the local end.
    LocalPort,
    /// The port of the remote end.
    RemotePort,
    /// The type of an ICMP message.
    IcmpType,
    /// The code of an ICMP message.
    IcmpCode,
    /// The transport protocol.
    Protocol,
    /// The name of the interface, with zeros at the end.
    Interface,
    /// The IP version (`NFPROTO_*`).
    Family,
}

impl KeyField {
    pub(super) const ALL: [Self; 9] = [
        Self::Local,
        Self::Remote,
        Self::LocalPort,
        Self::RemotePort,
        Self::IcmpType,
        Self::IcmpCode,
        Self::Protocol,
        Self::Interface,
        Self::Family,
    ];

    /// The length of its value, and how `nft list` shows it.
    pub(super) fn bytes_and_type(self, family: NftFamily) -> (u32, u32) {
        match (self, family) {
            (Self::Local | Self::Remote, NftFamily::V4) => (4, 7),
            (Self::Local | Self::Remote, NftFamily::V6) => (16, 8),
            (Self::LocalPort | Self::RemotePort, _) => (2, 13),
            (Self::IcmpType, NftFamily::V4) => (1, 14),
            (Self::IcmpType, NftFamily::V6) => (1, 29),
            (Self::IcmpCode, NftFamily::V4) => (1, 32),
            (Self::IcmpCode, NftFamily::V6) => (1, 33),
            (Self::Protocol, _) => (1, 12),
            (Self::Interface, _) => (16, 41),
            (Self::Family, _) => (1, 2),
        }
    }

    /// The length of its value.
    pub(super) fn bytes(self, family: NftFamily) -> u32 {
        self.bytes_and_type(family).0
    }

    /// The length in registers.
    pub(super) fn padded_bytes(self, family: NftFamily) -> u32 {
        self.bytes(family).next_multiple_of(4)
    }
}

/// The condition of a group: a schedule is in the set of windows, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketGate {
    /// It is.
    Present(u32),
    /// It is not.
    Absent(u32),
}

/// A condition of a rule for single packets, or a lookup.
#[derive(Clone, Copy, Debug)]
pub(super) enum FilterExpression {
    /// A fragment of IPv4, the first one included.
    IsFragmentV4,
    /// A fragment of IPv6, the first one included.
    IsFragmentV6,
    /// The schedule is in the set of windows, or is not.
    WindowIs(PacketGate),
    /// The verdict that a map has for the packet. If it has none, the next rule decides.
    Lookup(GroupLookup),
    /// Copies the headers of the packet to the agent, with the name of the rule.
    Log(RuleName),
}

/// The name of a rule, in a type that can be copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleName {
    bytes: [u8; RULE_NAME_BYTES_MAX],
    len: usize,
}

impl RuleName {
    /// A longer name is cut; the policy has none.
    pub(super) fn new(name: &str) -> Self {
        let mut bytes = [0; RULE_NAME_BYTES_MAX];
        for (place, byte) in bytes.iter_mut().zip(name.bytes()) {
            *place = byte;
        }
        Self { bytes, len: name.len().min(RULE_NAME_BYTES_MAX) }
    }

    fn prefix(&self) -> String {
        let name = self.bytes.get(..self.len).unwrap_or_default();
        format!("{FILTERED_PREFIX}{}", String::from_utf8_lossy(name))
    }
}

/// How the key of a packet is loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupLookup {
    number: usize,
    family: NftFamily,
    fields: [Option<KeyField>; KeyField::ALL.len()],
    /// Which end of the packet is the local one.
    local: PacketEnd,
}

impl GroupLookup {
    /// The lookup in the map of the group with this number, whose keys have these fields.
    pub(super) fn of(
        number: usize,
        family: NftFamily,
        key: impl Iterator<Item = KeyField>,
        local: PacketEnd,
    ) -> Self {
        let mut fields = [None; KeyField::ALL.len()];
        for (place, field) in fields.iter_mut().zip(key) {
            *place = Some(field);
        }
        Self { number, family, fields, local }
    }

    fn write(self, rule: &mut NetlinkRequest) {
        let mut register = REGISTER_32_00;
        for field in self.fields.into_iter().flatten() {
            self.load(rule, field, register);
            register += field.padded_bytes(self.family) / 4;
        }
        expression(rule, "lookup", |data| {
            data.text(1, &group_name(self.number));
            data.be32(2, REGISTER_1);
            data.be32(3, REGISTER_VERDICT);
        });
    }

    fn load(self, rule: &mut NetlinkRequest, field: KeyField, register: u32) {
        let (source, len) = match self.family {
            NftFamily::V4 => (12, 4),
            NftFamily::V6 => (8, 16),
        };
        let is_source = |is_local: bool| is_local == (self.local == PacketEnd::Source);
        let address = |is_local| if is_source(is_local) { source } else { source + len };
        let port = |is_local| if is_source(is_local) { 0 } else { 2 };
        let interface = match self.local {
            PacketEnd::Source => META_OIFNAME,
            PacketEnd::Destination => META_IIFNAME,
        };
        match field {
            KeyField::Local => load(rule, NETWORK, address(true), len, register),
            KeyField::Remote => load(rule, NETWORK, address(false), len, register),
            KeyField::LocalPort => load(rule, TRANSPORT, port(true), 2, register),
            KeyField::RemotePort => load(rule, TRANSPORT, port(false), 2, register),
            KeyField::IcmpType => load(rule, TRANSPORT, 0, 1, register),
            KeyField::IcmpCode => load(rule, TRANSPORT, 1, 1, register),
            KeyField::Protocol => meta_to(rule, META_L4PROTO, register),
            KeyField::Interface => meta_to(rule, interface, register),
            KeyField::Family => meta_to(rule, META_NFPROTO, register),
        }
    }
}

impl FilterExpression {
    /// Writes the kernel's expressions, each named as a part of the message.
    pub(super) fn write(self, rule: &mut NetlinkRequest) {
        match self {
            Self::IsFragmentV4 => {
                load(rule, NETWORK, 6, 2, REGISTER_1);
                mask(rule, &V4_FRAGMENT.to_be_bytes(), &[0; 2]);
                compare(rule, NOT_EQUAL, &[0; 2]);
            }
            Self::IsFragmentV6 => {
                expression(rule, "exthdr", |data| {
                    data.be32(1, REGISTER_1);
                    data.attribute(2, &[NEXTHDR_FRAGMENT]);
                    data.be32(3, 0);
                    data.be32(4, 1);
                    data.be32(5, EXTHDR_PRESENT);
                    data.be32(6, EXTHDR_IPV6);
                });
                compare(rule, EQUAL, &[1]);
            }
            Self::WindowIs(gate) => {
                let (number, inverted) = match gate {
                    PacketGate::Present(number) => (number, 0),
                    PacketGate::Absent(number) => (number, LOOKUP_INVERTED),
                };
                expression(rule, "immediate", |data| {
                    data.be32(1, REGISTER_1);
                    data.nest(2, |held| held.attribute(1, &number.to_ne_bytes()));
                });
                expression(rule, "lookup", |data| {
                    data.text(1, WINDOWS);
                    data.be32(2, REGISTER_1);
                    data.be32(5, inverted);
                });
            }
            Self::Lookup(lookup) => lookup.write(rule),
            Self::Log(name) => copy(rule, Some(&name.prefix())),
        }
    }
}

/// Loads a property of the packet.
fn meta_to(rule: &mut NetlinkRequest, key: u32, register: u32) {
    expression(rule, "meta", |data| {
        data.be32(2, key);
        data.be32(1, register);
    });
}

const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
/// The name of the map of a group.
pub(super) fn group_name(number: usize) -> String {
    format!("filter_{number}")
}

/// The set of schedules.
pub(super) const WINDOWS: &str = "filter_windows";
/// The longest name of a rule in a policy.
const RULE_NAME_BYTES_MAX: usize = 64;
/// `NFT_LOOKUP_F_INV`.
const LOOKUP_INVERTED: u32 = 1;
/// The bit "more fragments" and the offset.
const V4_FRAGMENT: u16 = 0x3fff;
const NEXTHDR_FRAGMENT: u8 = 44;
const EXTHDR_PRESENT: u32 = 1;
const EXTHDR_IPV6: u32 = 0;
