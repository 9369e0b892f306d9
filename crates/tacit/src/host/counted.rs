//! For each rule of the policy, adds up the counters of its nftables rules (`tacit agent --host`).
//! When the agent installs the nftables rules again, the kernel's counters restart at zero, but
//! these sums continue.
//!
//! Limit: the memory grows only with the number of rules in the policy.

use std::collections::BTreeMap;

use crate::run::protocol::{CountedFlows, NAMES_PER_REPLY_MAX};

/// Counted flows that the agent has not read yet.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// The last counts of the installed nftables rules, by the position of the rule in the plan.
    seen: BTreeMap<u32, u64>,
    unread: BTreeMap<String, u64>,
}

impl Counted {
    /// Adds what the installed nftables rules have counted so far.
    pub(super) fn add(&mut self, rules: &[String], counts: &BTreeMap<u32, u64>) {
        for (number, count) in counts {
            let before = self.seen.insert(*number, *count).unwrap_or(0);
            // A lower count belongs to nftables rules that have been installed since.
            let new = count.checked_sub(before).unwrap_or(*count);
            let rule = usize::try_from(*number).ok().and_then(|number| rules.get(number));
            if let Some(rule) = rule.filter(|_| new > 0) {
                *self.unread.entry(rule.clone()).or_insert(0) += new;
            }
        }
    }

    /// The nftables rules were installed again: all their counters are zero.
    pub(super) fn begin(&mut self) {
        self.seen.clear();
    }

    /// Takes flows that the agent has not read, at most [`NAMES_PER_REPLY_MAX`] rules.
    pub(super) fn take(&mut self) -> Vec<CountedFlows> {
        let take = |_| self.unread.pop_first().map(|(rule, flows)| CountedFlows { rule, flows });
        (0..NAMES_PER_REPLY_MAX).map_while(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flow_counts_once_also_when_the_packet_rules_are_installed_again() {
        let rules = ["a", "b"].map(str::to_owned);
        let mut counted = Counted::default();
        let mut read = |counts: &[(u32, u64)], is_new: bool| {
            if is_new {
                counted.begin();
            }
            counted.add(&rules, &counts.iter().copied().collect());
            let flows = counted.take().into_iter().map(|one| (one.rule, one.flows));
            flows.collect::<Vec<_>>()
        };
        let of = |rule: &str, flows| (rule.to_owned(), flows);
        assert_eq!(read(&[(0, 3), (1, 0)], false), [of("a", 3)]);
        assert_eq!(read(&[(0, 3), (1, 2)], false), [of("b", 2)]);
        assert_eq!(read(&[(0, 3), (1, 2)], false), []);
        assert_eq!(read(&[(0, 4), (1, 1)], true), [of("a", 4), of("b", 1)]);
        assert_eq!(read(&[(0, 1), (7, 9)], false), [of("a", 1)], "another program flushed them");
    }
}
