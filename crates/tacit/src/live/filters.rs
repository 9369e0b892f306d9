//! Counts the packets that each filter rule permits or denies. After a reload, a rule keeps the
//! counter of the earlier rule with the same name.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tacit_core::policy::Policy;
use tacit_core::policy::filter::FilterRule;

use super::Live;
use crate::packet::FilterCounter;

/// The counters of a policy, in the order of its filter rules; those of rules that an installed
/// policy has, too.
pub(super) fn counters(policy: &Policy, installed: Option<&Live>) -> Vec<Arc<FilterCounter>> {
    let installed = installed.into_iter().flat_map(|live| &live.filters);
    let known: HashMap<&str, _> = installed.map(|one| (one.name.as_str(), one)).collect();
    let of_rule = |rule: &FilterRule| match known.get(rule.name.as_str()) {
        Some(counter) => Arc::clone(counter),
        None => FilterCounter::new(&rule.name),
    };
    policy.filters.iter().map(of_rule).collect()
}

/// The filter rules in which a policy differs from the installed one, by name.
#[derive(Debug, Default)]
pub(super) struct FilterChanges {
    pub(super) added: Vec<String>,
    pub(super) changed: Vec<String>,
    pub(super) removed: Vec<String>,
}

impl FilterChanges {
    pub(super) fn of(policy: &Policy, installed: &Policy) -> Self {
        let mut changes = Self::default();
        let mut before: BTreeMap<&str, &FilterRule> =
            installed.filters.iter().map(|filter| (filter.name.as_str(), filter)).collect();
        for filter in &policy.filters {
            match before.remove(filter.name.as_str()) {
                None => changes.added.push(filter.name.clone()),
                Some(before) if !before.same(filter) => changes.changed.push(filter.name.clone()),
                Some(_) => {}
            }
        }
        changes.removed.extend(before.into_keys().map(str::to_owned));
        changes
    }
}
