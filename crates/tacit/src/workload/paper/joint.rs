//! Defines how client and server of the IPsec measurements are connected: in clear, through a
//! tunnel without engines, or through a tunnel with engines. An engine is a thread on a reserved
//! CPU. Also defines the names of the measured figures.

use super::super::threads;
use super::cell::Gap;
use super::drawn::Load;

/// How the programs are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joint {
    Clear,
    Secured,
    /// In clear, with the first CPU only.
    ClearPinned,
    /// Secured with engines that spill, or do not.
    Spilling,
    Contained,
    /// With engines that spill and wait for packets, instead of polling for a short time.
    Unpolled,
    /// With an engine of the client alone, which polls or waits. The server and its agent use the
    /// first CPU: an engine does not poll while others use its CPU.
    Polling,
    Waiting,
}

impl Joint {
    /// Those of the paper.
    pub(super) const ALL: [Self; 5] =
        [Self::Clear, Self::Secured, Self::ClearPinned, Self::Spilling, Self::Contained];
    /// The others, whose policies differ.
    pub(super) const OTHERS: [Self; 3] = [Self::Unpolled, Self::Polling, Self::Waiting];

    /// The name in reasons, progress, and of policies.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Secured => "secured",
            Self::ClearPinned => "clear-on-one-cpu",
            Self::Spilling => "engine",
            Self::Contained => "engine-without-spill",
            Self::Unpolled => "engine-without-polling",
            Self::Polling => "engine-of-client-polling",
            Self::Waiting => "engine-of-client-waiting",
        }
    }

    pub(super) fn is_clear(self) -> bool {
        matches!(self, Self::Clear | Self::ClearPinned)
    }

    /// The words in front of programs in clear.
    pub(super) fn prefix(self) -> &'static [&'static str] {
        if self == Self::ClearPinned { FIRST_CPU } else { &[] }
    }

    /// The words in front of the server's run.
    pub(super) fn far_prefix(self) -> &'static [&'static str] {
        if matches!(self, Self::Polling | Self::Waiting) { FIRST_CPU } else { &[] }
    }

    /// The table for engines in the policies of the client's run and of the server's run.
    pub(super) fn engines(self) -> [&'static str; 2] {
        match self {
            Self::Clear | Self::Secured | Self::ClearPinned => [""; 2],
            Self::Spilling => ["[engine]\ncpus = \"1\"\nspill = true\n"; 2],
            Self::Contained => ["[engine]\ncpus = \"1\"\nspill = false\n"; 2],
            Self::Unpolled => ["[engine]\ncpus = \"1\"\nspill = true\npoll = false\n"; 2],
            Self::Polling => ["[engine]\ncpus = \"1\"\npoll = true\n", ""],
            Self::Waiting => ["[engine]\ncpus = \"1\"\npoll = false\n", ""],
        }
    }

    /// The reason why this is not measured on this machine.
    pub(super) fn missing(self) -> Option<Gap> {
        let is_possible = matches!(self, Self::Clear | Self::Secured) || threads::cpus() > 1;
        (!is_possible).then(|| Gap::skipped("an engine needs a second CPU"))
    }
}

/// The subject of the measurements of a load.
pub(super) fn subject(joint: Joint, load: Load) -> String {
    format!("{}, {}", joint.name(), load.name())
}

/// Starts a program on the first CPU.
const FIRST_CPU: &[&str] = &["taskset", "-c", "0"];

/// The figures of a subject.
pub(super) const RATE: &str = "rate";
pub(super) const CPU: &str = "cpu";
pub(super) const P50: &str = "p50";
pub(super) const AGENT: &str = "agent";
pub(super) const ELIGIBLE: &str = "eligible";
pub(super) const SHARE: &str = "share";
pub(super) const NEEDED: &str = "needed";
pub(super) const ON_ENGINE: &str = "CPU time forecast for one engine";
pub(super) const SPILLED: &str = "forecast spill";
pub(super) const MEASURED_ENGINE: &str = "CPU time measured on one engine";
pub(super) const MEASURED_SPILL: &str = "measured spill";
/// CPU time of packets, measured and forecast, for an exchange or a MB.
pub(super) const PACKETS: &str = "packets";
pub(super) const FORECAST: &str = "forecast";
