//! Defines the options and arguments of `tacit project`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tacit_core::policy::{Suite, parse_duration};

/// The shortest interval to measure. The ledger is updated with a delay of a few milliseconds, so a
/// shorter interval would give a wrong result.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The longest interval to measure.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// The highest value of `--scale`. With a higher value, the projection would not be reliable.
const SCALE_MAX: f64 = 1000.0;
/// The values that `--packet-factor` accepts. Any other value comes from a wrong measurement.
const PACKET_FACTORS: RangeInclusive<f64> = 0.1..=10.0;

/// Estimate the CPU time that measured traffic would need with other settings
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  The traffic of a running agent, with one engine:
    tacit project --engines 1
  Twice the traffic of a test, with ChaCha20 (the files are written before and after the test):
    tacit show costs --json > before.json; ...; tacit show costs --json > after.json
    tacit project --costs before.json --costs after.json --scale 2 --suite chacha20
  The number of engines that the agent needs, if each engine is busy for at most 70 %:
    tacit project --target 70
  The packets of IPsec tunnels with one engine, if a packet needs 8 % more CPU time on an engine:
    tacit project --engines 1 --packet-factor 1.08
  The cost of TLS: without TLS for one rule, and with TLS for another:
    tacit project --rule orders-db=permit --rule resolver=tls

Exit status: 0 success, 1 no result (the message says why), 64 invalid options.")]
pub struct ProjectArgs {
    /// File with the output of `tacit show costs --json`; give two files, the earlier first, to use
    /// only the time between them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["control", "interval"])]
    pub(super) costs: Vec<PathBuf>,
    /// The control socket of the agent to measure [default: as for `tacit agent`]
    #[arg(long, value_name = "PATH")]
    pub(super) control: Option<PathBuf>,
    /// How long to measure the agent
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = interval)]
    pub(super) interval: Duration,
    /// Number of CPUs that are reserved for engines
    #[arg(long, value_name = "N")]
    pub(super) engines: Option<u32>,
    /// Assume that the machine gets additional CPUs for the engines; without this option, engines
    /// use CPUs that the machine has now
    #[arg(long, requires = "engines")]
    pub(super) added: bool,
    /// CPU time of a packet with engines, divided by the CPU time without engines; `tacit workload
    /// paper ipsec --seeds 1` measures this factor on this machine
    #[arg(long, requires = "engines", value_name = "FACTOR", default_value = "1",
          value_parser = packet_factor)]
    pub(super) packet_factor: f64,
    /// Maximum load of an engine; determines how many engines are needed
    #[arg(long, value_name = "PERCENT", default_value = "80", value_parser = target)]
    pub(super) target: f64,
    /// Assume this cipher suite for all rules with TLS
    #[arg(long, value_enum, ignore_case = true, value_name = "SUITE")]
    pub(super) suite: Option<SuiteArg>,
    /// Change a rule to permit, tls, or engine (engines relay its connections); may be repeated
    #[arg(long = "rule", value_name = "NAME=WHAT")]
    pub(super) rules: Vec<RuleChange>,
    /// Multiply the traffic by this factor
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = scale)]
    pub(super) scale: f64,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The cipher suites. They have no TLS version, because a record costs the same CPU time in TLS 1.2
/// and TLS 1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SuiteArg {
    /// AES with 128-bit keys, the first suite in the default order
    #[value(name = "aes-128-gcm")]
    Aes128Gcm,
    /// AES with 256-bit keys
    #[value(name = "aes-256-gcm")]
    Aes256Gcm,
    /// ChaCha20-Poly1305, for CPUs without AES instructions
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

    /// Takes the IANA name of a cipher suite, and returns the TLS 1.3 suite with the same AEAD.
    pub(super) fn of_name(name: &str) -> Option<Suite> {
        let words = [
            ("AES_128_GCM", Self::Aes128Gcm),
            ("AES_256_GCM", Self::Aes256Gcm),
            ("CHACHA20", Self::ChaCha20),
        ];
        words.iter().find(|(word, _)| name.contains(word)).map(|(_, suite)| suite.suite())
    }
}

/// A rule and its new setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleChange {
    pub(super) name: String,
    pub(super) what: NewSetting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewSetting {
    Permit,
    Tls,
    Engine,
}

impl FromStr for RuleChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let what = |word: &str| match word {
            "permit" => Some(NewSetting::Permit),
            "tls" => Some(NewSetting::Tls),
            "engine" => Some(NewSetting::Engine),
            _ => None,
        };
        let split = text.rsplit_once('=').filter(|(name, _)| !name.is_empty());
        let change =
            split.and_then(|(name, word)| Some(Self { name: name.to_owned(), what: what(word)? }));
        change.ok_or_else(|| {
            "expected NAME=permit, NAME=tls or NAME=engine, such as orders-db=permit".to_owned()
        })
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).ok_or("expected a duration such as 10s or 1m30s")?;
    if duration < INTERVAL_MIN || duration > INTERVAL_MAX {
        return Err(format!("expected a duration from {INTERVAL_MIN:?} to {INTERVAL_MAX:?}"));
    }
    Ok(duration)
}

fn packet_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| PACKET_FACTORS.contains(factor));
    factor.ok_or_else(|| "expected a factor from 0.1 to 10, such as 1.08".to_owned())
}

fn target(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| *percent >= 1.0 && *percent <= 100.0);
    percent.ok_or_else(|| "expected a percentage from 1 to 100, such as 80".to_owned())
}

fn scale(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| *factor > 0.0 && *factor <= SCALE_MAX);
    factor.ok_or_else(|| format!("expected a factor above 0 and at most {SCALE_MAX}, such as 1.5"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_rule_name_and_a_setting() {
        let change = |name: &str, what| Ok(RuleChange { name: name.into(), what });
        assert_eq!("web=permit".parse(), change("web", NewSetting::Permit));
        assert_eq!("a=b=tls".parse(), change("a=b", NewSetting::Tls));
        assert_eq!("web=engine".parse(), change("web", NewSetting::Engine));
        for wrong in ["", "web", "=tls", "web=", "web=deny"] {
            assert!(wrong.parse::<RuleChange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn suites_are_recognised_by_their_aead() {
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
        assert_eq!(packet_factor("1.08"), Ok(1.08));
        for wrong in ["0", "-1", "NaN", "10.1", "more"] {
            assert!(packet_factor(wrong).is_err(), "{wrong}");
        }
        assert_eq!(target("70"), Ok(70.0));
        for wrong in ["0", "-1", "NaN", "101", "all"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
        assert_eq!(interval("10s"), Ok(Duration::from_secs(10)));
        for wrong in ["1ms", "2h", "10", ""] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
