//! Keeps a TCP socket of each IP version ready for the next request to pass a socket to a helper.
//! While the helper connects one socket, the server has time to open the next. So the program waits
//! less. When a run ends, the server closes the sockets that are ready.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tacit_sys::IpVersion;
use tacit_sys::handed::{self, SocketIdentity};

/// The sockets that are ready; at most one for each IP version.
#[derive(Debug, Default)]
pub(super) struct SpareSockets {
    v4: RefCell<Option<SpareSocket>>,
    v6: RefCell<Option<SpareSocket>>,
}

/// An unconnected TCP socket without options.
#[derive(Debug)]
pub(super) struct SpareSocket {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) identity: SocketIdentity,
    /// The cookie of its network namespace.
    namespace: u64,
}

impl SpareSockets {
    /// Returns the socket of this version, if it is ready and in this network namespace.
    pub(super) fn take(&self, version: IpVersion, namespace: u64) -> Option<SpareSocket> {
        self.of(version).take().filter(|spare| spare.namespace == namespace)
    }

    /// Opens the next socket. If this fails, the next request opens its socket itself.
    pub(super) fn fill(&self, version: IpVersion) {
        let mut spare = self.of(version).borrow_mut();
        if spare.is_none() {
            *spare = SpareSocket::open(version).ok();
        }
    }

    /// Closes the sockets, so that a server without runs has none.
    pub(super) fn close(&self) {
        self.v4.take();
        self.v6.take();
    }

    fn of(&self, version: IpVersion) -> &RefCell<Option<SpareSocket>> {
        match version {
            IpVersion::V4 => &self.v4,
            IpVersion::V6 => &self.v6,
        }
    }
}

impl SpareSocket {
    fn open(version: IpVersion) -> io::Result<Self> {
        let socket = Arc::new(handed::new_tcp(version)?);
        let namespace = handed::namespace_cookie(socket.as_fd())?;
        let identity = handed::identity(socket.as_fd())?;
        Ok(Self { socket, identity, namespace })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_taken_once_and_only_for_its_own_namespace() {
        let spares = SpareSockets::default();
        let own = handed::new_tcp(IpVersion::V4).unwrap();
        let namespace = handed::namespace_cookie(own.as_fd()).unwrap();
        assert!(spares.take(IpVersion::V4, namespace).is_none(), "nothing is ready");

        spares.fill(IpVersion::V4);
        assert!(spares.take(IpVersion::V6, namespace).is_none(), "another version");
        let taken = spares.take(IpVersion::V4, namespace).unwrap();
        let adopted = handed::adopt(taken.socket.as_fd(), IpVersion::V4, namespace).unwrap();
        assert_eq!(taken.identity, adopted);
        assert!(spares.take(IpVersion::V4, namespace).is_none(), "taken twice");

        spares.fill(IpVersion::V4);
        assert!(spares.take(IpVersion::V4, namespace + 1).is_none(), "another namespace");
        spares.fill(IpVersion::V4);
        spares.close();
        assert!(spares.take(IpVersion::V4, namespace).is_none(), "closed");
    }
}
