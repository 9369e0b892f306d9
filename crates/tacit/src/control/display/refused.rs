//! Defines the content of `tacit show refused`: refused connections, DNS names and sockets, newest
//! first.

use serde::{Deserialize, Serialize};
use tacit_core::refusal::{Refusal, RefusalEntry, RefusalReason};

use crate::clock::Rfc3339;
use crate::session::RefusalTable;

use super::VERSION;

/// What was refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RefusedDisplay {
    /// The version of this format.
    pub version: u32,
    /// The latest different refusals, the newest first.
    pub refused: Vec<RefusedEntry>,
    /// All refusals since the agent started, by reason.
    pub totals: Vec<RefusedTotal>,
}

/// A refusal, with the number of times that it occurred.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RefusedEntry {
    /// When it occurred last.
    pub last: Rfc3339,
    /// How often it occurred.
    pub count: u64,
    /// What was refused, why, and which policy line would allow it.
    #[serde(flatten)]
    pub refusal: Refusal,
}

/// The number of refusals for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RefusedTotal {
    /// The reason.
    pub why: RefusalReason,
    /// The count.
    pub count: u64,
}

/// The refusals that the table has.
#[must_use]
pub fn refused(refusals: &RefusalTable) -> RefusedDisplay {
    let entry = |RefusalEntry { refusal, last, count }| RefusedEntry {
        last: Rfc3339(last),
        count,
        refusal,
    };
    let total = |why| RefusedTotal { why, count: refusals.total(why) };
    RefusedDisplay {
        version: VERSION,
        refused: refusals.entries().into_iter().map(entry).collect(),
        totals: RefusalReason::ALL.into_iter().map(total).collect(),
    }
}
