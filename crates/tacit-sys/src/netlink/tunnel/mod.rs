//! Installs the routes to the TUN device of a program under `tacit run`. If a policy rule requires
//! an IPsec tunnel for a packet, the packet takes one of these routes. The routes have precedence
//! over all other routes of the run.
//!
//! ```text
//! priority  packets                                   routing table
//!   3       to the run's own addresses                `local`, except its route for all addresses
//!   5, 6    from sockets of the agent                 `local`
//!   10..    with protocol and ports of a policy rule  a separate table for each routing rule
//!   80..    in place of 10.., after a change           a separate table for each routing rule
//!   196..   IPv6: all other TCP, UDP and ICMPv6       `local`: the nftables rules decide
//!   199     IPv6: look-ups for ICMP errors            none: the look-up fails
//!   200     all other packets                         `local`: the nftables rules decide
//!
//! routes in each separate table
//!   PREFIX dev tacitN src ADDRESS mtu N  into the tunnel
//!   unreachable PREFIX metric 1000       used while the device does not exist
//! ```
//!
//! The table `local` contains a route for all addresses, and by default the kernel looks at this
//! table first. So this module adds a routing rule for `local` after the rules for tunnels, and
//! removes the kernel's own routing rule for this table.
//!
//! Only one of the priority ranges 10.. and 80.. is in use. A change of the routes has four steps,
//! so that no packet is refused during the change:
//!
//! 1. Add the `unreachable` routes to new tables.
//! 2. Add the routes into the tunnel to the new tables.
//! 3. Add the routing rules for the new tables, in the priority range that is not in use.
//! 4. Remove the old routing rules and tables.
//!
//! If step 2 fails, step 3 is done nevertheless: the `unreachable` routes then refuse the packets.
//!
//! The device and its routes disappear when no process holds the device any more. The
//! `unreachable` routes remain, so no packet leaves in clear by another route.
//!
//! Each route contains the MTU of the path, so the kernel knows how long a packet may be. ICMP
//! errors alone cannot set the MTU of every route: for an ICMP error, the kernel looks up the route
//! without ports, so routing rules with port ranges do not match.
//!
//! All state is in the kernel, so another process with the netlink socket can continue the work.
//!
//! Limits: [`GROUPS_MAX`] groups of routes, [`ROUTES_MAX`] routes.

mod device;
mod route;
mod rule;

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::error::Error;
use super::message::NetlinkRequest;
use super::socket::Netlink;
use crate::ip_version::IpVersion;
use rule::Present;

/// The largest number of groups of one IP version: the kernel compares each packet with one rule
/// after the other.
pub const GROUPS_MAX: usize = 64;

/// The largest number of routes of all groups.
pub const ROUTES_MAX: usize = 16_384;

/// How often the kernel is asked for a list that changes meanwhile.
const LISTS_MAX: u32 = 8;

/// The messages that are sent at once, so that their answers fit into the receive buffer.
const MESSAGES_AT_ONCE: usize = 256;

/// Flows of one transport protocol with the same ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowGroup {
    /// The IP version.
    pub version: IpVersion,
    /// The number of the protocol.
    pub protocol: u8,
    /// The ports of the run's programs; `None`: all.
    pub local_ports: Option<RangeInclusive<u16>>,
    /// The ports of the other hosts; `None`: all.
    pub remote_ports: Option<RangeInclusive<u16>>,
    /// The prefixes whose flows are protected. The next group decides about all others.
    pub routes: Vec<FlowRoute>,
}

/// The route of a prefix within a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRoute {
    /// The first address of the prefix.
    pub address: IpAddr,
    /// The length of the prefix.
    pub prefix_bits: u8,
    /// The address of programs inside the tunnel; `None`: it is not known yet, and packets reach no
    /// host.
    pub source: Option<IpAddr>,
    /// The largest size of a packet, in bytes; `None`: that of the device.
    pub mtu_bytes: Option<u32>,
}

/// The TUN device of a run, and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelDevice {
    /// The name of the interface.
    pub name: String,
    /// The addresses inside the tunnels.
    pub addresses: Vec<IpAddr>,
    /// The largest size of a packet, in bytes.
    pub mtu_bytes: u32,
}

