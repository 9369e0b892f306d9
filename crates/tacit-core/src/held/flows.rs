//! Which flows are held, and who waits for their connections.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;

/// Flows of one run that are held at a time. The SYN of a further one is left without an answer:
/// its program sends it again after a second.
pub const HELD_MAX: usize = 4096;

/// A flow by its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The program's end.
    pub program: SocketAddr,
    /// Where it connects to.
    pub destination: SocketAddr,
}

/// What a SYN means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A flow begins: its destination is to be dialled. An older flow between the same ends is
    /// gone, with its waiter.
    New,
    /// The destination has not answered yet.
    Waiting,
    /// The flow was released and is not connected: the SYN is to be released again.
    Released,
    /// There are [`HELD_MAX`] flows.
    Full,
}

/// The held flows of one run; `W` takes the connection of a flow when it is accepted, and learns by
/// being dropped that another flow has replaced its own.
#[derive(Debug)]
pub struct Flows<W> {
    held: HashMap<Key, Held<W>>,
}

#[derive(Debug)]
struct Held<W> {
    sequence: u32,
    is_released: bool,
    waiter: W,
}

impl<W> Default for Flows<W> {
    fn default() -> Self {
        Self { held: HashMap::new() }
    }
}

impl<W> Flows<W> {
    /// Takes in a SYN. `waiter` makes the waiter of a new flow.
    pub fn see(&mut self, key: Key, sequence: u32, waiter: impl FnOnce() -> W) -> Seen {
        let is_full = self.held.len() >= HELD_MAX;
        let new = |waiter| Held { sequence, is_released: false, waiter };
        match self.held.entry(key) {
            Entry::Occupied(mut entry) => {
                let held = entry.get_mut();
                if held.sequence != sequence {
                    *held = new(waiter());
                    return Seen::New;
                }
                if held.is_released { Seen::Released } else { Seen::Waiting }
            }
            Entry::Vacant(_) if is_full => Seen::Full,
            Entry::Vacant(entry) => {
                entry.insert(new(waiter()));
                Seen::New
            }
        }
    }

    /// The destination has accepted: every SYN of the flow is released from here on. Returns
    /// whether the flow is still held.
    pub fn release(&mut self, key: Key, sequence: u32) -> bool {
        match self.held.get_mut(&key) {
            Some(held) if held.sequence == sequence => {
                held.is_released = true;
                true
            }
            _ => false,
        }
    }

    /// Takes out the waiter of a connection that was accepted; `None`: no released flow has these
    /// ends.
    pub fn accept(&mut self, key: Key) -> Option<W> {
        match self.held.entry(key) {
            Entry::Occupied(entry) if entry.get().is_released => Some(entry.remove().waiter),
            _ => None,
        }
    }

    /// Ends a flow that is not connected.
    pub fn end(&mut self, key: Key, sequence: u32) {
        if let Entry::Occupied(entry) = self.held.entry(key)
            && entry.get().sequence == sequence
        {
            entry.remove();
        }
    }

    /// Ends all flows.
    pub fn clear(&mut self) {
        self.held.clear();
    }

    /// How many flows are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether none is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn key(port: u16) -> Key {
        Key { program: ([10, 0, 2, 15], port).into(), destination: ([192, 0, 2, 7], 80).into() }
    }

    #[test]
    fn every_syn_after_the_release_is_released_again() {
        let mut flows = Flows::default();
        assert_eq!(flows.see(key(1), 7, || ()), Seen::New);
        assert_eq!(flows.see(key(1), 7, || ()), Seen::Waiting, "sent again");
        assert!(flows.accept(key(1)).is_none(), "it is not released");
        assert!(flows.release(key(1), 7));
        assert_eq!(flows.see(key(1), 7, || ()), Seen::Released);
        assert_eq!(flows.see(key(1), 7, || ()), Seen::Released);
        assert!(flows.accept(key(1)).is_some());
        assert!(flows.accept(key(1)).is_none() && flows.is_empty());
    }

    #[test]
    fn a_new_sequence_number_replaces_the_flow_and_drops_its_waiter() {
        let mut flows = Flows::default();
        let first = Rc::new(());
        flows.see(key(1), 7, || Rc::clone(&first));
        flows.release(key(1), 7);
        assert_eq!(flows.see(key(1), 8, Rc::default), Seen::New);
        assert_eq!(Rc::strong_count(&first), 1, "the waiter of the older flow is gone");
        assert!(!flows.release(key(1), 7));
        flows.end(key(1), 7);
        assert_eq!(flows.len(), 1, "the older flow ends nothing");
        assert!(flows.accept(key(1)).is_none());
        flows.end(key(1), 8);
        assert!(flows.is_empty());
    }

    #[test]
    fn the_table_is_bounded_and_a_place_becomes_free() {
        let mut flows = Flows::default();
        let ports = 1..=u16::try_from(HELD_MAX).unwrap();
        for port in ports {
            assert_eq!(flows.see(key(port), 1, || ()), Seen::New);
        }
        assert_eq!(flows.see(key(60_000), 1, || ()), Seen::Full);
        assert_eq!(flows.see(key(5), 1, || ()), Seen::Waiting, "one that is held stays");
        assert_eq!(flows.see(key(5), 2, || ()), Seen::New, "and can be replaced");
        flows.end(key(9), 1);
        assert_eq!(flows.see(key(60_000), 1, || ()), Seen::New);
    }
}
