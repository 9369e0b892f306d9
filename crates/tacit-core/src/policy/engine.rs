//! CPUs: which are set aside for engines, and where the rest of the agent and its runs may be.
//!
//! What a policy says of CPUs are their numbers. Whether they are there is the agent's to find out.

use super::diagnostic::SourcePosition;
use serde::Serialize;

/// Highest number of a CPU, which is as many as a kernel's CPU set holds.
pub const CPU_MAX: usize = 1023;

/// `[engine]`: CPUs set aside for accepting, dialling and handshakes, one thread on each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// At least one, in ascending order.
    pub cpus: Vec<usize>,
    /// Whether other threads take what engines have no place for; else it waits.
    pub spill: bool,
    /// Connections that one engine may be setting up before it counts as saturated.
    pub queue: usize,
    /// How the kernel schedules engine threads.
    pub class: EngineClass,
    /// Their nice value.
    pub nice: i32,
    /// Where the table stands in the policy text.
    pub position: SourcePosition,
}

impl EngineSettings {
    /// As many as `handshakes` lets through in all, and four times what it lets one source have.
    pub const QUEUE_DEFAULT: usize = 1024;

    /// Whether it says the same, wherever in the text it stands.
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

/// How the kernel schedules a thread. The lowest class, `idle`, is none of them: work that others
/// wait for must not starve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineClass {
    /// As every program.
    #[default]
    Normal,
    /// As every program, but taken for one that computes: it preempts nobody when it wakes up.
    Batch,
}

/// Where the agent's workers and the programs of its runs are put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The worker of a run's connection on the CPU that its program has, as far as that has time;
    /// programs wherever the kernel puts them.
    #[default]
    Adaptive,
    /// Wherever the kernel puts them.
    None,
    /// A run's program and the worker of its connections on one CPU, runs on different ones.
    Split,
    /// Everything on one CPU.
    OneCpu,
}

/// Which threads carry the bytes of a rule's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RelayOn {
    /// A data worker.
    #[default]
    Worker,
    /// The engine that set the connection up.
    Engine,
}
