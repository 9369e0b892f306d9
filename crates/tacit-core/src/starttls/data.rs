//! Data connections of FTP, as a dialogue asks for them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::side::StarttlsSide;

/// Where the two ends of a control connection are; `None`: not at an IP address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlAddresses {
    /// The end away from the program.
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

/// A data connection that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRequest {
    /// The end that will connect to tacit.
    pub connects: StarttlsSide,
    /// Where the other end is to be dialled then.
    pub dial: SocketAddr,
    /// Whether the peer's leg gets TLS.
    pub secure: bool,
}

/// Whether the last transfer that a client asked for goes to the server. For whoever shakes hands
/// on its data connection, which happens elsewhere: clients that only write there do not read what
/// is sent to them besides, and a kernel that is left with unread bytes resets what was written.
#[derive(Clone, Debug, Default)]
pub struct UploadFlag(Arc<AtomicBool>);

impl UploadFlag {
    /// Whether it does, as far as is known by now.
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
