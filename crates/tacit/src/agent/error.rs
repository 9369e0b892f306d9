//! Defines the errors that prevent an agent from starting.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tacit_core::message_id::MessageId;
use tacit_core::policy::Diagnostic;

use crate::activate::client::StarterError;
use crate::control::client::ClientError;
use crate::live::RuleRefused;
use crate::run::link::client::LinkError;

use super::opened::ListenError;
use crate::exit::with_fix;
use crate::host::HostError;
use crate::runtime::explain_error;

/// An error that keeps an agent from starting.
#[derive(Debug)]
pub enum AgentError {
    /// The kernel refused a system call that the agent needs.
    Process(io::Error),
    /// The log or the audit log cannot be written.
    Log(io::Error),
    /// The policy has errors.
    Policy(PathBuf, Vec<Diagnostic>),
    /// The TLS library rejects a rule.
    Rule(RuleRefused),
    /// The agent cannot listen on an address.
    Listen(ListenError),
    /// The control socket cannot be created.
    Control(PathBuf, io::Error),
    /// The host cannot be captured.
    Host(HostError),
    /// The raw sockets cannot be opened that this `[sa.NAME]`, perhaps among others, needs.
    Raw(String, io::Error),
    /// The programs of activations cannot be started.
    Activate(StarterError),
    /// The link cannot be used.
    Link(LinkError),
    /// The predecessor does not hand its sockets over.
    TakeOver(ClientError),
}

impl AgentError {
    /// Whether the policy causes the error.
    #[must_use]
    pub fn is_policy(&self) -> bool {
        matches!(self, Self::Policy(..) | Self::Rule(_))
    }
}

impl AgentError {
    /// The identifier of the message.
    #[must_use]
    pub fn id(&self) -> MessageId {
        match self {
            Self::Process(_) => MessageId("kernel-refused"),
            Self::Log(_) => MessageId("log-unusable"),
            Self::Policy(..) => MessageId("policy-refused"),
            Self::Rule(_) => MessageId("rule-refused"),
            Self::Listen(_) => MessageId("cannot-listen"),
            Self::Control(..) => MessageId("control-unusable"),
            Self::Host(error) => error.id(),
            Self::Raw(..) => MessageId("raw-sockets-unusable"),
            Self::Activate(_) => MessageId("starter-unusable"),
            Self::Link(_) => MessageId("link-unusable"),
            Self::TakeOver(_) => MessageId("no-take-over"),
        }
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(error) => write!(
                f,
                "cannot start the agent: a system call that sets up the process (limits, signals, \
                 threads) failed: {}",
                explain_error(error)
            ),
            Self::Log(error) => f.write_str(&with_fix(&error.to_string(), OTHER_LOG)),
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
                "cannot create the control socket {}: {error}\n    \
                 fix: create its directory, or set another path with --control",
                path.display()
            ),
            Self::Host(error) => write!(f, "{error}"),
            Self::Raw(sa, error) => write!(
                f,
                "cannot open a raw socket for [sa.{sa}]: {error}. The agent needs this socket, \
                 because the packets of [sa.{sa}] are not sent in UDP\n    fix: start the agent as \
                 root or with CAP_NET_RAW; or, with ESP, remove `encapsulation = \"none\"`, so \
                 that packets are sent in UDP"
            ),
            Self::Activate(error) => write!(f, "{error}"),
            Self::Link(error) => write!(f, "{error}"),
            Self::TakeOver(error) => {
                write!(f, "cannot take over the sockets of the running agent: {error}")
            }
        }
    }
}

impl std::error::Error for AgentError {}

const OTHER_LOG: &str = "create the directory, or set another destination with --log or --audit";
