//! Copies the interfaces and addresses of the host into the network namespace of a program under
//! `tacit run`. So the program finds the interfaces that it would find on the host.
//!
//! ```text
//! host:  eth0 198.51.100.2/24      interfaces() ──> list
//! run:   eth0 198.51.100.2/24  <── give(list)      a dummy, or one end of a veth pair
//! ```
//!
//! A copied interface transmits no packets, and its addresses have no routes to their networks. So
//! the program's packets are still captured. Those of sockets that are bound to the interface are
//! captured too: a local route of the interface leads them to `lo` ([`lead_to_lo`]).
//!
//! Loopback addresses and link-local IPv6 addresses are not copied, because every namespace has its
//! own.
//!
//! Limits: [`INTERFACES_MAX`] interfaces and [`ADDRESSES_MAX`] addresses are copied.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::error::Error;
use super::message::{NLM_F_ACK, NetlinkRequest, attributes, read_u16, read_u32};
use super::route::{self, Families, LO, OWN_UNIQUE_LOCAL, OWN_V4, OWN_V6};
use super::socket::{Netlink, ReplyCount};
use crate::ip_version::IpVersion;

/// The largest number of interfaces that are copied into a namespace.
pub const INTERFACES_MAX: usize = 32;
/// The largest number of addresses that are copied into a namespace.
pub const ADDRESSES_MAX: usize = 512;
/// The longest name of an interface, with its zero byte (`IFNAMSIZ`).
const NAME_BYTES_MAX: usize = 16;

/// An interface with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name; `lo` for the loopback interface.
    pub name: String,
    /// Its addresses, none of them loopback or link-local IPv6.
    pub addresses: Vec<Assigned>,
}

/// An address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assigned {
    /// The address.
    pub address: IpAddr,
    /// The length of the network prefix, in bits.
    pub prefix_bits: u8,
}

/// The addresses of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The interfaces that are up, in the order of their creation, each with its usable addresses.
    pub interfaces: Vec<Interface>,
    /// All other addresses: those of interfaces that are down, and those whose duplicate address
    /// detection is not complete or has failed. The kernel still delivers packets to many of them.
    pub elsewhere: Vec<IpAddr>,
}

/// Lists all interfaces and addresses of the namespace.
///
/// # Errors
/// The error of the netlink socket.
pub fn find(route: &mut Netlink) -> Result<Found, Error> {
    let links = links(route)?;
    let mut usable: BTreeMap<u32, Vec<Assigned>> = BTreeMap::new();
    let mut found = Found::default();
    for Known { index, assigned, is_usable } in known(route)? {
        if is_usable && links.get(&index).is_some_and(|link| link.is_up) {
            usable.entry(index).or_default().push(assigned);
        } else {
            found.elsewhere.push(assigned.address);
        }
    }
    let named = usable.into_iter().filter_map(|(index, addresses)| {
        Some(Interface { name: links.get(&index)?.name.clone(), addresses })
    });
    found.interfaces = named.collect();
    Ok(found)
}

/// Lists the interfaces that are up and have addresses, in the order of their creation.
///
/// # Errors
/// The error of the netlink socket.
pub fn interfaces(route: &mut Netlink) -> Result<Vec<Interface>, Error> {
    Ok(find(route)?.interfaces)
}

/// Adds these interfaces and addresses to those of the namespace. Entries above the limits are
/// omitted.
///
/// # Errors
/// The first step that the kernel refused; all other steps are done.
pub fn give(route: &mut Netlink, wanted: &[Interface]) -> Result<(), Error> {
    let mut refusal = None;
    for interface in wanted.iter().take(INTERFACES_MAX) {
        let there = links(route)?;
        if !there.values().any(|link| link.name == interface.name) {
            note(&mut refusal, make(route, &interface.name, &there));
        }
    }
    let wanted = numbered(route, wanted)?;
    let there = addresses(route)?;
    let new = wanted.iter().filter(|one| !there.contains(one));
    let messages: Vec<_> =
        new.map(|(index, one)| address_message(Step::Add, *index, *one)).collect();
    if !messages.is_empty() {
        note(&mut refusal, route.run(messages));
    }
    refusal.map_or(Ok(()), Err)
}

