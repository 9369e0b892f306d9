//! Defines the report about a trace, for `tacit trace`, displays (`tacit show`) and the log.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clock::Rfc3339;

/// Why a trace ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum TraceEndReason {
    /// Its time limit is reached.
    Time = 1,
    /// The command ended it, or ended itself.
    Requested,
    /// The size limit of its files is reached.
    MaxBytes,
    /// A file cannot be written.
    WriteFailed,
    /// A policy with `trace = false` was installed.
    Policy,
    /// A successor has taken over.
    Restart,
    /// The agent ends.
    AgentEnded,
}

impl TraceEndReason {
    const ALL: [Self; 7] = [
        Self::Time,
        Self::Requested,
        Self::MaxBytes,
        Self::WriteFailed,
        Self::Policy,
        Self::Restart,
        Self::AgentEnded,
    ];

    pub(super) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == number)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Requested => "requested",
            Self::MaxBytes => "max-bytes",
            Self::WriteFailed => "write-failed",
            Self::Policy => "policy",
            Self::Restart => "restart",
            Self::AgentEnded => "agent-ended",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Time => "the trace reached the end of its duration",
            Self::Requested => "`tacit trace` ended the trace",
            Self::MaxBytes => "the trace reached --max-bytes",
            Self::WriteFailed => "the agent cannot write to a file of the trace",
            Self::Policy => "the agent installed a policy with `trace = false`",
            Self::Restart => "the trace ended, because a restart replaced the agent",
            Self::AgentEnded => "the agent has ended",
        }
    }
}

impl fmt::Display for TraceEndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The answer to the command when its trace has started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TraceStarted {
    /// The number of the trace.
    pub id: u64,
    /// The number of open connections that it records.
    pub open: usize,
}

/// The report about a trace that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TraceReport {
    /// The connections that it recorded.
    pub of: String,
    /// The user who requested it.
    pub user: String,
    /// The process that requested it.
    pub pid: i32,
    /// Why it ended.
    pub reason: TraceEndReason,
    /// The error of the kernel, if a file could not be written.
    pub error: Option<String>,
    /// Connections that it has recorded.
    pub connections: u64,
    /// Packets in the capture.
    pub packets: u64,
    /// Packets that are not in the capture: the file was too slow, or full.
    pub dropped: u64,
    /// Lines in the key log.
    pub keys: u64,
    /// Lines that are not in the key log.
    pub keys_dropped: u64,
    /// Bytes written to both files.
    pub bytes: u64,
}

impl TraceReport {
    /// Why it ended, as text.
    #[must_use]
    pub fn why(&self) -> String {
        match &self.error {
            Some(error) => format!("{}: {error}", self.reason.text()),
            None => self.reason.text().to_owned(),
        }
    }
}

/// One trace in progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TraceState {
    /// Its number.
    pub id: u64,
    /// Its connections.
    pub of: String,
    /// The user who requested it.
    pub user: String,
    /// The process that requested it.
    pub pid: i32,
    /// The file of the bytes.
    pub pcap: Option<String>,
    /// The file of the keys.
    pub keylog: Option<String>,
    /// When it started.
    pub since: Rfc3339,
    /// When it ends at the latest.
    pub until: Rfc3339,
    /// The maximum number of bytes that it writes.
    pub max_bytes: u64,
    /// Connections that it has recorded.
    pub connections: u64,
    /// Packets in the capture.
    pub packets: u64,
    /// Packets that are not in the capture.
    pub dropped: u64,
    /// Lines in the key log.
    pub keys: u64,
    /// Bytes written to both files.
    pub bytes: u64,
}
