//! Reads a TOML table key by key.
//!
//! When the caller opens a table, the table reports unknown keys. Then the caller reads the known
//! keys. If a value is wrong, the table reports an error at the position of the value, and the
//! caller gets `None`.
//!
//! A misspelled key causes one error, not two: the table reports the misspelled key as unknown, but
//! does not report the correct key as missing. There are two cases:
//! * If an unknown key resembles a missing key, the caller gets the value of the unknown key.
//! * If an unknown key resembles no known key, the table does not report missing keys. It also does
//!   not report keys that are known, but not allowed beside the other keys.

use std::borrow::Cow;
use std::fmt;

use super::document::TomlDocument;
use super::node::{ByteSpan, TomlData, TomlEntries, TomlEntry, TomlNode};
use super::report::Diagnostics;
use super::schema::{TableKeys, TableSchema};
use super::words::{nearest_word, word_list};
use crate::message_id::MessageId;

/// The largest number of entries of a list in a rule or table.
pub const LIST_ITEMS_MAX: usize = 4096;

/// One table of the text.
#[derive(Debug)]
pub struct TomlTable<'a> {
    /// Collects errors.
    pub report: &'a Diagnostics<'a>,
    /// Its position.
    pub at: ByteSpan,
    /// Its name in messages.
    pub title: TableTitle<'a>,
    schema: TableSchema,
    entries: &'a TomlEntries<'a>,
    /// The [`mark_of`] of each key of the text.
    marks: u64,
    unknown: Unknown<'a>,
}

/// The name of a table in messages.
#[derive(Clone, Debug)]
pub enum TableTitle<'a> {
    /// Such as `[limits]`.
    Text(Cow<'static, str>),
    /// A table with a key `name`, such as a rule.
    Named {
        /// What it is.
        kind: &'static str,
        /// The value of the key.
        name: &'a str,
    },
}

impl From<&'static str> for TableTitle<'_> {
    fn from(title: &'static str) -> Self {
        Self::Text(Cow::Borrowed(title))
    }
}

impl From<String> for TableTitle<'_> {
    fn from(title: String) -> Self {
        Self::Text(Cow::Owned(title))
    }
}

impl fmt::Display for TableTitle<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(title) => out.write_str(title),
            Self::Named { kind, name } => write!(out, "{kind} `{}`", name.escape_debug()),
        }
    }
}

/// Returns one of 64 bits for a key. Most keys that a table may have are missing, and are known to
/// be missing by this bit.
fn mark_of(key: &str) -> u64 {
    let ends = [key.bytes().next(), key.bytes().next_back()].map(|end| end.unwrap_or(0).into());
    let [first, last]: [usize; 2] = ends;
    1 << ((key.len() * 7 + first * 3 + last) % 64)
}

/// The keys of a table that were reported as unknown.
#[derive(Debug, Default)]
struct Unknown<'a> {
    /// Keys that resemble a missing known key.
    misspelled: Vec<Misspelled<'a>>,
    /// Whether there is a key that does not resemble a known key.
    others: bool,
}

/// A known key, and its spelling in the text.
#[derive(Debug)]
struct Misspelled<'a> {
    known: &'static str,
    written: &'a TomlEntry<'a>,
}

impl<'a> TomlTable<'a> {
    /// Opens the top of the text.
    pub fn top(
        report: &'a Diagnostics<'a>,
        document: &'a TomlDocument<'a>,
        schema: impl Into<TableSchema>,
        title: impl Into<TableTitle<'a>>,
    ) -> Self {
        Self::open(report, document.top(), 0..0, schema, title)
    }

    /// Reports keys that are unknown, not supported yet, or misplaced.
    fn open(
        report: &'a Diagnostics<'a>,
        entries: &'a TomlEntries<'a>,
        at: ByteSpan,
        schema: impl Into<TableSchema>,
        title: impl Into<TableTitle<'a>>,
    ) -> Self {
        let title = title.into();
        let schema = schema.into();
        let marks = entries.iter().fold(0, |marks, entry| marks | mark_of(&entry.key));
        let unknown = Unknown::default();
        let mut table = Self { report, at, title, schema, entries, marks, unknown };
        for entry in entries {
            table.check_key(entry);
        }
        table
    }

