use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::policy::SourcePosition;

fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).unwrap()
}

fn network(text: &str) -> AddressSelector {
    let (network, length) = text.split_once('/').unwrap();
    AddressSelector::Prefix { network: network.parse().unwrap(), length: length.parse().unwrap() }
}

fn entry(line: usize, conditions: Conditions, outcome: MapOutcome) -> MapEntry {
    MapEntry { conditions, outcome, position: SourcePosition { file: 0, line, column: 1 } }
}

fn named(name: &str) -> MapOutcome {
    MapOutcome::Name(name.into())
}

fn subject(text: &str) -> Conditions {
    Conditions { subject: Some(DnPattern::parse(text).unwrap()), ..Conditions::default() }
}

fn cn(value: &str) -> CertificateName {
    CertificateName::Subject(DnAttribute { oid: "2.5.4.3".into(), value: value.into() })
}

fn line_of(mapped: Mapped<'_>) -> Option<usize> {
    match mapped {
        Mapped::Entry(entry) => Some(entry.position.line),
        Mapped::Ambiguous(..) | Mapped::NoMatch => None,
    }
}

#[test]
fn the_most_specific_entry_decides() {
    let dns = |text| Conditions { dns: Some(pattern(text)), ..Conditions::default() };
    let uri = |text| Conditions { uri: Some(pattern(text)), ..Conditions::default() };
    let near = Conditions { address: Some(network("10.0.0.0/8")), ..subject("CN=alice") };
    let nearer = Conditions { address: Some(network("10.7.0.0/16")), ..subject("CN=alice") };
    let map = IdentityMap::new(vec![
        entry(1, subject("*"), MapOutcome::Deny),
        entry(2, subject("CN=*"), named("somebody")),
        entry(3, subject("CN=al*"), named("al")),
        entry(4, subject("CN=alice"), named("alice")),
        entry(5, near, named("near")),
        entry(6, nearer, MapOutcome::Warn),
        entry(7, dns("*.example"), named("host")),
        entry(8, uri("spiffe://*"), named("workload")),
    ]);
    let from = |ip: &str| ip.parse().ok();
    let find = |said: Vec<CertificateName>, address| {
        line_of(map.find(&CertificateSubject::new(said, address)))
    };
    assert_eq!(find(vec![], None), Some(1));
    assert_eq!(find(vec![cn("bob")], None), Some(2));
    assert_eq!(find(vec![cn("ALBERT")], None), Some(3));
    assert_eq!(find(vec![cn("alice")], from("192.0.2.1")), Some(4));
    assert_eq!(find(vec![cn("alice")], from("10.1.0.1")), Some(5));
    assert_eq!(find(vec![cn("alice")], from("::ffff:10.7.0.1")), Some(6));
    let host = CertificateName::Dns("Web.Example".into());
    assert_eq!(find(vec![host.clone(), cn("alice")], from("10.7.0.1")), Some(7));
    let workload = CertificateName::Uri("spiffe://corp/web".into());
    assert_eq!(find(vec![host, workload, cn("alice")], None), Some(8));
    assert_eq!(map.conflicts(), []);
}

#[test]
fn entries_that_nothing_tells_apart_are_conflicts() {
    let map = |one: Conditions, another: Conditions| {
        IdentityMap::new(vec![entry(1, one, named("a")), entry(2, another, MapOutcome::Deny)])
    };
    let conflicts =
        |one: &str, another: &str| !map(subject(one), subject(another)).conflicts().is_empty();
    assert!(conflicts("CN=alice", "cn=ALICE"));
    assert!(conflicts("CN=alice", "OU=alice"));
    assert!(!conflicts("CN=alice", "CN=carol"));
    assert!(!conflicts("CN=alice", "CN=alice, OU=ops"));
    let same = IdentityMap::new(vec![
        entry(1, subject("CN=alice"), named("a")),
        entry(2, subject("OU=alice"), named("a")),
    ]);
    assert_eq!(same.conflicts(), [], "they say the same");
}

