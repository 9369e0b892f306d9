//! Runs exchanges as the initiator, to create or replace child SAs (the keys of tunnels). See RFC
//! 7296 sections 1.3.1, 1.3.3 and 2.8.

use std::time::Instant;

use super::{Agreed, ChildAnswer, ChildRequest};
use crate::ike::codec::{ExchangeType, IkePayload, NotifyPayload, ProtocolId, notify};
use crate::ike::config::PROPOSALS_MAX;
use crate::ike::connection::payloads::{key_exchange, notifications};
use crate::ike::connection::sa::Opened;
use crate::ike::connection::task::{ChildCollision, ChildTask, Task, Wanted, own_is_redundant};
use crate::ike::connection::tunnel::{Tunnel, TunnelState};
use crate::ike::connection::{DELETE_OVERDUE, IkeConnection, IkeEvent};
use crate::ike::crypto::{KeGroup, KeySecret, Nonces, random_nonce};
use crate::ike::failure::IkeFailure;
use crate::ike::proposal::{ChildExchange, EspProposal, choose_esp, offer_esp};
use crate::selector::TrafficSelector;

impl IkeConnection {
    /// The proposal for a replacement: that of the policy with the cipher of the old child SA, and
    /// the group that the peer demanded last.
    fn replacement(&self, old: Option<u32>) -> Option<EspProposal> {
        let proposals = self.config.child.proposals.iter().take(PROPOSALS_MAX);
        let old = self.tunnels.iter().find(|one| Some(one.inbound) == old);
        let fits = |one: &&EspProposal| {
            old.is_none_or(|old| old.proposal.cipher == one.cipher)
                && (self.child_group.is_none() || one.pfs == self.child_group)
        };
        proposals.clone().find(fits).or_else(|| proposals.clone().next()).copied()
    }

    /// Requests a child SA that replaces another, or a new one.
    pub(in crate::ike::connection) fn send_child(
        &mut self,
        now: Instant,
        spi: u64,
        old: Option<u32>,
    ) -> Result<(), IkeFailure> {
        let is_active = |one: &Tunnel| Some(one.inbound) == old && one.state == TunnelState::Active;
        let is_due = match old {
            Some(_) => self.tunnels.iter().any(is_active),
            None => self.tunnels.is_empty(),
        };
        if !is_due {
            return Ok(());
        }
        let Some(proposal) = self.replacement(old) else { return Ok(()) };
        let child_spi = self.new_child_spi()?;
        let random = self.random.as_mut();
        let nonce = random_nonce(random)?;
        let secret = proposal.pfs.map(|group| KeySecret::generate(group, random)).transpose()?;
        let offer = offer_esp(&[proposal], ChildExchange::Create, child_spi);
        let rekeyed = old.map(|old| {
            let spi = Some((ProtocolId::Esp, old));
            IkePayload::Notify(NotifyPayload { spi, kind: notify::REKEY_SA, data: Vec::new() })
        });
        let mut payloads: Vec<IkePayload> = rekeyed.into_iter().collect();
        payloads.push(IkePayload::SecurityAssociation(offer));
        payloads.push(IkePayload::Nonce(nonce.clone()));
        payloads.extend(secret.as_ref().map(key_exchange));
        payloads.extend(self.selector_payloads());
        let task =
            ChildTask { old, spi: child_spi, nonce, secret, collision: None, deleted: Vec::new() };
        self.request(now, spi, ExchangeType::CreateChildSa, &payloads, Task::Child(task));
        Ok(())
    }

    /// Handles the response to a request of this side for a child SA.
    pub(in crate::ike::connection) fn handle_child_response(
        &mut self,
        now: Instant,
        spi: u64,
        task: ChildTask,
        opened: &Opened,
    ) {
        let error = notifications(&opened.payloads).find(|one| one.is_error());
        if let Some(error) = error {
            self.handle_child_error(now, &task, error);
            return;
        }
        let ChildTask { old, spi: child_spi, nonce, secret, collision, deleted } = task;
        let request = ChildRequest {
            spi: child_spi,
            nonces: Nonces { initiator: nonce, responder: Vec::new() },
            secret,
        };
        let outcome = ChildAnswer::read(&opened.payloads).and_then(|answer| {
            let responder = answer.nonce.unwrap_or_default().to_vec();
            let nonces = Nonces { responder, ..request.nonces.clone() };
            let request = ChildRequest { nonces: nonces.clone(), ..request };
            let done = self.finish_child(now, spi, &request, &answer, ChildExchange::Create);
            done.map(|()| nonces)
        });
        match outcome {
            Ok(nonces) => {
                self.resolve_child(now, old, child_spi, &nonces, collision);
                let is_deleted =
                    |one: &Tunnel| one.inbound == child_spi && deleted.contains(&one.outbound);
                if self.tunnels.iter().any(is_deleted) {
                    self.remove_tunnel(child_spi);
                }
            }
            Err(failure) => {
                // The peer has installed it, and this side has not.
                self.want(Wanted::DeleteChild(child_spi));
                self.event(IkeEvent::ExchangeFailed(failure));
            }
        }
    }

