//! Stores the *answerers* of a UDP flow. An answerer sends answers to the program from an address
//! or port that is not the destination of the flow.
//!
//! ```text
//!   program ──> 10.9.8.7:69    flow's socket ────┐
//!           <── 10.9.8.7:4711  answerer's socket ┴── upstream socket <── 10.9.8.7:4711
//! ```
//!
//! For example, a TFTP server answers from another port. With `answers = "any"` in the rule,
//! answers may also come from other addresses. For each answerer, the agent opens a socket inside
//! the network namespace of the program. This socket has the answerer's address. If a rule denies
//! an answerer, the agent drops the answerer's datagrams. After a reload, the new policy decides
//! about each answerer again.
//!
//! Limits: [`ANSWERERS_MAX`] answerers for each flow. The agent removes an answerer after
//! [`SILENT_MAX`] without a datagram from it. While the agent creates a socket, the agent stores
//! the answerer's datagrams, at most [`EARLY_BYTES_MAX`] in total.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tacit_sys::watch::Watched;
use tokio::sync::Notify;

/// Sources besides the destination from which one flow is answered.
pub(super) const ANSWERERS_MAX: usize = 16;
/// How long a source without datagrams is kept.
pub(super) const SILENT_MAX: Duration = Duration::from_secs(30);
/// The maximum payload that waits for the socket of one source.
const EARLY_BYTES_MAX: usize = 64 * 1024;

/// The sources of one flow.
#[derive(Debug, Default)]
pub(super) struct Answerers(RefCell<Vec<Rc<Answerer>>>);

/// A source other than the destination.
#[derive(Debug)]
pub(super) struct Answerer {
    /// The address of the source outside.
    pub(super) address: SocketAddr,
    /// The address of the source as the program sees it.
    pub(super) shown: SocketAddr,
    /// The socket inside the run that is bound to that address; created after the first datagram.
    pub(super) spoofed: OnceCell<Watched>,
    /// Whether the program's socket rejects datagrams of this source.
    pub(super) is_refused: Cell<bool>,
    pub(super) over: Notify,
    /// The generation of the policy that last permitted its answers.
    pub(super) generation: Cell<u64>,
    early: RefCell<Vec<Vec<u8>>>,
    last: Cell<Instant>,
}

impl Answerers {
    /// Finds the source with this address outside.
    pub(super) fn find(&self, address: SocketAddr) -> Option<Rc<Answerer>> {
        self.0.borrow().iter().find(|one| one.address == address).cloned()
    }

    /// Adds a source. The policy of this generation permits its answers. Returns `None` if the
    /// limit is reached.
    pub(super) fn add(
        &self,
        address: SocketAddr,
        shown: SocketAddr,
        generation: u64,
    ) -> Option<Rc<Answerer>> {
        let mut all = self.0.borrow_mut();
        if all.len() >= ANSWERERS_MAX {
            return None;
        }
        let made = Rc::new(Answerer {
            address,
            shown,
            spoofed: OnceCell::new(),
            is_refused: Cell::new(false),
            over: Notify::new(),
            generation: Cell::new(generation),
            early: RefCell::default(),
            last: Cell::new(Instant::now()),
        });
        all.push(Rc::clone(&made));
        Some(made)
    }

    /// All sources.
    pub(super) fn all(&self) -> Vec<Rc<Answerer>> {
        self.0.borrow().clone()
    }

    pub(super) fn remove(&self, answerer: &Rc<Answerer>) {
        self.0.borrow_mut().retain(|one| !Rc::ptr_eq(one, answerer));
    }

    /// Closes the sockets of all sources, because the flow has ended.
    pub(super) fn end(&self) {
        self.0.borrow_mut().drain(..).for_each(|one| one.over.notify_one());
    }
}

impl Answerer {
    /// Restarts the idle time of the source.
    pub(super) fn touch(&self) {
        self.last.set(Instant::now());
    }

    /// Returns when the source is removed if no datagram arrives until then.
    pub(super) fn over_at(&self) -> Instant {
        self.last.get() + SILENT_MAX
    }

    /// Stores a datagram until the socket exists; returns whether there was room.
    pub(super) fn keep(&self, payload: &[u8]) -> bool {
        let mut early = self.early.borrow_mut();
        let has_room = early.iter().map(Vec::len).sum::<usize>() + payload.len() <= EARLY_BYTES_MAX;
        if has_room {
            early.push(payload.to_vec());
        }
        has_room
    }

    /// Takes the datagrams that were stored while the socket was created.
    pub(super) fn take_early(&self) -> Vec<Vec<u8>> {
        self.early.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 9, 8, 7], port))
    }

    #[test]
    fn a_flow_has_so_many_sources_and_no_more() {
        let all = Answerers::default();
        let max = u16::try_from(ANSWERERS_MAX).unwrap();
        let made: Vec<_> = (1..=max).map(|port| all.add(address(port), address(port), 1)).collect();
        assert!(made.iter().all(Option::is_some));
        assert!(all.add(address(99), address(99), 1).is_none());
        let first = all.find(address(1)).unwrap();
        all.remove(&first);
        assert!(all.find(address(1)).is_none());
        assert!(all.add(address(99), address(99), 1).is_some());
        all.end();
        assert!(all.find(address(2)).is_none());
    }

    #[test]
    fn what_waits_for_a_socket_is_bounded() {
        let all = Answerers::default();
        let one = all.add(address(1), address(1), 1).unwrap();
        assert!(one.keep(&vec![0; EARLY_BYTES_MAX - 1]) && one.keep(&[1]) && !one.keep(&[2]));
        assert_eq!(one.take_early().len(), 2);
        assert!(one.keep(&[3]));
    }
}
