//! Receives copies of packets that an nftables rule logs (nfnetlink_log).
//!
//! A process in the network namespace of the nftables rule must call [`open`]. Then a process
//! outside of this namespace may read the socket.
//!
//! Limits: a copy contains the first [`PACKET_BYTES_MAX`] bytes of its packet. If the socket's
//! buffer is full, the kernel drops copies and reports `ENOBUFS`.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, sockopt};

use super::error::Error;
use super::message::{NLM_F_ACK, NetlinkRequest, answers, attributes};
use super::nft::{COPIED_BYTES_MAX, FILTERED_PREFIX, REFUSED_PREFIX};
use super::socket::{Netlink, Subsystem};

/// The largest number of bytes that are copied of a packet.
pub const PACKET_BYTES_MAX: usize = COPIED_BYTES_MAX as usize;

/// The same, for the filter of a packet socket.
pub(crate) const PACKET_BYTES_KEPT: u32 = COPIED_BYTES_MAX;

/// The buffer size for one report of the socket: one packet with its attributes.
pub const REPORT_BYTES_MAX: usize = 4096;

/// The memory that the kernel reserves for each copy. The kernel's default is a page, with which
/// about fifty copies would fill the socket's buffer.
const COPY_BYTES: u32 = 384;

/// The requested size of the socket's buffer. The kernel gives at most `net.core.rmem_max`.
const BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// Opens a non-blocking socket in the network namespace of the calling thread. It receives a copy
/// of each packet that is logged to the group.
///
/// # Errors
/// The kernel lacks nfnetlink_log, or another socket uses the group.
pub fn open(group: u16) -> Result<OwnedFd, Error> {
    let own = |call| move |errno: rustix::io::Errno| Error::Socket { call, error: errno.into() };
    let opened = Netlink::open(Subsystem::Netfilter);
    let mut netlink = opened.map_err(|error| Error::Socket { call: "socket", error })?;
    netlink.run(configuration(group))?;
    let socket = netlink.into_socket();
    sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES).map_err(own("setsockopt"))?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(own("ioctl"))?;
    Ok(socket)
}

fn configuration(group: u16) -> Vec<NetlinkRequest> {
    let bind = [COMMAND_BIND];
    let [a, b, c, d] = COPIED_BYTES_MAX.to_be_bytes();
    let mode = [a, b, c, d, COPY_PACKET, 0];
    vec![
        setting("binding the socket to an NFLOG group", group, CONFIG_COMMAND, &bind),
        setting(
            "configuring how many bytes of a logged packet the kernel copies",
            group,
            CONFIG_MODE,
            &mode,
        ),
        setting(
            "configuring how much memory the kernel reserves for each copy of a packet",
            group,
            CONFIG_COPY_BYTES,
            &COPY_BYTES.to_be_bytes(),
        ),
        setting(
            "configuring how many copied packets the kernel collects before it sends them to tacit",
            group,
            CONFIG_THRESHOLD,
            &1_u32.to_be_bytes(),
        ),
    ]
}

/// Builds a message with its `nfgenmsg`: any family, version 0, and the group.
fn setting(step: &'static str, group: u16, kind: u16, value: &[u8]) -> NetlinkRequest {
    let [high, low] = group.to_be_bytes();
    let mut message = NetlinkRequest::new(step, SUBSYSTEM << 8 | CONFIG, NLM_F_ACK);
    message = message.fixed(&[0, 0, high, low]);
    message.attribute(kind, value);
    message
}

/// Receives the next report of the socket.
///
/// # Errors
/// `WouldBlock` if there is no report; `ENOBUFS` (which has no `ErrorKind`) if copies were dropped.
pub fn receive(log: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let (bytes, _) = rustix::net::recv(log, buffer, RecvFlags::empty())?;
    Ok(bytes)
}

/// Whether copies were dropped because the socket's buffer was full.
#[must_use]
pub fn is_overrun(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}

/// A packet in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedPacket<'a> {
    /// Its first bytes.
    pub packet: &'a [u8],
    /// Why the kernel has copied it.
    pub cause: LogCause<'a>,
}

/// Why the kernel has copied a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogCause<'a> {
    /// It opens a connection.
    Opens,
    /// The kernel has refused it.
    Refused,
    /// A filter rule logs it.
    Filtered {
        /// The name of the rule.
        rule: &'a str,
        /// Where in the kernel (`NF_INET_*`).
        hook: FilterHook,
    },
}

/// Where in the kernel a filter rule has decided about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterHook {
    /// The packet has come in.
    Input,
    /// It is forwarded.
    Forward,
    /// It goes out.
    Output,
}

