//! Creates routes that keep all packets of a program under `tacit run` in the network namespace of
//! the program. There, nftables rules capture the packets.
//!
//! All packets of the program arrive on `lo`, because a local route contains all addresses (AnyIP).
//! The route has a preferred source address. Without a preferred source address, a connection would
//! have its destination address as its source address too.
//!
//! For IPv6, there are two source addresses: one for destinations with unique local addresses
//! (fc00::/7), and one for all other destinations. So a program chooses between IPv4 and IPv6 as it
//! would without tacit (RFC 6724, section 5, rule 5).
//!
//! A socket that is bound to an interface takes only routes over this interface. So each interface
//! has a local route for all addresses too (`of_interface`). Packets on a local route arrive on
//! `lo`, whatever its interface is. The kernel takes an answer as received on the interface that
//! has the address of the program, so the socket gets the answer.
//!
//! If the namespace has no IPv6, `connect` to an IPv6 address fails at once with `ENETUNREACH`. If
//! the namespace has no IPv4, `connect` to an IPv4 address fails at once with `ENETUNREACH` too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::error::Error;
use super::message::{NLM_F_ACK, NetlinkRequest, attributes, read_u32};
use super::socket::{Netlink, ReplyCount};
use crate::ip_version::IpVersion;

/// The namespace's own IPv4 address.
pub const OWN_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

/// The namespace's own IPv6 address. It is from the discard-only block (RFC 6666), in which no host
/// has an address.
pub const OWN_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0x15);

/// The namespace's own address for traffic to unique local addresses.
pub const OWN_UNIQUE_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x7ac1, 0, 0, 0, 0, 0, 0x15);

/// The largest size of a segment on `lo`, in bytes. The kernel's default is 64 KiB.
pub const SEGMENT_BYTES_MAX: u32 = 256 * 1024;

/// The address families of a namespace: those that the host can route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Families {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

impl Families {
    /// Whether the namespace has this IP version.
    #[must_use]
    pub fn has(self, version: IpVersion) -> bool {
        match version {
            IpVersion::V4 => self.v4,
            IpVersion::V6 => self.v6,
        }
    }
}

/// The source addresses of programs, by the kind of destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceAddresses {
    /// For IPv4 destinations.
    pub v4: Ipv4Addr,
    /// For IPv6 destinations.
    pub v6: Ipv6Addr,
    /// For unique local IPv6 destinations.
    pub unique_local: Ipv6Addr,
}

impl Default for SourceAddresses {
    /// The addresses of the namespace itself.
    fn default() -> Self {
        Self { v4: OWN_V4, v6: OWN_V6, unique_local: OWN_UNIQUE_LOCAL }
    }
}

/// The IP versions for which `lo` has segments of [`SEGMENT_BYTES_MAX`]. Needs Linux 6.3 (IPv4) and
/// 5.19 (IPv6). Smaller segments work too, but cost more CPU time for each byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LargeSegments {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

/// Brings `lo` up. The namespace then has its own loopback and nothing else.
///
/// # Errors
/// The error of the kernel.
pub fn bring_up(route: &mut Netlink) -> Result<(), Error> {
    let up = NetlinkRequest::new("enabling lo", RTM_NEWLINK, NLM_F_ACK);
    route.run(vec![up.fixed(&interface(IFF_UP))])
}

/// Routes every address of the families to `lo`, and sets the source addresses of programs. `lo`
/// must be up. The namespace must already have the source addresses that are not its own. Existing
/// routes are kept.
///
/// # Errors
/// The first step that the kernel refused; all other steps are done.
pub fn allow(
    route: &mut Netlink,
    families: Families,
    sources: SourceAddresses,
) -> Result<(), Error> {
    let messages = messages(families, sources);
    if messages.is_empty() { Ok(()) } else { route.run(messages) }
}

