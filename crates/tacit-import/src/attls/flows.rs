//! Which flows a rule is about, in the words of our policies.
//!
//! A direction is a rule of its own, and so is each port that programs listen on: what arrives at a
//! port must go on to the same.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::conditions::{End, show_ports};
use super::effective::Effective;
use super::tls::Context;
use super::words::Kind;
use crate::draft::{Item, Toml};

/// Most ports of one rule that are listened at: each is a socket for each address.
pub const LISTEN_PORTS_MAX: usize = 64;

/// One way into a program, or all that it opens.
pub(super) struct Way {
    /// What is put behind the name of the rule.
    pub(super) suffix: String,
    /// The conditions.
    pub(super) keys: Vec<(String, Toml)>,
    /// Addresses and port that were made of those of the rule; empty if a map says them.
    pub(super) listens: Vec<(IpAddr, u16)>,
}

impl Context<'_> {
    /// The ways of a rule in one direction; none where something is missing that was told.
    pub(super) fn ways(&mut self, rule: &Effective<'_>, is_inbound: bool, both: bool) -> Vec<Way> {
        let Some(mut owner) = self.owner(rule) else { return Vec::new() };
        if is_inbound && !self.drop_program(rule, &mut owner) {
            return Vec::new();
        }
        let mut shared = Vec::new();
        let name = rule.rule.name.as_str();
        match self.map.rule(name, "remote") {
            Some(remote) => shared.push(("remote".to_owned(), remote.clone())),
            None if rule.remote.addresses.is_empty() => {}
            None => shared.push(("remote".to_owned(), rule.remote.addresses.clone().into())),
        }
        if !rule.remote.ports.is_empty() {
            shared.push(("remote-ports".to_owned(), port_list(&rule.remote.ports)));
        }
        shared.extend(owner);
        shared.extend(rule.when.clone().map(|when| ("when".to_owned(), when)));
        let direction = if is_inbound { "inbound" } else { "outbound" };
        let base = vec![("direction".to_owned(), direction.into())];
        let suffix = if both { format!("-{direction}") } else { String::new() };
        if is_inbound {
            return self.inbound(rule, &base, &shared, &suffix);
        }
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
        let mut keys = base;
        if !rule.local.addresses.is_empty() {
            keys.push(("local".to_owned(), rule.local.addresses.clone().into()));
        }
        if !rule.local.ports.is_empty() {
            keys.push(("local-ports".to_owned(), port_list(&rule.local.ports)));
        }
        keys.extend(shared);
        vec![Way { suffix, keys, listens: Vec::new() }]
    }

    fn inbound(
        &mut self,
        rule: &Effective<'_>,
        base: &[(String, Toml)],
        shared: &[(String, Toml)],
        suffix: &str,
    ) -> Vec<Way> {
        let name = rule.rule.name.as_str();
        let ports = self.map.rule(name, "local-ports").cloned();
        let way = |suffix, listen: Toml, ports: Toml, listens| {
            let sockets = [("listen".to_owned(), listen), ("local-ports".to_owned(), ports)];
            let keys = [base, &sockets, shared].concat();
            Way { suffix, keys, listens }
        };
        if let Some(listen) = self.map.rule(name, "listen") {
            let ports = ports
                .or_else(|| (!rule.local.ports.is_empty()).then(|| port_list(&rule.local.ports)));
            let Some(ports) = ports else {
                let why = format!("rule `{name}` does not say where its program listens");
                self.needs.rule((name, "local-ports"), &rule.rule.at, why, "local-ports = 8080");
                return Vec::new();
            };
            return vec![way(suffix.to_owned(), listen.clone(), ports, Vec::new())];
        }
        let Some((ips, listened)) = self.listens(rule) else { return Vec::new() };
        let one = listened.len() == 1;
        let each = |port: u16| {
            let listens: Vec<(IpAddr, u16)> = ips.iter().map(|ip| (*ip, port)).collect();
            let shown =
                listens.iter().map(|(ip, port)| std::net::SocketAddr::new(*ip, *port).to_string());
            let listen: Vec<String> = shown.collect();
            let suffix = if one { suffix.to_owned() } else { format!("{suffix}-{port}") };
            let ports = ports.clone().unwrap_or_else(|| port.into());
            way(suffix, listen.into(), ports, listens)
        };
        listened.into_iter().map(each).collect()
    }

    /// Addresses and ports to listen at, from those of the rule.
    fn listens(&mut self, rule: &Effective<'_>) -> Option<(Vec<IpAddr>, Vec<u16>)> {
        let name = rule.rule.name.as_str();
        let End { addresses, ports } = &rule.local;
        let at = &rule.rule.at;
        let line = |port: &str| format!("listen = [\"0.0.0.0:{port}\", \"[::]:{port}\"]");
        if ports.is_empty() {
            let why = format!("rule `{name}` is about what is accepted, and says no local port");
            let line = format!("{}\nlocal-ports = 8080", line("8080"));
            self.needs.rule((name, "listen"), at, why, line);
            return None;
        }
        let count: usize = ports.iter().map(ExactSizeIterator::len).sum();
        if count > LISTEN_PORTS_MAX {
            let why = format!(
                "rule `{name}` has {count} local ports, and at most {LISTEN_PORTS_MAX} are \
                 listened at"
            );
            let first = ports.first().map_or(8080, |ports| *ports.start());
            let line = format!("{}\nlocal-ports = {first}", line(&first.to_string()));
            self.needs.rule((name, "listen"), at, why, line);
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
                    self.needs.rule((name, "listen"), at, why, line(&port.to_string()));
                    return None;
                }
            }
        }
        if ips.is_empty() {
            ips = vec![IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        }
        Some((ips, ports.iter().cloned().flatten().collect()))
    }

    /// Who accepts a connection is not known when its rule is chosen: leaves the program out; false
    /// after an error.
    fn drop_program(&mut self, rule: &Effective<'_>, owner: &mut Vec<(String, Toml)>) -> bool {
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
    fn owner(&mut self, rule: &Effective<'_>) -> Option<Vec<(String, Toml)>> {
        let name = rule.rule.name.as_str();
        let mut program = self.map.rule(name, "program").cloned();
        let mut user = self.map.rule(name, "user").cloned();
        let (job_field, user_field) = (rule.rule.said("Jobname"), rule.rule.said("Userid"));
        let mut complete = true;
        if let (Some(field), None, Some(_)) = (job_field, &program, &user) {
            let message = "the rule is for every program of the user that the map says: its job \
                           name is not looked at";
            self.findings.changed(&field.at, message, "say `program` of the rule in the map too");
        }
        if let (Some(field), None, None) = (job_field, &program, &user) {
            match self.map.job(&field.value) {
                Some(job) => {
                    (program, user) = (job.program.clone(), job.user.clone());
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
        if let (Some(field), None) = (user_field, self.map.rule(name, "user")) {
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
        let program = program.map(|program| ("program".to_owned(), program));
        let user = user.map(|user| ("user".to_owned(), user));
        complete.then(|| program.into_iter().chain(user).collect())
    }

    /// Reports addresses that cannot be listened at beside each other.
    pub(super) fn check_listens(&mut self, ways: &[(&Item, Vec<(IpAddr, u16)>)]) {
        for (item, listens) in ways {
            for (ip, port) in listens.iter().filter(|(ip, _)| !ip.is_unspecified()) {
                let all = |(any, other): &(IpAddr, u16)| {
                    any.is_unspecified() && any.is_ipv4() == ip.is_ipv4() && other == port
                };
                let Some((wide, _)) = ways.iter().find(|(_, listens)| listens.iter().any(all))
                else {
                    continue;
                };
                let message = format!(
                    "port {port} cannot be listened at on {ip} and on every address: that is what \
                     the rule at {} asks for",
                    wide.at
                );
                let fix = "say `listen` of both in the map file, with an address for each";
                self.findings.error(&item.at, message, fix);
            }
        }
    }
}

pub(super) fn port_list(ports: &[RangeInclusive<u16>]) -> Toml {
    let port = |ports: &RangeInclusive<u16>| {
        let (first, last) = (*ports.start(), *ports.end());
        if first == last { Toml::from(first) } else { show_ports(ports).into() }
    };
    match ports {
        [one] => port(one),
        many => Toml::List(many.iter().map(port).collect()),
    }
}
