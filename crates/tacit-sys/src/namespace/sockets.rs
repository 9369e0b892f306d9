//! The sockets that the agent outside needs from inside the namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::kernel::kernel_has_ipv6;
use super::refusal::{NamespaceError, Step};
use crate::ip_version::IpVersion;
use crate::netlink::{Netlink, Subsystem};
use crate::query;
use crate::transparent::{self, Kind, Wanted};

/// What the helper makes once and hands over. The IPv6 ones are absent on a kernel without IPv6.
///
/// The helper drops its own before a program starts: a listener that stays open anywhere goes on
/// taking connections when the agent is gone.
#[derive(Debug)]
pub struct Sockets {
    /// Programs ask here about their connections; see [`query`].
    pub query: OwnedFd,
    /// Captured TCP connections over IPv4 arrive here.
    pub tcp4: OwnedFd,
    /// Captured TCP connections over IPv6.
    pub tcp6: Option<OwnedFd>,
    /// Captured IPv4 datagrams; see [`transparent::receive`].
    pub udp4: OwnedFd,
    /// Captured IPv6 datagrams.
    pub udp6: Option<OwnedFd>,
    /// Errors in the name of others, as whole ICMP packets.
    pub raw4: OwnedFd,
    /// The same as ICMPv6.
    pub raw6: Option<OwnedFd>,
    /// The network namespace.
    pub network: OwnedFd,
    /// The user namespace; for root, the one everybody is in.
    pub user: OwnedFd,
}

impl Sockets {
    /// All of them, in the order in which [`Sockets::from_descriptors`] wants them.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let always = [
            self.network.as_fd(),
            self.user.as_fd(),
            self.query.as_fd(),
            self.tcp4.as_fd(),
            self.udp4.as_fd(),
            self.raw4.as_fd(),
        ];
        let ipv6 = [&self.tcp6, &self.udp6, &self.raw6].into_iter().flatten();
        always.into_iter().chain(ipv6.map(AsFd::as_fd)).collect()
    }

    /// Puts together what another process sent; `None` if that is not one of each.
    #[must_use]
    pub fn from_descriptors(descriptors: Vec<OwnedFd>) -> Option<Self> {
        if ![6, 9].contains(&descriptors.len()) {
            return None;
        }
        let mut next = descriptors.into_iter();
        Some(Self {
            network: next.next()?,
            user: next.next()?,
            query: next.next()?,
            tcp4: next.next()?,
            udp4: next.next()?,
            raw4: next.next()?,
            tcp6: next.next(),
            udp6: next.next(),
            raw6: next.next(),
        })
    }
}

/// The helper's own lines to the kernel.
#[derive(Debug)]
pub struct Netlinks {
    /// Addresses and routes.
    pub route: Netlink,
    /// Changes what is captured.
    pub netfilter: Netlink,
    /// Answers who owns a connection, and what is listened on.
    pub diagnosis: Netlink,
}

/// Opens them, in the namespace of the calling thread.
///
/// # Errors
/// [`Step::Sockets`] with whatever the system calls answered.
pub(super) fn netlinks() -> Result<Netlinks, NamespaceError> {
    let open = |subsystem| Netlink::open(subsystem).map_err(Step::Sockets.failed());
    Ok(Netlinks {
        route: open(Subsystem::Route)?,
        netfilter: open(Subsystem::Netfilter)?,
        diagnosis: open(Subsystem::SocketDiagnosis)?,
    })
}

/// Makes them, in the namespace of the calling thread.
///
/// # Errors
/// [`Step::Sockets`] with whatever the system calls answered.
pub fn sockets() -> Result<Sockets, NamespaceError> {
    make().map_err(Step::Sockets.failed())
}

fn make() -> io::Result<Sockets> {
    let has_ipv6 = kernel_has_ipv6();
    let raw = |version| {
        transparent::make(Wanted { kind: Kind::Raw, version, transparent: false, marked: true })
    };
    Ok(Sockets {
        query: query::listener()?,
        tcp4: transparent::listener(IpVersion::V4)?,
        tcp6: has_ipv6.then(|| transparent::listener(IpVersion::V6)).transpose()?,
        udp4: transparent::receiver(IpVersion::V4)?,
        udp6: has_ipv6.then(|| transparent::receiver(IpVersion::V6)).transpose()?,
        raw4: raw(IpVersion::V4)?,
        raw6: has_ipv6.then(|| raw(IpVersion::V6)).transpose()?,
        network: File::open("/proc/self/ns/net")?.into(),
        user: File::open("/proc/self/ns/user")?.into(),
    })
}
