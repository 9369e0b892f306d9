//! Defines the stable identifiers of messages.

use std::fmt;

use serde::Serialize;

/// The identifier of a message: words with hyphens. It never changes, and tacit-messages(7) lists
/// it; `cargo xtask tidy` compares the two. Messages of one kind share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct MessageId(pub &'static str);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
