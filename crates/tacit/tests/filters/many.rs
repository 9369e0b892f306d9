//! Tests a policy with the maximum number of filter rules, in the kernel.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tacit_core::policy::filter::{FilterVerdict, filter_scan};
use tacit_core::policy::{RULES_MAX, parse};

use crate::evaluators::{counted, packet};
use crate::inside;
use crate::kernel::Kernel;

/// So many of the rules have ranges of addresses and ports.
const RANGES: usize = 16_384;

/// Rules for single addresses and ports, then for ranges, and one that denies the rest.
fn policy() -> String {
    let mut text = "version = 1\n[host]\nunmatched = \"permit\"\n".to_owned();
    let mut rule = |at: usize, keys: String| {
        write!(
            text,
            "[[rule]]\nname = \"r{at}\"\nfilter = \"permit\"\nprotocol = \"tcp\"\n{keys}\n"
        )
        .unwrap();
    };
    let exact = RULES_MAX - RANGES - 1;
    for at in 0..exact {
        let [host, port] = [at % 250, at / 250 + 1];
        rule(at, format!("remote = \"10.0.0.{host}\"\nremote-ports = {port}"));
    }
    for at in exact..RULES_MAX - 1 {
        let [high, low] = [at >> 8 & 0xff, at & 0xff];
        rule(at, format!("remote = \"172.{high}.{low}.0/28\"\nremote-ports = \"1000-2000\""));
    }
    text + "[[rule]]\nname = \"rest\"\nfilter = \"deny\"\ndirection = \"inbound\"\n"
}

#[test]
fn as_many_rules_as_a_policy_can_have_are_installed_at_once() {
    if !inside("many::as_many_rules_as_a_policy_can_have_are_installed_at_once") {
        return;
    }
    let text = policy();
    let policy = parse(&text).policy.unwrap();
    assert_eq!(policy.filters.len(), RULES_MAX);
    let mut kernel = Kernel::new();
    tacit::host::guard(&policy, &[]).unwrap();
    let last = RULES_MAX - 2;
    let packets = [
        "in a0 tcp 10.0.0.0:1 > 10.0.1.1:5 syn".to_owned(),
        "in a0 tcp 10.0.0.249:196 > 10.0.1.1:5".to_owned(),
        "in a0 tcp 10.0.0.250:1 > 10.0.1.1:5".to_owned(),
        format!("in a0 tcp 172.{}.{}.15:2000 > 10.0.1.1:5", last >> 8 & 0xff, last & 0xff),
        format!("in a0 tcp 172.{}.{}.16:2000 > 10.0.1.1:5", last >> 8 & 0xff, last & 0xff),
        format!("in a0 tcp 172.{}.{}.15:2001 > 10.0.1.1:5", last >> 8 & 0xff, last & 0xff),
    ];
    let packets: Vec<_> = packets.iter().map(|text| packet(text)).collect();
    let passed = kernel.passed(&packets);
    let mut wanted = BTreeMap::new();
    for (place, packet) in packets.iter().enumerate() {
        let filter = filter_scan(&policy, packet, 0).filter.unwrap();
        let passes = filter.verdict == FilterVerdict::Permit;
        assert_eq!(passed.contains(&place), passes, "{packet}: {}", filter.name);
        *wanted.entry(filter.name.clone()).or_insert(0_u64) += 1;
    }
    assert_eq!(passed.len(), 3);
    assert_eq!(counted(&policy), wanted);
    tacit::host::remove().unwrap();
}
