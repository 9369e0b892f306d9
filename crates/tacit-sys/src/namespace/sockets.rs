//! The sockets that the agent outside needs from inside the namespace.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use super::{NamespaceError, Step, kernel_has_ipv6};
use crate::netlink::{Netlink, Subsystem};
use crate::transparent::{self, Kind, Wanted};

/// What the helper makes once and hands over. The IPv6 ones are absent on a kernel without IPv6.
#[derive(Debug)]
pub struct Sockets {
    /// Captured TCP connections over IPv4 arrive here.
    pub tcp4: OwnedFd,
    /// Captured TCP connections over IPv6.
    pub tcp6: Option<OwnedFd>,
    /// Captured IPv4 datagrams; see [`transparent::receive`].
    pub udp4: OwnedFd,
    /// Captured IPv6 datagrams.
    pub udp6: Option<OwnedFd>,
    /// Errors in the name of others, as ICMP packets; for IPv4.
    pub raw4: OwnedFd,
    /// Changes what is captured.
    pub netfilter: Netlink,
    /// Answers who owns a connection, and what is listened on.
    pub diagnosis: Netlink,
    /// The network namespace.
    pub network: OwnedFd,
    /// The user namespace; for root, the one everybody is in.
    pub user: OwnedFd,
}

/// Makes them, in the namespace of the calling thread.
///
/// # Errors
/// [`Step::Sockets`] with whatever the system calls answered.
pub fn sockets() -> Result<Sockets, NamespaceError> {
    make().map_err(Step::Sockets.failed())
}

fn make() -> io::Result<Sockets> {
    let ipv6 = kernel_has_ipv6();
    let raw = Wanted { kind: Kind::Raw, ipv6: false, transparent: false, marked: true };
    Ok(Sockets {
        tcp4: transparent::listener(false)?,
        tcp6: ipv6.then(|| transparent::listener(true)).transpose()?,
        udp4: transparent::receiver(false)?,
        udp6: ipv6.then(|| transparent::receiver(true)).transpose()?,
        raw4: transparent::make(raw)?,
        netfilter: Netlink::open(Subsystem::Netfilter)?,
        diagnosis: Netlink::open(Subsystem::SocketDiagnosis)?,
        network: File::open("/proc/self/ns/net")?.into(),
        user: File::open("/proc/self/ns/user")?.into(),
    })
}
