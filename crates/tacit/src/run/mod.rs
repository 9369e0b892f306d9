//! A run as the data path knows it: whose connections these are, what names their addresses have,
//! and whom to ask for what can only be done inside.

pub mod line;
pub mod protocol;

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tacit_core::dns::Names;

use line::Line;

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
    /// Whether it runs as another user than the agent: what it says of its programs is then its
    /// own claim.
    pub claimed: bool,
    /// To the helper inside.
    pub line: Line,
    names: Mutex<Names>,
}

impl Run {
    /// A run that has just been enrolled.
    #[must_use]
    pub fn new(id: u64, name: String, pid: u32, user: String, claimed: bool, line: Line) -> Self {
        Self { id, name, pid, user, claimed, line, names: Mutex::default() }
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

    /// Every name with each address it has now, and for how long more.
    #[must_use]
    pub fn learnt(&self) -> Vec<(String, IpAddr, Duration)> {
        self.lock().all(Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
