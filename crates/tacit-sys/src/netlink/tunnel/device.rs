//! Configures the TUN device of a program under `tacit run`: its MTU, its addresses, and whether it
//! is up.

use std::net::IpAddr;

use super::{TunnelDevice, send};
use crate::netlink::error::Error;
use crate::netlink::interfaces::{
    Assigned, Step, address_message, addresses, links, no_link_local,
};
use crate::netlink::message::{NLM_F_ACK, NetlinkRequest};
use crate::netlink::socket::Netlink;

/// The index of the interface with this name.
pub(super) fn index(route: &mut Netlink, name: &str) -> Result<u32, Error> {
    let links = links(route)?;
    let found = links.into_iter().find(|(_, link)| link.name == name);
    found.map(|(index, _)| index).ok_or(Error::Invalid(
        "the network namespace does not contain the TUN device of the tunnel",
    ))
}

/// Brings the device up, with exactly these addresses.
pub(super) fn configure(
    route: &mut Netlink,
    device: &TunnelDevice,
    index: u32,
) -> Result<(), Error> {
    // A kernel without IPv6 refuses this setting, and does not need it.
    let _ = route.run(vec![no_link_local(&device.name)]);
    route.run(vec![link(index, device.mtu_bytes)])?;
    let there: Vec<_> =
        addresses(route)?.into_iter().filter(|(at, _)| *at == index).map(|(_, one)| one).collect();
    let wanted: Vec<_> = device.addresses.iter().copied().map(host).collect();
    let gone = there.iter().filter(|one| !wanted.contains(one));
    let new = wanted.iter().filter(|one| !there.contains(one));
    let remove = gone.map(|one| address_message(Step::Remove, index, *one));
    let add = new.map(|one| address_message(Step::Add, index, *one));
    send(route, add.chain(remove))
}

fn host(address: IpAddr) -> Assigned {
    Assigned { address, prefix_bits: if address.is_ipv4() { 32 } else { 128 } }
}

/// The device accepts packets from addresses that have a local route. All addresses have one in a
/// run, and errors of routers behind the peer come from any address.
fn link(index: u32, mtu_bytes: u32) -> NetlinkRequest {
    let mut header = [0; IFINFO_BYTES];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&IFF_UP.to_ne_bytes());
    header[12..16].copy_from_slice(&IFF_UP.to_ne_bytes());
    let mut message = NetlinkRequest::new("enabling the TUN device", RTM_NEWLINK, NLM_F_ACK);
    message = message.fixed(&header);
    message.attribute(IFLA_MTU, &mtu_bytes.to_ne_bytes());
    message.nest(IFLA_AF_SPEC, |families| {
        families.nest(AF_INET, |inet| {
            inet.nest(IFLA_INET_CONF, |settings| {
                settings.attribute(RP_FILTER, &0_u32.to_ne_bytes());
                settings.attribute(ACCEPT_LOCAL, &1_u32.to_ne_bytes());
            });
        });
    });
    message
}

const RTM_NEWLINK: u16 = 16;
const IFINFO_BYTES: usize = 16;
const IFF_UP: u32 = 1;
const IFLA_MTU: u16 = 4;
const IFLA_AF_SPEC: u16 = 26;
const AF_INET: u16 = 2;
const IFLA_INET_CONF: u16 = 1;
/// `IPV4_DEVCONF_RP_FILTER`.
const RP_FILTER: u16 = 8;
/// `IPV4_DEVCONF_ACCEPT_LOCAL`.
const ACCEPT_LOCAL: u16 = 23;
