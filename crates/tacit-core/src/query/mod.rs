//! Defines the requests that programs under `tacit run` send to the agent, to get information about
//! their own connections. Also defines the keys and values of the responses.
//!
//! ```text
//!   program ── request + descriptor ───> agent       one message each way
//!           <──── one line of JSON ─────
//! ```
//!
//! A request is one word. With this word, the program sends a file descriptor of its own socket.
//! The descriptor selects the connection, and proves that the socket belongs to the program. The
//! keys and values of the responses never change, because programs depend on them.
//!
//! Limits: [`REQUEST_BYTES_MAX`] for a request and [`ANSWER_BYTES_MAX`] for a response. Names from
//! certificates are truncated, so that a response never exceeds its limit.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum size of a request.
pub const REQUEST_BYTES_MAX: usize = 64;
/// Maximum size of a response.
pub const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryRequest {
    /// Return how the connection is protected.
    Query,
    /// Start TLS now. This request and the ones below are allowed only if the rule has `start =
    /// "controlled"`.
    Start,
    /// End TLS and continue in clear.
    Stop,
    /// Change the keys of both directions.
    Rekey,
}

impl QueryRequest {
    /// Every request and its word.
    pub const WORDS: [(&'static str, Self); 4] = [
        ("query", Self::Query),
        ("start", Self::Start),
        ("stop", Self::Stop),
        ("rekey", Self::Rekey),
    ];

    /// Parses a message. One trailing line feed is ignored.
    ///
    /// # Errors
    /// [`QueryError::UnknownQuestion`] if the word is unknown.
    pub fn parse(message: &[u8]) -> Result<Self, QueryError> {
        let word = message.strip_suffix(b"\n").unwrap_or(message);
        let known = Self::WORDS.iter().find(|(known, _)| known.as_bytes() == word);
        known.map(|(_, question)| *question).ok_or(QueryError::UnknownQuestion)
    }

    /// Returns the word of the request.
    #[must_use]
    pub fn word(self) -> &'static str {
        let known = Self::WORDS.iter().find(|(_, question)| *question == self);
        known.map_or("", |(word, _)| word)
    }
}

/// How the policy applies to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyState {
    /// The connection bypasses tacit, because its socket was created outside the run.
    Off,
    /// No rule applies, because the connection does not leave the run.
    None,
    /// Its rule permits it in clear.
    NotEnabled,
    /// Its rule requires TLS.
    Enabled,
    /// Its rule lets the program start TLS.
    Controlled,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionState {
    /// The connection is in clear.
    Clear,
    /// No data can be sent yet: tacit is connecting, or the TLS handshake is in progress.
    Handshaking,
    /// The connection is under TLS.
    Secure,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueryError {
    /// The message is not a known request.
    UnknownQuestion,
    /// The message does not have exactly one descriptor.
    NoDescriptor,
    /// The descriptor is not a TCP socket.
    NotTcp,
    /// The socket is not connected, or no longer connected.
    NotConnected,
    /// The socket is not in the run's network namespace.
    NotThisRun,
    /// The connection is unknown.
    Unknown,
    /// The connection's rule does not have `start = "controlled"`.
    Denied,
    /// The connection is already in the requested state.
    Already,
    /// Another request for the same connection is in progress.
    Busy,
    /// The connection does not support the request.
    NotPossible,
    /// The request failed, and the connection was closed.
    Failed,
    /// The connection ended during the request.
    Ended,
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownQuestion => {
                "unknown request: the known requests are `query`, `start`, `stop` and `rekey`"
            }
            Self::NoDescriptor => {
                "pass exactly one file descriptor with the request (SCM_RIGHTS): the socket of the \
                 connection"
            }
            Self::NotTcp => "the file descriptor in the request is not a TCP socket",
            Self::NotConnected => {
                "the socket in the request is not connected: send the request after connect()"
            }
            Self::NotThisRun => {
                "the socket in the request is not in the network namespace of this run"
            }
            Self::Unknown => {
                "unknown connection: the connection has ended, or the agent that relayed it has \
                 exited"
            }
            Self::Denied => {
                "the policy does not let the program control TLS of this connection: set start = \
                 \"controlled\" in the rule"
            }
            Self::Already => "the connection is already in the requested state",
            Self::Busy => "another request for this connection is in progress",
            Self::NotPossible => "only TLS 1.3 connections can be rekeyed",
            Self::Failed => "the agent could not perform the request, and closed the connection",
            Self::Ended => "the connection ended during the request",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn questions_are_one_word_each_with_or_without_a_line_feed() {
        for (word, question) in QueryRequest::WORDS {
            assert_eq!(QueryRequest::parse(word.as_bytes()), Ok(question));
            assert_eq!(QueryRequest::parse(format!("{word}\n").as_bytes()), Ok(question));
            assert_eq!(question.word(), word);
            assert!(word.len() < REQUEST_BYTES_MAX);
        }
        for wrong in
            ["", "\n", "Query", "query ", " query", "query\0", "query\n\n", "star", "starts"]
        {
            assert_eq!(
                QueryRequest::parse(wrong.as_bytes()),
                Err(QueryError::UnknownQuestion),
                "{wrong:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn nothing_else_is_a_question(message in proptest::collection::vec(any::<u8>(), 0..80)) {
            let word = message.strip_suffix(b"\n").unwrap_or(&message);
            let known = QueryRequest::WORDS.iter().any(|(known, _)| known.as_bytes() == word);
            prop_assert_eq!(QueryRequest::parse(&message).is_ok(), known);
        }
    }
}
