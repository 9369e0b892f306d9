//! Defines [`TunLease`], which shows whether a thread still reads the TUN device of a program under
//! `tacit run`.
//!
//! The thread holds the lease while it uses the device. If the thread cannot use the device, it
//! drops the lease and closes the device. The kernel then removes the device. With
//! [`TunLeaseWatch`], other threads find out that the lease was dropped, and that the program needs
//! a new device.

use std::sync::{Arc, Weak};

/// Held as long as the agent uses a TUN device. When the lease is dropped, the run needs another
/// device.
#[derive(Debug)]
pub struct TunLease {
    _held: Arc<()>,
}

/// Finds out whether a lease is held.
#[derive(Clone, Debug)]
pub struct TunLeaseWatch(Weak<()>);

impl TunLease {
    /// Returns a lease, and the value that finds out whether the lease is held.
    #[must_use]
    pub fn new() -> (Self, TunLeaseWatch) {
        let held = Arc::new(());
        let watch = TunLeaseWatch(Arc::downgrade(&held));
        (Self { _held: held }, watch)
    }
}

impl TunLeaseWatch {
    /// Whether the lease is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.strong_count() > 0
    }
}
