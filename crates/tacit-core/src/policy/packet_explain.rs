//! Explains which rule decides about a packet, and why earlier filter rules do not match.
//!
//! To find the decision, this module searches the groups of filter rules in a [`FilterPlan`]. The
//! kernel searches the same groups. The reasons come from [`filter_scan`], which compares the
//! packet with one rule after another. For a packet inside a tunnel, [`IpsecRules`] finds the rule
//! with `ipsec` that permits it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::capture::{filter_plan, tunnel_filter_plan};
use super::content::Policy;
use super::filter::{FilterEffect, FilterPacket, FilterPlan, filter_scan};
use super::filter_rule::{FilterRule, FilterVerdict};
use super::packet_tunnel::{IpsecDecision, IpsecRules, write_decisions};

/// The decision about a packet, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PacketExplanation {
    /// The packet.
    pub packet: String,
    /// `permit` or `deny` by a filter rule, `flow` if the rules for flows decide, `none` without a
    /// match, `unfiltered` if the packet stays on the host.
    pub verdict: String,
    /// The answer to a packet that is denied: `silent`, `icmp` or `reset`.
    pub discard: Option<String>,
    /// The rule that decides.
    pub rule: Option<String>,
    /// The line of the rule in its file.
    pub line: Option<usize>,
    /// The filter rules before it, in order.
    pub earlier: Vec<SkippedFilter>,
    /// The decisions of the rules with `ipsec` about a packet inside a tunnel that no filter rule
    /// denies; `None` for other packets.
    pub ipsec: Option<Vec<IpsecDecision>>,
}

/// A filter rule that does not match a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SkippedFilter {
    /// Its name.
    pub rule: String,
    /// Its line in its file.
    pub line: usize,
    /// The first condition that does not hold.
    pub why: String,
}

/// Explains what the packet rules of a policy do with packets, at one time.
#[derive(Debug)]
pub struct PacketExplainer<'p> {
    policy: &'p Policy,
    plan: FilterPlan,
    ipsec: IpsecRules<'p>,
    unix_s: i64,
}

impl<'p> PacketExplainer<'p> {
    /// Computes the groups of the policy at a time, in seconds since 1970.
    #[must_use]
    pub fn new(policy: &'p Policy, unix_s: i64) -> Self {
        let plan = filter_plan(policy, unix_s);
        Self { policy, plan, ipsec: IpsecRules::new(policy), unix_s }
    }

    /// Finds the rule for a packet.
    #[must_use]
    pub fn explain(&self, packet: &FilterPacket) -> PacketExplanation {
        if packet.stays_on_host() {
            return PacketExplanation::unfiltered(packet);
        }
        let of_tunnel = packet.path.tunnel();
        let of_tunnel = of_tunnel.map(|ike| tunnel_filter_plan(self.policy, ike, self.unix_s));
        let plan = of_tunnel.as_ref().unwrap_or(&self.plan);
        let is_present = |number: u32| {
            let number = usize::try_from(number).ok();
            number.and_then(|number| plan.schedules.get(number)).is_some_and(|one| one.present)
        };
        let found = plan.decide(packet, is_present);
        let scan = filter_scan(self.policy, packet, self.unix_s);
        let filter =
            found.and_then(|element| self.policy.filters.get(usize::try_from(element.rule?).ok()?));
        let flow = scan.flow.filter(|_| found.is_some_and(|one| one.outcome == FilterEffect::Flow));
        let verdict = match (filter, found) {
            (Some(filter), _) => filter.verdict.word(),
            (None, Some(_)) => "flow",
            (None, None) => "none",
        };
        let is_before = |one: &FilterRule| filter.is_none_or(|found| found.name != one.name);
        let earlier = scan.skipped.iter().take_while(|(one, _)| is_before(one));
        let discard = match filter.map(|filter| filter.verdict) {
            Some(FilterVerdict::Deny(discard)) => Some(discard.word().to_owned()),
            Some(FilterVerdict::Permit) | None => None,
        };
        PacketExplanation {
            packet: packet.to_string(),
            verdict: verdict.to_owned(),
            ipsec: if discard.is_none() { self.ipsec.explain(packet) } else { None },
            discard,
            rule: filter.map(|one| &one.name).or_else(|| flow.map(|one| &one.name)).cloned(),
            line: filter
                .map(|one| one.position)
                .or_else(|| flow.map(|one| one.position))
                .map(|at| at.line),
            earlier: earlier
                .map(|(one, mismatch)| SkippedFilter {
                    rule: one.name.clone(),
                    line: one.position.line,
                    why: mismatch.to_string(),
                })
                .collect(),
        }
    }
}

