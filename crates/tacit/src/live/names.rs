//! Selects the rule for a flow whose destination address has several DNS names. If the names match
//! different rules, the strictest of these rules applies.
//!
//! An *alias* is an address that tacit assigns to only one DNS name. So a flow to an alias never
//! has several names. Programs under `tacit run` usually connect to aliases. A name in `/etc/hosts`
//! has no alias, because programs read this file themselves. With `aliases = "never"` and with
//! `tacit agent --host`, tacit assigns no aliases.

use std::sync::Arc;

use tacit_core::flow::{Direction, Flow};
use tacit_core::policy::{HostSettings, Unmatched, Verify};
use tacit_core::refusal::RefusalReason;

use super::{Live, LiveAction, LiveRule};

/// Why no rule decides a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRule {
    /// No rule matches.
    NoMatch,
    /// Several names have the address, and their rules cannot be ordered.
    Ambiguous,
    /// The address is in an alias range and is not assigned to a name.
    NoAlias,
    /// The address is the run's own, and none of its programs listens there.
    NoListener,
}

impl NoRule {
    /// Returns the reason as displays show it.
    #[must_use]
    pub fn why(self) -> RefusalReason {
        match self {
            Self::NoMatch => RefusalReason::NoRule,
            Self::Ambiguous => RefusalReason::Ambiguous,
            Self::NoAlias => RefusalReason::NoAlias,
            Self::NoListener => RefusalReason::NoListener,
        }
    }
}

impl Live {
    /// Whether a flow that no rule matches is permitted, which is possible on a captured host.
    fn permits_unmatched(&self, flow: &Flow) -> bool {
        let permits = |host: &HostSettings| host.unmatched_in_effect() == Unmatched::Permit;
        flow.is_of_host() && self.policy.host.as_ref().is_some_and(permits)
    }

    /// Finds the rule that decides about a flow of a program or a client. If the address has
    /// several names, the strictest of their rules decides, and the flow keeps only the names for
    /// which this rule applies. The order of strictness is: deny, TLS with verification, TLS
    /// without verification, permit.
    ///
    /// # Errors
    /// The flow is denied: no rule matches, or two rules are equally strict, or DNS returned the
    /// address for several names and one of them has no rule or a TLS rule would require different
    /// servers. No rule counts as a permit if the host permits unmatched flows.
    pub fn decide(&self, flow: &mut Flow) -> Result<&Arc<LiveRule>, NoRule> {
        let aliases = self.policy.agent.aliases;
        // Programs of a host get no aliases.
        let is_reserved =
            !flow.is_of_host() && flow.remote.ip().is_some_and(|ip| aliases.reserves(ip));
        if flow.direction == Direction::Outbound && flow.listen.is_none() && is_reserved {
            return Err(NoRule::NoAlias);
        }
        if flow.remote_names.len() < 2 {
            return self.lookup(flow).ok_or(NoRule::NoMatch);
        }
        let mut strictest: Option<(&Arc<LiveRule>, Vec<String>)> = None;
        let mut is_clear = true;
        let mut one = flow.clone();
        for name in &flow.remote_names {
            one.remote_names = vec![name.clone()];
            let Some(rule) = self.lookup(&one) else {
                // If the name is from `/etc/hosts`, it is only another name of the host, and needs
                // no rule. If it may be a name from DNS, the program may mean this name.
                is_clear &= !flow.is_shared || self.permits_unmatched(flow);
                continue;
            };
            match &mut strictest {
                Some((found, names)) if Arc::ptr_eq(found, rule) => names.push(name.clone()),
                Some((found, _)) if strictness(found) > strictness(rule) => {}
                Some((found, _)) if strictness(found) == strictness(rule) => {
                    is_clear &= strictness(rule) == DENY;
                }
                _ => strictest = Some((rule, vec![name.clone()])),
            }
        }
        let (rule, names) = strictest.ok_or(NoRule::NoMatch)?;
        let is_one_server = names.len() == 1 || !flow.is_shared || !asks_for_names(rule);
        if strictness(rule) != DENY && !(is_clear && is_one_server) {
            return Err(NoRule::Ambiguous);
        }
        flow.remote_names = names;
        Ok(rule)
    }
}

/// The strictness of a deny.
const DENY: u8 = 3;

/// Whether the server name in the handshake is the name that the program has resolved.
fn asks_for_names(rule: &LiveRule) -> bool {
    match &rule.rule.action {
        tacit_core::policy::Action::Tls(tacit_core::policy::Tls::Client(tls)) => {
            let (Verify::Full { server_name, .. }
            | Verify::Chain { server_name, .. }
            | Verify::None { server_name }) = &tls.verify;
            server_name.is_none()
        }
        _ => false,
    }
}

fn strictness(rule: &LiveRule) -> u8 {
    match &rule.action {
        LiveAction::Permit => 0,
        LiveAction::Tls(_) if is_unverified(rule) => 1,
        LiveAction::Tls(_) => 2,
        LiveAction::Deny(_) => DENY,
    }
}

fn is_unverified(rule: &LiveRule) -> bool {
    matches!(
        &rule.rule.action,
        tacit_core::policy::Action::Tls(tacit_core::policy::Tls::Client(tls))
            if !matches!(tls.verify, Verify::Full { .. })
    )
}
