//! Assigns CPUs to the threads of the agent and to the programs of its runs.
//!
//! ```text
//!   CPUs that this process may use
//!     ├─ [engine] cpus            only engines, one thread on each CPU
//!     └─ all other CPUs (general) control, log, data workers, programs of runs
//!          └─ placement-cpus      the CPUs for `split` and `one-cpu`; by default all general CPUs
//! ```
//!
//! With the placement `split`, each data worker uses the CPU on which the agents of this machine
//! have the fewest workers. An agent publishes each chosen CPU by an abstract UNIX socket. The name
//! of the socket contains the number of the CPU. The kernel removes the socket when the agent ends.
//! If another program creates a socket with such a name, the only effect is that agents choose a
//! busier CPU.
//!
//! tacit does not move other processes away from the CPUs of the agent.

mod binding;
mod thread;

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, Placement, Policy, SourcePosition};
use tacit_sys::schedule;

pub use binding::CpuBinding;
pub use thread::{bind_thread, set_engine_class};

/// The maximum number of assignments to one CPU that are counted.
const CHOICES_MAX: usize = 64;

/// The CPUs of the threads and of the programs of runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuPlan {
    /// The CPUs of engines; empty: there are none.
    pub engines: Vec<usize>,
    /// The CPUs for everything else; `None`: they are not changed.
    pub general: Option<Vec<usize>>,
    /// The CPUs that data workers are bound to, one each; empty: they are not.
    pub split: Vec<usize>,
    /// The largest number of data workers, without those that are bound to the CPUs of programs.
    pub workers_max: usize,
    /// The CPUs on which connections of runs may follow their programs; empty: they do not.
    pub followed: Vec<usize>,
}

impl CpuPlan {
    /// Creates the plan of a policy for which [`check`] has found no errors on this machine.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        let asks = policy.engine.is_some() || policy.agent.placement != Placement::None;
        Self::on(policy, if asks { started_with() } else { &[] })
    }

    fn on(policy: &Policy, allowed: &[usize]) -> Self {
        let engines = policy.engine.as_ref().map(|engine| engine.cpus.clone()).unwrap_or_default();
        let agent = &policy.agent;
        let others = || allowed.iter().copied().filter(|cpu| !engines.contains(cpu));
        let choice = || match agent.placement_cpus.as_slice() {
            [] => others().collect(),
            cpus => cpus.to_vec(),
        };
        let split = match agent.placement {
            Placement::Split => choice(),
            Placement::Adaptive | Placement::OneCpu | Placement::None => Vec::new(),
        };
        // If the policy sets the number of workers, no others are added.
        let follows = agent.placement == Placement::Adaptive && agent.workers.is_none();
        let followed: Vec<_> = if follows { others().collect() } else { Vec::new() };
        // If there is only one CPU, connections cannot move.
        let followed = if followed.len() > 1 { followed } else { Vec::new() };
        let only = match agent.placement {
            Placement::OneCpu => choice().first().map(|first| vec![*first]),
            Placement::Adaptive | Placement::Split | Placement::None => None,
        };
        let general = only.or_else(|| (!engines.is_empty()).then(|| others().collect()));
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let one_each = cpus.saturating_sub(engines.len()).max(1);
        let workers_max = if split.is_empty() { one_each } else { split.len() };
        let workers_max = agent.workers.unwrap_or(workers_max);
        Self { engines, general, split, workers_max, followed }
    }

    /// Returns the CPU for everything, with `one-cpu`.
    #[must_use]
    pub fn one_cpu(&self) -> Option<usize> {
        match self.general.as_deref() {
            Some([cpu]) => Some(*cpu),
            _ => None,
        }
    }

    /// Binds the existing threads of this process to their CPUs.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn settle(&self) -> io::Result<()> {
        self.general.as_deref().map_or(Ok(()), schedule::pin_process)
    }
}

/// Reports CPUs that a policy names and that this machine does not have.
#[must_use]
pub fn check(policy: &Policy) -> Vec<Diagnostic> {
    if policy.engine.is_none() && policy.agent.placement_cpus.is_empty() {
        return Vec::new();
    }
    check_on(policy, started_with())
}

fn check_on(policy: &Policy, allowed: &[usize]) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut missing = |word: &str, cpus: &[usize], position| {
        let missing: Vec<_> = cpus.iter().copied().filter(|cpu| !allowed.contains(cpu)).collect();
        if !missing.is_empty() {
            let message = format!(
                "`{word}` names CPU {missing}, which does not exist, or which this process may not \
                 use",
                missing = list(&missing)
            );
            let fix = format!("write only CPUs that this process may use: {}", list(allowed));
            found
                .push(Diagnostic::error(MessageId("no-such-cpu"), position, message).with_fix(fix));
        }
    };
    missing(
        "placement-cpus",
        &policy.agent.placement_cpus,
        SourcePosition { file: 0, line: 1, column: 1 },
    );
    if let Some(engine) = &policy.engine {
        missing("cpus", &engine.cpus, engine.position);
        if allowed.iter().all(|cpu| engine.cpus.contains(cpu)) {
            let message = format!(
                "`cpus` in [engine] reserves all CPUs that this process may use ({}), so no CPU is \
                 left for the data workers",
                list(allowed)
            );
            let fix = "remove at least one CPU from `cpus`";
            found.push(
                Diagnostic::error(MessageId("no-cpu-left"), engine.position, message).with_fix(fix),
            );
        }
    }
    found
}

