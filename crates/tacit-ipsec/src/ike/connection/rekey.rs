//! Runs the exchange `CREATE_CHILD_SA` to replace the keys of an IKE SA (RFC 7296 sections 1.3.2
//! and 2.18).

use std::time::Instant;

use super::child::{ChildRefusal, other_group};
use super::payloads::{key_exchange, notifications};
use super::sa::{IkeRole, IkeSa, Opened, SaState};
use super::task::{IkeCollision, RekeyTask, Task, Wanted, own_is_redundant};
use super::{DELETE_OVERDUE, IkeConnection, IkeEvent, SAS_MAX};
use crate::ike::codec::{
    ExchangeType, IkePayload, KePayload, NotifyPayload, Proposal, ProtocolId, notify,
};
use crate::ike::crypto::{
    IkeKeys, IkeSpis, KeySecret, Nonces, random_nonce, random_spi, rekeyed_seed,
};
use crate::ike::failure::{FailureSide, IkeFailure};
use crate::ike::proposal::{IkeProposal, answer_ike, choose_ike, describe, offer_ike};
use crate::secret::SecretBytes;

/// The payloads of a request or a response that replaces an IKE SA.
struct RekeyPayloads<'a> {
    proposals: &'a [Proposal],
    nonce: &'a [u8],
    key_exchange: &'a KePayload,
}

/// What both sides have agreed on.
struct NewSa<'a> {
    spis: IkeSpis,
    role: IkeRole,
    proposal: IkeProposal,
    nonces: &'a Nonces,
    shared: &'a SecretBytes,
}

impl IkeConnection {
    /// Handles a request for an IKE SA or a child SA.
    pub(super) fn handle_create(&mut self, now: Instant, spi: u64, opened: &Opened) {
        let is_ike = opened.payloads.iter().any(|payload| match payload {
            IkePayload::SecurityAssociation(proposals) => {
                proposals.iter().any(|one| one.protocol == ProtocolId::Ike)
            }
            _ => false,
        });
        if is_ike {
            self.handle_rekey_request(now, spi, opened);
        } else {
            self.handle_child_request(now, spi, opened);
        }
    }

    /// Requests a new IKE SA with the algorithms of the current one.
    pub(super) fn send_rekey(&mut self, now: Instant, spi: u64) -> Result<(), IkeFailure> {
        let is_current = spi == self.current && self.sas.len() < SAS_MAX;
        let proposal = self.sa(spi).map(|sa| sa.proposal).filter(|_| is_current);
        let Some(proposal) = proposal else { return Ok(()) };
        let random = self.random.as_mut();
        let secret = KeySecret::generate(proposal.group, random)?;
        let nonce = random_nonce(random)?;
        let new_spi = random_spi(random)?;
        let payloads = [
            IkePayload::SecurityAssociation(offer_ike(&[proposal], Some(new_spi))),
            IkePayload::Nonce(nonce.clone()),
            key_exchange(&secret),
        ];
        let task = RekeyTask { spi: new_spi, nonce, secret, collision: None };
        self.request(now, spi, ExchangeType::CreateChildSa, &payloads, Task::RekeyIke(task));
        Ok(())
    }

    fn handle_rekey_request(&mut self, now: Instant, spi: u64, opened: &Opened) {
        let exchange = ExchangeType::CreateChildSa;
        if self.is_busy(spi) {
            self.respond_notify(now, spi, exchange, notify::TEMPORARY_FAILURE);
            return;
        }
        match self.accept_rekey(now, spi, &opened.payloads) {
            Err(refusal) => self.refuse_create(now, spi, refusal),
            Ok((payloads, new_spi, nonces)) => {
                self.respond(now, spi, exchange, &payloads);
                let outstanding = self.sa_mut(spi).and_then(|sa| sa.outstanding.as_mut());
                if let Some(Task::RekeyIke(task)) = outstanding.map(|one| &mut one.task) {
                    // Both sides replace it; the nonces decide when the response arrives.
                    task.collision = Some(IkeCollision { nonces, spi: new_spi });
                } else {
                    self.replace_sa(now, spi, new_spi);
                }
            }
        }
    }

    /// Refuses a request for an IKE SA or a child SA.
    pub(super) fn refuse_create(&mut self, now: Instant, spi: u64, refusal: ChildRefusal) {
        let ChildRefusal { notify, failure } = refusal;
        if notify.kind == notify::INVALID_SYNTAX {
            self.refuse_malformed(now, spi, ExchangeType::CreateChildSa, notify, failure);
        } else {
            self.respond(now, spi, ExchangeType::CreateChildSa, &[IkePayload::Notify(notify)]);
            self.event(IkeEvent::ExchangeFailed(failure));
        }
    }

