use std::net::Ipv6Addr;

use super::*;
use proptest::prelude::*;

fn ip(last: u32) -> IpAddr {
    IpAddr::from((0x0a00_0000 + last).to_be_bytes())
}

fn learning(name: &str, address: IpAddr) -> Learning<'_> {
    let ttl = Duration::from_secs(600);
    Learning { name, address, ttl, is_disputed: false, aliases: Aliases::default() }
}

fn is_alias(address: IpAddr) -> bool {
    AliasRanges::default().contains(address)
}

fn given(given: AliasPolicy) -> Aliases {
    Aliases { given, ..Aliases::default() }
}

fn destination(name: &str, address: IpAddr, alias: Option<IpAddr>) -> NamedDestination {
    NamedDestination { names: vec![name.into()], is_shared: false, address, alias }
}

fn names_of(names: &NameTable, address: IpAddr) -> Vec<String> {
    names.of(address).names
}

#[test]
fn an_address_belongs_to_the_first_name_and_others_get_aliases() {
    let mut names = NameTable::default();
    let now = Instant::now();
    assert_eq!(names.learn(learning("clear.example", ip(1)), now), Ok(ip(1)));
    let alias = names.learn(learning("tls.example", ip(1)), now).unwrap();
    assert!(is_alias(alias), "{alias}");
    let clear = destination("clear.example", ip(1), None);
    let tls = destination("tls.example", ip(1), Some(alias));
    assert_eq!([names.of(ip(1)), names.of(alias)], [clear, tls]);
    assert_eq!(names.learn(learning("tls.example", ip(1)), now), Ok(alias), "it is known");
    assert_eq!(names.news(), 2);
    let six: IpAddr = "2001:db8::1".parse().unwrap();
    assert_eq!(names.learn(learning("clear.example", six), now), Ok(six));
    let alias = names.learn(learning("tls.example", six), now).unwrap();
    assert!(is_alias(alias) && alias.is_ipv6(), "{alias}");
    let later = now + 2 * TTL_MAX;
    let third = names.learn(learning("third.example", ip(1)), later).unwrap();
    assert!(is_alias(third), "the owner's answer has ended, and the address is still its own");
    assert_eq!(names_of(&names, ip(1)), ["clear.example"]);
    assert_eq!(names.learn(learning("clear.example", ip(1)), later), Ok(ip(1)));
    assert_eq!(names_of(&names, ip(1)), ["clear.example"]);
}

#[test]
fn a_disputed_address_stays_without_a_name() {
    let mut names = NameTable::default();
    let now = Instant::now();
    let disputed = Learning { is_disputed: true, ..learning("db.example", ip(1)) };
    let alias = names.learn(disputed, now).unwrap();
    assert!(is_alias(alias));
    assert_eq!(names_of(&names, ip(1)), [""; 0]);
    assert_eq!(names.learn(learning("db.example", ip(1)), now), Ok(alias), "it keeps its alias");
}

#[test]
fn every_name_gets_an_alias_where_the_policy_says_so() {
    let mut names = NameTable::default();
    let now = Instant::now();
    let always = Learning { aliases: given(AliasPolicy::Always), ..learning("db.example", ip(1)) };
    let alias = names.learn(always, now).unwrap();
    assert!(is_alias(alias));
    assert_eq!(names.of(alias), destination("db.example", ip(1), Some(alias)));
    assert_eq!(names.learn(learning("db.example", ip(1)), now), Ok(alias), "it keeps its alias");
    assert_eq!(names_of(&names, ip(1)), [""; 0]);
}

#[test]
fn names_share_an_address_where_they_get_no_aliases() {
    let mut names = NameTable::default();
    let now = Instant::now();
    let never = |number: usize| format!("n{number}.example");
    for number in 0..SHARING_MAX {
        let name = never(number);
        let learning = Learning { aliases: given(AliasPolicy::Never), ..learning(&name, ip(1)) };
        assert_eq!(names.learn(learning, now), Ok(ip(1)));
        assert_eq!(names.learn(learning, now), Ok(ip(1)), "it is known");
    }
    let one_more =
        Learning { aliases: given(AliasPolicy::Never), ..learning("more.example", ip(1)) };
    assert_eq!(names.learn(one_more, now), Err(NotLearnt::Shared));
    let found = names.of(ip(1));
    assert_eq!(found.names, (0..SHARING_MAX).map(never).collect::<Vec<_>>());
    assert!(found.is_shared);
    let mut successor = NameTable::default();
    for known in names.all(now) {
        successor.restore(known, now);
    }
    assert_eq!(successor.of(ip(1)), found);
    let alias = names.learn(learning("n1.example", ip(1)), now).unwrap();
    assert!(is_alias(alias), "names get aliases now");
}

