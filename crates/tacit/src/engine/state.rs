//! Defines the data that `tacit show` prints about an engine or a data worker.

use serde::{Deserialize, Serialize};

/// One thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ThreadState {
    /// The name of the thread.
    pub thread: String,
    /// The purpose of the thread.
    pub kind: ThreadPurpose,
    /// The CPU that it is bound to; `None`: the kernel chooses.
    pub cpu: Option<usize>,
    /// Its scheduling class: `normal`, `batch`, `idle` or `other`.
    pub class: Option<String>,
    /// Its nice value.
    pub nice: Option<i32>,
    /// `idle`, `busy`, or of an engine `saturated`.
    pub state: String,
    /// Connections that an engine is setting up.
    pub in_flight: Option<usize>,
    /// The maximum of this number.
    pub queue: Option<usize>,
    /// Connections that it sets up or relays.
    pub connections: usize,
    /// Connections that it relays.
    pub relays: usize,
    /// Handshakes that it has done.
    pub handshakes: u64,
    /// Connections that an engine has handed over, or a worker has taken over.
    pub handed: u64,
    /// Connections that a worker has handed to the worker on their program's CPU.
    pub left: Option<u64>,
    /// Connections that workers set up because no engine had a free slot.
    pub spilled: Option<u64>,
    /// Its CPU time, in microseconds.
    pub cpu_us: f64,
    /// The time that it was ready to run and had no CPU, in microseconds; `None`: the kernel does
    /// not count it.
    pub delay_us: Option<f64>,
    /// Its CPU time since it started, in percent of one CPU.
    pub percent: Option<f64>,
    /// The same for the last one or two seconds.
    pub percent_recent: Option<f64>,
}

/// The purpose of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadPurpose {
    /// Sets up connections on a CPU of its own.
    Engine,
    /// Serves connections.
    Worker,
}