    /// Whether the IKE SA cannot be replaced now (RFC 7296 section 2.25.2).
    fn is_busy(&self, spi: u64) -> bool {
        let Some(sa) = self.sa(spi) else { return true };
        let changes_child = |task: &Task| matches!(task, Task::Child(_) | Task::DeleteChild { .. });
        self.has_ended
            || sa.state != SaState::Established
            || self.sas.len() >= SAS_MAX
            || sa.outstanding.as_ref().is_some_and(|one| changes_child(&one.task))
    }

    /// Makes the IKE SA that the peer requests.
    fn accept_rekey(
        &mut self,
        now: Instant,
        spi: u64,
        payloads: &[IkePayload],
    ) -> Result<(Vec<IkePayload>, u64, Nonces), ChildRefusal> {
        let broken = |failure: IkeFailure| ChildRefusal {
            notify: NotifyPayload::new(notify::INVALID_SYNTAX, []),
            failure,
        };
        let crypto = |failed| broken(IkeFailure::crypto(failed));
        let read = RekeyPayloads::read(payloads).map_err(broken)?;
        let Some((proposal, offer)) = choose_ike(&self.config.proposals, read.proposals) else {
            return Err(no_proposal(read.proposals));
        };
        if read.key_exchange.group != proposal.group.number() {
            return Err(other_group(proposal.group));
        }
        let checked = proposal.group.check_value(&read.key_exchange.public_value);
        checked.map_err(crypto)?;
        let initiator = spi_of(offer).map_err(broken)?;
        let random = self.random.as_mut();
        let secret = KeySecret::generate(proposal.group, random).map_err(crypto)?;
        let responder_nonce = random_nonce(random).map_err(|failed| crypto(failed.into()))?;
        let responder = random_spi(random).map_err(|failed| crypto(failed.into()))?;
        let shared = secret.agree(&read.key_exchange.public_value).map_err(crypto)?;
        let nonces = Nonces { initiator: read.nonce.to_vec(), responder: responder_nonce.clone() };
        let spis = IkeSpis { initiator, responder };
        let new =
            NewSa { spis, role: IkeRole::Responder, proposal, nonces: &nonces, shared: &shared };
        let answer = answer_ike(&proposal, offer.number, Some(responder));
        self.add_sa(now, spi, &new).map_err(broken)?;
        let payloads = vec![
            IkePayload::SecurityAssociation(answer),
            IkePayload::Nonce(responder_nonce),
            key_exchange(&secret),
        ];
        Ok((payloads, responder, nonces))
    }

    /// Adds an IKE SA with keys that depend on those of another.
    fn add_sa(&mut self, now: Instant, old: u64, new: &NewSa<'_>) -> Result<(), IkeFailure> {
        let rekey_at = self.rekey_at(now);
        let expires_at = now + self.config.lifetime;
        let Some(old) = self.sa(old) else { return Ok(()) };
        let has_fragments = old.has_fragments;
        let seed = rekeyed_seed(old.keys.prf, &old.keys.derive, new.nonces, new.shared);
        let algorithms = (new.proposal.cipher, new.proposal.prf);
        let keys = IkeKeys::derive(algorithms, &seed, new.nonces, new.spis)?;
        let mut sa = IkeSa::new(new.spis, new.role, new.proposal, keys, rekey_at);
        sa.expires_at = expires_at;
        sa.has_fragments = has_fragments;
        self.sas.push(sa);
        Ok(())
    }

    pub(super) fn handle_rekey_response(
        &mut self,
        now: Instant,
        spi: u64,
        task: RekeyTask,
        opened: &Opened,
    ) {
        let collision = task.collision.clone();
        let error = notifications(&opened.payloads).find(|one| one.is_error());
        let outcome = match error {
            Some(error) => Err(IkeFailure::refused(error.kind, "the request to rekey the IKE SA")),
            None => self.finish_rekey(now, spi, &task, &opened.payloads),
        };
        match (outcome, collision) {
            (Ok(nonces), collision) => {
                self.resolve_rekey(now, spi, task.spi, &nonces, collision);
            }
            // The peer has replaced it, and has refused to do so twice.
            (Err(_), Some(collision)) => self.replace_sa(now, spi, collision.spi),
            (Err(failure), None) => {
                let retry = now + self.retry_delay();
                if let Some(sa) = self.sa_mut(spi) {
                    sa.rekey_at = retry;
                }
                if error.is_none_or(|one| one.kind != notify::TEMPORARY_FAILURE) {
                    self.event(IkeEvent::ExchangeFailed(failure));
                }
            }
        }
    }

