//! Builds the command lines of the load client and the load server in `bench/inprocess`. These
//! programs call a TLS library themselves.

use std::path::{Path, PathBuf};

use crate::tls_settings::TlsSettings;

/// The program with client, server and both libraries.
pub(crate) fn program(target: &Path) -> PathBuf {
    target.join("release/inprocess")
}

/// The words in front of those of `tacit workload`: library, TLS settings, and directory of the
/// certificates.
pub(crate) fn words(library: &str, settings: TlsSettings, dir: &Path) -> Vec<String> {
    let resumption = if settings.resumes() { "resumed" } else { "full" };
    let dir = dir.to_string_lossy();
    [library, settings.version(), settings.suite(), resumption, &dir].map(str::to_owned).to_vec()
}
