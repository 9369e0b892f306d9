//! What programs of a run ask about their own connections, and the words of the answers.
//!
//! ```text
//!   program ── question + descriptor ──> agent       one message each way
//!           <──── one line of JSON ─────
//! ```
//!
//! A question is one word. The descriptor that comes with it says which connection is meant, and
//! proves that the asker has it. The words are stable: programs compare them.
//!
//! Limits: [`QUESTION_BYTES_MAX`]; [`ANSWER_BYTES_MAX`], which no answer reaches as long as names
//! in certificates are cut.

use std::fmt;

use serde::Serialize;

/// A question at most.
pub const QUESTION_BYTES_MAX: usize = 64;
/// An answer at most: room for it is enough for every program.
pub const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryRequest {
    /// How is this connection protected?
    Query,
    /// Begin TLS now. Like all that follow, only where the rule says `start = "controlled"`.
    Start,
    /// End TLS and go on in clear.
    Stop,
    /// Change the keys of both directions.
    Rekey,
}

impl QueryRequest {
    /// Every question, as it is written.
    pub const WORDS: [(&'static str, Self); 4] = [
        ("query", Self::Query),
        ("start", Self::Start),
        ("stop", Self::Stop),
        ("rekey", Self::Rekey),
    ];

    /// Reads a whole message. One line feed at its end is passed over, nothing else.
    ///
    /// # Errors
    /// [`QueryError::UnknownQuestion`] for all that is no question.
    pub fn parse(message: &[u8]) -> Result<Self, QueryError> {
        let word = message.strip_suffix(b"\n").unwrap_or(message);
        let known = Self::WORDS.iter().find(|(known, _)| known.as_bytes() == word);
        known.map(|(_, question)| *question).ok_or(QueryError::UnknownQuestion)
    }

    /// As it is written.
    #[must_use]
    pub fn word(self) -> &'static str {
        let known = Self::WORDS.iter().find(|(_, question)| *question == self);
        known.map_or("", |(word, _)| word)
    }
}

/// What the policy has to do with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyState {
    /// It goes past tacit: its socket was made outside the run.
    Off,
    /// No rule is about it: it does not leave the run.
    None,
    /// Its rule permits it in clear.
    NotEnabled,
    /// Its rule puts TLS on it.
    Enabled,
    /// Its rule leaves the beginning of TLS to the program.
    Controlled,
}

/// What is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionState {
    /// Bytes as they are.
    Clear,
    /// Nothing of the program's yet: it is being dialled, or TLS begins.
    Handshaking,
    /// TLS.
    Secure,
}

/// Why a question has no answer, or what was asked for is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueryError {
    /// The message is none of the questions.
    UnknownQuestion,
    /// There is not exactly one descriptor with it.
    NoDescriptor,
    /// The descriptor is no TCP socket.
    NotTcp,
    /// The socket has no other end: not yet, or no longer.
    NotConnected,
    /// The socket belongs to another network than the run's.
    NotThisRun,
    /// No such connection is known, though one should be.
    Unknown,
    /// The connection's rule does not say `start = "controlled"`.
    Denied,
    /// It is what it is asked to become: secure already, or clear already.
    Already,
    /// Another request for the same connection is not done yet.
    Busy,
    /// The connection has no such thing.
    NotPossible,
    /// It failed, and with it the connection.
    Failed,
    /// The connection ended meanwhile.
    Ended,
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownQuestion => "unknown request: send query, start, stop or rekey",
            Self::NoDescriptor => {
                "pass exactly one descriptor, that of the connection, with the request (SCM_RIGHTS)"
            }
            Self::NotTcp => "the descriptor passed is not a TCP socket",
            Self::NotConnected => {
                "the socket passed is not connected: send the request after connect()"
            }
            Self::NotThisRun => "the socket passed is not in the network of this run",
            Self::Unknown => "unknown connection: it has ended, or its agent has exited",
            Self::Denied => {
                "the policy does not let the program control TLS here: the rule needs \
                 start = \"controlled\""
            }
            Self::Already => "the connection is already in that state",
            Self::Busy => "another request for this connection is in progress",
            Self::NotPossible => "only TLS 1.3 connections can change keys",
            Self::Failed => "the request failed and the connection was closed",
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
            assert!(word.len() < QUESTION_BYTES_MAX);
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
