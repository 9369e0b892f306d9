//! The keys of the language that are not built yet, in one place.
//!
//! Each is refused by name, with what to write until it exists. A change that builds one removes
//! its entry here and adds the word to `words`.

use crate::policy::text::Planned;

/// At the top of the file.
pub(super) const POLICY: &[Planned] = &[Planned {
    key: "ike",
    instead: "remove it: packets cannot be protected yet, use `tls` or `deny`",
}];

/// In a rule.
pub(super) const RULE: &[Planned] = &[
    Planned { key: "ipsec", instead: "use `tls` or `deny`: packets cannot be protected yet" },
    Planned { key: "path", instead: "remove it: every connection is relayed" },
];
