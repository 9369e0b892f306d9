//! Keys of the language that are not built yet.
//!
//! Each is rejected by name, with an alternative. A change that builds one removes its entry here
//! and adds the word to `words`.

use crate::policy::text::PlannedKey;

/// At the top of the file.
pub(super) const POLICY: &[PlannedKey] =
    &[PlannedKey { key: "ike", instead: "remove it: IPsec is not built yet, use `tls` or `deny`" }];

/// In a rule.
pub(super) const RULE: &[PlannedKey] = &[
    PlannedKey { key: "ipsec", instead: "use `tls` or `deny`" },
    PlannedKey { key: "path", instead: "remove it: every connection is relayed" },
];
