//! Runs the key exchange `IKE_SA_INIT`, as initiator or as responder (RFC 7296 section 1.2).
//!
//! Anyone who sees the first request can forge an answer. So an invalid answer does not end the
//! connection. Instead, the initiator records the reason, and waits for another answer (RFC 7296
//! section 2.21.1). A valid answer may be forged too, and only the authentication can show this. So
//! the initiator tries to authenticate with each valid answer (see the modules `answers` and
//! `attempts`).
//!
//! The peer may demand a cookie or another Diffie-Hellman group. Then the initiator changes its
//! request, at most [`CHANGES_MAX`] times.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};

use super::answers::{Answer, Answers, SentRequest};
use super::auth::{Attempt, AuthContext};
use super::payloads::{certificate_request, key_exchange, notifications};
use super::sa::{IkeRole, IkeSa, RETRANSMITS_MAX, Retransmission};
use super::silence::Silence;
use super::{IkeConnection, IkeEvent, IkePath};
use crate::ike::codec::{
    ExchangeType, IkeHeader, IkeMessage, IkePayload, KePayload, NotifyPayload, Proposal,
    encode_message, notify,
};
use crate::ike::config::{IkeConfig, PROPOSALS_MAX};
use crate::ike::crypto::{
    IkeKeys, IkeSpis, KeGroup, KeySecret, Nonces, RandomSource, random_nonce, random_spi, seed,
};
use crate::ike::failure::{FailureSide, IkeFailure};
use crate::ike::nat;
use crate::ike::proposal::{IkeProposal, answer_ike, choose_ike, describe, offer_ike};
use crate::ike::signature;

/// The initiator before it has authenticated the peer.
#[derive(Debug)]
pub(super) struct Opening {
    spi: u64,
    nonce: Vec<u8>,
    /// The requests that were sent, one for each group; the last one is repeated. An answer to an
    /// earlier one is accepted, because the demand for another group may be forged.
    requests: Vec<Arc<SentRequest>>,
    /// What the responder demands to see again (RFC 7296 section 2.6).
    cookie: Option<Vec<u8>>,
    /// The cookie of the next request.
    next_cookie: Option<Vec<u8>>,
    retransmission: Retransmission,
    /// Whether the request is not repeated any more. Answers that are being tried remain.
    is_exhausted: bool,
    /// When the attempt ends if no answer is being tried then.
    ends_at: Option<Instant>,
    /// When to report that the peer does not answer.
    pub(super) silence: Silence,
    /// How often the request may change.
    changes_left: u8,
    pub(super) answers: Answers,
    /// Why the last answer could not be used.
    refusal: Option<IkeFailure>,
    /// Whether such a reason was reported.
    is_reported: bool,
}

/// What follows from an answer to the first request.
struct AgreedInit {
    spis: IkeSpis,
    proposal: IkeProposal,
    keys: IkeKeys,
    nonces: Nonces,
    /// The request that was answered.
    request: Vec<u8>,
}

impl Opening {
    pub(super) fn spi(&self) -> u64 {
        self.spi
    }

    fn last_request(&self) -> Option<Vec<u8>> {
        self.requests.last().map(|one| one.bytes.clone())
    }

    /// Notes why an answer could not be used. Returns whether to report it: only the first one is.
    pub(super) fn note_refusal(&mut self, refusal: IkeFailure) -> bool {
        self.refusal = Some(refusal);
        !std::mem::replace(&mut self.is_reported, true)
    }

    pub(super) fn take_refusal(&mut self) -> Option<IkeFailure> {
        self.refusal.take()
    }

    /// Waits for another answer, until this time or that of an earlier call, and does not repeat
    /// the request.
    pub(super) fn await_another(&mut self, until: Instant) {
        self.ends_at.get_or_insert(until);
        self.is_exhausted = true;
    }

    /// Counts a change of the request.
    fn change(&mut self) -> Result<(), IkeFailure> {
        let left = self.changes_left.checked_sub(1).ok_or_else(|| {
            IkeFailure::protocol(
                "the peer rejected too many IKE_SA_INIT requests: each time, the peer requested a \
                 cookie or another key exchange group",
            )
        })?;
        self.changes_left = left;
        Ok(())
    }

