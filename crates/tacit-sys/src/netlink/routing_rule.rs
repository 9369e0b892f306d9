//! Installs the routing rules for `tacit agent --host`. Captured packets have a certain fwmark. The
//! routing rules send packets with this fwmark to `lo`, where the agent receives them.
//!
//! ```text
//! ip rule add priority 1 fwmark BIT/BIT lookup 31425
//! ip route add local default dev lo table 31425
//! ```
//!
//! These routing rules have a higher priority than the routing rules of other programs. So no other
//! routing rule applies to a captured packet.
//!
//! When systemd-networkd starts, it removes rules and routes of every routing protocol except
//! `kernel`. So these routing rules and routes have the routing protocol `kernel`.

use super::error::Error;
use super::message::{NLM_F_ACK, NetlinkRequest, attributes, read_u32};
use super::route::LO;
use super::socket::{Netlink, ReplyCount};
use crate::ip_version::{IpSupport, IpVersion};

/// The routing table that leads to `lo`.
pub const TABLE: u32 = 31_425;
/// The first place behind the rule for addresses of the host itself.
pub const PRIORITY: u32 = 1;

/// Leads packets with this bit in their mark to `lo`. What is there already stays; returns whether
/// something was not there.
///
/// # Errors
/// The first step that the kernel refuses.
pub fn install(route: &mut Netlink, kernel: IpSupport, bit: u32) -> Result<bool, Error> {
    let mut has_changed = false;
    // A rule without a route would let packets pass to the next rule.
    for version in versions(kernel) {
        has_changed |= was_absent(route.run(vec![route_to_lo(version, NEW)]))?;
        has_changed |= was_absent(route.run(vec![rule(version, Some(bit), NEW)]))?;
    }
    Ok(has_changed)
}

