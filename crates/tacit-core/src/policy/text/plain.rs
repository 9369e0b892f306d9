//! Reads an item of a list of tables, such as a rule, if all of its lines are plain:
//!
//! ```toml
//! [[rule]]                              # a comment
//! name = "web"
//! remote = ["10.0.0.0/8", '192.0.2.7']
//! remote-ports = 443
//! tls = { trust = "corp" }
//! ```
//!
//! Plain lines are empty, contain only a comment, or contain one key without quotes with a value.
//! This value is a string without escapes, a decimal number without sign and separators, or a
//! boolean. Or it is a list of such values, or a table of such values and lists, in the same line.
//!
//! Limit: `ENTRIES_MAX` entries in an item.
//!
//! A policy may have thousands of such rules. The TOML library takes ten times longer to parse
//! them, because it supports all of TOML. It parses all items that are not plain, so that only the
//! library decides what valid TOML is, and what is reported about other texts.

use std::borrow::Cow;

use super::node::{ByteSpan, TomlData, TomlEntries, TomlEntry, TomlInteger, TomlNode};

/// An item whose lines are plain.
#[derive(Debug)]
pub(super) struct PlainItem<'t> {
    pub(super) entries: TomlEntries<'t>,
    /// The position after its last line: that of the next item, or the end of the text.
    pub(super) end: usize,
}

/// Reads the lines after the header of an item, which ends at `at`, to the next line that begins
/// with this header. `None` if a line is not plain, a key occurs twice, or there are more than
/// [`ENTRIES_MAX`] entries. `scratch` has the memory
/// for collecting the entries of one item after the other.
pub(super) fn item<'t>(
    text: &'t str,
    at: usize,
    header: &str,
    scratch: &mut TomlEntries<'t>,
) -> Option<PlainItem<'t>> {
    scratch.clear();
    let mut cursor = Cursor { text, at };
    cursor.end_of_line()?;
    while cursor.at < text.len() && !text.as_bytes()[cursor.at..].starts_with(header.as_bytes()) {
        cursor.skip_blanks();
        if let Some(key_at) = cursor.bare_key() {
            add(scratch, cursor.entry(key_at, Nesting::Outer)?)?;
        }
        cursor.end_of_line()?;
    }
    Some(PlainItem { entries: scratch.take(), end: cursor.at })
}

/// The largest number of entries of an item, or of a table that is a value. To keep many entries
/// sorted would take too long here.
const ENTRIES_MAX: usize = 64;

/// A decimal number of so many digits is in the range of whole numbers of TOML.
const DIGITS_MAX: usize = 18;

/// Adds an entry; `None` if its key is there already, or there are too many entries.
fn add<'t>(entries: &mut TomlEntries<'t>, entry: TomlEntry<'t>) -> Option<()> {
    (entries.len() < ENTRIES_MAX && entries.insert(entry)).then_some(())
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nesting {
    /// In the item.
    Outer,
    /// In a table that is a value.
    Inner,
}

