//! Defines the settings of engines. An engine is a thread for handshakes, on a CPU that is reserved
//! for this thread. Programs under `tacit run` and all other threads of the agent use other CPUs.
//!
//! The parser does not know which CPUs exist. The agent checks later whether each CPU exists.

use super::diagnostic::SourcePosition;
use serde::Serialize;

/// The largest CPU number, which is the last one that fits into a kernel CPU set.
pub const CPU_MAX: usize = 1023;

/// `[engine]`: CPUs reserved for accepting, dialling and handshakes, with one thread each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// The CPUs; at least one, in ascending order.
    pub cpus: Vec<usize>,
    /// Whether data workers take connections when all engines are saturated. Otherwise connections
    /// wait.
    pub spill: bool,
    /// Whether the thread for packets of tunnels polls for a short time before it waits.
    pub poll: bool,
    /// The number of connections in set-up at which an engine counts as saturated.
    pub queue: usize,
    /// The scheduling class of engine threads.
    pub class: EngineClass,
    /// Their nice value.
    pub nice: i32,
    /// The position of the table in the policy text.
    pub position: SourcePosition,
}

impl EngineSettings {
    /// The default equals the total limit of `handshakes`, and four times the limit for one source.
    pub const QUEUE_DEFAULT: usize = 1024;

    /// Whether both are equal, apart from their position in the text.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        let Self { cpus, spill, poll, queue, class, nice, position: _ } = self;
        *cpus == other.cpus
            && *spill == other.spill
            && *poll == other.poll
            && *queue == other.queue
            && *class == other.class
            && *nice == other.nice
    }
}

/// The scheduling class of a thread. The lowest class, `idle`, is not available, because other
/// threads wait for the work of engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineClass {
    /// `SCHED_OTHER`.
    #[default]
    Normal,
    /// `SCHED_BATCH`: a thread that wakes up does not preempt others.
    Batch,
}

/// How the agent's workers and the programs of its runs are placed on CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// A worker runs on the CPU of the program that it serves, if that CPU has time. The kernel
    /// places the programs.
    #[default]
    Adaptive,
    /// The kernel places workers and programs.
    None,
    /// The program of a run and the worker of its connections run on the same CPU; different runs
    /// use different CPUs.
    Split,
    /// All workers and programs run on one CPU.
    OneCpu,
}

/// Which threads relay the bytes of a rule's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RelayOn {
    /// A data worker.
    #[default]
    Worker,
    /// The engine that has set up the connection.
    Engine,
}
