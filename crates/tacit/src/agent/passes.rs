//! When the open connections are looked at again: for peers that are no longer trusted, and ages.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Agent;
use crate::clock;
use crate::ledger::on_own_thread;
use crate::live::Live;
use crate::log::Event;
use crate::session::{Pass, Peers};

/// What the next pass is about, and the one that is under way.
#[derive(Debug)]
pub(super) struct Passes {
    /// Policies that were replaced since the last pass; each may have had another trust.
    replaced: Vec<Arc<Live>>,
    under_way: Option<UnderWay>,
    /// When a connection may reach its `max-age` or `idle`; `None`: none has one.
    age_due: Option<Instant>,
}

#[derive(Debug)]
struct UnderWay {
    /// How long no connection can reach its `max-age` or `idle`.
    result: oneshot::Receiver<Option<Duration>>,
    /// Whether it looks at ages.
    ages: bool,
}

impl Passes {
    /// Nothing is open so far; that is the first policy.
    pub(super) fn new(live: &Live) -> Self {
        let age_due = live.ends_by_time().then(Instant::now);
        Self { replaced: Vec::new(), under_way: None, age_due }
    }

    /// A policy was replaced by another one, or by itself with other credentials.
    pub(super) fn note_replaced(&mut self, before: Arc<Live>, installed: &Live) {
        if before.ends_by_time() || installed.ends_by_time() {
            self.age_due = Some(Instant::now());
        }
        self.replaced.push(before);
    }

    /// Whether no pass is under way; takes the result of one that has ended.
    fn is_idle(&mut self) -> bool {
        let Some(UnderWay { result, ages }) = &mut self.under_way else { return true };
        let next = match result.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => return false,
            Ok(next) => next,
            // It has failed; ages are looked at again at once.
            Err(oneshot::error::TryRecvError::Closed) => Some(Duration::ZERO),
        };
        if *ages {
            let due = next.and_then(|after| Instant::now().checked_add(after));
            self.age_due = self.age_due.into_iter().chain(due).min();
        }
        self.under_way = None;
        true
    }
}

impl Agent {
    /// Begins a pass over the open connections if one is due, and none is under way.
    pub(super) fn look_at_connections(&mut self) {
        if !self.passes.is_idle() {
            return;
        }
        let table = Arc::clone(&self.shared.table);
        let outdated = table.take_outdated();
        let ended = table.take_ended(clock::now_unix_s());
        let peers = match (self.passes.replaced.is_empty() && !outdated, ended) {
            (false, _) => Peers::All,
            (true, true) => Peers::Ended,
            (true, false) => Peers::None,
        };
        let ages = self.passes.age_due.is_some_and(|due| due <= Instant::now());
        if peers == Peers::None && !ages {
            return;
        }
        let pass = Pass {
            table,
            live: self.shared.live.load_full(),
            materials: self.credentials.materials.clone(),
            replaced: self.passes.replaced.clone(),
            peers,
            ages,
            log: self.shared.log.clone(),
        };
        match on_own_thread("recheck", move || pass.run()) {
            Ok(result) => {
                self.passes.replaced.clear();
                if ages {
                    self.passes.age_due = None;
                }
                self.passes.under_way = Some(UnderWay { result, ages });
            }
            Err(error) => {
                let event = Event::new("peers-not-checked").field("error", &error);
                self.shared.log.error(event.field("next", "they are checked again soon"));
                if outdated || ended {
                    self.shared.table.ask_again();
                }
            }
        }
    }
}
