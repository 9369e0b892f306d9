//! Converts requests of the agent to the kernel's data types. The requests are for the helper
//! processes of `tacit run` and `tacit agent --host`.

use std::io;
use std::os::fd::OwnedFd;

use tacit_core::flow::Protocol;
use tacit_core::policy::CaptureRange;
use tacit_sys::netlink::IpProtocol;
use tacit_sys::netlink::nft::Element;
use tacit_sys::transparent::{self, SocketSpec};

use crate::net::pool::SOCKETS_AT_ONCE_MAX;

/// The number of a transport protocol.
#[must_use]
pub fn ip_protocol(protocol: Protocol) -> IpProtocol {
    match protocol {
        Protocol::Tcp => IpProtocol::Tcp,
        // The sockets for ICMP are datagram sockets; the agent relays no ICMP.
        Protocol::Udp | Protocol::Icmp => IpProtocol::Udp,
    }
}

/// An element of a set of nftables rules.
#[must_use]
pub fn element(range: &CaptureRange) -> Element {
    let CaptureRange { udp, first, last, first_port, last_port } = *range;
    let protocol = if udp { IpProtocol::Udp } else { IpProtocol::Tcp };
    Element { protocol, first, last, first_port, last_port }
}

/// Makes `count` sockets, at most [`SOCKETS_AT_ONCE_MAX`], or fewer if the kernel refuses.
///
/// # Errors
/// It cannot make one.
pub fn spoofed_source_sockets(spec: SocketSpec, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut sockets = vec![transparent::make(spec)?];
    while sockets.len() < count.min(SOCKETS_AT_ONCE_MAX)
        && let Ok(socket) = transparent::make(spec)
    {
        sockets.push(socket);
    }
    Ok(sockets)
}
