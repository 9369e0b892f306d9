//! Tests policies that are so large that two threads read them.

use std::fmt::Write;

use crate::policy::{Diagnostic, FindingsShown, PolicyText, parse, parse_files};

/// More rules than one thread reads.
const RULES: usize = 3000;

/// A policy with filter rules among its rules. `line` is added to each rule with an even number.
fn policy(line: &str) -> String {
    let mut text =
        "version = 1\n[host]\nunmatched = \"permit\"\n[trust.corp]\nca = \"ca.pem\"\n".to_owned();
    for number in 0..RULES {
        let [high, low] = [number / 250, number % 250];
        let action = match number {
            0 => "tls = { trust = \"corp\" }",
            _ if number % 10 == 0 => "filter = \"permit\"",
            _ => "permit = true # ä",
        };
        let more = if number % 2 == 0 { line } else { "" };
        writeln!(
            text,
            "[[rule]]\nname = \"r{number}\"\ndirection = \"outbound\"\nprotocol = \"tcp\"\n\
             remote = \"10.{high}.{low}.0/24\"\nremote-ports = 80\n{action}\n{more}"
        )
        .unwrap();
    }
    text
}

#[test]
fn the_rules_of_a_large_policy_are_in_order() {
    let parsed = parse(&policy("# even"));
    assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics.first());
    let policy = parsed.policy.unwrap();
    let number = |name: &str| name[1..].parse::<usize>().unwrap();
    let flows: Vec<usize> = policy.rules.iter().map(|rule| number(&rule.name)).collect();
    assert!(flows.iter().copied().eq((0..RULES).filter(|n| n % 10 != 0 || *n == 0)));
    for (place, filter) in policy.filters.iter().enumerate() {
        let number = number(&filter.name);
        assert_eq!(number, (place + 1) * 10);
        assert_eq!(filter.flows_before, flows.partition_point(|flow| *flow < number));
        assert_eq!(filter.position.line, 6 + 8 * number);
    }
    assert!(policy.rules.iter().all(|rule| rule.position.line == 6 + 8 * number(&rule.name)));
    assert_eq!(policy.filters.len() + policy.rules.len(), RULES);
}

#[test]
fn the_findings_about_a_large_policy_are_those_about_its_lines() {
    let text = policy("idel = \"1s\"\nremote-ports = 0");
    // A key that occurs twice is not valid TOML.
    assert!(parse(&text).diagnostics.iter().any(|found| found.message.contains("duplicate key")));
    let text = policy("idel = 1");
    let found = parse(&text).diagnostics;
    let line = |found: &Diagnostic| found.position.line;
    assert!(found.is_sorted_by_key(|found| found.position));
    let unknown = found.iter().filter(|found| found.id.0 == "unknown-key");
    assert!(unknown.map(line).eq((0..RULES / 2).map(|place| 6 + 16 * place + 7)));
    let again = parse_files(&PolicyText::new(text), FindingsShown::All).diagnostics;
    assert_eq!(found, again);
}
