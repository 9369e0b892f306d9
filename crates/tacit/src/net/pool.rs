//! Stores unused sockets that a helper process has created inside the network namespace of a
//! program under `tacit run`.
//!
//! A request to the helper needs a third of the CPU time of a handshake. So the agent requests
//! several sockets at once. Limit: [`SOCKETS_AT_ONCE_MAX`] sockets of each kind, such as UDP over
//! IPv6.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tacit_core::flow::Protocol;
use tacit_sys::IpVersion;

/// The largest number of sockets that one request asks for, and that the pool stores of one kind.
pub const SOCKETS_AT_ONCE_MAX: usize = 16;

/// Unused sockets of one run, by transport and address family.
#[derive(Debug, Default)]
pub struct SocketPool {
    tcp4: SocketsOfKind,
    tcp6: SocketsOfKind,
    udp4: SocketsOfKind,
    udp6: SocketsOfKind,
}

/// Unused sockets of one kind. The more were needed, the more are requested the next time.
#[derive(Debug, Default)]
pub struct SocketsOfKind {
    sockets: Mutex<Vec<OwnedFd>>,
    requested_last: AtomicUsize,
}

impl SocketPool {
    /// The sockets of one transport and IP version.
    #[must_use]
    pub fn kind(&self, protocol: Protocol, version: IpVersion) -> &SocketsOfKind {
        match (protocol, version) {
            (Protocol::Tcp, IpVersion::V4) => &self.tcp4,
            (Protocol::Tcp, IpVersion::V6) => &self.tcp6,
            // The sockets for ICMP are datagram sockets; the agent relays no ICMP.
            (Protocol::Udp | Protocol::Icmp, IpVersion::V4) => &self.udp4,
            (Protocol::Udp | Protocol::Icmp, IpVersion::V6) => &self.udp6,
        }
    }
}

impl SocketsOfKind {
    /// Takes a socket from the pool.
    pub fn take(&self) -> Option<OwnedFd> {
        self.lock().pop()
    }

    /// How many to request now: one at first, twice as many each time.
    pub fn next_request(&self) -> usize {
        let doubled = self.requested_last.load(Ordering::Relaxed) * 2;
        let count = doubled.clamp(1, SOCKETS_AT_ONCE_MAX);
        self.requested_last.store(count, Ordering::Relaxed);
        count
    }

    /// Puts sockets into the pool; those above the limit are closed.
    pub fn put(&self, new: Vec<OwnedFd>) {
        let mut sockets = self.lock();
        sockets.extend(new);
        sockets.truncate(SOCKETS_AT_ONCE_MAX);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()).collect()
    }

    #[test]
    fn a_pool_grows_with_what_is_needed_and_no_further() {
        let pool = SocketPool::default();
        let kind = pool.kind(Protocol::Tcp, IpVersion::V4);
        let requested: Vec<_> = (0..6).map(|_| kind.next_request()).collect();
        assert_eq!(requested, [1, 2, 4, 8, 16, 16]);
        kind.put(sockets(SOCKETS_AT_ONCE_MAX - 1));
        kind.put(sockets(SOCKETS_AT_ONCE_MAX - 1));
        let there = std::iter::from_fn(|| kind.take()).count();
        assert_eq!(there, SOCKETS_AT_ONCE_MAX);
        kind.put(sockets(1));
        assert!(pool.kind(Protocol::Tcp, IpVersion::V6).take().is_none(), "of its own kind only");
    }
}
