//! Detects whether NAT on this host may change the destinations of packets that programs send.
//!
//! If the host has NAT, the nftables rules must check the destination again after NAT. This check
//! needs connection tracking. NAT is detected if there is an nftables chain of type `nat`, the
//! table `nat` of iptables-legacy, or an IPVS service.

use std::{fs, io};

use super::super::batch::of_all_families;
use super::GETCHAIN;
use crate::netlink::error::Error;
use crate::netlink::message::{attributes, read_u32};
use crate::netlink::socket::{Netlink, ReplyCount};

/// Whether NAT may change destinations in the namespace of the calling thread.
///
/// # Errors
/// The kernel's.
pub(super) fn changes_destinations(netfilter: &mut Netlink) -> Result<bool, Error> {
    let is_older = NAT_OF_OLDER.into_iter().any(|list| has_line(list, |line| line == "nat"));
    Ok(is_older || has_line(SERVICES, is_service) || has_chain(netfilter)?)
}

fn has_chain(netfilter: &mut Netlink) -> Result<bool, Error> {
    let step = "reading the nftables chains of all address families";
    let mut is_found = false;
    // A chain that another program adds during the reading is found by the next one.
    netfilter.ask(of_all_families(step, GETCHAIN, NLM_F_DUMP), ReplyCount::Many, |payload| {
        // The payload begins with `nfgenmsg`.
        is_found |= is_nat(payload.get(4..).unwrap_or_default());
        Ok(())
    })?;
    Ok(is_found)
}

/// Whether a chain changes the destinations of what programs send.
fn is_nat(chain: &[u8]) -> bool {
    let of_kind = |wanted| attributes(chain).find(|(kind, _)| *kind == wanted);
    let is_nat = of_kind(TYPE).is_some_and(|(_, name)| name == b"nat\0");
    let hook = of_kind(HOOK).into_iter().flat_map(|(_, hook)| attributes(hook));
    let mut number = hook.filter(|(kind, _)| *kind == HOOK_NUMBER);
    is_nat && number.any(|(_, number)| read_u32(number, 0).map(u32::from_be) == Some(HOOK_OUTPUT))
}

/// Whether a file has a line that counts. A file that cannot be read may have one.
fn has_line(path: &str, counts: impl Fn(&str) -> bool) -> bool {
    match fs::read_to_string(path) {
        Ok(text) => text.lines().any(counts),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Whether a line of `/proc/net/ip_vs` is that of a service.
fn is_service(line: &str) -> bool {
    ["TCP ", "UDP ", "SCTP ", "FWM "].iter().any(|kind| line.starts_with(kind))
}

/// The tables of iptables that does not use nftables.
const NAT_OF_OLDER: [&str; 2] =
    ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];
/// The services of IPVS.
const SERVICES: &str = "/proc/thread-self/net/ip_vs";
const NLM_F_DUMP: u16 = 0x300;
const HOOK: u16 = 4;
const HOOK_NUMBER: u16 = 1;
const TYPE: u16 = 7;
const HOOK_OUTPUT: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::NetlinkRequest;
    use crate::netlink::testing::sealed;

    fn chain(kind: &str, hook: u32) -> Vec<u8> {
        let mut message = NetlinkRequest::new("", 0, 0);
        message.text(3, "output");
        message.nest(4, |place| place.be32(1, hook));
        message.text(7, kind);
        sealed(&message)[16..].to_vec()
    }

    #[test]
    fn only_nat_of_what_programs_send_counts() {
        assert!(is_nat(&chain("nat", 3)));
        assert!(!is_nat(&chain("nat", 4)) && !is_nat(&chain("filter", 3)));
        let whole = chain("nat", 3);
        for end in 0..whole.len() {
            assert!(!is_nat(&whole[..end]), "{end}");
        }
    }

    #[test]
    fn only_services_of_ipvs_count() {
        assert!(is_service("TCP  C0000201:0050 rr "));
        assert!(!is_service("IP Virtual Server version 1.2.1 (size=4096)"));
        assert!(!is_service("Prot LocalAddress:Port Scheduler Flags"));
        assert!(!is_service("  -> RemoteAddress:Port Forward Weight ActiveConn InActConn"));
    }
}