    /// Notes a cookie for the next request. This request waits a moment: if the demand is forged,
    /// the answer to the present request arrives meanwhile.
    fn note_cookie(&mut self, now: Instant, cookie: &[u8]) -> Result<(), IkeFailure> {
        if cookie.is_empty() || cookie.len() > COOKIE_BYTES_MAX {
            return Err(IkeFailure::protocol("the peer's cookie is empty or longer than 64 bytes"));
        }
        if self.cookie.as_deref() == Some(cookie) {
            return Ok(());
        }
        if self.next_cookie.is_none() {
            self.change()?;
        }
        self.next_cookie = Some(cookie.to_vec());
        self.is_exhausted = false;
        self.retransmission.at = self.retransmission.at.min(now + COOKIE_WAIT);
        Ok(())
    }
}

/// Why a first request was not accepted, and what to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IkeRefusal {
    /// The response in clear; without one the request is dropped.
    pub response: Option<Vec<u8>>,
    /// The reason.
    pub failure: IkeFailure,
}

/// The payloads of `IKE_SA_INIT` that both roles need.
struct InitPayloads<'a> {
    proposals: &'a [Proposal],
    key_exchange: &'a KePayload,
    nonce: &'a [u8],
}

impl IkeConnection {
    pub(super) fn start_init(&mut self, now: Instant) -> Result<(), IkeFailure> {
        let Some(first) = self.config.proposals.first() else {
            let message =
                "the policy has no proposal (list of algorithms) for the IKE SA: add a proposal";
            return Err(IkeFailure::new("no-proposal", FailureSide::Policy, message));
        };
        let group = first.group;
        let random = self.random.as_mut();
        let mut opening = Opening {
            spi: random_spi(random)?,
            nonce: random_nonce(random)?,
            requests: Vec::new(),
            cookie: None,
            next_cookie: None,
            retransmission: Retransmission::start(now, RETRANSMITS_MAX),
            is_exhausted: false,
            ends_at: None,
            silence: Silence::start(now),
            changes_left: CHANGES_MAX,
            answers: Answers::default(),
            refusal: None,
            is_reported: false,
        };
        let secret = Arc::new(KeySecret::generate(group, random)?);
        self.send_init(now, &mut opening, secret)?;
        self.opening = Some(opening);
        Ok(())
    }

    /// Writes and sends a request.
    fn send_init(
        &mut self,
        now: Instant,
        opening: &mut Opening,
        secret: Arc<KeySecret>,
    ) -> Result<(), IkeFailure> {
        let header = init_header(opening.spi, 0, IkeRole::Initiator);
        let accepted = self.config.proposals.iter().take(PROPOSALS_MAX).copied();
        let offer = offer_ike(&accepted.collect::<Vec<_>>(), None);
        let cookie = opening.cookie.clone();
        let cookie =
            cookie.map(|data| IkePayload::Notify(NotifyPayload::new(notify::COOKIE, data)));
        // The cookie is the first payload (RFC 7296 section 2.6).
        let mut payloads: Vec<IkePayload> = cookie.into_iter().collect();
        payloads.push(IkePayload::SecurityAssociation(offer));
        payloads.push(key_exchange(&secret));
        payloads.push(IkePayload::Nonce(opening.nonce.clone()));
        let spis = IkeSpis { initiator: opening.spi, responder: 0 };
        payloads.extend(nat::payloads(spis, self.path.remote, self.random.as_mut())?);
        payloads.push(signature_hashes());
        payloads.push(fragmentation_supported());
        let bytes = encode_message(&header, &payloads);
        opening.requests.push(Arc::new(SentRequest { secret, bytes: bytes.clone() }));
        opening.retransmission = Retransmission::start(now, RETRANSMITS_MAX);
        opening.is_exhausted = false;
        opening.ends_at = None;
        self.transmit(now, [bytes]);
        Ok(())
    }

    /// When the first request is repeated or changed, or the next answer may be tried. The request
    /// is repeated while this side waits for AUTH too: its answer may be lost, and the answers
    /// that are being tried may be forged.
    pub(super) fn init_due_at(&self) -> Option<Instant> {
        let opening = self.opening.as_ref()?;
        let repeat = (!opening.is_exhausted).then_some(opening.retransmission.at);
        let end = opening.ends_at.filter(|_| !self.is_trying(opening));
        let others = [opening.silence.next_at(), opening.answers.next_at()];
        [repeat, end].into_iter().chain(others).flatten().min()
    }

