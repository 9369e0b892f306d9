//! DNS of runs: forwarded to the host's resolvers, and remembered.
//!
//! ```text
//!   program ── UDP 53, to whatever address ──> datagram ──┐
//!           ── TCP 53 ──────────────────────> stream   ──┴─ Asker ──> host's resolvers
//!                                                             │
//!                                          Run's names, the kernel's sets
//! ```
//!
//! Only names that some rule allows are asked for; `tacit_core::dns::verdict` says what becomes
//! of the rest. The agent writes each question itself (`tacit_core::dns::Client`). What the
//! resolvers answer is remembered, and captured, before the program gets it: its connect can never
//! be faster than we are. `/etc/hosts` of the host counts like an answer that lasts as long as it
//! stands there.
//!
//! Limits: [`QUESTIONS_MAX`] open questions a run and IP version by datagram; [`stream`] has those
//! of TCP.
//!
//! It does not cache: the program asks as often as it likes, and the host's resolver caches.

mod asker;
pub mod host_file;
pub mod hosts;
mod resolvers;
pub mod stream;
mod upstream;

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tacit_core::dns::{self, Question, Refusal, Verdict};
use tacit_core::policy::may_ask;

use crate::clock;
use crate::live::Live;
use crate::log::{Event, Log};
use crate::run::Run;
use crate::run::capture::Capture;
use crate::session::{RefusalTable, account};

pub use asker::Asker;
pub use resolvers::Resolvers;

/// Questions of one run and IP version by datagram that may wait; more are dropped, counted and
/// logged, and the program asks again.
pub const QUESTIONS_MAX: usize = dns::WAITING_MAX;
/// Where DNS is spoken.
pub const PORT: u16 = 53;

/// What answering the questions of one run needs, on whatever thread.
#[derive(Debug)]
pub struct Forwarder {
    live: Arc<ArcSwap<Live>>,
    capture: Arc<Capture>,
    resolvers: Arc<Resolvers>,
    refusals: Arc<RefusalTable>,
    log: Log,
}

impl Forwarder {
    /// For the run that `capture` is about.
    #[must_use]
    pub fn new(
        live: Arc<ArcSwap<Live>>,
        capture: Arc<Capture>,
        resolvers: Arc<Resolvers>,
        refusals: Arc<RefusalTable>,
        log: Log,
    ) -> Self {
        Self { live, capture, resolvers, refusals, log }
    }

    /// The run whose questions it answers.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.capture.run
    }

    fn verdict(&self, question: &Question, search: &[String]) -> Verdict {
        let live = self.live.load();
        let now = clock::now_unix_s();
        dns::verdict(
            question,
            search,
            |name| may_ask(&live.policy, name, now),
            |address| self.capture.includes(address),
        )
    }

    /// Leaves a trace of a name that is refused.
    fn note_refused(&self, question: &Question, why: Refusal) {
        account::refused_name(&self.log, &self.refusals, self.run(), &question.name, why);
    }

    /// Takes what a resolver's response teaches, before the program gets it; whether that is
    /// captured.
    async fn learn(&self, response: &[u8], question: &Question) -> bool {
        let learnt = self.remember(response, question).await;
        if let Err(error) = &learnt {
            self.log.error(Event::new("capture-failed").field("error", error));
        }
        learnt.is_ok()
    }

    /// Remembers what the answer gives the name.
    async fn remember(&self, response: &[u8], question: &Question) -> io::Result<()> {
        let Ok(answers) = dns::answers(response, question) else { return Ok(()) };
        for answer in answers {
            self.capture.run.learn(&question.name, answer.address, answer.ttl);
        }
        // Another question may have brought the news, and its answer is not captured yet.
        self.capture.follow_news().await
    }
}
