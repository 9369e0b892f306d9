//! Defines one IKE SA: its keys, and its unanswered request in each direction. Repeats a request
//! until the peer answers (RFC 7296 sections 2.1 to 2.3).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::fragments::{Payloads, Reassembly};
use super::task::{Task, Wanted};
use crate::ike::codec::{
    CodecError, ExchangeType, Fragment, IkeHeader, IkeMessage, IkePayload, NotifyPayload,
    encode_payloads, notify, parse_payloads,
};
use crate::ike::crypto::{CryptoFailed, IkeKeys, IkeSpis, RandomSource};
use crate::ike::failure::IkeFailure;
use crate::ike::proposal::IkeProposal;

/// An IKE SA with keys.
#[derive(Debug)]
pub(super) struct IkeSa {
    pub(super) spis: IkeSpis,
    /// Whether this side sent the first request.
    pub(super) is_initiator: bool,
    pub(super) proposal: IkeProposal,
    pub(super) keys: IkeKeys,
    pub(super) state: SaState,
    /// When this side replaces the keys.
    pub(super) rekey_at: Instant,
    /// When the keys must no longer be used.
    pub(super) expires_at: Instant,
    /// The message ID of the next request of this side.
    next_request: u32,
    /// The request of this side that has no response yet.
    pub(super) outstanding: Option<Outstanding>,
    /// The message ID of the next request of the peer.
    expected_request: u32,
    /// The response to the last request of the peer, for when the peer repeats it; empty if there
    /// is none.
    last_response: Vec<Vec<u8>>,
    /// Whether both sides have announced that they join fragments (RFC 7383 section 2.3).
    pub(super) has_fragments: bool,
    /// The request of the peer that is incomplete.
    partial_request: Reassembly,
    /// The response of the peer that is incomplete.
    partial_response: Reassembly,
    /// New fragments that were received and not counted yet.
    fragments_received: u64,
    /// What this side wants to request next. At most [`WANTED_MAX`].
    wanted: VecDeque<Wanted>,
}

/// Which side sent the first request of an IKE SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IkeRole {
    /// This side.
    Initiator,
    /// The peer.
    Responder,
}

impl IkeRole {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }
}

/// What may happen on an IKE SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SaState {
    /// AUTH is not complete.
    Opening,
    Established,
    /// Another IKE SA replaces this one; the side that made that one deletes this one, and this
    /// side does so after a time.
    Replaced {
        until: Instant,
    },
    /// This side has deleted it and waits for the response.
    Closing,
    /// It is deleted, and only repeats its last response.
    Gone {
        until: Instant,
    },
}

/// A request without a response.
#[derive(Debug)]
pub(super) struct Outstanding {
    message_id: u32,
    exchange: ExchangeType,
    /// One datagram, or one for each fragment.
    datagrams: Vec<Vec<u8>>,
    pub(super) task: Task,
    retransmission: Retransmission,
}

/// When a request is repeated, and how often.
#[derive(Debug)]
pub(super) struct Retransmission {
    pub(super) at: Instant,
    delay: Duration,
    left: u32,
}

impl Retransmission {
    /// Begins with a request that was sent now, and is repeated at most `most` times.
    pub(super) fn start(now: Instant, most: u32) -> Self {
        Self { at: now + RETRANSMIT_FIRST, delay: RETRANSMIT_FIRST, left: most }
    }

    /// Repeats the request at most `most` more times.
    pub(super) fn limit(&mut self, most: u32) {
        self.left = self.left.min(most);
    }

    /// Continues on another path. The delays begin again, because nothing shows that the request
    /// fails on this path. At least [`NEW_PATH_RETRANSMITS_MIN`] repetitions are left.
    fn continue_on_new_path(&mut self, now: Instant) {
        self.left = self.left.max(NEW_PATH_RETRANSMITS_MIN);
        self.delay = RETRANSMIT_FIRST;
        self.at = now + self.delay;
    }

    /// Counts a repetition. Returns `false` if there were enough of them.
    pub(super) fn repeat(&mut self, now: Instant) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        self.delay = (self.delay * 2).min(RETRANSMIT_DELAY_MAX);
        self.at = now + self.delay;
        true
    }
}

/// A message that was opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) exchange: ExchangeType,
    pub(super) payloads: Vec<IkePayload>,
}

