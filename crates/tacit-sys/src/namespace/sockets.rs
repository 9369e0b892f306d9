//! Creates sockets inside a network namespace, for the agent, which runs outside of this namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::kernel::kernel_has_ipv6;
use super::refusal::{NamespaceError, NamespaceStep};
use crate::ip_version::IpVersion;
use crate::netlink::nft::SocketMarks;
use crate::netlink::{Netlink, Subsystem};
use crate::query;
use crate::syn_log::{self, Copies};
use crate::transparent;

/// The sockets that the helper creates once and sends to the agent. On a kernel without IPv6, the
/// sockets for IPv6 are absent.
///
/// The helper closes its own copies before a program starts, because a listener that any process
/// holds open continues to accept connections when the agent has ended.
#[derive(Debug)]
pub struct NamespaceSockets {
    /// The socket at which programs query their connections; see [`query`].
    pub query: OwnedFd,
    /// The listener for captured TCP connections over IPv4.
    pub tcp4: OwnedFd,
    /// The listener for captured TCP connections over IPv6.
    pub tcp6: Option<OwnedFd>,
    /// The socket for captured IPv4 datagrams; see [`transparent::receive`].
    pub udp4: OwnedFd,
    /// The socket for captured IPv6 datagrams.
    pub udp6: Option<OwnedFd>,
    /// The socket that sends ICMP errors with the address of a destination, as complete packets.
    pub raw4: OwnedFd,
    /// The same for ICMPv6.
    pub raw6: Option<OwnedFd>,
    /// The socket that receives copies of held SYNs; see [`syn_log`].
    pub syn_log: OwnedFd,
    /// Keeps SYNs of IPv4 held while it is open.
    pub hold4: OwnedFd,
    /// Keeps SYNs of IPv6 held while it is open.
    pub hold6: Option<OwnedFd>,
    /// The socket that releases SYNs of IPv4, as complete packets.
    pub release4: OwnedFd,
    /// The socket that releases SYNs of IPv6.
    pub release6: Option<OwnedFd>,
    /// The network namespace.
    pub network: OwnedFd,
    /// The user namespace; for root, the initial user namespace.
    pub user: OwnedFd,
}

impl NamespaceSockets {
    /// Returns all descriptors, in the order that [`NamespaceSockets::from_descriptors`] expects.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let always = [
            self.network.as_fd(),
            self.user.as_fd(),
            self.query.as_fd(),
            self.syn_log.as_fd(),
            self.tcp4.as_fd(),
            self.udp4.as_fd(),
            self.raw4.as_fd(),
            self.hold4.as_fd(),
            self.release4.as_fd(),
        ];
        let ipv6 = [&self.tcp6, &self.udp6, &self.raw6, &self.hold6, &self.release6];
        let ipv6 = ipv6.into_iter().flatten();
        always.into_iter().chain(ipv6.map(AsFd::as_fd)).collect()
    }

    /// Builds the struct from the descriptors that another process sent. Returns `None` if the
    /// descriptors are not those of [`NamespaceSockets::descriptors`].
    #[must_use]
    pub fn from_descriptors(descriptors: Vec<OwnedFd>) -> Option<Self> {
        if ![9, 14].contains(&descriptors.len()) {
            return None;
        }
        let mut next = descriptors.into_iter();
        Some(Self {
            network: next.next()?,
            user: next.next()?,
            query: next.next()?,
            syn_log: next.next()?,
            tcp4: next.next()?,
            udp4: next.next()?,
            raw4: next.next()?,
            hold4: next.next()?,
            release4: next.next()?,
            tcp6: next.next(),
            udp6: next.next(),
            raw6: next.next(),
            hold6: next.next(),
            release6: next.next(),
        })
    }
}

/// The helper's netlink sockets.
#[derive(Debug)]
pub struct Netlinks {
    /// The socket for addresses and routes.
    pub route: Netlink,
    /// The socket for nftables rules.
    pub netfilter: Netlink,
    /// The socket for queries about sockets: the owner of a connection, and which ports are
    /// listened on.
    pub diagnosis: Netlink,
}

/// Opens the netlink sockets, in the network namespace of the calling thread.
///
/// # Errors
/// [`NamespaceStep::Sockets`] with the error of a system call.
pub(crate) fn netlinks() -> Result<Netlinks, NamespaceError> {
    let open = |subsystem| Netlink::open(subsystem).map_err(NamespaceStep::Sockets.failed());
    Ok(Netlinks {
        route: open(Subsystem::Route)?,
        netfilter: open(Subsystem::Netfilter)?,
        diagnosis: open(Subsystem::SocketDiagnosis)?,
    })
}

/// Creates the sockets, in the network namespace of the calling thread.
///
/// # Errors
/// [`NamespaceStep::Sockets`] with the error of a system call.
pub fn sockets(copies: Copies) -> Result<NamespaceSockets, NamespaceError> {
    make(copies).map_err(NamespaceStep::Sockets.failed())
}

fn make(copies: Copies) -> io::Result<NamespaceSockets> {
    // Nothing leaves a run but through its agent, so its listeners need no mark.
    let listener = |version| transparent::listener(version, None);
    let raw = |version| transparent::raw_socket(version, SocketMarks::OF_RUNS);
    let release = |version| transparent::release_socket(version, SocketMarks::OF_RUNS);
    Ok(NamespaceSockets {
        query: query::listener()?,
        syn_log: syn_log::open(copies)?,
        tcp4: listener(IpVersion::V4)?,
        tcp6: with_ipv6(listener)?,
        udp4: transparent::receiver(IpVersion::V4)?,
        udp6: with_ipv6(transparent::receiver)?,
        raw4: raw(IpVersion::V4)?,
        raw6: with_ipv6(raw)?,
        hold4: transparent::hold_listener(IpVersion::V4)?,
        hold6: with_ipv6(transparent::hold_listener)?,
        release4: release(IpVersion::V4)?,
        release6: with_ipv6(release)?,
        network: File::open("/proc/self/ns/net")?.into(),
        user: File::open("/proc/self/ns/user")?.into(),
    })
}

/// Creates a socket for IPv6, if the kernel has IPv6.
pub(crate) fn with_ipv6<T>(make: impl Fn(IpVersion) -> io::Result<T>) -> io::Result<Option<T>> {
    kernel_has_ipv6().then(|| make(IpVersion::V6)).transpose()
}
