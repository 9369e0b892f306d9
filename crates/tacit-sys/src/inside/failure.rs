//! What can go wrong between the wish to start a program and the program.

use std::fmt;
use std::io;

/// Why no program runs.
#[derive(Debug)]
pub enum StartError {
    /// The namespace could not be entered or made safe; the launcher's own failure.
    Inside {
        /// What was being done.
        step: Step,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The program itself: `NotFound`, or not to be run.
    Program(io::Error),
}

/// A step between fork and exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Getting ready, before the fork.
    Prepare,
    /// Joining the user namespace.
    JoinUser,
    /// Joining the network namespace.
    JoinNetwork,
    /// Choosing its CPUs.
    Place,
    /// Hiding files: never ends a start, see [`super::Started::not_hidden`].
    Hide,
    /// The system call filter.
    Filter,
    /// Giving up root's rights that lead out.
    Rights,
    /// Restoring limits, signals and ties to the parent.
    Restore,
}

impl Step {
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
            Self::Prepare => "get ready to start the program",
            Self::JoinUser => "join the user namespace",
            Self::JoinNetwork => "join the network namespace",
            Self::Place => "have the program run on the CPUs that the policy leaves to it",
            Self::Hide => "hide files",
            Self::Filter => "install the system call filter (CONFIG_SECCOMP_FILTER is needed)",
            Self::Rights => "give up the rights that lead out of the namespace",
            Self::Restore => "restore limits and signals",
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inside { step, error } => write!(f, "cannot {}: {error}", step.text()),
            Self::Program(error) => write!(f, "cannot run the program: {error}"),
        }
    }
}

impl std::error::Error for StartError {}
