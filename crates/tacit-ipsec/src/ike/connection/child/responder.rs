//! Answers the peer's requests to create or replace child SAs (RFC 7296 sections 1.2, 1.3.1, 1.3.3
//! and 2.25). A child SA contains the keys of a tunnel.

use std::time::Instant;

use super::{Agreed, ChildAnswer, ChildRefusal};
use crate::ike::codec::{
    ExchangeType, IkePayload, KePayload, NotifyPayload, Proposal, ProtocolId, TsPayload, notify,
};
use crate::ike::connection::payloads::{key_exchange, notifications};
use crate::ike::connection::sa::{Opened, SaState};
use crate::ike::connection::task::{ChildCollision, Task};
use crate::ike::connection::tunnel::{Tunnel, TunnelState};
use crate::ike::connection::{CHILDREN_MAX, DELETE_OVERDUE, IkeConnection};
use crate::ike::crypto::{KeGroup, KeySecret, Nonces, random_nonce};
use crate::ike::failure::{FailureSide, IkeFailure};
use crate::ike::proposal::{ChildExchange, answer_esp, choose_esp, describe};
use crate::secret::SecretBytes;
use crate::selector::TrafficSelector;

/// A child SA of the peer that was accepted.
pub(in crate::ike::connection) struct AcceptedChild {
    pub(in crate::ike::connection) payloads: Vec<IkePayload>,
    pub(in crate::ike::connection) spi: u32,
    pub(in crate::ike::connection) nonces: Nonces,
}

impl IkeConnection {
    /// Handles a request of the peer for a child SA.
    pub(in crate::ike::connection) fn handle_child_request(
        &mut self,
        now: Instant,
        spi: u64,
        opened: &Opened,
    ) {
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
            Err(refusal) => self.refuse_create(now, spi, refusal),
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
            self.has_ended
                || sa.state != SaState::Established
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
    pub(in crate::ike::connection) fn accept_child(
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
            let failure = IkeFailure::protocol(
                "the peer has too many child SAs (keys of tunnels): the peer creates new child \
                 SAs, but does not delete the old child SAs",
            );
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
            let failure = IkeFailure::new(
                "peer-refused",
                FailureSide::Both,
                "tacit refused the peer's tunnel with the reply TS_UNACCEPTABLE: the addresses, \
                 protocols and ports of this tunnel do not overlap with those of the policy rule; \
                 compare the traffic selectors of both sides",
            );
            return Err(refuse(kind, failure));
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
        if let Some((group, value)) = key_exchange_of_peer {
            group.check_value(&value.public_value)?;
        }
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
    let offered = describe(offered);
    let message = format!(
        "the policy accepts none of the algorithms that the peer offers for the tunnel: {offered}; \
         add one of the peer's algorithms to the policy, or configure one of the policy's \
         algorithms on the peer"
    );
    IkeFailure::new("no-common-proposal", FailureSide::Both, message)
}

/// INVALID_KE_PAYLOAD with the group that this side wants (RFC 7296 section 1.3).
pub(in crate::ike::connection) fn other_group(group: KeGroup) -> ChildRefusal {
    let data = group.number().to_be_bytes();
    let message = format!(
        "tacit chose the key exchange group {group:?}, but the peer's CREATE_CHILD_SA request uses \
         another group, so tacit asks the peer for a request with group {group:?}"
    );
    ChildRefusal {
        notify: NotifyPayload::new(notify::INVALID_KE_PAYLOAD, data),
        failure: IkeFailure::new("other-group", FailureSide::Both, message),
    }
}

/// The most selectors of one end after narrowing.
const SELECTORS_MAX: usize = 64;