#[test]
fn a_range_without_aliases_left_gives_none_twice() {
    let mut names = NameTable::default();
    let now = Instant::now();
    let range = AliasRanges::default().with("10.99.0.0".parse().unwrap(), 24);
    let aliases = Aliases { given: AliasPolicy::Always, ranges: range };
    let mut seen = std::collections::HashSet::new();
    for number in 0..255 {
        let name = format!("n{number}.example");
        let learnt = names.learn(Learning { aliases, ..learning(&name, ip(1)) }, now).unwrap();
        assert!(range.contains(learnt) && seen.insert(learnt), "{learnt}");
    }
    let more = Learning { aliases, ..learning("more.example", ip(1)) };
    assert_eq!(names.learn(more, now), Err(NotLearnt::NoAlias));
    let other = names.learn(learning("more.example", ip(1)), now);
    assert_eq!(other, Ok(ip(1)), "no name has the address as its own");
}

#[test]
fn a_resolver_cannot_give_an_alias() {
    let mut names = NameTable::default();
    let now = Instant::now();
    for reserved in ["198.18.0.1", "198.19.255.255", "100::1", "::ffff:198.18.0.1"] {
        let learnt = names.learn(learning("db.example", reserved.parse().unwrap()), now);
        assert_eq!(learnt, Err(NotLearnt::Reserved), "{reserved}");
    }
    let never = Learning { aliases: given(AliasPolicy::Never), ..learning("db.example", ip(1)) };
    let range = "198.18.0.1".parse().unwrap();
    assert_eq!(names.learn(Learning { address: range, ..never }, now), Ok(range));
}

#[test]
fn a_name_keeps_its_address_after_its_answer_has_ended() {
    let mut names = NameTable::default();
    let now = Instant::now();
    let ttl = Duration::from_secs(600);
    assert_eq!(names.learn(learning("long.example", ip(1)), now), Ok(ip(1)));
    let late = now + ttl + TTL_MAX;
    let alias = names.learn(learning("other.example", ip(1)), late).unwrap();
    assert_eq!(names_of(&names, ip(1)), ["long.example"]);
    assert_eq!(names_of(&names, alias), ["other.example"]);
    assert_eq!(names.pairs(late).len(), 2);
    assert!(names_of(&names, ip(2)).is_empty());
    let ever = Learning { ttl: Duration::MAX, ..learning("ever.example", ip(3)) };
    assert_eq!(names.learn(ever, now), Ok(ip(3)));
}

#[test]
fn a_mapped_address_is_the_same_address() {
    let mut names = NameTable::default();
    let now = Instant::now();
    let mapped = "::ffff:10.0.0.9".parse().unwrap();
    assert_eq!(names.learn(learning("v4.example", mapped), now), Ok(ip(9)));
    assert_eq!(names_of(&names, ip(9)), ["v4.example"]);
}

#[test]
fn what_the_hosts_file_says_lasts_until_it_says_something_else() {
    let mut names = NameTable::default();
    let now = Instant::now();
    let host = |address: IpAddr, name: &str| HostsEntry { address, name: name.to_owned() };
    let pairs = |last: u32| [host(ip(last), "db"), host(ip(last), "db.example")];
    assert!(names.set_lasting(pairs(1)));
    assert!(!names.set_lasting(pairs(1)), "no news");
    assert_eq!(names.learn(learning("db.example", ip(1)), now), Ok(ip(1)));
    assert_eq!(names_of(&names, ip(1)), ["db", "db.example"], "each once");
    assert_eq!((names.all(now).len(), names.pairs(now).len()), (1, 3));
    assert_eq!(names_of(&names, ip(1)), ["db", "db.example"]);
    assert!(names.set_lasting(pairs(2)));
    assert_eq!(names_of(&names, ip(1)), ["db.example"], "it was asked for too");
    let localhost = host("127.0.0.1".parse().unwrap(), "localhost");
    assert!(!names.set_lasting(pairs(2).into_iter().chain([localhost])));
    let other = names.learn(learning("other.example", ip(2)), now).unwrap();
    assert!(is_alias(other), "the address belongs to the names of the file");
}