/// Removes the addresses that an earlier call added and that are not in `wanted`. An interface that
/// is no longer wanted stays, without addresses.
///
/// # Errors
/// The first step that the kernel refused; all other steps are done.
pub fn take_others(route: &mut Netlink, wanted: &[Interface]) -> Result<(), Error> {
    let wanted = numbered(route, wanted)?;
    let there = addresses(route)?;
    let links = links(route)?;
    // The addresses of tunnels are on TUN devices, which no copy of an interface is.
    let is_copied = |index: &u32| links.get(index).is_some_and(|link| !link.is_bare);
    let gone = there.iter().filter(|(index, one)| {
        !wanted.contains(&(*index, *one)) && is_copied(index) && !is_of_every_run(one.address)
    });
    let messages: Vec<_> =
        gone.map(|(index, one)| address_message(Step::Remove, *index, *one)).collect();
    if messages.is_empty() { Ok(()) } else { route.run(messages) }
}

/// Leads the packets of sockets that are bound to one of these interfaces to `lo`. Over IPv4, their
/// source is the first IPv4 address of the interface; over IPv6, the kernel chooses one. Removes
/// the route of an interface that no longer has an address of the IP version. The interfaces must
/// already have the addresses.
///
/// # Errors
/// The first step that the kernel refused; all other steps are done.
pub fn lead_to_lo(
    netlink: &mut Netlink,
    families: Families,
    wanted: &[Interface],
) -> Result<(), Error> {
    let versions: Vec<_> = IpVersion::ALL.into_iter().filter(|one| families.has(*one)).collect();
    let mut sources = BTreeMap::new();
    for (index, assigned) in numbered(netlink, wanted)? {
        let version = IpVersion::of(assigned.address);
        if versions.contains(&version) {
            sources.entry((index, version.index())).or_insert(assigned.address);
        }
    }
    let mut refusal = None;
    let added: Vec<_> =
        sources.iter().map(|((index, _), source)| route::of_interface(*index, *source)).collect();
    if !added.is_empty() {
        note(&mut refusal, netlink.run(added));
    }
    for index in links(netlink)?.into_keys() {
        for version in &versions {
            if sources.contains_key(&(index, version.index())) {
                continue;
            }
            match netlink.run(vec![route::without_interface(index, *version)]) {
                Err(error) if error.errno() == Some(libc::ESRCH) => {}
                removed => note(&mut refusal, removed),
            }
        }
    }
    refusal.map_or(Ok(()), Err)
}

/// Returns the indexes of the interfaces that have the address. A socket that is bound to an
/// interface gets answers at this address only if the interface is one of them.
///
/// # Errors
/// The error of the netlink socket.
pub fn with_address(route: &mut Netlink, address: IpAddr) -> Result<Vec<u32>, Error> {
    let address = address.to_canonical();
    if address.is_loopback() {
        return Ok(vec![LO]);
    }
    let all = addresses(route)?.into_iter();
    Ok(all.filter(|(_, one)| one.address == address).map(|(index, _)| index).collect())
}

/// Returns the addresses with the indexes of their interfaces.
fn numbered(route: &mut Netlink, wanted: &[Interface]) -> Result<Vec<(u32, Assigned)>, Error> {
    let numbers: BTreeMap<String, u32> =
        links(route)?.into_iter().map(|(index, link)| (link.name, index)).collect();
    let addresses = wanted
        .iter()
        .filter_map(|interface| Some((*numbers.get(&interface.name)?, &interface.addresses)))
        .flat_map(|(index, addresses)| addresses.iter().map(move |one| (index, *one)));
    Ok(addresses.take(ADDRESSES_MAX).collect())
}

/// Keeps the first error.
fn note(refusal: &mut Option<Error>, step: Result<(), Error>) {
    if let Err(error) = step {
        refusal.get_or_insert(error);
    }
}

/// Creates an interface that transmits no packets, and brings it up.
fn make(route: &mut Netlink, name: &str, there: &BTreeMap<u32, Link>) -> Result<(), Error> {
    let fits = !name.is_empty() && name.len() < NAME_BYTES_MAX && !name.contains('\0');
    if !fits {
        return Err(Error::Invalid("an interface name is not valid"));
    }
    match route.run(vec![dummy(name)]) {
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => {
            let is_free = |peer: &String| !there.values().any(|link| link.name == *peer);
            let peers = (0..INTERFACES_MAX).map(|number| format!("tacit{number}"));
            let peer = peers.into_iter().find(|peer| is_free(peer) && peer != name);
            let peer = peer.ok_or(Error::Invalid(
                "all interface names that tacit uses in a namespace (tacit0, tacit1, ...) are \
                 taken",
            ))?;
            route.run(vec![veth(name, &peer)])?;
            bring_up(route, &peer)?;
        }
        made => made?,
    }
    bring_up(route, name)
}

