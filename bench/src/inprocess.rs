//! The command lines of the load programs with a TLS library (`bench/inprocess`).

use std::path::{Path, PathBuf};

use crate::terms::Terms;

/// The program with client, server and both libraries.
pub(crate) fn program(target: &Path) -> PathBuf {
    target.join("release/inprocess")
}

/// The words in front of those of `tacit workload`: library, TLS settings, and directory of the
/// certificates.
pub(crate) fn words(library: &str, terms: Terms, dir: &Path) -> Vec<String> {
    let resumption = if terms.resumes() { "resumed" } else { "full" };
    let dir = dir.to_string_lossy();
    [library, terms.version(), terms.suite(), resumption, &dir].map(str::to_owned).to_vec()
}
