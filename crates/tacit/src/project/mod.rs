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

mod interval;
mod report;
mod units;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tacit_core::policy::{Suite, parse_duration};
use tacit_core::projection::{Costs, Question, Refused, project};

use self::interval::{Interval, NoInterval};
use self::units::Units;
use crate::exit::{EXIT_FAILURE, EXIT_OK, EXIT_USAGE, fail, pretty, print};
use tacit_tls::measure::CannotMeasure;

/// Two snapshots of an agent are at least so far apart: its ledger is a few milliseconds behind.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// And at most.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// How long a suite is tried out at one length of message.
const TRIAL_TIME: Duration = Duration::from_millis(100);
/// Traffic can grow so much and no more: beyond, nothing that was measured says anything.
const SCALE_MAX: f64 = 1000.0;

/// Say what measured traffic would cost in another way
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  One engine for what an agent does now:
    tacit project --engines 1
  Twice the traffic, with ChaCha20, from snapshots taken before and after a test:
    tacit show costs --json > before.json; ...; tacit show costs --json > after.json
    tacit project --costs before.json --costs after.json --scale 2 --suite chacha20
  The price of TLS: what would remain without it, and what it would add elsewhere:
    tacit project --rule orders-db=permit --rule resolver=tls

Exit status: 0 an answer, 1 none, 64 the question makes no sense.")]
pub struct ProjectArgs {
    /// Costs that were measured; given twice, earlier first, the time between
    #[arg(long, value_name = "FILE", conflicts_with_all = ["control", "interval"])]
    costs: Vec<PathBuf>,
    /// The control socket of the agent to measure [default: as all verbs]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// How long to measure it
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = interval)]
    interval: Duration,
    /// CPUs set aside as engines
    #[arg(long, value_name = "N")]
    engines: Option<u32>,
    /// The suite of all rules that speak TLS
    #[arg(long, value_enum, ignore_case = true, value_name = "SUITE")]
    suite: Option<SuiteArg>,
    /// What becomes of a rule: permit, tls, or engine for a relay on an engine; may be repeated
    #[arg(long = "rule", value_name = "NAME=WHAT")]
    rules: Vec<RuleChange>,
    /// So many times the traffic
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = scale)]
    scale: f64,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// The suites, without their version: a megabyte costs the same in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SuiteArg {
    /// The default
    #[value(name = "aes-128-gcm")]
    Aes128Gcm,
    /// Longer keys
    #[value(name = "aes-256-gcm")]
    Aes256Gcm,
    /// For CPUs without AES instructions
    #[value(name = "chacha20", alias = "chacha20-poly1305")]
    ChaCha20,
}

impl SuiteArg {
    fn suite(self) -> Suite {
        match self {
            Self::Aes128Gcm => Suite::TLS_AES_128_GCM_SHA256,
            Self::Aes256Gcm => Suite::TLS_AES_256_GCM_SHA384,
            Self::ChaCha20 => Suite::TLS_CHACHA20_POLY1305_SHA256,
        }
    }

    /// The TLS 1.3 suite with the same AEAD as one of IANA's names.
    fn of_name(name: &str) -> Option<Suite> {
        let words = [
            ("AES_128_GCM", Self::Aes128Gcm),
            ("AES_256_GCM", Self::Aes256Gcm),
            ("CHACHA20", Self::ChaCha20),
        ];
        words.iter().find(|(word, _)| name.contains(word)).map(|(_, suite)| suite.suite())
    }
}

/// A rule and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RuleChange {
    name: String,
    what: Becomes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    Permit,
    Tls,
    Engine,
}

impl FromStr for RuleChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let what = |word: &str| match word {
            "permit" => Some(Becomes::Permit),
            "tls" => Some(Becomes::Tls),
            "engine" => Some(Becomes::Engine),
            _ => None,
        };
        let split = text.rsplit_once('=').filter(|(name, _)| !name.is_empty());
        let change =
            split.and_then(|(name, word)| Some(Self { name: name.to_owned(), what: what(word)? }));
        change.ok_or_else(|| {
            "write NAME=permit, NAME=tls or NAME=engine: orders-db=permit".to_owned()
        })
    }
}

/// Why there is no answer.
#[derive(Debug)]
enum ProjectError {
    /// There is no interval.
    Interval(NoInterval),
    /// More engines than CPUs.
    Engines { asked: u32, cpus: u32 },
    /// The question does not fit.
    Refused(Refused),
    /// Units could not be measured.
    Units(CannotMeasure),
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
            Self::Refused(Refused::Nothing | Refused::NoCells) => EXIT_FAILURE,
            Self::Refused(_) => EXIT_USAGE,
            _ => EXIT_FAILURE,
        }
    }
}

/// Runs the verb.
#[must_use]
pub fn run(args: &ProjectArgs) -> ExitCode {
    match answer(args) {
        Ok(answer) if args.json => print(pretty(&answer.json()), EXIT_OK),
        Ok(answer) => print(answer.text(), EXIT_OK),
        Err(error) => fail(&error, error.exit_code()),
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
    let question = Question { engines, scale: args.scale, changes };
    let projected = project(costs, &question).map_err(ProjectError::Refused)?;
    Ok(report::Answer::new(costs, &question, projected, assumptions))
}

/// How many engines there were, where nobody said how many there should be.
fn engines_in_use(costs: &Costs, assumptions: &mut Vec<String>) -> Option<u32> {
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

fn interval(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).ok_or("write a duration such as 10s or 1m30s")?;
    if duration < INTERVAL_MIN || duration > INTERVAL_MAX {
        return Err(format!("from {INTERVAL_MIN:?} to {INTERVAL_MAX:?}"));
    }
    Ok(duration)
}

fn scale(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| *factor > 0.0 && *factor <= SCALE_MAX);
    factor.ok_or_else(|| format!("write a factor such as 1.5, above 0 and up to {SCALE_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rules_change_is_its_name_and_a_word() {
        let change = |name: &str, what| Ok(RuleChange { name: name.into(), what });
        assert_eq!("web=permit".parse(), change("web", Becomes::Permit));
        assert_eq!("a=b=tls".parse(), change("a=b", Becomes::Tls));
        assert_eq!("web=engine".parse(), change("web", Becomes::Engine));
        for wrong in ["", "web", "=tls", "web=", "web=deny"] {
            assert!(wrong.parse::<RuleChange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn suites_are_known_by_their_aead() {
        let of = |name| SuiteArg::of_name(name).map(Suite::name);
        assert_eq!(of("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"), Some("TLS_AES_256_GCM_SHA384"));
        for suite in Suite::DEFAULT {
            assert!(of(suite.name()).is_some(), "{}", suite.name());
        }
        assert_eq!(of("TLS_NULL"), None);
    }

    #[test]
    fn factors_and_intervals_have_limits() {
        assert_eq!(scale("2.5"), Ok(2.5));
        for wrong in ["0", "-1", "NaN", "inf", "1001", "two"] {
            assert!(scale(wrong).is_err(), "{wrong}");
        }
        assert_eq!(interval("10s"), Ok(Duration::from_secs(10)));
        for wrong in ["1ms", "2h", "10", ""] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
