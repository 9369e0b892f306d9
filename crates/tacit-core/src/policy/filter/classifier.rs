//! Finds the filter rule that decides about a packet in an IPsec tunnel of `tacit run`. The agent
//! forwards these packets itself, so the kernel cannot filter them.
//!
//! The filter rules are divided into groups (see `plan`). The rules of a group compare the same
//! fields of a packet. A look-up searches the groups in order, until it finds a matching rule:
//!
//! * If the rules of a group compare only single values, the group has a hash table.
//! * If the rules of a group compare ranges, a look-up compares the packet with one rule after the
//!   other. This can be slow, so the caller caches the result for each flow.
//!
//! Some rules apply only in a time window. [`PacketClassifier::windows_at`] returns which time
//! windows are open at a given time, and the caller passes this state to each look-up. So the
//! classifier itself does not change when a time window begins or ends.

use std::collections::HashMap;

use super::plan::PlanScope;
use super::{FilterElement, FilterGate, FilterGroup, FilterPacket, FilterPlan, FilterRule};
use crate::policy::when::When;

/// The filter rules for the packets of a host, or of the tunnels with one peer.
#[derive(Clone, Debug, Default)]
pub struct PacketClassifier {
    groups: Vec<GroupTable>,
    /// The time windows that groups depend on, and whether their rules permit.
    windows: Vec<(When, bool)>,
}

/// A group, and the positions of its elements by key if each has one key.
#[derive(Clone, Debug)]
struct GroupTable {
    group: FilterGroup,
    exact: HashMap<Vec<u8>, usize>,
}

/// The state of the time windows of a classifier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowStates(Vec<bool>);

impl PacketClassifier {
    /// The classifier of the rules of a scope, from their plan.
    pub(in crate::policy) fn new(
        plan: FilterPlan,
        filters: &[FilterRule],
        scope: PlanScope<'_>,
    ) -> Self {
        let table = |group: FilterGroup| {
            let elements = group.elements.iter().enumerate().filter(|_| group.exact);
            let exact = elements.map(|(at, element)| (element.first.0.clone(), at)).collect();
            GroupTable { group, exact }
        };
        Self {
            groups: plan.groups.into_iter().map(table).collect(),
            windows: FilterPlan::windows(filters, scope),
        }
    }

    /// Whether there is no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Whether results depend on the time.
    #[must_use]
    pub fn has_windows(&self) -> bool {
        !self.windows.is_empty()
    }

    /// The state of the time windows at a time, in seconds since 1970.
    #[must_use]
    pub fn windows_at(&self, unix_s: i64) -> WindowStates {
        let windows = self.windows.iter();
        WindowStates(windows.map(|(when, permits)| when.is_open(unix_s) == *permits).collect())
    }

    /// The element that decides about a packet, if any.
    #[must_use]
    pub fn decide(&self, packet: &FilterPacket, windows: &WindowStates) -> Option<&FilterElement> {
        let views = packet.views();
        let is_present = |number: u32| {
            let state = usize::try_from(number).ok().and_then(|number| windows.0.get(number));
            state.copied().unwrap_or(false)
        };
        let is_open = |group: &FilterGroup| match group.gate {
            None => true,
            Some(FilterGate::Present(number)) => is_present(number),
            Some(FilterGate::Absent(number)) => !is_present(number),
        };
        let tables = self.groups.iter().filter(|table| is_open(&table.group));
        let mut found =
            tables.flat_map(|table| views.iter().filter_map(|view| table.find(packet, view)));
        found.next()
    }
}

impl GroupTable {
    fn find(
        &self,
        packet: &FilterPacket,
        view: &super::plan::PacketView,
    ) -> Option<&FilterElement> {
        let key = self.group.key(packet, view)?;
        if self.group.exact {
            return self.group.elements.get(*self.exact.get(&key)?);
        }
        self.group.elements.iter().find(|element| self.group.contains(element, &key))
    }
}
