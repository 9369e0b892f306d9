//! Decides when the agent checks all open connections again. The check finds peers that tacit no
//! longer trusts, and connections that exceed their maximum age or idle time
//! (`session/recheck.rs`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Agent, FILES_INTERVAL};
use crate::clock;
use crate::ledger::on_own_thread;
use crate::live::Live;
use crate::log::Event;
use crate::session::{Pass, Peers};

/// The shortest time between two checks of ages, because each check visits all connections.
const AGES_INTERVAL: Duration = Duration::from_secs(1);

/// What the next pass has to check, and the pass in progress.
#[derive(Debug)]
pub(super) struct Passes {
    /// Policies that were replaced since the last pass. Their trusts may differ.
    replaced: Vec<Arc<Live>>,
    under_way: Option<UnderWay>,
    /// The earliest time at which a connection can reach its `max-age` or `idle` limit.
    age_due: Option<Instant>,
}

#[derive(Debug)]
struct UnderWay {
    /// Receives the time after which a connection can reach its `max-age` or `idle` limit.
    result: oneshot::Receiver<Option<Duration>>,
    /// Whether the pass checks ages.
    ages: bool,
}

impl Passes {
    /// The state at the start, with the first policy and no connections.
    pub(super) fn new(live: &Live) -> Self {
        let age_due = live.ends_by_time().then(Instant::now);
        Self { replaced: Vec::new(), under_way: None, age_due }
    }

    /// Records that a policy was replaced by another one, or its credentials by others.
    pub(super) fn note_replaced(&mut self, before: Arc<Live>, installed: &Live) {
        if before.ends_by_time() || installed.ends_by_time() {
            self.age_due = Some(Instant::now());
        }
        self.replaced.push(before);
    }

    /// Waits until the pass in progress has ended. Without one, waits until ages must be checked.
    pub(super) async fn due(&mut self) {
        let Some(UnderWay { result, ages }) = &mut self.under_way else {
            return clock::sleep_until(self.age_due).await;
        };
        // If the pass has failed, ages are checked again soon.
        let next = result.await.unwrap_or(Some(Duration::ZERO));
        if *ages {
            let due = next.and_then(|after| Instant::now().checked_add(after.max(AGES_INTERVAL)));
            self.age_due = self.age_due.into_iter().chain(due).min();
        }
        self.under_way = None;
    }
}

impl Agent {
    /// Begins a pass over the open connections if one is due and none is in progress.
    pub(super) fn look_at_connections(&mut self) {
        if self.passes.under_way.is_some() {
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
            credentials: self.credentials.loaded.clone(),
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
                self.shared.log.error(event.field(
                    "next",
                    "the agent will soon try again to check the peers of all open connections",
                ));
                if outdated || ended {
                    self.shared.table.ask_again();
                }
                if ages {
                    self.passes.age_due = Some(Instant::now() + FILES_INTERVAL);
                }
            }
        }
    }
}
