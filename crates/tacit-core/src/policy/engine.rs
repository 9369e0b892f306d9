//! Defines the CPU settings of a policy: which CPUs are reserved for engines (threads for
//! handshakes), and which CPUs the other threads of the agent and its runs use.
//!
//! A policy names CPUs by number. The parser does not know which CPUs exist: the agent checks that.

use super::diagnostic::SourcePosition;
use serde::Serialize;

/// Highest CPU number: the last that fits in a kernel CPU set.
pub const CPU_MAX: usize = 1023;

/// `[engine]`: CPUs reserved for accepting, dialling and handshakes, with one thread each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// At least one, in ascending order.
    pub cpus: Vec<usize>,
    /// Whether other threads take connections when all engines are full; otherwise they wait.
    pub spill: bool,
    /// Connections that one engine may be setting up before it counts as saturated.
    pub queue: usize,
    /// How the kernel schedules engine threads.
    pub class: EngineClass,
    /// Their nice value.
    pub nice: i32,
    /// The position of the table in the policy text.
    pub position: SourcePosition,
}

impl EngineSettings {
    /// As many as `handshakes` permits in all, and four times what it permits one source.
    pub const QUEUE_DEFAULT: usize = 1024;

    /// Whether both are equal, apart from their position in the text.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        let Self { cpus, spill, queue, class, nice, position: _ } = self;
        *cpus == other.cpus
            && *spill == other.spill
            && *queue == other.queue
            && *class == other.class
            && *nice == other.nice
    }
}

/// How the kernel schedules a thread. The lowest class, `idle`, is not available: work that others
/// wait for must not starve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineClass {
    /// `SCHED_OTHER`.
    #[default]
    Normal,
    /// `SCHED_BATCH`: a thread that wakes up does not preempt others.
    Batch,
}

/// Where the agent's workers and the programs of its runs are put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// A worker on the CPU of the program that it serves, if that CPU has time; the kernel places
    /// the programs.
    #[default]
    Adaptive,
    /// The kernel places them.
    None,
    /// A run's program and the worker of its connections on one CPU, runs on different ones.
    Split,
    /// Everything on one CPU.
    OneCpu,
}

/// Which threads relay the bytes of a rule's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RelayOn {
    /// A data worker.
    #[default]
    Worker,
    /// The engine that set the connection up.
    Engine,
}