#[test]
fn who_has_names_of_two_entries_that_disagree_has_none() {
    let dns = |text| Conditions { dns: Some(pattern(text)), ..Conditions::default() };
    let map = IdentityMap::new(vec![
        entry(1, dns("a.example"), named("a")),
        entry(2, dns("b.example"), named("b")),
        entry(3, dns("*"), named("c")),
    ]);
    assert_eq!(map.conflicts(), [], "one name alone does not meet both");
    let host = |names: &[&str]| {
        CertificateSubject::new(names.iter().map(|it| CertificateName::Dns((*it).into())), None)
    };
    assert!(matches!(map.find(&host(&["b.example", "a.example"])), Mapped::Ambiguous(..)));
    assert_eq!(line_of(map.find(&host(&["b.example", "x.example"]))), Some(2));
    assert_eq!(map.find(&host(&[])), Mapped::NoMatch);
}

#[test]
fn entries_that_do_not_decide_say_why() {
    let elsewhere = Conditions { address: Some(network("10.7.0.0/16")), ..subject("CN=alice") };
    let map = IdentityMap::new(vec![
        entry(9, elsewhere, named("near")),
        entry(5, subject("CN=alice"), named("alice")),
        entry(1, subject("*"), MapOutcome::Deny),
    ]);
    let passed = map.passed(&CertificateSubject::new([cn("alice")], "192.0.2.1".parse().ok()));
    let passed: Vec<_> = passed.iter().map(|it| (it.line, it.why.as_str())).collect();
    let general = "this entry also matches, but is less specific than the chosen entry";
    assert_eq!(passed, [(1, general), (9, "`address` does not match")]);
}

fn any_conditions() -> impl Strategy<Value = Conditions> {
    let dns = proptest::option::of(select(vec!["*", "a*", "*.b", "a.b", "c.b"]));
    let subject = proptest::option::of(select(vec!["*", "CN=*", "CN=x", "CN=x, O=y", "O=y"]));
    let address = proptest::option::of(select(vec!["10.0.0.0/8", "10.7.0.0/16", "::/0"]));
    (dns, subject, address).prop_map(|(dns, subject, address)| Conditions {
        dns: dns.map(pattern),
        subject: subject.map(|text| DnPattern::parse(text).unwrap()),
        address: address.map(network),
        ..Conditions::default()
    })
}

fn any_holder() -> impl Strategy<Value = CertificateSubject> {
    let dns = vec(select(vec!["a.b", "c.b", "ax", "z"]), 0..3);
    let name = vec(select(vec![("2.5.4.3", "x"), ("2.5.4.10", "y"), ("2.5.4.3", "q")]), 0..3);
    let address = select(vec![None, Some("10.7.1.1"), Some("10.9.1.1"), Some("fd00::1")]);
    (dns, name, address).prop_map(|(dns, name, address)| {
        let hosts = dns.into_iter().map(|it| CertificateName::Dns(it.into()));
        let subject = name.into_iter().map(|(oid, value)| {
            CertificateName::Subject(DnAttribute { oid: oid.into(), value: value.into() })
        });
        CertificateSubject::new(hosts.chain(subject), address.map(|ip| ip.parse().unwrap()))
    })
}

proptest! {
    #[test]
    fn the_order_of_the_file_means_nothing(
        entries in vec((any_conditions(), 0..4_u8), 1..8),
        holder in any_holder(),
        seed in any::<usize>(),
    ) {
        let entries: Vec<_> = entries
            .into_iter()
            .enumerate()
            .map(|(line, (conditions, outcome))| {
                let outcome = match outcome {
                    0 => MapOutcome::Deny,
                    name => named(&name.to_string()),
                };
                entry(line, conditions, outcome)
            })
            .collect();
        let mut other = entries.clone();
        other.reverse();
        let turns = seed % other.len();
        other.rotate_left(turns);
        let map = IdentityMap::new(entries);
        let other = IdentityMap::new(other);
        let one = map.find(&holder);
        let another = other.find(&holder);
        match (one, another) {
            (Mapped::Entry(one), Mapped::Entry(another)) => {
                prop_assert_eq!(&one.outcome, &another.outcome);
            }
            (Mapped::Ambiguous(..), Mapped::Ambiguous(..))
            | (Mapped::NoMatch, Mapped::NoMatch) => {}
            (one, another) => prop_assert!(false, "{one:?} {another:?}"),
        }
        // No matching entry has more weight than the entry that decides.
        if let Mapped::Entry(decides) = one {
            for entry in map.entries().iter().filter(|entry| entry.matches(&holder).is_ok()) {
                prop_assert!(entry.conditions.weights() <= decides.conditions.weights());
            }
        }
        prop_assert_eq!(map.conflicts().is_empty(), other.conflicts().is_empty());
    }
}