    /// Returns the entry of a known key, which may be misspelled, if it is given.
    fn entry(&self, key: &str) -> Option<&'a TomlEntry<'a>> {
        let is_possible = self.marks & mark_of(key) != 0;
        if let Some(entry) = is_possible.then(|| self.entries.entry(key)).flatten() {
            return Some(entry);
        }
        let misspelled = self.unknown.misspelled.iter().find(|misspelled| misspelled.known == key);
        misspelled.map(|misspelled| misspelled.written)
    }

    /// Returns the value of a key, if it is given.
    pub fn value(&self, key: &'static str) -> Option<TomlValue<'a>> {
        debug_assert!(
            self.schema.known().contains(&key),
            "the parser reads `{key}`, but the list of known keys of {schema:?} does not \
             contain this key",
            schema = self.schema
        );
        Some(TomlValue::of(self.report, key, self.entry(key)?))
    }

    /// Returns the value of a required key; `fix` shows an example.
    pub fn required(&self, key: &'static str, fix: &str) -> Option<TomlValue<'a>> {
        let value = self.value(key);
        if value.is_none() {
            self.missing(key, fix);
        }
        value
    }

    /// Reports a missing key.
    pub fn missing(&self, key: &str, fix: &str) {
        self.incomplete(format!("{} has no `{key}`", self.title), fix);
    }

    /// Reports that something is missing, unless an unknown key may be a misspelling of it.
    pub fn incomplete(&self, message: impl Into<String>, fix: &str) {
        if !self.unknown.others {
            self.report.missing(MessageId("missing-key"), &self.at, message, fix);
        }
    }

    /// Reports keys that have no effect here, unless an unknown key may change that. `{key}` in the
    /// fix stands for the key. Returns whether there is any of these keys.
    pub fn refuse(&self, keys: &[&'static str], why: &str, fix: &str) -> bool {
        let mut has_any = false;
        for value in keys.iter().filter_map(|key| self.value(key)) {
            has_any = true;
            if !self.unknown.others {
                let message = format!("`{key}` does not belong here: {why}", key = value.name);
                value.error_at_name(MessageId("misplaced-key"), message, fix);
            }
        }
        has_any
    }

    /// Reads a boolean; `default` if the key is not given.
    #[expect(
        clippy::fn_params_excessive_bools,
        reason = "the bool parameter `default` is the default value of a policy key"
    )]
    pub fn boolean(&self, key: &'static str, default: bool) -> Option<bool> {
        self.value(key).map_or(Some(default), |value| value.boolean())
    }

    /// Whether the text contains the key, known or not.
    pub fn holds(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// Returns every key with its table, for `[identity.NAME]` and `[trust.NAME]`.
    pub fn named_tables(&self) -> impl Iterator<Item = (&'a str, TomlValue<'a>)> {
        self.entries.iter().map(|entry| (&*entry.key, TomlValue::of(self.report, "", entry)))
    }

    fn check_key(&mut self, entry: &'a TomlEntry<'a>) {
        let key = &*entry.key;
        let at = &entry.key_at;
        let known = self.schema.known();
        if self.schema.keys == TableKeys::Names || known.contains(&key) {
            return;
        }
        if let Some(planned) = self.schema.planned.iter().find(|planned| planned.key == key) {
            self.report.error(
                MessageId("not-built"),
                at,
                format!("`{key}` is not supported yet"),
                planned.instead,
            );
            return;
        }
        let home = (self.schema.home)(key);
        if !self.report.is_toml() && home.is_some() {
            return;
        }
        let message = format!("unknown key `{key}` in {table}", table = self.title);
        let nearest = nearest_word(key, known);
        let fix = match (home, nearest) {
            (Some(home), _) => format!("`{key}` belongs in {home}"),
            (None, Some(word)) => format!("did you mean `{word}`?"),
            (None, None) => format!("the possible keys are {}", word_list(known)),
        };
        self.report.error(MessageId("unknown-key"), at, message, fix);
        match nearest.filter(|_| home.is_none()) {
            Some(known) if self.entry(known).is_none() => {
                self.unknown.misspelled.push(Misspelled { known, written: entry });
                self.report.silence(at.start..entry.value.at.end);
            }
            Some(_) => {}
            None => self.unknown.others = true,
        }
    }
}

/// One value of the text.
#[derive(Clone, Debug)]
pub struct TomlValue<'a> {
    /// Collects errors.
    pub report: &'a Diagnostics<'a>,
    /// Its key.
    pub name: &'static str,
    /// The position of the key.
    pub name_at: ByteSpan,
    /// The position of the value.
    pub at: ByteSpan,
    /// The value.
    pub value: &'a TomlData<'a>,
}

impl<'a> TomlValue<'a> {
    fn of(report: &'a Diagnostics<'a>, name: &'static str, entry: &'a TomlEntry<'a>) -> Self {
        let name_at = entry.key_at.clone();
        Self { report, name, name_at, at: entry.value.at.clone(), value: &entry.value.data }
    }

