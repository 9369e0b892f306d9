//! Finds the rule for a flow. The cost of a look-up depends mainly on the number of different
//! shapes of rules, and hardly on the number of rules.
//!
//! The *shape* of a rule is the number of bits that the rule compares in each address and port.
//! Most policies have few different shapes. The index has one hash table for each shape, and a
//! look-up searches each table once. This algorithm is called tuple space search; Open vSwitch uses
//! it too.
//!
//! ```text
//! rule: remote 10.7.0.0/16, remote-ports 5432   shape (any, any, v4/16, port/16)
//! flow: remote 10.7.8.9:5432                    key for this shape (-, -, 10.7.0.0, 5432)
//! ```
//!
//! Then the look-up compares the other conditions of the rules that it found, such as `program` and
//! `user`. Finding the program and the user of a flow is expensive. So the first look-up may omit
//! the program and the user. [`Lookup`] then reports whether the program or the user could change
//! the result.
//!
//! Limits: the cost also grows with the number of rules that differ only in `program` or `user`.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::rule::{Action, Rule};
use super::selector::{AddressSelector, Family, UnknownOwner, family_and_bits};
use crate::flow::{Address, Direction, Flow, Protocol};

/// The largest number of entries that one rule puts into the tables for each `listen`. Any IPv4
/// range combined with any port range fits (62 times 30).
const ENTRIES_PER_RULE_MAX: usize = 2048;

/// The result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The index of the first rule that matches; `None`: no rule matches, so the flow is denied.
    pub rule: Option<usize>,
    /// Whether another rule could match if the unknown program or user of the flow were known.
    pub needs_owner: bool,
    /// Whether an earlier rule with TLS selects by program or user, and could match this flow.
    pub may_need_tls: bool,
    /// The number of hash probes, skipped tables and verified rules.
    pub comparisons: u32,
}

/// The rules of a policy in a structure in which the first matching rule is found fast.
#[derive(Clone, Debug)]
pub struct Index {
    tables: Vec<Table>,
    /// The numbers of the listening addresses in rules; 0 is for flows that did not arrive at a
    /// listening address.
    listens: HashMap<Address, u32>,
    /// The numbers of the host names in rules. A wildcard has the number of the name after `*.`.
    hosts: HashMap<String, u128>,
    rules: Vec<Verified>,
}

