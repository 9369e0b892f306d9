//! Answers the DNS queries of programs under `tacit run`: sends queries to the host's resolvers,
//! and records the addresses of each name. For `tacit agent --host`, the module `of_host` is used
//! instead.
//!
//! ```text
//!   program ── UDP 53, to any address ──> datagram ──┐
//!           ── TCP 53 ──────────────────> stream   ──┴─ ResolverClient ──> host's resolvers
//!                                                             │
//!                                           names of the run, captured addresses
//! ```
//!
//! The agent sends queries only for names that a rule allows. The agent builds each query itself,
//! and never forwards the message of a program. The module `tacit_core::dns::verdict` determines
//! the answers for all other names. Before the program gets an answer, tacit captures connections
//! to the addresses in the answer. If the host's `/etc/hosts` contains a name, the agent sends no
//! query for this name.
//!
//! There is no cache: if a program repeats a query, the agent sends the query again.
//!
//! Limits: [`QUERIES_MAX`] unanswered UDP queries for each run and IP version; [`stream`] has the
//! limits for TCP.

pub mod hosts;
mod of_host;
mod resolver_client;
mod resolvers;
pub mod stream;
mod upstream;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tacit_core::dns::{self, DnsQuestion, ResponseCode, Verdict};
use tacit_core::policy::{denial_of_name, may_ask};

use crate::clock;
use crate::live::Live;
use crate::log::{Event, EventCause, Log};
use crate::run::Run;
use crate::run::capture::Capture;
use crate::session::{RefusalTable, RefusedName, account};

pub use resolver_client::ResolverClient;
pub use resolvers::Resolvers;

/// The maximum number of waiting queries of one run and IP version over UDP. Further queries are
/// dropped, counted and logged; the program sends them again.
pub const QUERIES_MAX: usize = dns::WAITING_MAX;
/// The port of DNS.
pub const PORT: u16 = 53;

/// The state for answering the queries of one run, on any thread.
#[derive(Debug)]
pub struct Forwarder {
    live: Arc<ArcSwap<Live>>,
    capture: Arc<Capture>,
    resolvers: Arc<Resolvers>,
    refusals: Arc<RefusalTable>,
    log: Log,
}

impl Forwarder {
    /// The state for the run of `capture`.
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

    /// The run whose queries it answers.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.capture.run
    }

    fn verdict(&self, question: &DnsQuestion, search: &[String]) -> Verdict {
        if self.run().has_plan() {
            return self.verdict_of_host(question, search);
        }
        let live = self.live.load();
        let now = clock::now_unix_s();
        dns::verdict(
            question,
            search,
            |name| may_ask(&live.policy, name, now),
            |address| self.capture.includes(address),
        )
    }

    /// Whether an address is reserved for aliases, or is an alias that was assigned before.
    fn is_reserved(&self, address: IpAddr) -> bool {
        if self.run().has_plan() {
            return false;
        }
        self.live.load().policy.agent.aliases.reserves(address)
            || self.run().alias_name(address).is_some()
    }

    /// Logs and records a refused name.
    fn note_refused(&self, question: &DnsQuestion, why: ResponseCode) {
        let live = self.live.load();
        let rule = denial_of_name(&live.policy, &question.name, clock::now_unix_s());
        let refused = RefusedName { question, rule, answer: why };
        account::refused_name(&self.log, &self.refusals, self.run(), &refused);
    }

    fn note_unreadable(&self, question: &DnsQuestion) {
        let event = Event::new("answer-unreadable")
            .caused_by(EventCause::Run(self.run().label()))
            .field("run", &self.capture.run.name)
            .field("name", &question.name);
        self.log.warn(event.limited(format!("answer-unreadable {}", self.capture.run.name)));
    }

    /// Stores the addresses in an answer before the program gets the answer, and replaces addresses
    /// by aliases. `None`: the program must not get the answer.
    async fn learn(&self, response: Vec<u8>, question: &DnsQuestion) -> Option<Vec<u8>> {
        if self.run().has_plan() {
            return self.learn_of_host(response, question).await;
        }
        let Ok(answers) = dns::answers(&response, question) else {
            self.note_unreadable(question);
            return None;
        };
        let mut used = HashMap::new();
        for answer in answers {
            match self.capture.learn(&question.name, answer) {
                Ok(address) => used.insert(answer.address.to_canonical(), address),
                Err(error) => {
                    self.log.error(
                        Event::new("name-not-learnt")
                            .caused_by(EventCause::Run(self.run().label()))
                            .field("run", &self.capture.run.name)
                            .field("name", &question.name)
                            .field("address", &answer.address)
                            .field("error", &error)
                            .limited(format!("name-not-learnt {}", self.capture.run.name)),
                    );
                    return None;
                }
            };
        }
        // Another task may have stored the same addresses, and may still be capturing them.
        if let Err(error) = self.capture.follow_news().await {
            let key = format!("capture-failed {}", self.capture.run.name);
            let event = Event::new("capture-failed").caused_by(EventCause::Run(self.run().label()));
            self.log.error(event.field("error", &error).limited(key));
            return None;
        }
        let changed = dns::with_aliases(&response, |address| used.get(&address).copied());
        changed.ok().map(|changed| changed.unwrap_or(response))
    }
}
