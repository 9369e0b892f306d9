//! The command line of `tacit project`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tacit_core::policy::{Suite, parse_duration};

/// The shortest interval between two snapshots: the ledger is a few milliseconds late.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The longest interval between two snapshots.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// The highest factor: measurements say nothing about traffic beyond it.
const SCALE_MAX: f64 = 1000.0;

/// Project what measured traffic would cost with other settings
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

Exit status: 0 a projection, 1 no projection, 64 invalid options.")]
pub struct ProjectArgs {
    /// A file of measured costs; two files, earlier first, for the interval between them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["control", "interval"])]
    pub(super) costs: Vec<PathBuf>,
    /// The control socket of the agent to measure [default: as all verbs]
    #[arg(long, value_name = "PATH")]
    pub(super) control: Option<PathBuf>,
    /// How long to measure it
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = interval)]
    pub(super) interval: Duration,
    /// CPUs set aside as engines
    #[arg(long, value_name = "N")]
    pub(super) engines: Option<u32>,
    /// The cipher suite of all rules with TLS
    #[arg(long, value_enum, ignore_case = true, value_name = "SUITE")]
    pub(super) suite: Option<SuiteArg>,
    /// Change a rule to permit, tls, or engine (its relay runs on engines); may be repeated
    #[arg(long = "rule", value_name = "NAME=WHAT")]
    pub(super) rules: Vec<RuleChange>,
    /// Multiply the traffic by this factor
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = scale)]
    pub(super) scale: f64,
    /// Print the answer as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The suites, without their version: a megabyte costs the same in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SuiteArg {
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
    pub(super) fn suite(self) -> Suite {
        match self {
            Self::Aes128Gcm => Suite::TLS_AES_128_GCM_SHA256,
            Self::Aes256Gcm => Suite::TLS_AES_256_GCM_SHA384,
            Self::ChaCha20 => Suite::TLS_CHACHA20_POLY1305_SHA256,
        }
    }

    /// The TLS 1.3 suite with the same AEAD as one of IANA's names.
    pub(super) fn of_name(name: &str) -> Option<Suite> {
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
pub(super) struct RuleChange {
    pub(super) name: String,
    pub(super) what: Becomes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Becomes {
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
