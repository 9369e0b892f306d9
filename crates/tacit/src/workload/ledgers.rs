//! Reads the ledgers of agents. A ledger is an agent's record of its CPU time by component. A
//! ledger also contains the agent's counters.
//!
//! The module reads a ledger from the agent's control socket, which `tacit show costs` also uses.
//! The module reads the ledger before a measurement starts its clocks, and again after the
//! measurement stops the clocks. So these readings do not add to the measured CPU time.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;

use tacit_core::meter::Component;
use tacit_core::page::{DataTable, TableCell};
use tacit_sys::socket;

use super::error::WorkloadError;
use crate::control::client::{self, ClientError};
use crate::launch;
use crate::ledger::costs::{ByCpuPlace, Costs};

/// An agent, under a name chosen by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agent {
    pub(super) name: String,
    location: AgentLocation,
}

/// How to find the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AgentLocation {
    Control(PathBuf),
    /// The private agent of the run that this process launched.
    RunOf(u32),
}

impl FromStr for Agent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "expected NAME=SOCKET (the control socket of an agent) or NAME=PID (the process ID of \
             a `tacit run`), such as near=agent.sock or near=1234"
                .to_owned()
        };
        let (name, location) = text.split_once('=').ok_or_else(wrong)?;
        if name.is_empty() || location.is_empty() {
            return Err(wrong());
        }
        let location = match location.parse() {
            Ok(launcher) => AgentLocation::RunOf(launcher),
            Err(_) => AgentLocation::Control(location.into()),
        };
        Ok(Self { name: name.to_owned(), location })
    }
}

impl std::fmt::Display for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.location {
            AgentLocation::Control(path) => write!(f, "{}={}", self.name, path.display()),
            AgentLocation::RunOf(launcher) => write!(f, "{}={launcher}", self.name),
        }
    }
}

impl Agent {
    /// The path of the agent's control socket.
    pub(super) fn control(&self) -> Result<PathBuf, WorkloadError> {
        match &self.location {
            AgentLocation::Control(path) => Ok(path.clone()),
            AgentLocation::RunOf(launcher) => {
                let found = launch::control_of(*launcher);
                found.ok_or_else(|| WorkloadError::NoRun(self.to_string()))
            }
        }
    }

    /// The process id of the agent, as the kernel reports it for the socket.
    pub(super) fn pid(&self) -> Result<u32, WorkloadError> {
        let control = self.control()?;
        let elsewhere = || io::Error::other("the agent is in another PID namespace");
        UnixStream::connect(&control)
            .and_then(|stream| socket::peer_credentials(stream.as_fd()))
            .and_then(|agent| agent.pid.ok_or_else(elsewhere))
            .map_err(|error| self.failed(ClientError::NoAgent(control, error)))
    }

    /// The agent's ledger since its start.
    pub(super) fn costs(&self) -> Result<Costs, WorkloadError> {
        client::costs(&self.control()?, None).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: ClientError) -> WorkloadError {
        WorkloadError::Ledger(self.to_string(), error)
    }
}

/// The CPU time and the counters of an agent in one or several intervals.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LedgerUsage {
    pub(super) agent: String,
    components_us: [f64; Component::ALL.len()],
    places_us: ByCpuPlace,
    /// CPU time of the process by the kernel's clock.
    all_us: f64,
    accounting_us: f64,
    counts: [f64; COUNTS.len()],
}

/// The names of the counters, in the order of `counts`.
const COUNTS: [&str; 7] = [
    "connections",
    "handshakes, full",
    "handshakes, resumed",
    "failures",
    "messages from clients",
    "messages sent to clients",
    "MB relayed in both directions",
];

impl LedgerUsage {
    /// The difference between two readings of an agent's ledger.
    pub(super) fn between(agent: &str, earlier: &Costs, later: &Costs) -> Self {
        let costs = later.since(earlier);
        let mut usage = Self {
            agent: agent.to_owned(),
            all_us: costs.agent_cpu_us,
            accounting_us: costs.accounting.cpu_us,
            ..Self::default()
        };
        for rule in &costs.rules {
            for (sum, component) in usage.components_us.iter_mut().zip(Component::ALL) {
                *sum += rule.component_us(component);
            }
            usage.places_us = usage.places_us.zip(&rule.places_us(), |sum, us| sum + us);
            let counts = [
                rule.connections,
                rule.handshakes.saturating_sub(rule.resumed),
                rule.resumed,
                rule.failures,
                rule.messages_sent,
                rule.messages_received,
            ];
            let bytes = rule.bytes_sent + rule.bytes_received;
            let megabytes = bytes as f64 / 1e6;
            let figures = counts.map(|count| count as f64).into_iter().chain([megabytes]);
            usage.counts.iter_mut().zip(figures).for_each(|(sum, count)| *sum += count);
        }
        usage
    }

    /// Adds another interval of the same agent.
    pub(super) fn add(&mut self, other: &Self) {
        self.components_us.iter_mut().zip(other.components_us).for_each(|(sum, us)| *sum += us);
        self.places_us = self.places_us.zip(&other.places_us, |sum, us| sum + us);
        self.all_us += other.all_us;
        self.accounting_us += other.accounting_us;
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
    }

