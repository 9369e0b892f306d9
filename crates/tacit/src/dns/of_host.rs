//! Handles the DNS queries of programs on a captured host (`tacit agent --host`). This module
//! decides which queries the policy permits, and records the names and addresses in the answers.
//!
//! The agent forwards each permitted query to the name server that the program selected. The answer
//! contains the real addresses of the name. If a rule matches the name, the kernel starts to
//! capture these addresses before the program gets the answer. Under `tacit run`, in contrast, a
//! program may get an alias (an address that stands for one name).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tacit_core::dns::{
    self, AnswerChain, DnsQuestion, HOST_TTL_MAX, ResolvedAddress, Verdict, is_nameable,
    open_verdict,
};
use tacit_core::flow::{Address, Direction, Flow, Protocol};
use tacit_core::policy::{HostSettings, UnknownOwner, Unmatched, can_match_address, may_ask};

use super::{Forwarder, PORT};
use crate::clock;
use crate::live::{LiveAction, LiveRule, NoRule};
use crate::log::{Event, EventCause};
use crate::run::Scope;
use crate::run::named::LearnError;

/// The types of records with addresses: A and AAAA.
const ADDRESS_V4: u16 = 1;
const ADDRESS_V6: u16 = 28;

impl Forwarder {
    /// Whether the agent answers the queries that a program sends to this destination. On a host it
    /// does so only if there are rules by name, and if the policy permits the program to connect to
    /// the resolver. In a joined namespace the agent asks its own resolvers instead: those of a
    /// container may be reachable only inside.
    #[must_use]
    pub fn answers(&self, protocol: Protocol, program: &Address, destination: SocketAddr) -> bool {
        if destination.port() != PORT {
            return false;
        }
        if !self.run().has_plan() {
            return true;
        }
        if self.capture.name_rules().is_none() {
            return false;
        }
        if self.run().is_joined() {
            return true;
        }
        let scope = Scope::of(std::sync::Arc::clone(&self.capture.run));
        let mut flow = Flow {
            direction: Direction::Outbound,
            protocol,
            listen: None,
            local: program.clone(),
            remote: destination.into(),
            remote_names: scope.destination(destination.ip()).names,
            alias: None,
            is_shared: false,
            program: None,
            user: scope.user().map(str::to_owned),
            group: None,
            cgroup: None,
            run: Some(scope.name().to_owned()),
            to_own_host: scope.has_host_address(destination.ip()),
            at_unix_s: clock::now_unix_s(),
        };
        let live = self.live.load();
        // The answer does not depend on the program that asks.
        if live.needs_owner(&flow) {
            let may_match = |rule: &LiveRule| {
                let selectors = &rule.rule.selectors;
                selectors.matches(&flow, UnknownOwner::Matches).is_ok()
            };
            let is_permit = |rule: &LiveRule| matches!(rule.action, LiveAction::Permit);
            return self.unmatched() == Unmatched::Permit
                || live.rules.iter().any(|rule| is_permit(rule) && may_match(rule));
        }
        match live.decide(&mut flow) {
            Ok(rule) => matches!(rule.action, LiveAction::Permit),
            Err(NoRule::NoMatch) => self.unmatched() == Unmatched::Permit,
            Err(_) => false,
        }
    }

    /// What happens to flows of the host that no rule matches.
    fn unmatched(&self) -> Unmatched {
        self.live
            .load()
            .policy
            .host
            .as_ref()
            .map_or(Unmatched::Deny, HostSettings::unmatched_in_effect)
    }

    /// Decides about a query of the host's programs.
    pub(super) fn verdict_of_host(&self, question: &DnsQuestion, search: &[String]) -> Verdict {
        if self.unmatched() == Unmatched::Permit {
            return open_verdict(question, |name| self.has_rules(name));
        }
        let live = self.live.load();
        let now = clock::now_unix_s();
        dns::verdict(
            question,
            search,
            |name| may_ask(&live.policy, name, now),
            |address| {
                let has_name = !self.run().destination(address).names.is_empty();
                has_name || can_match_address(&live.policy, address, now)
            },
        )
    }

    fn has_rules(&self, name: &str) -> bool {
        self.capture.name_rules().is_some_and(|rules| !rules.rules_of(name).is_empty())
    }

    /// Captures the addresses of names with rules: of the name in the question, and of those to
    /// which CNAME records lead, because a cache may use the addresses for these names too.
    /// `None`: the program must not get the answer.
    pub(super) async fn learn_of_host(
        &self,
        response: Vec<u8>,
        question: &DnsQuestion,
    ) -> Option<Vec<u8>> {
        let is_for_addresses = [ADDRESS_V4, ADDRESS_V6].contains(&question.kind);
        let Ok(AnswerChain { mut names, addresses }) = dns::chain(&response, question) else {
            if !is_for_addresses && !self.has_rules(&question.name) {
                return Some(response);
            }
            self.note_unreadable(question);
            return None;
        };
        names.retain(|name| self.has_rules(name));
        names.sort();
        names.dedup();
        if names.is_empty() {
            return Some(response);
        }
        let is_own = |address: IpAddr| is_of_this_host(address) || self.run().host.has(address);
        let mut found: BTreeMap<IpAddr, Duration> = BTreeMap::new();
        for ResolvedAddress { address, ttl } in addresses {
            let address = address.to_canonical();
            if is_nameable(address) && !is_own(address) {
                let longest = found.entry(address).or_default();
                *longest = ttl.max(*longest);
            }
        }
        let learnt: Vec<_> =
            found.iter().map(|(&address, &ttl)| ResolvedAddress { address, ttl }).collect();
        for name in &names {
            if let Err(error) = self.capture.learn_of_host(name, &learnt).await {
                self.note_not_learnt(name, &error);
                return None;
            }
        }
        // An address of this link would leave without capture.
        let may_have = |address| found.contains_key(&address) || is_own(address);
        let changed = dns::with_addresses(&response, may_have, HOST_TTL_MAX);
        changed.ok().map(|changed| changed.unwrap_or(response))
    }

    fn note_not_learnt(&self, name: &str, error: &LearnError) {
        let event = match error {
            LearnError::Kernel(_) => {
                Event::new("capture-failed").limited("capture-failed host".to_owned())
            }
            LearnError::NotLearnt(_) | LearnError::Full => {
                Event::new("name-not-learnt").limited("name-not-learnt host".to_owned())
            }
        };
        let event = event
            .caused_by(EventCause::Run(self.run().label()))
            .field("run", &self.capture.run.name)
            .field("name", &name);
        self.log.error(event.field("error", error));
    }
}

/// What a program opens there stays on this host.
fn is_of_this_host(address: IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified()
}
