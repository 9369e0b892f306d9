//! Maps the numbers of control groups (version 2) to their paths, and back. The kernel compares the
//! numbers; the rules of a policy contain the paths.
//!
//! The kernel does not reuse a number: a group that is removed and created again gets a new number.
//! So an entry of the cache never becomes wrong.
//!
//! Limits: [`KNOWN_MAX`] cached paths, [`SEARCHED_MAX`] groups in one search.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tacit_sys::netlink::nft::host::CgroupId;

/// The maximum number of paths that are cached. When the cache is full, it is emptied for the next
/// path.
const KNOWN_MAX: usize = 4096;
/// The maximum number of groups that one search reads.
const SEARCHED_MAX: usize = 16_384;

/// The control groups of this host.
#[derive(Debug, Default)]
pub(crate) struct Cgroups {
    /// The paths of groups that were looked up.
    known: HashMap<u64, String>,
}

impl Cgroups {
    /// Returns the path of a group below the root, which is empty for the root itself; `None` if
    /// the group does not exist.
    pub(crate) fn path(&mut self, id: u64) -> Option<&str> {
        if !self.known.contains_key(&id) {
            self.search();
        }
        self.known.get(&id).map(String::as_str)
    }

    /// Reads the paths of all groups. Paths of removed groups stay in the cache while there is
    /// room, because sockets of these groups may still exist.
    fn search(&mut self) {
        let Some(root) = root() else { return };
        let mut left = vec![root.clone()];
        let mut searched = 0;
        while let Some(directory) = left.pop() {
            searched += 1;
            if searched > SEARCHED_MAX {
                return;
            }
            let Ok(id) = fs::metadata(&directory).map(|found| found.ino()) else { continue };
            let path = directory.strip_prefix(&root).map(Path::to_string_lossy);
            if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&id) {
                self.known.clear();
            }
            self.known.insert(id, path.unwrap_or_default().into_owned());
            left.extend(children(&directory));
        }
    }
}

fn children(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path())
}

/// Returns the number of a group; `None` if the group does not exist.
pub(crate) fn id(path: &str) -> Option<CgroupId> {
    let found = fs::metadata(root()?.join(path)).ok().filter(fs::Metadata::is_dir)?;
    let level = u32::try_from(path.split('/').count()).ok()?;
    Some(CgroupId { level, id: found.ino() })
}

/// Returns where the hierarchy of version 2 is mounted. On hosts that also use version 1, this is
/// not `/sys/fs/cgroup`.
fn root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let path = fields.next()?;
        let kind = fields.next()?;
        (kind == "cgroup2").then(|| PathBuf::from(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_its_number_and_by_its_path() {
        let Some(root) = root() else {
            println!("skipped: cgroup2 is not mounted");
            return;
        };
        let mut cgroups = Cgroups::default();
        let number = fs::metadata(&root).unwrap().ino();
        assert_eq!(cgroups.path(number), Some(""));
        assert_eq!(cgroups.path(u64::MAX), None);
        for child in children(&root).take(3) {
            let name = child.file_name().unwrap().to_str().unwrap();
            let Some(CgroupId { level, id }) = id(name) else { continue };
            assert_eq!((level, cgroups.path(id)), (1, Some(name)));
        }
        assert_eq!(id("no-such-group.slice"), None);
    }
}
