//! Sends an ICMP error to a program under `tacit run` if the agent cannot deliver a datagram of
//! this program.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use tacit_core::datagram::DatagramKey;
use tacit_core::icmp::{self, IcmpError, SentDatagram};
use tacit_sys::datagram::{NoticeKind, send_packet};

use super::socket::Receiver;

/// Sends the program an ICMP error. As any ICMP message, it may be lost.
pub(super) fn send_icmp_error(
    receiver: &Receiver,
    key: &DatagramKey,
    cause: IcmpError,
    payload: &[u8],
    reporter: Option<IpAddr>,
) {
    let DatagramKey { program, destination } = *key;
    let sent = SentDatagram { source: program, destination, payload };
    let reporter = reporter.unwrap_or_else(|| destination.ip());
    if let Some(packet) = icmp::error(cause, sent, reporter) {
        let _ = send_packet(receiver.raw.as_fd(), &packet, program.ip());
    }
}

/// The ICMP error of a notice of the kernel, if it is one about the path.
pub(crate) fn cause_of_notice(kind: NoticeKind) -> Option<IcmpError> {
    match kind {
        NoticeKind::Icmp { kind, code, info } => IcmpError::from_icmp(kind, code, info),
        NoticeKind::Icmpv6 { kind, code, info } => IcmpError::from_icmpv6(kind, code, info),
        NoticeKind::Local { errno, info } => {
            let mtu_bytes = Some(info).filter(|bytes| *bytes > 0);
            Some(cause_of(&io::Error::from_raw_os_error(errno), mtu_bytes))
        }
    }
}

/// The ICMP error for an error of a system call; `mtu_bytes` is the path MTU, if it is known.
pub(crate) fn cause_of(error: &io::Error, mtu_bytes: Option<u32>) -> IcmpError {
    const EMSGSIZE: i32 = 90;
    match (error.kind(), error.raw_os_error(), mtu_bytes) {
        (_, Some(EMSGSIZE), Some(mtu_bytes)) => IcmpError::TooBig { mtu_bytes },
        (io::ErrorKind::ConnectionRefused, ..) => IcmpError::PortUnreachable,
        (io::ErrorKind::NetworkUnreachable, ..) => IcmpError::NetUnreachable,
        (io::ErrorKind::PermissionDenied, ..) => IcmpError::Prohibited,
        _ => IcmpError::HostUnreachable,
    }
}
