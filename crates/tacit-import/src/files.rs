//! Defines how an import reads the files that a configuration includes.
//!
//! The import opens no file itself: it calls the trait [`Files`], which the caller implements.

/// Largest file that is imported, in bytes.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// The reader of the files that a configuration names. The importer opens no file itself.
pub trait Files {
    /// The content of a file.
    ///
    /// # Errors
    /// In words, for the one who named it.
    fn read(&self, path: &str) -> Result<Vec<u8>, String>;

    /// The names of the entries of a directory, in no order.
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
    /// Its content.
    pub bytes: &'a [u8],
}

/// Files that exist in memory alone.
#[derive(Clone, Copy, Debug)]
pub struct InMemory<'a>(pub &'a [Input<'a>]);

impl Files for InMemory<'_> {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        let found = self.0.iter().find(|input| input.file == path);
        found.map(|input| input.bytes.to_vec()).ok_or_else(|| format!("there is no file {path}"))
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
