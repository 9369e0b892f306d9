//! Defines the errors of `tacit run`, and their exit codes.

use std::ffi::OsString;
use std::fmt;
use std::io;

use tacit_core::message_id::MessageId;
use tacit_sys::namespace::ExistingNetworkError;
use tacit_sys::spawn::SpawnError;

use super::{OptionsError, inherited, user};
use crate::exit::with_fix;
use crate::runtime::explain_error;

/// tacit itself failed.
const EXIT_TACIT_FAILED: u8 = 125;
/// CMD exists but cannot be run.
const EXIT_NOT_RUN: u8 = 126;
/// CMD does not exist.
const EXIT_NOT_FOUND: u8 = 127;

/// The reason why a run cannot start.
#[derive(Debug)]
pub enum RunError {
    /// The launcher cannot become the user who called sudo.
    User(user::UserError),
    /// The program would inherit a descriptor that bypasses the policy.
    Inherit(inherited::InheritError),
    /// A system call of the launcher failed.
    SystemCall(&'static str, io::Error),
    /// The network namespace of the command line cannot be opened.
    Network(ExistingNetworkError),
    /// The namespace cannot be made; the text names the kernel setting.
    Namespace(String),
    /// The agent refused the run or ended.
    Agent(String),
    /// The options of `--tls` are invalid.
    Options(OptionsError),
    /// This signal asked the launcher to end before the program was started.
    Signal(i32),
    /// The program cannot be started.
    Start(OsString, SpawnError),
}

impl RunError {
    /// The identifier of the message.
    pub(super) fn id(&self) -> MessageId {
        match self {
            Self::User(_) => MessageId("sudo-user"),
            Self::Inherit(_) => MessageId("inherited-descriptor"),
            Self::SystemCall(..) | Self::Signal(_) => MessageId("run-failed"),
            Self::Namespace(_) | Self::Network(_) => MessageId("no-namespace"),
            Self::Agent(_) => MessageId("run-not-served"),
            Self::Options(_) => MessageId("tls-options"),
            Self::Start(_, SpawnError::Program(_)) => MessageId("program-not-run"),
            Self::Start(..) => MessageId("program-not-started"),
        }
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SystemCall(what, error) => write!(f, "cannot {what}: {}", explain_error(error)),
            Self::User(error) => write!(f, "{error}"),
            Self::Inherit(error) => write!(f, "{error}"),
            Self::Network(error) => write!(f, "{error}"),
            Self::Namespace(reason) => f.write_str(&with_fix(reason, CHECK_THE_HOST)),
            Self::Agent(reason) => f.write_str(&with_fix(reason, READ_THE_LOG)),
            Self::Options(error) => write!(f, "{error}"),
            Self::Signal(number) => {
                write!(f, "signal {number} ended the launcher before it started the program")
            }
            Self::Start(program, SpawnError::Program(error)) => {
                let fix = match error.kind() {
                    io::ErrorKind::NotFound => {
                        "check the spelling; if `command -v` does not find the program in PATH, \
                         write its path"
                    }
                    _ => "give the path of an executable file that this user may run",
                };
                write!(f, "cannot run the program {}: {error}\n    fix: {fix}", program.display())
            }
            Self::Start(_, error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for RunError {}

const CHECK_THE_HOST: &str = "run `tacit doctor`, which checks what this host allows";
const READ_THE_LOG: &str = "read the log of the agent (--log sets its destination), and run the \
                            command again";

impl RunError {
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Start(_, SpawnError::Program(error))
                if error.kind() == io::ErrorKind::NotFound =>
            {
                EXIT_NOT_FOUND
            }
            Self::Start(_, SpawnError::Program(_)) => EXIT_NOT_RUN,
            _ => EXIT_TACIT_FAILED,
        }
    }
}
