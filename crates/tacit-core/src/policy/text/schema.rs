//! Defines the schema of a TOML table: the list of the keys that the table may have.

/// The keys of one kind of table, and what is reported about other keys.
#[derive(Clone, Copy, Debug)]
pub struct TableSchema {
    /// The keys.
    pub keys: TableKeys,
    /// Planned keys.
    pub planned: &'static [PlannedKey],
    /// Returns the title of the table to which a misplaced key belongs, if there is one in this
    /// file.
    pub home: fn(&str) -> Option<&'static str>,
}

impl TableSchema {
    /// Returns the words that are keys of this table.
    #[must_use]
    pub fn known(&self) -> &'static [&'static str] {
        match self.keys {
            TableKeys::Fixed(keys) => keys,
            TableKeys::Names => &[],
        }
    }
}

/// The kind of keys of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKeys {
    /// Exactly these words.
    Fixed(&'static [&'static str]),
    /// Names that the author of the file chose.
    Names,
}

/// A key that is planned and not supported yet. It is rejected with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedKey {
    /// The key.
    pub key: &'static str,
    /// What to write until it is supported.
    pub instead: &'static str,
}
