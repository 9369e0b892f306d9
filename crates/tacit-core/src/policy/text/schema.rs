//! Describes which keys a table may have.

/// The keys of one kind of table, and what to report about any other.
#[derive(Clone, Copy, Debug)]
pub struct TableSchema {
    /// The keys.
    pub keys: TableKeys,
    /// Planned keys.
    pub planned: &'static [PlannedKey],
    /// The title of the table in this file that a misplaced key belongs in, if any.
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

/// The kind of keys of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKeys {
    /// Exactly these words.
    Fixed(&'static [&'static str]),
    /// Names that the author of the file chose.
    Names,
}

/// A key that is planned and not built yet. It is rejected by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedKey {
    /// The key.
    pub key: &'static str,
    /// What to write until it exists.
    pub instead: &'static str,
}
