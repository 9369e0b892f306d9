//! The rule of a flow whose address has several names, or an alias that stands for nothing.
//!
//! The host's own file may give an address several names: no alias is possible there, because
//! programs read the file themselves.

use std::sync::Arc;

use tacit_core::dns::is_alias;
use tacit_core::flow::{Direction, Flow};
use tacit_core::policy::Verify;

use super::{Live, LiveAction, LiveRule};

impl Live {
    /// The rule that decides a flow of a program or a client; `None` is a deny. Of several names
    /// the flow keeps those that fall under the strictest rule: deny, TLS that is verified, TLS
    /// that is not, permit. Two TLS rules of equal strictness refuse the flow.
    #[must_use]
    pub fn decide(&self, flow: &mut Flow) -> Option<&Arc<LiveRule>> {
        let is_reserved = flow.remote.ip().is_some_and(is_alias);
        if flow.direction == Direction::Outbound && flow.listen.is_none() && is_reserved {
            return None;
        }
        if flow.remote_names.len() < 2 {
            return self.lookup(flow);
        }
        let mut strictest: Option<(&Arc<LiveRule>, Vec<String>)> = None;
        let mut is_clear = true;
        let mut one = flow.clone();
        for name in &flow.remote_names {
            one.remote_names = vec![name.clone()];
            // A name that no rule matches opens nothing; it is another word for the host.
            let Some(rule) = self.lookup(&one) else { continue };
            match &mut strictest {
                Some((found, names)) if Arc::ptr_eq(found, rule) => names.push(name.clone()),
                Some((found, _)) if strictness(found) > strictness(rule) => {}
                Some((found, _)) if strictness(found) == strictness(rule) => is_clear = false,
                _ => (is_clear, strictest) = (true, Some((rule, vec![name.clone()]))),
            }
        }
        let (rule, names) = strictest.filter(|_| is_clear)?;
        flow.remote_names = names;
        Some(rule)
    }
}

fn strictness(rule: &LiveRule) -> u8 {
    match &rule.action {
        LiveAction::Permit => 0,
        LiveAction::Tls(_) if is_unverified(rule) => 1,
        LiveAction::Tls(_) => 2,
        LiveAction::Deny(_) => 3,
    }
}

fn is_unverified(rule: &LiveRule) -> bool {
    matches!(
        &rule.rule.action,
        tacit_core::policy::Action::Tls(tacit_core::policy::Tls::Client(tls))
            if !matches!(tls.verify, Verify::Full { .. })
    )
}
