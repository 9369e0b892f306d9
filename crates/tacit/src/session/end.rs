//! Lists how an established connection can end, with texts for the log.

use std::fmt;
use std::io;

use tacit_core::starttls::StarttlsError;

use tacit_tls::SessionError;

/// How a connection ended.
#[derive(Debug)]
pub enum ConnectionEnd {
    /// Both directions ended in order.
    Orderly,
    /// tacit closed it in order at the key limit of a TLS 1.2 session.
    KeyLimit,
    /// The TLS peer's stream ended without `close_notify`.
    Truncated,
    /// One socket was reset or failed.
    Broken {
        /// The socket.
        socket: BrokenSocket,
        /// The kernel's error.
        error: io::Error,
    },
    /// The TLS session failed.
    Session(SessionError),
    /// The exchange under TLS broke its protocol.
    Refused(Box<StarttlsError>),
    /// A TLS request of the program failed, and the connection cannot continue after that.
    ControlFailed(&'static str),
    /// The program itself has started TLS, with these bytes.
    OwnTls(Box<[u8]>),
    /// The program that the connection should start was not started.
    NotStarted(Box<str>),
    /// The program itself has started TLS, and the connection without the rule's TLS failed.
    NotPassed(Box<str>),
}

/// One of a connection's two sockets, as the log names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenSocket {
    /// The socket in clear; if both are in clear, the downstream socket.
    Clear,
    /// The other socket.
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

impl ConnectionEnd {
    /// The socket whose side cut the connection; `None`: both ended in order.
    #[must_use]
    pub fn cut_by(&self) -> Option<BrokenSocket> {
        match self {
            Self::Orderly | Self::KeyLimit => None,
            Self::Broken { socket, .. } => Some(*socket),
            Self::Truncated | Self::Session(_) | Self::Refused(_) => Some(BrokenSocket::Far),
            Self::ControlFailed(_) | Self::OwnTls(_) | Self::NotStarted(_) | Self::NotPassed(_) => {
                Some(BrokenSocket::Clear)
            }
        }
    }
}

impl fmt::Display for ConnectionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Orderly => f.write_str("closed"),
            Self::KeyLimit => f.write_str(
                "tacit closed the connection, because the TLS key reached its data limit, and TLS \
                 1.2 cannot replace the key: use TLS 1.3, or make the program reconnect",
            ),
            Self::Truncated => f.write_str(
                "the TLS peer closed the connection without close_notify, so data may be missing",
            ),
            Self::Broken { socket: BrokenSocket::Clear, error } => {
                write!(f, "cannot read or write the clear-text socket of the connection: {error}")
            }
            Self::Broken { socket: BrokenSocket::Far, error } => {
                write!(f, "cannot read or write the TLS socket of the connection: {error}")
            }
            Self::Session(error) => write!(f, "{error}"),
            Self::Refused(refusal) => write!(f, "{refusal}"),
            Self::ControlFailed(what) => f.write_str(what),
            Self::OwnTls(_) => f.write_str(
                "the program uses TLS itself, and the rule would add a second layer of TLS: set \
                 on-tls = \"pass\" in the rule, or disable TLS in the program",
            ),
            Self::NotStarted(reason) => f.write_str(reason),
            Self::NotPassed(reason) => {
                write!(
                    f,
                    "cannot pass the program's own TLS to the server (on-tls = \"pass\"): {reason}"
                )
            }
        }
    }
}