/// Allows large segments on `lo`, as far as the kernel supports them, and returns for which IP
/// versions it has them.
///
/// # Errors
/// The kernel does not report the properties of the interface.
pub fn allow_large_segments(route: &mut Netlink) -> Result<LargeSegments, Error> {
    for kinds in [LARGE_V6, LARGE_V4] {
        match route.run(vec![large_segments_message(kinds)]) {
            // An older kernel refuses the size, or ignores attributes that it does not know. So the
            // result is queried below.
            Ok(()) | Err(Error::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let question = NetlinkRequest::new("finding lo", RTM_GETLINK, 0).fixed(&interface(0));
    let mut supported = LargeSegments::default();
    route.ask(question, ReplyCount::One, |answer| {
        supported = large_segments(answer);
        Ok(())
    })?;
    Ok(supported)
}

/// Parses for which IP versions an interface has large segments.
pub(super) fn large_segments(answer: &[u8]) -> LargeSegments {
    let answer = answer.get(IFINFO_BYTES..).unwrap_or_default();
    let is_large = |wanted| {
        let value = attributes(answer).find(|(kind, _)| *kind == wanted);
        value.and_then(|(_, value)| read_u32(value, 0)) == Some(SEGMENT_BYTES_MAX)
    };
    LargeSegments { v4: LARGE_V4.into_iter().all(is_large), v6: LARGE_V6.into_iter().all(is_large) }
}

fn messages(families: Families, sources: SourceAddresses) -> Vec<NetlinkRequest> {
    let mut all = Vec::new();
    if families.v4 {
        if sources.v4 == OWN_V4 {
            all.push(address_v4("adding the address 10.0.2.15 to lo", OWN_V4));
        }
        let source = sources.v4.octets();
        all.push(route_message("routing all IPv4 addresses to lo", INET, RT_SCOPE_HOST, &source));
    }
    if families.v6 {
        let all_v6 = "routing all IPv6 addresses to lo";
        let unique_local = "routing unique local IPv6 addresses to lo";
        if sources.v6 == OWN_V6 {
            all.push(address_v6("adding the address 100::15 to lo", OWN_V6));
        }
        all.push(route_message(all_v6, INET6, RT_SCOPE_UNIVERSE, &sources.v6.octets()));
        if sources.unique_local == OWN_UNIQUE_LOCAL {
            all.push(address_v6("adding the address fd00:7ac1::15 to lo", OWN_UNIQUE_LOCAL));
        }
        let source = sources.unique_local.octets();
        let to = Some(Prefix { address: &UNIQUE_LOCAL.octets(), length: 7 });
        all.push(route_to(unique_local, to, INET6, RT_SCOPE_UNIVERSE, &source));
    }
    all
}

fn address_v4(step: &'static str, own: Ipv4Addr) -> NetlinkRequest {
    let mut message = NetlinkRequest::new(step, RTM_NEWADDR, CREATE);
    message = message.fixed(&address(INET, 32, RT_SCOPE_HOST));
    message.attribute(IFA_LOCAL, &own.octets());
    message.attribute(IFA_ADDRESS, &own.octets());
    message
}

fn address_v6(step: &'static str, own: Ipv6Addr) -> NetlinkRequest {
    let mut message = NetlinkRequest::new(step, RTM_NEWADDR, CREATE);
    message = message.fixed(&address(INET6, 128, RT_SCOPE_UNIVERSE));
    message.attribute(IFA_ADDRESS, &own.octets());
    message.attribute(IFA_FLAGS, &IFA_F_NODAD.to_ne_bytes());
    message
}

/// Builds a route for all addresses.
fn route_message(step: &'static str, family: u8, scope: u8, source: &[u8]) -> NetlinkRequest {
    route_to(step, None, family, scope, source)
}

/// The destination of a route.
#[derive(Clone, Copy)]
struct Prefix<'a> {
    address: &'a [u8],
    /// The length of the prefix, in bits.
    length: u8,
}

fn route_to(
    step: &'static str,
    to: Option<Prefix<'_>>,
    family: u8,
    scope: u8,
    source: &[u8],
) -> NetlinkRequest {
    let dst_len = to.map_or(0, |prefix| prefix.length);
    let header = local_route(family, dst_len, scope);
    let mut message = NetlinkRequest::new(step, RTM_NEWROUTE, CREATE).fixed(&header);
    if let Some(Prefix { address, .. }) = to {
        message.attribute(RTA_DST, address);
    }
    message.attribute(RTA_OIF, &LO.to_ne_bytes());
    message.attribute(RTA_PREFSRC, source);
    message
}

/// Builds the route of one IP version for sockets that are bound to an interface, with an address
/// of the interface. It replaces an earlier one. Sockets that are not bound take the route over
/// `lo`, which has a lower metric.
pub(super) fn of_interface(index: u32, source: IpAddr) -> NetlinkRequest {
    let step = "routing packets of sockets that are bound to an interface to lo";
    let mut message = NetlinkRequest::new(step, RTM_NEWROUTE, CREATE);
    message = over_interface(message, index, IpVersion::of(source));
    // For IPv6, the kernel chooses the source among the addresses of the interface.
    if let IpAddr::V4(source) = source {
        message.attribute(RTA_PREFSRC, &source.octets());
    }
    message
}

/// Removes the route of one IP version for sockets that are bound to an interface.
pub(super) fn without_interface(index: u32, version: IpVersion) -> NetlinkRequest {
    let step = "removing the route for sockets that are bound to an interface";
    over_interface(NetlinkRequest::new(step, RTM_DELROUTE, NLM_F_ACK), index, version)
}

fn over_interface(message: NetlinkRequest, index: u32, version: IpVersion) -> NetlinkRequest {
    let header = match version {
        IpVersion::V4 => local_route(INET, 0, RT_SCOPE_HOST),
        IpVersion::V6 => local_route(INET6, 0, RT_SCOPE_UNIVERSE),
    };
    let mut message = message.fixed(&header);
    message.attribute(RTA_OIF, &index.to_ne_bytes());
    // Two routes for the same addresses need different metrics.
    message.attribute(RTA_PRIORITY, &METRIC_OF_INTERFACES.saturating_add(index).to_ne_bytes());
    message
}

/// `rtmsg`: family, lengths of destination and source, tos, table, protocol, scope, type, flags.
fn local_route(family: u8, dst_len: u8, scope: u8) -> [u8; 12] {
    let [src_len, tos] = [0; 2];
    let table = RT_TABLE_LOCAL;
    [family, dst_len, src_len, tos, table, RTPROT_STATIC, scope, RTN_LOCAL, 0, 0, 0, 0]
}

fn large_segments_message(kinds: [u16; 2]) -> NetlinkRequest {
    let mut message =
        NetlinkRequest::new("allowing large TCP segments on lo", RTM_NEWLINK, NLM_F_ACK);
    message = message.fixed(&interface(0));
    for kind in kinds {
        message.attribute(kind, &SEGMENT_BYTES_MAX.to_ne_bytes());
    }
    message
}

/// `ifaddrmsg`: family, prefix length, flags, scope, interface.
fn address(family: u8, prefix_len: u8, scope: u8) -> [u8; 8] {
    let [a, b, c, d] = LO.to_ne_bytes();
    [family, prefix_len, 0, scope, a, b, c, d]
}

/// `ifinfomsg` of `lo`: family, type, index, flags, and the mask of flags to change.
fn interface(flags: u32) -> [u8; IFINFO_BYTES] {
    let mut bytes = [0; IFINFO_BYTES];
    bytes[4..8].copy_from_slice(&LO.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes[12..16].copy_from_slice(&flags.to_ne_bytes());
    bytes
}

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
/// The message is acknowledged. An entry is created or replaced (`NLM_F_CREATE`, `NLM_F_REPLACE`).
const CREATE: u16 = NLM_F_ACK | 0x400 | 0x100;

/// `lo` is the first interface of every namespace.
pub(crate) const LO: u32 = 1;
const IFF_UP: u32 = 1;
const IFINFO_BYTES: usize = 16;
const INET: u8 = 2;
const INET6: u8 = 10;

/// The block of unique local addresses is `fc00::/7`.
const UNIQUE_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0);

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// No duplicate address detection, because the address would be unusable for a second.
const IFA_F_NODAD: u32 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RT_TABLE_LOCAL: u8 = 255;
const RTPROT_STATIC: u8 = 4;
/// Higher than the metrics of the routes over `lo`, which are 0 for IPv4 and 1024 for IPv6.
const METRIC_OF_INTERFACES: u32 = 0x1_0000;
const RTN_LOCAL: u8 = 2;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_HOST: u8 = 254;
/// `IFLA_GSO_MAX_SIZE`, `IFLA_GRO_MAX_SIZE`.
const LARGE_V6: [u16; 2] = [41, 58];
/// `IFLA_GSO_IPV4_MAX_SIZE`, `IFLA_GRO_IPV4_MAX_SIZE`.
const LARGE_V4: [u16; 2] = [63, 64];

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        crate::netlink::testing::bytes(hex)
    }

    /// The expected bytes in these tests are those of little-endian machines.
    #[test]
    #[cfg(target_endian = "little")]
    fn six_messages_byte_by_byte() {
        let wanted = [
            "2800 0000 1400 0505 00000000 00000000 02 20 00 fe 01000000 \
             0800 0200 0a00020f 0800 0100 0a00020f",
            "2c00 0000 1800 0505 00000000 00000000 02 00 00 00 ff 04 fe 02 00000000 \
             0800 0400 01000000 0800 0700 0a00020f",
            "3400 0000 1400 0505 00000000 00000000 0a 80 00 00 01000000 \
             1400 0100 01000000000000000000000000000015 0800 0800 02000000",
            "3800 0000 1800 0505 00000000 00000000 0a 00 00 00 ff 04 00 02 00000000 \
             0800 0400 01000000 1400 0700 01000000000000000000000000000015",
            "3400 0000 1400 0505 00000000 00000000 0a 80 00 00 01000000 \
             1400 0100 fd007ac1000000000000000000000015 0800 0800 02000000",
            "4c00 0000 1800 0505 00000000 00000000 0a 07 00 00 ff 04 00 02 00000000 \
             1400 0100 fc000000000000000000000000000000 \
             0800 0400 01000000 1400 0700 fd007ac1000000000000000000000015",
        ];
        let both = messages(Families { v4: true, v6: true }, SourceAddresses::default());
        assert_eq!(both.len(), wanted.len());
        for (message, wanted) in both.iter().zip(wanted) {
            assert_eq!(crate::netlink::testing::sealed(message), bytes(wanted), "{wanted}");
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_routes_of_an_interface_byte_by_byte() {
        let [v4, v6] = ["198.51.100.2", "2001:db8::2"].map(|text| text.parse().unwrap());
        let wanted = [
            (
                of_interface(5, v4),
                "3400 0000 1800 0505 00000000 00000000 02 00 00 00 ff 04 fe 02 00000000 \
                 0800 0400 05000000 0800 0600 05000100 0800 0700 c6336402",
            ),
            (
                of_interface(5, v6),
                "2c00 0000 1800 0505 00000000 00000000 0a 00 00 00 ff 04 00 02 00000000 \
                 0800 0400 05000000 0800 0600 05000100",
            ),
            (
                without_interface(5, IpVersion::V4),
                "2c00 0000 1900 0500 00000000 00000000 02 00 00 00 ff 04 fe 02 00000000 \
                 0800 0400 05000000 0800 0600 05000100",
            ),
        ];
        for (message, wanted) in wanted {
            assert_eq!(crate::netlink::testing::sealed(&message), bytes(wanted), "{wanted}");
        }
    }

    #[test]
    fn a_family_that_was_not_asked_for_is_absent() {
        let steps = |v4, v6| {
            let messages = messages(Families { v4, v6 }, SourceAddresses::default());
            messages.iter().map(|message| message.step).collect::<Vec<_>>()
        };
        assert!(steps(false, false).is_empty());
        assert!(steps(true, false).iter().all(|step| !step.contains("IPv6")));
        assert_eq!(steps(false, true).len(), 4);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn large_segments_byte_by_byte() {
        let wanted = "3000 0000 1000 0500 00000000 00000000 0000 0000 01000000 00000000 00000000 \
                      0800 3f00 00000400 0800 4000 00000400";
        let message = large_segments_message(LARGE_V4);
        assert_eq!(crate::netlink::testing::sealed(&message), bytes(wanted));
    }
}
