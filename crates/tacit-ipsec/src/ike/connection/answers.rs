//! Chooses which answers an IKE initiator tries, so that a flood of forged answers cannot exhaust
//! CPU time and memory. The *initiator* is the peer that sends the first request (IKE_SA_INIT).
//!
//! Anyone who sees the first request can send any number of answers that look valid. To try an
//! answer, the initiator computes a key exchange, and sends an IKE_AUTH request. The initiator uses
//! memory until this request is answered. So the initiator tries only a few answers at a time:
//!
//! ```text
//!   answer ─> dropped if repeated ─> waits ─> tried: NEW_ATTEMPTS_MAX in a PERIOD (`attempts`)
//! ```
//!
//! The initiator chooses the next of the waiting answers at random. If too many answers wait, the
//! initiator drops an answer at random: a waiting answer or the new answer. So an attacker gains
//! nothing by sending the first or the last answers. The initiator repeats its request, and the
//! peer answers each repetition. So the initiator will probably try an answer of the peer.
//!
//! Limits: [`NEW_ATTEMPTS_MAX`] answers are tried in a [`PERIOD`], and [`WAITING_MAX`] answers
//! wait. The initiator remembers [`REFUSED_MAX`] answers that failed when they were tried, and
//! drops their repetitions. An answer has at most [`ANSWER_BYTES_MAX`] bytes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Digest, SHA256, digest};

use crate::ike::crypto::{KeySecret, RandomSource, random_array};

/// The answers to one first request.
#[derive(Debug, Default)]
pub(super) struct Answers {
    waiting: Vec<Answer>,
    /// How many answers had the chance to wait in this period.
    candidates: usize,
    /// The digests of answers that were tried and refused, the oldest first.
    refused: VecDeque<Digest>,
    period_began: Option<Instant>,
    /// How many answers were tried in this period.
    tried: usize,
    /// Whether answers were dropped in the last period.
    was_crowded: bool,
    is_closed: bool,
}

/// A first request and its secret, which a request with a cookie has too.
#[derive(Debug)]
pub(super) struct SentRequest {
    pub(super) secret: Arc<KeySecret>,
    pub(super) bytes: Vec<u8>,
}

/// An answer that was not tried yet.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) bytes: Vec<u8>,
    /// The requests that it may answer.
    pub(super) requests: Vec<Arc<SentRequest>>,
}

impl Answers {
    /// Adds an answer, unless it is a repetition or too long.
    pub(super) fn add(&mut self, answer: Answer, random: &mut dyn RandomSource) {
        let Answer { bytes, .. } = &answer;
        let waits = self.waiting.iter().any(|one| one.bytes == *bytes);
        let is_repeated = waits || self.was_refused(bytes);
        if self.is_closed || is_repeated || bytes.len() > ANSWER_BYTES_MAX {
            return;
        }
        self.candidates += 1;
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push(answer);
        } else if let Some(place) = self.waiting.get_mut(below(self.candidates, random)) {
            // Each candidate of the period has the same chance to be among those that wait.
            *place = answer;
        }
    }

    /// Takes the answer that is tried next, if one may be tried now.
    pub(super) fn take(&mut self, now: Instant, random: &mut dyn RandomSource) -> Option<Answer> {
        if self.waiting.is_empty() {
            return None;
        }
        if self.period_end().is_none_or(|end| end <= now) {
            self.period_began = Some(now);
            self.tried = 0;
            self.was_crowded = self.candidates > WAITING_MAX;
            self.candidates = self.waiting.len();
        }
        if self.tried >= NEW_ATTEMPTS_MAX {
            return None;
        }
        self.tried += 1;
        Some(self.waiting.swap_remove(below(self.waiting.len(), random)))
    }

    /// When the next answer may be tried; `None` if none waits.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.period_end().filter(|_| self.is_waiting())
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether answers were dropped in the last period, among which that of the peer may be. Each
    /// period is reported once.
    pub(super) fn take_crowded(&mut self) -> bool {
        std::mem::take(&mut self.was_crowded)
    }

    /// Notes that an answer was tried and refused, so that its repetitions are not tried.
    pub(super) fn note_refused(&mut self, bytes: &[u8]) {
        if self.refused.len() == REFUSED_MAX {
            self.refused.pop_front();
        }
        self.refused.push_back(digest(&SHA256, bytes));
    }

    /// Tries no further answers.
    pub(super) fn close(&mut self) {
        self.waiting.clear();
        self.candidates = 0;
        self.is_closed = true;
    }

    fn was_refused(&self, bytes: &[u8]) -> bool {
        if self.refused.is_empty() {
            return false;
        }
        let wanted = digest(&SHA256, bytes);
        self.refused.iter().any(|one| one.as_ref() == wanted.as_ref())
    }

    fn period_end(&self) -> Option<Instant> {
        self.period_began.map(|began| began + PERIOD)
    }
}

/// A random number below `end`; 0 if there are no random bytes.
fn below(end: usize, random: &mut dyn RandomSource) -> usize {
    let number = u64::from_be_bytes(random_array(random).unwrap_or_default());
    let end = u64::try_from(end.max(1)).unwrap_or(u64::MAX);
    usize::try_from(number % end).unwrap_or(0)
}

/// How many answers are tried in a period. With [`ATTEMPTS_MAX`](super::attempts::ATTEMPTS_MAX), an
/// attempt lasts at least 1.5 seconds, in which AUTH is sent twice.
pub(super) const NEW_ATTEMPTS_MAX: usize = 16;
pub(super) const PERIOD: Duration = Duration::from_millis(500);
/// How many answers wait.
pub(super) const WAITING_MAX: usize = 64;
/// How many refused answers are recognized.
const REFUSED_MAX: usize = 256;
/// The longest answer: with requests for the certificates of 200 authorities.
const ANSWER_BYTES_MAX: usize = 8192;