    /// Whether an answer to the first request is being tried, or waits for its turn.
    fn is_trying(&self, opening: &Opening) -> bool {
        self.auth.is_some() || opening.answers.is_waiting()
    }

    /// Does what is due while the connection is opened.
    pub(super) fn pass_opening(&mut self, now: Instant) {
        if self.init_due_at().is_none_or(|at| at > now) {
            return;
        }
        if let Some(request) = self.opening.as_mut().and_then(|one| one.silence.take_due(now)) {
            self.event(IkeEvent::Unanswered(request));
        }
        if let Some(opening) = self.opening.take() {
            match self.repeat_init(now, opening) {
                Ok(opening) => self.opening = Some(opening),
                Err(failure) => return self.fail(failure),
            }
        }
        if let Err(failure) = self.try_answers(now) {
            self.fail(failure);
        }
    }

    /// Repeats the first request when it is time, or sends it with the cookie of the peer. Fails
    /// if there were enough repetitions, and no answer is being tried.
    fn repeat_init(&mut self, now: Instant, mut opening: Opening) -> Result<Opening, IkeFailure> {
        let is_trying = self.is_trying(&opening);
        let is_over = !is_trying && opening.ends_at.is_some_and(|at| at <= now);
        let is_due = !opening.is_exhausted && opening.retransmission.at <= now;
        let cookie = opening.next_cookie.take_if(|_| is_due);
        let last = opening.requests.last().map(|one| Arc::clone(&one.secret));
        if let Some((cookie, secret)) = cookie.zip(last) {
            opening.cookie = Some(cookie);
            opening.requests.clear();
            self.send_init(now, &mut opening, secret)?;
        } else if is_due && opening.retransmission.repeat(now) {
            self.repeat_request(now, opening.last_request());
        } else if is_due && is_trying {
            opening.is_exhausted = true;
            opening.answers.close();
        } else if is_due || is_over {
            let silent = || {
                IkeFailure::no_answer("the peer does not answer the first request (IKE_SA_INIT)")
            };
            return Err(opening.take_refusal().unwrap_or_else(silent));
        }
        Ok(opening)
    }

    fn repeat_request(&mut self, now: Instant, request: Option<Vec<u8>>) {
        self.transmit(now, request);
        self.traffic.retransmitted += 1;
    }

    /// Handles a message of `IKE_SA_INIT`. It is not authenticated, so most faults are ignored.
    pub(super) fn receive_init(&mut self, now: Instant, message: &IkeMessage, bytes: &[u8]) {
        let header = &message.header;
        if !header.is_response {
            self.repeat_init_response(now, bytes);
            return;
        }
        let is_ours = |opening: &mut Opening| {
            opening.spi == header.initiator_spi && header.message_id == 0 && !header.from_initiator
        };
        let Some(opening) = self.opening.take_if(is_ours) else { return };
        let outcome = self.handle_init_response(now, opening, message, bytes);
        if let Err(failure) = outcome {
            self.fail(failure);
        }
    }

    /// The peer has repeated the request that made this connection.
    fn repeat_init_response(&mut self, now: Instant, bytes: &[u8]) {
        let Some(context) = self.auth.as_ref().filter(|one| one.init_request == bytes) else {
            return;
        };
        let response = context.init_response.clone();
        self.transmit(now, [response]);
    }

    fn handle_init_response(
        &mut self,
        now: Instant,
        mut opening: Opening,
        message: &IkeMessage,
        bytes: &[u8],
    ) -> Result<(), IkeFailure> {
        opening.silence.note_init_answered();
        let is_demand = |one: &&NotifyPayload| one.is_error() || one.kind == notify::COOKIE;
        let outcome = match notifications(&message.payloads).find(is_demand) {
            None if self.is_being_tried(bytes) => Ok(()),
            None => {
                let requests = opening.requests.clone();
                let answer = Answer { bytes: bytes.to_vec(), requests };
                opening.answers.add(answer, self.random.as_mut());
                self.opening = Some(opening);
                return self.try_answers(now);
            }
            Some(one) if one.kind == notify::COOKIE => opening.note_cookie(now, &one.data),
            Some(one) if one.kind == notify::INVALID_KE_PAYLOAD => {
                self.change_group(now, &mut opening, &one.data)
            }
            Some(one) => Err(IkeFailure::refused(one.kind, "the IKE SA")),
        };
        self.opening = Some(opening);
        outcome.or_else(|refusal| {
            self.note_useless_answer(refusal);
            Ok(())
        })
    }

