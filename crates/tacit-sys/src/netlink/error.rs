//! Defines the error of a netlink request: the step that the kernel refused, and the reason.

use std::fmt;
use std::io;

/// The reason why a netlink request failed.
#[derive(Debug)]
pub enum Error {
    /// The kernel refused a message. If the message was part of a batch of nftables rules, the
    /// whole batch had no effect.
    Refused {
        /// The purpose of the message.
        step: &'static str,
        /// The part of the message that was refused, if the kernel reported it.
        part: Option<&'static str>,
        /// The error of the kernel.
        error: io::Error,
        /// The kernel's explanation, if there is one.
        explanation: Option<String>,
    },
    /// A system call on the socket failed.
    Socket {
        /// The system call.
        call: &'static str,
        /// The error of the call.
        error: io::Error,
    },
    /// The caller's request cannot be expressed as a message; the text states why.
    Invalid(&'static str),
    /// The kernel's answer has an unexpected format; the text states what is wrong.
    Malformed(&'static str),
}

impl Error {
    /// Returns the error number, if there is one.
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
                    write!(f, ", in part '{part}' of the request")?;
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
