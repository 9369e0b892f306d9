//! Tracks UDP flows in a table of limited size.
//!
//! A flow is the exchange of datagrams between one socket of a program and one destination. A flow
//! begins with its first datagram and ends after an idle time:
//!
//! ```text
//! first datagram ──> unanswered ── reply ──> answered
//!                    ends after 60 s         ends after 180 s
//! ```
//!
//! If the table is full, a new flow replaces the flow that was idle the longest.
//!
//! The caller can store data of its own with each flow.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// The idle time of a flow without a reply. It is longer than resolvers and time clients wait for
/// an answer.
pub const UNANSWERED: Duration = Duration::from_secs(60);
/// The idle time of a flow with a reply. It is above the 120 s that RFC 4787 (section 4.3) requires
/// of NATs.
pub const ANSWERED: Duration = Duration::from_secs(180);

/// The two ends of a UDP flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatagramKey {
    /// The address of the program's socket.
    pub program: SocketAddr,
    /// The address to which the program sends.
    pub destination: SocketAddr,
}

/// Flows by their ends.
#[derive(Debug)]
pub struct DatagramFlows<F> {
    flows: HashMap<DatagramKey, FlowEntry<F>>,
    flows_max: usize,
}

#[derive(Debug)]
struct FlowEntry<F> {
    flow: F,
    last: Instant,
    is_answered: bool,
}

impl<F> DatagramFlows<F> {
    /// Creates an empty table with room for `flows_max` flows, at least one.
    #[must_use]
    pub fn new(flows_max: usize) -> Self {
        Self { flows: HashMap::new(), flows_max: flows_max.max(1) }
    }

    /// Returns the flow of a datagram from the program, and restarts its idle time.
    pub fn sent(&mut self, key: &DatagramKey, now: Instant) -> Option<&mut F> {
        let entry = self.flows.get_mut(key)?;
        entry.last = now;
        Some(&mut entry.flow)
    }

    /// Records a reply.
    pub fn answered(&mut self, key: &DatagramKey, now: Instant) {
        if let Some(entry) = self.flows.get_mut(key) {
            entry.last = now;
            entry.is_answered = true;
        }
    }

    /// Adds a flow. Returns the flow that was removed for it, or the existing flow with the same
    /// ends.
    pub fn begin(&mut self, key: DatagramKey, flow: F, now: Instant) -> Option<F> {
        let mut gone = None;
        if self.flows.len() >= self.flows_max && !self.flows.contains_key(&key) {
            // The search is linear. A program that fills the table pays for it with its own
            // datagrams.
            let oldest = self.flows.iter().min_by_key(|(_, entry)| entry.last);
            let oldest_key = oldest.map(|(key, _)| *key);
            gone = oldest_key.and_then(|key| self.flows.remove(&key));
        }
        let before = self.flows.insert(key, FlowEntry { flow, last: now, is_answered: false });
        gone.or(before).map(|entry| entry.flow)
    }

    /// Ends a flow.
    pub fn end(&mut self, key: &DatagramKey) -> Option<F> {
        self.flows.remove(key).map(|entry| entry.flow)
    }

    /// Returns the flow with these ends, without restarting its idle time.
    #[must_use]
    pub fn flow(&self, key: &DatagramKey) -> Option<&F> {
        self.flows.get(key).map(|entry| &entry.flow)
    }

    /// All flows, in no order.
    pub fn flows(&self) -> impl Iterator<Item = &F> {
        self.flows.values().map(|entry| &entry.flow)
    }

    /// The keys of all flows, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &DatagramKey> {
        self.flows.keys()
    }

    /// Takes all flows.
    pub fn take_all(&mut self) -> Vec<F> {
        self.flows.drain().map(|(_, entry)| entry.flow).collect()
    }

    /// Takes the flows that have expired.
    pub fn expire(&mut self, now: Instant) -> Vec<(DatagramKey, F)> {
        let is_over = |entry: &mut FlowEntry<F>| {
            let patience = if entry.is_answered { ANSWERED } else { UNANSWERED };
            now.saturating_duration_since(entry.last) >= patience
        };
        let over = self.flows.extract_if(|_, entry| is_over(entry));
        over.map(|(key, entry)| (key, entry.flow)).collect()
    }

    /// The number of flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }
}

