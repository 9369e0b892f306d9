//! `tacit project`: what the traffic of an interval would cost with engines, another suite, another
//! rule, or more of it.
//!
//! ```text
//!   interval.rs: two files, one file, or an agent asked twice ─┐
//!   units.rs: what TLS costs on this machine, tried now ───────┴─> model ──> report.rs: text, JSON
//! ```
//!
//! The arithmetic is [`tacit_core::projection`]'s. Everything that was taken for granted is
//! printed with the answer. Limits: `INTERVAL_MAX`; `TRIAL_TIME` for each suite and length
//! that is tried out.

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
use self::interval::{Interval, NoInterval};
use self::units::Units;
use crate::exit::{EXIT_FAILURE, EXIT_OK, EXIT_USAGE, fail, pretty, print};
use tacit_tls::measure::CannotMeasure;

/// How long a suite is tried out at one length of message.
const TRIAL_TIME: Duration = Duration::from_millis(100);

/// Why there is no answer.
#[derive(Debug)]
enum ProjectError {
    /// There is no interval.
    Interval(NoInterval),
    /// More engines than CPUs.
    Engines { asked: u32, cpus: u32 },
    /// The question does not fit.
    Refused(ProjectionError),
    /// Units could not be measured.
    Units(CannotMeasure),
}

impl ProjectError {
    /// The identifier of the message.
    fn id(&self) -> MessageId {
        match self {
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
            Self::Engines { asked, cpus } => write!(
                f,
                "{asked} engines leave no general CPU: there are {cpus} CPUs, one must stay"
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
            Self::Interval(NoInterval::TooManyFiles(_)) | Self::Engines { .. } => EXIT_USAGE,
            Self::Refused(ProjectionError::Nothing | ProjectionError::NoCells) => EXIT_FAILURE,
            Self::Refused(_) => EXIT_USAGE,
            _ => EXIT_FAILURE,
        }
    }
}

/// Runs the verb.
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
    if let Some(asked) = engines
        && asked >= costs.cpus
    {
        return Err(ProjectError::Engines { asked, cpus: costs.cpus });
    }
    let mut units = Units::new(costs, TRIAL_TIME);
    let changes = units.changes(args, &suites, &mut assumptions).map_err(ProjectError::Units)?;
    let question = ProjectionRequest { engines, scale: args.scale, changes };
    let projected = project(costs, &question).map_err(ProjectError::Refused)?;
    Ok(report::Answer::new(costs, &question, projected, assumptions))
}

/// The number of engines during the measurement, used if --engines is not given.
fn engines_in_use(costs: &MeasuredCosts, assumptions: &mut Vec<String>) -> Option<u32> {
    let spent = costs.rules.iter().map(|rule| rule.cpu_us.total().engine).sum();
    let percent = costs.percent(spent);
    let engines = (1..costs.cpus).find(|&count| f64::from(count) * 100.0 >= percent)?;
    (percent > 0.0).then(|| {
        assumptions.push(format!(
            "as many engines as what was measured on engines needs: {engines}; --engines says \
             otherwise"
        ));
        engines
    })
}
