//! Encodes the nftables sets of captured destinations, and the messages that change these sets.
//! Packets to a captured destination go to the agent.

use std::net::IpAddr;

use super::batch::{CREATE, NLM_F_EXCL, TABLE, commit, message};
use crate::ip_version::IpVersion;
use crate::netlink::error::Error;
use crate::netlink::message::{NLM_F_ACK, NetlinkRequest};
use crate::netlink::protocol::IpProtocol;
use crate::netlink::socket::Netlink;

/// The largest number of elements that one batch may change.
pub const ELEMENTS_PER_BATCH_MAX: usize = 3000;

/// The largest number of elements in one message. The length of an attribute has 16 bits, and an
/// IPv6 element takes 60 bytes.
pub(super) const ELEMENTS_PER_MESSAGE_MAX: usize = 1000;

/// A range of captured addresses with a range of ports. Both ranges include their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Element {
    /// The transport protocol.
    pub protocol: IpProtocol,
    /// The first address.
    pub first: IpAddr,
    /// The last address, of the same family.
    pub last: IpAddr,
    /// The first port.
    pub first_port: u16,
    /// The last port.
    pub last_port: u16,
}

/// Removes the elements of `remove` and adds the elements of `add` as one transaction: a packet
/// meets the old sets or the new ones. An element must be removed exactly as it was added.
///
/// More than [`ELEMENTS_PER_BATCH_MAX`] elements in total need several transactions; removals come
/// first.
///
/// # Errors
/// The error of the kernel (`EEXIST`: an element overlaps an existing one, `ENOENT`: an element
/// does not exist), or an element whose last value is below its first. The failed transaction has
/// changed nothing.
pub fn change(netfilter: &mut Netlink, remove: &[Element], add: &[Element]) -> Result<(), Error> {
    check(remove)?;
    check(add)?;
    for messages in strokes(remove, add) {
        commit(netfilter, messages)?;
    }
    Ok(())
}

/// Replaces all elements by these.
///
/// # Errors
/// The error of the kernel, or an element whose last value is below its first.
pub fn replace_all(netfilter: &mut Netlink, elements: &[Element]) -> Result<(), Error> {
    check(elements)?;
    let (first, rest) = elements.split_at(elements.len().min(ELEMENTS_PER_BATCH_MAX));
    let mut messages: Vec<_> = Set::ALL.map(Set::emptying).into();
    messages.extend(list(ADDING, first));
    commit(netfilter, messages)?;
    change(netfilter, &[], rest)
}

/// Splits the changes into transactions, and returns the messages of each.
pub(super) fn strokes(remove: &[Element], add: &[Element]) -> Vec<Vec<NetlinkRequest>> {
    if remove.len() + add.len() <= ELEMENTS_PER_BATCH_MAX {
        let both: Vec<_> = list(REMOVING, remove).into_iter().chain(list(ADDING, add)).collect();
        return if both.is_empty() { Vec::new() } else { vec![both] };
    }
    let removals = remove.chunks(ELEMENTS_PER_BATCH_MAX).map(|some| list(REMOVING, some));
    removals.chain(add.chunks(ELEMENTS_PER_BATCH_MAX).map(|some| list(ADDING, some))).collect()
}

pub(super) fn check(elements: &[Element]) -> Result<(), Error> {
    let upright = |element: &Element| {
        element.first.is_ipv4() == element.last.is_ipv4()
            && element.first <= element.last
            && element.first_port <= element.last_port
    };
    let all = elements.iter().all(upright);
    all.then_some(())
        .ok_or(Error::Invalid("the last address or port of a set element is lower than the first"))
}

/// The four sets, by IP version and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Set {
    Tcp4,
    Tcp6,
    Udp4,
    Udp6,
}

impl Set {
    pub(super) const ALL: [Self; 4] = [Self::Tcp4, Self::Tcp6, Self::Udp4, Self::Udp6];

    pub(super) fn of(element: &Element) -> Self {
        match (element.protocol, element.first.is_ipv4()) {
            (IpProtocol::Tcp, true) => Self::Tcp4,
            (IpProtocol::Tcp, false) => Self::Tcp6,
            (IpProtocol::Udp, true) => Self::Udp4,
            (IpProtocol::Udp, false) => Self::Udp6,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp4 => "tcp4",
            Self::Tcp6 => "tcp6",
            Self::Udp4 => "udp4",
            Self::Udp6 => "udp6",
        }
    }

