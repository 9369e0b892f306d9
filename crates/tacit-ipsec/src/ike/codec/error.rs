//! Defines [`CodecError`]: the reasons why an IKE message is not valid.

use std::fmt;

/// A message that does not follow RFC 7296 section 3. The peer is at fault, or an attacker has
/// sent the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecError {
    /// The named part ends early.
    Truncated(&'static str),
    /// The named part is longer than its contents, or its length field does not fit.
    Length(&'static str),
    /// The named part has a value that the RFC does not allow.
    Value(&'static str),
    /// The named list has more entries than tacit reads.
    TooMany(&'static str),
    /// The major version of the protocol is not 2.
    Version(u8),
    /// A payload with the critical bit has an unknown type (RFC 7296 section 2.5).
    UnsupportedCritical(u8),
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated(part) => write!(f, "the {part} is truncated"),
            Self::Length(part) => write!(f, "the length of the {part} is wrong"),
            Self::Value(part) => write!(f, "the {part} has a value that RFC 7296 does not allow"),
            Self::TooMany(parts) => write!(f, "the message has too many {parts}"),
            Self::Version(1) => {
                f.write_str("the message is IKEv1, which tacit does not support: use IKEv2")
            }
            Self::Version(major) => write!(f, "the message has IKE version {major}, not 2"),
            Self::UnsupportedCritical(kind) => {
                write!(f, "payload type {kind} is unknown, but marked as critical")
            }
        }
    }
}

impl std::error::Error for CodecError {}