/// What a request of the peer is.
pub(super) enum Received {
    /// A request that this side has not seen.
    Request(Opened),
    /// A request that was answered; the response is sent again.
    Repeated(Vec<Vec<u8>>),
    /// The response to the outstanding request.
    Response(Task, Opened),
    /// A message that does not fit, or that is not authentic.
    Ignored,
    /// An authentic message that breaks the protocol (RFC 7296 section 2.21).
    /// A request is answered with the notification; a response has none.
    Malformed { notify: Option<NotifyPayload>, failure: IkeFailure },
}

impl IkeSa {
    pub(super) fn new(
        spis: IkeSpis,
        role: IkeRole,
        proposal: IkeProposal,
        keys: IkeKeys,
        rekey_at: Instant,
    ) -> Self {
        Self {
            spis,
            is_initiator: role == IkeRole::Initiator,
            proposal,
            keys,
            state: SaState::Established,
            rekey_at,
            expires_at: rekey_at,
            next_request: 0,
            outstanding: None,
            expected_request: 0,
            last_response: Vec::new(),
            has_fragments: false,
            partial_request: Reassembly::default(),
            partial_response: Reassembly::default(),
            fragments_received: 0,
            wanted: VecDeque::new(),
        }
    }

    /// Begins after `IKE_SA_INIT`, which had message ID 0 and the response `response`.
    pub(super) fn after_init(mut self, response: Option<Vec<u8>>) -> Self {
        self.state = SaState::Opening;
        if self.is_initiator {
            self.next_request = 1;
        } else {
            self.expected_request = 1;
        }
        self.last_response = response.into_iter().collect();
        self
    }

    pub(super) fn role(&self) -> IkeRole {
        if self.is_initiator { IkeRole::Initiator } else { IkeRole::Responder }
    }

    /// The message IDs of the next request of this side, and of that of the peer.
    pub(super) fn message_ids(&self) -> (u32, u32) {
        (self.next_request, self.expected_request)
    }

    /// How many new fragments were received since the last call.
    pub(super) fn take_fragments_received(&mut self) -> u64 {
        std::mem::take(&mut self.fragments_received)
    }

    /// Gives the next request another message ID than its turn.
    #[cfg(test)]
    pub(super) fn set_next_request(&mut self, message_id: u32) {
        self.next_request = message_id;
    }

    /// The SPI that this side has chosen.
    pub(super) fn own_spi(&self) -> u64 {
        if self.is_initiator { self.spis.initiator } else { self.spis.responder }
    }

    /// Remembers what this side wants to request. A duplicate is left out.
    pub(super) fn want(&mut self, wanted: Wanted) {
        if self.wanted.len() < WANTED_MAX && !self.wanted.contains(&wanted) {
            self.wanted.push_back(wanted);
        }
    }

    /// Requests the deletion of this IKE SA as the next exchange. The outstanding request is
    /// repeated no longer than the deletion would be.
    pub(super) fn want_end(&mut self) {
        self.wanted.clear();
        self.want(Wanted::DeleteIke);
        if let Some(one) = &mut self.outstanding {
            one.retransmission.limit(DELETE_RETRANSMITS_MAX);
        }
    }

    /// Whether this side is deleting it, so that the answer of the peer does not matter.
    pub(super) fn is_ending(&self) -> bool {
        self.state == SaState::Closing || self.wanted.contains(&Wanted::DeleteIke)
    }

    /// Takes what is to be requested now: nothing while a request has no response.
    pub(super) fn take_wanted(&mut self) -> Option<Wanted> {
        let is_open = matches!(self.state, SaState::Established | SaState::Replaced { .. });
        if self.outstanding.is_some() || !is_open { None } else { self.wanted.pop_front() }
    }

    /// Takes everything that was to be requested, for the IKE SA that replaces this one.
    pub(super) fn take_all_wanted(&mut self) -> VecDeque<Wanted> {
        std::mem::take(&mut self.wanted)
    }

