//! Starts, lists and ends traces (`tacit trace`), which record the bytes or keys of connections.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Agent, AgentOptions};
use crate::control::display::VERSION;
use crate::control::display::traces::TracesDisplay;
use crate::control::trace::Tracer;
use crate::session::trace::TraceEndReason;
use crate::stream::lane::Shared;

/// How long the end of the agent waits for the files and reports of traces.
const TRACES_WAIT_MAX: Duration = Duration::from_secs(1);
/// How often it checks them.
const TRACES_POLL: Duration = Duration::from_millis(10);

/// Returns what the control socket needs to start traces for its clients.
pub(super) fn tracer(options: &AgentOptions, shared: &Shared) -> Tracer {
    Tracer {
        live: Arc::clone(&shared.live),
        table: Arc::clone(&shared.table),
        policy: options.policy.clone(),
        log: shared.log.clone(),
    }
}

impl Agent {
    /// `tacit show traces`.
    pub(super) fn show_traces(&self) -> TracesDisplay {
        TracesDisplay { version: VERSION, traces: self.shared.table.traces().show() }
    }

    /// Ends all traces, and waits a while until their files are complete and their reports sent.
    pub(super) async fn end_traces(&self) {
        let traces = self.shared.table.traces();
        traces.end_all(TraceEndReason::AgentEnded);
        let until = Instant::now() + TRACES_WAIT_MAX;
        while !traces.is_empty() && Instant::now() < until {
            tokio::time::sleep(TRACES_POLL).await;
        }
    }
}
