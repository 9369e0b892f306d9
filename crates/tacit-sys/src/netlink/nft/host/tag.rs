//! Writes the ID of the current boot into the comment of the agent's nftables table. Another
//! program may store the table, and restore it at the next boot. Then the comment shows that the
//! table is from an earlier boot.
//!
//! Linux 5.10 or newer keeps the comment of a table. On an older kernel, this module assumes that
//! every table is from an earlier boot.

use super::super::batch::{TABLE, message};
use super::{GETTABLE, comment};
use crate::netlink::error::Error;
use crate::netlink::message::{NetlinkRequest, attributes};
use crate::netlink::socket::{Netlink, ReplyCount};

/// Whether the table is there, and was installed since the host has booted.
///
/// # Errors
/// The kernel's.
pub fn is_of_this_boot(netfilter: &mut Netlink) -> Result<bool, Error> {
    let Some(wanted) = this_boot() else { return Ok(false) };
    let mut is_found = false;
    let mut question = message("reading the comment of the nftables table", GETTABLE, 0);
    question.text(1, TABLE);
    let answered = netfilter.ask(question, ReplyCount::One, |payload| {
        // The payload begins with `nfgenmsg`.
        let mut all = attributes(payload.get(4..).unwrap_or_default());
        is_found |= all.any(|(kind, value)| kind == USER_DATA && value == wanted);
        Ok(())
    });
    match answered {
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
        answered => answered.map(|()| is_found),
    }
}

/// Adds the comment to the declaration of a table.
pub(super) fn tag(mut declaration: NetlinkRequest) -> NetlinkRequest {
    if let Some(comment) = this_boot() {
        declaration.attribute(USER_DATA, &comment);
    }
    declaration
}

fn this_boot() -> Option<Vec<u8>> {
    comment_of(std::fs::read_to_string(BOOT_ID).ok()?.trim_end())
}

/// The comment that names a boot.
fn comment_of(boot: &str) -> Option<Vec<u8>> {
    let is_identifier = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    if boot.is_empty() || boot.len() > BOOT_ID_BYTES_MAX || !boot.bytes().all(is_identifier) {
        return None;
    }
    comment::encode(&format!("of boot {boot}"))
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// A UUID has 36.
const BOOT_ID_BYTES_MAX: usize = 64;
/// `NFTA_TABLE_USERDATA`.
const USER_DATA: u16 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_names_a_boot() {
        assert_eq!(comment_of("1f-2e").unwrap(), b"\x00\x0eof boot 1f-2e\0");
        for other in ["", "x y", "1f\n2e", &"1".repeat(BOOT_ID_BYTES_MAX + 1)] {
            assert_eq!(comment_of(other), None, "{other}");
        }
        assert!(this_boot().is_some());
    }
}
