//! Converts the targets of a stunnel service: the options `connect` and `failover`.
//!
//! For each connection, stunnel tries the targets in order until one answers. With `failover = rr`,
//! each connection starts with the next target. tacit uses the same order, with one difference: if
//! a target did not answer, tacit skips it for some seconds.

use tacit_core::failover::TARGET_SKIPPED;
use tacit_core::policy::{TARGETS_MAX, TargetOrder};

use super::endpoint::Endpoint;
use super::lines::Entry;
use super::service::{Keys, ServiceRole, StunnelService, Switch};
use crate::finding::Findings;

/// The targets of a service; at least one.
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
            let fix = "set the address: connect = HOST:PORT";
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
                let message = format!("`connect = {target}` is set twice", target = entry.value);
                findings.changed(
                    &entry.at,
                    message,
                    "remove one of the two lines: the import ignores the second one",
                );
                continue;
            }
            read.others.push(endpoint);
        }
        match others.first() {
            Some(second) if !read.others.is_empty() => {
                read.report_several(service, role, second, findings)?
            }
            _ => read.report_single(service, findings),
        }
        Some(read)
    }

    /// All targets, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Endpoint> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The number of targets.
    pub(super) fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// The targets as a rule's `connect` writes them.
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

    /// The first target that is not on this host.
    pub(super) fn off_host(&self) -> Option<&Endpoint> {
        self.all().find(|endpoint| !endpoint.stays_on_host())
    }

    /// The target that decides whether the server's name is known: one without a name, or the
    /// first.
    pub(super) fn nameless_or_first(&self) -> &Endpoint {
        self.all().find(|endpoint| endpoint.host().is_none()).unwrap_or(&self.first)
    }

    /// Whether the targets have different hosts.
    pub(super) fn have_different_hosts(&self) -> bool {
        self.all().any(|endpoint| endpoint.host() != self.first.host())
    }

    /// Reports how a rule treats several targets differently from stunnel.
    fn report_several(
        &self,
        service: &StunnelService<'_>,
        role: ServiceRole,
        second: &Entry,
        findings: &mut Findings,
    ) -> Option<()> {
        let name = &service.section.name;
        let count = self.count();
        if count > TARGETS_MAX {
            let message = format!(
                "service `{name}` connects to {count} addresses, but the limit is {TARGETS_MAX}"
            );
            let fix = format!(
                "keep {TARGETS_MAX} of the addresses, or use a host name that has several addresses"
            );
            findings.error(&second.at, message, fix);
            return None;
        }
        let seconds = TARGET_SKIPPED.as_secs();
        let message = format!(
            "if a target does not answer, service `{name}` skips the target for {seconds} s; \
             stunnel tried the target again for each connection"
        );
        findings.changed(&second.at, message, "see `connect` in tacit.toml(5)");
        if self.order == TargetOrder::RoundRobin && role == ServiceRole::Server {
            let message = format!(
                "when a client resumes its TLS session, service `{name}` may connect the client to \
                 another target"
            );
            let fix = "remove `failover = rr` if clients must stay with one target";
            findings.changed(&second.at, message, fix);
        }
        Some(())
    }

    /// The same for one target: stunnel treats each address of a name as a target.
    fn report_single(&self, service: &StunnelService<'_>, findings: &mut Findings) {
        let is_name = self
            .first
            .host()
            .is_some_and(|host| host != "localhost" && host.parse::<std::net::IpAddr>().is_err());
        if self.order == TargetOrder::RoundRobin
            && is_name
            && let Some(failover) = service.last("failover")
        {
            let message = "`failover = rr` does not apply to the addresses of one host name: tacit \
                           tries these addresses in the order in which the resolver returns them";
            let fix = "write a `connect` line for each address";
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
        let message = "as in stunnel, `failover = rr` has no effect with `delay = yes`";
        findings.info(&entry.at, message);
        return Some(TargetOrder::First);
    }
    Some(order)
}