impl PacketExplanation {
    /// Explains that no rule applies to a packet.
    fn unfiltered(packet: &FilterPacket) -> Self {
        Self {
            packet: packet.to_string(),
            verdict: UNFILTERED.to_owned(),
            ipsec: None,
            discard: None,
            rule: None,
            line: None,
            earlier: Vec::new(),
        }
    }
}

impl fmt::Display for PacketExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packet, verdict, discard, rule, line, earlier, ipsec } = self;
        let rule = rule.as_deref().unwrap_or_default();
        let line = line.unwrap_or_default();
        match (verdict.as_str(), discard) {
            ("none", _) => {
                let is_in_tunnel = ["from-tunnel ", "to-tunnel "];
                let is_in_tunnel = is_in_tunnel.iter().any(|way| packet.starts_with(way));
                let what_decides = if is_in_tunnel {
                    "the rules with `ipsec` decide about the packet"
                } else {
                    "the rules without `filter` decide; if no rule matches, `unmatched` in [host] \
                     decides"
                };
                write!(f, "{packet}: no filter rule matches, so {what_decides}")?;
            }
            (UNFILTERED, _) => write!(
                f,
                "{packet}: the packet passes, because it stays on the host: no rule applies to \
                 packets on the interface lo"
            )?,
            ("flow", _) => write!(
                f,
                "{packet}: rule `{rule}` (line {line}) applies to the flow of the packet"
            )?,
            (verdict, None) => {
                write!(f, "{packet}: {verdict}, because rule `{rule}` (line {line}) matches")?;
            }
            (verdict, Some(discard)) => write!(
                f,
                "{packet}: {verdict} ({discard}), because rule `{rule}` (line {line}) matches"
            )?,
        }
        for SkippedFilter { rule, line, why } in earlier.iter().take(SHOWN_MAX) {
            write!(f, "\n    rule `{rule}` (line {line}) does not match: {why}")?;
        }
        match earlier.len().checked_sub(SHOWN_MAX) {
            None | Some(0) => {}
            Some(more) => write!(f, "\n    {more} more rules do not match")?,
        }
        write_decisions(f, ipsec.as_deref().unwrap_or_default())
    }
}

/// The number of earlier rules that are shown.
const SHOWN_MAX: usize = 16;
/// The verdict about a packet that stays on the host.
const UNFILTERED: &str = "unfiltered";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::parse;

    #[test]
    fn packets_that_stay_on_the_host_pass_whatever_the_rules_are() {
        let text = "version = 1\n[host]\nunmatched = \"deny\"\n\
                    [[rule]]\nname = \"all\"\nfilter = \"deny\"\n";
        let policy = parse(text).policy.expect("a valid policy");
        let explainer = PacketExplainer::new(&policy, 0);
        let explained = |text: &str| explainer.explain(&FilterPacket::parse(text).expect(text));
        for passes in [
            "in lo tcp 127.0.0.1:5000 > 127.0.0.1:80 syn",
            "in lo udp [fd00::1]:5000 > [fd00::2]:53",
            "out lo icmp 10.0.0.1 > 10.0.0.2 type 8 code 0",
            "out eth0 tcp 10.0.0.1:5000 > 10.0.0.1:80 syn",
            "out eth0 udp [::1]:5000 > [::1]:53",
            "out eth0 udp 10.0.0.1:5000 > 127.0.0.53:53",
        ] {
            let explanation = explained(passes);
            assert_eq!((explanation.verdict.as_str(), &explanation.rule), (UNFILTERED, &None));
            assert_eq!(
                explanation.to_string(),
                format!(
                    "{passes}: the packet passes, because it stays on the host: no rule applies \
                     to packets on the interface lo"
                )
            );
        }
        for denied in [
            "in eth0 tcp 10.0.0.1:5000 > 10.0.0.1:80 syn",
            "out eth0 udp 10.0.0.1:5000 > 10.0.0.2:53",
        ] {
            assert_eq!(explained(denied).rule.as_deref(), Some("all"), "{denied}");
        }
    }
}
