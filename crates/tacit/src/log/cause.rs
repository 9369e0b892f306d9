//! Who causes an event: what may repeat is limited for each, so that one does not suppress the
//! lines of others.

use tacit_core::refusal::RunLabel;

use crate::address::Source;

/// Who causes an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum EventCause {
    /// The agent itself, or what it does not know.
    #[default]
    Agent,
    /// A program of this run.
    Run(RunLabel),
    /// A client that connects to the agent or into a run.
    Source(Source),
    /// A client of this rule that has no network address.
    Rule(String),
}

/// Causes that do not take shares from each other: clients come in any number, runs do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The agent and its runs.
    Runs,
    /// Clients.
    Clients,
}

impl EventCause {
    pub(super) fn side(&self) -> Side {
        match self {
            Self::Agent | Self::Run(_) => Side::Runs,
            Self::Source(_) | Self::Rule(_) => Side::Clients,
        }
    }
}

/// One of something for each side.
#[derive(Debug, Default)]
pub(super) struct BySide<T> {
    pub(super) runs: T,
    pub(super) clients: T,
}

impl<T> BySide<T> {
    pub(super) fn of(&mut self, cause: &EventCause) -> &mut T {
        match cause.side() {
            Side::Runs => &mut self.runs,
            Side::Clients => &mut self.clients,
        }
    }
}