/// Whether this is a unicast address. Multicast and broadcast datagrams have no flow.
#[must_use]
pub fn is_for_one(destination: IpAddr) -> bool {
    match destination.to_canonical() {
        IpAddr::V4(v4) => !(v4.is_multicast() || v4.is_broadcast() || v4.is_unspecified()),
        IpAddr::V6(v6) => !(v6.is_multicast() || v6.is_unspecified()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(port: u16) -> DatagramKey {
        DatagramKey {
            program: SocketAddr::from(([10, 0, 2, 15], port)),
            destination: SocketAddr::from(([10, 9, 8, 7], 123)),
        }
    }

    #[test]
    fn a_flow_lives_as_long_as_it_is_used_and_longer_once_answered() {
        let mut table = DatagramFlows::new(9);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(table.begin(key(1), "silent", start), None);
        assert_eq!(table.begin(key(2), "sending", start), None);
        assert_eq!(table.begin(key(3), "answered", start), None);
        assert_eq!(table.sent(&key(2), at(30)), Some(&mut "sending"));
        table.answered(&key(3), at(30));
        assert!(table.expire(at(59)).is_empty());
        assert_eq!(table.expire(at(60)), [(key(1), "silent")]);
        assert_eq!(table.expire(at(90)), [(key(2), "sending")]);
        assert!(table.expire(at(209)).is_empty());
        assert_eq!(table.expire(at(210)), [(key(3), "answered")]);
        assert!(table.is_empty());
        assert_eq!(table.sent(&key(3), at(210)), None);
    }

    #[test]
    fn a_full_table_gives_up_the_flow_that_was_silent_the_longest() {
        let mut table = DatagramFlows::new(2);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        table.begin(key(1), 1, start);
        table.begin(key(2), 2, at(1));
        table.sent(&key(1), at(2));
        assert_eq!(table.begin(key(3), 3, at(3)), Some(2));
        assert_eq!(table.begin(key(3), 4, at(3)), Some(3), "the same ends, another flow");
        assert_eq!((table.len(), table.end(&key(1))), (2, Some(1)));
        assert_eq!((table.flow(&key(1)), table.flow(&key(3))), (None, Some(&4)));
        assert_eq!(table.keys().collect::<Vec<_>>(), [&key(3)]);
        assert_eq!((table.flows().count(), table.take_all(), table.len()), (1, vec![4], 0));
    }

    #[test]
    fn many_at_once_are_not_one() {
        for many in ["224.0.0.251", "255.255.255.255", "0.0.0.0", "ff02::fb", "::"] {
            assert!(!is_for_one(many.parse().unwrap()), "{many}");
        }
        for one in ["10.0.0.255", "127.0.0.1", "2001:db8::1", "fe80::1"] {
            assert!(is_for_one(one.parse().unwrap()), "{one}");
        }
    }

    proptest! {
        #[test]
        fn the_table_never_holds_more_than_its_limit_nor_a_flow_that_is_over(
            steps in prop::collection::vec((0_u16..12, 0_u8..4, 0_u64..50), 0..200),
        ) {
            let mut table = DatagramFlows::new(6);
            let mut now = Instant::now();
            let mut last: HashMap<u16, (Instant, bool)> = HashMap::new();
            for (port, what, seconds) in steps {
                now += Duration::from_secs(seconds);
                for (key, port) in table.expire(now) {
                    let (at, is_answered) = last.remove(&port).unwrap();
                    prop_assert_eq!(key.program.port(), port);
                    let patience = if is_answered { ANSWERED } else { UNANSWERED };
                    prop_assert!(now - at >= patience);
                }
                match what {
                    0 | 1 => if table.sent(&key(port), now).is_none() {
                        if let Some(gone) = table.begin(key(port), port, now) {
                            last.remove(&gone);
                        }
                        last.insert(port, (now, false));
                    } else if let Some(entry) = last.get_mut(&port) {
                        entry.0 = now;
                    },
                    2 => {
                        table.answered(&key(port), now);
                        if let Some(entry) = last.get_mut(&port) {
                            *entry = (now, true);
                        }
                    }
                    _ => {
                        let was_there = last.remove(&port).is_some();
                        prop_assert_eq!(table.end(&key(port)).is_some(), was_there);
                    }
                }
                prop_assert_eq!(table.len(), last.len());
                prop_assert!(table.len() <= 6);
            }
        }
    }
}
