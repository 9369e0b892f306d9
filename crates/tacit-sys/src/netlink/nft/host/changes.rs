//! Reports when a program has changed nftables rules, for `tacit agent --host`. Shortly after a
//! report, the helper (the process that installs the agent's nftables rules) checks these rules.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, netlink as families, recv};

use super::super::batch::of_subsystem;
use super::{DELTABLE, NEWCHAIN};
use crate::netlink::message::read_u32;
use crate::option::{OptionName, set_option};

/// A socket that receives a message of the kernel when nftables rules change.
#[derive(Debug)]
pub struct RuleChanges {
    socket: OwnedFd,
}

impl RuleChanges {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The error of `socket` or `setsockopt`.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(families::NETFILTER);
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        let membership =
            OptionName { level: libc::SOL_NETLINK, name: libc::NETLINK_ADD_MEMBERSHIP };
        set_option(socket.as_fd(), membership, RULES_GROUP)?;
        Ok(Self { socket })
    }

    /// Reads all reports; returns whether a table was removed or a chain added. Lost reports count.
    #[must_use]
    pub fn read(&self) -> bool {
        let mut buffer = vec![0; REPORT_BYTES_MAX];
        let mut is_found = false;
        for _ in 0..READS_MAX {
            match recv(&self.socket, &mut *buffer, RecvFlags::TRUNC) {
                Ok((read, len)) => {
                    is_found |= len > read || has_change(buffer.get(..read).unwrap_or_default());
                }
                Err(rustix::io::Errno::AGAIN) => return is_found,
                Err(_) => is_found = true,
            }
        }
        true
    }
}

impl AsFd for RuleChanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether one of the messages removes a table or adds a chain.
fn has_change(mut messages: &[u8]) -> bool {
    while let (Some(len), Some(kind)) = (read_u32(messages, 0), messages.get(4..6)) {
        if [DELTABLE, NEWCHAIN].map(of_subsystem).iter().any(|one| one.to_ne_bytes() == *kind) {
            return true;
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX).max(HEADER_BYTES);
        messages = messages.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

/// `NFNLGRP_NFTABLES`.
const RULES_GROUP: i32 = 7;
/// The kernel puts several reports into one message of about a page.
const REPORT_BYTES_MAX: usize = 32 * 1024;
/// How many messages are read at once.
const READS_MAX: usize = 256;
const HEADER_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::super::batch::message;
    use super::*;
    use crate::netlink::testing::sealed;

    #[test]
    fn a_new_chain_and_a_removed_table_are_changes() {
        let report = |kinds: &[u16]| -> Vec<u8> {
            kinds.iter().flat_map(|kind| sealed(&message("", *kind, 0))).collect()
        };
        assert!(has_change(&report(&[9, 12, NEWCHAIN])) && has_change(&report(&[DELTABLE])));
        assert!(!has_change(&report(&[9, 12, 15])) && !has_change(&[]));
        let cut = report(&[9, NEWCHAIN]);
        for end in 0..cut.len() {
            // A cut message has no effect beyond its header.
            assert_eq!(has_change(&cut[..end]), end >= cut.len() / 2 + 6, "{end}");
        }
    }
}
