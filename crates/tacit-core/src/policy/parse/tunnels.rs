//! Finds and reports conflicts of rules with the key `ipsec`, which require IPsec tunnels. Such a
//! rule may conflict with another rule with `ipsec`, or with an earlier rule of another kind.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::names::Names;
use super::review::{Read, covers};
use crate::message_id::MessageId;
use crate::policy::capture;
use crate::policy::ike::InnerAddressSource;
use crate::policy::rule::{Ipsec, Rule, TunnelKeying};
use crate::policy::sa::{ManualMode, ManualSa};
use crate::policy::selector::{AddressSelector, Selectors, Span};
use crate::policy::text::Diagnostics;
use crate::policy::tunnel::{Claims, TunnelLimit, TunnelRoutes, condition_beyond_routes};

/// Reports two tunnels that claim one flow, earlier rules that routes cannot evaluate, and limits.
/// Warns about rules that match no packet, because of the address of runs in the tunnel.
pub(super) fn check(report: &Diagnostics<'_>, names: &Names<'_>, rules: &[Read<'_, '_>]) {
    if rules.iter().all(|read| read.rule.ipsec().is_none()) {
        return;
    }
    let mut compared = 0;
    for (place, read) in rules.iter().enumerate() {
        let Some(ipsec) = read.rule.ipsec() else { continue };
        if ipsec.keyed_by == TunnelKeying::Manual
            && let Some(sa) = names.sa_named(&ipsec.peer)
        {
            beyond_transport(read, sa);
        }
        other_ip_version(read, names, ipsec);
        let of_rule = Reached::of(read.rule);
        for earlier in rules.iter().take(place) {
            compared += 1;
            if compared > COMPARED_MAX {
                return;
            }
            if !of_rule.overlaps(earlier.rule) {
                continue;
            }
            match earlier.rule.ipsec() {
                Some(other) if other.peer != ipsec.peer => two_tunnels(read, earlier.rule),
                Some(_) => {}
                None => beyond_routes(report, read.rule, earlier),
            }
        }
    }
    limits(report, rules);
}

/// The largest number of pairs of rules that are compared. The agent decides by the first rule that
/// matches, so a pair that is not compared sends no packet in clear.
const COMPARED_MAX: usize = 1 << 22;

/// What a rule with `ipsec` selects.
struct Reached<'r> {
    selectors: &'r Selectors,
    addresses: Claims,
}

impl<'r> Reached<'r> {
    fn of(rule: &'r Rule) -> Self {
        let mut addresses = Claims::default();
        for span in capture::addresses(rule, &[]) {
            addresses.claim(span);
        }
        Self { selectors: &rule.selectors, addresses }
    }

    /// Whether a flow of a run can match this rule and the other. Names count as no address.
    fn overlaps(&self, other: &Rule) -> bool {
        let mine = self.selectors;
        let its = &other.selectors;
        let share = |a: &[RangeInclusive<u16>], b: &[RangeInclusive<u16>]| {
            let touch = |a: &RangeInclusive<u16>| {
                b.iter().any(|b| a.start() <= b.end() && b.start() <= a.end())
            };
            a.is_empty() || b.is_empty() || a.iter().any(touch)
        };
        let share_run = mine.run.is_empty()
            || its.run.is_empty()
            || mine.run.iter().any(|run| its.run.contains(run));
        mine.direction == its.direction
            && mine.protocol == its.protocol
            && other.listens().is_empty()
            && share_run
            && share(&mine.local_ports, &its.local_ports)
            && share(&mine.remote_ports, &its.remote_ports)
            && capture::addresses(other, &[]).iter().any(|span| self.addresses.overlaps(span))
    }
}

/// In transport mode, there is only the peer.
fn beyond_transport(read: &Read<'_, '_>, sa: &ManualSa) {
    if sa.mode == ManualMode::Tunnel {
        return;
    }
    let peer = sa.peer.ip();
    let is_peer = |selector: &AddressSelector| {
        let is_it = |span: Span| {
            span.first == span.last && capture::address(span.first, span.family) == peer
        };
        selector.spans().all(is_it)
    };
    let remote = &read.rule.selectors.remote;
    if !remote.is_empty() && remote.iter().all(is_peer) {
        return;
    }
    let message = format!(
        "rule `{}` matches addresses other than the address of the peer, but transport mode \
         protects only packets to and from the peer",
        read.rule.name
    );
    let fix = format!(
        "write remote = \"{peer}\", or set mode = \"tunnel\" in the table [sa.NAME] for \
         this peer"
    );
    let at = read.value.at_key("remote");
    read.value.report.error(MessageId("beyond-transport"), &at, message, fix);
}