fn dummy(name: &str) -> NetlinkRequest {
    let mut message = NetlinkRequest::new("creating an interface", RTM_NEWLINK, CREATE);
    message = message.fixed(&[0; IFINFO_BYTES]);
    message.text(IFLA_IFNAME, name);
    message.nest(IFLA_LINKINFO, |info| info.text(IFLA_INFO_KIND, "dummy"));
    message
}

fn veth(name: &str, peer: &str) -> NetlinkRequest {
    let mut message = NetlinkRequest::new("creating a veth pair", RTM_NEWLINK, CREATE);
    message = message.fixed(&[0; IFINFO_BYTES]);
    message.text(IFLA_IFNAME, name);
    one_queue(&mut message);
    message.nest(IFLA_LINKINFO, |info| {
        info.text(IFLA_INFO_KIND, "veth");
        info.nest(IFLA_INFO_DATA, |data| {
            data.nest(VETH_INFO_PEER, |end| {
                end.bytes.extend_from_slice(&[0; IFINFO_BYTES]);
                end.text(IFLA_IFNAME, peer);
                one_queue(end);
            });
        });
    });
    message
}

/// Gives an interface one queue in each direction. Without this, the kernel makes one for each CPU
/// and then waits twice until no CPU uses the others.
fn one_queue(message: &mut NetlinkRequest) {
    for direction in [IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES] {
        message.attribute(direction, &1_u32.to_ne_bytes());
    }
}

/// The interface gets no link-local IPv6 address, because this address would bring a route that is
/// not captured.
fn bring_up(route: &mut Netlink, name: &str) -> Result<(), Error> {
    // A kernel without IPv6 refuses this setting, and does not need it.
    let _ = route.run(vec![no_link_local(name)]);
    let mut flags = [0; IFINFO_BYTES];
    flags[8..12].copy_from_slice(&IFF_UP.to_ne_bytes());
    flags[12..16].copy_from_slice(&IFF_UP.to_ne_bytes());
    let mut up = NetlinkRequest::new("enabling an interface", RTM_NEWLINK, NLM_F_ACK).fixed(&flags);
    up.text(IFLA_IFNAME, name);
    route.run(vec![up])
}

/// The setting with which an interface gets no link-local IPv6 address.
pub(super) fn no_link_local(name: &str) -> NetlinkRequest {
    let mut quiet = NetlinkRequest::new("configuring an interface", RTM_NEWLINK, NLM_F_ACK);
    quiet = quiet.fixed(&[0; IFINFO_BYTES]);
    quiet.text(IFLA_IFNAME, name);
    quiet.nest(IFLA_AF_SPEC, |families| {
        families.nest(u16::from(INET6), |inet6| {
            inet6.attribute(IFLA_INET6_ADDR_GEN_MODE, &[ADDR_GEN_MODE_NONE]);
        });
    });
    quiet
}

/// A change of an address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Add,
    Remove,
}

pub(super) fn address_message(step: Step, index: u32, assigned: Assigned) -> NetlinkRequest {
    let Assigned { address, prefix_bits } = assigned;
    let (family, bytes) = match address {
        IpAddr::V4(address) => (INET, address.octets().to_vec()),
        IpAddr::V6(address) => (INET6, address.octets().to_vec()),
    };
    let [a, b, c, d] = index.to_ne_bytes();
    let mut message = match step {
        Step::Add => NetlinkRequest::new("adding an address to an interface", RTM_NEWADDR, REPLACE),
        Step::Remove => {
            NetlinkRequest::new("removing an address from an interface", RTM_DELADDR, NLM_F_ACK)
        }
    };
    message = message.fixed(&[family, prefix_bits, 0, RT_SCOPE_UNIVERSE, a, b, c, d]);
    message.attribute(IFA_LOCAL, &bytes);
    message.attribute(IFA_ADDRESS, &bytes);
    if step == Step::Add {
        message.attribute(IFA_FLAGS, &(IFA_F_NODAD | IFA_F_NOPREFIXROUTE).to_ne_bytes());
    }
    message
}

/// An interface as the kernel describes it.
pub(super) struct Link {
    pub(super) name: String,
    is_up: bool,
    /// Whether packets on it have no hardware header, as those on a TUN device.
    is_bare: bool,
}

