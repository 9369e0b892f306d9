//! Which keys a table may hold.

/// The keys of one kind of table, and what to report about any other.
#[derive(Clone, Copy, Debug)]
pub struct TableSchema {
    /// The keys.
    pub keys: TableKeys,
    /// Keys that will exist.
    pub planned: &'static [PlannedKey],
    /// The title of the table of the same file in which a key belongs, if one knows it.
    pub home: fn(&str) -> Option<&'static str>,
}

impl TableSchema {
    /// The words that are keys of this table.
    #[must_use]
    pub fn known(&self) -> &'static [&'static str] {
        match self.keys {
            TableKeys::Fixed(keys) => keys,
            TableKeys::Names => &[],
        }
    }
}

/// What the keys of a table are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKeys {
    /// These words and no others.
    Fixed(&'static [&'static str]),
    /// Names that the author of the file chose.
    Names,
}

/// A key that is planned and not built yet. It is refused by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedKey {
    /// The key.
    pub key: &'static str,
    /// What to write until it exists.
    pub instead: &'static str,
}
