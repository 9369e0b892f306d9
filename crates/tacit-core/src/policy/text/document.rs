//! A text as TOML, read as far as it can be.

use toml::Spanned;
use toml::de::{DeTable, Error};

/// A text with the tables that were found in it.
///
/// Where the text is not TOML, what could be recovered is still there; [`super::Diagnostics::new`]
/// reports the rest.
#[derive(Debug)]
pub struct TomlDocument<'t> {
    text: &'t str,
    top: Spanned<DeTable<'t>>,
    errors: Vec<Error>,
}

impl<'t> TomlDocument<'t> {
    /// Reads any text.
    #[must_use]
    pub fn parse(text: &'t str) -> Self {
        let (top, errors) = DeTable::parse_recoverable(text);
        Self { text, top, errors }
    }

    /// The text itself.
    pub(super) fn text(&self) -> &'t str {
        self.text
    }

    /// The table at the top.
    pub(super) fn top(&self) -> &DeTable<'t> {
        self.top.get_ref()
    }

    /// What is wrong with the text as TOML.
    pub(super) fn errors(&self) -> &[Error] {
        &self.errors
    }
}
