//! How a connection ended that carried bytes.

use std::fmt;
use std::io;

use tacit_core::starttls::StarttlsError;

use tacit_tls::SessionError;

/// How a connection ended.
#[derive(Debug)]
pub enum ConnectionEnd {
    /// Both directions ended in order.
    Orderly,
    /// The same, because tacit ended its own: the key of a TLS 1.2 session is used up.
    KeyLimit,
    /// The TLS peer's stream was cut: it ended without `close_notify`.
    Truncated,
    /// One socket was reset, or failed otherwise.
    Broken {
        /// Which.
        socket: BrokenSocket,
        /// What the kernel said.
        error: io::Error,
    },
    /// The TLS session could not go on.
    Session(SessionError),
    /// What was said under TLS was not the protocol's.
    Refused(Box<StarttlsError>),
    /// What the program asked for could not be done, and nothing can go on after that.
    Asked(&'static str),
    /// The program has begun TLS itself, with these bytes.
    OwnTls(Box<[u8]>),
    /// The same, and the connection without the rule's TLS could not be made.
    NotPassed(Box<str>),
}

/// One of a connection's two sockets, as the log names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenSocket {
    /// The one in clear; of two, the one that was accepted.
    Clear,
    /// The other one.
    Far,
}

impl BrokenSocket {
    /// The other one of the two.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Clear => Self::Far,
            Self::Far => Self::Clear,
        }
    }
}

impl fmt::Display for ConnectionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Orderly => f.write_str("closed"),
            Self::KeyLimit => f.write_str(
                "closed at the limit of its key, which TLS 1.2 cannot replace: let the peer speak \
                 TLS 1.3, or have the program reconnect",
            ),
            Self::Truncated => f.write_str("the TLS peer ended without close_notify"),
            Self::Broken { socket: BrokenSocket::Clear, error } => {
                write!(f, "the clear socket broke: {error}")
            }
            Self::Broken { socket: BrokenSocket::Far, error } => {
                write!(f, "the far socket broke: {error}")
            }
            Self::Session(error) => write!(f, "{error}"),
            Self::Refused(refusal) => write!(f, "{refusal}"),
            Self::Asked(what) => f.write_str(what),
            Self::OwnTls(_) => f.write_str("the program speaks TLS itself, and so does the rule"),
            Self::NotPassed(reason) => {
                write!(f, "the program speaks TLS itself, and without the rule's: {reason}")
            }
        }
    }
}