    /// Sends a request.
    pub(super) fn request(
        &mut self,
        now: Instant,
        exchange: ExchangeType,
        payloads: &[IkePayload],
        task: Task,
        random: &mut dyn RandomSource,
    ) -> Result<Vec<Vec<u8>>, CryptoFailed> {
        let message_id = self.next_request;
        let datagrams = self.seal(exchange, Id::Request(message_id), payloads, random)?;
        self.next_request = message_id.checked_add(1).ok_or(CryptoFailed::Library)?;
        let is_deletion = matches!(task, Task::DeleteIke) || self.is_ending();
        let most = if is_deletion { DELETE_RETRANSMITS_MAX } else { RETRANSMITS_MAX };
        let retransmission = Retransmission::start(now, most);
        let sent = datagrams.clone();
        self.outstanding =
            Some(Outstanding { message_id, exchange, datagrams, task, retransmission });
        Ok(sent)
    }

    /// Sends the response to the request that was received last.
    pub(super) fn respond(
        &mut self,
        exchange: ExchangeType,
        payloads: &[IkePayload],
        random: &mut dyn RandomSource,
    ) -> Result<Vec<Vec<u8>>, CryptoFailed> {
        let message_id = self.expected_request;
        let datagrams = self.seal(exchange, Id::Response(message_id), payloads, random)?;
        self.expected_request = message_id.checked_add(1).ok_or(CryptoFailed::Library)?;
        self.last_response.clone_from(&datagrams);
        Ok(datagrams)
    }

    /// Writes a message: one datagram, or fragments if it is long and the peer joins them (RFC 7383
    /// section 2.5).
    fn seal(
        &mut self,
        exchange: ExchangeType,
        id: Id,
        payloads: &[IkePayload],
        random: &mut dyn RandomSource,
    ) -> Result<Vec<Vec<u8>>, CryptoFailed> {
        let (Id::Request(message_id) | Id::Response(message_id)) = id;
        let header = IkeHeader {
            initiator_spi: self.spis.initiator,
            responder_spi: self.spis.responder,
            exchange,
            from_initiator: self.is_initiator,
            is_response: matches!(id, Id::Response(_)),
            message_id,
        };
        let (first, body) = encode_payloads(payloads);
        let key =
            if self.is_initiator { &mut self.keys.initiator } else { &mut self.keys.responder };
        let room = key.fragment_room(DATAGRAM_BYTES_MAX);
        if !self.has_fragments || body.len() <= room {
            return Ok(vec![key.seal(&header, first, None, &body, random)?]);
        }
        let total = u16::try_from(body.len().div_ceil(room)).map_err(|_| CryptoFailed::Library)?;
        let fragments = (1..).zip(body.chunks(room)).map(|(number, part)| {
            let first = if number == 1 { first } else { 0 };
            key.seal(&header, first, Some(Fragment { number, total }), part, random)
        });
        fragments.collect()
    }

    /// Whether a message is one of the peer in this IKE SA: with its SPIs, and authentic.
    pub(super) fn is_authentic(&self, message: &IkeMessage, bytes: &[u8]) -> bool {
        let header = &message.header;
        let spis = (header.initiator_spi, header.responder_spi);
        let key = if self.is_initiator { &self.keys.responder } else { &self.keys.initiator };
        (self.spis.initiator, self.spis.responder) == spis
            && self.is_initiator != header.from_initiator
            && message.encrypted.is_some_and(|part| key.open(bytes, part.offset).is_ok())
    }

    /// Receives an encrypted message of this IKE SA.
    pub(super) fn receive(&mut self, message: &IkeMessage, bytes: &[u8]) -> Received {
        let header = &message.header;
        let is_allowed = |fragment: Option<Fragment>| fragment.is_none() || self.has_fragments;
        let Some(part) = message.encrypted.filter(|part| is_allowed(part.fragment)) else {
            return Received::Ignored;
        };
        let is_next = !header.is_response && header.message_id == self.expected_request;
        // Only the first fragment repeats the response (RFC 7383 section 2.6.1).
        let is_repeated = !header.is_response
            && Some(header.message_id) == self.expected_request.checked_sub(1)
            && part.fragment.is_none_or(|fragment| fragment.number == 1);
        let is_awaited = header.is_response
            && self.outstanding.as_ref().is_some_and(|one| {
                one.message_id == header.message_id && one.exchange == header.exchange
            });
        if !(is_next || is_repeated || is_awaited) {
            return Received::Ignored;
        }
        let reassembly =
            if is_awaited { &mut self.partial_response } else { &mut self.partial_request };
        let is_needed = |fragment| reassembly.needs(header.message_id, fragment);
        if !is_repeated && !part.fragment.is_none_or(is_needed) {
            return Received::Ignored;
        }
        let key = if self.is_initiator { &self.keys.responder } else { &self.keys.initiator };
        let Ok(inner) = key.open(bytes, part.offset) else { return Received::Ignored };
        if is_repeated {
            return Received::Repeated(self.last_response.clone());
        }
        if matches!(self.state, SaState::Gone { .. }) {
            return Received::Ignored;
        }
        let mut whole = Payloads { first: part.first_payload, bytes: inner };
        if let Some(fragment) = part.fragment {
            self.fragments_received += 1;
            match reassembly.add(header.message_id, fragment, whole) {
                Some(joined) => whole = joined,
                None => return Received::Ignored,
            }
        }
        reassembly.clear();
        let payloads = match parse_payloads(whole.first, &whole.bytes) {
            Ok(payloads) => payloads,
            Err(error) => return malformed(header, error),
        };
        let opened = Opened { exchange: header.exchange, payloads };
        match self.outstanding.take_if(|_| is_awaited) {
            Some(outstanding) => Received::Response(outstanding.task, opened),
            None => Received::Request(opened),
        }
    }

