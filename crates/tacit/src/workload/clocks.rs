//! CPU time of the client and of every process that the caller names.
//!
//! A name stands for a process and for all that it had started when the clocks were first read:
//! an agent works as the child of one that could start its successor. The kernel's clocks count
//! nanoseconds, user and system time together; what ends meanwhile would be missing, so that is
//! an error. Network work on loopback is done, and counted, in the process that sends or is
//! interrupted: compare sums rather than sides.
//!
//! An agent that is named by its control socket counts in the same way, and its ledger is read
//! with the clocks: before they start and after they have stopped, so that they do not count it.

use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Args;
use tacit_sys::{cpu, process};

use super::error::WorkloadError;
use super::ledgers::{Agent, Spent};
use crate::ledger::costs::Costs;

/// Whose clocks and ledgers are read.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ClocksArgs {
    /// Also count the CPU time of this process and its children; may be repeated
    #[arg(long, value_name = "PID|NAME=PID")]
    pub(super) cpu_of: Vec<Named>,
    /// Also count the CPU time of this agent, by the components of its ledger: its control socket,
    /// or the process of the `tacit run` that started it; may be repeated
    #[arg(long, value_name = "NAME=SOCKET|NAME=PID")]
    pub(super) ledger_of: Vec<Agent>,
}

/// A process by a name of the caller's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    name: String,
    pid: u32,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, pid) = text.rsplit_once('=').unwrap_or((text, text));
        match pid.parse() {
            Ok(pid) if pid > 0 && !name.is_empty() => Ok(Self { name: name.to_owned(), pid }),
            _ => Err("write a process id, or a name and a process id: agent=1234".to_owned()),
        }
    }
}

/// How long processes are looked at to see whether they are idle.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);

/// What the client itself is called.
pub(super) const CLIENT: &str = "client";

/// The clocks of a measurement.
#[derive(Debug)]
pub(super) struct Clocks {
    components: Vec<ProcessGroup>,
    agents: Vec<Agent>,
}

/// A component: processes whose clocks are added up.
#[derive(Debug)]
struct ProcessGroup {
    name: String,
    pids: Vec<u32>,
}

/// What the clocks said at one instant.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    at: Instant,
    machine_ns: u64,
    components_ns: Vec<u64>,
    /// By agent.
    costs: Vec<Costs>,
}

/// What was used between two readings, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Used {
    pub(super) seconds: f64,
    /// Everything that ran on the machine, in steps of 10 ms.
    pub(super) machine_ns: u64,
    /// In the order of [`Clocks::names`].
    pub(super) components_ns: Vec<u64>,
    /// By agent.
    pub(super) ledgers: Vec<Spent>,
}

impl Clocks {
    /// Finds the processes, and the agents among them. An agent whose process has a name already
    /// counts once.
    pub(super) fn of(args: &ClocksArgs) -> Result<Self, WorkloadError> {
        let mut named = args.cpu_of.clone();
        for agent in &args.ledger_of {
            let pid = agent.pid()?;
            if named.iter().all(|named| named.name != agent.name) {
                named.push(Named { name: agent.name.clone(), pid });
            }
        }
        let client = ProcessGroup { name: CLIENT.to_owned(), pids: vec![std::process::id()] };
        let mut components = vec![client];
        for Named { name, pid } in &named {
            let mut family = process::descendants(*pid).map_err(|error| gone(name, *pid, error))?;
            // What ended before anything is measured will not be missed.
            family.retain(|pid| cpu::process_ns(*pid).is_ok());
            family.push(*pid);
            components.push(ProcessGroup { name: name.clone(), pids: family });
        }
        let clocks = Self { components, agents: args.ledger_of.clone() };
        clocks.read()?;
        Ok(clocks)
    }

    /// Clocks of components without a process.
    #[cfg(test)]
    pub(super) fn called(names: &[&str]) -> Self {
        let group = |name: &&str| ProcessGroup { name: (*name).to_owned(), pids: Vec::new() };
        let components = names.iter().map(group).collect();
        Self { components, agents: Vec::new() }
    }

