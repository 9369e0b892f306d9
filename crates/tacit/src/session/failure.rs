//! Lists the errors that end a connection before any byte is relayed. Each error has a text for the
//! log.

use std::fmt;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use tacit_core::failure_kind::FailureKind;
use tacit_core::starttls::StarttlsError;
use tacit_tls::{HandshakeFailure, SessionError};

/// Why a connection failed before it relayed a byte.
#[derive(Debug)]
pub enum Failure {
    /// The peer's PROXY header is missing or wrong.
    Proxy(String),
    /// The target could not be reached.
    Dial(Unreached),
    /// The program closed its socket before the connection was established.
    Abandoned,
    /// The STARTTLS exchange failed or ended without TLS.
    Starttls(StarttlsError),
    /// The STARTTLS exchange did not complete in time.
    Silence(Duration),
    /// The handshake failed.
    Handshake(HandshakeFailure),
    /// The session refused its first bytes.
    Session(SessionError),
    /// A data connection may come from another client than its control connection.
    Data(&'static str),
    /// A socket failed during set-up.
    Broken(io::Error),
    /// The handshake limiter granted no permit in time.
    NoHandshakePermit,
    /// The handshake limiter gave its permit to another source.
    Displaced,
}

/// Why a target could not be reached.
#[derive(Debug)]
pub struct Unreached {
    /// The text for the log.
    pub reason: String,
    /// The kernel's error, if there was one; `TimedOut` if there was no answer in time.
    pub error: Option<io::ErrorKind>,
    /// Whether this host lacks descriptors or memory; the target is not at fault.
    pub is_ours: bool,
}

impl Unreached {
    /// The kernel cannot connect to `target`.
    pub fn new(target: &impl fmt::Display, error: &io::Error) -> Self {
        let reason = format!("cannot connect to {target}: {error}");
        Self { reason, error: Some(error.kind()), is_ours: is_ours(error) }
    }

    /// There was no answer in time.
    #[must_use]
    pub fn timed_out(reason: String) -> Self {
        Self { reason, error: Some(io::ErrorKind::TimedOut), is_ours: false }
    }
}

fn is_ours(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

impl From<&str> for Unreached {
    fn from(reason: &str) -> Self {
        Self { reason: reason.to_owned(), error: None, is_ours: false }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proxy(what) => f.write_str(what),
            Self::Dial(unreached) => f.write_str(&unreached.reason),
            Self::Abandoned => {
                f.write_str("the program closed its socket before the connection was established")
            }
            Self::Starttls(refusal) => write!(f, "{refusal}"),
            Self::Data(what) => f.write_str(what),
            Self::Silence(after) => write!(
                f,
                "the STARTTLS exchange did not complete within {after:?}: check that both ends \
                 use the `starttls` protocol of the rule, or raise handshake-timeout"
            ),
            Self::Handshake(failure) => write!(f, "{failure}"),
            Self::Session(error) => write!(f, "{error}"),
            Self::NoHandshakePermit => f.write_str(
                "too many handshakes are in progress, and this handshake could not start in time: \
                 run `tacit show limits`; if the clients are legitimate, raise the handshake \
                 limits in [limits]",
            ),
            Self::Displaced => f.write_str(
                "too many handshakes are in progress, so the agent ended this handshake in favour \
                 of another client: run `tacit show limits`; if the clients are legitimate, raise \
                 the handshake limits in [limits]",
            ),
            Self::Broken(error) => write!(f, "the connection failed during set-up: {error}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<HandshakeFailure> for Failure {
    fn from(failure: HandshakeFailure) -> Self {
        Self::Handshake(failure)
    }
}

impl Failure {
    /// The kind for logs and counters.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Proxy(_) => FailureKind("proxy-header"),
            Self::Dial(_) => FailureKind("dial"),
            Self::Abandoned => FailureKind("abandoned"),
            Self::Starttls(_) => FailureKind("starttls"),
            Self::Silence(_) => FailureKind("starttls-timeout"),
            Self::Handshake(failure) => failure.kind,
            Self::Session(_) => FailureKind("session"),
            Self::Data(_) => FailureKind("data-connection"),
            Self::Broken(_) => FailureKind("broken"),
            Self::NoHandshakePermit => FailureKind("no-permit"),
            Self::Displaced => FailureKind("displaced"),
        }
    }
}
