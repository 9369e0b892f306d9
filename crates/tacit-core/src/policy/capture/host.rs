//! Computes the kernel's verdict for each address and port of a captured host. The first rule that
//! matches decides.
//!
//! Because earlier rules have precedence, the ranges of a rule are removed from the ranges of all
//! later rules. The kernel applies `permit` and `deny` itself; it sends flows that must be relayed
//! or logged to the agent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::sweep::{self, Area};
use super::{CaptureRange, Learnt, Plane, address, is_open, left_of, ports, spans};
use crate::flow::Protocol;
use crate::policy::content::Policy;
use crate::policy::host::Unmatched;
use crate::policy::rule::{Action, Deny, Rule, RuleForm};
use crate::policy::selector::Family;

/// The largest number of ranges of a host. The kernel accepts no more in one transaction.
pub const HOST_RANGES_MAX: usize = 16_384;

/// What the kernel does with a flow that a program opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostVerdict {
    /// The kernel sends it to the agent.
    Capture,
    /// The kernel lets it pass to its destination.
    Pass,
    /// The kernel refuses it, as if no program listened there.
    Refuse,
    /// The kernel refuses it, as a packet filter does.
    Prohibit,
}

/// Destinations whose flows the kernel treats in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostRange {
    /// The destinations.
    pub to: CaptureRange,
    /// What happens to their flows.
    pub verdict: HostVerdict,
}

/// What the kernel does with the flows of a host, by destination and port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostPlan {
    /// The verdicts on flows that programs open, by destination; disjoint.
    pub outbound: Vec<HostRange>,
    /// The verdict on flows that programs open to all other destinations.
    pub unmatched: Unmatched,
    /// The ports of this host's programs whose clients the agent accepts, for all addresses;
    /// disjoint.
    pub inbound: Vec<CaptureRange>,
}

impl HostPlan {
    /// Returns the number of ranges that go to the agent.
    #[must_use]
    pub fn captured(&self) -> usize {
        let outbound = self.outbound.iter().filter(|one| one.verdict == HostVerdict::Capture);
        outbound.count() + self.inbound.len()
    }
}

/// Computes the plan of a policy at a time, in seconds since 1970. It has at most
/// [`HOST_RANGES_MAX`] ranges, or one more if the policy needs more than that.
#[must_use]
pub fn host_plan(policy: &Policy, unmatched: Unmatched, unix_s: i64) -> HostPlan {
    let open = || policy.rules.iter().filter(|rule| is_open(rule, unix_s)).map(|rule| &**rule);
    HostPlan { outbound: outbound(open(), unmatched), unmatched, inbound: inbound(open()) }
}

/// Returns the ports whose clients a rule selects, if the kernel cannot decide about them itself.
fn inbound<'r>(rules: impl Iterator<Item = &'r Rule>) -> Vec<CaptureRange> {
    let of_clients = rules.filter(|rule| rule.form == RuleForm::HostInbound);
    let mut concerned = of_clients.filter(|rule| verdict(rule) != HostVerdict::Pass);
    let ports = concerned.by_ref().flat_map(|rule| rule.selectors.local_ports.clone());
    let areas: Vec<_> = ports.map(|ports| Area { first: 0, last: 0, ports }).collect();
    let ranges = sweep::cut(&areas).into_iter().flat_map(|Area { ports, .. }| {
        [Family::V4, Family::V6].map(|family| CaptureRange {
            udp: false,
            first: address(0, family),
            last: address(u128::MAX, family),
            first_port: *ports.start(),
            last_port: *ports.end(),
        })
    });
    ranges.collect()
}

