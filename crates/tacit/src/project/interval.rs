//! Reads measured CPU times from files or from a running agent, as the input of `tacit project`.

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use tacit_core::policy::Suite;
use tacit_core::projection::{
    Components, CostsOwner, MeasuredCosts, MeasuredRuleCosts, PlaceCosts,
};

use super::arguments::{ProjectArgs, SuiteArg};
use crate::control::client::{self, ClientError};
use crate::control::display::connections::{ConnectionDisplay, ConnectionsDisplay};
use crate::control::render::costs::name;
use crate::control::{Display, Request, private_agents};
use crate::ledger::costs::{self, ByCpuPlace, Kind};

/// The largest file that is read.
const COSTS_BYTES_MAX: u64 = 64 << 20;

/// The costs of an interval, and the cipher suites of its rules as far as they are known.
pub(super) struct Interval {
    pub(super) costs: MeasuredCosts,
    pub(super) suites: Vec<KnownSuite>,
}

/// The cipher suite of a rule's connections.
pub(super) struct KnownSuite {
    pub(super) rule: String,
    pub(super) suite: Suite,
}

/// The reason why there are no measured costs.
#[derive(Debug)]
pub(super) enum IntervalError {
    /// A file cannot be read.
    File(PathBuf, io::Error),
    /// A file does not contain costs.
    NotCosts(PathBuf, serde_json::Error),
    /// `--costs` was given more than twice.
    TooManyFiles(usize),
    /// The agent did not send its costs.
    Agent(ClientError),
    /// The two files are from different agents.
    OtherAgent,
    /// The second file is not later than the first.
    NotLater,
}

impl fmt::Display for IntervalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, error) => write!(
                f,
                "cannot read --costs {path}: {error}\n    fix: give a file that `tacit show costs \
                 --json` has written",
                path = path.display()
            ),
            Self::NotCosts(path, error) => write!(
                f,
                "{path} does not contain costs: {error}\n    fix: write the file with `tacit show \
                 costs --json` of this version of tacit",
                path = path.display()
            ),
            Self::TooManyFiles(count) => {
                write!(
                    f,
                    "--costs was given {count} times\n    \
                     fix: give one file, or the two files from the start and the end of an interval"
                )
            }
            Self::Agent(error) => write!(f, "{error}"),
            Self::OtherAgent => f.write_str(
                "the two --costs files are from different agents, because the agent was restarted \
                 between the two measurements\n    \
                 fix: measure again without a restart",
            ),
            Self::NotLater => f.write_str(
                "the second --costs file is not later than the first\n    \
                 fix: give the earlier file first",
            ),
        }
    }
}

impl Interval {
    /// Reads the files, or queries the agent at the start and the end of the interval.
    pub(super) fn measured(args: &ProjectArgs) -> Result<Self, IntervalError> {
        let costs = match args.costs.as_slice() {
            [] => return ask(args),
            [only] => read(only)?,
            [earlier, later] => between(&read(earlier)?, &read(later)?)?,
            more => return Err(IntervalError::TooManyFiles(more.len())),
        };
        Ok(Self { costs: model(&costs), suites: Vec::new() })
    }
}

fn ask(args: &ProjectArgs) -> Result<Interval, IntervalError> {
    let control = private_agents::for_display(args.control.as_deref());
    let costs = client::costs(&control, Some(args.interval)).map_err(IntervalError::Agent)?;
    let request = Request::Show { what: Display::Connections };
    let shown: ConnectionsDisplay =
        client::ask_typed(&control, &request).map_err(IntervalError::Agent)?;
    Ok(Interval { costs: model(&costs), suites: suites(&shown.connections) })
}

fn read(path: &Path) -> Result<costs::Costs, IntervalError> {
    let refused = |error| IntervalError::File(path.to_owned(), error);
    let file = std::fs::File::open(path).map_err(refused)?;
    let mut text = String::new();
    file.take(COSTS_BYTES_MAX).read_to_string(&mut text).map_err(refused)?;
    serde_json::from_str(&text).map_err(|error| IntervalError::NotCosts(path.to_owned(), error))
}

fn between(earlier: &costs::Costs, later: &costs::Costs) -> Result<costs::Costs, IntervalError> {
    if earlier.since != later.since {
        return Err(IntervalError::OtherAgent);
    }
    if later.interval_s <= earlier.interval_s {
        return Err(IntervalError::NotLater);
    }
    Ok(later.since(earlier))
}

/// Converts the ledger to the input of the projection.
fn model(ledger: &costs::Costs) -> MeasuredCosts {
    let programs = ledger.runs.iter().filter_map(|run| run.program_cpu_us);
    MeasuredCosts {
        interval_s: ledger.interval_s,
        cpus: u32::try_from(ledger.cpus).unwrap_or(u32::MAX),
        agent_us: ledger.agent_cpu_us,
        uncaptured_us: ledger.uncaptured_cpu_us,
        programs_us: programs.sum(),
        rules: ledger.rules.iter().map(rule).collect(),
    }
}

fn rule(ledger: &costs::RuleCosts) -> MeasuredRuleCosts {
    let mut cpu_us = Components::default();
    for (component, ByCpuPlace { general, engine, eligible }) in &ledger.cpu_us {
        let cell = PlaceCosts { general: *general, engine: *engine, eligible: *eligible };
        cpu_us.set(*component, cell);
    }
    MeasuredRuleCosts {
        name: name(ledger),
        owner: match ledger.kind {
            Kind::Rule => CostsOwner::Rule,
            Kind::Packets => CostsOwner::Packets,
            Kind::Agent | Kind::Removed => CostsOwner::Agent,
        },
        connections: ledger.connections,
        handshakes: ledger.handshakes,
        messages: ledger.messages_sent + ledger.messages_received,
        sent_bytes: ledger.bytes_sent,
        received_bytes: ledger.bytes_received,
        cpu_us,
    }
}

/// The cipher suite of each rule, from one of its open connections.
fn suites(connections: &[ConnectionDisplay]) -> Vec<KnownSuite> {
    let suite = |connection: &ConnectionDisplay| {
        let suite = SuiteArg::of_name(&connection.tls.as_ref()?.suite)?;
        Some(KnownSuite { rule: connection.rule.clone(), suite })
    };
    connections.iter().filter_map(suite).collect()
}
