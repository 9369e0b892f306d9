//! Lists the destinations (address ranges) of the routes in a network namespace.
//!
//! A listed destination may still be unreachable, for example because a routing rule selects
//! another table.
//!
//! Limit: [`DESTINATIONS_MAX`] destinations.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::error::Error;
use super::message::{NetlinkRequest, attributes, read_u32};
use super::socket::{Netlink, ReplyCount};
use crate::ip_version::IpVersion;

/// The largest number of routes that are read.
pub const DESTINATIONS_MAX: usize = 4096;

/// The addresses of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteDestination {
    /// The first address.
    pub first: IpAddr,
    /// The last address.
    pub last: IpAddr,
}

impl RouteDestination {
    /// The addresses that have the first `prefix_bits` bits of an address.
    #[must_use]
    pub fn new(network: IpAddr, prefix_bits: u8) -> Self {
        let bits = u32::from(prefix_bits);
        let (first, last): (IpAddr, IpAddr) = match network {
            IpAddr::V4(network) => {
                let others = u32::MAX.checked_shr(bits).unwrap_or(0);
                let first = u32::from(network) & !others;
                (Ipv4Addr::from(first).into(), Ipv4Addr::from(first | others).into())
            }
            IpAddr::V6(network) => {
                let others = u128::MAX.checked_shr(bits).unwrap_or(0);
                let first = u128::from(network) & !others;
                (Ipv6Addr::from(first).into(), Ipv6Addr::from(first | others).into())
            }
        };
        Self { first, last }
    }
}

/// Lists the destinations of the routes of an IP version, in all tables.
///
/// # Errors
/// The error of the netlink socket, or there are more than [`DESTINATIONS_MAX`] routes; then
/// `route` cannot be used again.
pub fn destinations(
    route: &mut Netlink,
    version: IpVersion,
) -> Result<Vec<RouteDestination>, Error> {
    let (family, any): (u8, IpAddr) = match version {
        IpVersion::V4 => (INET, Ipv4Addr::UNSPECIFIED.into()),
        IpVersion::V6 => (INET6, Ipv6Addr::UNSPECIFIED.into()),
    };
    let mut head = [0; RTMSG_BYTES];
    head[0] = family;
    let question = NetlinkRequest::new("listing the routes", RTM_GETROUTE, NLM_F_DUMP).fixed(&head);
    let mut found = Vec::new();
    route.ask(question, ReplyCount::Many, |answer| {
        if found.len() >= DESTINATIONS_MAX {
            return Err(Error::Invalid(
                "the network namespace has more routes than tacit can list",
            ));
        }
        found.extend(described(answer, any)?);
        Ok(())
    })?;
    Ok(found)
}

/// Parses an `rtmsg` and its attributes; `None`: packets do not leave by this route.
pub(super) fn described(answer: &[u8], any: IpAddr) -> Result<Option<RouteDestination>, Error> {
    let cut = || Error::Malformed("the description of a route is truncated");
    let head = answer.first_chunk::<RTMSG_BYTES>().ok_or_else(cut)?;
    let flags = read_u32(answer, 8).ok_or_else(cut)?;
    if ![RTN_UNICAST, RTN_LOCAL].contains(&head[7]) || flags & RTM_F_CLONED != 0 {
        return Ok(None);
    }
    let to = attributes(&answer[RTMSG_BYTES..]).find(|(kind, _)| *kind == RTA_DST);
    let network = match to {
        // The route of all addresses has no destination.
        None => any,
        Some((_, value)) => match (value.first_chunk::<4>(), value.first_chunk::<16>()) {
            (_, Some(bytes)) => Ipv6Addr::from(*bytes).into(),
            (Some(bytes), None) => Ipv4Addr::from(*bytes).into(),
            (None, None) => return Err(cut()),
        },
    };
    Ok(Some(RouteDestination::new(network, head[1])))
}

const RTM_GETROUTE: u16 = 26;
const NLM_F_DUMP: u16 = 0x300;
/// An entry for one address that the kernel has made from a route.
const RTM_F_CLONED: u32 = 0x200;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTA_DST: u16 = 1;
const RTMSG_BYTES: usize = 12;
const INET: u8 = 2;
const INET6: u8 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Subsystem;
    use crate::netlink::testing::bytes;

    #[test]
    fn loopback_has_a_route() {
        let mut route = Netlink::open(Subsystem::Route).unwrap();
        let found = destinations(&mut route, IpVersion::V4).unwrap();
        let loopback = |one: &RouteDestination| one.first == IpAddr::from([127, 0, 0, 1]);
        assert!(found.iter().any(loopback), "{found:?}");
        assert!(destinations(&mut route, IpVersion::V6).is_ok(), "the socket can be used again");
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn only_routes_by_which_packets_leave_are_read() {
        let any = Ipv4Addr::UNSPECIFIED.into();
        let read = |hex: &str| described(&bytes(hex), any).unwrap();
        let between = |first: [u8; 4], last: [u8; 4]| {
            Some(RouteDestination { first: first.into(), last: last.into() })
        };
        let to = "0800 0100 0a090800";
        let network = read(&format!("02 18 00 00 fe 04 00 01 00000000 {to}"));
        assert_eq!(network, between([10, 9, 8, 0], [10, 9, 8, 255]));
        let all = read("02 00 00 00 fe 04 00 01 00000000");
        assert_eq!(all, between([0; 4], [255; 4]));
        let one = read(&format!("02 20 00 00 ff 02 fe 02 00000000 {to}"));
        assert_eq!(one, between([10, 9, 8, 0], [10, 9, 8, 0]));
        assert_eq!(read(&format!("02 18 00 00 fe 04 00 07 00000000 {to}")), None, "unreachable");
        assert_eq!(read(&format!("02 18 00 00 fe 04 00 01 00020000 {to}")), None, "one of a cache");
        assert!(described(&bytes("02 18 00"), any).is_err());
    }
}