pub(in crate::policy) fn outbound<'r>(
    rules: impl Iterator<Item = &'r Rule>,
    unmatched: Unmatched,
) -> Vec<HostRange> {
    let mut decided: BTreeMap<Plane, Vec<Area>> = BTreeMap::new();
    let mut verdicts: BTreeMap<(Plane, HostVerdict), Vec<Area>> = BTreeMap::new();
    for rule in rules.filter(|rule| is_of_host(rule)) {
        let udp = rule.selectors.protocol == Protocol::Udp;
        let ports = ports(rule);
        for span in spans(rule, &Learnt::default(), &[]) {
            let plane = Plane { udp, family: span.family };
            let decided = decided.entry(plane).or_default();
            for ports in &ports {
                let area = Area { first: span.first, last: span.last, ports: ports.clone() };
                let left = left_of(area.clone(), decided);
                verdicts.entry((plane, verdict(rule))).or_default().extend(left);
                decided.push(area);
            }
        }
    }
    let needless = match unmatched {
        Unmatched::Permit => HostVerdict::Pass,
        Unmatched::Deny => HostVerdict::Refuse,
    };
    verdicts.retain(|(_, verdict), _| *verdict != needless);
    let ranges = verdicts.into_iter().flat_map(|((plane, verdict), areas)| {
        let Plane { udp, family } = plane;
        sweep::cut(&areas).into_iter().map(move |Area { first, last, ports }| {
            let to = CaptureRange {
                udp,
                first: address(first, family),
                last: address(last, family),
                first_port: *ports.start(),
                last_port: *ports.end(),
            };
            HostRange { to, verdict }
        })
    });
    ranges.take(HOST_RANGES_MAX + 1).collect()
}

/// Whether a rule is about flows that programs of the host open; one that names runs is not.
fn is_of_host(rule: &Rule) -> bool {
    rule.form == RuleForm::Outbound && rule.selectors.run.is_empty()
}

