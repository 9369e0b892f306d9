//! `CREATE_CHILD_SA` for child SAs: new ones, and replacements (RFC 7296 sections 1.3.1, 1.3.3 and
//! 2.8).

use std::time::Instant;

use super::payloads::{key_exchange, notifications};
use super::sa::{Opened, SaState};
use super::task::{ChildCollision, ChildTask, Task, Wanted, own_is_redundant};
use super::tunnel::{Tunnel, TunnelState, rekey_delay};
use super::{CHILDREN_MAX, DELETE_OVERDUE, IkeConnection, IkeEvent};
use crate::child::{ChildSa, EspSpi, SaKeys};
use crate::ike::codec::{
    ExchangeType, IkePayload, KePayload, NotifyPayload, Proposal, ProtocolId, TsPayload, notify,
};
use crate::ike::config::PROPOSALS_MAX;
use crate::ike::crypto::{KeGroup, KeySecret, Nonces, child_keys, random_array, random_nonce};
use crate::ike::failure::{FailureSide, IkeFailure};
use crate::ike::proposal::{
    ChildExchange, ChosenEsp, EspProposal, answer_esp, choose_esp, describe, offer_esp,
};
use crate::secret::SecretBytes;
use crate::selector::TrafficSelector;

/// What this side has requested.
pub(super) struct ChildRequest {
    /// Its inbound SPI.
    pub(super) spi: u32,
    /// The responder's nonce is empty in `CREATE_CHILD_SA`, where the answer has it.
    pub(super) nonces: Nonces,
    pub(super) secret: Option<KeySecret>,
}

/// The payloads of a request or a response for a child SA.
pub(super) struct ChildAnswer<'a> {
    proposals: &'a [Proposal],
    initiator: &'a [TrafficSelector],
    responder: &'a [TrafficSelector],
    nonce: Option<&'a [u8]>,
    key_exchange: Option<&'a KePayload>,
}

/// A child SA of the peer that was accepted.
pub(super) struct AcceptedChild {
    pub(super) payloads: Vec<IkePayload>,
    pub(super) spi: u32,
    pub(super) nonces: Nonces,
}

/// Why no child SA was made, and the notification for the peer.
pub(super) struct ChildRefusal {
    pub(super) notify: NotifyPayload,
    pub(super) failure: IkeFailure,
}

/// What both sides have agreed on.
struct Agreed {
    chosen: ChosenEsp,
    inbound: u32,
    outbound: u32,
    local: Vec<TrafficSelector>,
    remote: Vec<TrafficSelector>,
    shared: Option<SecretBytes>,
    nonces: Nonces,
    by_this_side: bool,
}

impl<'a> ChildAnswer<'a> {
    /// Reads the payloads. An error notification in their place is the reason of a refusal.
    pub(super) fn read(payloads: &'a [IkePayload]) -> Result<Self, IkeFailure> {
        let mut proposals = None;
        let mut initiator = None;
        let mut responder = None;
        let mut nonce = None;
        let mut key_exchange = None;
        for payload in payloads {
            match payload {
                IkePayload::SecurityAssociation(value) => proposals = Some(value.as_slice()),
                IkePayload::TsInitiator(value) => initiator = Some(value.selectors.as_slice()),
                IkePayload::TsResponder(value) => responder = Some(value.selectors.as_slice()),
                IkePayload::Nonce(value) => nonce = Some(value.as_slice()),
                IkePayload::KeyExchange(value) => key_exchange = Some(value),
                _ => {}
            }
        }
        if let (Some(proposals), Some(initiator), Some(responder)) =
            (proposals, initiator, responder)
        {
            return Ok(Self { proposals, initiator, responder, nonce, key_exchange });
        }
        let error = notifications(payloads).find(|one| one.is_error());
        Err(error.map_or_else(
            || IkeFailure::protocol("a payload for the tunnel is missing"),
            |error| IkeFailure::refused(error.kind, "the tunnel"),
        ))
    }
}

