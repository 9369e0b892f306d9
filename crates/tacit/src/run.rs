//! A run as the data path knows it: whose connections these are, and what names their addresses
//! have.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tacit_core::dns::Names;

/// A program and its children under `tacit run`, in a network namespace of their own.
#[derive(Debug)]
pub struct Run {
    /// Counts from 1 since the agent started.
    pub id: u64,
    /// What the launcher called it.
    pub name: String,
    /// The launcher's process.
    pub pid: u32,
    /// Whose it is.
    pub user: String,
    names: Mutex<Names>,
}

impl Run {
    /// A run that has just been enrolled.
    #[must_use]
    pub fn new(id: u64, name: String, pid: u32, user: String) -> Self {
        Self { id, name, pid, user, names: Mutex::default() }
    }

    /// The names that the run asked for and that gave this address.
    #[must_use]
    pub fn names_of(&self, address: IpAddr) -> Vec<String> {
        self.lock().of(address, Instant::now())
    }

    /// Remembers what DNS said; tells whether it was news.
    pub fn learn(&self, name: &str, address: IpAddr, ttl: Duration) -> bool {
        self.lock().record(name, address, ttl, Instant::now())
    }

    /// Every address with a name it has now.
    #[must_use]
    pub fn learnt(&self) -> Vec<(IpAddr, String)> {
        self.lock().all(Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
