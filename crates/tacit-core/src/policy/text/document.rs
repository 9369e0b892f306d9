//! Parses a text as TOML. If the text has a syntax error, the parser reports the error and keeps
//! the valid part of the text.

use toml::Spanned;
use toml::de::{DeTable, Error};

/// A text and its TOML tables.
///
/// If the text is not valid TOML, the tables are those of the valid part;
/// [`super::Diagnostics::new`] reports the errors.
#[derive(Debug)]
pub struct TomlDocument<'t> {
    text: &'t str,
    top: Spanned<DeTable<'t>>,
    errors: Vec<Error>,
}

impl<'t> TomlDocument<'t> {
    /// Parses a text, which may be invalid.
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
    pub(crate) fn top(&self) -> &DeTable<'t> {
        self.top.get_ref()
    }

    /// The TOML syntax errors.
    pub(crate) fn errors(&self) -> &[Error] {
        &self.errors
    }
}
