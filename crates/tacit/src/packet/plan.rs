//! Defines [`PacketThreads`]: the CPUs for the two threads that move the packets of IPsec tunnels,
//! `tacit-packet` and `tacit-receive`. Also defines when `tacit-receive` receives packets.
//!
//! An *engine* is a thread on a reserved CPU. The key `cpus` of the table `[engine]` reserves these
//! CPUs. All other CPUs are *general* CPUs.
//!
//! | `[engine]` | `tacit-packet` | `tacit-receive` |
//! |---|---|---|
//! | absent | on general CPUs | is not started |
//! | `spill = true` | on the last CPU of `cpus` | on general CPUs, while the engine is saturated |
//! | `spill = false` | on the last CPU of `cpus` | is not started |

use std::io;
use std::time::Duration;

use tacit_core::policy::{EngineClass, EngineSettings, Policy};

use super::spill::SpillLimits;
use crate::placement;

/// The threads of a packet worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketThreads {
    /// The CPU for both directions; `None`: any general CPU.
    pub engine: Option<PacketEngine>,
    /// When the second thread receives; `None`: there is no such thread.
    pub second: Option<SpillLimits>,
}

/// The CPU of an engine for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEngine {
    /// The CPU.
    pub cpu: usize,
    /// The scheduling class of the thread.
    pub class: EngineClass,
    /// Its nice value.
    pub nice: i32,
    /// How long it polls after its last packet before it waits.
    pub poll: Duration,
}

impl PacketThreads {
    /// Returns what `[engine]` of a policy demands.
    #[must_use]
    pub fn of_policy(policy: &Policy) -> Self {
        let of_settings = |settings: &EngineSettings| {
            let EngineSettings { cpus, spill, poll, class, nice, .. } = settings;
            // Handshakes use the first CPU if there is little to do.
            let cpu = *cpus.last()?;
            let second = spill.then_some(SpillLimits::SATURATED);
            let poll = if *poll { PacketEngine::POLL_TIME } else { Duration::ZERO };
            let engine = PacketEngine { cpu, class: *class, nice: *nice, poll };
            Some(Self { engine: Some(engine), second })
        };
        policy.engine.as_ref().and_then(of_settings).unwrap_or_default()
    }
}

impl PacketEngine {
    /// The usual time of polling.
    pub const POLL_TIME: Duration = Duration::from_micros(50);

    /// Makes the calling thread, which has this name, the engine.
    pub(super) fn occupy(self, name: &str) -> io::Result<()> {
        placement::bind_thread(name, self.cpu)?;
        placement::set_engine_class(self.class, self.nice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_runs_the_pipeline_and_spills_only_if_the_policy_says_so() {
        let threads = |text: &str| {
            let policy = tacit_core::policy::parse(&format!("version = 1\n{text}")).policy;
            PacketThreads::of_policy(&policy.unwrap())
        };
        assert_eq!(threads(""), PacketThreads::default());
        let spills = threads("[engine]\ncpus = \"1-2\"\nspill = true\nnice = 5\n");
        let poll = PacketEngine::POLL_TIME;
        let engine = PacketEngine { cpu: 2, class: EngineClass::Normal, nice: 5, poll };
        let second = Some(SpillLimits::SATURATED);
        assert_eq!(spills, PacketThreads { engine: Some(engine), second });
        let never =
            threads("[engine]\ncpus = \"1\"\nspill = false\npoll = false\nclass = \"batch\"\n");
        let poll = Duration::ZERO;
        let engine = PacketEngine { cpu: 1, class: EngineClass::Batch, nice: 0, poll };
        assert_eq!(never, PacketThreads { engine: Some(engine), second: None });
    }
}
