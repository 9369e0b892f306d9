//! Compares four evaluators of filter rules, with random rules and random packets.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use tacit_core::policy::filter::{
    FilterEffect, FilterPacket, FilterVerdict, PacketPath, filter_scan,
};
use tacit_core::policy::{PacketExplainer, Policy, host_classifier, parse};

use crate::inside;
use crate::kernel::Kernel;
use crate::policies;
use crate::random::Random;

/// The number of pairs of rules and packets, if the variable [`PAIRS`] has none.
const PAIRS_DEFAULT: usize = 3000;
/// The number of pairs. `FILTER_PAIRS=100000` takes some minutes.
const PAIRS: &str = "FILTER_PAIRS";
/// The first seed; a failure prints the seed with which it occurs.
const SEED: &str = "FILTER_SEED";
const PACKETS_PER_POLICY: usize = 100;

#[test]
fn the_kernel_and_explain_decide_as_a_scan_of_the_rules_does() {
    if inside("evaluators::the_kernel_and_explain_decide_as_a_scan_of_the_rules_does") {
        compare();
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

fn compare() {
    let pairs = number(PAIRS).map_or(PAIRS_DEFAULT, |pairs| usize::try_from(pairs).unwrap());
    let first = number(SEED).unwrap_or(1);
    let mut kernel = Kernel::new();
    let mut decided = BTreeMap::new();
    for seed in (first..).take(pairs.div_ceil(PACKETS_PER_POLICY)) {
        compare_one(&mut kernel, seed, &mut decided);
    }
    println!("{pairs} pairs: {decided:?}");
    for verdict in ["permit", "deny", "flow", "none"] {
        assert!(decided.contains_key(verdict), "no packet with {verdict}: {decided:?}");
    }
}

fn compare_one(kernel: &mut Kernel, seed: u64, decided: &mut BTreeMap<String, usize>) {
    let mut random = Random(seed);
    let text = policies::policy(&mut random);
    let parsed = parse(&text);
    let policy = parsed.policy.unwrap_or_else(|| panic!("{:?}\n{text}", parsed.diagnostics));
    let packets: Vec<_> = (0..PACKETS_PER_POLICY).map(|_| policies::packet(&mut random)).collect();
    tacit::host::remove().unwrap();
    tacit::host::guard(&policy, &[]).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
    list(seed);
    let passed = kernel.passed(&packets);
    let unix_s = tacit::clock::now_unix_s();
    let explainer = PacketExplainer::new(&policy, unix_s);
    let classifier = host_classifier(&policy, unix_s);
    let windows = classifier.windows_at(unix_s);
    let mut wanted = BTreeMap::new();
    let mut wrong = Vec::new();
    for (place, packet) in packets.iter().enumerate() {
        let scan = filter_scan(&policy, packet, unix_s);
        let explained = explainer.explain(packet);
        let rule = scan.filter.map(|one| &one.name).or_else(|| scan.flow.map(|one| &one.name));
        *decided.entry(explained.verdict.clone()).or_insert(0) += 1;
        if explained.rule.as_ref() != rule {
            wrong.push(format!("{packet}: explained by {:?}, scanned {rule:?}", explained.rule));
        }
        let classified = classifier.decide(packet, &windows);
        let by = classified.and_then(|one| policy.filters.get(usize::try_from(one.rule?).unwrap()));
        let is_flow = classified.is_some_and(|one| one.outcome == FilterEffect::Flow);
        if by.map(|one| &one.name) != scan.filter.map(|one| &one.name)
            || is_flow != scan.flow.is_some()
        {
            wrong.push(format!("{packet}: classified as {classified:?}, scanned {rule:?}"));
        }
        if let Some(filter) = scan.filter {
            *wanted.entry(filter.name.clone()).or_insert(0_u64) += 1;
            let passes = filter.verdict == FilterVerdict::Permit;
            if passes != passed.contains(&place) {
                wrong.push(format!("{packet}: rule {} and passes: {}", filter.name, !passes));
            }
        } else if policy.rules.is_empty() && !passed.contains(&place) {
            wrong.push(format!("{packet}: dropped without a rule"));
        }
    }
    let counted = counted(&policy);
    if counted != wanted {
        wrong.push(format!("the kernel has counted {counted:?}, and wanted is {wanted:?}"));
    }
    if !wrong.is_empty() {
        panic!("{text}\nFILTER_SEED={seed}: {}", wrong.join("\n"));
    }
}

/// The program nft can list the table, if it is installed.
fn list(seed: u64) {
    let listed = Command::new("nft").args(["list", "table", "inet", "tacit"]).output();
    if let Ok(output) = listed {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "FILTER_SEED={seed}: nft ends with {}: {said}",
            output.status
        );
    }
}

/// How many packets the kernel has counted for each filter rule that it has decided by.
pub fn counted(policy: &Policy) -> BTreeMap<String, u64> {
    let filters: BTreeSet<&String> = policy.filters.iter().map(|filter| &filter.name).collect();
    let all = tacit::host::counted(policy).unwrap().into_iter();
    all.filter(|(name, count)| filters.contains(name) && *count > 0).collect()
}

/// A packet as text.
pub fn packet(text: &str) -> FilterPacket {
    FilterPacket::parse(text).unwrap()
}

#[test]
fn the_bytes_of_a_packet_are_those_of_its_description() {
    for text in [
        "in a0 tcp 10.0.0.1:5 > 10.0.1.2:6 syn",
        "in a0 udp [fd00::1]:5 > [fd00::1:2]:6",
        "in a0 icmp 10.0.0.1 > 10.0.1.2 type 8 code 2",
        "in a0 gre 10.0.0.1 > 10.0.1.2 fragment",
        "in a0 gre fd00::1 > fd00::1:2 fragment",
    ] {
        let bytes = policies::bytes(&packet(text), 7);
        let read = FilterPacket::of_bytes(PacketPath::In("a0".to_owned()), &bytes);
        assert_eq!(read.unwrap().to_string(), text);
    }
}
