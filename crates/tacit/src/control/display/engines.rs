//! Defines the content of `tacit show engines`: the engines and data workers with their CPUs and
//! load.

use serde::{Deserialize, Serialize};

use crate::engine::ThreadState;

/// The engines and data workers of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EnginesDisplay {
    /// The version of this format.
    pub version: u32,
    /// Engines first, then data workers.
    pub threads: Vec<ThreadState>,
    /// The number of engines.
    pub engines: usize,
    /// Whether workers set up connections for which no engine has a free slot; `None`: there are no
    /// engines.
    pub spill: Option<bool>,
    /// The number of data workers, without those that follow programs.
    pub workers: usize,
    /// The maximum of this number.
    pub workers_max: usize,
}
