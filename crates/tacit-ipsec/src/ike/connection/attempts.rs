//! Authenticates the peer when tacit is the IKE initiator, even if an attacker sends forged
//! answers. The initiator sends the first request, IKE_SA_INIT. An *answer* is a response to this
//! request.
//!
//! An attacker who has seen the first request can forge an answer with a valid key exchange. So
//! tacit sends an IKE_AUTH request for each answer. The response to IKE_AUTH contains an AUTH
//! payload, which proves who sent the answer. Only this proof shows which answer is from the peer
//! (RFC 7296 sections 2.4 and 2.21.1):
//!
//! ```text
//!   answer ─> IKE SA ─> AUTH ─> verified ─────────────────> established; drops all other answers
//!                          └──> refused, or no response ─> continues with another answer
//! ```
//!
//! An *attempt* is the exchange that follows one answer. Each attempt has an IKE SA (keys and
//! state). The field `sas` contains the IKE SA of the *current* attempt.
//!
//! A message belongs to the attempt whose keys verify the message. The SPI (the number of the IKE
//! SA in the message) does not identify the attempt, because an attacker may use the SPI of the
//! peer. When a message for another attempt arrives, that attempt becomes the current attempt.
//!
//! An attempt is *refused* if tacit rejects the AUTH payload, or if the sender of the answer
//! rejects the IKE_AUTH request. If no other attempt remains, tacit waits [`OTHER_ANSWER_WAIT`] for
//! another answer. Until the IKE_AUTH request is answered, tacit repeats both the IKE_AUTH request
//! and the first request.
//!
//! Limit: [`ATTEMPTS_MAX`] attempts at a time; a further attempt replaces the oldest. The module
//! `answers` limits how many attempts begin in a period. This gives the peer time to answer an
//! IKE_AUTH request before the attempt is replaced.

use std::time::{Duration, Instant};

use super::auth::Attempt;
use super::init::Opening;
use super::sa::{IkeSa, SaState};
use super::{IkeConnection, IkeEvent};
use crate::ike::codec::IkeMessage;
use crate::ike::failure::IkeFailure;

impl IkeConnection {
    /// Whether the initiator waits for AUTH of the peer.
    pub(super) fn is_attempting(&self) -> bool {
        self.opening.is_some() && self.auth.is_some()
    }

    /// Whether an attempt with this answer continues, so that the answer is a repetition.
    pub(super) fn is_being_tried(&self, answer: &[u8]) -> bool {
        let others = self.other_attempts.iter().map(|one| &one.auth);
        self.auth.iter().chain(others).any(|one| one.init_response == answer)
    }

    /// Authenticates with another answer.
    pub(super) fn begin_attempt(
        &mut self,
        now: Instant,
        attempt: Attempt,
    ) -> Result<(), IkeFailure> {
        self.set_aside();
        if self.other_attempts.len() >= ATTEMPTS_MAX
            && let Some((oldest, _)) =
                self.other_attempts.iter().enumerate().min_by_key(|(_, one)| one.auth.began)
        {
            self.other_attempts.remove(oldest);
        }
        self.take_up(attempt);
        self.send_auth(now)?;
        let sent = self.sa(self.current).and_then(IkeSa::longest_outstanding);
        if let Some((opening, datagram_bytes_max)) = self.opening.as_mut().zip(sent) {
            opening.silence.note_auth_sent(now, datagram_bytes_max);
        }
        Ok(())
    }

    /// Makes the attempt the current one to which an authentic message belongs.
    pub(super) fn choose_attempt(&mut self, message: &IkeMessage, bytes: &[u8]) {
        if self.other_attempts.is_empty()
            || self.sas.iter().any(|sa| sa.is_authentic(message, bytes))
        {
            return;
        }
        let is_it = |one: &Attempt| one.sa.is_authentic(message, bytes);
        if let Some(at) = self.other_attempts.iter().position(is_it) {
            let attempt = self.other_attempts.remove(at);
            self.set_aside();
            self.take_up(attempt);
        }
    }

    fn set_aside(&mut self) {
        let current = self.current;
        let is_current = |sa: &IkeSa| sa.own_spi() == current && sa.state == SaState::Opening;
        let Some(at) = self.sas.iter().position(is_current) else { return };
        let sa = self.sas.remove(at);
        if let Some(auth) = self.auth.take() {
            let Self { is_behind_nat, is_peer_behind_nat, .. } = *self;
            self.other_attempts.push(Attempt { sa, auth, is_behind_nat, is_peer_behind_nat });
        }
    }

    fn take_up(&mut self, attempt: Attempt) {
        let Attempt { sa, auth, is_behind_nat, is_peer_behind_nat } = attempt;
        self.current = sa.own_spi();
        self.sas.push(sa);
        self.auth = Some(auth);
        self.is_behind_nat = is_behind_nat;
        self.is_peer_behind_nat = is_peer_behind_nat;
    }

    /// Drops the current attempt. Returns whether another one continues.
    fn drop_attempt(&mut self) -> bool {
        let current = self.current;
        self.sas.retain(|sa| sa.own_spi() != current);
        self.auth = None;
        let other = self.other_attempts.pop();
        let continues = other.is_some();
        other.into_iter().for_each(|other| self.take_up(other));
        continues
    }

    /// The sender of the answer was refused, or has refused this side. It may not be the peer.
    pub(super) fn refuse_attempt(&mut self, now: Instant, failure: IkeFailure) {
        if let Some(context) = &self.auth {
            let answer = context.init_response.clone();
            self.note_refused_answer(&answer);
        }
        let continues = self.drop_attempt();
        let Some(opening) = &mut self.opening else { return self.fail(failure) };
        if !continues {
            // Otherwise, the request of another attempt still has no answer.
            opening.silence.note_auth_answered();
        }
        if !continues && !opening.answers.is_waiting() {
            opening.await_another(now + OTHER_ANSWER_WAIT);
        }
        if opening.note_refusal(failure.clone()) {
            self.event(IkeEvent::ExchangeFailed(failure));
        }
    }

    /// AUTH was repeated often enough, without a response.
    pub(super) fn give_up_attempt(&mut self, failure: IkeFailure) {
        let is_waiting = self.opening.as_ref().is_some_and(|one| one.answers.is_waiting());
        if !self.drop_attempt() && !is_waiting {
            let refusal = self.opening.as_mut().and_then(Opening::take_refusal);
            self.fail(refusal.unwrap_or(failure));
        }
    }

    /// Repeats AUTH of the other attempts.
    pub(super) fn repeat_attempts(&mut self, now: Instant) {
        let is_due = |sa: &IkeSa| sa.retransmit_at().is_some_and(|at| at <= now);
        let mut sent = Vec::new();
        self.other_attempts.retain_mut(|one| {
            if !is_due(&one.sa) {
                return true;
            }
            let again = one.sa.retransmit(now);
            let is_kept = again.is_some();
            sent.extend(again);
            is_kept
        });
        for datagrams in sent {
            self.traffic.retransmitted += 1;
            self.transmit(now, datagrams);
        }
    }
}

/// The maximum number of attempts at a time, with the current one.
pub(super) const ATTEMPTS_MAX: usize = 64;
/// How long tacit waits for another answer after the last attempt was refused. The peer's answer
/// follows a forged answer soon, because both answer the same request.
const OTHER_ANSWER_WAIT: Duration = Duration::from_secs(2);