/// Returns the packets in a report.
pub fn packets(report: &[u8]) -> impl Iterator<Item = LoggedPacket<'_>> {
    let messages = answers(report).map_while(Result::ok);
    let logged = messages.filter(|message| message.kind == SUBSYSTEM << 8 | PACKET);
    logged.filter_map(|message| {
        let attributes = message.payload.get(GENERIC_BYTES..)?;
        let find = |wanted| self::attributes(attributes).find(|(kind, _)| *kind == wanted);
        let (_, packet) = find(PAYLOAD)?;
        let prefix = find(PREFIX).map(|(_, prefix)| prefix.strip_suffix(&[0]).unwrap_or(prefix));
        let prefix = prefix.and_then(|prefix| std::str::from_utf8(prefix).ok());
        let cause = match prefix {
            Some(REFUSED_PREFIX) => LogCause::Refused,
            Some(prefix) => match prefix.strip_prefix(FILTERED_PREFIX) {
                Some(rule) => {
                    let (_, header) = find(PACKET_HEADER)?;
                    LogCause::Filtered { rule, hook: hook(*header.get(2)?) }
                }
                None => LogCause::Opens,
            },
            None => LogCause::Opens,
        };
        Some(LoggedPacket { packet, cause })
    })
}

/// Packets are filtered before they are reassembled, and as they come in, before clients are
/// captured (`NF_INET_PRE_ROUTING`).
fn hook(number: u8) -> FilterHook {
    match number {
        2 => FilterHook::Forward,
        3 => FilterHook::Output,
        _ => FilterHook::Input,
    }
}

/// `NFNL_SUBSYS_ULOG`.
const SUBSYSTEM: u16 = 4;
const PACKET: u16 = 0;
const CONFIG: u16 = 1;
/// `nfgenmsg`.
const GENERIC_BYTES: usize = 4;
const CONFIG_COMMAND: u16 = 1;
const CONFIG_MODE: u16 = 2;
const CONFIG_COPY_BYTES: u16 = 3;
const CONFIG_THRESHOLD: u16 = 5;
const COMMAND_BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
/// `NFULA_PACKET_HDR`.
const PACKET_HEADER: u16 = 1;
/// `NFULA_PAYLOAD`.
const PAYLOAD: u16 = 9;
/// `NFULA_PREFIX`.
const PREFIX: u16 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::testing::{bytes, sealed};

    #[test]
    #[cfg(target_endian = "little")]
    fn the_configuration_byte_by_byte() {
        let wanted = [
            "1c00 0000 0104 0500 00000000 00000000 00 00 7ac1 0500 0100 01 000000",
            "2000 0000 0104 0500 00000000 00000000 00 00 7ac1 0a00 0200 00000080 02 00 0000",
            "1c00 0000 0104 0500 00000000 00000000 00 00 7ac1 0800 0300 00000180",
            "1c00 0000 0104 0500 00000000 00000000 00 00 7ac1 0800 0500 00000001",
        ];
        let messages: Vec<_> = configuration(0x7ac1).iter().map(sealed).collect();
        assert_eq!(messages, wanted.map(bytes));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_packet_of_a_report_is_found() {
        let report = bytes(
            "2000 0000 0004 0000 00000000 00000000 02 00 7ac1 \
             0500 0a00 00 000000 0700 0900 450001 00",
        );
        // Its length says 32; the header, the prefix and the packet take 36.
        let mut report = report;
        report[0] = 36;
        let copied = |cause| [LoggedPacket { packet: &[0x45, 0, 1], cause }];
        assert_eq!(packets(&report).collect::<Vec<_>>(), copied(LogCause::Opens));
        // With the prefix of what is refused, 12 bytes instead of 5.
        let mut refused = bytes("2800 0000 0004 0000 00000000 00000000 02 00 7ac1 0c00 0a00");
        refused.extend_from_slice(b"refused\0");
        refused.extend_from_slice(&report[28..]);
        assert_eq!(packets(&refused).collect::<Vec<_>>(), copied(LogCause::Refused));
        // With the header of the packet (12 bytes) and the prefix of the rule `web` (16 bytes).
        let header = "3800 0000 0004 0000 00000000 00000000 02 00 7ac1 0800 0100 0800 03 00";
        let mut filtered = bytes(header);
        filtered.extend_from_slice(b"\x0f\0\x0a\0filter:web\0\0");
        filtered.extend_from_slice(&report[28..]);
        filtered[0] = u8::try_from(filtered.len()).unwrap();
        let cause = LogCause::Filtered { rule: "web", hook: FilterHook::Output };
        assert_eq!(packets(&filtered).collect::<Vec<_>>(), copied(cause));
        for length in 0..report.len() {
            assert!(packets(&report[..length]).count() <= 1);
        }
        report[5] = 5;
        assert_eq!(packets(&report).count(), 0, "of another subsystem");
    }
}