    /// When this IKE SA repeats its request.
    pub(super) fn retransmit_at(&self) -> Option<Instant> {
        let is_gone = matches!(self.state, SaState::Gone { .. });
        self.outstanding.as_ref().filter(|_| !is_gone).map(|one| one.retransmission.at)
    }

    /// The length of the longest datagram of the outstanding request.
    pub(super) fn longest_outstanding(&self) -> Option<usize> {
        self.outstanding.as_ref()?.datagrams.iter().map(Vec::len).max()
    }

    /// Repeats the outstanding request. Returns `None` if there were enough repetitions.
    pub(super) fn retransmit(&mut self, now: Instant) -> Option<Vec<Vec<u8>>> {
        let outstanding = self.outstanding.as_mut()?;
        outstanding.retransmission.repeat(now).then(|| outstanding.datagrams.clone())
    }

    /// Repeats the outstanding request, if there is one, by another path to the peer.
    pub(super) fn retransmit_on_new_path(&mut self, now: Instant) -> Option<Vec<Vec<u8>>> {
        let outstanding = self.outstanding.as_mut()?;
        outstanding.retransmission.continue_on_new_path(now);
        Some(outstanding.datagrams.clone())
    }
}

/// The message ID of a request or a response of this side.
#[derive(Clone, Copy)]
enum Id {
    Request(u32),
    Response(u32),
}

/// An authentic message that cannot be read: UNSUPPORTED_CRITICAL_PAYLOAD with the type of the
/// payload, or INVALID_SYNTAX (RFC 7296 sections 2.5 and 2.21.2).
fn malformed(header: &IkeHeader, error: CodecError) -> Received {
    let (kind, data) = match error {
        CodecError::UnsupportedCritical(kind) => (notify::UNSUPPORTED_CRITICAL_PAYLOAD, vec![kind]),
        _ => (notify::INVALID_SYNTAX, Vec::new()),
    };
    let notify = (!header.is_response).then(|| NotifyPayload::new(kind, data));
    Received::Malformed { notify, failure: error.into() }
}

/// The delay before the first repetition of a request.
const RETRANSMIT_FIRST: Duration = Duration::from_secs(1);
/// The longest delay between repetitions.
const RETRANSMIT_DELAY_MAX: Duration = Duration::from_secs(16);
/// How often a request is repeated: about two minutes altogether.
pub(super) const RETRANSMITS_MAX: u32 = 9;
/// The repetitions of a request that are left on a new path at least. They take 15 seconds.
const NEW_PATH_RETRANSMITS_MIN: u32 = 3;
/// How often a request is repeated that deletes the IKE SA: 15 seconds altogether. A peer that has
/// answered has forgotten the IKE SA, so it answers no repetition if the answer was lost.
const DELETE_RETRANSMITS_MAX: u32 = 3;
/// The longest message in one datagram: with the non-ESP marker and the headers of UDP and IPv6 it
/// is a packet of 1,280 bytes, which every path for IPv6 accepts (RFC 7383 section 2.5.1).
const DATAGRAM_BYTES_MAX: usize = 1280 - 40 - 8 - 4;
/// The most requests that wait for their turn.
const WANTED_MAX: usize = 16;
