//! Files to import, and how an importer reads them: it opens none itself.

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

    /// Whether the extended key usage of the first certificate in a file lets a client show it;
    /// `None` if that is not known.
    fn is_for_clients(&self, _certificate: &str) -> Option<bool> {
        None
    }
}

/// One file, as it was named.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Its name, for findings.
    pub file: &'a str,
    /// What it holds.
    pub bytes: &'a [u8],
}

/// Files that exist in memory alone.
#[derive(Clone, Copy, Debug)]
pub struct InMemory<'a>(pub &'a [Input<'a>]);

impl Files for InMemory<'_> {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        let found = self.0.iter().find(|input| input.file == path);
        found.map(|input| input.bytes.to_vec()).ok_or_else(|| format!("no file {path}"))
    }

    fn names(&self, directory: &str) -> Result<Vec<String>, String> {
        let below = |path: &str| Some(path.strip_prefix(directory)?.strip_prefix('/')?.to_owned());
        Ok(self.0.iter().filter_map(|input| below(input.file)).collect())
    }
}

/// Files of text in memory, for tests.
#[cfg(test)]
pub(crate) fn texts<'a>(files: &[(&'a str, &'a str)]) -> Vec<Input<'a>> {
    files.iter().map(|(file, text)| Input { file, bytes: text.as_bytes() }).collect()
}