    /// The rows of the table: the components, which do not overlap, then their sum, then parts of
    /// the sum.
    fn rows(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let captured: f64 = self.components_us.iter().sum();
        let components = Component::ALL.iter().map(|component| component.word());
        components.zip(self.components_us).chain([
            // The difference is negative if a measuring window ended between two readings.
            ("uncaptured", (self.all_us - captured).max(0.0)),
            ("all", self.all_us),
            ("CPU time on engines", self.places_us.engine),
            (
                "CPU time on other CPUs, for work that engines could have done",
                self.places_us.eligible,
            ),
            ("CPU time to keep the ledger", self.accounting_us),
        ])
    }
}

/// Tables of the agents' CPU time for each unit of work, and of their counters.
pub(super) fn tables(usage: &[LedgerUsage], unit: &str, units: f64) -> Vec<DataTable> {
    let Some(first) = usage.first() else { return Vec::new() };
    let columns = |first: &str, tail: &str| {
        let agents = usage.iter().map(|one| format!("{}{tail}", one.agent));
        [first.to_owned()].into_iter().chain(agents).collect()
    };
    let row = |name: &str, values: &mut dyn Iterator<Item = f64>| {
        [TableCell::Text(name.to_owned())]
            .into_iter()
            .chain(values.map(TableCell::Number))
            .collect()
    };
    let costs = first.rows().enumerate().map(|(at, (name, _))| {
        let of = |one: &LedgerUsage| one.rows().nth(at).map_or(f64::NAN, |(_, us)| us / units);
        row(name, &mut usage.iter().map(of))
    });
    let counts = COUNTS
        .iter()
        .enumerate()
        .map(|(at, name)| row(name, &mut usage.iter().map(|one| one.counts[at])));
    vec![
        DataTable {
            title: format!("CPU time of the agents by component, for each {unit}"),
            columns: columns("component", &format!(" us/{unit}")),
            rows: costs.collect(),
        },
        DataTable {
            title: format!("Totals of the agents' counters (unit of work: {unit})"),
            columns: columns("count", ""),
            rows: counts.collect(),
        },
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn an_agent_is_given_by_its_socket_or_its_run() {
        let agent = |text: &str| text.parse::<Agent>().map(|agent| agent.location);
        assert_eq!(agent("near=run/a=b.sock"), Ok(AgentLocation::Control("run/a=b.sock".into())));
        assert_eq!(agent("near=1234"), Ok(AgentLocation::RunOf(1234)));
        for wrong in ["", "near", "near=", "=agent.sock"] {
            assert!(agent(wrong).is_err(), "{wrong}");
        }
        let missing: Agent = "gone=4194303".parse().unwrap();
        let error = missing.costs().unwrap_err().to_string();
        assert!(error.contains("gone=4194303") && error.contains("tacit run"), "{error}");
    }

    /// A ledger with one rule, all of whose figures are multiples of `times`.
    fn costs(times: u32) -> Costs {
        let mut costs = Costs::read(UNIX_EPOCH, |_| None, Vec::new());
        costs.agent_cpu_us = 1000.0 * f64::from(times);
        costs.accounting.stamps = 0;
        costs.accounting.clock_reads = 0;
        costs.rules.truncate(1);
        let cell =
            ByCpuPlace { general: f64::from(times), engine: 2.0 * f64::from(times), eligible: 0.0 };
        let rule = &mut costs.rules[0];
        rule.cpu_us = BTreeMap::from(Component::ALL.map(|component| (component, cell)));
        let times = u64::from(times);
        rule.handshakes = 10 * times;
        rule.resumed = 4 * times;
        rule.connections = 10 * times;
        rule.messages_sent = 20 * times;
        rule.messages_received = 21 * times;
        rule.bytes_sent = 1_000_000 * times;
        rule.bytes_received = 500_000 * times;
        rule.failures = times;
        assert!(SystemTime::now() > UNIX_EPOCH);
        costs
    }

    pub(crate) fn usage() -> LedgerUsage {
        LedgerUsage::between("near", &costs(1), &costs(3))
    }

    #[test]
    fn an_interval_is_a_difference_and_intervals_add_up() {
        let mut usage = usage();
        assert_eq!(usage.components_us, [6.0; 8]);
        assert_eq!(usage.counts, [20.0, 12.0, 8.0, 2.0, 40.0, 42.0, 3.0]);
        let other = usage.clone();
        usage.add(&other);
        let [costs, counts] = &tables(&[usage], "start", 10.0)[..] else { panic!() };
        assert_eq!(costs.columns, ["component", "near us/start"]);
        let rows: Vec<_> = costs.rows.iter().map(|row| (row[0].clone(), row[1].clone())).collect();
        for (at, name, us) in [
            (2, "seal", 1.2),
            (8, "uncaptured", 400.0 - 8.0 * 1.2),
            (9, "all", 400.0),
            (10, "CPU time on engines", 8.0 * 0.8),
        ] {
            assert_eq!(rows[at].0, TableCell::Text(name.to_owned()));
            let TableCell::Number(found) = rows[at].1 else { panic!("{rows:?}") };
            assert!((found - us).abs() < 1e-9, "{name}: {found}");
        }
        assert_eq!(
            counts.rows[1],
            [TableCell::Text("handshakes, full".into()), TableCell::Number(24.0)]
        );
        assert_eq!(tables(&[], "start", 10.0), []);
    }
}
