//! Where a service connects to: `connect`, once or several times, and `failover`.
//!
//! stunnel begins with the first target, or with the next one (`failover = rr`), and tries each for
//! `TIMEOUTconnect` until one answers. A rule does the same, and remembers which did not.

use tacit_core::failover::TARGET_SKIPPED;
use tacit_core::policy::{TARGETS_MAX, TargetOrder};

use super::endpoint::Endpoint;
use super::lines::Entry;
use super::service::{Keys, ServiceRole, StunnelService, Switch};
use crate::finding::Findings;

/// The targets of a service; one at least.
pub(super) struct Targets {
    first: Endpoint,
    others: Vec<Endpoint>,
    order: TargetOrder,
}

impl Targets {
    /// Reads them; `None` after an error was reported.
    pub(super) fn read(
        service: &StunnelService<'_>,
        role: ServiceRole,
        findings: &mut Findings,
    ) -> Option<Self> {
        let name = &service.section.name;
        let entries = service.all("connect");
        let Some((first, others)) = entries.split_first() else {
            let message = format!("service `{name}` has no `connect`");
            let fix = "say where it connects to: connect = HOST:PORT";
            findings.error(&service.section.at, message, fix);
            return None;
        };
        let mut read = Self {
            first: Endpoint::read(first, findings)?,
            others: Vec::new(),
            order: order(service, findings)?,
        };
        for entry in others {
            let endpoint = Endpoint::read(entry, findings)?;
            if read.all().any(|known| *known == endpoint) {
                let message = format!("`connect = {}` stands there twice", entry.value);
                findings.changed(&entry.at, message, "it counts once: remove one");
                continue;
            }
            read.others.push(endpoint);
        }
        match others.first() {
            Some(second) if !read.others.is_empty() => {
                read.tell(service, role, second, findings)?
            }
            _ => read.tell_one(service, findings),
        }
        Some(read)
    }

    /// In their order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Endpoint> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// As a rule's `connect` writes each.
    pub(super) fn connect(&self) -> Vec<String> {
        self.all().map(Endpoint::connect).collect()
    }

    /// `connect` and `order` of the rule.
    pub(super) fn keys(&self) -> Keys {
        let mut keys: Keys = vec![("connect", self.connect().into())];
        if self.count() > 1 && self.order != TargetOrder::default() {
            keys.push(("order", self.order.word().into()));
        }
        keys
    }

    /// The first to which bytes leave this host.
    pub(super) fn off_host(&self) -> Option<&Endpoint> {
        self.all().find(|endpoint| !endpoint.stays_on_host())
    }

    /// The target that decides what is known of the servers' name: one that has none, or the first.
    pub(super) fn nameless_or_first(&self) -> &Endpoint {
        self.all().find(|endpoint| endpoint.host().is_none()).unwrap_or(&self.first)
    }

    /// Whether they are called differently.
    pub(super) fn have_different_hosts(&self) -> bool {
        self.all().any(|endpoint| endpoint.host() != self.first.host())
    }

    /// Reports how several targets are not what they were.
    fn tell(
        &self,
        service: &StunnelService<'_>,
        role: ServiceRole,
        second: &Entry,
        findings: &mut Findings,
    ) -> Option<()> {
        let name = &service.section.name;
        let count = self.count();
        if count > TARGETS_MAX {
            let message = format!("service `{name}` connects to {count} addresses");
            let fix = format!("keep {TARGETS_MAX}, or give several of them one name");
            findings.error(&second.at, message, fix);
            return None;
        }
        let seconds = TARGET_SKIPPED.as_secs();
        let message = format!(
            "of the targets of service `{name}`, one that does not answer is skipped for \
             {seconds} s, where each connection tried it before"
        );
        findings.changed(&second.at, message, "see `connect` in tacit.toml(5)");
        if self.order == TargetOrder::RoundRobin && role == ServiceRole::Server {
            let message = format!(
                "service `{name}` sends a client that resumes its session to the next target too"
            );
            let fix = "remove `failover = rr`, if clients must stay with one target";
            findings.changed(&second.at, message, fix);
        }
        Some(())
    }

    /// The same of one: stunnel knows the addresses of a name as several targets.
    fn tell_one(&self, service: &StunnelService<'_>, findings: &mut Findings) {
        let is_name = self
            .first
            .host()
            .is_some_and(|host| host != "localhost" && host.parse::<std::net::IpAddr>().is_err());
        if self.order == TargetOrder::RoundRobin
            && is_name
            && let Some(failover) = service.last("failover")
        {
            let message = "`failover = rr`: the addresses of one name are tried in the order in \
                           which the resolver names them";
            let fix = "write each address, or a name for each, in a `connect` of its own";
            findings.changed(&failover.at, message, fix);
        }
    }
}

/// Which target comes first; `None` after an error was reported.
fn order(service: &StunnelService<'_>, findings: &mut Findings) -> Option<TargetOrder> {
    let Some(entry) = service.last("failover") else { return Some(TargetOrder::First) };
    let order = match entry.value.to_ascii_lowercase().as_str() {
        "prio" => TargetOrder::First,
        "rr" => TargetOrder::RoundRobin,
        other => {
            let message = format!("`failover = {other}` is neither rr nor prio");
            findings.error(&entry.at, message, "write `rr` or `prio`");
            return None;
        }
    };
    let is_delayed = service.switch("delay", Switch::No, findings)? == Switch::Yes;
    if is_delayed && order == TargetOrder::RoundRobin {
        let message = "`failover = rr` has no effect beside `delay = yes`, as before";
        findings.info(&entry.at, message);
        return Some(TargetOrder::First);
    }
    Some(order)
}
