//! Defines the content of `tacit show engines`: the engines, the data workers, and the threads that
//! move packets of tunnels. For each of them, the output contains the CPU and the load.

use serde::{Deserialize, Serialize};

use super::stats::ProcessedBy;
use crate::engine::{ThreadState, class_word};
use crate::packet::{PacketStatistics, PacketThreadState};

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
    /// The threads that move packets; `None`: no run has needed a tunnel yet.
    pub packets: Option<PacketEnginesDisplay>,
}

/// The threads that move packets of tunnels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PacketEnginesDisplay {
    /// The thread for both directions first.
    pub threads: Vec<PacketThreadDisplay>,
    /// The memory of the datagrams that wait to be received.
    pub queue_bytes: u64,
    /// Its limit.
    pub queue_bytes_max: u64,
    /// Datagrams that were dropped at this limit.
    pub queue_drops: u64,
    /// How often the second thread has begun to receive, because the engine was saturated.
    pub spills: u64,
}

/// A thread that moves packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PacketThreadDisplay {
    /// The name of the thread.
    pub thread: String,
    /// What its packets count as in `tacit show stats`.
    pub by: ProcessedBy,
    /// The CPU that it is bound to; `None`: the kernel chooses.
    pub cpu: Option<usize>,
    /// Its scheduling class: `normal`, `batch`, `idle` or `other`.
    pub class: Option<String>,
    /// Its nice value.
    pub nice: Option<i32>,
    /// `idle`, `busy` or `saturated`.
    pub state: String,
    /// The part of the last second in which it had work.
    pub busy_percent: f64,
    /// Its CPU time, in microseconds. That of an engine includes polling.
    pub cpu_us: f64,
    /// The time that it was ready to run and had no CPU, in microseconds; `None`: the kernel does
    /// not count it.
    pub delay_us: Option<f64>,
}

impl PacketEnginesDisplay {
    /// Formats the state of the threads; `None` if there are none.
    #[must_use]
    pub fn new(packets: &PacketStatistics) -> Option<Self> {
        let beside = if packets.has_engine() { ProcessedBy::Spilled } else { ProcessedBy::General };
        let threads = packets.threads.iter().map(|one| thread(one, beside)).collect();
        let queue = packets.queue;
        (!packets.threads.is_empty()).then_some(Self {
            threads,
            queue_bytes: queue.bytes,
            queue_bytes_max: queue.bytes_max,
            queue_drops: queue.drops,
            // Every second move is one back.
            spills: packets.moves.div_ceil(2),
        })
    }
}

/// A thread; if it is no engine, its packets count as `beside`.
fn thread(one: &PacketThreadState, beside: ProcessedBy) -> PacketThreadDisplay {
    let us = |ns: u64| ns as f64 / 1e3;
    let state = match one.busy_permille {
        0 => "idle",
        SATURATED_PERMILLE.. => "saturated",
        _ => "busy",
    };
    PacketThreadDisplay {
        thread: one.name.to_owned(),
        by: if one.is_engine { ProcessedBy::Engine } else { beside },
        cpu: one.cpu,
        class: one.scheduling.map(|scheduling| class_word(scheduling.class).to_owned()),
        nice: one.scheduling.map(|scheduling| scheduling.nice),
        state: state.to_owned(),
        busy_percent: f64::from(u32::try_from(one.busy_permille).unwrap_or(u32::MAX)) / 10.0,
        cpu_us: us(one.cpu_ns),
        delay_us: one.waited_ns.map(us),
    }
}

/// From here on a thread counts as saturated.
const SATURATED_PERMILLE: u64 = 950;
