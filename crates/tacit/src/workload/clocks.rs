//! Measures the CPU time of the workload client, and of the processes that the option `--cpu-of`
//! selects.
//!
//! `--cpu-of` also includes the descendants of a selected process. For example, an agent is
//! measured if its supervisor is selected, because the agent is a child of the supervisor. If a
//! measured process ends during the measurement, the measurement fails. On loopback, Linux may
//! charge network work to the sender or to the receiver. So compare only the sum of all processes.
//!
//! The option `--ledger-of` selects agents. The client also reads the ledgers of these agents
//! (their records of CPU time). The client reads the ledgers before the clocks start and after the
//! clocks stop. So the measured CPU time does not include these reads.

use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Args;
use tacit_sys::{cpu, process};

use super::error::WorkloadError;
use super::ledgers::{Agent, LedgerUsage};
use crate::ledger::costs::Costs;

/// The options that select processes and agents.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ClocksArgs {
    /// Also measure the CPU time of this process and its children; may be repeated
    #[arg(long, value_name = "PID|NAME=PID")]
    pub(super) cpu_of: Vec<NamedProcess>,
    /// Also measure the CPU time of each component of this agent, such as handshakes. Give the
    /// agent's control socket, or the process id of the `tacit run` that started the agent; may be
    /// repeated
    #[arg(long, value_name = "NAME=SOCKET|NAME=PID")]
    pub(super) ledger_of: Vec<Agent>,
}

/// A process, under a name chosen by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedProcess {
    name: String,
    pid: u32,
}

impl FromStr for NamedProcess {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, pid) = text.rsplit_once('=').unwrap_or((text, text));
        match pid.parse() {
            Ok(pid) if pid > 0 && !name.is_empty() => Ok(Self { name: name.to_owned(), pid }),
            _ => Err("expected a process id or NAME=PID, such as agent=1234".to_owned()),
        }
    }
}

/// For how long CPU use is sampled to decide whether processes are idle.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);

/// The name of the client's own row in reports.
pub(super) const CLIENT: &str = "client";

/// The processes and agents of a measurement.
#[derive(Debug)]
pub(super) struct Clocks {
    components: Vec<ProcessGroup>,
    agents: Vec<Agent>,
}

/// One row of the report: a group of processes whose CPU times are added.
#[derive(Debug)]
struct ProcessGroup {
    name: String,
    pids: Vec<u32>,
}

/// The CPU times at one instant.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    at: Instant,
    machine_ns: u64,
    components_ns: Vec<u64>,
    /// The ledger of each agent.
    costs: Vec<Costs>,
}

/// The CPU time used between two readings, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CpuUsage {
    pub(super) seconds: f64,
    /// CPU time of the whole machine, in steps of 10 ms.
    pub(super) machine_ns: u64,
    /// The CPU time of each group of processes, in the order of [`Clocks::names`].
    pub(super) components_ns: Vec<u64>,
    /// The CPU time by ledger, with one entry for each agent.
    pub(super) ledgers: Vec<LedgerUsage>,
}

impl Clocks {
    /// Finds the processes and agents. An agent that is also given with `--cpu-of` is counted
    /// once.
    pub(super) fn of(args: &ClocksArgs) -> Result<Self, WorkloadError> {
        let mut named = args.cpu_of.clone();
        for agent in &args.ledger_of {
            let pid = agent.pid()?;
            if named.iter().all(|named| named.name != agent.name) {
                named.push(NamedProcess { name: agent.name.clone(), pid });
            }
        }
        let client = ProcessGroup { name: CLIENT.to_owned(), pids: vec![std::process::id()] };
        let mut components = vec![client];
        for NamedProcess { name, pid } in &named {
            let mut family = process::descendants(*pid).map_err(|error| gone(name, *pid, error))?;
            // A process that ended before the measurement has no time to lose.
            family.retain(|pid| cpu::process_ns(*pid).is_ok());
            family.push(*pid);
            components.push(ProcessGroup { name: name.clone(), pids: family });
        }
        let clocks = Self { components, agents: args.ledger_of.clone() };
        clocks.read()?;
        Ok(clocks)
    }