/// Routes the flows of these groups into the device, and all others as without a tunnel. Without a
/// device the flows reach no host.
///
/// # Errors
/// There are too many groups or routes; the first step that the kernel refuses. No protected flow
/// takes another route then.
pub fn replace(
    route: &mut Netlink,
    device: Option<&TunnelDevice>,
    groups: &[FlowGroup],
) -> Result<(), Error> {
    let routes: usize = groups.iter().map(|group| group.routes.len()).sum();
    if routes > ROUTES_MAX {
        return Err(Error::Invalid("the tunnels of a run have too many prefixes"));
    }
    let index = device.map(|device| device::index(route, &device.name)).transpose()?;
    let mut changes: Vec<Change<'_>> = Vec::new();
    for version in IpVersion::ALL {
        let groups: Vec<_> = groups.iter().filter(|group| group.version == version).collect();
        if groups.len() > GROUPS_MAX {
            return Err(Error::Invalid("the tunnels of a run need too many routing rules"));
        }
        let present = match rule::of_groups(route, version) {
            // The kernel has no routing rules of IPv6, so the run has none.
            Err(error) if groups.is_empty() && rule::lacks_version(&error) => Present::default(),
            present => present?,
        };
        if groups.is_empty() && present.is_empty() {
            continue;
        }
        changes.push((version, groups, present));
    }
    for (version, groups, present) in &changes {
        rule::prepare(route, *version)?;
        let slot = present.free_slot();
        rule::remove(route, *version, slot)?;
        route::remove(route, *version, slot)?;
        send_of_each(route, groups, |number, group| route::guards(group, slot.table(number)))?;
    }
    let led = match device.zip(index) {
        Some((device, index)) => lead_into(route, device, index, &changes),
        None => Ok(()),
    };
    for (_, groups, present) in &changes {
        let slot = present.free_slot();
        send_of_each(route, groups, |number, group| rule::of_group(group, slot, number))?;
    }
    led?;
    for (version, _, present) in &changes {
        let old = present.free_slot().other();
        rule::remove(route, *version, old)?;
        route::remove(route, *version, old)?;
    }
    Ok(())
}

/// Configures the device, and completes the new tables with the routes into it.
fn lead_into(
    route: &mut Netlink,
    device: &TunnelDevice,
    index: u32,
    changes: &[Change<'_>],
) -> Result<(), Error> {
    device::configure(route, device, index)?;
    if changes.iter().any(|(version, ..)| *version == IpVersion::V6) {
        rule::shield(route, &device.addresses)?;
    }
    for (_, groups, present) in changes {
        let slot = present.free_slot();
        send_of_each(route, groups, |number, group| {
            route::into_device(group, slot.table(number), index)
        })?;
    }
    Ok(())
}

/// The new groups of an IP version, and the rules that are present.
type Change<'a> = (IpVersion, Vec<&'a FlowGroup>, Present);

/// Sends the messages of each group.
fn send_of_each<'a, M: IntoIterator<Item = NetlinkRequest>>(
    route: &mut Netlink,
    groups: &[&'a FlowGroup],
    messages: impl Fn(usize, &'a FlowGroup) -> M,
) -> Result<(), Error> {
    let groups = groups.iter().enumerate();
    send(route, groups.flat_map(|(number, group)| messages(number, group)))
}

/// Sends some messages at a time.
fn send(route: &mut Netlink, messages: impl Iterator<Item = NetlinkRequest>) -> Result<(), Error> {
    let all: Vec<_> = messages.collect();
    all.chunks(MESSAGES_AT_ONCE).try_for_each(|some| route.run(some.to_vec()))
}

fn ignore(result: Result<(), Error>, errno: i32) -> Result<(), Error> {
    match result {
        Err(error) if error.errno() == Some(errno) => Ok(()),
        other => other,
    }
}

/// Lists again if the kernel has changed meanwhile what it lists: such a list may lack entries.
fn unbroken<T>(mut list: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..LISTS_MAX {
        match list() {
            Err(error) if error.errno() == Some(libc::EINTR) => {}
            result => return result,
        }
    }
    list()
}

/// The two slots for the rules and tables of all groups, one of which is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupSlot {
    First,
    Second,
}

impl GroupSlot {
    fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    fn first_priority(self) -> u32 {
        match self {
            Self::First => 10,
            Self::Second => 80,
        }
    }

    fn first_table(self) -> u32 {
        match self {
            Self::First => 31_500,
            Self::Second => 31_600,
        }
    }

    fn table(self, number: usize) -> u32 {
        self.first_table() + u32::try_from(number).unwrap_or_default()
    }

    fn tables(self) -> RangeInclusive<u32> {
        self.table(0)..=self.table(GROUPS_MAX - 1)
    }

    fn priority(self, number: usize) -> u32 {
        self.first_priority() + u32::try_from(number).unwrap_or_default()
    }
}

fn family(version: IpVersion) -> u8 {
    match version {
        IpVersion::V4 => 2,
        IpVersion::V6 => 10,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_list_that_changed_meanwhile_is_read_again_and_an_error_is_no_empty_list() {
        let failed = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            Err::<(), _>(Error::Socket { call: "recv", error })
        };
        let mut tries = 0;
        let mut list = |succeeds_at: u32, errno| {
            tries = 0;
            let result = unbroken(|| {
                tries += 1;
                if tries == succeeds_at { Ok(()) } else { failed(errno) }
            });
            (result.err().and_then(|error| error.errno()), tries)
        };
        assert_eq!(list(3, libc::EINTR), (None, 3));
        assert_eq!(list(u32::MAX, libc::EINTR), (Some(libc::EINTR), LISTS_MAX));
        assert_eq!(list(2, libc::ENOBUFS), (Some(libc::ENOBUFS), 1));
        let refusal = |errno| failed(errno).unwrap_err();
        assert!(rule::lacks_version(&refusal(libc::EAFNOSUPPORT)));
        assert!(!rule::lacks_version(&refusal(libc::ENOBUFS)));
    }
}
