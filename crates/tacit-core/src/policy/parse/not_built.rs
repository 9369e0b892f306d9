//! Lists the keys of the policy language that are planned but not supported yet.
//!
//! The parser rejects each of these keys, and its error shows an alternative. When a key is
//! implemented, it is moved from here to `words`.

use crate::policy::text::PlannedKey;

/// Planned keys of a rule.
pub(super) const RULE: &[PlannedKey] = &[];
