//! Converts the conditions of an AT-TLS rule to conditions of tacit rules.
//!
//! An AT-TLS rule for both directions becomes two tacit rules, one for each direction. An inbound
//! tacit rule passes all its connections to one port of the program. So an inbound AT-TLS rule with
//! several local ports becomes one tacit rule for each port. On a captured host (`tacit agent
//! --host`), one tacit rule is enough for all ports, because the program itself listens on these
//! ports.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use super::conditions::{End, show_ports};
use super::context::Context;
use super::effective::Effective;
use super::needs::MissingKey;
use super::owners;
use crate::draft::{Keys, Toml, set};
use crate::finding::{Findings, Origin};
use tacit_core::flow::Direction;

/// Most ports of one rule on which the policy listens: each needs a socket for each address.
pub const LISTEN_PORTS_MAX: usize = 64;

/// The selectors of one rule of the policy.
pub(super) struct Way {
    /// The suffix of the rule's name.
    pub(super) suffix: String,
    direction: Direction,
    /// The selectors, as keys.
    pub(super) keys: Keys,
    /// The sockets that result from addresses and ports of the rule; empty if the map file sets
    /// `listen`.
    pub(super) listens: Vec<SocketAddr>,
}

impl Way {
    /// Adds the direction to the suffix, for a rule of both directions.
    pub(super) fn add_direction(&mut self) {
        self.suffix.insert_str(0, &format!("-{}", word(self.direction)));
    }
}

fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Inbound => "inbound",
        Direction::Outbound => "outbound",
    }
}

impl Context<'_> {
    /// The selectors of a rule in one direction; empty if a missing map entry was reported.
    pub(super) fn ways(&mut self, rule: &Effective<'_>, direction: Direction) -> Vec<Way> {
        let Some(owners) = self.owners(rule, direction) else { return Vec::new() };
        let mut ways = Vec::new();
        for owner in owners {
            let shared = self.shared(rule, owner);
            match direction {
                Direction::Inbound if self.options.host => {
                    ways.extend(self.inbound_of_host(rule, shared));
                }
                Direction::Inbound => ways.extend(self.inbound(rule, &shared)),
                Direction::Outbound => ways.push(self.outbound(rule, shared)),
            }
        }
        ways
    }

    /// The selectors that both directions have.
    fn shared(&self, rule: &Effective<'_>, owner: Keys) -> Keys {
        let mut shared = Keys::new();
        match self.map.rule(&rule.rule.name, "remote") {
            Some(remote) => set(&mut shared, "remote", remote.clone()),
            None if rule.remote.addresses.is_empty() => {}
            None => set(&mut shared, "remote", rule.remote.addresses.clone()),
        }
        if !rule.remote.ports.is_empty() {
            set(&mut shared, "remote-ports", port_list(&rule.remote.ports));
        }
        shared.extend(owner);
        if let Some(when) = &rule.when {
            set(&mut shared, "when", when.clone());
        }
        shared
    }

    fn outbound(&mut self, rule: &Effective<'_>, shared: Keys) -> Way {
        let name = rule.rule.name.as_str();
        if self.options.host {
            let message = "on z/OS the rule also matched connections from this host to itself; \
                           tacit does not capture these connections";
            let fix = "for connections within this host, add forwarding rules to the policy";
            self.findings.changed(&rule.rule.at, message, fix);
        } else if rule.remote.addresses.is_empty() && self.map.rule(name, "remote").is_none() {
            let message = "on z/OS the rule also matched connections from this host to itself; a \
                           tacit rule without `remote` does not match connections to loopback \
                           addresses";
            let fix = format!(
                "to match connections from this host to itself, add to the map \
                 file:\n[rule.{}]\nremote = [\"0.0.0.0/0\", \"::/0\", \"loopback\"]",
                crate::draft::word(name)
            );
            self.findings.changed(&rule.rule.at, message, fix);
        }
        let mut keys = Keys::new();
        set(&mut keys, "direction", word(Direction::Outbound));
        if !rule.local.addresses.is_empty() {
            set(&mut keys, "local", rule.local.addresses.clone());
        }
        if !rule.local.ports.is_empty() {
            set(&mut keys, "local-ports", port_list(&rule.local.ports));
        }
        keys.extend(shared);
        let direction = Direction::Outbound;
        Way { suffix: String::new(), direction, keys, listens: Vec::new() }
    }

    fn inbound_of_host(&mut self, rule: &Effective<'_>, shared: Keys) -> Option<Way> {
        let name = rule.rule.name.as_str();
        let own = (!rule.local.ports.is_empty()).then(|| port_list(&rule.local.ports));
        let Some(ports) = self.map.rule(name, "local-ports").cloned().or(own) else {
            let why = format!("rule `{name}` does not set the port on which the program listens");
            let key = MissingKey { rule: name, key: "local-ports" };
            self.needs.rule(key, &rule.rule.at, why, "local-ports = 8080");
            return None;
        };
        let is_all = |address: &String| ["0.0.0.0/0", "::/0"].contains(&address.as_str());
        if !rule.local.addresses.iter().all(is_all) {
            let message = "tacit captures connections to all addresses of this host, so the rule \
                           applies to all of these addresses";
            let fix = "remove the local addresses, or run the import without --host";
            let at = &rule.rule.at;
            if owners::is_protected(rule) {
                self.findings.changed(at, message, fix);
            } else {
                self.findings.error(
                    at,
                    format!(
                        "{message}. In tacit, the rule would permit unencrypted connections to \
                         these addresses"
                    ),
                    fix,
                );
            }
        }
        let mut keys = Keys::new();
        set(&mut keys, "direction", word(Direction::Inbound));
        set(&mut keys, "local-ports", ports);
        keys.extend(shared);
        let direction = Direction::Inbound;
        Some(Way { suffix: String::new(), direction, keys, listens: Vec::new() })
    }

    fn inbound(&mut self, rule: &Effective<'_>, shared: &Keys) -> Vec<Way> {
        let name = rule.rule.name.as_str();
        let mapped = self.map.rule(name, "local-ports").cloned();
        let way = |suffix, listen: Toml, ports: Toml, listens| {
            let mut keys = Keys::new();
            set(&mut keys, "direction", word(Direction::Inbound));
            set(&mut keys, "listen", listen);
            set(&mut keys, "local-ports", ports);
            keys.extend_from_slice(shared);
            Way { suffix, direction: Direction::Inbound, keys, listens }
        };
        if let Some(listen) = self.map.rule(name, "listen") {
            let own = (!rule.local.ports.is_empty()).then(|| port_list(&rule.local.ports));
            let Some(ports) = mapped.or(own) else {
                let why =
                    format!("rule `{name}` does not set the port on which the program listens");
                let key = MissingKey { rule: name, key: "local-ports" };
                self.needs.rule(key, &rule.rule.at, why, "local-ports = 8080");
                return Vec::new();
            };
            return vec![way(String::new(), listen.clone(), ports, Vec::new())];
        }
        let Some(Ends { ips, ports }) = self.listens(rule) else { return Vec::new() };
        let one = ports.len() == 1;
        let each = |port: u16| {
            let listens: Vec<SocketAddr> =
                ips.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
            let listen: Vec<String> = listens.iter().map(SocketAddr::to_string).collect();
            let suffix = if one { String::new() } else { format!("-{port}") };
            let inside = mapped.clone().unwrap_or_else(|| port.into());
            way(suffix, listen.into(), inside, listens)
        };
        ports.into_iter().map(each).collect()
    }

    /// The addresses and ports to listen on, from those of the rule.
    fn listens(&mut self, rule: &Effective<'_>) -> Option<Ends> {
        let name = rule.rule.name.as_str();
        let End { addresses, ports } = &rule.local;
        let at = &rule.rule.at;
        let line = |port: &str| format!("listen = [\"0.0.0.0:{port}\", \"[::]:{port}\"]");
        if ports.is_empty() {
            let why = format!("rule `{name}` accepts connections, but has no local port");
            let lines = format!("{}\nlocal-ports = 8080", line("8080"));
            self.needs.rule(MissingKey { rule: name, key: "listen" }, at, why, lines);
            return None;
        }
        let count: usize = ports.iter().map(ExactSizeIterator::len).sum();
        if count > LISTEN_PORTS_MAX {
            let why = format!(
                "rule `{name}` has {count} local ports; an imported rule can listen on \
                 {LISTEN_PORTS_MAX} at most"
            );
            let first = ports.first().map_or(8080, |ports| *ports.start());
            let lines = format!("{}\nlocal-ports = {first}", line(&first.to_string()));
            self.needs.rule(MissingKey { rule: name, key: "listen" }, at, why, lines);
            return None;
        }
        let mut ips = Vec::new();
        for address in addresses {
            match (address.as_str(), address.parse::<IpAddr>()) {
                (_, Ok(ip)) => ips.push(ip),
                ("0.0.0.0/0", _) => ips.push(IpAddr::from([0; 4])),
                ("::/0", _) => ips.push(IpAddr::from([0; 16])),
                _ => {
                    let why = format!(
                        "rule `{name}` accepts connections at the addresses {address}, but tacit \
                         can listen only on single addresses or on all addresses"
                    );
                    let port = ports.first().map_or(8080, |ports| *ports.start());
                    let key = MissingKey { rule: name, key: "listen" };
                    self.needs.rule(key, at, why, line(&port.to_string()));
                    return None;
                }
            }
        }
        if ips.is_empty() {
            ips = vec![IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        }
        Some(Ends { ips, ports: ports.iter().cloned().flatten().collect() })
    }
}

