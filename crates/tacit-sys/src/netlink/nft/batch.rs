//! Builds nftables messages and batches. The kernel applies a batch completely or not at all.

use crate::netlink::error::Error;
use crate::netlink::message::{NLM_F_ACK, NetlinkRequest};
use crate::netlink::socket::Netlink;

/// Puts the messages between the begin and the end of a batch: the kernel applies all of them or
/// none.
pub(super) fn commit(netfilter: &mut Netlink, messages: Vec<NetlinkRequest>) -> Result<(), Error> {
    let mut batch = Vec::with_capacity(messages.len() + 2);
    batch.push(mark("beginning a batch of nftables rules", BATCH_BEGIN));
    batch.extend(messages);
    batch.push(mark("committing a batch of nftables rules", BATCH_END));
    netfilter.run(batch)
}

/// Builds a message with its `nfgenmsg`: family, version, and a resource that only batches use.
pub(super) fn message(step: &'static str, kind: u16, flags: u16) -> NetlinkRequest {
    NetlinkRequest::new(step, of_subsystem(kind), flags).fixed(&[FAMILY_INET, 0, 0, 0])
}

/// Builds a message about the tables of all families.
pub(super) fn of_all_families(step: &'static str, kind: u16, flags: u16) -> NetlinkRequest {
    NetlinkRequest::new(step, of_subsystem(kind), flags).fixed(&[FAMILY_ANY, 0, 0, 0])
}

/// The number of a message of nftables.
pub(super) fn of_subsystem(kind: u16) -> u16 {
    SUBSYSTEM << 8 | kind
}

/// Changes the name of the table in a message. All messages begin with the name of their table.
pub(super) fn of_table(message: NetlinkRequest, table: &str) -> NetlinkRequest {
    message.with_first_text(NFGENMSG_BYTES, table)
}

pub(super) fn mark(step: &'static str, kind: u16) -> NetlinkRequest {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    NetlinkRequest::new(step, kind, 0).fixed(&[0, 0, high, low])
}

pub(super) const TABLE: &str = "tacit";
pub(super) const CHAIN: &str = "prerouting";
const NFGENMSG_BYTES: usize = 4;
/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
/// `NFPROTO_UNSPEC`.
const FAMILY_ANY: u8 = 0;
/// `NFPROTO_INET`: IPv4 and IPv6 in one table.
const FAMILY_INET: u8 = 1;
pub(super) const BATCH_BEGIN: u16 = 0x10;
pub(super) const BATCH_END: u16 = 0x11;
pub(super) const NLM_F_EXCL: u16 = 0x200;
pub(super) const CREATE: u16 = NLM_F_ACK | 0x400;
