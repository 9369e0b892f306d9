//! Parses a text as TOML. If the text has a syntax error, the parser reports the error and keeps
//! the valid part of the text.
//!
//! A policy may have thousands of rules. So a text with `[[rule]]` is parsed in parts, one for each
//! rule. [`plain`] reads most parts, and the TOML library parses the other ones. For a part, the
//! library needs little memory, and uses the same memory for one part after the other; for a long
//! text, it would need 20 bytes for each byte of the text.
//!
//! The result is the same as if the library parsed the text as a whole. If the results could
//! differ, the library does parse it as a whole. Examples are texts with an error, or with another
//! table after the first rule.

use std::borrow::Cow;

use toml::de::{DeTable, Error};

use super::node::{ByteSpan, TomlData, TomlEntries, TomlEntry, TomlNode};
use super::plain::{self, PlainItem};
use crate::parallel;

/// The list whose items are parsed separately.
const LIST_IN_PARTS: &str = "rule";
/// The header of an item, at the beginning of a line.
const HEADER: &str = "[[rule]]";
/// A thread is started for at least so much text.
const THREAD_BYTES_MIN: usize = 32 * 1024;

/// A text and its TOML tables.
///
/// If the text is not valid TOML, the tables are those of the valid part;
/// [`super::Diagnostics::new`] reports the errors.
#[derive(Debug)]
pub struct TomlDocument<'t> {
    text: &'t str,
    top: TomlEntries<'t>,
    errors: Vec<Error>,
}

impl<'t> TomlDocument<'t> {
    /// Parses a text, which may be invalid.
    #[must_use]
    pub fn parse(text: &'t str) -> Self {
        let in_parts = in_parts(text).map(|top| Self { text, top, errors: Vec::new() });
        in_parts.unwrap_or_else(|| Self::whole(text))
    }

    fn whole(text: &'t str) -> Self {
        let (top, errors) = DeTable::parse_recoverable(text);
        Self { text, top: TomlEntries::of_library(top.into_inner(), 0), errors }
    }

    /// The text itself.
    pub(super) fn text(&self) -> &'t str {
        self.text
    }

    /// The table at the top.
    pub(crate) fn top(&self) -> &TomlEntries<'t> {
        &self.top
    }

    /// The TOML syntax errors.
    pub(crate) fn errors(&self) -> &[Error] {
        &self.errors
    }
}

/// Parses the text in parts; `None` if it must be parsed as a whole.
///
/// Each part is valid by itself, so no string and no list reaches from one part into the next.
fn in_parts(text: &str) -> Option<TomlEntries<'_>> {
    let first = next_item(text, 0)?;
    let mut top = valid(text, 0..first)?;
    let rest = first..text.len();
    let read = parallel::map_parts(rest, THREAD_BYTES_MIN, |part| items_of(text, part));
    let items = read.into_iter().collect::<Option<Vec<_>>>()?.into_iter().flatten().collect();
    let name_at = first + "[[".len();
    let list = TomlEntry {
        key: Cow::Borrowed(LIST_IN_PARTS),
        key_at: name_at..name_at + LIST_IN_PARTS.len(),
        value: TomlNode { at: first..first + HEADER.len(), data: TomlData::Array(items) },
    };
    top.insert(list).then_some(top)
}

/// Parses the items that begin in a part of the text.
fn items_of(text: &str, part: ByteSpan) -> Option<Vec<TomlNode<'_>>> {
    let mut items = Vec::new();
    let mut scratch = TomlEntries::default();
    let mut start = next_item(text, part.start).unwrap_or(text.len());
    while start < part.end {
        let header = start..start + HEADER.len();
        let plain = plain::item(text, header.end, HEADER, &mut scratch);
        if let Some(PlainItem { entries, end }) = plain {
            items.push(TomlNode { at: header, data: TomlData::Table(entries) });
            start = end;
        } else {
            let end = next_item(text, header.end).unwrap_or(text.len());
            items.push(only_item(valid(text, start..end)?)?);
            start = end;
        }
    }
    Some(items)
}

/// The position of the next line that begins with the header of an item.
fn next_item(text: &str, from: usize) -> Option<usize> {
    let from = text.floor_char_boundary(from);
    let mut headers = text[from..].match_indices(HEADER).map(|(at, _)| from + at);
    headers.find(|at| *at == 0 || text.as_bytes()[at - 1] == b'\n')
}

/// Parses a part of a text; `None` if it has an error.
fn valid(text: &str, part: ByteSpan) -> Option<TomlEntries<'_>> {
    let offset = part.start;
    let (table, errors) = DeTable::parse_recoverable(&text[part]);
    errors.is_empty().then(|| TomlEntries::of_library(table.into_inner(), offset))
}

