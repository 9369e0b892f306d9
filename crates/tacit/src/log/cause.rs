//! Identifies the run (a program under `tacit run`) or the client that caused an event. The log
//! limits the number of lines separately for each run and each client. So one run or client cannot
//! suppress the log lines of the others.

use tacit_core::refusal::RunLabel;

use crate::address::Source;

/// The run or client that caused an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum EventCause {
    /// The agent itself, or an unknown cause.
    #[default]
    Agent,
    /// A program of this run.
    Run(RunLabel),
    /// A client that connects to the agent or into a run.
    Source(Source),
    /// A client of this rule that has no network address.
    Rule(String),
}

/// Two groups of causes with separate limits: there can be any number of clients, but few runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CauseGroup {
    /// The agent and its runs.
    Runs,
    /// Clients.
    Clients,
}

impl EventCause {
    pub(super) fn group(&self) -> CauseGroup {
        match self {
            Self::Agent | Self::Run(_) => CauseGroup::Runs,
            Self::Source(_) | Self::Rule(_) => CauseGroup::Clients,
        }
    }
}

/// A value for each group of causes.
#[derive(Debug, Default)]
pub(super) struct ByGroup<T> {
    pub(super) runs: T,
    pub(super) clients: T,
}

impl<T> ByGroup<T> {
    pub(super) fn of(&mut self, cause: &EventCause) -> &mut T {
        match cause.group() {
            CauseGroup::Runs => &mut self.runs,
            CauseGroup::Clients => &mut self.clients,
        }
    }
}