/// Whether a rule of each IP version leads to `lo`, for any bit.
///
/// # Errors
/// The error of the netlink socket.
pub fn is_installed(route: &mut Netlink, kernel: IpSupport) -> Result<bool, Error> {
    for version in versions(kernel) {
        let mut is_found = false;
        route.ask(list(version), ReplyCount::Many, |answer| {
            is_found |= number(answer, FRA_TABLE) == Some(TABLE);
            Ok(())
        })?;
        if !is_found {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Takes all of it back, for any bit.
///
/// # Errors
/// The first step that the kernel refuses, other than for what is not there.
pub fn remove(route: &mut Netlink, kernel: IpSupport) -> Result<(), Error> {
    for version in versions(kernel) {
        for _ in 0..RULES_MAX {
            if !is_there(route.run(vec![rule(version, None, DELETE)]))? {
                break;
            }
        }
        is_there(route.run(vec![route_to_lo(version, DELETE)]))?;
    }
    Ok(())
}

/// A routing rule of another program that looks at packet marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkRule {
    /// Its place among the rules.
    pub priority: u32,
    /// The mark, within the bits that it looks at.
    pub mark: u32,
}

/// The routing rules of other programs with a mark.
///
/// # Errors
/// The error of the netlink socket.
pub fn of_others(route: &mut Netlink, kernel: IpSupport) -> Result<Vec<MarkRule>, Error> {
    let mut found = Vec::new();
    for version in versions(kernel) {
        route.ask(list(version), ReplyCount::Many, |answer| {
            found.extend(mark_rule(answer));
            Ok(())
        })?;
    }
    Ok(found)
}

fn list(version: IpVersion) -> NetlinkRequest {
    let question = NetlinkRequest::new("listing the routing rules", GETRULE, NLM_F_DUMP);
    question.fixed(&[family(version), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}

fn number(answer: &[u8], wanted: u16) -> Option<u32> {
    let (_, value) =
        attributes(answer.get(RULE_HEADER_BYTES..)?).find(|(kind, _)| *kind == wanted)?;
    read_u32(value, 0)
}

/// Reads a rule; `None`: it has no mark, or is this program's own.
pub(super) fn mark_rule(answer: &[u8]) -> Option<MarkRule> {
    let number = |wanted: u16| number(answer, wanted);
    if number(FRA_TABLE) == Some(TABLE) {
        return None;
    }
    let mark = number(FRA_FWMARK)? & number(FRA_FWMASK).unwrap_or(u32::MAX);
    Some(MarkRule { priority: number(FRA_PRIORITY).unwrap_or(0), mark })
}

fn versions(kernel: IpSupport) -> impl Iterator<Item = IpVersion> {
    let has_v6 = kernel == IpSupport::V4AndV6;
    IpVersion::ALL.into_iter().filter(move |version| has_v6 || *version == IpVersion::V4)
}

fn was_absent(result: Result<(), Error>) -> Result<bool, Error> {
    match result {
        Err(error) if error.errno() == Some(libc::EEXIST) => Ok(false),
        other => other.map(|()| true),
    }
}

fn is_there(result: Result<(), Error>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if [libc::ENOENT, libc::ESRCH].map(Some).contains(&error.errno()) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether an entry is made or deleted.
#[derive(Clone, Copy)]
struct Change {
    step: &'static str,
    rule: u16,
    route: u16,
    flags: u16,
}

impl Change {
    fn is_new(self) -> bool {
        self.rule == NEW.rule
    }
}

const NEW: Change = Change {
    step: "adding the routing rule for packets with a fwmark",
    rule: 32,
    route: 24,
    flags: NLM_F_ACK | 0x400 | 0x200,
};
const DELETE: Change = Change {
    step: "removing the routing rule for packets with a fwmark",
    rule: 33,
    route: 25,
    flags: NLM_F_ACK,
};

fn family(version: IpVersion) -> u8 {
    match version {
        IpVersion::V4 => 2,
        IpVersion::V6 => 10,
    }
}

/// Without a bit it is the first rule that leads to the table.
fn rule(version: IpVersion, bit: Option<u32>, change: Change) -> NetlinkRequest {
    let mut message = NetlinkRequest::new(change.step, change.rule, change.flags);
    // fib_rule_hdr: family, lengths of destination and source, tos, table, two reserved, action,
    // flags.
    message =
        message.fixed(&[family(version), 0, 0, 0, RT_TABLE_COMPAT, 0, 0, ACTION_TABLE, 0, 0, 0, 0]);
    message.attribute(FRA_PRIORITY, &PRIORITY.to_ne_bytes());
    if let Some(bit) = bit {
        message.attribute(FRA_FWMARK, &bit.to_ne_bytes());
        message.attribute(FRA_FWMASK, &bit.to_ne_bytes());
    }
    message.attribute(FRA_TABLE, &TABLE.to_ne_bytes());
    if change.is_new() {
        message.attribute(FRA_PROTOCOL, &[RTPROT_KERNEL]);
    }
    message
}

fn route_to_lo(version: IpVersion, change: Change) -> NetlinkRequest {
    let scope = match version {
        IpVersion::V4 => RT_SCOPE_HOST,
        IpVersion::V6 => RT_SCOPE_UNIVERSE,
    };
    let mut message = NetlinkRequest::new(change.step, change.route, change.flags);
    let protocol = if change.is_new() { RTPROT_KERNEL } else { RTPROT_ANY };
    // rtmsg: family, lengths of destination and source, tos, table, protocol, scope, type, flags.
    let fixed = [family(version), 0, 0, 0, RT_TABLE_COMPAT, protocol, scope, RTN_LOCAL, 0, 0, 0, 0];
    message = message.fixed(&fixed);
    message.attribute(RTA_OIF, &LO.to_ne_bytes());
    message.attribute(RTA_TABLE, &TABLE.to_ne_bytes());
    message
}

/// Rules of earlier policies, with other bits, that one removal takes back.
const RULES_MAX: usize = 64;
const GETRULE: u16 = 34;
const NLM_F_DUMP: u16 = 0x300;
/// `fib_rule_hdr`.
const RULE_HEADER_BYTES: usize = 12;
/// For numbers of tables that do not fit one byte.
const RT_TABLE_COMPAT: u8 = 252;
const ACTION_TABLE: u8 = 1;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const RTA_OIF: u16 = 4;
const RTA_TABLE: u16 = 15;
const FRA_PROTOCOL: u16 = 21;
const RTPROT_ANY: u8 = 0;
const RTPROT_KERNEL: u8 = 2;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_HOST: u8 = 254;
const RTN_LOCAL: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::testing::{bytes, sealed};

    #[test]
    #[cfg(target_endian = "little")]
    fn a_rule_and_its_route_byte_by_byte() {
        let wanted = "4400 0000 2000 0506 00000000 00000000 02 00 00 00 fc 00 00 01 00000000 \
                      0800 0600 01000000 0800 0a00 00000020 0800 1000 00000020 0800 0f00 c17a0000 \
                      0500 1500 02 000000";
        assert_eq!(sealed(&rule(IpVersion::V4, Some(0x2000_0000), NEW)), bytes(wanted));
        let wanted = "2c00 0000 1800 0506 00000000 00000000 02 00 00 00 fc 02 fe 02 00000000 \
                      0800 0400 01000000 0800 0f00 c17a0000";
        assert_eq!(sealed(&route_to_lo(IpVersion::V4, NEW)), bytes(wanted));
    }

    #[test]
    fn a_rule_of_another_program_is_read_within_its_bits() {
        let written = |table: u32, mark: u32, mask: u32| {
            let mut message = NetlinkRequest::new("", GETRULE, 0).fixed(&[2; RULE_HEADER_BYTES]);
            message.attribute(FRA_PRIORITY, &7_u32.to_ne_bytes());
            message.attribute(FRA_FWMARK, &mark.to_ne_bytes());
            message.attribute(FRA_FWMASK, &mask.to_ne_bytes());
            message.attribute(FRA_TABLE, &table.to_ne_bytes());
            mark_rule(&sealed(&message)[16..])
        };
        let found = written(100, 0xca6c, 0xff);
        assert_eq!(found, Some(MarkRule { priority: 7, mark: 0x6c }));
        assert_eq!(written(TABLE, 1, 1), None, "it is tacit's own");
        assert_eq!(mark_rule(&sealed(&rule(IpVersion::V4, None, NEW))[16..]), None);
    }
}
