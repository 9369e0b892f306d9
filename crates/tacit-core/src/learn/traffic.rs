//! Counts the connections of a host by their destination, or by their port if they are inbound.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::packet::DnsExchange;
use crate::flow::{Direction, Protocol};
use crate::held::FlowEnds;
use crate::policy::remote_name;

/// The maximum number of destinations and ports.
pub const PLACES_MAX: usize = 4096;
/// The maximum number of addresses with a name.
pub const NAMES_MAX: usize = 65_536;
/// The maximum number of connections that are recognised when they are reported again.
pub const CONNECTIONS_MAX: usize = 65_536;
/// The maximum number of addresses that are recorded for a destination or a port.
pub const ADDRESSES_MAX: usize = 64;
/// The maximum number of owners that are recorded for a destination or a port.
pub const OWNERS_MAX: usize = 8;
/// The maximum number of connections, and of DNS questions, that wait for their answers.
pub const WAITING_MAX: usize = 8192;
/// How long they wait.
const WAITING_TIME: Duration = Duration::from_secs(30);
/// How long a connection is recognised after its last report.
const RECOGNISED_TIME: Duration = Duration::from_secs(120);

/// Who opened or accepted a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowOwner {
    /// The systemd unit: the first part of the path of the control group that is no slice.
    pub unit: Option<String>,
    /// The user, by name or number.
    pub user: Option<String>,
    /// The path of the program; `None` if it was not found or not searched for.
    pub program: Option<String>,
}

impl FlowOwner {
    /// Whether this is the other one, or could be if its program were known.
    fn may_be(&self, other: &Self) -> bool {
        let is_same = self.program.is_none() || self.program == other.program;
        is_same && self.unit == other.unit && self.user == other.user
    }
}

/// A connection, or the datagrams between two sockets.
#[derive(Clone, Debug)]
pub struct LearntFlow {
    /// Who began it.
    pub direction: Direction,
    /// Its protocol.
    pub protocol: Protocol,
    /// The end of the program.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Who opened or accepted it; `None` if that is not known.
    pub owner: Option<FlowOwner>,
}

/// What connections have in common that one rule of the policy permits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlaceKey {
    /// They lead to this destination.
    Outbound {
        /// The protocol, by its word in a policy.
        protocol: &'static str,
        /// The name that was looked up, or the address.
        host: String,
        /// The port.
        port: u16,
    },
    /// They are accepted at this port.
    Inbound {
        /// The protocol, by its word in a policy.
        protocol: &'static str,
        /// The port.
        port: u16,
    },
}

/// What was observed of the connections of one rule.
#[derive(Clone, Debug, Default)]
pub struct LearntPlace {
    /// The number of connections.
    pub connections: u64,
    /// How often the server began TLS.
    pub tls: u64,
    /// The addresses of the other ends.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether there were more addresses.
    pub has_more_addresses: bool,
    /// The owners, with the numbers of their connections.
    pub owners: BTreeMap<FlowOwner, u64>,
    /// Whether there were more owners.
    pub has_more_owners: bool,
}

/// The connections that were observed so far.
///
/// Limits:
///
/// * [`PLACES_MAX`] destinations and ports. Connections beyond it are counted in
///   [`LearntTraffic::left_out`].
/// * [`NAMES_MAX`] addresses with a name. Then a new one replaces the oldest.
/// * [`CONNECTIONS_MAX`] connections that are recognised when they are reported again. Connections
///   beyond it may be counted several times, and without their TLS.
/// * [`WAITING_MAX`] connections and questions that wait for their answers. More are ignored.
#[derive(Debug, Default)]
pub struct LearntTraffic {
    places: BTreeMap<PlaceKey, LearntPlace>,
    /// The name that was looked up last, by address.
    names: HashMap<IpAddr, String>,
    /// The addresses with a name, the oldest first.
    named: VecDeque<IpAddr>,
    /// The connections that are counted.
    known: HashMap<FlowId, KnownConnection>,
    /// The connections that programs open, with their owners, until a server accepts them.
    opened: HashMap<FlowEnds, (Instant, FlowOwner)>,
    /// The questions to DNS servers.
    questions: HashMap<DnsExchange, Instant>,
    left_out: u64,
}