impl Index {
    /// Builds the index.
    #[must_use]
    pub fn new<'r>(rules: impl IntoIterator<Item = &'r Arc<Rule>>) -> Self {
        let mut builder = Builder::default();
        for rule in rules {
            builder.add(rule);
        }
        builder.finish()
    }

    /// Finds the first rule that matches.
    #[must_use]
    pub fn lookup(&self, flow: &Flow) -> Lookup {
        let mut found = Found::default();
        self.search(flow, &mut found);
        let Found { best, unsure, unsure_tls, comparisons } = found;
        let counts = |unsure: Option<usize>| {
            unsure.is_some_and(|unsure| best.is_none_or(|best| unsure <= best))
        };
        let needs_owner = counts(unsure);
        let may_need_tls = counts(unsure_tls);
        Lookup { rule: best, needs_owner, may_need_tls, comparisons }
    }

    fn search(&self, flow: &Flow, found: &mut Found) {
        let listen = match &flow.listen {
            None => 0,
            Some(address) => {
                found.comparisons += 1;
                let Some(number) = self.listens.get(address) else { return };
                *number
            }
        };
        let (exact, wildcard) = self.host_numbers(&flow.remote_names, &mut found.comparisons);
        for table in &self.tables {
            if found.best.is_some_and(|best| best < table.first_rule) {
                break;
            }
            found.comparisons += 1;
            let Some(near) = table.shape.near_key(flow, listen) else { continue };
            let remote_ip = table.shape.remote.bits(flow.remote.ip());
            let remotes = match table.shape.remote {
                AddressKey::Host => exact.as_slice(),
                AddressKey::HostsBelow => wildcard.as_slice(),
                AddressKey::Any | AddressKey::Network(..) => remote_ip.as_slice(),
            };
            for remote in remotes {
                found.comparisons += 1;
                if let Some(rules) = table.rules.get(&Key { remote: *remote, ..near }) {
                    self.verify(rules, flow, found);
                }
            }
        }
    }

    /// Verifies the rules that are earlier than the best one so far, until one matches completely.
    fn verify(&self, rules: &RulesOfKey, flow: &Flow, found: &mut Found) {
        for rule in rules.all() {
            if found.best.is_some_and(|best| best <= rule) {
                return;
            }
            found.comparisons += 1;
            let Verified { whole, is_deny, is_tls } = &self.rules[rule];
            let selectors = &whole.selectors;
            // As for a rule that denies: the unknown owner may be one that the rule names.
            if selectors.matches(flow, UnknownOwner::Matches).is_err() {
                continue;
            }
            let is_sure = !selectors.lacks_owner(flow);
            let first = |unsure: Option<usize>| Some(unsure.map_or(rule, |it| it.min(rule)));
            if !is_sure {
                found.unsure = first(found.unsure);
            }
            if !is_sure && *is_tls {
                found.unsure_tls = first(found.unsure_tls);
            }
            if is_sure || *is_deny {
                found.best = Some(rule);
                return;
            }
        }
    }

    /// Returns the numbers of the flow's names that rules contain, and of the parent names that
    /// rules contain with `*.`.
    fn host_numbers(&self, names: &[String], comparisons: &mut u32) -> (Vec<u128>, Vec<u128>) {
        let mut exact = Vec::new();
        let mut wildcard = Vec::new();
        if self.hosts.is_empty() {
            return (exact, wildcard);
        }
        for name in names {
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            *comparisons += 1;
            exact.extend(self.hosts.get(&name));
            // There is no label before a leading dot, so the first character is skipped.
            for (dot, _) in name.match_indices('.').filter(|(dot, _)| *dot > 0) {
                *comparisons += 1;
                wildcard.extend(self.hosts.get(&name[dot + 1..]));
            }
        }
        (exact, wildcard)
    }
}

/// The state of a search.
#[derive(Default)]
struct Found {
    /// The first rule that matches.
    best: Option<usize>,
    /// The first rule that names owners, and whose other conditions match a flow of unknown owner.
    unsure: Option<usize>,
    /// The first such rule with TLS.
    unsure_tls: Option<usize>,
    comparisons: u32,
}

/// The parts of a rule that are needed to verify it.
#[derive(Clone, Debug)]
struct Verified {
    whole: Arc<Rule>,
    is_deny: bool,
    is_tls: bool,
}

/// The rules of one shape.
#[derive(Clone, Debug)]
struct Table {
    shape: Shape,
    first_rule: usize,
    /// The positions of rules, in order.
    rules: HashMap<Key, RulesOfKey, BuildHasherDefault<KeyHasher>>,
}

/// The rules with one key, in order. Most keys have one rule.
#[derive(Clone, Debug)]
struct RulesOfKey {
    first: usize,
    later: Vec<usize>,
}

impl RulesOfKey {
    fn all(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.first).chain(self.later.iter().copied())
    }
}

/// Which values a rule compares, and how many bits of each; `None` for a port: it is not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    local: AddressKey,
    local_port: Option<u32>,
    remote: AddressKey,
    remote_port: Option<u32>,
}

impl Shape {
    /// Returns the flow's key for this shape, without the remote address; `None` if it has none.
    fn near_key(self, flow: &Flow, listen: u32) -> Option<Key> {
        Some(Key {
            direction: flow.direction,
            protocol: flow.protocol,
            listen,
            local: self.local.bits(flow.local.ip())?,
            local_port: port_bits(self.local_port, flow.local.port())?,
            remote: 0,
            remote_port: port_bits(self.remote_port, flow.remote.port())?,
        })
    }
}

/// How a shape compares an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum AddressKey {
    /// It is not compared.
    Any,
    /// This number of bits is compared.
    Network(Family, u32),
    /// The name is compared.
    Host,
    /// The parent names are compared.
    HostsBelow,
}

impl AddressKey {
    /// Returns the compared bits; `None` if there is no address or it has the other family.
    fn bits(self, ip: Option<IpAddr>) -> Option<u128> {
        match self {
            Self::Any => Some(0),
            Self::Network(family, length) => {
                let (found, bits) = family_and_bits(ip?);
                (found == family).then(|| high_bits(bits, length, family.width()))
            }
            Self::Host | Self::HostsBelow => None,
        }
    }
}

