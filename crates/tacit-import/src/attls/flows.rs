//! Which flows a rule is about, in the words of our policies.
//!
//! A direction is a rule of its own, and so is each port that programs listen on: what arrives at a
//! port must go on to the same.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use super::conditions::{End, show_ports};
use super::context::Context;
use super::effective::Effective;
use super::needs::MissingKey;
use super::words::Kind;
use crate::draft::{Keys, Toml, set};
use crate::finding::{Findings, Origin};
use tacit_core::flow::Direction;

/// Most ports of one rule that are listened at: each is a socket for each address.
pub const LISTEN_PORTS_MAX: usize = 64;

/// One way into a program, or all that it opens.
pub(super) struct Way {
    /// What is put behind the name of the rule.
    pub(super) suffix: String,
    direction: Direction,
    /// The conditions.
    pub(super) keys: Keys,
    /// Sockets that were made of addresses and ports of the rule; empty if a map says them.
    pub(super) listens: Vec<SocketAddr>,
}

impl Way {
    /// Puts the direction behind the name, for a rule of both.
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
    /// The ways of a rule in one direction; none where something is missing that was told.
    pub(super) fn ways(&mut self, rule: &Effective<'_>, direction: Direction) -> Vec<Way> {
        let Some(mut owner) = self.owner(rule) else { return Vec::new() };
        if direction == Direction::Inbound && !self.drop_program(rule, &mut owner) {
            return Vec::new();
        }
        let shared = self.shared(rule, owner);
        match direction {
            Direction::Inbound => self.inbound(rule, &shared),
            Direction::Outbound => vec![self.outbound(rule, shared)],
        }
    }

    /// The conditions of both directions.
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
        if rule.remote.addresses.is_empty() && self.map.rule(name, "remote").is_none() {
            let message = "the rule matched connections to this host itself too; here a rule does \
                           only where it names them";
            let fix = format!(
                "if they are meant, say in the map file:\n[rule.{}]\n\
                 remote = [\"0.0.0.0/0\", \"::/0\", \"loopback\"]",
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
                let why = format!("rule `{name}` does not say where its program listens");
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

    /// Addresses and ports to listen at, from those of the rule.
    fn listens(&mut self, rule: &Effective<'_>) -> Option<Ends> {
        let name = rule.rule.name.as_str();
        let End { addresses, ports } = &rule.local;
        let at = &rule.rule.at;
        let line = |port: &str| format!("listen = [\"0.0.0.0:{port}\", \"[::]:{port}\"]");
        if ports.is_empty() {
            let why = format!("rule `{name}` is about what is accepted, and says no local port");
            let lines = format!("{}\nlocal-ports = 8080", line("8080"));
            self.needs.rule(MissingKey { rule: name, key: "listen" }, at, why, lines);
            return None;
        }
        let count: usize = ports.iter().map(ExactSizeIterator::len).sum();
        if count > LISTEN_PORTS_MAX {
            let why = format!(
                "rule `{name}` has {count} local ports, and at most {LISTEN_PORTS_MAX} are \
                 listened at"
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
                        "rule `{name}` accepts at {address}, and only single addresses can be \
                         listened at"
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

    /// Who accepts a connection is not known when its rule is chosen: leaves the program out; false
    /// after an error.
    fn drop_program(&mut self, rule: &Effective<'_>, owner: &mut Keys) -> bool {
        let count = owner.len();
        owner.retain(|(key, _)| key != "program");
        if owner.len() == count {
            return true;
        }
        let at = rule.rule.said("Jobname").map_or(&rule.rule.at, |field| &field.at);
        let group = rule.action(Kind::Group).and_then(|group| group.said("TTLSEnabled"));
        if group.is_some_and(|enabled| enabled.value == "On") {
            let message = "what others open is for whichever program of the run listens there: \
                           programs that accept are not told apart";
            self.findings.changed(at, message, "see that no other one listens at that port");
            return true;
        }
        let message = "what others open would go in clear to any program that listens there: \
                       programs that accept are not told apart";
        let fix = "remove the job name, if that is meant, or the rule";
        self.findings.error(at, message, fix);
        false
    }

    /// Programs and users, from the job name, the user ID and the map.
    fn owner(&mut self, rule: &Effective<'_>) -> Option<Keys> {
        let name = rule.rule.name.as_str();
        let mut program = self.map.rule(name, "program").cloned();
        let mut user = self.map.rule(name, "user").cloned();
        let mut complete = true;
        if let Some(field) = rule.rule.said("Jobname")
            && program.is_none()
        {
            match self.map.job(&field.value) {
                _ if user.is_some() => {
                    let message = "the rule is for every program of the user that the map says: \
                                   its job name is not looked at";
                    let fix = "say `program` of the rule in the map too";
                    self.findings.changed(&field.at, message, fix);
                }
                Some(job) => {
                    program = job.program.clone();
                    user = job.user.clone();
                    if program.is_none() && user.is_none() {
                        let message = "the rule is for every program of a run: its job name is any";
                        let fix = "name a program for the job in the map";
                        self.findings.changed(&field.at, message, fix);
                    }
                }
                None => {
                    self.needs.job(&field.value, &field.at);
                    complete = false;
                }
            }
        }
        if let Some(field) = rule.rule.said("Userid")
            && self.map.rule(name, "user").is_none()
        {
            match (self.map.user(&field.value).cloned(), &user) {
                (Some(mapped), Some(of_job)) if mapped != *of_job => {
                    let message = "the map gives the job name and the user ID different users";
                    self.findings.error(
                        &field.at,
                        message,
                        "give them the same, or one of them none",
                    );
                    complete = false;
                }
                (Some(mapped), _) => user = Some(mapped),
                (None, _) => {
                    self.needs.user(&field.value, &field.at);
                    complete = false;
                }
            }
        }
        let mut owner = Keys::new();
        if let Some(program) = program {
            set(&mut owner, "program", program);
        }
        if let Some(user) = user {
            set(&mut owner, "user", user);
        }
        complete.then_some(owner)
    }
}

/// Addresses and ports to listen at, each address with each port.
struct Ends {
    ips: Vec<IpAddr>,
    ports: Vec<u16>,
}

/// The sockets of a rule.
pub(super) struct Listening<'a> {
    /// Where the rule stands.
    pub(super) at: &'a Origin,
    pub(super) sockets: &'a [SocketAddr],
}

/// Reports addresses that cannot be listened at beside each other.
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
                "port {} cannot be listened at on {} and on every address: that is what the rule \
                 at {} asks for",
                socket.port(),
                socket.ip(),
                wide.at
            );
            let fix = "say `listen` of both in the map file, with an address for each";
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
