use std::time::{Duration, UNIX_EPOCH};

use super::*;

fn name(name: &str, run: u64) -> Refusal {
    Refusal {
        kind: RefusalKind::Name,
        run: Some(RunLabel { id: run, name: "curl".into() }),
        destination: name.into(),
        program: None,
        why: RefusalReason::NoRule,
        rule: None,
        next: next_for_name(name),
    }
}

#[test]
fn refusals_are_counted_and_the_newest_stands_first() {
    let mut refusals = Refusals::default();
    let at = |s| UNIX_EPOCH + Duration::from_secs(s);
    for (second, refused) in ["a.example", "b.example", "a.example"].into_iter().enumerate() {
        refusals.record(name(refused, 1), at(second as u64));
    }
    refusals.record(name("a.example", 2), at(3));
    let seen = refusals.entries();
    let seen = seen.iter().map(|entry| (&*entry.refusal.destination, entry.count, entry.last));
    let wanted = [("a.example", 1, at(3)), ("a.example", 2, at(2)), ("b.example", 1, at(1))];
    assert_eq!(seen.collect::<Vec<_>>(), wanted, "runs are distinguished");
    assert_eq!(refusals.total(RefusalReason::NoRule), 4);
    assert_eq!(refusals.total(RefusalReason::Denied), 0);
}

#[test]
fn the_table_is_bounded_and_totals_are_not() {
    let mut refusals = Refusals::default();
    let all = 2 * REFUSALS_MAX;
    for number in 0..all {
        refusals.record(name(&format!("n{number}.example"), 1), UNIX_EPOCH);
    }
    let entries = refusals.entries();
    assert_eq!(entries.len(), REFUSALS_MAX);
    assert_eq!(entries[0].refusal.destination, format!("n{}.example", all - 1));
    assert_eq!(refusals.total(RefusalReason::NoRule), all as u64);
}

#[test]
fn a_run_that_is_refused_much_does_not_displace_the_refusals_of_others() {
    let mut refusals = Refusals::default();
    let client = |number: u32| Refusal {
        kind: RefusalKind::Client,
        run: None,
        ..name(&format!("127.0.0.1:443 from {number}"), 1)
    };
    refusals.record(name("quiet.example", 2), UNIX_EPOCH);
    refusals.record(client(0), UNIX_EPOCH);
    for number in 0..2 * REFUSALS_MAX {
        refusals.record(name(&format!("n{number}.example"), 1), UNIX_EPOCH);
    }
    let of = |entries: &[RefusalEntry], run: Option<u64>| {
        entries.iter().filter(|entry| entry.refusal.run_id() == run).count()
    };
    let entries = refusals.entries();
    let counts = [Some(1), Some(2), None].map(|run| of(&entries, run));
    assert_eq!(counts, [REFUSALS_MAX - 2, 1, 1]);
    for number in 1..1000 {
        refusals.record(client(number), UNIX_EPOCH);
    }
    let entries = refusals.entries();
    let counts = [Some(1), Some(2), None].map(|run| of(&entries, run));
    assert_eq!(counts.iter().sum::<usize>(), REFUSALS_MAX);
    assert_eq!(counts[1], 1, "quiet.example is still there");
    assert!(counts[0].abs_diff(counts[2]) <= 1, "halves: {counts:?}");
    let oldest = entries.iter().rfind(|entry| entry.refusal.run_id() == Some(1)).unwrap();
    let oldest_kept = 2 * REFUSALS_MAX - counts[0];
    assert_eq!(oldest.refusal.destination, format!("n{oldest_kept}.example"), "the newest stay");
}

#[test]
fn every_reason_has_its_own_word_and_total() {
    for (at, why) in RefusalReason::ALL.into_iter().enumerate() {
        assert_eq!(why.index(), at);
        let mut refusals = Refusals::default();
        refusals.record(Refusal { why, ..name("a.example", 1) }, UNIX_EPOCH);
        let totals = RefusalReason::ALL.map(|one| refusals.total(one));
        assert_eq!(totals.iter().sum::<u64>(), 1);
        assert_eq!(refusals.total(why), 1);
    }
}

#[test]
fn the_next_step_is_a_line_of_the_policy() {
    assert_eq!(
        next_for_name("other.example"),
        "add remote = \"other.example\" to an outbound rule"
    );
    assert_eq!(
        next_for_connection("10.9.8.7", Some(80)),
        "add remote = \"10.9.8.7\" and remote-ports = 80 to an outbound rule"
    );
    let udp = next_for_datagram("10.9.8.7", 53);
    assert!(udp.contains("protocol = \"udp\"") && udp.contains("remote-ports = 53"), "{udp}");
    assert!(next_for_name("7.8.9.10.in-addr.arpa").contains("address"));
}
