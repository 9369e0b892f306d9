//! Defines [`TunLease`], which shows whether a thread still reads the TUN device of a program under
//! `tacit run`.
//!
//! The thread holds the lease while it uses the device. If the thread cannot use the device, it
//! drops the lease and closes the device. The kernel then removes the device. With
//! [`TunLeaseWatch`], other threads find out that the lease was dropped, and that the program needs
//! a new device.
//!
//! The lease contains a descriptor of the device. Other threads duplicate it only when they hand
//! over the device. So when the lease is dropped, no descriptor remains that would keep a device
//! that no thread reads.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// Held as long as the agent uses a TUN device. When the lease is dropped, the run needs another
/// device.
#[derive(Debug)]
pub struct TunLease {
    _device: Arc<OwnedFd>,
}

/// Finds out whether a lease is held.
#[derive(Clone, Debug)]
pub struct TunLeaseWatch(Weak<OwnedFd>);

impl TunLease {
    /// Returns a lease for the device with this descriptor, and the value that finds out whether
    /// the lease is held.
    #[must_use]
    pub fn new(device: OwnedFd) -> (Self, TunLeaseWatch) {
        let device = Arc::new(device);
        let watch = TunLeaseWatch(Arc::downgrade(&device));
        (Self { _device: device }, watch)
    }
}

impl TunLeaseWatch {
    /// Whether the lease is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Returns another descriptor of the device; `None` if the lease is not held.
    ///
    /// # Errors
    /// The limit of open files is reached.
    pub fn duplicate(&self) -> io::Result<Option<OwnedFd>> {
        self.0.upgrade().map(|device| device.try_clone()).transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn there_are_duplicates_of_a_device_only_while_its_lease_is_held() {
        let device = File::open("/dev/null").unwrap();
        let (lease, watch) = TunLease::new(device.into());
        assert!(watch.is_held() && watch.duplicate().unwrap().is_some());
        assert!(watch.is_held(), "a duplicate does not end the lease");
        drop(lease);
        assert!(!watch.is_held() && watch.duplicate().unwrap().is_none());
    }
}
