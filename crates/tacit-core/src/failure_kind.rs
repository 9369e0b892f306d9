//! Defines `FailureKind`: the kind of a connection failure, for logs, counters and metrics.

use std::fmt;

use serde::Serialize;

/// The kind of a failure, for logs, counters and metrics: words with hyphens. It never changes.
/// tacit-messages(7) lists all kinds, and `cargo xtask tidy` compares the list with the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct FailureKind(pub &'static str);

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl PartialEq<&str> for FailureKind {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}
