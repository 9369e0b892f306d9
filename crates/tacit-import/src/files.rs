//! Files that a text names, read by whoever can.

/// Most bytes of one file that is imported.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// Where an importer gets the files that a text names; it opens none itself.
pub trait Files {
    /// What the file holds.
    ///
    /// # Errors
    /// In words, for the one who named it.
    fn read(&self, path: &str) -> Result<Vec<u8>, String>;

    /// The names of what stands in a directory, in no order.
    ///
    /// # Errors
    /// As above.
    fn names(&self, directory: &str) -> Result<Vec<String>, String>;
}

/// Files that exist in memory alone: path and text.
#[cfg(test)]
pub(crate) struct InMemory<'t>(pub(crate) &'t [(&'t str, &'t str)]);

#[cfg(test)]
impl Files for InMemory<'_> {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        let found = self.0.iter().find(|(name, _)| *name == path);
        found.map(|(_, text)| text.as_bytes().to_vec()).ok_or_else(|| format!("no file {path}"))
    }

    fn names(&self, directory: &str) -> Result<Vec<String>, String> {
        let below = |path: &str| Some(path.strip_prefix(directory)?.strip_prefix('/')?.to_owned());
        Ok(self.0.iter().filter_map(|(path, _)| below(path)).collect())
    }
}