    pub(super) fn declaration(self) -> NetlinkRequest {
        let version = match self {
            Self::Tcp4 | Self::Udp4 => IpVersion::V4,
            Self::Tcp6 | Self::Udp6 => IpVersion::V6,
        };
        declare_ranges(self.name(), version, 1 + self as u32, SetValue::None)
    }

    pub(super) fn emptying(self) -> NetlinkRequest {
        let mut message =
            message("emptying the nftables sets of captured destinations", DELSETELEM, NLM_F_ACK);
        message.text(1, TABLE);
        message.text(2, self.name());
        message
    }
}

/// The value that the elements of a set have in addition to their key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetValue {
    None,
    /// A verdict: the set is a map.
    Verdict,
    /// A counter of the packets that were looked up (Linux 5.7).
    Counter,
}

/// Declares a set whose keys are a range of addresses with a range of ports.
pub(super) fn declare_ranges(
    name: &str,
    version: IpVersion,
    number: u32,
    value: SetValue,
) -> NetlinkRequest {
    let (address_type, address_bytes) = match version {
        IpVersion::V4 => (7, 4),
        IpVersion::V6 => (8, 16),
    };
    let mut message =
        message("creating the nftables sets of address and port ranges", NEWSET, CREATE);
    message.text(1, TABLE);
    message.text(2, name);
    let kind = match value {
        SetValue::None | SetValue::Counter => 0,
        SetValue::Verdict => SET_MAP,
    };
    message.be32(3, SET_INTERVAL | SET_CONCAT | kind);
    // How `nft list` shows the key: the address type, then the port (13).
    message.be32(4, address_type << 6 | 13);
    message.be32(5, address_bytes + 4);
    if value == SetValue::Verdict {
        message.be32(6, DATA_VERDICT);
    }
    message.be32(10, number);
    if value == SetValue::Counter {
        message.nest(SET_EXPRESSION, |counter| {
            counter.text(1, "counter");
            counter.nest(2, |_| {});
        });
    }
    message.nest(9, |description| {
        description.nest(2, |concatenation| {
            for field_bytes in [address_bytes, 2] {
                concatenation.nest(1, |field| field.be32(1, field_bytes));
            }
        });
    });
    message
}

/// A change of elements: the name of the step, the message type and its flags.
pub(super) type SetChange = (&'static str, u16, u16);
pub(super) const ADDING: SetChange =
    ("adding captured addresses to an nftables set", NEWSETELEM, CREATE | NLM_F_EXCL);
pub(super) const REMOVING: SetChange =
    ("removing captured addresses from an nftables set", DELSETELEM, NLM_F_ACK);

pub(super) fn list((step, kind, flags): SetChange, elements: &[Element]) -> Vec<NetlinkRequest> {
    let mut messages = Vec::new();
    for set in Set::ALL {
        let of_set: Vec<_> = elements.iter().filter(|element| Set::of(element) == set).collect();
        for some in of_set.chunks(ELEMENTS_PER_MESSAGE_MAX) {
            let mut message = message(step, kind, flags);
            message.text(1, TABLE);
            message.text(2, set.name());
            message.nest(3, |list| {
                for element in some {
                    write_element(list, element);
                }
            });
            messages.push(message);
        }
    }
    messages
}

fn write_element(list: &mut NetlinkRequest, element: &Element) {
    list.nest(1, |one| write_range(one, element));
}

/// Writes the key of an element.
pub(super) fn write_range(one: &mut NetlinkRequest, element: &Element) {
    let [first, last] = range_keys(element);
    one.nest(1, |held| held.attribute(1, &first));
    one.nest(10, |held| held.attribute(1, &last));
}

/// The key of an element: the first address and port, and the last address and port.
pub(super) fn range_keys(element: &Element) -> [Vec<u8>; 2] {
    let key = |address: IpAddr, port: u16| {
        let mut key = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        key.extend_from_slice(&port.to_be_bytes());
        key.resize(key.len() + 2, 0);
        key
    };
    [key(element.first, element.first_port), key(element.last, element.last_port)]
}

pub(super) const NEWSET: u16 = 9;
pub(super) const NEWSETELEM: u16 = 12;
const DELSETELEM: u16 = 14;
pub(super) const SET_MAP: u32 = 8;
/// `NFT_DATA_VERDICT`.
pub(super) const DATA_VERDICT: u32 = 0xffff_ff00;
pub(super) const SET_INTERVAL: u32 = 4;
pub(super) const SET_CONCAT: u32 = 0x80;
/// `NFTA_SET_EXPR`: each element of the set has an expression of its own like this one.
pub(super) const SET_EXPRESSION: u16 = 17;
