//! Defines how the FTP state machine requests a data connection. The caller of the state machine
//! opens the connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::side::StarttlsSide;

/// The IP addresses of both ends of a control connection; `None` for an end without an IP address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlAddresses {
    /// The peer.
    pub peer: Option<IpAddr>,
    /// The program.
    pub program: Option<IpAddr>,
}

impl ControlAddresses {
    pub(super) fn of(&self, side: StarttlsSide) -> Option<IpAddr> {
        match side {
            StarttlsSide::Peer => self.peer,
            StarttlsSide::Program => self.program,
        }
    }
}

/// A request for a data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRequest {
    /// The end that connects to tacit.
    pub connects: StarttlsSide,
    /// The address of the other end, which is dialled when the connection is accepted.
    pub dial: SocketAddr,
    /// Whether the peer's socket gets TLS.
    pub secure: bool,
}

/// Whether the last transfer that a client requested is an upload. The handshake on the data
/// connection needs this: a client that only writes does not read what it is sent, and a kernel
/// with unread bytes resets the connection.
#[derive(Clone, Debug, Default)]
pub struct UploadFlag(Arc<AtomicBool>);

impl UploadFlag {
    /// Whether the last requested transfer is an upload.
    #[must_use]
    pub fn now(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn note(&self, verb: &str) {
        match verb {
            "STOR" | "STOU" | "APPE" => self.0.store(true, Ordering::Relaxed),
            "RETR" | "LIST" | "NLST" | "MLSD" => self.0.store(false, Ordering::Relaxed),
            _ => {}
        }
    }
}