fn port_bits(length: Option<u32>, port: Option<u16>) -> Option<u16> {
    match length {
        None => Some(0),
        Some(length) => Some(narrow(high_bits(u128::from(port?), length, PORT_WIDTH))),
    }
}

/// Converts the bits of a port, of which there are 16.
fn narrow(bits: u128) -> u16 {
    u16::try_from(bits).unwrap_or(u16::MAX)
}

/// Keeps the first `length` of `width` bits, and clears the others.
fn high_bits(bits: u128, length: u32, width: u32) -> u128 {
    let low = width - length;
    bits.checked_shr(low).map_or(0, |high| high << low)
}

const PORT_WIDTH: u32 = 16;

/// The values that a rule and a matching flow have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    direction: Direction,
    protocol: Protocol,
    listen: u32,
    local: u128,
    local_port: u16,
    remote: u128,
    remote_port: u16,
}

/// Hashes keys with one multiplication for each number. A table contains only keys of the policy,
/// so flows cannot make it slow by collisions.
#[derive(Clone, Copy, Debug, Default)]
struct KeyHasher(u64);

/// An odd number with bits in all places, as in the hash function of rustc.
const HASH_FACTOR: u64 = 0xf135_7aea_2e62_a9c5;

impl Hasher for KeyHasher {
    fn write_u64(&mut self, number: u64) {
        self.0 = self.0.wrapping_add(number).wrapping_mul(HASH_FACTOR);
    }