    /// What the components are called; the client first.
    pub(super) fn names(&self) -> Vec<String> {
        self.components.iter().map(|group| group.name.clone()).collect()
    }

    /// Begins an interval: asks the agents, then reads the clocks.
    pub(super) fn read(&self) -> Result<Reading, WorkloadError> {
        let costs = self.ask()?;
        Ok(Reading { costs, ..self.read_clocks()? })
    }

    /// What was used since an earlier reading: reads the clocks, then asks the agents.
    pub(super) fn since(&self, earlier: &Reading) -> Result<Used, WorkloadError> {
        let now = self.read_clocks()?;
        let costs = self.ask()?;
        let pairs = now.components_ns.iter().zip(&earlier.components_ns);
        let ledgers = self.agents.iter().zip(earlier.costs.iter().zip(&costs));
        Ok(Used {
            seconds: now.at.duration_since(earlier.at).as_secs_f64(),
            machine_ns: now.machine_ns.saturating_sub(earlier.machine_ns),
            components_ns: pairs.map(|(now, before)| now.saturating_sub(*before)).collect(),
            ledgers: ledgers
                .map(|(agent, (before, now))| Spent::between(&agent.name, before, now))
                .collect(),
        })
    }

    /// Waits until the named processes are almost idle, for at most this long.
    pub(super) fn wait_until_idle(&self, at_most: Duration) -> Result<(), WorkloadError> {
        /// Of a CPU, in which it may still tick.
        const LITTLE: f64 = 0.03;
        let end = Instant::now() + at_most;
        while Instant::now() < end {
            let before = self.read_clocks()?;
            std::thread::sleep(IDLE_INTERVAL);
            let now = self.read_clocks()?;
            let pairs = now.components_ns.iter().zip(&before.components_ns);
            let spent: u64 = pairs.map(|(now, before)| now.saturating_sub(*before)).sum();
            if spent as f64 <= LITTLE * IDLE_INTERVAL.as_nanos() as f64 {
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
        // A machine that does not say how busy it is leaves only the warning out.
        let machine_ns = cpu::machine_ns().unwrap_or(0);
        Ok(Reading { at: Instant::now(), machine_ns, components_ns, costs: Vec::new() })
    }
}

impl Used {
    /// All components together.
    pub(super) fn sum_ns(&self) -> u64 {
        self.components_ns.iter().sum()
    }

    /// What is looked at where cost is the question: the named processes, or the client where none
    /// is named.
    pub(super) fn named_ns(&self) -> u64 {
        match self.components_ns.as_slice() {
            [client] => *client,
            [_, named @ ..] => named.iter().sum(),
            [] => 0,
        }
    }

    /// Adds what was used in another part of the measurement.
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
                pairs.for_each(|(spent, more)| spent.add(more));
            }
        }
    }

    /// Whether something else used the machine: more than an eighth of what the components did,
    /// and more than three steps of the clock.
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
    fn processes_are_named_or_stand_for_themselves() {
        let named = |name: &str, pid| Ok(Named { name: name.to_owned(), pid });
        assert_eq!("agent=12".parse(), named("agent", 12));
        assert_eq!("12".parse(), named("12", 12));
        assert_eq!("a=b=12".parse(), named("a=b", 12));
        for wrong in ["", "agent", "agent=", "=12", "agent=x", "0", "-1"] {
            assert!(wrong.parse::<Named>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn work_of_this_process_is_the_clients_and_a_lost_process_is_an_error() {
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
    fn what_is_busy_is_waited_for_until_it_is_not_or_time_is_up() {
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
    fn a_busy_neighbour_is_noticed() {
        let mut used = Used {
            seconds: 1.0,
            machine_ns: 1_100_000_000,
            components_ns: vec![400_000_000; 2],
            ..Used::default()
        };
        assert_eq!([used.sum_ns(), used.named_ns()], [800_000_000, 400_000_000]);
        assert!(used.is_disturbed());
        used.machine_ns = 890_000_000;
        assert!(!used.is_disturbed());
        used.add(&used.clone());
        assert_eq!(used.sum_ns(), 1_600_000_000);
    }
}
