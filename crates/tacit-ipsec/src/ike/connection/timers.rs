//! Handles the timers of an IKE connection: repeated requests, expired keys, liveness checks and
//! keepalives.

use std::time::{Duration, Instant};

use super::sa::{IkeSa, SaState};
use super::task::Wanted;
use super::tunnel::{TunnelState, rekey_delay};
use super::{DELETE_OVERDUE, IkeConnection, IkeEvent, KEEPALIVE};
use crate::ike::crypto::random_array;
use crate::ike::failure::{FailureSide, IkeFailure};

impl IkeConnection {
    /// When the keys of an IKE SA that is made now are replaced.
    pub(super) fn rekey_at(&mut self, now: Instant) -> Instant {
        let [byte] = random_array(self.random.as_mut()).unwrap_or([0]);
        now + rekey_delay(self.config.lifetime, byte)
    }

    /// The time until the next attempt after a refusal. It is random, so that two sides that refuse
    /// each other's request do not do so again.
    pub(super) fn retry_delay(&mut self) -> Duration {
        let [byte] = random_array(self.random.as_mut()).unwrap_or([0]);
        RETRY_MIN + Duration::from_millis(u64::from(byte) * 40)
    }

    /// When something is to be done with an IKE SA, apart from repeating requests.
    pub(super) fn sa_expires_at(&self, sa: &IkeSa) -> Option<Instant> {
        match sa.state {
            SaState::Opening if sa.is_initiator => None,
            SaState::Opening => Some(sa.rekey_at),
            SaState::Established => Some(sa.rekey_at.min(sa.expires_at)),
            SaState::Replaced { until } | SaState::Gone { until } => Some(until),
            SaState::Closing => None,
        }
    }

    pub(super) fn liveness_at(&self) -> Option<Instant> {
        let sa = self.sa(self.current)?;
        let is_idle = sa.state == SaState::Established && sa.outstanding.is_none();
        (is_idle && !self.has_ended).then(|| self.last_received_at + self.config.liveness)
    }

    pub(super) fn keepalive_at(&self) -> Option<Instant> {
        let is_up = self.sa(self.current).is_some_and(|sa| sa.state == SaState::Established);
        let may_need_it = self.is_behind_nat || self.has_moved;
        (may_need_it && is_up && !self.has_ended).then(|| self.sent_at + KEEPALIVE)
    }

    /// Repeats the requests whose time has come. A peer that does not answer ends the IKE SA.
    pub(super) fn repeat_requests(&mut self, now: Instant) {
        let due = |sa: &&mut IkeSa| sa.retransmit_at().is_some_and(|at| at <= now);
        let mut repeated = Vec::new();
        for sa in self.sas.iter_mut().filter(due) {
            repeated.push((sa.own_spi(), sa.is_ending(), sa.retransmit(now)));
        }
        for (spi, is_ending, datagrams) in repeated {
            match datagrams {
                Some(datagrams) => {
                    self.traffic.retransmitted += 1;
                    self.transmit(now, datagrams);
                }
                // The peer has forgotten the IKE SA, or will notice that this side has.
                None if is_ending => self.end_sa(now, spi, None),
                None if self.is_attempting() => {
                    self.give_up_attempt(IkeFailure::no_answer_to_auth());
                }
                None => self.end_sa(now, spi, Some(IkeFailure::no_answer_over_sa())),
            }
        }
    }

    /// Replaces or removes what has reached the end of its time.
    pub(super) fn expire(&mut self, now: Instant) {
        let due: Vec<(u64, SaState)> = self
            .sas
            .iter()
            .filter(|sa| self.sa_expires_at(sa).is_some_and(|at| at <= now))
            .map(|sa| (sa.own_spi(), sa.state))
            .collect();
        for (spi, state) in due {
            self.expire_sa(now, spi, state);
        }
        let due: Vec<(u32, TunnelState, bool)> = self
            .tunnels
            .iter()
            .filter(|one| one.next_time().is_some_and(|at| at <= now))
            .map(|one| (one.inbound, one.state, one.expires_at <= now))
            .collect();
        for (inbound, state, is_over) in due {
            match state {
                TunnelState::Active if is_over => self.expire_tunnel(inbound),
                TunnelState::Active => self.want(Wanted::RekeyChild(inbound)),
                TunnelState::Replaced { .. } => self.want(Wanted::DeleteChild(inbound)),
                TunnelState::Deleting => {}
            }
            // Until then the request has a response, or is repeated.
            if let Some(tunnel) = self.tunnels.iter_mut().find(|one| one.inbound == inbound) {
                tunnel.rekey_at = now + REKEY_AGAIN;
                if let TunnelState::Replaced { until } = &mut tunnel.state {
                    *until = now + DELETE_OVERDUE;
                }
            }
        }
        if self.liveness_at().is_some_and(|at| at <= now) {
            self.want(Wanted::Liveness);
        }
    }

    fn expire_sa(&mut self, now: Instant, spi: u64, state: SaState) {
        let is_current = spi == self.current;
        let Some(sa) = self.sa_mut(spi) else { return };
        let is_over = sa.expires_at <= now;
        match state {
            SaState::Opening => {
                let failure = IkeFailure::no_answer(
                    "the peer has sent no IKE_AUTH request after tacit's IKE_SA_INIT response",
                );
                self.end_sa(now, spi, Some(failure));
            }
            SaState::Established if is_current && is_over => {
                let failure = IkeFailure::new(
                    "keys-expired",
                    FailureSide::Both,
                    "the IKE SA expired before the peer accepted a rekey: compare the lifetimes of \
                     both sides, and read the peer's log",
                );
                sa.want(Wanted::DeleteIke);
                sa.expires_at = now + REKEY_AGAIN;
                sa.rekey_at = sa.expires_at;
                self.end(IkeEvent::Failed(failure));
            }
            SaState::Established => {
                sa.rekey_at = now + REKEY_AGAIN;
                sa.want(if is_current { Wanted::RekeyIke } else { Wanted::DeleteIke });
            }
            SaState::Replaced { .. } => {
                sa.state = SaState::Replaced { until: now + DELETE_OVERDUE };
                sa.want(Wanted::DeleteIke);
            }
            SaState::Gone { .. } => self.sas.retain(|sa| sa.own_spi() != spi),
            SaState::Closing => {}
        }
    }
}

/// The shortest time until the next attempt after a refusal.
const RETRY_MIN: Duration = Duration::from_secs(2);
/// After this time an attempt that had no effect is made again.
const REKEY_AGAIN: Duration = Duration::from_secs(30);
