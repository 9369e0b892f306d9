//! Defines the type for the stable identifiers of log lines, errors and warnings.

use std::fmt;

use serde::Serialize;

/// The identifier of a message: words with hyphens. It never changes. tacit-messages(7) lists all
/// identifiers, and `cargo xtask tidy` compares the list with the code. Messages of one kind have
/// the same identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct MessageId(pub &'static str);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