#[test]
fn a_name_does_not_lead_to_this_host_or_this_link() {
    let mut names = NameTable::default();
    let now = Instant::now();
    for no in [
        "127.0.0.1",
        "::1",
        "169.254.169.254",
        "fe80::1",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "255.255.255.255",
        "ff02::1",
        "::127.0.0.1",
    ] {
        let no: IpAddr = no.parse().unwrap();
        assert_eq!(names.learn(learning("rebound.example", no), now), Ok(no));
    }
    assert!(names.all(now).is_empty());
    for yes in ["10.0.0.1", "192.168.0.1", "fd00::1", "2001:db8::1"] {
        let yes: IpAddr = yes.parse().unwrap();
        assert_eq!(names.learn(learning("there.example", yes), now), Ok(yes));
    }
    assert_eq!(names.all(now).len(), 4);
}

#[test]
fn a_full_table_learns_no_more_and_forgets_nothing() {
    let mut names = NameTable::default();
    let now = Instant::now();
    let name = |number: u32| format!("n{number}.example");
    let count = u32::try_from(NAMES_MAX).unwrap();
    let begun = Instant::now();
    for number in 0..count {
        names.learn(learning(&name(number), ip(1)), now).unwrap();
    }
    println!("{count} names of one address in {:?}", begun.elapsed());
    assert_eq!(names.learn(learning("more.example", ip(1)), now), Err(NotLearnt::Full));
    assert_eq!(names.learn(learning("more.example", ip(2)), now), Err(NotLearnt::Full));
    assert_eq!(names.learn(learning("n0.example", ip(1)), now), Ok(ip(1)));
    let last = names.learn(learning(&name(count - 1), ip(1)), now).unwrap();
    assert_eq!(names_of(&names, last), [name(count - 1)]);
    assert!(names.lasting.is_empty(), "no list of names hangs on one address");
}

#[test]
fn a_successor_knows_the_same_owners_and_aliases() {
    let mut names = NameTable::default();
    let now = Instant::now();
    for number in 0..40 {
        let six = IpAddr::from(Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(number % 3)));
        for address in [ip(number % 3), six] {
            names.learn(learning(&format!("n{number}.example"), address), now).unwrap();
        }
    }
    let mut successor = NameTable::default();
    let before = names.all(now);
    for known in before.clone() {
        successor.restore(known, now);
    }
    for known in &before {
        assert_eq!(successor.of(known.used()), names.of(known.used()));
    }
    let new = successor.learn(learning("new.example", ip(1)), now).unwrap();
    assert!(before.iter().all(|known| known.used() != new), "an alias is not given twice");
    let bad = ["10.0.0.7", "127.0.0.1", "100::1"].map(|alias| KnownName {
        name: "bad.example".into(),
        address: ip(7),
        alias: Some(alias.parse().unwrap()),
        is_shared: false,
        remaining: TTL_MAX,
    });
    for known in bad {
        successor.restore(known, now);
    }
    assert_eq!(successor.all(now).len(), before.len() + 1);
}

proptest! {
    #[test]
    fn an_address_that_was_given_means_one_name_whatever_is_learnt(
        steps in prop::collection::vec((0_u32..6, 0_u32..4, any::<bool>(), 0_u64..9_000), 0..60),
    ) {
        let mut names = NameTable::default();
        let mut now = Instant::now();
        let mut given: HashMap<IpAddr, HostsEntry> = HashMap::new();
        for (name, address, is_disputed, seconds) in steps {
            now += Duration::from_secs(seconds);
            let name = format!("n{name}.example");
            let learning = Learning { is_disputed, ..learning(&name, ip(address)) };
            let used = names.learn(learning, now).unwrap();
            let pair = HostsEntry { address: ip(address), name };
            prop_assert_eq!(given.entry(used).or_insert_with(|| pair.clone()), &pair);
            let found = names.of(used);
            prop_assert_eq!(found.address, pair.address);
            prop_assert_eq!(found.names, [pair.name]);
        }
    }
}
