//! The values of a TOML text, each with its position in the text.
//!
//! A rule has few keys, so a table is a sorted list: it needs one allocation, where a tree would
//! need several.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A range of bytes of the text.
pub type ByteSpan = Range<usize>;

/// A value and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TomlNode<'t> {
    /// Its position in the text. A table has the position of its header.
    pub at: ByteSpan,
    /// The value.
    pub data: TomlData<'t>,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TomlData<'t> {
    /// A string, without quotes and escapes.
    String(Cow<'t, str>),
    /// A whole number.
    Integer(TomlInteger<'t>),
    /// A fraction.
    Float,
    /// `true` or `false`.
    Boolean(bool),
    /// A date or a time.
    Datetime,
    /// A list.
    Array(Vec<TomlNode<'t>>),
    /// A table.
    Table(TomlEntries<'t>),
}

/// A whole number of any size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TomlInteger<'t> {
    /// The digits, perhaps after a sign, without underscores.
    pub digits: Cow<'t, str>,
    /// 2, 8, 10 or 16.
    pub radix: u32,
}

/// The keys and values of a table, in the order of the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TomlEntries<'t> {
    sorted: Vec<TomlEntry<'t>>,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TomlEntry<'t> {
    /// The key.
    pub key: Cow<'t, str>,
    /// The position of the key.
    pub key_at: ByteSpan,
    /// Its value.
    pub value: TomlNode<'t>,
}

impl<'t> TomlEntries<'t> {
    /// Up to this number of entries, comparing the key with all of them is faster than a binary
    /// search, because most comparisons end with the length.
    const SCANNED_MAX: usize = 16;

    /// Adds an entry. Returns whether its key is new; otherwise, nothing is added.
    pub(super) fn insert(&mut self, entry: TomlEntry<'t>) -> bool {
        let Err(place) = self.place(&entry.key) else { return false };
        self.sorted.insert(place, entry);
        true
    }

    pub(super) fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        self.sorted.clear();
    }

    /// Removes all entries, and returns them in memory of exactly their size.
    pub(super) fn take(&mut self) -> Self {
        Self { sorted: self.sorted.drain(..).collect() }
    }

    /// Returns the entry of a key.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&TomlEntry<'t>> {
        if self.sorted.len() <= Self::SCANNED_MAX {
            return self.sorted.iter().find(|entry| entry.key == key);
        }
        self.place(key).ok().map(|place| &self.sorted[place])
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&TomlNode<'t>> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// Returns all entries in the order of their keys.
    pub fn iter(&self) -> std::slice::Iter<'_, TomlEntry<'t>> {
        self.sorted.iter()
    }

    /// Returns all entries in the order of their keys.
    pub(super) fn into_sorted(self) -> Vec<TomlEntry<'t>> {
        self.sorted
    }

    fn place(&self, key: &str) -> Result<usize, usize> {
        self.sorted.binary_search_by(|entry| (*entry.key).cmp(key))
    }

    /// Converts a table that the library parsed. `offset` is the position at which its text begins.
    pub(super) fn of_library(table: DeTable<'t>, offset: usize) -> Self {
        let entry = |(key, value): (Spanned<Cow<'t, str>>, Spanned<DeValue<'t>>)| TomlEntry {
            key_at: moved(&key.span(), offset),
            key: key.into_inner(),
            value: TomlNode::of_library(value, offset),
        };
        // The library sorts its tables too.
        Self { sorted: table.into_iter().map(entry).collect() }
    }
}

impl<'e, 't> IntoIterator for &'e TomlEntries<'t> {
    type Item = &'e TomlEntry<'t>;
    type IntoIter = std::slice::Iter<'e, TomlEntry<'t>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'t> TomlNode<'t> {
    fn of_library(value: Spanned<DeValue<'t>>, offset: usize) -> Self {
        let at = moved(&value.span(), offset);
        let data = match value.into_inner() {
            DeValue::String(text) => TomlData::String(text),
            DeValue::Integer(number) => TomlData::Integer(TomlInteger {
                digits: Cow::Owned(number.as_str().to_owned()),
                radix: number.radix(),
            }),
            DeValue::Float(_) => TomlData::Float,
            DeValue::Boolean(boolean) => TomlData::Boolean(boolean),
            DeValue::Datetime(_) => TomlData::Datetime,
            DeValue::Array(list) => {
                let items = list.into_iter().map(|item| Self::of_library(item, offset));
                TomlData::Array(items.collect())
            }
            DeValue::Table(table) => TomlData::Table(TomlEntries::of_library(table, offset)),
        };
        Self { at, data }
    }
}

fn moved(span: &ByteSpan, offset: usize) -> ByteSpan {
    span.start + offset..span.end + offset
}

impl<'t> TomlData<'t> {
    /// Returns the string, if this is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        let Self::String(text) = self else { return None };
        Some(text)
    }

    /// Returns the whole number, if this is one.
    #[must_use]
    pub fn as_integer(&self) -> Option<&TomlInteger<'t>> {
        let Self::Integer(number) = self else { return None };
        Some(number)
    }

    /// Returns the boolean, if this is one.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        let Self::Boolean(boolean) = self else { return None };
        Some(*boolean)
    }

    /// Returns the items of the list, if this is one.
    #[must_use]
    pub fn as_array(&self) -> Option<&[TomlNode<'t>]> {
        let Self::Array(items) = self else { return None };
        Some(items)
    }

    /// Returns the entries of the table, if this is one.
    #[must_use]
    pub fn as_table(&self) -> Option<&TomlEntries<'t>> {
        let Self::Table(entries) = self else { return None };
        Some(entries)
    }

    /// Returns the value of a key, if this is a table with that key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&TomlNode<'t>> {
        self.as_table()?.get(key)
    }

    /// Whether this is a string.
    #[must_use]
    pub fn is_str(&self) -> bool {
        matches!(self, Self::String(_))
    }

    /// Whether this is a whole number.
    #[must_use]
    pub fn is_integer(&self) -> bool {
        matches!(self, Self::Integer(_))
    }

    /// Whether this is a boolean.
    #[must_use]
    pub fn is_bool(&self) -> bool {
        matches!(self, Self::Boolean(_))
    }

    /// Whether this is a list.
    #[must_use]
    pub fn is_array(&self) -> bool {
        matches!(self, Self::Array(_))
    }

    /// Whether this is a table.
    #[must_use]
    pub fn is_table(&self) -> bool {
        matches!(self, Self::Table(_))
    }
}

impl fmt::Display for TomlInteger<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = match self.radix {
            2 => "0b",
            8 => "0o",
            16 => "0x",
            _ => "",
        };
        write!(out, "{prefix}{}", self.digits)
    }
}