    /// Returns groups without processes, for tests.
    #[cfg(test)]
    pub(super) fn called(names: &[&str]) -> Self {
        let group = |name: &&str| ProcessGroup { name: (*name).to_owned(), pids: Vec::new() };
        let components = names.iter().map(group).collect();
        Self { components, agents: Vec::new() }
    }

    /// The names of all groups of processes. The first group is the client.
    pub(super) fn names(&self) -> Vec<String> {
        self.components.iter().map(|group| group.name.clone()).collect()
    }

    /// Starts an interval: reads the ledgers, then the clocks.
    pub(super) fn read(&self) -> Result<Reading, WorkloadError> {
        let costs = self.ask()?;
        Ok(Reading { costs, ..self.read_clocks()? })
    }

    /// Returns the time used since an earlier reading: reads the clocks, then the ledgers.
    pub(super) fn since(&self, earlier: &Reading) -> Result<CpuUsage, WorkloadError> {
        let now = self.read_clocks()?;
        let costs = self.ask()?;
        let pairs = now.components_ns.iter().zip(&earlier.components_ns);
        let ledgers = self.agents.iter().zip(earlier.costs.iter().zip(&costs));
        Ok(CpuUsage {
            seconds: now.at.duration_since(earlier.at).as_secs_f64(),
            machine_ns: now.machine_ns.saturating_sub(earlier.machine_ns),
            components_ns: pairs.map(|(now, before)| now.saturating_sub(*before)).collect(),
            ledgers: ledgers
                .map(|(agent, (before, now))| LedgerUsage::between(&agent.name, before, now))
                .collect(),
        })
    }

    /// Waits until the measured processes are almost idle, but not longer than `at_most`.
    pub(super) fn wait_until_idle(&self, at_most: Duration) -> Result<(), WorkloadError> {
        /// Processes that use at most this share of a CPU count as idle, because even idle
        /// processes use some CPU time.
        const LITTLE: f64 = 0.03;
        let end = Instant::now() + at_most;
        while Instant::now() < end {
            let before = self.read_clocks()?;
            std::thread::sleep(IDLE_INTERVAL);
            let now = self.read_clocks()?;
            let pairs = now.components_ns.iter().zip(&before.components_ns);
            let usage: u64 = pairs.map(|(now, before)| now.saturating_sub(*before)).sum();
            if usage as f64 <= LITTLE * IDLE_INTERVAL.as_nanos() as f64 {
                break;
            }
        }
        Ok(())
    }

    fn ask(&self) -> Result<Vec<Costs>, WorkloadError> {
        self.agents.iter().map(Agent::costs).collect()
    }

    fn read_clocks(&self) -> Result<Reading, WorkloadError> {
        let of = |ProcessGroup { name, pids }: &ProcessGroup| {
            let each = |pid: &u32| cpu::process_ns(*pid).map_err(|error| gone(name, *pid, error));
            pids.iter().map(each).sum()
        };
        let components_ns = self.components.iter().map(of).collect::<Result<_, _>>()?;
        // Without the machine's total, only the warning about other programs is missing.
        let machine_ns = cpu::machine_ns().unwrap_or(0);
        Ok(Reading { at: Instant::now(), machine_ns, components_ns, costs: Vec::new() })
    }
}

impl CpuUsage {
    /// The CPU time of all groups of processes together.
    pub(super) fn sum_ns(&self) -> u64 {
        self.components_ns.iter().sum()
    }

    /// The time of the measured processes; the client's own time if the user gave no process.
    pub(super) fn named_ns(&self) -> u64 {
        match self.components_ns.as_slice() {
            [client] => *client,
            [_, named @ ..] => named.iter().sum(),
            [] => 0,
        }
    }

