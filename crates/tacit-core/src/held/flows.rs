//! Stores the SYN packets that the agent holds until their destinations answer. Also stores the
//! tasks that wait until a held SYN has become a connection.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

/// The largest number of held flows of one run. Further SYNs get no answer; the kernel retransmits
/// them after a second.
pub const HELD_MAX: usize = 4096;

/// The largest number of connected flows that are stored to recognise late copies of their SYN. The
/// log cannot contain more.
const OVER_MAX: usize = 16_384;

/// A flow, identified by its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowEnds {
    /// The address of the program's socket.
    pub program: SocketAddr,
    /// The address to which the program connects.
    pub destination: SocketAddr,
}

/// The state of the flow of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynState {
    /// A new flow, whose destination must be dialled. If there was an older flow between the same
    /// ends, it was dropped with its waiter.
    New,
    /// The destination has not answered yet.
    Waiting,
    /// The flow was released and is not connected: release the SYN again.
    Released,
    /// The flow was connected: the SYN is a late copy from the log.
    Over,
    /// The table is full.
    Full,
}

/// The held flows of one run. `W` is the type of a waiter, which takes the connection of a flow
/// when it is accepted. A waiter is dropped when another flow replaces its flow.
#[derive(Debug)]
pub struct HeldFlows<W> {
    held: HashMap<FlowEnds, HeldFlow<W>>,
    held_max: usize,
    /// The hashes of the last connected flows with their sequence numbers. Refused flows are not
    /// included, because a program may miss the answer and must get it again.
    over: HashSet<u64>,
    /// The same hashes, the oldest first.
    ended: VecDeque<u64>,
    /// The keys of the hashes. A program that does not know them cannot choose flows with the same
    /// hash.
    hasher: RandomState,
}

#[derive(Debug)]
struct HeldFlow<W> {
    sequence: u32,
    is_released: bool,
    waiter: W,
}

impl<W> HeldFlows<W> {
    /// Creates a table for at most `held_max` flows, and never more than [`HELD_MAX`].
    #[must_use]
    pub fn new(held_max: usize) -> Self {
        let held_max = held_max.min(HELD_MAX);
        Self {
            held: HashMap::new(),
            held_max,
            over: HashSet::new(),
            ended: VecDeque::new(),
            hasher: RandomState::new(),
        }
    }

    /// Handles a SYN. `waiter` creates the waiter of a new flow.
    pub fn see(&mut self, key: FlowEnds, sequence: u32, waiter: impl FnOnce() -> W) -> SynState {
        if self.over.contains(&self.hasher.hash_one((key, sequence))) {
            return SynState::Over;
        }
        let is_full = self.held.len() >= self.held_max;
        let new = |waiter| HeldFlow { sequence, is_released: false, waiter };
        match self.held.entry(key) {
            Entry::Occupied(mut entry) => {
                let held = entry.get_mut();
                if held.sequence != sequence {
                    *held = new(waiter());
                    return SynState::New;
                }
                if held.is_released { SynState::Released } else { SynState::Waiting }
            }
            Entry::Vacant(_) if is_full => SynState::Full,
            Entry::Vacant(entry) => {
                entry.insert(new(waiter()));
                SynState::New
            }
        }
    }

    /// Marks a flow as accepted by the destination: its SYNs are released from now on. Returns
    /// whether the flow is still held.
    pub fn release(&mut self, key: FlowEnds, sequence: u32) -> bool {
        match self.held.get_mut(&key) {
            Some(held) if held.sequence == sequence => {
                held.is_released = true;
                true
            }
            _ => false,
        }
    }

    /// Takes the waiter of an accepted connection; `None`: no released flow has these ends.
    pub fn accept(&mut self, key: FlowEnds) -> Option<W> {
        let Entry::Occupied(entry) = self.held.entry(key) else { return None };
        if !entry.get().is_released {
            return None;
        }
        let HeldFlow { sequence, waiter, .. } = entry.remove();
        self.note_over(key, sequence);
        Some(waiter)
    }

    fn note_over(&mut self, key: FlowEnds, sequence: u32) {
        let flow = self.hasher.hash_one((key, sequence));
        if !self.over.insert(flow) {
            return;
        }
        self.ended.push_back(flow);
        if self.ended.len() > OVER_MAX
            && let Some(oldest) = self.ended.pop_front()
        {
            self.over.remove(&oldest);
        }
    }

    /// Ends a flow that was not connected.
    pub fn end(&mut self, key: FlowEnds, sequence: u32) {
        if let Entry::Occupied(entry) = self.held.entry(key)
            && entry.get().sequence == sequence
        {
            entry.remove();
        }
    }

