//! Lists the files that tacit hides from programs under `tacit run`: the policy, private keys,
//! pre-shared keys of IPsec tunnels, and the files of `[trust]` tables (CA certificates and CRLs).
//!
//! Files that the distribution installs for all users stay readable. tacit hides a whole directory
//! under two conditions: only the owner may read the directory, and tacit must hide all its files.
//! Then new files in this directory are hidden too.
//!
//! Limit: in a directory with more than `ENTRIES_MAX` entries, tacit hides single files instead of
//! the whole directory.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use tacit_core::policy::{IkePeer, ManualSa, Policy, Trust};

use crate::live::directory_of;

/// The maximum number of entries of a directory that are read.
const ENTRIES_MAX: usize = 256;

/// Directories of files that the distribution installs for all users.
const PUBLIC: [&str; 4] =
    ["/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates"];

/// The files to hide, by each of their names, then the directories to hide whole.
#[must_use]
pub fn paths(policy: &Policy, file: &Path) -> Vec<PathBuf> {
    let Secrets { files, directories } = Secrets::of(policy, file);
    files.into_iter().chain(directories).collect()
}

/// The files to hide, by each of their names.
#[must_use]
pub fn files(policy: &Policy, file: &Path) -> Vec<PathBuf> {
    Secrets::of(policy, file).files.into_iter().collect()
}

/// The files that are hidden one by one, each once: when such a file is replaced, programs can read
/// the new file for a moment. A path in the policy with `..` is replaced by the canonical path.
#[must_use]
pub fn exposed(policy: &Policy, file: &Path) -> Vec<PathBuf> {
    let Secrets { files, directories } = Secrets::of(policy, file);
    let mut shown: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for path in files {
        let Ok(real) = path.canonicalize() else { continue };
        if directories.iter().any(|one| real.starts_with(one)) {
            continue;
        }
        let has_parents = path.components().any(|part| part == Component::ParentDir);
        let name = if has_parents { real.clone() } else { path };
        // Both the path in the policy and the canonical path are listed; the former is known.
        if name != real || !shown.contains_key(&real) {
            shown.insert(real, name);
        }
    }
    shown.into_values().collect()
}

struct Secrets {
    /// The files, by the paths in the policy and by their canonical paths.
    files: BTreeSet<PathBuf>,
    /// The directories that contain only files of the policy.
    directories: BTreeSet<PathBuf>,
}

impl Secrets {
    fn of(policy: &Policy, file: &Path) -> Self {
        let base = directory_of(file);
        let keys = policy.identities.values().map(|identity| identity.key.as_path());
        let keys = keys.chain(policy.ikes.values().filter_map(IkePeer::key_file));
        let keys = keys.chain(policy.sas.values().flat_map(ManualSa::key_files));
        let of_trusts = policy.trusts.values().flat_map(Trust::files);
        let named = keys.chain(of_trusts).map(|path| base.join(path));
        let mut files = BTreeSet::new();
        let of_policy = policy.included.iter().map(|name| PathBuf::from(&**name));
        let of_policy = of_policy.chain([file.to_owned()]);
        for path in named.filter(|path| !is_public(path)).chain(of_policy) {
            // A file that does not exist now must be hidden when it is created.
            files.extend(std::path::absolute(&path));
            files.extend(path.canonicalize());
        }
        // Certificates are not secret, but they may be in a directory that is hidden whole.
        let certs = policy.identities.values().map(|identity| base.join(&identity.cert));
        let mut used = files.clone();
        used.extend(certs.filter_map(|cert| cert.canonicalize().ok()));
        let real = files.iter().filter_map(|file| file.canonicalize().ok());
        let directories: BTreeSet<_> = real.map(|file| directory_of(&file)).collect();
        let directories = directories.into_iter().filter(|one| is_whole(one, &used)).collect();
        Self { files, directories }
    }
}

fn is_public(file: &Path) -> bool {
    let real = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    PUBLIC.iter().any(|directory| real.starts_with(directory))
}

/// Whether only the owner may read a directory, and it contains only these files.
fn is_whole(directory: &Path, used: &BTreeSet<PathBuf>) -> bool {
    let is_private = |data: std::fs::Metadata| data.permissions().mode() & 0o077 == 0;
    if !directory.metadata().is_ok_and(is_private) {
        return false;
    }
    let Ok(entries) = directory.read_dir() else { return false };
    let mut count = 0;
    for entry in entries {
        count += 1;
        let is_used = |path: PathBuf| path.canonicalize().is_ok_and(|real| used.contains(&real));
        if count > ENTRIES_MAX || !entry.is_ok_and(|entry| is_used(entry.path())) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn files_alone_in_a_private_directory_are_not_exposed() {
        let root = std::env::temp_dir().join(format!("tacit-secrets-{}", std::process::id()));
        let private = root.join("private");
        fs::create_dir_all(&private).unwrap();
        fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
        for name in ["private/a.pem", "private/a.key", "b.pem", "b.key", "pins.pem"] {
            fs::write(root.join(name), "").unwrap();
        }
        let text = "version = 1\n[identity.a]\ncert = \"private/a.pem\"\nkey = \"private/a.key\"\n\
                    [identity.b]\ncert = \"b.pem\"\nkey = \"b.key\"\n\
                    [trust.c]\npinned = \"pins.pem\"\n";
        let file = root.join("policy.toml");
        fs::write(&file, text).unwrap();
        let policy = tacit_core::policy::parse(text).policy.unwrap();
        let real = |name: &str| root.canonicalize().unwrap().join(name);
        let exposed = || -> BTreeSet<_> {
            exposed(&policy, &file).into_iter().map(|path| path.canonicalize().unwrap()).collect()
        };
        assert_eq!(exposed(), [real("b.key"), real("pins.pem"), real("policy.toml")].into());
        assert!(paths(&policy, &file).contains(&real("private")));
        // With one more file, the directory is not hidden whole.
        fs::write(private.join("notes"), "").unwrap();
        assert!(exposed().contains(&real("private/a.key")));
        fs::remove_file(private.join("notes")).unwrap();
        fs::set_permissions(&private, Permissions::from_mode(0o750)).unwrap();
        assert!(exposed().contains(&real("private/a.key")), "other users may read it");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn an_exposed_file_is_listed_once_without_parents_in_its_path() {
        let root = std::env::temp_dir().join(format!("tacit-parents-{}", std::process::id()));
        fs::create_dir_all(root.join("policies")).unwrap();
        let root = root.canonicalize().unwrap();
        for name in ["a.pem", "a.key", "linked.key"] {
            fs::write(root.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("../linked.key", root.join("policies/link.key")).unwrap();
        let text = "version = 1\n[identity.a]\ncert = \"../a.pem\"\nkey = \"../a.key\"\n\
                    [identity.b]\ncert = \"../a.pem\"\nkey = \"link.key\"\n";
        let file = root.join("policies/policy.toml");
        fs::write(&file, text).unwrap();
        let policy = tacit_core::policy::parse(text).policy.unwrap();
        let names = ["a.key", "policies/link.key", "policies/policy.toml"];
        assert_eq!(exposed(&policy, &file), names.map(|name| root.join(name)));
        fs::remove_dir_all(root).unwrap();
    }
}
