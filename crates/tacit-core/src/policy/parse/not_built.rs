//! Lists the policy keys that tacit does not support yet. Support for these keys is planned.
//!
//! The parser rejects these keys, and its error message suggests an alternative. When you implement
//! a key, move it to the module `words`.

use crate::policy::text::PlannedKey;

/// Planned keys of a rule.
pub(super) const RULE: &[PlannedKey] = &[];
