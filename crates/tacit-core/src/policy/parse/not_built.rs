//! The words of the language that are not built yet, in one place.
//!
//! Each is refused by name: a policy that asks for something gets it or hears why not. Whoever
//! builds one takes its line away here and adds the word to `words`.

use super::words::Scope;

/// A word that is planned.
pub(super) struct NotBuilt {
    scope: Scope,
    word: &'static str,
    /// What to do until it exists.
    pub(super) instead: &'static str,
}

/// The planned word of that scope, if it is one.
pub(super) fn not_built(scope: Scope, word: &str) -> Option<&'static NotBuilt> {
    NOT_BUILT.iter().find(|planned| planned.scope == scope && planned.word == word)
}

const NOT_BUILT: &[NotBuilt] = &[
    NotBuilt {
        scope: Scope::Policy,
        word: "ike",
        instead: "remove it: packets cannot be protected yet, use `tls` or `deny`",
    },
    NotBuilt {
        scope: Scope::Rule,
        word: "ipsec",
        instead: "use `tls` or `deny`: packets cannot be protected yet",
    },
    NotBuilt {
        scope: Scope::Rule,
        word: "path",
        instead: "remove it: every connection is relayed",
    },
];
