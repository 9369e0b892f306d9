//! Lists the keys of the policy language that are planned but not supported yet.
//!
//! The parser rejects these keys, and its error message suggests an alternative. When you implement
//! a key, move it to the module `words`.

use crate::policy::text::PlannedKey;

/// Planned keys of a rule.
pub(super) const RULE: &[PlannedKey] = &[];
