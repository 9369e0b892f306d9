//! Why a connection never carried a byte.

use std::fmt;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use tacit_core::starttls::StarttlsError;
use tacit_tls::{HandshakeFailure, SessionError};

/// Why a connection never carried a byte.
#[derive(Debug)]
pub enum Failure {
    /// The peer's PROXY header is missing or wrong.
    Proxy(String),
    /// The target could not be reached.
    Dial(Unreached),
    /// The program gave the connection up before it was connected.
    Abandoned,
    /// The dialogue before TLS did not lead there.
    Starttls(StarttlsError),
    /// It took too long.
    Silence(Duration),
    /// The handshake failed.
    Handshake(HandshakeFailure),
    /// The session refused its first bytes.
    Session(SessionError),
    /// A data connection may be somebody else's than its control connection.
    Data(&'static str),
    /// A socket broke meanwhile.
    Broken(io::Error),
    /// Too many other handshakes were in flight all the time.
    NoPlace,
    /// Its handshake had to make room for others.
    Displaced,
}

/// Why a target could not be reached.
#[derive(Debug)]
pub struct Unreached {
    /// In words, for the log.
    pub reason: String,
    /// The kernel's answer, if it gave one; `TimedOut` if there was none in time.
    pub error: Option<io::ErrorKind>,
    /// Whether this host has no room for one more connection, wherever it leads.
    pub is_ours: bool,
}

impl Unreached {
    /// The kernel refuses to connect to `target`, or reports that it does not answer.
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
                f.write_str("the program gave the connection up before it was connected")
            }
            Self::Starttls(refusal) => write!(f, "{refusal}"),
            Self::Data(what) => f.write_str(what),
            Self::Silence(after) => write!(
                f,
                "neither end said what the other waits for before TLS within {after:?}: see that \
                 both speak the rule's `starttls` protocol, or raise handshake-timeout"
            ),
            Self::Handshake(failure) => write!(f, "{failure}"),
            Self::Session(error) => write!(f, "{error}"),
            Self::NoPlace => f.write_str(
                "no place among the handshakes in flight became free in time: see \
                 `tacit show limits`, and raise [limits] if its clients are wanted",
            ),
            Self::Displaced => f.write_str(
                "its handshake was slow or waited, and had to make room for other sources: see \
                 `tacit show limits`, and raise [limits] if its clients are wanted",
            ),
            Self::Broken(error) => write!(f, "the connection broke during set-up: {error}"),
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
    /// A word for logs and counters.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Proxy(_) => "proxy-header",
            Self::Dial(_) => "dial",
            Self::Abandoned => "abandoned",
            Self::Starttls(_) => "starttls",
            Self::Silence(_) => "starttls-timeout",
            Self::Handshake(failure) => failure.kind,
            Self::Session(_) => "session",
            Self::Data(_) => "data-connection",
            Self::Broken(_) => "broken",
            Self::NoPlace => "no-place",
            Self::Displaced => "displaced",
        }
    }
}
