//! Decides when the initiator reports that the peer does not answer, while the attempt continues.
//!
//! Missing answers to the first request (IKE_SA_INIT) and to the second one (IKE_AUTH) have
//! different causes. So each of these requests has its own report, at most once in a connection.

use std::time::{Duration, Instant};

use super::event::UnansweredRequest;

/// The requests of the initiator that nothing has answered yet.
#[derive(Debug)]
pub(super) struct Silence {
    /// When to report the first request; `None` after an answer or the report.
    init_at: Option<Instant>,
    /// What to report about IKE_AUTH; `None`: it was not sent, or was answered or reported.
    auth: Option<SentAuth>,
    is_auth_reported: bool,
}

/// An IKE_AUTH request without an answer.
#[derive(Debug)]
struct SentAuth {
    report_at: Instant,
    datagram_bytes_max: usize,
}

impl Silence {
    /// Starts to wait for an answer to the first request, which is sent now.
    pub(super) fn start(now: Instant) -> Self {
        Self { init_at: Some(now + UNANSWERED), auth: None, is_auth_reported: false }
    }

    /// Notes an answer to the first request.
    pub(super) fn note_init_answered(&mut self) {
        self.init_at = None;
    }

    /// Notes that an IKE_AUTH request is sent now, in datagrams of at most this length. If an
    /// earlier request still has no answer, the report is about the earlier one.
    pub(super) fn note_auth_sent(&mut self, now: Instant, datagram_bytes_max: usize) {
        if !self.is_auth_reported {
            let report_at = now + UNANSWERED;
            self.auth.get_or_insert(SentAuth { report_at, datagram_bytes_max });
        }
    }

    /// Notes an answer to an IKE_AUTH request.
    pub(super) fn note_auth_answered(&mut self) {
        self.auth = None;
    }

    /// When the next report is due.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.init_at.into_iter().chain(self.auth.as_ref().map(|auth| auth.report_at)).min()
    }

    /// Takes the report that is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<UnansweredRequest> {
        if self.init_at.take_if(|at| *at <= now).is_some() {
            return Some(UnansweredRequest::Init);
        }
        let auth = self.auth.take_if(|auth| auth.report_at <= now)?;
        self.is_auth_reported = true;
        Some(UnansweredRequest::Auth { datagram_bytes_max: auth.datagram_bytes_max })
    }
}

/// How long the initiator waits for any answer to a request before it reports the silence.
pub const UNANSWERED: Duration = Duration::from_secs(5);
