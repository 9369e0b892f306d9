//! Opens TCP sockets of a link server in advance, so that programs wait less. The server keeps at
//! most one unused socket for each IP version. When a program requests a socket, the server passes
//! the unused socket to the run's helper immediately. While the helper connects this socket, the
//! server opens another one. When a run ends, the server closes the unused sockets.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tacit_sys::IpVersion;
use tacit_sys::handed;

/// The sockets that are ready, unconnected and without options; at most one for each IP version.
#[derive(Debug, Default)]
pub(super) struct SpareSockets {
    v4: RefCell<Option<Arc<OwnedFd>>>,
    v6: RefCell<Option<Arc<OwnedFd>>>,
}

impl SpareSockets {
    /// Returns the socket of this version, if it is ready.
    pub(super) fn take(&self, version: IpVersion) -> Option<Arc<OwnedFd>> {
        self.of(version).take()
    }

    /// Opens the next socket. If this fails, the next request opens its socket itself.
    pub(super) fn fill(&self, version: IpVersion) {
        let mut spare = self.of(version).borrow_mut();
        if spare.is_none() {
            *spare = handed::new_tcp(version).ok().map(Arc::new);
        }
    }

    /// Closes the sockets, so that a server without runs has none.
    pub(super) fn close(&self) {
        self.v4.take();
        self.v6.take();
    }

    fn of(&self, version: IpVersion) -> &RefCell<Option<Arc<OwnedFd>>> {
        match version {
            IpVersion::V4 => &self.v4,
            IpVersion::V6 => &self.v6,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_socket_is_taken_once_and_only_for_its_own_namespace() {
        let spares = SpareSockets::default();
        let own = handed::new_tcp(IpVersion::V4).unwrap();
        let namespace = handed::namespace_cookie(own.as_fd()).unwrap();
        assert!(spares.take(IpVersion::V4).is_none(), "nothing is ready");

        spares.fill(IpVersion::V4);
        assert!(spares.take(IpVersion::V6).is_none(), "another version");
        let taken = spares.take(IpVersion::V4).unwrap();
        let other = handed::adopt(taken.as_fd(), IpVersion::V4, namespace + 1);
        assert!(other.is_err(), "another namespace");
        let adopted = handed::adopt(taken.as_fd(), IpVersion::V4, namespace).unwrap();
        assert_eq!(handed::identity(taken.as_fd()).unwrap(), adopted);
        assert!(spares.take(IpVersion::V4).is_none(), "taken twice");

        spares.fill(IpVersion::V4);
        spares.close();
        assert!(spares.take(IpVersion::V4).is_none(), "closed");
    }
}