    /// Notes that an answer cannot be used. It may be forged, so this side waits for another one.
    fn note_useless_answer(&mut self, refusal: IkeFailure) {
        let Some(opening) = &mut self.opening else { return };
        if self.auth.is_some() {
            // It matters only if AUTH with the other answers fails.
            opening.refusal = Some(refusal);
            return;
        }
        opening.retransmission.limit(REFUSED_RETRANSMITS_MAX);
        if opening.note_refusal(refusal.clone()) {
            self.event(IkeEvent::ExchangeFailed(refusal));
        }
    }

    /// Begins to authenticate with answers that wait, as many as may be tried now.
    fn try_answers(&mut self, now: Instant) -> Result<(), IkeFailure> {
        while let Some(opening) = &mut self.opening
            && let Some(answer) = opening.answers.take(now, self.random.as_mut())
        {
            let Ok(message) = IkeMessage::parse(&answer.bytes) else { continue };
            match self.agree_init(&answer.requests, &message) {
                Ok(agreed) => self.finish_init(now, agreed, &message, &answer.bytes)?,
                Err(refusal) => {
                    self.note_useless_answer(refusal);
                    self.note_refused_answer(&answer.bytes);
                }
            }
        }
        if let Some(opening) = &mut self.opening
            && opening.answers.take_crowded()
        {
            // The peer answers again, in case its answer was among those that were dropped.
            let request = opening.last_request();
            self.repeat_request(now, request);
        }
        Ok(())
    }

    /// Repetitions of this answer are not tried.
    pub(super) fn note_refused_answer(&mut self, bytes: &[u8]) {
        if let Some(opening) = &mut self.opening {
            opening.answers.note_refused(bytes);
        }
    }

    /// Sends a request with the group that the responder demands.
    fn change_group(
        &mut self,
        now: Instant,
        opening: &mut Opening,
        data: &[u8],
    ) -> Result<(), IkeFailure> {
        let group = self.demanded_group(data)?;
        let has_group = |one: &Arc<SentRequest>| one.secret.group() == group;
        // The demand may arrive twice.
        if opening.requests.last().is_some_and(has_group) {
            return Ok(());
        }
        opening.change()?;
        let Some(at) = opening.requests.iter().position(has_group) else {
            let secret = Arc::new(KeySecret::generate(group, self.random.as_mut())?);
            return self.send_init(now, opening, secret);
        };
        // The same request again, so that a responder recognizes it.
        let again = opening.requests.remove(at);
        self.transmit(now, [again.bytes.clone()]);
        opening.requests.push(again);
        opening.retransmission = Retransmission::start(now, RETRANSMITS_MAX);
        opening.is_exhausted = false;
        Ok(())
    }

    /// The group that the responder demands, which must be one that the policy accepts.
    fn demanded_group(&self, data: &[u8]) -> Result<KeGroup, IkeFailure> {
        let number = data.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
        let group = number.and_then(KeGroup::from_number);
        let is_accepted =
            |group: &KeGroup| self.config.proposals.iter().any(|one| one.group == *group);
        group.filter(is_accepted).ok_or_else(|| {
            let number = number.unwrap_or_default();
            let message = format!(
                "the peer requires key exchange group {number}, which no proposal of the policy \
                 has: add a proposal with this group to the policy, or change the groups of the \
                 peer"
            );
            IkeFailure::new("no-common-group", FailureSide::Both, message)
        })
    }

