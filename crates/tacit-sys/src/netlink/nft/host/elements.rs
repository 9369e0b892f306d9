//! Builds the messages that add elements to the maps and sets in the nftables table for `tacit
//! agent --host`.

use super::super::batch::{CREATE, TABLE, message};
use super::super::host_expression::{SectionMap, write_accept};
use super::super::primitive::write_goto;
use super::super::sets::{ELEMENTS_PER_MESSAGE_MAX, Element, NEWSETELEM, write_range};
use super::names::{Chain, INBOUND, MAPS};
use super::{CountedElement, HostElement, PacketVerdict};
use crate::netlink::message::NetlinkRequest;
use crate::netlink::protocol::IpProtocol;

/// Elements with verdicts in one message: an attribute's length has 16 bits.
const VERDICTS_PER_MESSAGE_MAX: usize = ELEMENTS_PER_MESSAGE_MAX / 2;

/// What happens to the flows of a section by their destination.
pub(super) fn outbound(section: usize, elements: &[HostElement]) -> Vec<NetlinkRequest> {
    let mut messages = Vec::new();
    for base in MAPS {
        let map = SectionMap { base, section }.name();
        let of_map: Vec<_> = elements.iter().filter(|one| map_of(&one.to) == base).collect();
        for some in of_map.chunks(VERDICTS_PER_MESSAGE_MAX) {
            messages.push(list(&map, some, |one, element| {
                write_range(one, &element.to);
                one.nest(2, |data| write_verdict(data, element.verdict));
            }));
        }
    }
    messages
}

/// The destinations of a section whose flows are counted.
pub(super) fn counted(map: SectionMap, elements: &[&CountedElement]) -> Vec<NetlinkRequest> {
    let set = map.counters();
    let some = elements.chunks(ELEMENTS_PER_MESSAGE_MAX);
    some.map(|some| list(&set, some, |one, element| write_range(one, &element.to))).collect()
}

/// The ports whose clients are captured.
pub(super) fn inbound(elements: &[Element]) -> Vec<NetlinkRequest> {
    let mut messages = Vec::new();
    for set in INBOUND {
        let is_ipv4 = set.ends_with('4');
        let of_set: Vec<_> = elements.iter().filter(|one| one.first.is_ipv4() == is_ipv4).collect();
        for some in of_set.chunks(ELEMENTS_PER_MESSAGE_MAX) {
            messages.push(list(set, some, write_range));
        }
    }
    messages
}

pub(super) fn list<T>(
    name: &str,
    elements: &[&T],
    write: impl Fn(&mut NetlinkRequest, &T),
) -> NetlinkRequest {
    let mut message = message("capturing addresses", NEWSETELEM, CREATE);
    message.text(1, TABLE);
    message.text(2, name);
    message.nest(3, |list| {
        for element in elements {
            list.nest(1, |one| write(one, element));
        }
    });
    message
}

/// The map that has the destinations of an element.
pub(super) fn map_of(element: &Element) -> &'static str {
    let [tcp4, tcp6, udp4, udp6] = MAPS;
    match (element.protocol, element.first.is_ipv4()) {
        (IpProtocol::Tcp, true) => tcp4,
        (IpProtocol::Tcp, false) => tcp6,
        (IpProtocol::Udp, true) => udp4,
        (IpProtocol::Udp, false) => udp6,
    }
}

fn write_verdict(data: &mut NetlinkRequest, verdict: PacketVerdict) {
    match verdict {
        PacketVerdict::Capture => write_goto(data, Chain::Capture.name()),
        PacketVerdict::Pass => write_accept(data),
        PacketVerdict::Refuse => write_goto(data, Chain::Refuse.name()),
        PacketVerdict::Prohibit => write_goto(data, Chain::Prohibit.name()),
    }
}