/// The addresses and ports to listen on, each address with each port.
struct Ends {
    ips: Vec<IpAddr>,
    ports: Vec<u16>,
}

/// The sockets of a rule.
pub(super) struct Listening<'a> {
    /// The line of the rule.
    pub(super) at: &'a Origin,
    pub(super) sockets: &'a [SocketAddr],
}

/// Reports sockets that cannot exist at the same time.
pub(super) fn check_listens(rules: &[Listening<'_>], findings: &mut Findings) {
    for rule in rules {
        for socket in rule.sockets.iter().filter(|socket| !socket.ip().is_unspecified()) {
            let all = |other: &SocketAddr| {
                other.ip().is_unspecified()
                    && other.is_ipv4() == socket.is_ipv4()
                    && other.port() == socket.port()
            };
            let Some(wide) = rules.iter().find(|rule| rule.sockets.iter().any(all)) else {
                continue;
            };
            let message = format!(
                "this rule listens on port {port} of the address {address}, and the rule at \
                 {other} listens on the same port of all addresses; tacit cannot listen on both",
                port = socket.port(),
                address = socket.ip(),
                other = wide.at
            );
            let fix = "in the map file, set `listen` of both rules to different addresses";
            findings.error(rule.at, message, fix);
        }
    }
}

pub(super) fn port_list(ports: &[RangeInclusive<u16>]) -> Toml {
    let port = |ports: &RangeInclusive<u16>| {
        if ports.start() == ports.end() {
            Toml::from(*ports.start())
        } else {
            Toml::from(show_ports(ports))
        }
    };
    match ports {
        [one] => port(one),
        many => Toml::List(many.iter().map(port).collect()),
    }
}
