//! Defines the content of `tacit show traces`: the traces in progress, and how many bytes each
//! trace has recorded.

use serde::{Deserialize, Serialize};

use crate::session::trace::TraceState;

/// The traces in progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TracesDisplay {
    /// The version of this format.
    pub version: u32,
    /// The traces, the oldest first.
    pub traces: Vec<TraceState>,
}
