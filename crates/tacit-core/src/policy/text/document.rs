//! Parses a text as TOML. If the text has a syntax error, the parser reports the error and keeps
//! the valid part of the text.
//!
//! The parser needs about 20 bytes of memory for each byte of text. For a long text, the kernel
//! takes more time to provide this memory than the parser takes to parse the text. So a text with
//! `[[rule]]` is parsed in parts, one for each rule. All parts use the same memory, one after the
//! other.
//!
//! The result is the same as if the text were parsed as a whole. If the results could differ, the
//! text is parsed as a whole. Examples are texts with an error, or with another table after the
//! first rule.

use std::borrow::Cow;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Error};

/// The list whose items are parsed separately.
pub(super) const LIST_IN_PARTS: &str = "rule";
/// The header of an item, at the beginning of a line.
const HEADER: &str = "[[rule]]";
/// In strings of several lines, a line with the header may not be a header.
const STRINGS_OF_LINES: [&str; 2] = ["\"\"\"", "'''"];

/// A text and its TOML tables.
///
/// If the text is not valid TOML, the tables are those of the valid part;
/// [`super::Diagnostics::new`] reports the errors.
#[derive(Debug)]
pub struct TomlDocument<'t> {
    text: &'t str,
    top: Spanned<DeTable<'t>>,
    /// The offset of each item of [`LIST_IN_PARTS`], from which its spans count; empty if the text
    /// was parsed as a whole.
    parts: Vec<usize>,
    errors: Vec<Error>,
}

impl<'t> TomlDocument<'t> {
    /// Parses a text, which may be invalid.
    #[must_use]
    pub fn parse(text: &'t str) -> Self {
        Self::in_parts(text).unwrap_or_else(|| Self::whole(text))
    }

    fn whole(text: &'t str) -> Self {
        let (top, errors) = DeTable::parse_recoverable(text);
        Self { text, top, parts: Vec::new(), errors }
    }

    /// `None` if the text must be parsed as a whole.
    fn in_parts(text: &'t str) -> Option<Self> {
        if STRINGS_OF_LINES.iter().any(|quotes| text.contains(quotes)) {
            return None;
        }
        let is_first_in_line = |at: &usize| *at == 0 || text.as_bytes()[at - 1] == b'\n';
        let parts: Vec<usize> =
            text.match_indices(HEADER).map(|(at, _)| at).filter(is_first_in_line).collect();
        let mut top = valid(&text[..*parts.first()?])?;
        let mut list = ItemList::default();
        for (place, part) in parts.iter().enumerate() {
            let end = parts.get(place + 1).copied().unwrap_or(text.len());
            list.add(*part, valid(&text[*part..end])?.into_inner())?;
        }
        let ItemList { header, items } = list;
        let (name, at) = header?;
        let is_new = top.get_mut().insert(name, Spanned::new(at, DeValue::Array(items))).is_none();
        is_new.then_some(Self { text, top, parts, errors: Vec::new() })
    }

    /// The text itself.
    pub(super) fn text(&self) -> &'t str {
        self.text
    }

    /// The table at the top.
    pub(crate) fn top(&self) -> &DeTable<'t> {
        self.top.get_ref()
    }

    /// The offset of each item of [`LIST_IN_PARTS`], if they were parsed separately.
    pub(super) fn parts(&self) -> &[usize] {
        &self.parts
    }

    /// The TOML syntax errors.
    pub(crate) fn errors(&self) -> &[Error] {
        &self.errors
    }
}

/// Parses a part of a text; `None` if it has an error.
fn valid(part: &str) -> Option<Spanned<DeTable<'_>>> {
    let (table, errors) = DeTable::parse_recoverable(part);
    errors.is_empty().then_some(table)
}

/// The items of the parts.
#[derive(Default)]
struct ItemList<'t> {
    /// The key and the span of the list.
    header: Option<(Spanned<Cow<'t, str>>, Range<usize>)>,
    items: DeArray<'t>,
}