    /// Computes the keys that follow from an answer.
    fn agree_init(
        &self,
        requests: &[Arc<SentRequest>],
        message: &IkeMessage,
    ) -> Result<AgreedInit, IkeFailure> {
        let Some(opening) = &self.opening else {
            return Err(IkeFailure::protocol(
                "the peer answered an old IKE_SA_INIT request, for which tacit no longer expects \
                 an answer",
            ));
        };
        let read = InitPayloads::read(&message.payloads)?;
        let chosen = choose_ike(&self.config.proposals, read.proposals);
        let Some((proposal, _)) = chosen.filter(|_| read.proposals.len() == 1) else {
            return Err(IkeFailure::protocol("the peer chose algorithms that tacit did not offer"));
        };
        let answered = requests.iter().find(|one| {
            one.secret.group() == proposal.group
                && read.key_exchange.group == proposal.group.number()
        });
        let answered = answered.ok_or_else(|| {
            IkeFailure::protocol(
                "the peer chose a key exchange group, but tacit sent no request with this group",
            )
        })?;
        let shared = answered.secret.agree(&read.key_exchange.public_value)?;
        let nonces = Nonces { initiator: opening.nonce.clone(), responder: read.nonce.to_vec() };
        let spis = IkeSpis { initiator: opening.spi, responder: message.header.responder_spi };
        if spis.responder == 0 {
            return Err(IkeFailure::protocol("the peer's SPI is zero"));
        }
        let seed = seed(proposal.prf, &nonces, &shared);
        let keys = IkeKeys::derive((proposal.cipher, proposal.prf), &seed, &nonces, spis)?;
        Ok(AgreedInit { spis, proposal, keys, nonces, request: answered.bytes.clone() })
    }