/// A packet has a source and a destination of one IP version. The source of packets that a run
/// sends is an `inner` address.
fn other_ip_version(read: &Read<'_, '_>, names: &Names<'_>, ipsec: &Ipsec) {
    let Some((table, inner)) = inner_addresses(names, ipsec) else { return };
    let remote = &read.rule.selectors.remote;
    let reaches = |selector: &AddressSelector| {
        let has_inner = |span: Span| {
            let is_v4 = capture::address(span.first, span.family).is_ipv4();
            inner.iter().any(|address| address.is_ipv4() == is_v4)
        };
        selector.spans().any(has_inner)
    };
    if remote.is_empty() || remote.iter().any(reaches) {
        return;
    }
    let is_v4 = inner.iter().any(IpAddr::is_ipv4);
    let [of_inner, of_remote] = if is_v4 { ["IPv4", "IPv6"] } else { ["IPv6", "IPv4"] };
    let message = format!(
        "rule `{}` never matches a packet: `remote` has only {of_remote} addresses, but `inner` of \
         {table} has only an {of_inner} address",
        read.rule.name
    );
    let fix = format!(
        "add an {of_remote} address to `inner` of {table}, or write {of_inner} addresses in \
         `remote`"
    );
    let report = read.value.report;
    let at = report.position(read.value.at_key("remote").start);
    report.warning(MessageId("other-ip-version"), at, message, fix);
}

/// Returns the table of the peer, and its `inner` addresses. `None`: the peer assigns addresses, or
/// the mode is transport, in which `remote` is the peer.
fn inner_addresses<'n>(names: &'n Names<'_>, ipsec: &Ipsec) -> Option<(String, &'n [IpAddr])> {
    let name = &ipsec.peer;
    match ipsec.keyed_by {
        TunnelKeying::Ike => match &names.ike_named(name)?.inner {
            InnerAddressSource::Policy(inner) => Some((format!("[ike.{name}]"), inner.as_slice())),
            InnerAddressSource::Gateway => None,
        },
        TunnelKeying::Manual => {
            let sa = names.sa_named(name).filter(|sa| sa.mode == ManualMode::Tunnel)?;
            Some((format!("[sa.{name}]"), sa.inner.as_slice()))
        }
    }
}

/// Two rules lead one flow to two peers. It is no mistake if the earlier one is an exception: the
/// later one selects all of its flows, and more.
fn two_tunnels(read: &Read<'_, '_>, earlier: &Rule) {
    let rule: &Rule = read.rule;
    if covers(rule, earlier) && !covers(earlier, rule) {
        return;
    }
    let (Some(ipsec), Some(other)) = (rule.ipsec(), earlier.ipsec()) else { return };
    let report = read.value.report;
    let line = report.line(earlier.position, rule.position);
    let message = format!(
        "rule `{}` sends flows to the peer `{}`, but rule `{}` in line {line} sends some of these \
         flows to the peer `{}`",
        rule.name, ipsec.peer, earlier.name, other.peer
    );
    let fix = "change the addresses or ports so that the rules do not overlap; or let the earlier \
               rule select only a part of the flows of the later rule";
    let at = read.value.at_key("ipsec");
    report.error(MessageId("two-tunnels"), &at, message, fix);
}

/// An earlier rule takes flows out of a tunnel by a condition that routes do not have.
fn beyond_routes(report: &Diagnostics<'_>, rule: &Rule, earlier: &Read<'_, '_>) {
    let Some(key) = condition_beyond_routes(earlier.rule) else { return };
    let line = report.line(rule.position, earlier.rule.position);
    let message = format!(
        "rule `{}` has the condition `{key}`. The kernel selects packets for a tunnel only by \
         remote address, protocol and port, so it cannot distinguish the flows of this rule from \
         those of the later rule `{}` in line {line}",
        earlier.rule.name, rule.name
    );
    let fix = format!(
        "remove `{key}`, move the rule after rule `{later}`, or change the addresses or ports so \
         that the rules do not overlap",
        later = rule.name
    );
    let at = earlier.value.at_key(key);
    report.error(MessageId("not-by-route"), &at, message, fix);
}

/// Reports more groups or prefixes than a run can have.
fn limits(report: &Diagnostics<'_>, rules: &[Read<'_, '_>]) {
    let all: Vec<Arc<Rule>> = rules.iter().map(|read| Arc::clone(read.rule)).collect();
    let of_tunnels = || all.iter().filter(|rule| rule.ipsec().is_some());
    let runs: BTreeSet<&str> =
        of_tunnels().flat_map(|rule| &rule.selectors.run).map(String::as_str).collect();
    for run in [""].into_iter().chain(runs.into_iter().take(RUNS_MAX)) {
        let Err(limit) = TunnelRoutes::of_rules(&all, run, &[]) else { continue };
        let fix = match limit {
            TunnelLimit::Groups => {
                "use fewer port ranges, or write one rule instead of several rules that have the \
                 same ports"
            }
            TunnelLimit::Prefixes | TunnelLimit::Ranges => {
                "write networks instead of ranges and single addresses"
            }
        };
        report.error(MessageId("too-many-ranges"), &(0..0), limit.to_string(), fix);
        return;
    }
}

/// The most names of runs for which the limits are checked here; the agent checks each run when it
/// starts.
const RUNS_MAX: usize = 64;