    fn write_u128(&mut self, number: u128) {
        let [low, high] = [number & u128::from(u64::MAX), number >> 64];
        for half in [low, high] {
            self.write_u64(u64::try_from(half).unwrap_or(0));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number.cast_unsigned() as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn finish(&self) -> u64 {
        // The highest bits are the best, and the tables use the lowest.
        self.0.rotate_left(26)
    }
}

#[derive(Default)]
struct Builder {
    tables: HashMap<Shape, Table>,
    listens: HashMap<Address, u32>,
    hosts: HashMap<String, u128>,
    rules: Vec<Verified>,
    /// The memory for the parts of one rule after the other.
    scratch: RuleParts,
}

/// The parts of the four conditions of a rule: local and remote addresses, each with its ports.
type RuleParts = [Vec<Part>; 4];

impl Builder {
    fn add(&mut self, rule: &Arc<Rule>) {
        let index = self.rules.len();
        let mut parts = std::mem::take(&mut self.scratch);
        let [locals, local_ports, remotes, remote_ports] = &mut parts;
        self.addresses(&rule.selectors.local, locals);
        ports(&rule.selectors.local_ports, local_ports);
        self.addresses(&rule.selectors.remote, remotes);
        ports(&rule.selectors.remote_ports, remote_ports);
        limit(&mut parts);
        let [locals, local_ports, remotes, remote_ports] = &parts;
        for listen in self.listen_numbers(rule) {
            for local in locals {
                for local_port in local_ports {
                    for remote in remotes {
                        for remote_port in remote_ports {
                            let parts = [local, local_port, remote, remote_port];
                            self.enter(index, rule, listen, parts);
                        }
                    }
                }
            }
        }
        self.scratch = parts;
        let is_deny = rule.enforced().is_deny();
        let is_tls = matches!(rule.action, Action::Tls(_));
        self.rules.push(Verified { whole: Arc::clone(rule), is_deny, is_tls });
    }

    fn enter(&mut self, index: usize, rule: &Rule, listen: u32, parts: [&Part; 4]) {
        let [local, local_port, remote, remote_port] = parts;
        let shape = Shape {
            local: local.key,
            local_port: local_port.port_length(),
            remote: remote.key,
            remote_port: remote_port.port_length(),
        };
        let key = Key {
            direction: rule.selectors.direction,
            protocol: rule.selectors.protocol,
            listen,
            local: local.bits,
            local_port: narrow(local_port.bits),
            remote: remote.bits,
            remote_port: narrow(remote_port.bits),
        };
        let table = self.tables.entry(shape).or_insert_with(|| Table {
            shape,
            first_rule: index,
            rules: HashMap::default(),
        });
        let entry = table.rules.entry(key);
        let rules = entry.or_insert_with(|| RulesOfKey { first: index, later: Vec::new() });
        // Overlapping ranges of one rule lead to the same entry.
        if rules.all().last() != Some(index) {
            rules.later.push(index);
        }
    }

    fn finish(self) -> Index {
        let mut tables: Vec<Table> = self.tables.into_values().collect();
        tables.sort_by_key(|table| table.first_rule);
        Index { tables, listens: self.listens, hosts: self.hosts, rules: self.rules }
    }

    fn listen_numbers(&mut self, rule: &Rule) -> Vec<u32> {
        if rule.listens().is_empty() {
            return vec![0];
        }
        let mut numbers = Vec::with_capacity(rule.listens().len());
        for address in rule.listens() {
            // The size of a policy text limits the number of rules and the length of their lists.
            let next = u32::try_from(self.listens.len() + 1).unwrap_or(u32::MAX);
            numbers.push(*self.listens.entry(address.clone()).or_insert(next));
        }
        numbers
    }

    fn addresses(&mut self, selectors: &[AddressSelector], parts: &mut Vec<Part>) {
        parts.clear();
        for selector in selectors {
            if let AddressSelector::Name { host, wildcard } = selector {
                let next = self.hosts.len() as u128;
                let bits = *self.hosts.entry(host.clone()).or_insert(next);
                let key = if *wildcard { AddressKey::HostsBelow } else { AddressKey::Host };
                parts.push(Part { key, bits });
            }
            for span in selector.spans() {
                let prefixes = prefixes(span.first, span.last, span.family.width());
                parts.extend(prefixes.map(|(bits, length)| Part {
                    key: AddressKey::Network(span.family, length),
                    bits,
                }));
            }
        }
        or_any(parts);
    }
}

/// One value of a rule, or a part of a range. A port is stored as a network of 16 bits.
#[derive(Clone, Copy, Debug)]
struct Part {
    key: AddressKey,
    bits: u128,
}

impl Part {
    const ANY: Self = Self { key: AddressKey::Any, bits: 0 };

    fn port_length(&self) -> Option<u32> {
        match self.key {
            AddressKey::Network(_, length) => Some(length),
            AddressKey::Any | AddressKey::Host | AddressKey::HostsBelow => None,
        }
    }
}

fn ports(ranges: &[RangeInclusive<u16>], parts: &mut Vec<Part>) {
    parts.clear();
    for range in ranges {
        let first = u128::from(*range.start());
        let last = u128::from(*range.end());
        let prefixes = prefixes(first, last, PORT_WIDTH);
        parts.extend(
            prefixes
                .map(|(bits, length)| Part { key: AddressKey::Network(Family::V4, length), bits }),
        );
    }
    or_any(parts);
}

/// If there is no condition, there is one part that always matches.
fn or_any(parts: &mut Vec<Part>) {
    if parts.is_empty() {
        parts.push(Part::ANY);
    }
}

/// Removes conditions from the index, the longest list first, until the number of entries is small
/// enough.
fn limit(parts: &mut RuleParts) {
    while parts.iter().map(Vec::len).fold(1, usize::saturating_mul) > ENTRIES_PER_RULE_MAX {
        if let Some(longest) = parts.iter_mut().max_by_key(|list| list.len()) {
            *longest = vec![Part::ANY];
        }
    }
}

/// Returns the smallest number of prefixes that together contain exactly the numbers from the first
/// to the last, with their lengths.
fn prefixes(first: u128, last: u128, width: u32) -> impl Iterator<Item = (u128, u32)> {
    let mut next = Some(first);
    std::iter::from_fn(move || {
        let first = next.filter(|first| *first <= last)?;
        // The largest block that begins here and does not extend beyond the last number.
        let fits = (last - first).checked_add(1).map_or(u128::BITS, u128::ilog2);
        let block = first.trailing_zeros().min(fits).min(width);
        next = 1_u128.checked_shl(block).and_then(|size| first.checked_add(size));
        Some((first, width - block))
    })
}

#[cfg(test)]
mod tests;
