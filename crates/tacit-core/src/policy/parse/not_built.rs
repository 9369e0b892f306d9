//! Lists the keys of the policy language that are planned but not supported yet.
//!
//! The parser rejects these keys, and its error message suggests an alternative. When a key is
//! implemented, move it to `words`.

use crate::policy::text::PlannedKey;

/// Planned keys of a rule.
pub(super) const RULE: &[PlannedKey] = &[];