impl IkeConnection {
    /// The traffic selectors of this side, as the initiator of an exchange.
    pub(super) fn selector_payloads(&self) -> [IkePayload; 2] {
        let child = &self.config.child;
        [
            IkePayload::TsInitiator(TsPayload { selectors: child.local.clone() }),
            IkePayload::TsResponder(TsPayload { selectors: child.remote.clone() }),
        ]
    }

    /// A random inbound SPI that no other child SA has.
    pub(super) fn new_child_spi(&mut self) -> Result<u32, IkeFailure> {
        loop {
            let spi = u32::from_be_bytes(random_array(self.random.as_mut())?);
            if EspSpi::new(spi).is_some() && !self.tunnels.iter().any(|one| one.inbound == spi) {
                return Ok(spi);
            }
        }
    }

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
    pub(super) fn send_child(
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

    /// Handles a request of the peer for a child SA.
    pub(super) fn handle_child_request(&mut self, now: Instant, spi: u64, opened: &Opened) {
        let exchange = ExchangeType::CreateChildSa;
        let rekeyed = notifications(&opened.payloads).find(|one| one.kind == notify::REKEY_SA);
        let rekeyed = rekeyed.and_then(|one| one.spi);
        let old = match self.replaced_by_peer(spi, rekeyed) {
            Ok(old) => old,
            Err(kind) => {
                let spi_of_notify = rekeyed.filter(|_| kind == notify::CHILD_SA_NOT_FOUND);
                let notify = NotifyPayload { spi: spi_of_notify, kind, data: Vec::new() };
                self.respond(now, spi, exchange, &[IkePayload::Notify(notify)]);
                return;
            }
        };
        let nonces = Nonces { initiator: Vec::new(), responder: Vec::new() };
        match self.accept_child(now, spi, &opened.payloads, nonces, ChildExchange::Create) {
            Ok(accepted) => {
                self.respond(now, spi, exchange, &accepted.payloads);
                if let Some(old) = old {
                    self.note_replacement(now, old, accepted);
                }
                self.ensure_active();
            }
            Err(refusal) => {
                self.respond(now, spi, exchange, &[IkePayload::Notify(refusal.notify)]);
                self.event(IkeEvent::ExchangeFailed(refusal.failure));
            }
        }
    }

    /// The inbound SPI of the child SA that the peer replaces, or the notification that refuses it
    /// (RFC 7296 section 2.25).
    fn replaced_by_peer(
        &self,
        spi: u64,
        rekeyed: Option<(ProtocolId, u32)>,
    ) -> Result<Option<u32>, u16> {
        let is_busy = self.sa(spi).is_none_or(|sa| {
            let rekeys = |task: &Task| matches!(task, Task::RekeyIke(_));
            sa.state != SaState::Established
                || sa.outstanding.as_ref().is_some_and(|one| rekeys(&one.task))
        });
        if is_busy {
            return Err(notify::TEMPORARY_FAILURE);
        }
        let Some((protocol, outbound)) = rekeyed else {
            let is_free = self.tunnels.is_empty();
            return if is_free { Ok(None) } else { Err(notify::NO_ADDITIONAL_SAS) };
        };
        let is_meant = |one: &&Tunnel| protocol == ProtocolId::Esp && one.outbound == outbound;
        let tunnel = self.tunnels.iter().find(is_meant).ok_or(notify::CHILD_SA_NOT_FOUND)?;
        match tunnel.state {
            TunnelState::Active => Ok(Some(tunnel.inbound)),
            TunnelState::Replaced { .. } | TunnelState::Deleting => Err(notify::TEMPORARY_FAILURE),
        }
    }

    /// Notes that the peer has replaced a child SA, and whether this side is doing the same.
    fn note_replacement(&mut self, now: Instant, old: u32, accepted: AcceptedChild) {
        if let Some(tunnel) = self.tunnels.iter_mut().find(|one| one.inbound == old) {
            tunnel.state = TunnelState::Replaced { until: now + DELETE_OVERDUE };
        }
        let outstanding = self.sas.iter_mut().filter_map(|sa| sa.outstanding.as_mut());
        for one in outstanding {
            if let Task::Child(task) = &mut one.task
                && task.old == Some(old)
            {
                let nonces = accepted.nonces.clone();
                let spi = accepted.spi;
                task.collision = Some(ChildCollision { nonces, spi });
            }
        }
    }

    /// Accepts a child SA that the peer requests, and installs it. `nonces` are those of the IKE SA
    /// in `IKE_AUTH`, and empty in `CREATE_CHILD_SA`.
    pub(super) fn accept_child(
        &mut self,
        now: Instant,
        spi: u64,
        payloads: &[IkePayload],
        nonces: Nonces,
        exchange: ChildExchange,
    ) -> Result<AcceptedChild, ChildRefusal> {
        let refuse =
            |kind: u16, failure| ChildRefusal { notify: NotifyPayload::new(kind, []), failure };
        let broken = |failure: IkeFailure| refuse(notify::INVALID_SYNTAX, failure);
        let request = ChildAnswer::read(payloads).map_err(broken)?;
        if self.tunnels.len() >= CHILDREN_MAX {
            let failure = IkeFailure::protocol("the peer creates child SAs and deletes none");
            return Err(refuse(notify::NO_ADDITIONAL_SAS, failure));
        }
        let child = &self.config.child;
        let chosen = choose_esp(&child.proposals, request.proposals, exchange);
        let Some((chosen, outbound)) = chosen else {
            return Err(refuse(notify::NO_PROPOSAL_CHOSEN, no_proposal(request.proposals)));
        };
        let local = narrow(&child.local, request.responder);
        let remote = narrow(&child.remote, request.initiator);
        if local.is_empty() || remote.is_empty() {
            let kind = notify::TS_UNACCEPTABLE;
            return Err(refuse(kind, IkeFailure::refused(kind, "this side's tunnel")));
        }
        let secret = match chosen.proposal.pfs {
            None => None,
            Some(group) => match request.key_exchange.filter(|ke| ke.group == group.number()) {
                Some(value) => Some((group, value)),
                None => return Err(other_group(group)),
            },
        };
        let inbound = self.new_child_spi().map_err(broken)?;
        let answer = self.answer_exchange(secret, request.nonce, nonces).map_err(broken)?;
        let (shared, nonces, own) = answer;
        let mut payloads = vec![IkePayload::SecurityAssociation(answer_esp(&chosen, inbound))];
        payloads.extend(own);
        payloads.push(IkePayload::TsInitiator(TsPayload { selectors: remote.clone() }));
        payloads.push(IkePayload::TsResponder(TsPayload { selectors: local.clone() }));
        let agreed = Agreed {
            chosen,
            inbound,
            outbound,
            local,
            remote,
            shared,
            nonces: nonces.clone(),
            by_this_side: false,
        };
        self.install(now, spi, agreed).map_err(broken)?;
        Ok(AcceptedChild { payloads, spi: inbound, nonces })
    }

    /// The shared secret and the nonces of an exchange of the peer, and the payloads with the part
    /// of this side. `IKE_AUTH` has neither; its nonces are those of the IKE SA.
    fn answer_exchange(
        &mut self,
        key_exchange_of_peer: Option<(KeGroup, &KePayload)>,
        nonce_of_peer: Option<&[u8]>,
        nonces: Nonces,
    ) -> Result<(Option<SecretBytes>, Nonces, Vec<IkePayload>), IkeFailure> {
        if !nonces.initiator.is_empty() {
            return Ok((None, nonces, Vec::new()));
        }
        let Some(initiator) = nonce_of_peer else {
            return Err(IkeFailure::protocol("the peer's nonce is missing"));
        };
        let random = self.random.as_mut();
        let responder = random_nonce(random)?;
        let mut payloads = vec![IkePayload::Nonce(responder.clone())];
        let mut shared = None;
        if let Some((group, value)) = key_exchange_of_peer {
            let secret = KeySecret::generate(group, random)?;
            shared = Some(secret.agree(&value.public_value)?);
            payloads.push(key_exchange(&secret));
        }
        Ok((shared, Nonces { initiator: initiator.to_vec(), responder }, payloads))
    }

    /// Handles the response to a request of this side for a child SA.
    pub(super) fn handle_child_response(
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
        let failure = IkeFailure::refused(error.kind, "new keys for the tunnel");
        self.event(IkeEvent::ExchangeFailed(failure));
    }

    /// Checks what the peer has answered, and installs the child SA.
    pub(super) fn finish_child(
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
            return Err(IkeFailure::protocol("the peer chose packets that tacit did not offer"));
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

    fn install(&mut self, now: Instant, spi: u64, agreed: Agreed) -> Result<(), IkeFailure> {
        let Agreed { chosen, inbound, outbound, local, remote, shared, nonces, by_this_side } =
            agreed;
        let (Some(inbound_spi), Some(outbound_spi)) = (EspSpi::new(inbound), EspSpi::new(outbound))
        else {
            return Err(IkeFailure::protocol("the peer's SPI is below 256"));
        };
        let cipher = chosen.proposal.cipher;
        let Some(sa) = self.sa(spi) else { return Ok(()) };
        let (first, second) = child_keys(&sa.keys, cipher, shared.as_ref(), &nonces)?;
        let (sent, received) = if by_this_side { (first, second) } else { (second, first) };
        let keys = |spi, (encryption, integrity)| SaKeys { spi, encryption, integrity };
        let installed = ChildSa {
            cipher,
            has_extended_sequence: chosen.has_extended_sequence,
            inbound: keys(inbound_spi, received),
            outbound: keys(outbound_spi, sent),
            local,
            remote,
        };
        let lifetime = self.config.child.lifetime;
        let [byte] = random_array(self.random.as_mut()).unwrap_or([0]);
        self.tunnels.push(Tunnel {
            inbound,
            outbound,
            proposal: chosen.proposal,
            state: TunnelState::Active,
            rekey_at: now + rekey_delay(lifetime, byte),
            expires_at: now + lifetime,
        });
        self.event(IkeEvent::ChildInstalled(Box::new(installed)));
        Ok(())
    }
}

/// The packets that both sides allow (RFC 7296 section 2.9).
fn narrow(accepted: &[TrafficSelector], offered: &[TrafficSelector]) -> Vec<TrafficSelector> {
    let mut narrowed = Vec::new();
    for selector in
        offered.iter().flat_map(|offer| accepted.iter().map(|one| one.intersection(offer)))
    {
        if let Some(selector) = selector
            && !narrowed.contains(&selector)
            && narrowed.len() < SELECTORS_MAX
        {
            narrowed.push(selector);
        }
    }
    narrowed
}

fn no_proposal(offered: &[Proposal]) -> IkeFailure {
    let message = format!(
        "the peer offers no algorithms that the policy accepts for the tunnel; it offers {}: add \
         one of them to the policy, or one of the policy's algorithms to the peer",
        describe(offered)
    );
    IkeFailure::new("no-common-proposal", FailureSide::Both, message)
}

/// INVALID_KE_PAYLOAD with the group that this side wants (RFC 7296 section 1.3).
pub(super) fn other_group(group: KeGroup) -> ChildRefusal {
    let data = group.number().to_be_bytes();
    let message = format!(
        "the peer replaces keys with another group: tacit asks the peer for group {group:?}"
    );
    ChildRefusal {
        notify: NotifyPayload::new(notify::INVALID_KE_PAYLOAD, data),
        failure: IkeFailure::new("other-group", FailureSide::Both, message),
    }
}

/// The most selectors of one end after narrowing.
const SELECTORS_MAX: usize = 64;
