//! Counts the connections of a host by their destination, or by their port if they are inbound.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::flow::{Direction, Protocol};
use crate::policy::remote_name;

/// The maximum number of destinations and ports.
pub const PLACES_MAX: usize = 4096;
/// The maximum number of addresses with a name.
pub const NAMES_MAX: usize = 65_536;
/// The maximum number of connections that are recognised when they are reported again.
pub const CONNECTIONS_MAX: usize = 65_536;
/// The maximum number of addresses that are recorded for a destination or a port.
pub const ADDRESSES_MAX: usize = 16;
/// The maximum number of owners that are recorded for a destination or a port.
pub const OWNERS_MAX: usize = 8;
/// How long a connection is recognised after its last report.
const RECOGNISED_TIME: Duration = Duration::from_secs(120);

/// Who opened or accepted a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowOwner {
    /// The systemd unit, or the last part of the path of another control group.
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
/// Limits: [`PLACES_MAX`] destinations and ports, [`NAMES_MAX`] addresses with a name,
/// [`CONNECTIONS_MAX`] connections that are recognised when they are reported again. Connections
/// beyond a limit are counted in [`LearntTraffic::left_out`].
#[derive(Debug, Default)]
pub struct LearntTraffic {
    places: BTreeMap<PlaceKey, LearntPlace>,
    /// The name that was looked up last, by address.
    names: HashMap<IpAddr, String>,
    /// The connections that are counted, with the times of their last reports.
    known: HashMap<FlowId, Instant>,
    left_out: u64,
}

/// What identifies a connection while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowId {
    protocol: Protocol,
    local: SocketAddr,
    remote: SocketAddr,
}

impl LearntTraffic {
    /// Records the addresses that a DNS server has sent for a name. Names that cannot stand in a
    /// policy are left out.
    pub fn take_names(&mut self, name: &str, addresses: &[IpAddr]) {
        let Some(name) = remote_name(name) else { return };
        for address in addresses {
            if self.names.len() < NAMES_MAX || self.names.contains_key(address) {
                self.names.insert(address.to_canonical(), name.clone());
            }
        }
    }

    /// Whether the connection is counted already. It is then recognised for longer.
    pub fn recognises(&mut self, flow: &LearntFlow, now: Instant) -> bool {
        let known = self.known.get_mut(&FlowId::of(flow));
        known.map(|reported| *reported = now).is_some()
    }

    /// Counts a connection, unless it is counted already. Connections within the host and their
    /// addresses are left out.
    pub fn count(&mut self, flow: LearntFlow, now: Instant) {
        let is_within = flow.remote.ip().is_loopback() || flow.remote.ip() == flow.local.ip();
        if is_within || self.recognises(&flow, now) {
            return;
        }
        let key = self.key(&flow);
        let is_full = self.places.len() >= PLACES_MAX && !self.places.contains_key(&key);
        if is_full || self.known.len() >= CONNECTIONS_MAX {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        self.known.insert(FlowId::of(&flow), now);
        self.places.entry(key).or_default().add(&flow);
    }

    /// Records that a server has begun TLS.
    pub fn note_tls(&mut self, server: SocketAddr, client: SocketAddr) {
        let flow = |direction, local, remote| LearntFlow {
            direction,
            protocol: Protocol::Tcp,
            local,
            remote,
            owner: None,
        };
        let ours =
            [flow(Direction::Outbound, client, server), flow(Direction::Inbound, server, client)];
        for flow in ours {
            if !self.known.contains_key(&FlowId::of(&flow)) {
                continue;
            }
            let key = self.key(&flow);
            if let Some(place) = self.places.get_mut(&key) {
                place.tls = (place.tls + 1).min(place.connections);
            }
        }
    }

    /// Forgets connections that have not been reported for some time, so that later ones with the
    /// same addresses are counted.
    pub fn expire(&mut self, now: Instant) {
        let is_recent = |reported: Instant| now.duration_since(reported) < RECOGNISED_TIME;
        self.known.retain(|_, reported| is_recent(*reported));
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
                let name = self.names.get(&address).filter(|_| flow.protocol == Protocol::Tcp);
                let host = name.cloned().unwrap_or_else(|| address.to_string());
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

    #[test]
    fn connections_are_counted_once_by_the_name_that_was_looked_up() {
        let mut traffic = LearntTraffic::default();
        let now = Instant::now();
        traffic.take_names("DB.example.", &["10.7.0.3".parse().unwrap()]);
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
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        traffic.note_tls(at("10.7.0.3:443"), at("10.0.0.1:40000"));
        traffic.note_tls(at("10.7.0.3:443"), at("10.0.0.1:50000"));
        traffic.note_tls(at("10.0.0.1:443"), at("10.9.0.1:5000"));
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
        for port in 0..=u16::try_from(PLACES_MAX).unwrap() {
            traffic.count(outbound(40_000, &format!("10.7.0.3:{port}")), now);
        }
        assert_eq!((traffic.places().count(), traffic.left_out()), (PLACES_MAX, 1));
        for last in 0..20_u8 {
            let owner = FlowOwner { user: Some(last.to_string()), ..FlowOwner::default() };
            let mut one = flow(Direction::Inbound, "10.0.0.1:443", &format!("10.9.0.{last}:1"));
            one.owner = Some(owner);
            // The table of places is full.
            traffic.places.entry(traffic.key(&one)).or_default().add(&one);
        }
        let place = traffic.places().last().unwrap().1;
        assert_eq!((place.addresses.len(), place.owners.len()), (ADDRESSES_MAX, OWNERS_MAX));
        assert!(place.has_more_addresses && place.has_more_owners && place.connections == 20);
    }
}