    /// Decides which of the child SAs remain (RFC 7296 section 2.8.1).
    fn resolve_child(
        &mut self,
        now: Instant,
        old: Option<u32>,
        new: u32,
        nonces: &Nonces,
        collision: Option<ChildCollision>,
    ) {
        let collision =
            collision.filter(|other| self.tunnels.iter().any(|one| one.inbound == other.spi));
        match collision {
            Some(other) if own_is_redundant(nonces, &other.nonces) => {
                // The peer deletes the old one.
                self.want(Wanted::DeleteChild(new));
                if let Some(tunnel) = self.tunnels.iter_mut().find(|one| one.inbound == new) {
                    tunnel.state = TunnelState::Deleting;
                }
                self.ensure_active();
                return;
            }
            Some(other) => {
                // The peer deletes its redundant one.
                if let Some(tunnel) = self.tunnels.iter_mut().find(|one| one.inbound == other.spi) {
                    tunnel.state = TunnelState::Replaced { until: now + DELETE_OVERDUE };
                }
            }
            None => {}
        }
        self.activate(new);
        let is_old = |one: &&mut Tunnel| Some(one.inbound) == old;
        if let Some(tunnel) = self.tunnels.iter_mut().find(is_old)
            && tunnel.state != TunnelState::Deleting
        {
            tunnel.state = TunnelState::Deleting;
            let spi = tunnel.inbound;
            self.want(Wanted::DeleteChild(spi));
        }
    }

    /// Handles a refusal of the peer (RFC 7296 section 2.25).
    fn handle_child_error(&mut self, now: Instant, task: &ChildTask, error: &NotifyPayload) {
        // The peer has replaced the same child SA, and its replacement remains.
        if task.collision.is_some() {
            return;
        }
        let retry = now + self.retry_delay();
        if let Some(tunnel) = self.tunnels.iter_mut().find(|one| Some(one.inbound) == task.old) {
            tunnel.rekey_at = retry;
        }
        match error.kind {
            notify::TEMPORARY_FAILURE if task.old.is_some() => return,
            notify::CHILD_SA_NOT_FOUND => {
                if let Some(old) = task.old {
                    self.remove_tunnel(old);
                }
                if self.tunnels.is_empty() {
                    self.want(Wanted::CreateChild);
                }
                return;
            }
            notify::INVALID_KE_PAYLOAD => {
                let number = error.data.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
                let group = number.and_then(KeGroup::from_number);
                let has_group = |one: &EspProposal| one.pfs.is_some() && one.pfs == group;
                let is_other = task.secret.as_ref().map(KeySecret::group) != group;
                if is_other && self.config.child.proposals.iter().any(has_group) {
                    self.child_group = group;
                    self.want(task.old.map_or(Wanted::CreateChild, Wanted::RekeyChild));
                    return;
                }
            }
            _ => {}
        }
        let failure = IkeFailure::refused(error.kind, "the CREATE_CHILD_SA request for the tunnel");
        self.event(IkeEvent::ExchangeFailed(failure));
    }

    /// Checks what the peer has answered, and installs the child SA.
    pub(in crate::ike::connection) fn finish_child(
        &mut self,
        now: Instant,
        spi: u64,
        request: &ChildRequest,
        answer: &ChildAnswer<'_>,
        exchange: ChildExchange,
    ) -> Result<(), IkeFailure> {
        let child = &self.config.child;
        let chosen = choose_esp(&child.proposals, answer.proposals, exchange);
        let Some((chosen, outbound)) = chosen.filter(|_| answer.proposals.len() == 1) else {
            return Err(IkeFailure::protocol("the peer chose algorithms that tacit did not offer"));
        };
        if request.nonces.responder.is_empty() {
            return Err(IkeFailure::protocol("the peer's nonce is missing"));
        }
        // The responder narrows, and never widens (RFC 7296 section 2.9).
        let is_within = |offered: &[TrafficSelector], answered: &[TrafficSelector]| {
            !answered.is_empty()
                && answered
                    .iter()
                    .all(|one| offered.iter().any(|offer| offer.intersection(one) == Some(*one)))
        };
        if !is_within(&child.local, answer.initiator) || !is_within(&child.remote, answer.responder)
        {
            return Err(IkeFailure::protocol(
                "the peer chose traffic selectors that tacit did not offer",
            ));
        }
        let shared = match (&request.secret, answer.key_exchange) {
            (None, _) => None,
            (Some(secret), Some(value)) if value.group == secret.group().number() => {
                Some(secret.agree(&value.public_value)?)
            }
            _ => return Err(IkeFailure::protocol("the peer's key exchange is missing")),
        };
        let agreed = Agreed {
            chosen,
            inbound: request.spi,
            outbound,
            local: answer.initiator.to_vec(),
            remote: answer.responder.to_vec(),
            shared,
            nonces: request.nonces.clone(),
            by_this_side: true,
        };
        self.install(now, spi, agreed)
    }
}
