//! Checks all open connections again: finds peers that tacit no longer trusts, and connections that
//! exceed `max-age` or `idle`.
//!
//! ```text
//!   policy or [trust.NAME] file changed  ──> check all trusted peers (Peers::All)
//!   a certificate expired                ──> check peers with an expired chain (Peers::Ended)
//!   a connection reaches max-age or idle ──> close this connection
//! ```
//!
//! The check runs on its own thread, so that no relay waits for it. A check verifies each distinct
//! certificate chain only once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_core::policy::{Action, RecheckAction as OnRejected};
use tacit_tls::PeerCheck;
use tacit_tls::recheck::{PeerRechecker, TrustedPeer};

use crate::clock;
use crate::live::{CredentialNames, Credentials, Live, LiveRule, TlsRole};
use crate::log::Log;

use super::account;
use super::record::{Closing, ConnectionRecord};
use super::table::ConnectionTable;

/// Connections end within the last tenth of their `max-age`, so that connections that were opened
/// together do not end together.
const AGE_SPREAD_PART: u32 = 10;

/// Which peers a pass checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// No peers.
    None,
    /// Peers with a chain that contains an expired certificate.
    Ended,
    /// All trusted peers.
    All,
}

/// One pass.
#[derive(Debug)]
pub struct Pass {
    /// The open connections.
    pub table: Arc<ConnectionTable>,
    /// The installed policy.
    pub live: Arc<Live>,
    /// Its credentials.
    pub credentials: Credentials,
    /// Policies that were replaced since the last pass.
    pub replaced: Vec<Arc<Live>>,
    /// Which peers it checks.
    pub peers: Peers,
    /// Whether it checks the ages of connections.
    pub ages: bool,
    /// The log.
    pub log: Log,
}

impl Pass {
    /// Runs the pass. Returns the time in which no connection can reach its `max-age` or `idle`;
    /// `None` if no connection has such a limit.
    #[must_use]
    pub fn run(self) -> Option<Duration> {
        self.replaced.iter().for_each(|before| self.live.mark_replaced(before));
        let records = self.table.snapshot();
        if self.peers != Peers::None {
            self.check_peers(&records);
        }
        if self.ages { self.close_due(&records) } else { None }
    }

    fn check_peers(&self, records: &[Arc<ConnectionRecord>]) {
        let now = clock::now_unix_s();
        let mut checks = Checks { pass: self, by_rule: HashMap::new() };
        let mut connections = 0;
        let mut rejected = 0;
        for record in records {
            let Some(tls) = record.tls.get().filter(|tls| tls.check.is_trusted()) else {
                continue;
            };
            let Some(peer) = &tls.trusted else { continue };
            let mut check = tls.check.clone();
            if self.peers == Peers::All || peer.chain.has_ended(now) {
                connections += 1;
                check = checks.check(record, peer).unwrap_or(check);
            }
            if check.is_rejected() {
                rejected += 1;
                self.reject(record, &check);
            } else if let Some(end) = peer.chain.next_end(now) {
                self.table.note_end(end);
            }
            if check != tls.check {
                record.tls.replace(&tls, super::TlsFacts { check, ..(*tls).clone() });
            }
        }
        if self.peers == Peers::All && connections > 0 {
            account::rechecked(&self.log, connections, checks.verified(), rejected);
        }
    }

    fn reject(&self, record: &ConnectionRecord, check: &PeerCheck) {
        let common = self.live.deciding(&record.rule).tls_common();
        let action = common.map_or(OnRejected::Log, |common| common.recheck);
        account::peer_rejected(&self.log, record, check, action);
        if action == OnRejected::Close {
            record.close_because(Closing::Untrusted);
        }
    }

    /// Closes connections that are too old or idle. Returns the time in which no connection can
    /// become so.
    fn close_due(&self, records: &[Arc<ConnectionRecord>]) -> Option<Duration> {
        let now = Instant::now();
        // The rules also apply to the connections that will be opened.
        let mut next = self.live.rules.iter().filter_map(|rule| shortest_time(rule)).min();
        for record in records {
            for (left, closing) in times_left(record, self.live.deciding(&record.rule), now) {
                if left.is_zero() {
                    record.close_because(closing);
                } else {
                    next = Some(next.map_or(left, |next| next.min(left)));
                }
            }
        }
        next
    }
}