/// A connection that is counted.
#[derive(Debug)]
struct KnownConnection {
    /// The time of its last report.
    reported: Instant,
    key: PlaceKey,
    has_tls: bool,
}

/// What identifies a connection while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowId {
    protocol: Protocol,
    local: SocketAddr,
    remote: SocketAddr,
}

impl LearntTraffic {
    /// A program asks a DNS server.
    pub fn take_question(&mut self, exchange: DnsExchange, now: Instant) {
        if self.questions.len() >= WAITING_MAX {
            self.questions.retain(|_, asked| now.duration_since(*asked) < WAITING_TIME);
        }
        if self.questions.len() < WAITING_MAX {
            self.questions.insert(exchange, now);
        }
    }

    /// Whether this answers a question of a program that still waits for it.
    pub fn was_asked(&mut self, exchange: &DnsExchange, now: Instant) -> bool {
        let asked = self.questions.remove(exchange);
        asked.is_some_and(|asked| now.duration_since(asked) < WAITING_TIME)
    }

    /// Records the addresses that a DNS server has sent for a name. Names that cannot stand in a
    /// policy are left out.
    pub fn take_names(&mut self, name: &str, addresses: &[IpAddr]) {
        let Some(name) = remote_name(name) else { return };
        for address in addresses.iter().map(IpAddr::to_canonical) {
            if self.names.insert(address, name.clone()).is_none() {
                self.named.push_back(address);
            }
        }
        while self.named.len() > NAMES_MAX {
            self.named.pop_front().map(|oldest| self.names.remove(&oldest));
        }
    }

    /// A program opens a connection.
    pub fn open(&mut self, ends: FlowEnds, owner: FlowOwner, now: Instant) {
        if self.opened.len() >= WAITING_MAX {
            self.opened.retain(|_, (began, _)| now.duration_since(*began) < WAITING_TIME);
        }
        if self.opened.len() < WAITING_MAX {
            self.opened.insert(ends, (now, owner));
        }
    }

    /// A server accepts a connection. Counts it and returns true if a program has opened it.
    pub fn accept(&mut self, ends: FlowEnds, now: Instant) -> bool {
        let opened = self.opened.remove(&ends);
        let opened = opened.filter(|(began, _)| now.duration_since(*began) < WAITING_TIME);
        let Some((_, owner)) = opened else { return false };
        let FlowEnds { program: local, destination: remote } = ends;
        let direction = Direction::Outbound;
        let protocol = Protocol::Tcp;
        self.count(LearntFlow { direction, protocol, local, remote, owner: Some(owner) }, now);
        true
    }

    /// Counts a connection, unless it is counted already. Connections within the host are left out.
    pub fn count(&mut self, flow: LearntFlow, now: Instant) {
        let is_within = flow.remote.ip().is_loopback() || flow.remote.ip() == flow.local.ip();
        let id = FlowId::of(&flow);
        if let Some(known) = self.known.get_mut(&id) {
            known.reported = now;
            return;
        }
        if is_within || flow.remote.port() == 0 || flow.local.port() == 0 {
            return;
        }
        let key = self.key(&flow);
        if self.places.len() >= PLACES_MAX && !self.places.contains_key(&key) {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        self.places.entry(key.clone()).or_default().add(&flow);
        if self.known.len() < CONNECTIONS_MAX {
            self.known.insert(id, KnownConnection { reported: now, key, has_tls: false });
        }
    }

    /// Records that a server has begun TLS in a connection.
    pub fn note_tls(&mut self, ends: FlowEnds) {
        for id in FlowId::of_connection(ends) {
            let Some(known) = self.known.get_mut(&id).filter(|known| !known.has_tls) else {
                continue;
            };
            known.has_tls = true;
            if let Some(place) = self.places.get_mut(&known.key) {
                place.tls = place.tls.saturating_add(1);
            }
        }
    }

    /// Forgets connections that have not been reported for some time, so that later ones with the
    /// same addresses are counted.
    pub fn expire(&mut self, now: Instant) {
        let is_recent =
            |known: &KnownConnection| now.duration_since(known.reported) < RECOGNISED_TIME;
        self.known.retain(|_, known| is_recent(known));
    }

    /// What was observed, by destination and port.
    pub fn places(&self) -> impl Iterator<Item = (&PlaceKey, &LearntPlace)> {
        self.places.iter()
    }

    /// The number of connections that were not counted because of a limit.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    fn key(&self, flow: &LearntFlow) -> PlaceKey {
        let protocol = flow.protocol.word();
        match flow.direction {
            Direction::Outbound => {
                let address = flow.remote.ip().to_canonical();
                let name = self.names.get(&address).cloned();
                let host = name.unwrap_or_else(|| address.to_string());
                PlaceKey::Outbound { protocol, host, port: flow.remote.port() }
            }
            Direction::Inbound => PlaceKey::Inbound { protocol, port: flow.local.port() },
        }
    }
}

