//! Why an agent could not start.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tacit_core::policy::Diagnostic;

use crate::control::client::ClientError;
use crate::live::RuleRefused;

use super::opened::ListenError;

/// Why an agent could not start.
#[derive(Debug)]
pub enum AgentError {
    /// The kernel refused something the process needs.
    Process(io::Error),
    /// The audit log cannot be written.
    Log(io::Error),
    /// The policy has errors.
    Policy(PathBuf, Vec<Diagnostic>),
    /// The TLS library refuses a rule.
    Rule(RuleRefused),
    /// An address cannot be listened on.
    Listen(ListenError),
    /// The control socket cannot be made.
    Control(PathBuf, io::Error),
    /// The agent before us does not hand over.
    TakeOver(ClientError),
}

impl AgentError {
    /// Whether the policy is at fault.
    #[must_use]
    pub fn is_policy(&self) -> bool {
        matches!(self, Self::Policy(..) | Self::Rule(_))
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(error) => write!(f, "the kernel refuses: {error}"),
            Self::Log(error) => write!(f, "{error}"),
            Self::Policy(file, findings) => {
                for (number, finding) in findings.iter().enumerate() {
                    if number > 0 {
                        writeln!(f)?;
                    }
                    f.write_str(&finding.render(&file.display().to_string()))?;
                }
                Ok(())
            }
            Self::Rule(error) => write!(f, "{error}"),
            Self::Listen(error) => write!(f, "{error}"),
            Self::Control(path, error) => write!(
                f,
                "control socket {}: {error}\n    \
                 fix: create its directory, or choose another path with --control",
                path.display()
            ),
            Self::TakeOver(error) => write!(
                f,
                "the running agent does not hand its sockets over: \
                                                {error}"
            ),
        }
    }
}

impl std::error::Error for AgentError {}