    /// Ends all flows that are not released.
    pub fn clear(&mut self) {
        self.held.retain(|_, held| held.is_released);
    }

    /// Returns the number of held flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there are no held flows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn key(port: u16) -> FlowEnds {
        FlowEnds {
            program: ([10, 0, 2, 15], port).into(),
            destination: ([192, 0, 2, 7], 80).into(),
        }
    }

    #[test]
    fn every_syn_after_the_release_is_released_again() {
        let mut flows = HeldFlows::new(HELD_MAX);
        assert_eq!(flows.see(key(1), 7, || ()), SynState::New);
        assert_eq!(flows.see(key(1), 7, || ()), SynState::Waiting, "sent again");
        assert!(flows.accept(key(1)).is_none(), "it is not released");
        assert!(flows.release(key(1), 7));
        assert_eq!(flows.see(key(1), 7, || ()), SynState::Released);
        assert_eq!(flows.see(key(1), 7, || ()), SynState::Released);
        assert!(flows.accept(key(1)).is_some());
        assert!(flows.accept(key(1)).is_none() && flows.is_empty());
    }

    #[test]
    fn a_copy_of_a_flow_that_is_over_begins_none() {
        let mut flows = HeldFlows::new(HELD_MAX);
        flows.see(key(1), 7, || ());
        flows.release(key(1), 7);
        flows.accept(key(1));
        flows.end(key(1), 7);
        assert_eq!(flows.see(key(1), 7, || ()), SynState::Over);
        assert_eq!(flows.see(key(1), 8, || ()), SynState::New, "the same ends again");
        assert_eq!(flows.see(key(1), 7, || ()), SynState::Over, "an older copy replaces nothing");
        flows.see(key(3), 7, || ());
        flows.end(key(3), 7);
        assert_eq!(flows.see(key(3), 7, || ()), SynState::New, "refused, or without an answer");
    }

    #[test]
    fn flows_that_are_over_are_forgotten_the_oldest_first() {
        let mut flows = HeldFlows::new(HELD_MAX);
        let ends = |number: usize| key(u16::try_from(number).unwrap());
        let mut connect = |number, sequence| {
            flows.see(ends(number), sequence, || ());
            flows.release(ends(number), sequence);
            flows.accept(ends(number));
        };
        (0..=OVER_MAX).for_each(|number| connect(number, 7));
        connect(1, 8);
        assert_eq!(flows.ended.len(), OVER_MAX);
        assert_eq!(flows.see(ends(0), 7, || ()), SynState::New);
        assert_eq!(flows.see(ends(1), 8, || ()), SynState::Over);
        assert_eq!(flows.see(ends(2), 7, || ()), SynState::Over);
    }

    #[test]
    fn what_is_released_outlives_the_others() {
        let mut flows = HeldFlows::new(2);
        flows.see(key(1), 7, || ());
        flows.see(key(2), 7, || ());
        assert_eq!(flows.see(key(3), 7, || ()), SynState::Full);
        flows.release(key(1), 7);
        flows.clear();
        assert_eq!(flows.len(), 1);
        assert!(flows.accept(key(1)).is_some());
    }

    #[test]
    fn a_new_sequence_number_replaces_the_flow_and_drops_its_waiter() {
        let mut flows = HeldFlows::new(HELD_MAX);
        let first = Rc::new(());
        flows.see(key(1), 7, || Rc::clone(&first));
        flows.release(key(1), 7);
        assert_eq!(flows.see(key(1), 8, Rc::default), SynState::New);
        assert_eq!(Rc::strong_count(&first), 1, "the waiter of the older flow is gone");
        assert!(!flows.release(key(1), 7));
        flows.end(key(1), 7);
        assert_eq!(flows.len(), 1, "the older flow ends nothing");
        assert!(flows.accept(key(1)).is_none());
        flows.end(key(1), 8);
        assert!(flows.is_empty());
    }

    #[test]
    fn the_table_is_bounded_and_a_slot_becomes_free() {
        let mut flows = HeldFlows::new(HELD_MAX);
        let ports = 1..=u16::try_from(HELD_MAX).unwrap();
        for port in ports {
            assert_eq!(flows.see(key(port), 1, || ()), SynState::New);
        }
        assert_eq!(flows.see(key(60_000), 1, || ()), SynState::Full);
        assert_eq!(flows.see(key(5), 1, || ()), SynState::Waiting, "one that is held stays");
        assert_eq!(flows.see(key(5), 2, || ()), SynState::New, "and can be replaced");
        flows.end(key(9), 1);
        assert_eq!(flows.see(key(60_000), 1, || ()), SynState::New);
    }
}