    /// Reports an error in this value.
    pub fn error(&self, message: impl Into<String>, fix: impl Into<String>) {
        self.error_of(MessageId("invalid-value"), message, fix);
    }

    /// Reports an error that has an identifier of its own.
    pub fn error_of(&self, id: MessageId, message: impl Into<String>, fix: impl Into<String>) {
        self.report.error(id, &self.at, message, fix);
    }

    /// Reports an error at the key. `{key}` in the fix stands for the key.
    pub fn error_at_name(&self, id: MessageId, message: impl Into<String>, fix: &str) {
        self.report.error(id, &self.name_at, message, fix.replace("{key}", self.name));
    }

    /// The position of the value of a key, if this value is a table with that key. Otherwise the
    /// position of this value.
    pub fn at_key(&self, key: &str) -> ByteSpan {
        self.value.get(key).map_or_else(|| self.at.clone(), |value| value.at.clone())
    }

    /// Reads text: one line, not empty, without control characters.
    pub fn string(&self) -> Option<&'a str> {
        let Some(text) = self.value.as_str() else {
            self.wrong_type("text in double quotes");
            return None;
        };
        if text.is_empty() {
            self.error(
                format!("`{key}` is empty", key = self.name),
                format!("write a value, or remove `{}`", self.name),
            );
            return None;
        }
        if text.chars().any(char::is_control) {
            let message = format!("`{key}` contains a control character", key = self.name);
            self.error(message, "use printable characters only");
            return None;
        }
        Some(text)
    }

    /// Reads `true` or `false`.
    pub fn boolean(&self) -> Option<bool> {
        let boolean = self.value.as_bool();
        if boolean.is_none() {
            self.wrong_type("`true` or `false`, without quotes");
        }
        boolean
    }

    /// Reads a whole number from `min` to `max`.
    pub fn integer(&self, min: u64, max: u64) -> Option<u64> {
        let Some(number) = self.value.as_integer() else {
            self.wrong_type("a whole number, without quotes");
            return None;
        };
        // TOML allows `1_000`; this text has no underscores, but may have a sign.
        let value = u64::from_str_radix(&number.digits, number.radix).ok();
        let inside = value.filter(|value| (min..=max).contains(value));
        if inside.is_none() {
            let message =
                format!("`{key}` is {number}, but must be {min} to {max}", key = self.name);
            self.error_of(
                MessageId("out-of-range"),
                message,
                format!("write a number from {min} to {max}"),
            );
        }
        inside
    }