/// Returns the only item of a part; `None` if the part contains anything else.
fn only_item(part: TomlEntries<'_>) -> Option<TomlNode<'_>> {
    let [entry] = <[_; 1]>::try_from(part.into_sorted()).ok()?;
    let TomlData::Array(items) = entry.value.data else { return None };
    let [item] = <[_; 1]>::try_from(items).ok()?;
    (entry.key == LIST_IN_PARTS && item.data.is_table()).then_some(item)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether parsing in parts succeeds; it then has the same result as parsing as a whole.
    fn is_in_parts(text: &str) -> bool {
        let whole = TomlDocument::whole(text);
        let Some(parts) = in_parts(text) else { return false };
        assert!(whole.errors().is_empty(), "{text}");
        assert_eq!(&parts, whole.top(), "{text}");
        true
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
            "a = '''\nb\n'''\n[[rule]]\na = \"\"\"\nb\"\"\"\n[[rule]]\nc = 0x1f\n",
        ] {
            assert!(is_in_parts(text), "{text}");
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
            assert!(!is_in_parts(text), "{text}");
        }
    }

    #[test]
    fn plain_items_are_read_without_the_library() {
        let is_plain = |line: &str| {
            let text = format!("[[rule]]\n{line}");
            let item = plain::item(&text, HEADER.len(), HEADER, &mut TomlEntries::default());
            item.is_some_and(|item| item.end == text.len()) && is_in_parts(&text)
        };
        for line in [
            "",
            "\n \t\n\r\n# ä\tb\r\n",
            "name = \"web\" # the first",
            "\ta-b_1=\"ä\t'#\"#c\nB = '\\\"'\r\n1 = \"\"\n",
            "a = 0\nb = 65535\nc = 999999999999999999",
            "a = true#\nb=false",
            "a = {}\nb = { }\nc = {a=1}\nd = { b = \"x\" , a = [1, 2] }# c",
            "a = []\nb = [ ]\nc = [1,\"x\" , true,]\nd = ['a']",
        ] {
            assert!(is_plain(line), "{line}");
        }
        for line in [
            "a.b = 1",
            "\"a\" = 1",
            "a = 1.5",
            "a = -1",
            "a = 1_000",
            "a = 1979-05-27",
            "a = 0x1f",
            "a = \"\\n\"",
            "a = \"\"\"\"\"\"",
            "a = [[1]]",
            "a = [\n1]",
            "a = { b = { c = 1 } }",
            "a = { b.c = 1 }",
            "a = { b = 1, }",
            "a = { b = 1,\n c = 2 }",
            "a = [{ b = 1 }]",
            "[rule.a]",
        ] {
            assert!(!is_plain(line), "{line}");
            assert!(is_in_parts(&format!("[[rule]]\n{line}")), "{line}");
        }
        for line in [
            "a",
            "a =",
            "= 1",
            "a = 01",
            "a = 1 2",
            "a = truex",
            "a = [1 2]",
            "a = [,]",
            "a = [1",
            "a = {,}",
            "a = { b }",
            "a = { b = 1 c = 2 }",
            "a = { b = 1, b = 2 }",
            "a = { b = 1",
            "a = \"",
            "a = \"\u{1}\"",
            "# \u{7f}",
            "a = 1\r",
            "a = 1\na = 2",
        ] {
            assert!(!is_in_parts(&format!("[[rule]]\n{line}")), "{line}");
        }
    }

    #[test]
    fn an_item_with_many_keys_is_left_to_the_library() {
        let keys = |count: usize| (0..count).map(|number| format!("k{number}=1")).rev();
        let is_plain =
            |text: &str| plain::item(text, 0, HEADER, &mut TomlEntries::default()).is_some();
        let lines = |count| keys(count).collect::<Vec<_>>().join("\n");
        let braces = |count| format!("a={{{}}}", keys(count).collect::<Vec<_>>().join(","));
        assert!(is_plain(&format!("\n{}", lines(64))) && !is_plain(&format!("\n{}", lines(65))));
        assert!(is_plain(&format!("\n{}", braces(64))) && !is_plain(&format!("\n{}", braces(65))));
        assert!(is_in_parts(&format!("[[rule]]\n{}\n{}", lines(65), braces(65))));
    }

    /// Short texts, which together are seldom valid TOML.
    const PIECES: &str =
        "[[rule]] \n \r\n \r \t # a b-1 _ = \" \"a\" ' 'b' \\ 1 0 - true [ ] , . { } ä \u{7f}";
    /// Whole values, some of which are not plain, or not valid.
    const VALUES: &str = "0 1 18 01 1_0 -1 1.5 0x1f 1979-05-27 true false truex \"\" \"ä\" 'x\\' \
                          \"\\n\" \"\"\"x\"\"\" [] [1,\"x\"] [1,] [,] [[1]] [{a=1}] {} {a=1} \
                          {a=1,b=[true,'c'],} {a=1,b=[true,'c']} {a=1,a=2} {a.b=1} {a={b=1}} [1";

    /// An entry of a table, or pieces.
    fn line() -> impl Strategy<Value = String> {
        let word = |words: &'static str| {
            prop::sample::select(words.split(' ').collect::<Vec<_>>()).prop_map(str::to_owned)
        };
        let blank = || word(",,, \t").prop_map(|blank| blank.replace(',', " "));
        let entry = (word("a b c d-1 _ 7 a.b \"a\" é"), blank(), blank(), word(VALUES), blank())
            .prop_map(|(key, before, after, value, end)| {
                format!("{key}{before}={after}{value}{end}")
            });
        let pieces = prop::collection::vec(word(PIECES), 0..8).prop_map(|pieces| pieces.concat());
        let ends = word("\n \r\n #x\n #\t\r\n \n\n[[rule]]\n");
        let content = prop_oneof![8 => entry, 1 => pieces];
        (content, ends).prop_map(|(content, end)| content + &end)
    }

    proptest! {
        #[test]
        fn the_library_and_the_plain_reader_agree(lines in prop::collection::vec(line(), 0..6)) {
            is_in_parts(&format!("[[rule]]\n{}", lines.concat()));
        }
    }
}
