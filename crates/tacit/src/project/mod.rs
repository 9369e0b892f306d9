//! `tacit project`: estimates the CPU time that the agent would need with other settings or for
//! more traffic. The estimate is based on measured traffic. Examples of other settings are more
//! engines, another cipher suite, or a rule without TLS.
//!
//! ```text
//!   interval.rs: costs from files or a running agent ─────┐
//!   units.rs: cost of TLS, measured on this machine now ──┴─> projection ──> report.rs: text, JSON
//! ```
//!
//! [`tacit_core::projection`] computes the estimate. The output lists all assumptions. The
//! measurement of TLS takes `MEASURE_TIME` for each cipher suite and message length.

mod arguments;
mod interval;
mod report;
mod units;

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tacit_core::message_id::MessageId;
use tacit_core::projection::{MeasuredCosts, ProjectionError, ProjectionRequest, project};

pub use self::arguments::ProjectArgs;
use self::interval::{Interval, IntervalError};
use self::report::{EngineCpus, EngineTarget};
use self::units::Units;
use crate::exit::{EXIT_FAILURE, EXIT_OK, EXIT_USAGE, fail, pretty, print};
use tacit_tls::measure::CannotMeasure;

/// How long one cipher suite is measured at one message length.
const MEASURE_TIME: Duration = Duration::from_millis(100);

/// The reason why there is no result.
#[derive(Debug)]
enum ProjectError {
    /// There are no measured costs.
    Interval(IntervalError),
    /// There are not enough CPUs for the engines.
    Engines { requested: u32, cpus: u32 },
    /// The projection does not support the request.
    Refused(ProjectionError),
    /// The cost of TLS cannot be measured.
    Units(CannotMeasure),
}

impl ProjectError {
    /// The identifier of the message.
    fn id(&self) -> MessageId {
        match self {
            Self::Interval(IntervalError::Agent(error)) => error.id(),
            Self::Interval(_) => MessageId("no-interval"),
            Self::Engines { .. } => MessageId("too-many-engines"),
            Self::Refused(_) => MessageId("projection-refused"),
            Self::Units(_) => MessageId("suite-not-measured"),
        }
    }
}

impl fmt::Display for ProjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interval(error) => write!(f, "{error}"),
            Self::Engines { requested, cpus } => write!(
                f,
                "{requested} engines leave none of the {cpus} CPUs for other work\n    fix: use at \
                 most {maximum} engines",
                maximum = cpus.saturating_sub(1)
            ),
            Self::Refused(error) => write!(f, "{error}"),
            Self::Units(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ProjectError {}

impl ProjectError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Interval(IntervalError::TooManyFiles(_)) | Self::Engines { .. } => EXIT_USAGE,
            Self::Refused(ProjectionError::Nothing | ProjectionError::NoCells) => EXIT_FAILURE,
            Self::Refused(_) => EXIT_USAGE,
            _ => EXIT_FAILURE,
        }
    }
}

/// Runs the command.
#[must_use]
pub fn run(args: &ProjectArgs) -> ExitCode {
    match answer(args) {
        Ok(answer) if args.json => print(pretty(&json!(answer.display())), EXIT_OK),
        Ok(answer) => print(answer.text(), EXIT_OK),
        Err(error) => fail(error.id(), &error, error.exit_code()),
    }
}

fn answer(args: &ProjectArgs) -> Result<report::Answer, ProjectError> {
    let Interval { costs, suites } = Interval::measured(args).map_err(ProjectError::Interval)?;
    let costs = &costs;
    let mut assumptions = Vec::new();
    let engines = args.engines.or_else(|| engines_in_use(costs, &mut assumptions));
    if let Some(requested) = engines
        && requested >= costs.cpus
        && !args.added
    {
        return Err(ProjectError::Engines { requested, cpus: costs.cpus });
    }
    let mut units = Units::new(costs, MEASURE_TIME);
    let changes = units.changes(args, &suites, &mut assumptions).map_err(ProjectError::Units)?;
    let packet_factor = args.packet_factor;
    let question = ProjectionRequest { engines, scale: args.scale, packet_factor, changes };
    let projected = project(costs, &question).map_err(ProjectError::Refused)?;
    let cpus = if args.added { EngineCpus::Added } else { EngineCpus::OfMachine };
    let target = EngineTarget { percent: args.target, cpus };
    Ok(report::Answer::new(costs, &question, projected, target, assumptions))
}

/// The number of engines during the measurement, used if --engines is not given.
fn engines_in_use(costs: &MeasuredCosts, assumptions: &mut Vec<String>) -> Option<u32> {
    let usage = costs.rules.iter().map(|rule| rule.cpu_us.total().engine).sum();
    let percent = costs.percent(usage);
    let engines = (1..costs.cpus).find(|&count| f64::from(count) * 100.0 >= percent)?;
    (percent > 0.0).then(|| {
        assumptions.push(format!(
            "the projection assumes {engines} engines, the smallest number that can do the work of \
             the measured engines. To set another number, use --engines"
        ));
        engines
    })
}
