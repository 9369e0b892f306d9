//! Places for handshakes, so that neither one source nor one rule can take them all.
//!
//! A handshake holds a place of its source, one of its rule, and one of all. The last quarter of
//! all is a reserve: only sources with no other handshake in flight may use it. Who finds no place
//! waits; nobody is refused for being early.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tacit_core::flow::Address;
use tacit_core::policy::Limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::live::LiveRule;

/// Sources that may be known before those without a handshake are looked for and forgotten.
const SOURCES_MAX: usize = 4096;

/// All places of the agent.
#[derive(Debug)]
pub struct Gates {
    common: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    per_source: usize,
    sources: Mutex<HashMap<Source, Arc<Semaphore>>>,
}

/// Who counts as one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source {
    V4(u32),
    /// A /64: what one customer or one machine has at least.
    V6(u64),
    /// All UNIX sockets together.
    Local,
}

impl Source {
    fn of(remote: &Address) -> Self {
        match remote.ip() {
            Some(IpAddr::V4(ip)) => Self::V4(ip.to_bits()),
            Some(IpAddr::V6(ip)) => Self::V6(network_bits(ip)),
            None => Self::Local,
        }
    }
}

fn network_bits(ip: Ipv6Addr) -> u64 {
    let [a, b, c, d, ..] = ip.segments();
    [a, b, c, d].into_iter().fold(0, |bits, segment| bits << 16 | u64::from(segment))
}

/// A handshake's places; given back when dropped.
#[derive(Debug)]
pub struct Place<'a> {
    gates: &'a Gates,
    source: Source,
    _of_source: OwnedSemaphorePermit,
    _of_rule: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Gates {
    /// Opens the gates with a policy's limits.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        let reserve = limits.handshakes / 4;
        Self {
            common: Arc::new(Semaphore::new(limits.handshakes - reserve)),
            reserve: Arc::new(Semaphore::new(reserve)),
            per_source: limits.handshakes_per_source,
            sources: Mutex::default(),
        }
    }

    /// Handshakes in flight.
    #[must_use]
    pub fn in_flight(&self, limits: &Limits) -> usize {
        let free = self.common.available_permits() + self.reserve.available_permits();
        limits.handshakes.saturating_sub(free)
    }

    /// Waits for a place. `None`: the agent is going away.
    pub async fn enter(&self, rule: &LiveRule, remote: &Address) -> Option<Place<'_>> {
        let source = Source::of(remote);
        let gate = self.gate_of(source);
        let first = gate.available_permits() == self.per_source;
        let of_source = gate.acquire_owned().await.ok()?;
        let of_rule = Arc::clone(&rule.handshakes).acquire_owned().await.ok()?;
        let of_all = match Arc::clone(&self.common).try_acquire_owned() {
            Ok(place) => place,
            Err(_) if first => Arc::clone(&self.reserve).acquire_owned().await.ok()?,
            Err(_) => Arc::clone(&self.common).acquire_owned().await.ok()?,
        };
        Some(Place {
            gates: self,
            source,
            _of_source: of_source,
            _of_rule: of_rule,
            _of_all: of_all,
        })
    }

    fn gate_of(&self, source: Source) -> Arc<Semaphore> {
        let mut sources = self.lock();
        if sources.len() >= SOURCES_MAX {
            // Who gave up waiting left an entry that nobody uses.
            sources.retain(|_, gate| Arc::strong_count(gate) > 1);
        }
        let gate =
            sources.entry(source).or_insert_with(|| Arc::new(Semaphore::new(self.per_source)));
        Arc::clone(gate)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Source, Arc<Semaphore>>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // The last of its source takes the source's entry with it: the table holds sources with
        // handshakes in flight or waiting, no others. Our own permit is one of two references.
        let mut sources = self.gates.lock();
        if sources.get(&self.source).is_some_and(|gate| Arc::strong_count(gate) <= 2) {
            sources.remove(&self.source);
        }
    }
}
