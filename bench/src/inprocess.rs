//! How the programs with a TLS library in them are started (`bench/inprocess`).

use std::path::{Path, PathBuf};

use crate::terms::Terms;

/// The program with both ends and both libraries.
pub(crate) fn program(target: &Path) -> PathBuf {
    target.join("release/inprocess")
}

/// The words before those of `tacit workload`: by which library, on which terms, with the
/// certificates of which directory.
pub(crate) fn words(library: &str, terms: Terms, dir: &Path) -> Vec<String> {
    let resumption = if terms.resumes() { "resumed" } else { "full" };
    let dir = dir.to_string_lossy();
    [library, terms.version(), terms.suite(), resumption, &dir].map(str::to_owned).to_vec()
}
