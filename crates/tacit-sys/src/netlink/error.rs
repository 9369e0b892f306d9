//! The error of a netlink request: which step the kernel refused, and why.

use std::fmt;
use std::io;

/// Why the kernel did not do what it was asked.
#[derive(Debug)]
pub enum Error {
    /// The kernel refused one of the messages; of a batch of packet rules it then did nothing.
    Refused {
        /// What the message was for.
        step: &'static str,
        /// The part of the message that was refused, if the kernel said so.
        part: Option<&'static str>,
        /// The reason.
        error: io::Error,
        /// What the kernel wrote about it, if anything.
        explanation: Option<String>,
    },
    /// The socket itself failed.
    Socket {
        /// The system call.
        call: &'static str,
        /// Its answer.
        error: io::Error,
    },
    /// The caller asked for something that cannot be said; the text says what.
    Invalid(&'static str),
    /// The kernel's answer could not be read; the text says what was wrong with it.
    Malformed(&'static str),
}

impl Error {
    /// The error number behind it.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { error, .. } | Self::Socket { error, .. } => error.raw_os_error(),
            Self::Invalid(_) | Self::Malformed(_) => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { step, part, error, explanation } => {
                write!(f, "the kernel refused the netlink request for {step}")?;
                if let Some(part) = part {
                    write!(f, ", in its part '{part}'")?;
                }
                write!(f, ": {error}")?;
                explanation.as_ref().map_or(Ok(()), |text| write!(f, " ({text})"))
            }
            Self::Socket { call, error } => write!(f, "the netlink call {call} failed: {error}"),
            Self::Invalid(what) => write!(f, "invalid netlink request: {what}"),
            Self::Malformed(what) => write!(f, "invalid netlink answer: {what}"),
        }
    }
}

impl std::error::Error for Error {}