/// A position in a text. Each method moves it behind what the method reads.
#[derive(Debug)]
struct Cursor<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Cursor<'t> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Reads one byte, if it is the next.
    fn takes(&mut self, wanted: u8) -> bool {
        let is_next = self.peek() == Some(wanted);
        self.at += usize::from(is_next);
        is_next
    }

    /// Reads the next bytes while they are accepted.
    fn take_while(&mut self, accepted: impl Fn(u8) -> bool) -> ByteSpan {
        let start = self.at;
        let rest = &self.text.as_bytes()[start..];
        self.at += rest.iter().position(|byte| !accepted(*byte)).unwrap_or(rest.len());
        start..self.at
    }

    fn skip_blanks(&mut self) {
        self.take_while(|byte| byte == b' ' || byte == b'\t');
    }

    /// Reads blanks, a comment and the end of the line; `None` if there is anything else.
    fn end_of_line(&mut self) -> Option<()> {
        self.skip_blanks();
        if self.takes(b'#') {
            self.take_while(is_text);
        }
        let is_end = self.at == self.text.len() || self.takes(b'\n');
        (is_end || (self.takes(b'\r') && self.takes(b'\n'))).then_some(())
    }

    /// Reads a key without quotes, if there is one.
    fn bare_key(&mut self) -> Option<ByteSpan> {
        let is_key = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let key = self.take_while(is_key);
        (!key.is_empty()).then_some(key)
    }

    /// Reads the rest of an entry.
    fn entry(&mut self, key_at: ByteSpan, nesting: Nesting) -> Option<TomlEntry<'t>> {
        self.skip_blanks();
        if !self.takes(b'=') {
            return None;
        }
        self.skip_blanks();
        let value = match self.peek()? {
            b'[' => self.list()?,
            b'{' if nesting == Nesting::Outer => self.table()?,
            _ => self.scalar()?,
        };
        Some(TomlEntry { key: Cow::Borrowed(&self.text[key_at.clone()]), key_at, value })
    }

    /// Reads a table in braces, without a comma after the last entry.
    fn table(&mut self) -> Option<TomlNode<'t>> {
        let start = self.at;
        self.takes(b'{');
        let mut entries = TomlEntries::default();
        self.skip_blanks();
        while !self.takes(b'}') {
            if entries.len() > 0 && !self.takes(b',') {
                return None;
            }
            self.skip_blanks();
            let key_at = self.bare_key()?;
            add(&mut entries, self.entry(key_at, Nesting::Inner)?)?;
            self.skip_blanks();
        }
        Some(TomlNode { at: start..self.at, data: TomlData::Table(entries) })
    }

    fn list(&mut self) -> Option<TomlNode<'t>> {
        let start = self.at;
        self.takes(b'[');
        let mut items = Vec::new();
        loop {
            self.skip_blanks();
            if self.takes(b']') {
                break;
            }
            items.push(self.scalar()?);
            self.skip_blanks();
            // The last item may have a comma too.
            if !self.takes(b',') && self.peek() != Some(b']') {
                return None;
            }
        }
        Some(TomlNode { at: start..self.at, data: TomlData::Array(items) })
    }

    fn scalar(&mut self) -> Option<TomlNode<'t>> {
        match self.peek()? {
            quote @ (b'"' | b'\'') => self.string(quote),
            b'0'..=b'9' => self.number(),
            _ => self.boolean(),
        }
    }

    fn string(&mut self, quote: u8) -> Option<TomlNode<'t>> {
        let start = self.at;
        self.takes(quote);
        // Only double quotes have escapes.
        let is_plain = |byte| is_text(byte) && byte != quote && (byte != b'\\' || quote == b'\'');
        let content = self.take_while(is_plain);
        if !self.takes(quote) {
            return None;
        }
        let text = Cow::Borrowed(&self.text[content]);
        Some(TomlNode { at: start..self.at, data: TomlData::String(text) })
    }

    fn number(&mut self) -> Option<TomlNode<'t>> {
        let at = self.take_while(|byte| byte.is_ascii_digit());
        let digits = &self.text[at.clone()];
        if digits.len() > DIGITS_MAX || (digits.len() > 1 && digits.starts_with('0')) {
            return None;
        }
        let number = TomlInteger { digits: Cow::Borrowed(digits), radix: 10 };
        Some(TomlNode { at, data: TomlData::Integer(number) })
    }

    fn boolean(&mut self) -> Option<TomlNode<'t>> {
        let at = self.take_while(|byte| byte.is_ascii_lowercase());
        let boolean = match &self.text[at.clone()] {
            "true" => true,
            "false" => false,
            _ => return None,
        };
        Some(TomlNode { at, data: TomlData::Boolean(boolean) })
    }
}

/// Whether a byte may be in a comment or a string: all bytes except control characters other than
/// the tab. Bytes above 127 are parts of characters that are not in ASCII.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}