    /// Authenticates with an answer.
    fn finish_init(
        &mut self,
        now: Instant,
        agreed: AgreedInit,
        message: &IkeMessage,
        bytes: &[u8],
    ) -> Result<(), IkeFailure> {
        let AgreedInit { spis, proposal, keys, nonces, request } = agreed;
        let IkePath { local, remote } = self.path;
        let rekey_at = self.rekey_at(now);
        let sa = IkeSa::new(spis, IkeRole::Initiator, proposal, keys, rekey_at);
        let mut sa = sa.after_init(None);
        sa.has_fragments = joins_fragments(&message.payloads);
        let context = AuthContext {
            init_request: request,
            init_response: bytes.to_vec(),
            nonces,
            hashes_of_peer: hashes(&message.payloads),
            began: now,
        };
        let attempt = Attempt {
            sa,
            auth: context,
            is_behind_nat: nat::is_translated(&message.payloads, spis, local),
            is_peer_behind_nat: nat::is_peer_translated(&message.payloads, spis, remote),
        };
        match self.begin_attempt(now, attempt) {
            // Another answer helps only if this one is the cause.
            Err(failure) if failure.side != FailureSide::Host => {
                self.refuse_attempt(now, failure);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Accepts the first request of a peer, as the responder. The peer may be any of `peers`, of
    /// which the first [`ACCEPTED_CONFIGS_MAX`] are used. Its identity, its authentication and its
    /// traffic selectors decide which one it is; [`config`](Self::config) returns it then.
    ///
    /// # Errors
    ///
    /// If the request is not acceptable; the refusal may have a response for the peer.
    pub fn accept(
        peers: &[Arc<IkeConfig>],
        path: IkePath,
        mut random: Box<dyn RandomSource>,
        now: Instant,
        bytes: &[u8],
    ) -> Result<Self, IkeRefusal> {
        let silent = |failure| IkeRefusal { response: None, failure };
        let message = IkeMessage::parse(bytes).map_err(|error| silent(error.into()))?;
        let header = message.header;
        let is_first = header.exchange == ExchangeType::SaInit
            && !header.is_response
            && header.from_initiator
            && (header.responder_spi, header.message_id) == (0, 0)
            && header.initiator_spi != 0;
        let read = InitPayloads::read(&message.payloads);
        let (true, Ok(read)) = (is_first, read) else {
            return Err(silent(IkeFailure::protocol(
                "the peer's message is not a valid IKE_SA_INIT request",
            )));
        };
        let peers = &peers[..peers.len().min(ACCEPTED_CONFIGS_MAX)];
        let (config, proposal, number) = first_fitting(peers, &header, &read)?;
        // A wrong value costs this side no key of its own (RFC 6989 section 2).
        let checked = proposal.group.check_value(&read.key_exchange.public_value);
        checked.map_err(|failed| silent(failed.into()))?;
        let options = options(peers, &message.payloads);
        let chosen = (proposal, number);
        let answer = answer(&header, path, chosen, &read, options, random.as_mut());
        let (secret, response, nonces, spis) = answer.map_err(silent)?;
        let keys = secret.agree(&read.key_exchange.public_value).and_then(|shared| {
            let seed = seed(proposal.prf, &nonces, &shared);
            IkeKeys::derive((proposal.cipher, proposal.prf), &seed, &nonces, spis)
        });
        let keys = keys.map_err(|failed| silent(failed.into()))?;
        let mut connection = Self::empty(Arc::clone(config), path, random, now);
        connection.others =
            peers.iter().filter(|other| !Arc::ptr_eq(other, config)).cloned().collect();
        connection.answered = Some((header.initiator_spi, digest(&SHA256, bytes)));
        connection.is_behind_nat = nat::is_translated(&message.payloads, spis, path.local);
        connection.is_peer_behind_nat =
            nat::is_peer_translated(&message.payloads, spis, path.remote);
        let sa = IkeSa::new(spis, IkeRole::Responder, proposal, keys, now + HALF_OPEN);
        let mut sa = sa.after_init(Some(response.clone()));
        sa.has_fragments = joins_fragments(&message.payloads);
        connection.current = sa.own_spi();
        connection.sas.push(sa);
        let init_request = bytes.to_vec();
        connection.auth = Some(AuthContext {
            init_request,
            init_response: response.clone(),
            nonces,
            hashes_of_peer: hashes(&message.payloads),
            began: now,
        });
        connection.transmit(now, [response]);
        Ok(connection)
    }
}

/// The first peer that accepts algorithms of a request, and these algorithms. If there is none, the
/// refusal demands the group of the first peer with such algorithms.
fn first_fitting<'a>(
    peers: &'a [Arc<IkeConfig>],
    header: &IkeHeader,
    read: &InitPayloads<'_>,
) -> Result<(&'a Arc<IkeConfig>, IkeProposal, u8), IkeRefusal> {
    let mut refusal = None;
    for peer in peers {
        match choose_ike(&peer.proposals, read.proposals) {
            Some((proposal, offer)) if read.key_exchange.group == proposal.group.number() => {
                return Ok((peer, proposal, offer.number));
            }
            Some((proposal, _)) if refusal.is_none() => {
                refusal = Some(other_group_wanted(header, proposal.group));
            }
            _ => {}
        }
    }
    Err(refusal.unwrap_or_else(|| no_proposal(header, read.proposals)))
}

/// The response to the first request, and what the keys depend on.
type InitAnswer = (KeySecret, Vec<u8>, Nonces, IkeSpis);

fn answer(
    header: &IkeHeader,
    path: IkePath,
    (proposal, number): (IkeProposal, u8),
    read: &InitPayloads<'_>,
    options: Vec<IkePayload>,
    random: &mut dyn RandomSource,
) -> Result<InitAnswer, IkeFailure> {
    let secret = KeySecret::generate(proposal.group, random)?;
    let nonce = random_nonce(random)?;
    let responder = random_spi(random)?;
    let spis = IkeSpis { initiator: header.initiator_spi, responder };
    let mut payloads = vec![
        IkePayload::SecurityAssociation(answer_ike(&proposal, number, None)),
        key_exchange(&secret),
        IkePayload::Nonce(nonce.clone()),
    ];
    payloads.extend(nat::payloads(spis, path.remote, random)?);
    payloads.extend(options);
    let response =
        encode_message(&init_header(spis.initiator, responder, IkeRole::Responder), &payloads);
    let nonces = Nonces { initiator: read.nonce.to_vec(), responder: nonce };
    Ok((secret, response, nonces, spis))
}

impl<'a> InitPayloads<'a> {
    fn read(payloads: &'a [IkePayload]) -> Result<Self, IkeFailure> {
        let proposals = payloads.iter().find_map(|payload| match payload {
            IkePayload::SecurityAssociation(proposals) => Some(proposals.as_slice()),
            _ => None,
        });
        let key_exchange = payloads.iter().find_map(|payload| match payload {
            IkePayload::KeyExchange(payload) => Some(payload),
            _ => None,
        });
        let nonce = payloads.iter().find_map(|payload| match payload {
            IkePayload::Nonce(nonce) => Some(nonce.as_slice()),
            _ => None,
        });
        let (Some(proposals), Some(key_exchange), Some(nonce)) = (proposals, key_exchange, nonce)
        else {
            return Err(IkeFailure::protocol(
                "the peer's IKE_SA_INIT message lacks a required payload (SA, key exchange or \
                 nonce)",
            ));
        };
        Ok(Self { proposals, key_exchange, nonce })
    }
}

/// The payloads of a response that depend on the policy and the request: hashes of signatures, the
/// request for certificates (RFC 7296 section 1.2), and fragmentation, which a responder announces
/// to those who announce it (RFC 7383 section 2.3).
fn options(peers: &[Arc<IkeConfig>], request: &[IkePayload]) -> Vec<IkePayload> {
    let mut payloads = vec![signature_hashes()];
    payloads.extend(certificate_request(peers.iter()));
    payloads.extend(joins_fragments(request).then(fragmentation_supported));
    payloads
}

fn fragmentation_supported() -> IkePayload {
    IkePayload::Notify(NotifyPayload::new(notify::IKEV2_FRAGMENTATION_SUPPORTED, []))
}

/// Whether the sender of a message of `IKE_SA_INIT` joins fragments.
fn joins_fragments(payloads: &[IkePayload]) -> bool {
    notifications(payloads).any(|one| one.kind == notify::IKEV2_FRAGMENTATION_SUPPORTED)
}

/// The hashes with which this side verifies signatures (RFC 7427 section 4).
fn signature_hashes() -> IkePayload {
    let kind = notify::SIGNATURE_HASH_ALGORITHMS;
    IkePayload::Notify(NotifyPayload::new(kind, signature::hashes()))
}

/// The hashes with which the peer verifies signatures; empty if it verifies none.
fn hashes(payloads: &[IkePayload]) -> Vec<u8> {
    let kind = notify::SIGNATURE_HASH_ALGORITHMS;
    let found = notifications(payloads).find(|one| one.kind == kind);
    found.map(|one| one.data.clone()).unwrap_or_default()
}

fn no_proposal(header: &IkeHeader, offered: &[Proposal]) -> IkeRefusal {
    let offered = describe(offered);
    let message = format!(
        "the policy accepts none of the algorithms that the peer offers for the IKE SA: {offered}; \
         add one of the peer's algorithms to the policy, or configure one of the policy's \
         algorithms on the peer"
    );
    let failure = IkeFailure::new("no-common-proposal", FailureSide::Both, message);
    refuse(header, notify::NO_PROPOSAL_CHOSEN, Vec::new(), failure)
}

/// INVALID_KE_PAYLOAD with the group that this side wants (RFC 7296 section 1.2).
fn other_group_wanted(header: &IkeHeader, group: KeGroup) -> IkeRefusal {
    let message = format!(
        "tacit chose the key exchange group {group:?}, but the peer's first request uses another \
         group, so tacit asks the peer for a request with group {group:?}"
    );
    let failure = IkeFailure::new("other-group", FailureSide::Both, message);
    refuse(header, notify::INVALID_KE_PAYLOAD, group.number().to_be_bytes().to_vec(), failure)
}

fn refuse(header: &IkeHeader, kind: u16, data: Vec<u8>, failure: IkeFailure) -> IkeRefusal {
    let payload = IkePayload::Notify(NotifyPayload::new(kind, data));
    let response =
        encode_message(&init_header(header.initiator_spi, 0, IkeRole::Responder), &[payload]);
    IkeRefusal { response: Some(response), failure }
}

fn init_header(initiator_spi: u64, responder_spi: u64, sender: IkeRole) -> IkeHeader {
    IkeHeader {
        initiator_spi,
        responder_spi,
        exchange: ExchangeType::SaInit,
        from_initiator: sender == IkeRole::Initiator,
        is_response: sender == IkeRole::Responder,
        message_id: 0,
    }
}

/// The most peers that a responder chooses from.
pub const ACCEPTED_CONFIGS_MAX: usize = 16;
/// How often the first request may change because of cookies and groups.
const CHANGES_MAX: u8 = 4;
/// How often the first request is repeated after an answer that cannot be used: 15 seconds
/// altogether, in which the true answer arrives if that one was forged.
const REFUSED_RETRANSMITS_MAX: u32 = 3;
/// How long a request with a cookie waits for the answer to the request without one.
const COOKIE_WAIT: Duration = Duration::from_millis(250);
/// The longest cookie (RFC 7296 section 2.6).
const COOKIE_BYTES_MAX: usize = 64;
/// How long a responder waits for AUTH.
const HALF_OPEN: Duration = Duration::from_secs(30);