    /// Adds the time of another part of the measurement.
    pub(super) fn add(&mut self, other: &Self) {
        self.seconds += other.seconds;
        self.machine_ns += other.machine_ns;
        self.components_ns.resize(other.components_ns.len(), 0);
        for (ns, more) in self.components_ns.iter_mut().zip(&other.components_ns) {
            *ns += more;
        }
        match self.ledgers.is_empty() {
            true => self.ledgers.clone_from(&other.ledgers),
            false => {
                let pairs = self.ledgers.iter_mut().zip(&other.ledgers);
                pairs.for_each(|(usage, more)| usage.add(more));
            }
        }
    }

    /// Whether other programs used much CPU time: more than an eighth of the CPU time of the
    /// measured processes, and more than three steps of the machine's clock.
    pub(super) fn is_disturbed(&self) -> bool {
        let own = self.sum_ns();
        self.machine_ns.saturating_sub(own) > (own / 8).max(3 * cpu::MACHINE_STEP_NS)
    }
}

fn gone(name: &str, pid: u32, error: std::io::Error) -> WorkloadError {
    WorkloadError::Process(name.to_owned(), pid, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_given_by_pid_or_by_name_and_pid() {
        let named = |name: &str, pid| Ok(NamedProcess { name: name.to_owned(), pid });
        assert_eq!("agent=12".parse(), named("agent", 12));
        assert_eq!("12".parse(), named("12", 12));
        assert_eq!("a=b=12".parse(), named("a=b", 12));
        for wrong in ["", "agent", "agent=", "=12", "agent=x", "0", "-1"] {
            assert!(wrong.parse::<NamedProcess>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn own_cpu_time_counts_for_the_client_and_a_missing_process_is_an_error() {
        let mut idle = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let name = format!("idle={}", idle.id());
        let args = ClocksArgs { cpu_of: vec![name.parse().unwrap()], ..ClocksArgs::default() };
        let clocks = Clocks::of(&args).unwrap();
        assert_eq!(clocks.names(), [CLIENT, "idle"]);
        let before = clocks.read().unwrap();
        while cpu::own_process_ns() < before.components_ns[0] + 3_000_000 {
            std::hint::spin_loop();
        }
        let used = clocks.since(&before).unwrap();
        assert!(used.components_ns[0] >= 3_000_000);
        assert_eq!(used.named_ns(), used.components_ns[1]);
        idle.kill().unwrap();
        idle.wait().unwrap();
        let lost = clocks.since(&before).unwrap_err();
        assert!(lost.to_string().contains(&name), "{lost}");
    }

    #[test]
    fn waiting_for_idle_ends_when_idle_or_after_the_time_limit() {
        let spin =
            |word: &str| std::process::Command::new("sh").args(["-c", word]).spawn().unwrap();
        let wait = |pid: u32, at_most| {
            let args = ClocksArgs {
                cpu_of: vec![pid.to_string().parse().unwrap()],
                ..ClocksArgs::default()
            };
            let clocks = Clocks::of(&args).unwrap();
            let before = clocks.read().unwrap();
            clocks.wait_until_idle(at_most).unwrap();
            clocks.since(&before).unwrap()
        };
        let mut brief = spin("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exec sleep 30");
        let used = wait(brief.id(), Duration::from_secs(60));
        let mut endless = spin("while :; do :; done");
        assert!(used.seconds < 60.0, "it became idle: {used:?}");
        let used = wait(endless.id(), IDLE_INTERVAL * 2);
        assert!(used.seconds >= (IDLE_INTERVAL * 2).as_secs_f64(), "it never did: {used:?}");
        for child in [&mut brief, &mut endless] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn cpu_time_of_other_programs_is_detected() {
        let mut used = CpuUsage {
            seconds: 1.0,
            machine_ns: 1_100_000_000,
            components_ns: vec![400_000_000; 2],
            ..CpuUsage::default()
        };
        assert_eq!([used.sum_ns(), used.named_ns()], [800_000_000, 400_000_000]);
        assert!(used.is_disturbed());
        used.machine_ns = 890_000_000;
        assert!(!used.is_disturbed());
        used.add(&used.clone());
        assert_eq!(used.sum_ns(), 1_600_000_000);
    }
}
