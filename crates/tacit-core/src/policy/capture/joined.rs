//! Computes how the kernel handles flows in a joined network namespace (`tacit run --netns`), which
//! another program has created.
//!
//! Some rules select flows by program, group or control group. If a flow may match one of these
//! rules, the kernel sends the flow to the agent, and the agent decides. The kernel does not
//! compare users and groups, because their IDs in the namespace may differ from their IDs on the
//! host. A rule may have the key `run` or `user`. This module ignores the rule if the key does not
//! match the run that joined the namespace.

use super::host::{
    HostPlan, HostSection, HostVerdict, Senders, areas_of, inbound, limited, outbound, verdict,
};
use super::named::NameRules;
use super::{JoinedRun, is_open};
use crate::policy::content::Policy;
use crate::policy::host::{HostSettings, Unmatched};
use crate::policy::selector::Selectors;

/// Returns what happens to flows of joined namespaces that no rule matches: they are refused, as in
/// other runs, unless the policy permits them for the host.
#[must_use]
pub fn unmatched_of_joined(policy: &Policy) -> Unmatched {
    policy.host.as_ref().map_or(Unmatched::Deny, HostSettings::unmatched_in_effect)
}

/// Computes the plan for a joined namespace at a time, in seconds since 1970, with the limits of
/// [`host_plan`](super::host_plan).
#[must_use]
pub fn joined_plan(policy: &Policy, joined: JoinedRun<'_>, unix_s: i64) -> HostPlan {
    let open = || policy.rules.iter().filter(|rule| is_open(rule, unix_s)).map(|rule| &**rule);
    let unmatched = unmatched_of_joined(policy);
    let rules: Vec<_> = open().filter(|rule| joined.has(rule)).collect();
    let outbound = outbound(&rules, areas_of(&rules), |rule| {
        let Selectors { group, cgroup, .. } = &rule.selectors;
        if group.is_empty() && cgroup.is_empty() { verdict(rule) } else { HostVerdict::Capture }
    });
    let names = NameRules::of_joined(policy, joined, unix_s);
    let names = names.map(|rules| rules.ports().to_vec());
    let section = HostSection { senders: Senders::default(), outbound, counted: Vec::new() };
    HostPlan {
        // Units are those of the host's systemd.
        units: None,
        sections: limited(vec![section], unmatched),
        unmatched,
        inbound: inbound(open()),
        // Where all else is refused, programs need the agent to resolve names.
        names: names.or_else(|| (unmatched == Unmatched::Deny).then(Vec::new)),
        mode: policy.host.as_ref().map(|host| host.mode).unwrap_or_default(),
        forwarded: Vec::new(),
        counted_rules: Vec::new(),
        filters: None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::policy::parse;

    fn rule(name: usize, body: &str) -> String {
        format!("[[rule]]\nname = \"r{name}\"\ndirection = \"outbound\"\n{body}\n")
    }

    /// The verdict on TCP flows to port 80 of 10.0.0.`last`.
    fn found(plan: &HostPlan, last: u8) -> Option<HostVerdict> {
        let to = IpAddr::from([10, 0, 0, last]);
        let mut ranges = plan.sections.iter().flat_map(|section| &section.outbound);
        let holds = |first: IpAddr, last| first.is_ipv4() && (first..=last).contains(&to);
        ranges.find(|one| holds(one.to.first, one.to.last)).map(|one| one.verdict)
    }

    #[test]
    fn a_joined_plan_has_the_rules_of_its_run_and_leaves_other_senders_to_the_agent() {
        let rules = [
            "remote = \"10.0.0.1\"\nrun = \"other\"\ndeny = true",
            "remote = \"10.0.0.2\"\nuser = \"other\"\ndeny = true",
            "remote = \"10.0.0.3\"\nrun = \"web\"\nuser = \"ann\"\ndeny = true",
            "remote = \"10.0.0.4\"\ncgroup = \"a.slice\"\npermit = true",
            "remote = \"10.0.0.0/24\"\npermit = true",
        ];
        let rules: String = rules.iter().enumerate().map(|(at, body)| rule(at, body)).collect();
        let joined = JoinedRun { name: "web", user: "ann" };
        for unmatched in ["permit", "deny"] {
            let text = format!("version = 1\n[host]\nunmatched = \"{unmatched}\"\n{rules}");
            let plan = joined_plan(&parse(&text).policy.unwrap(), joined, 0);
            let verdicts = (1..6).map(|last| found(&plan, last));
            let passes = (unmatched == "deny").then_some(HostVerdict::Pass);
            let refused = (unmatched == "permit").then_some(HostVerdict::Refuse);
            let captured = Some(HostVerdict::Capture);
            let expected = [passes, passes, refused, captured, passes];
            assert_eq!(verdicts.collect::<Vec<_>>(), expected, "{unmatched}");
            assert_eq!(plan.names.is_some(), unmatched == "deny");
        }
        let as_for_runs = parse(&format!("version = 1\n{}", rule(0, "permit = true")));
        assert_eq!(unmatched_of_joined(&as_for_runs.policy.unwrap()), Unmatched::Deny);
    }
}