impl<'t> ItemList<'t> {
    /// Adds the only item of a part; `None` if the part contains anything else.
    fn add(&mut self, offset: usize, part: DeTable<'t>) -> Option<()> {
        let mut entries = part.into_iter();
        let (Some((name, value)), None) = (entries.next(), entries.next()) else { return None };
        let moved = |Range { start, end }| start + offset..end + offset;
        let at = moved(value.span());
        let DeValue::Array(list) = value.into_inner() else { return None };
        let mut items = list.into_iter();
        let (Some(item), None) = (items.next(), items.next()) else { return None };
        if name.get_ref() != LIST_IN_PARTS || !item.get_ref().is_table() {
            return None;
        }
        self.items.push(item);
        let name_at = moved(name.span());
        self.header.get_or_insert_with(|| (Spanned::new(name_at, name.into_inner()), at));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists every key and value with its position in the text.
    fn dump(value: &Spanned<DeValue<'_>>, offset: usize, found: &mut Vec<(Range<usize>, String)>) {
        let moved = |Range { start, end }: Range<usize>| start + offset..end + offset;
        let kind = match value.get_ref() {
            DeValue::Array(list) => {
                list.iter().for_each(|item| dump(item, offset, found));
                "list".to_owned()
            }
            DeValue::Table(table) => {
                for (key, value) in table {
                    found.push((moved(key.span()), key.get_ref().to_string()));
                    dump(value, offset, found);
                }
                "table".to_owned()
            }
            other => format!("{other:?}"),
        };
        found.push((moved(value.span()), kind));
    }

    fn content(document: &TomlDocument<'_>) -> Vec<(Range<usize>, String)> {
        let mut found = Vec::new();
        for (key, value) in document.top() {
            found.push((key.span(), key.get_ref().to_string()));
            match value.get_ref() {
                DeValue::Array(list) if !document.parts().is_empty() && key.get_ref() == "rule" => {
                    found.push((value.span(), "list".to_owned()));
                    for (item, part) in list.iter().zip(document.parts()) {
                        dump(item, *part, &mut found);
                    }
                }
                DeValue::Array(list) if key.get_ref() == "rule" => {
                    found.push((value.span(), "list".to_owned()));
                    list.iter().for_each(|item| dump(item, 0, &mut found));
                }
                _ => dump(value, 0, &mut found),
            }
        }
        found
    }

    #[test]
    fn a_text_in_parts_has_the_content_and_the_positions_of_the_whole_text() {
        for text in [
            "[[rule]]\nname = \"a\"\n[[rule]]\n",
            "version = 1\n# ä\n[trust.x]\nca = [\"a\", 'b']\n\n[[rule]]\nname = \"a\" # [[rule]]\n\
             remote = [ { a.b = 1 } ]\n\n# end\n[rule.tls]\ntrust = \"x\"\n\
             [rule.tls.more]\nx = 1.5\n\
             [[rule]] # second\r\nname = \"ü\"\r\nwhen.days = [\n1,\n2 ]\n\
             [[rule.client]]\na = true\n[[rule.client]]\na = false\n[[rule]]\n",
            "version = 1\n[[rule]]\nname = \"[[rule]]\"\n[[rule]]",
        ] {
            let whole = TomlDocument::whole(text);
            assert!(whole.errors().is_empty(), "{text}");
            let parts = TomlDocument::in_parts(text).unwrap();
            assert_eq!(content(&parts), content(&whole), "{text}");
        }
    }

    #[test]
    fn a_text_whose_parts_differ_from_the_whole_is_parsed_as_a_whole() {
        for text in [
            "",
            "version = 1\n",
            "rule = 1\n[[rule]]\n",
            "[rule]\n[[rule]]\n",
            "[[rule]]\na = 1\na = 2\n[[rule]]\n",
            "[[rule]]\na =\n[[rule]]\n",
            "[[rule]]\n[trust.x]\nca = 1\n[[rule]]\n[trust.x]\n",
            "[[rule]]\n  [[rule]]\n",
            "[[rule]]\n[[ rule ]]\n",
            "[[rule]]\n[[\"rule\"]]\n",
            "[[rule]]x\n",
            "[[rule]]\na = \"\"\"\n[[rule]]\n\"\"\"\n",
            "a = '''\n[[rule]]\n'''\n",
            "a = [\n[[rule]]\n]\n",
        ] {
            assert!(TomlDocument::in_parts(text).is_none(), "{text}");
        }
    }
}