/// The CPUs that this process could use when it started.
#[must_use]
pub fn started_with() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| schedule::allowed_cpus().unwrap_or_default())
}

/// CPUs as the kernel lists them: `0-2,5`.
#[must_use]
pub fn list(cpus: &[usize]) -> String {
    let runs = cpus.chunk_by(|a, b| a + 1 == *b).filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// An assigned CPU. Other agents see the assignment as long as this exists.
#[derive(Debug)]
pub struct CpuAssignment {
    /// The CPU.
    pub cpu: usize,
    _name: Option<UnixDatagram>,
}

/// A run's share of a worker's CPU, counted for as long as the run lives.
#[derive(Debug)]
pub struct RunCpu {
    cpu: usize,
    runs: Arc<AtomicUsize>,
}

impl RunCpu {
    /// Adds a run to the CPU.
    #[must_use]
    pub fn new(cpu: usize, runs: &Arc<AtomicUsize>) -> Self {
        runs.fetch_add(1, Ordering::Relaxed);
        Self { cpu, runs: Arc::clone(runs) }
    }

    /// The CPU.
    #[must_use]
    pub fn cpu(&self) -> usize {
        self.cpu
    }
}

impl Drop for RunCpu {
    fn drop(&mut self) {
        self.runs.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Chooses the CPU with the fewest assignments.
#[must_use]
pub fn choose(cpus: &[usize]) -> Option<CpuAssignment> {
    let places = (0..CHOICES_MAX).flat_map(|round| cpus.iter().map(move |cpu| (*cpu, round)));
    for (cpu, round) in places {
        let name = SocketAddr::from_abstract_name(format!("tacit-cpu-{cpu}-{round}"));
        match name.and_then(|name| UnixDatagram::bind_addr(&name)) {
            Ok(name) => return Some(CpuAssignment { cpu, _name: Some(name) }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(_) => break,
        }
    }
    cpus.first().map(|cpu| CpuAssignment { cpu: *cpu, _name: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tacit_core::policy::parse;

    fn policy(text: &str) -> Policy {
        parse(&format!("version = 1\n{text}")).policy.unwrap()
    }

    #[test]
    fn engines_placed_threads_and_all_else_share_the_cpus() {
        let all = [0, 1, 2, 3];
        let plan = |text| CpuPlan::on(&policy(text), &all);
        let none = plan("");
        assert_eq!((none.engines, none.general, none.split), (vec![], None, vec![]));
        let with_engine = plan("[engine]\ncpus = \"2-3\"");
        assert_eq!((with_engine.engines, with_engine.general), (vec![2, 3], Some(vec![0, 1])));
        let split = plan("[agent]\nplacement = \"split\"\n[engine]\ncpus = \"3\"");
        assert_eq!((split.split, split.general), (vec![0, 1, 2], Some(vec![0, 1, 2])));
        let on_one = plan("[agent]\nplacement = \"split\"\nplacement-cpus = \"1\"");
        assert_eq!((on_one.workers_max, on_one.general), (1, None));
        let one = plan("[agent]\nplacement = \"one-cpu\"\n[engine]\ncpus = \"0\"");
        assert_eq!((one.one_cpu(), one.split), (Some(1), vec![]));
    }

    #[test]
    fn missing_cpus_are_reported_with_the_existing_ones() {
        let warning = |text| {
            let found = check_on(&policy(text), &[0, 1, 2, 5]);
            found.iter().map(|finding| finding.render("p")).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(warning("[engine]\ncpus = \"1\""), "");
        let missing = warning("[engine]\ncpus = \"2-4\"");
        assert!(missing.contains("`cpus` names CPU 3-4, which does not exist"), "{missing}");
        assert!(missing.contains("CPUs that this process may use: 0-2,5"), "{missing}");
        assert!(
            warning("[engine]\ncpus = \"0-2,5\"")
                .contains("may use (0-2,5), so no CPU is left for the data workers")
        );
        let placed = warning("[agent]\nplacement = \"split\"\nplacement-cpus = \"3\"");
        assert!(placed.contains("`placement-cpus` names CPU 3"), "{placed}");
    }

    #[test]
    fn assignments_are_spread_and_released() {
        // CPU numbers that no machine has, because other agents on this machine make assignments
        // too.
        let cpus = [901, 902];
        let first = choose(&cpus).unwrap();
        let second = choose(&cpus).unwrap();
        let third = choose(&cpus).unwrap();
        assert_eq!([first.cpu, second.cpu, third.cpu], [901, 902, 901]);
        drop(second);
        assert_eq!(choose(&cpus).unwrap().cpu, 902);
        assert!(choose(&[]).is_none());
    }
}
