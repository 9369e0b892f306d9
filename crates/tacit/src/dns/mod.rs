//! DNS of runs: forwarded to the host's resolvers, and remembered.
//!
//! ```text
//!   program ── UDP 53, to whatever address ──> datagram ──┐
//!           ── TCP 53 ──────────────────────> stream   ──┴─ Forwarder ──> host's resolvers
//!                                                             │
//!                                          Run's names, the kernel's sets
//! ```
//!
//! Only names that some rule can match are asked for; `tacit_core::dns::verdict` says what becomes
//! of the rest. What the resolvers say is remembered, and captured, before the program hears it:
//! its connect can never be faster than we are. `/etc/hosts` of the host counts like an answer that
//! lasts as long as it stands there.
//!
//! Limits: [`QUESTIONS_MAX`] open questions a run by datagram; [`stream`] has those of TCP.
//!
//! It does not cache: the program asks as often as it likes, and the host's resolver caches.

pub mod host_file;
pub mod hosts;
mod resolvers;
pub mod stream;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tacit_core::dns::{self, Question, Refusal, Verdict};
use tacit_core::flow::Protocol;
use tacit_core::policy::can_match_name;
use tacit_sys::{IpVersion, transparent};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock;
use crate::live::Live;
use crate::log::{Event, Log};
use crate::run::Run;
use crate::run::capture::Capture;
use crate::session::{RefusalTable, account};

pub use resolvers::Resolvers;

/// Questions of one run by datagram that may be open; more are dropped, and asked again.
pub const QUESTIONS_MAX: usize = 256;
/// Where DNS is spoken.
pub const PORT: u16 = 53;

/// How a question came, and so how much its answer may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// An answer that does not fit says so, and the program asks again by stream.
    Datagram,
    /// Answers of any length.
    Stream,
}

/// Answers the questions of one run.
#[derive(Debug)]
pub struct Forwarder {
    live: Arc<ArcSwap<Live>>,
    capture: Arc<Capture>,
    resolvers: Arc<Resolvers>,
    open: Arc<Semaphore>,
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
        let open = Arc::new(Semaphore::new(QUESTIONS_MAX));
        Self { live, capture, resolvers, open, refusals, log }
    }

    /// The run whose questions it answers.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.capture.run
    }

    /// A place among the open questions; `None`: all are taken.
    #[must_use]
    pub fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.open).try_acquire_owned().ok()
    }

    /// Answers one query that came in a datagram, in the name of the server that was asked.
    pub async fn answer_datagram(
        &self,
        _place: OwnedSemaphorePermit,
        query: &[u8],
        program: SocketAddr,
        asked: SocketAddr,
    ) {
        let Some(response) = self.answer(query, Transport::Datagram).await else { return };
        let line = &self.capture.run.line;
        let sent = async {
            let socket = line.socket(Protocol::Udp, IpVersion::of(asked.ip())).await?;
            transparent::answer_as(socket.as_fd(), asked, &response, program)
        };
        if let Err(error) = sent.await {
            self.log.warn(Event::new("dns-failed").field("error", &error));
        }
    }

    /// The response to a query; `None` to what is none.
    pub async fn answer(&self, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let Ok(question) = dns::question(query) else {
            return dns::refuse(query, Refusal::FormatError);
        };
        match self.verdict(&question) {
            Verdict::Refuse(why) => {
                account::refused_name(&self.log, &self.refusals, self.run(), &question.name, why);
                dns::refuse(query, why)
            }
            Verdict::Forward => match self.forward(query, &question, transport).await {
                Some(response) => Some(response),
                None => dns::refuse(query, Refusal::ServerFailure),
            },
        }
    }

    fn verdict(&self, question: &Question) -> Verdict {
        let live = self.live.load();
        let now = clock::now_unix_s();
        dns::verdict(
            question,
            &self.resolvers.search(),
            |name| can_match_name(&live.policy, name, now),
            |address| self.capture.includes(address),
        )
    }

    /// Asks the resolvers one after the other until one has an answer, and learns from it.
    async fn forward(
        &self,
        query: &[u8],
        question: &Question,
        transport: Transport,
    ) -> Option<Vec<u8>> {
        let mut refusal = None;
        for resolver in self.resolvers.addresses() {
            match resolvers::ask(resolver, query, transport).await {
                Ok(response) if dns::is_refusal(&response) => refusal = Some(response),
                Ok(response) => {
                    if let Err(error) = self.learn(&response, question).await {
                        self.log.error(Event::new("capture-failed").field("error", &error));
                        return None;
                    }
                    return Some(response);
                }
                Err(error) => self.log.warn(
                    Event::new("resolver-failed")
                        .field("resolver", &resolver)
                        .field("error", &error),
                ),
            }
        }
        refusal
    }

    /// Remembers what the answer gives the name, before anybody can use it.
    async fn learn(&self, response: &[u8], question: &Question) -> io::Result<()> {
        let Ok(answers) = dns::answers(response, question) else { return Ok(()) };
        for answer in answers {
            self.capture.run.learn(&question.name, answer.address, answer.ttl);
        }
        // Somebody else's question may have brought the news, and is still at it.
        self.capture.follow_news().await
    }
}
