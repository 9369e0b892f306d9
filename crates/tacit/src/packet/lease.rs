//! Defines [`TunLease`]. A packet worker holds this lease as long as the worker reads the TUN
//! device of a run (a program under `tacit run`). With [`TunLeaseWatch`], the agent finds out
//! whether a worker holds the lease. If no worker holds the lease, no worker reads the device. Then
//! the run needs another TUN device.

use std::sync::{Arc, Weak};

/// A packet worker holds this lease as long as it reads a TUN device. When the lease is dropped,
/// the programs need another device.
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
