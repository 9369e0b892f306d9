//! Defines the errors that can occur when `tacit run` starts a program.

use std::fmt;
use std::io;

/// The reason why the program did not start.
#[derive(Debug)]
pub enum SpawnError {
    /// The namespace could not be entered or confined. This is an error of the launcher itself.
    Setup {
        /// The step that failed.
        step: SpawnStep,
        /// The error of the kernel.
        error: io::Error,
    },
    /// The program does not exist or cannot be executed.
    Program(io::Error),
}

/// A step between fork and exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnStep {
    /// Preparation before the fork.
    Prepare,
    /// Joining the user namespace.
    JoinUser,
    /// Joining the network namespace.
    JoinNetwork,
    /// Setting the CPUs of the program.
    Place,
    /// Hiding files. An error in this step does not prevent the start; see
    /// [`super::SpawnedProgram::not_hidden`].
    Hide,
    /// Installing the system call filter.
    Filter,
    /// Dropping the capabilities of root that would let it leave the namespace.
    Rights,
    /// Restoring limits and signals, and arranging the end with the parent.
    Restore,
}

impl SpawnStep {
    pub(super) const ALL: [Self; 8] = [
        Self::Prepare,
        Self::JoinUser,
        Self::JoinNetwork,
        Self::Place,
        Self::Hide,
        Self::Filter,
        Self::Rights,
        Self::Restore,
    ];

    fn text(self) -> &'static str {
        match self {
            Self::Prepare => "prepare the start of the program",
            Self::JoinUser => "join the user namespace",
            Self::JoinNetwork => "join the network namespace",
            Self::Place => "bind the program to the CPUs that the policy leaves for programs",
            Self::Hide => "hide files",
            Self::Filter => "install the system call filter (CONFIG_SECCOMP_FILTER is needed)",
            Self::Rights => {
                "drop the capabilities that let root remove the nftables rules or leave the \
                 namespaces"
            }
            Self::Restore => "restore the limit of open files and the signal settings",
        }
    }
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setup { step, error } => write!(f, "cannot {}: {error}", step.text()),
            Self::Program(error) => write!(f, "cannot run the program: {error}"),
        }
    }
}

impl std::error::Error for SpawnError {}