    /// Opens the value as a table.
    pub fn table(
        &self,
        schema: impl Into<TableSchema>,
        title: impl Into<TableTitle<'a>>,
    ) -> Option<TomlTable<'a>> {
        let Some(entries) = self.value.as_table() else {
            self.wrong_type("a table");
            return None;
        };
        Some(TomlTable::open(self.report, entries, self.at.clone(), schema, title))
    }

    /// Returns the values of a list, or a single value that stands instead of a list. There is at
    /// least one and at most [`LIST_ITEMS_MAX`].
    pub fn items(&self) -> Option<Vec<Self>> {
        if !self.value.is_array() {
            return Some(vec![self.clone()]);
        }
        let items = self.list(LIST_ITEMS_MAX)?;
        if items.is_empty() {
            let message = format!("`{key}` is an empty list", key = self.name);
            let fix = format!("write at least one value, or remove `{}`", self.name);
            self.error(message, &fix);
            return None;
        }
        Some(items)
    }

    /// Returns the values of a list of at most `max` entries.
    pub fn list(&self, max: usize) -> Option<Vec<Self>> {
        let Some(list) = self.value.as_array() else {
            self.wrong_type("a list");
            return None;
        };
        if list.len() > max {
            let message = format!(
                "`{key}` has {count} entries; the limit is {max}",
                key = self.name,
                count = list.len()
            );
            let fix = "merge some of the entries, or use several rules";
            self.error_of(MessageId("too-many"), message, fix);
            return None;
        }
        let item = |item: &'a TomlNode<'a>| Self {
            at: item.at.clone(),
            value: &item.data,
            ..self.clone()
        };
        Some(list.iter().map(item).collect())
    }

    /// Reads every item, and reports all errors; `None` if there was an error.
    pub fn each<T>(&self, read: impl Fn(&Self) -> Option<T>) -> Option<Vec<T>> {
        if !self.value.is_array() {
            return read(self).map(|one| vec![one]);
        }
        let items = self.items()?;
        let mut all = Vec::with_capacity(items.len());
        all.extend(items.iter().filter_map(read));
        (all.len() == items.len()).then_some(all)
    }

    /// Like [`Self::each`]; removes duplicates.
    pub fn each_once<T: PartialEq>(&self, read: impl Fn(&Self) -> Option<T>) -> Option<Vec<T>> {
        let mut distinct: Vec<T> = Vec::new();
        let mut complete = true;
        for item in self.items()? {
            match read(&item) {
                None => complete = false,
                Some(value) if distinct.contains(&value) => {
                    item.error_of(
                        MessageId("named-twice"),
                        format!("this value occurs twice in `{key}`", key = self.name),
                        "remove one of the two values",
                    );
                    complete = false;
                }
                Some(value) => distinct.push(value),
            }
        }
        complete.then_some(distinct)
    }

    /// Reads one of a few words.
    pub fn choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Option<T> {
        let text = self.string()?;
        if let Some((_, value)) = choices.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let known: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
        self.unknown_word(text, &known);
        None
    }

    /// Reports an unknown word.
    pub fn unknown_word(&self, text: &str, known: &[&'static str]) {
        let fix = match nearest_word(text, known) {
            Some(word) => format!("did you mean `{word}`?"),
            None => format!("write one of {}", word_list(known)),
        };
        self.error_of(
            MessageId("unknown-word"),
            format!("`{key}` cannot be `{text}`", key = self.name),
            fix,
        );
    }

    /// Reports a value of the wrong kind.
    pub fn wrong_type(&self, wanted: &str) {
        let found = match self.value {
            TomlData::String(_) => "text",
            TomlData::Integer(_) => "a whole number",
            TomlData::Float => "a fraction",
            TomlData::Boolean(_) => "true or false",
            TomlData::Datetime => "a date",
            TomlData::Array(_) => "a list",
            TomlData::Table(_) => "a table",
        };
        self.error_of(
            MessageId("wrong-type"),
            format!("`{key}` cannot be {found}", key = self.name),
            format!("write {wanted}"),
        );
    }
}