impl LearntPlace {
    fn add(&mut self, flow: &LearntFlow) {
        self.connections = self.connections.saturating_add(1);
        let address = flow.remote.ip().to_canonical();
        if self.addresses.len() < ADDRESSES_MAX {
            self.addresses.insert(address);
        } else if !self.addresses.contains(&address) {
            self.has_more_addresses = true;
        }
        let Some(owner) = &flow.owner else { return };
        let known = self.owners.iter_mut().find(|(known, _)| owner.may_be(known));
        if let Some((_, connections)) = known {
            *connections += 1;
            return;
        }
        // The program of an earlier connection, which was not found, is probably the same.
        let unknown = FlowOwner { program: None, ..owner.clone() };
        let earlier = self.owners.remove(&unknown).unwrap_or(0);
        if self.owners.len() < OWNERS_MAX {
            self.owners.insert(owner.clone(), earlier + 1);
        } else {
            self.has_more_owners = true;
        }
    }
}

impl FlowId {
    /// The connection as its client knows it, and as its server does.
    fn of_connection(FlowEnds { program, destination }: FlowEnds) -> [Self; 2] {
        let protocol = Protocol::Tcp;
        [
            Self { protocol, local: program, remote: destination },
            Self { protocol, local: destination, remote: program },
        ]
    }

