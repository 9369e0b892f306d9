//! Lists the workloads of `bench compare`, which compares two versions of tacit.

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Full mutual handshakes.
    Connect,
    /// Resumed handshakes.
    Resumed,
    /// Requests and replies of 2 KB on ten connections.
    Small,
    /// 1 GB one way.
    Bulk,
    /// Idle connections.
    Memory,
    /// [`Task::Small`] between two runs.
    RunSmall,
    /// A run of a program that does nothing.
    RunStart,
}

impl Task {
    /// All workloads, in the order of the report.
    pub(super) const ALL: [Self; 7] = [
        Self::Connect,
        Self::Resumed,
        Self::Small,
        Self::Bulk,
        Self::Memory,
        Self::RunSmall,
        Self::RunStart,
    ];

    /// The name for `--workloads`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Resumed => "resumed",
            Self::Small => "2k",
            Self::Bulk => "bulk",
            Self::Memory => "memory",
            Self::RunSmall => "run-2k",
            Self::RunStart => "run-start",
        }
    }

    /// The unit of the values.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Connect | Self::Resumed => "us/connect",
            Self::Small | Self::RunSmall => "us/exchange",
            Self::Bulk => "us/MB",
            Self::Memory => "bytes/connection",
            Self::RunStart => "us/run",
        }
    }
}