/// Returns the verdict of the kernel for a rule that has no conditions except destinations.
fn verdict(rule: &Rule) -> HostVerdict {
    match rule.action {
        // The kernel does not log, audit, or close idle flows.
        _ if rule.log || rule.idle.is_some() || rule.audited.is_some() => HostVerdict::Capture,
        Action::Tls(_) => HostVerdict::Capture,
        Action::Permit => HostVerdict::Pass,
        Action::Deny(Deny::Refused) => HostVerdict::Refuse,
        Action::Deny(Deny::Prohibited) => HostVerdict::Prohibit,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use proptest::prelude::*;

    use super::*;
    use crate::flow::{Address, Direction, Flow};
    use crate::policy::{Index, parse};

    fn policy(rules: &str) -> Policy {
        let parsed = parse(&format!("version = 1\n[host]\nunmatched = \"permit\"\n{rules}"));
        parsed.policy.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics))
    }

    fn rule(name: usize, body: &str) -> String {
        format!("[[rule]]\nname = \"r{name}\"\ndirection = \"outbound\"\n{body}\n")
    }

    fn flow(protocol: Protocol, to: SocketAddr) -> Flow {
        Flow {
            direction: Direction::Outbound,
            protocol,
            listen: None,
            local: Address::from(SocketAddr::from(([192, 0, 2, 1], 40_000))),
            remote: to.into(),
            to_own_host: false,
            remote_names: Vec::new(),
            alias: None,
            is_shared: false,
            program: None,
            user: None,
            run: Some(String::new()),
            at_unix_s: 0,
        }
    }

    /// Returns the verdict on a TCP flow.
    fn found(plan: &HostPlan, to: SocketAddr) -> Option<HostVerdict> {
        let holds = |one: &CaptureRange| {
            !one.udp
                && one.first.is_ipv4() == to.is_ipv4()
                && (one.first..=one.last).contains(&to.ip())
                && (one.first_port..=one.last_port).contains(&to.port())
        };
        let mut all = plan.outbound.iter().filter(|one| holds(&one.to));
        let first = all.next().map(|one| one.verdict);
        assert!(all.next().is_none(), "ranges overlap at {to}");
        first
    }

    #[test]
    fn each_action_has_its_verdict_and_the_first_rule_wins() {
        let rules = [
            "remote = \"10.0.0.1\"\nremote-ports = 80\npermit = true",
            "remote = \"10.0.0.2\"\nremote-ports = 80\npermit = true\nlog = true",
            "remote = \"10.0.0.3\"\nremote-ports = 80\ndeny = true",
            "remote = \"10.0.0.4\"\nremote-ports = 80\ndeny = \"prohibited\"",
            "remote = \"10.0.0.0/24\"\nremote-ports = [80, 443]\ntls = { trust = \"system\" }",
            "remote = \"10.0.0.6\"\nrun = \"job\"\ndeny = true",
        ];
        let rules: String = rules.iter().enumerate().map(|(at, body)| rule(at, body)).collect();
        let policy = policy(&rules);
        let at =
            |unmatched, to: &str| found(&host_plan(&policy, unmatched, 0), to.parse().unwrap());
        let [capture, pass, refuse, prohibit] =
            [HostVerdict::Capture, HostVerdict::Pass, HostVerdict::Refuse, HostVerdict::Prohibit]
                .map(Some);
        for (to, permitted, denied) in [
            ("10.0.0.1:80", None, pass),
            ("10.0.0.1:443", capture, capture),
            ("10.0.0.2:80", capture, capture),
            ("10.0.0.3:80", refuse, None),
            ("10.0.0.4:80", prohibit, prohibit),
            ("10.0.0.5:80", capture, capture),
            ("10.0.0.5:81", None, None),
            ("10.0.1.5:80", None, None),
            ("10.0.0.6:22", None, None),
        ] {
            assert_eq!(at(Unmatched::Permit, to), permitted, "{to}");
            assert_eq!(at(Unmatched::Deny, to), denied, "{to}");
        }
    }

    #[test]
    fn ports_of_programs_are_captured_where_a_rule_does_more_than_permit() {
        let inbound = |ports: &str, action: &str| {
            format!(
                "[[rule]]\nname = \"in-{ports}\"\ndirection = \"inbound\"\n\
                 local-ports = \"{ports}\"\n{action}\n"
            )
        };
        let rules = [
            inbound("80-90", "deny = true"),
            inbound("85-95", "permit = true\nlog = true"),
            inbound("200-201", "permit = true"),
        ];
        let plan = host_plan(&policy(&rules.concat()), Unmatched::Permit, 0);
        let ports: Vec<_> =
            plan.inbound.iter().map(|one| (one.first_port, one.last_port)).collect();
        assert_eq!(ports, [(80, 95), (80, 95)], "once for each address family");
        assert!(plan.outbound.is_empty());
    }

    fn any_rule() -> impl Strategy<Value = String> {
        let remote = (0_u8..8, 29_u8..=32).prop_map(|(last, length)| {
            format!("remote = \"10.0.0.{}/{length}\"", last & (0xff << (32 - length)))
        });
        let remote = prop_oneof![remote, Just(String::new())];
        let ports =
            (1_u16..8, 0_u16..4).prop_map(|(low, more)| format!("\"{low}-{}\"", low + more));
        let action = prop_oneof![
            Just("permit = true"),
            Just("permit = true\nlog = true"),
            Just("deny = true"),
            Just("deny = \"prohibited\""),
            Just("tls = { trust = \"system\" }"),
        ];
        (remote, ports, action).prop_map(|(remote, ports, action)| {
            format!("{remote}\nremote-ports = {ports}\n{action}")
        })
    }

    proptest! {
        #[test]
        fn the_kernel_decides_as_the_rules_do(rules in prop::collection::vec(any_rule(), 1..8)) {
            let text: String = rules.iter().enumerate().map(|(at, body)| rule(at, body)).collect();
            let policy = policy(&text);
            let index = Index::new(&policy.rules);
            for unmatched in [Unmatched::Permit, Unmatched::Deny] {
                let plan = host_plan(&policy, unmatched, 0);
                for (last, port) in (0_u8..9).flat_map(|last| (1_u16..13).map(move |p| (last, p))) {
                    let to = SocketAddr::new(IpAddr::from([10, 0, 0, last]), port);
                    let rule = index.lookup(&flow(Protocol::Tcp, to)).rule;
                    let rest = match unmatched {
                        Unmatched::Permit => HostVerdict::Pass,
                        Unmatched::Deny => HostVerdict::Refuse,
                    };
                    let wanted = rule.map_or(rest, |at| verdict(&policy.rules[at]));
                    prop_assert_eq!(found(&plan, to).unwrap_or(rest), wanted, "{}", to);
                }
            }
        }
    }
}