    fn of(flow: &LearntFlow) -> Self {
        let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
        Self {
            protocol: flow.protocol,
            local: canonical(flow.local),
            remote: canonical(flow.remote),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(direction: Direction, local: &str, remote: &str) -> LearntFlow {
        let [local, remote] = [local, remote].map(|end| end.parse().unwrap());
        LearntFlow { direction, protocol: Protocol::Tcp, local, remote, owner: None }
    }

    fn outbound(port: u16, remote: &str) -> LearntFlow {
        flow(Direction::Outbound, &format!("10.0.0.1:{port}"), remote)
    }

    fn exchange(name: &str) -> DnsExchange {
        let ends = ends("10.0.0.1:40000", "10.0.0.53:53");
        DnsExchange { ends, id: 7, name: name.to_owned() }
    }

    fn ends(program: &str, destination: &str) -> FlowEnds {
        let [program, destination] = [program, destination].map(|end| end.parse().unwrap());
        FlowEnds { program, destination }
    }

    #[test]
    fn answers_and_connections_that_no_program_has_asked_for_are_ignored() {
        let mut traffic = LearntTraffic::default();
        let now = Instant::now();
        assert!(!traffic.was_asked(&exchange("evil.example"), now));
        let opened = ends("10.0.0.1:40000", "10.7.0.3:5432");
        assert!(!traffic.accept(opened, now));
        traffic.open(opened, FlowOwner::default(), now);
        assert!(!traffic.accept(ends("10.0.0.1:40000", "10.7.0.3:5433"), now));
        assert!(traffic.accept(opened, now) && !traffic.accept(opened, now));
        let key = traffic.places().next().unwrap().0;
        assert!(matches!(key, PlaceKey::Outbound { host, .. } if host == "10.7.0.3"), "{key:?}");
        // Later, neither a question nor a connection waits any more.
        traffic.take_question(exchange("db.example"), now);
        assert!(traffic.was_asked(&exchange("db.example"), now));
        traffic.take_question(exchange("db.example"), now);
        traffic.open(opened, FlowOwner::default(), now);
        let later = now + WAITING_TIME;
        assert!(!traffic.was_asked(&exchange("db.example"), later));
        assert!(!traffic.accept(opened, later));
    }

    #[test]
    fn connections_are_counted_once_by_the_name_that_was_looked_up() {
        let mut traffic = LearntTraffic::default();
        let now = Instant::now();
        traffic.take_names("db.example", &["10.7.0.3".parse().unwrap()]);
        let first = outbound(40_000, "10.7.0.3:5432");
        traffic.count(first.clone(), now);
        traffic.count(first.clone(), now);
        traffic.count(outbound(40_001, "[::ffff:10.7.0.3]:5432"), now);
        traffic.count(outbound(40_002, "10.7.0.4:5432"), now);
        let counts: Vec<_> = traffic.places().map(|(key, one)| (key, one.connections)).collect();
        let key =
            |host: &str| PlaceKey::Outbound { protocol: "tcp", host: host.to_owned(), port: 5432 };
        assert_eq!(counts, [(&key("10.7.0.4"), 1), (&key("db.example"), 2)]);
        // The same ports are used again later.
        let later = now + RECOGNISED_TIME;
        traffic.expire(later);
        traffic.count(first, later);
        assert_eq!(traffic.places().map(|(_, one)| one.connections).sum::<u64>(), 4);
    }

    #[test]
    fn tls_belongs_to_the_connection_in_which_it_begins() {
        let mut traffic = LearntTraffic::default();
        let now = Instant::now();
        traffic.count(outbound(40_000, "10.7.0.3:443"), now);
        traffic.count(outbound(40_001, "10.7.0.3:443"), now);
        traffic.count(flow(Direction::Inbound, "10.0.0.1:443", "10.9.0.1:5000"), now);
        // Another copy, and a connection that is not known.
        for port in [40_000, 40_000, 50_000] {
            traffic.note_tls(ends(&format!("10.0.0.1:{port}"), "10.7.0.3:443"));
        }
        traffic.note_tls(ends("10.9.0.1:5000", "10.0.0.1:443"));
        let seen: Vec<_> = traffic.places().map(|(_, one)| (one.connections, one.tls)).collect();
        assert_eq!(seen, [(2, 1), (1, 1)]);
    }

    #[test]
    fn connections_within_the_host_are_left_out() {
        let mut traffic = LearntTraffic::default();
        for remote in ["127.0.0.1:80", "10.0.0.1:80", "[::1]:80"] {
            traffic.count(outbound(40_000, remote), Instant::now());
        }
        assert_eq!(traffic.places().count(), 0);
    }

    #[test]
    fn an_owner_whose_program_is_not_known_is_the_one_with_its_user_and_unit() {
        let mut traffic = LearntTraffic::default();
        let owner = |user: &str, program: Option<&str>| FlowOwner {
            unit: Some("app.service".to_owned()),
            user: Some(user.to_owned()),
            program: program.map(str::to_owned),
        };
        let all = [
            owner("app", Some("/usr/bin/app")),
            owner("app", None),
            owner("other", None),
            owner("app", Some("/usr/bin/curl")),
            owner("other", Some("/usr/bin/other")),
        ];
        for (port, owner) in (40_000..).zip(&all) {
            let mut one = outbound(port, "10.7.0.3:443");
            one.owner = Some(owner.clone());
            traffic.count(one, Instant::now());
        }
        let place = traffic.places().next().unwrap().1;
        let counts = [0, 2, 3, 4].map(|at: usize| place.owners.get(&all[at]).copied());
        assert_eq!(counts, [Some(2), None, Some(1), Some(2)]);
    }

    #[test]
    fn every_table_has_its_limit() {
        let mut traffic = LearntTraffic::default();
        let now = Instant::now();
        for port in 1..=u16::try_from(PLACES_MAX + 1).unwrap() {
            traffic.count(outbound(40_000, &format!("10.7.0.3:{port}")), now);
        }
        assert_eq!((traffic.places().count(), traffic.left_out()), (PLACES_MAX, 1));
        for last in 0..70_u8 {
            let owner = FlowOwner { user: Some(last.to_string()), ..FlowOwner::default() };
            let mut one = flow(Direction::Inbound, "10.0.0.1:443", &format!("10.9.0.{last}:1"));
            one.owner = Some(owner);
            // The table of places is full.
            traffic.places.entry(traffic.key(&one)).or_default().add(&one);
        }
        let place = traffic.places().last().unwrap().1;
        assert_eq!((place.addresses.len(), place.owners.len()), (ADDRESSES_MAX, OWNERS_MAX));
        assert!(place.has_more_addresses && place.has_more_owners && place.connections == 70);
    }
}
