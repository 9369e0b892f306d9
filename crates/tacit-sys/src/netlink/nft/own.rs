//! Maintains two nftables sets with the addresses of a run (a program under `tacit run`). One set
//! contains IPv4 addresses, the other IPv6 addresses. Some addresses are the same in every run. All
//! other addresses are copies of the host's addresses.

use std::net::IpAddr;

use super::batch::{CREATE, TABLE, commit, message};
use crate::netlink::error::Error;
use crate::netlink::message::{NLM_F_ACK, NetlinkRequest};
use crate::netlink::route::{OWN_UNIQUE_LOCAL, OWN_V4, OWN_V6};
use crate::netlink::socket::Netlink;

/// The set of IPv4 addresses.
pub(super) const OWN4: &str = "own4";
/// The set of IPv6 addresses.
pub(super) const OWN6: &str = "own6";

/// Sets the namespace's own addresses to these and those that every run has, as one transaction.
///
/// # Errors
/// The error of the kernel; then nothing has changed.
pub fn set_own(netfilter: &mut Netlink, addresses: &[IpAddr]) -> Result<(), Error> {
    let mut messages: Vec<_> = [OWN4, OWN6].map(emptying).into();
    messages.extend(elements(addresses));
    commit(netfilter, messages)
}

/// Changes the namespace's own addresses as one transaction. The addresses that every run has do
/// not change. The kernel frees removed addresses some time later. A process that closes a netlink
/// socket meanwhile waits until they are free, so callers should remove only what has changed.
///
/// # Errors
/// The error of the kernel (`ENOENT`: an address of `remove` is not there); then nothing has
/// changed.
pub fn change_own(netfilter: &mut Netlink, remove: &[IpAddr], add: &[IpAddr]) -> Result<(), Error> {
    let others = |some: &[IpAddr]| -> Vec<IpAddr> {
        some.iter().copied().filter(|one| !ALWAYS.contains(one)).collect()
    };
    let mut messages = lists(REMOVING, &others(remove));
    messages.extend(lists(ADDING, &others(add)));
    if messages.is_empty() { Ok(()) } else { commit(netfilter, messages) }
}

/// Declares both sets, with the addresses that every run has.
pub(super) fn declarations() -> Vec<NetlinkRequest> {
    let mut messages = vec![declaration(OWN4, 7, 4, 5), declaration(OWN6, 8, 16, 6)];
    messages.extend(elements(&[]));
    messages
}

fn declaration(name: &str, key_type: u32, key_bytes: u32, number: u32) -> NetlinkRequest {
    let mut message = message("creating an nftables set for the run's addresses", NEWSET, CREATE);
    message.text(1, TABLE);
    message.text(2, name);
    message.be32(3, 0);
    message.be32(4, key_type);
    message.be32(5, key_bytes);
    message.be32(10, number);
    message
}

fn emptying(name: &'static str) -> NetlinkRequest {
    let mut message =
        message("emptying the nftables set of the run's addresses", DELSETELEM, NLM_F_ACK);
    message.text(1, TABLE);
    message.text(2, name);
    message
}

fn elements(addresses: &[IpAddr]) -> Vec<NetlinkRequest> {
    lists(ADDING, &[&ALWAYS, addresses].concat())
}

/// A change of elements: the name of the step, the message type and its flags.
type OwnChange = (&'static str, u16, u16);
const ADDING: OwnChange = ("adding addresses of the run to an nftables set", NEWSETELEM, CREATE);
const REMOVING: OwnChange =
    ("removing addresses of the run from an nftables set", DELSETELEM, NLM_F_ACK);

fn lists(change: OwnChange, addresses: &[IpAddr]) -> Vec<NetlinkRequest> {
    let (v4, v6): (Vec<_>, Vec<_>) = addresses.iter().partition(|one| one.is_ipv4());
    let of_set = |name, addresses: &[IpAddr]| -> Vec<NetlinkRequest> {
        addresses.chunks(ELEMENTS_MAX).map(|some| list(change, name, some)).collect()
    };
    [of_set(OWN4, &v4), of_set(OWN6, &v6)].concat()
}

fn list(
    (step, kind, flags): OwnChange,
    name: &'static str,
    addresses: &[IpAddr],
) -> NetlinkRequest {
    let mut message = message(step, kind, flags);
    message.text(1, TABLE);
    message.text(2, name);
    message.nest(3, |list| {
        for address in addresses {
            let key = match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            list.nest(1, |one| one.nest(1, |held| held.attribute(1, &key)));
        }
    });
    message
}

/// The addresses that every run has.
const ALWAYS: [IpAddr; 3] = [IpAddr::V4(OWN_V4), IpAddr::V6(OWN_V6), IpAddr::V6(OWN_UNIQUE_LOCAL)];
/// The largest number of addresses in one message: the length of their list has 16 bits.
const ELEMENTS_MAX: usize = 1000;
const NEWSET: u16 = 9;
const NEWSETELEM: u16 = 12;
const DELSETELEM: u16 = 14;