fn max_age(rule: &LiveRule) -> Option<Duration> {
    rule.tls_common().and_then(|common| common.max_age)
}

/// The shortest time in which a connection of a rule can become due.
fn shortest_time(rule: &LiveRule) -> Option<Duration> {
    let age = max_age(rule).map(|max_age| max_age - max_age / AGE_SPREAD_PART);
    [age, rule.rule.idle].into_iter().flatten().min()
}

/// For each limit, the time for which a connection may continue, and the reason for which it is
/// closed then.
fn times_left(
    record: &ConnectionRecord,
    rule: &LiveRule,
    now: Instant,
) -> impl Iterator<Item = (Duration, Closing)> {
    let age = max_age(rule).map(|max_age| {
        let age = record.accepted.age(now);
        (age_limit(max_age, record.id).saturating_sub(age), Closing::Aged)
    });
    let idle = rule.rule.idle.map(|idle| (idle.saturating_sub(record.silence(now)), Closing::Idle));
    age.into_iter().chain(idle)
}

/// The age at which a connection ends: within the last tenth of `max_age`, by its number.
fn age_limit(max_age: Duration, id: u64) -> Duration {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    // The upper half of the product is evenly distributed for any numbers.
    let part = f64::from((id.wrapping_mul(GOLDEN) >> 32) as u32) / f64::from(u32::MAX);
    max_age - (max_age / AGE_SPREAD_PART).mul_f64(part)
}

/// The checkers for the peers of each rule.
struct Checks<'p> {
    pass: &'p Pass,
    /// The checkers by the address of the rule, which the pass keeps alive.
    by_rule: HashMap<*const LiveRule, Result<Option<PeerRechecker>, PeerCheck>>,
}

impl Checks<'_> {
    /// Checks a peer that was trusted; `None` if its rule no longer checks peers.
    fn check(&mut self, record: &ConnectionRecord, peer: &TrustedPeer) -> Option<PeerCheck> {
        let Self { pass, by_rule } = self;
        let rule = pass.live.deciding(&record.rule);
        let made = by_rule.entry(Arc::as_ptr(rule)).or_insert_with(|| pass.recheck(rule));
        match made {
            Ok(recheck) => {
                let check = recheck.as_ref()?.check(peer, clock::now());
                (check.is_trusted() || check.is_rejected()).then_some(check)
            }
            Err(check) => Some(check.clone()),
        }
    }

    fn verified(&self) -> usize {
        let made = self.by_rule.values().filter_map(|made| made.as_ref().ok()?.as_ref());
        made.map(PeerRechecker::verified).sum()
    }
}

impl Pass {
    /// Returns the checker for the peers of a rule. The error is the result for peers whose trust
    /// no longer exists.
    fn recheck(&self, rule: &Arc<LiveRule>) -> Result<Option<PeerRechecker>, PeerCheck> {
        let Some(tls) = rule.action.tls() else { return Ok(None) };
        if self.live.is_current(rule) {
            return Ok(match tls.role() {
                TlsRole::Server(settings) => PeerRechecker::clients(settings),
                TlsRole::Client(settings) => Some(PeerRechecker::servers(settings)),
            });
        }
        let Action::Tls(parsed) = &rule.rule.action else { return Ok(None) };
        let Some(name) = CredentialNames::of(&rule.rule).trust else { return Ok(None) };
        let trust = self.credentials.trusts.get(name).map(Arc::as_ref);
        PeerRechecker::of(parsed, trust).map_err(|_| PeerCheck::Invalid {
            reason: format!(
                "the agent cannot check the peer again, because the policy no longer has \
                 [trust.{name}]: close the connection, or add [trust.{name}] again"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_spread_over_the_last_tenth() {
        let max_age = Duration::from_secs(1000);
        let mut limits: Vec<_> = (1..=1000).map(|id| age_limit(max_age, id).as_secs()).collect();
        limits.sort_unstable();
        assert!(limits[0] >= 900 && limits[999] <= 1000, "{limits:?}");
        let in_first_half = limits.iter().filter(|limit| **limit < 950).count();
        assert!((450..=550).contains(&in_first_half), "{in_first_half}");
        assert_ne!(age_limit(max_age, 1), age_limit(max_age, 2));
    }
}
