//! Finds the policy files of the links that are started at boot.

use std::path::{Path, PathBuf};

/// The directory with a policy `NAME.toml` for each link that starts at boot, mostly a symbolic
/// link to one in `links-available`.
const ENABLED: &str = "/etc/tacit/links-enabled";

/// The policy of a link that starts at boot.
pub(super) fn policy_of(name: &str) -> Option<PathBuf> {
    let path = Path::new(ENABLED).join(format!("{name}.toml"));
    path.exists().then_some(path)
}

/// The names of all links that start at boot, as far as this user may read them.
pub(super) fn names() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(ENABLED) else { return Vec::new() };
    let name = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_suffix(".toml")?.to_owned();
        Some(name)
    };
    entries.flatten().filter_map(|entry| name(entry.path())).collect()
}