    fn finish_rekey(
        &mut self,
        now: Instant,
        spi: u64,
        task: &RekeyTask,
        payloads: &[IkePayload],
    ) -> Result<Nonces, IkeFailure> {
        let read = RekeyPayloads::read(payloads)?;
        let offered = self.sa(spi).map(|sa| sa.proposal);
        let offered: Vec<IkeProposal> = offered.into_iter().collect();
        let chosen = choose_ike(&offered, read.proposals);
        let Some((proposal, answer)) = chosen.filter(|_| read.proposals.len() == 1) else {
            return Err(IkeFailure::protocol("the peer chose algorithms that tacit did not offer"));
        };
        if read.key_exchange.group != proposal.group.number() {
            return Err(IkeFailure::protocol(
                "the peer's KE payload does not use the key exchange group that the peer chose",
            ));
        }
        let shared = task.secret.agree(&read.key_exchange.public_value)?;
        let nonces = Nonces { initiator: task.nonce.clone(), responder: read.nonce.to_vec() };
        let spis = IkeSpis { initiator: task.spi, responder: spi_of(answer)? };
        let new =
            NewSa { spis, role: IkeRole::Initiator, proposal, nonces: &nonces, shared: &shared };
        self.add_sa(now, spi, &new)?;
        Ok(nonces)
    }

    /// Decides which of the IKE SAs remains (RFC 7296 section 2.8.2).
    fn resolve_rekey(
        &mut self,
        now: Instant,
        old: u64,
        new: u64,
        nonces: &Nonces,
        collision: Option<IkeCollision>,
    ) {
        match collision {
            Some(other) if own_is_redundant(nonces, &other.nonces) => {
                // The peer deletes the old one.
                self.replace_sa(now, old, other.spi);
                if let Some(sa) = self.sa_mut(new) {
                    sa.want(Wanted::DeleteIke);
                }
            }
            other => {
                // The peer deletes its redundant one.
                if let Some(sa) = other.and_then(|other| self.sa_mut(other.spi))
                    && sa.state == SaState::Established
                {
                    sa.state = SaState::Replaced { until: now + DELETE_OVERDUE };
                }
                self.replace_sa(now, old, new);
                if let Some(sa) = self.sa_mut(old) {
                    sa.want(Wanted::DeleteIke);
                }
            }
        }
    }

    /// Makes an IKE SA the current one, in place of another.
    pub(super) fn replace_sa(&mut self, now: Instant, old: u64, new: u64) {
        let mut moved = std::collections::VecDeque::new();
        if let Some(sa) = self.sa_mut(old) {
            if sa.state == SaState::Established {
                sa.state = SaState::Replaced { until: now + DELETE_OVERDUE };
            }
            moved = sa.take_all_wanted();
        }
        self.current = new;
        for wanted in moved.into_iter().filter(|wanted| *wanted != Wanted::RekeyIke) {
            self.want(wanted);
        }
        self.event(IkeEvent::Rekeyed);
    }
}

impl<'a> RekeyPayloads<'a> {
    fn read(payloads: &'a [IkePayload]) -> Result<Self, IkeFailure> {
        let mut proposals = None;
        let mut nonce = None;
        let mut key_exchange = None;
        for payload in payloads {
            match payload {
                IkePayload::SecurityAssociation(value) => proposals = Some(value.as_slice()),
                IkePayload::Nonce(value) => nonce = Some(value.as_slice()),
                IkePayload::KeyExchange(value) => key_exchange = Some(value),
                _ => {}
            }
        }
        let (Some(proposals), Some(nonce), Some(key_exchange)) = (proposals, nonce, key_exchange)
        else {
            return Err(IkeFailure::protocol(
                "the peer's CREATE_CHILD_SA message lacks a required payload (SA, nonce or key \
                 exchange)",
            ));
        };
        Ok(Self { proposals, nonce, key_exchange })
    }
}

/// The SPI of the other side in a proposal.
fn spi_of(proposal: &Proposal) -> Result<u64, IkeFailure> {
    let spi = proposal.spi.as_slice().try_into().map(u64::from_be_bytes).ok();
    spi.filter(|spi| *spi != 0).ok_or_else(|| {
        IkeFailure::protocol(
            "the SPI in the peer's rekey proposal is zero, or its length is not 8 bytes",
        )
    })
}

fn no_proposal(offered: &[Proposal]) -> ChildRefusal {
    let offered = describe(offered);
    let message = format!(
        "to rekey the IKE SA, the peer offers only algorithms that the policy does not accept: \
         {offered}; configure one of the policy's algorithms on the peer"
    );
    ChildRefusal {
        notify: NotifyPayload::new(notify::NO_PROPOSAL_CHOSEN, []),
        failure: IkeFailure::new("no-common-proposal", FailureSide::Both, message),
    }
}
