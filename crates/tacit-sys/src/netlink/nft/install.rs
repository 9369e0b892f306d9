//! Installs the nftables table for a program under `tacit run`. The table contains chains, sets,
//! and nftables rules.

use super::agent::Copies;
use super::batch::{CHAIN, CREATE, NLM_F_EXCL, TABLE, commit, message};
use super::sets::Set;
use super::{own, rules};
use crate::ip_version::IpSupport;
use crate::netlink::error::Error;
use crate::netlink::message::NetlinkRequest;
use crate::netlink::socket::Netlink;

/// Installs the table, the sets and the rules as one transaction; the sets are empty. `copies`
/// selects whether the rules copy SYNs.
///
/// # Errors
/// The refused rule and expression. `ENOENT` means that this kernel does not support the
/// expression.
pub fn install(netfilter: &mut Netlink, kernel: IpSupport, copies: Copies) -> Result<(), Error> {
    let mut messages = vec![table()];
    messages.extend(Set::ALL.map(Set::declaration));
    messages.extend(own::declarations());
    messages.push(chain());
    messages.extend(rules::CHAINS.map(regular_chain));
    messages.extend(rules::all(kernel, copies));
    commit(netfilter, messages)
}

pub(super) fn table() -> NetlinkRequest {
    let mut message = message("creating the nftables table", NEWTABLE, CREATE | NLM_F_EXCL);
    message.text(1, TABLE);
    message
}

pub(super) fn chain() -> NetlinkRequest {
    let mut message = regular_chain(CHAIN);
    message.nest(4, |hook| {
        hook.be32(1, HOOK_PREROUTING);
        hook.be32(2, PRIORITY_MANGLE.cast_unsigned());
    });
    message.be32(5, POLICY_ACCEPT);
    message.text(7, "filter");
    message
}

/// Creates a chain that only other chains call.
pub(super) fn regular_chain(name: &str) -> NetlinkRequest {
    let mut message = message("creating an nftables chain", NEWCHAIN, CREATE);
    message.text(1, TABLE);
    message.text(3, name);
    message
}

const NEWTABLE: u16 = 0;
const NEWCHAIN: u16 = 3;
const HOOK_PREROUTING: u32 = 0;
const PRIORITY_MANGLE: i32 = -150;
const POLICY_ACCEPT: u32 = 1;