pub(super) fn links(route: &mut Netlink) -> Result<BTreeMap<u32, Link>, Error> {
    let question = NetlinkRequest::new("listing the interfaces", RTM_GETLINK, NLM_F_DUMP);
    let mut found = BTreeMap::new();
    route.ask(question.fixed(&[0; IFINFO_BYTES]), ReplyCount::Many, |answer| {
        let (Some(kind), Some(index), Some(flags)) =
            (read_u16(answer, 2), read_u32(answer, 4), read_u32(answer, 8))
        else {
            return Err(Error::Malformed(
                "the kernel sent an incomplete description of an interface",
            ));
        };
        let about = answer.get(IFINFO_BYTES..).unwrap_or_default();
        if let Some((_, name)) = attributes(about).find(|(kind, _)| *kind == IFLA_IFNAME) {
            let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
            let is_up = flags & IFF_UP != 0;
            found.insert(index, Link { name, is_up, is_bare: kind == ARPHRD_NONE });
        }
        Ok(())
    })?;
    Ok(found)
}

/// An address as the kernel describes it.
struct Known {
    /// The index of its interface.
    index: u32,
    assigned: Assigned,
    is_usable: bool,
}

/// Lists the usable addresses, with the indexes of their interfaces.
pub(super) fn addresses(route: &mut Netlink) -> Result<Vec<(u32, Assigned)>, Error> {
    let usable = known(route)?.into_iter().filter(|known| known.is_usable);
    Ok(usable.map(|known| (known.index, known.assigned)).collect())
}

/// Lists all addresses that can be copied into a namespace.
fn known(route: &mut Netlink) -> Result<Vec<Known>, Error> {
    let question = NetlinkRequest::new("listing the addresses", RTM_GETADDR, NLM_F_DUMP);
    let mut found = Vec::new();
    route.ask(question.fixed(&[0; IFADDR_BYTES]), ReplyCount::Many, |answer| {
        let one = described(answer)?;
        found.extend(one.filter(|known| can_be_given(known.assigned.address)));
        Ok(())
    })?;
    Ok(found)
}

/// Parses an `ifaddrmsg` and its attributes; `None`: the message contains no address.
fn described(answer: &[u8]) -> Result<Option<Known>, Error> {
    let cut = || Error::Malformed("the kernel sent an incomplete description of an address");
    let (Some(head), Some(index)) = (answer.first_chunk::<IFADDR_BYTES>(), read_u32(answer, 4))
    else {
        return Err(cut());
    };
    let mut address = None;
    let mut flags = u32::from(head[2]);
    for (kind, value) in attributes(&answer[IFADDR_BYTES..]) {
        match kind {
            // On a point-to-point link, the other attribute is the address of the far end.
            IFA_LOCAL => address = ip(value),
            IFA_ADDRESS => address = address.or_else(|| ip(value)),
            IFA_FLAGS => flags = read_u32(value, 0).unwrap_or(flags),
            _ => {}
        }
    }
    let is_usable = flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED) == 0;
    Ok(address.map(|address| {
        let assigned = Assigned { address, prefix_bits: head[1] };
        Known { index, assigned, is_usable }
    }))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match *bytes {
        [a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d).into()),
        _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
    }
}

/// Whether every run has this address, whatever addresses its host has.
fn is_of_every_run(address: IpAddr) -> bool {
    let own: [IpAddr; 3] = [OWN_V4.into(), OWN_V6.into(), OWN_UNIQUE_LOCAL.into()];
    own.contains(&address)
}

fn can_be_given(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const NLM_F_DUMP: u16 = 0x300;
/// The message is acknowledged. The entry is created, and the message is refused if the entry
/// exists (`NLM_F_CREATE`, `NLM_F_EXCL`).
const CREATE: u16 = NLM_F_ACK | 0x400 | 0x200;
/// The message is acknowledged. The entry is created or replaced (`NLM_F_CREATE`, `NLM_F_REPLACE`).
const REPLACE: u16 = NLM_F_ACK | 0x400 | 0x100;
/// The hardware type of TUN devices.
const ARPHRD_NONE: u16 = 0xfffe;
const IFINFO_BYTES: usize = 16;
const IFADDR_BYTES: usize = 8;
const IFF_UP: u32 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const ADDR_GEN_MODE_NONE: u8 = 1;
const INET: u8 = 2;
const INET6: u8 = 10;
const RT_SCOPE_UNIVERSE: u8 = 0;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// No duplicate address detection, because the address would be unusable for a second.
const IFA_F_NODAD: u32 = 0x02;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
/// No route to the network of the address, because this network must be captured.
const IFA_F_NOPREFIXROUTE: u32 = 0x200;
