//! Converts the IDs of control groups (cgroup v2) to paths, and paths to IDs. The kernel compares
//! the IDs, but the rules of a policy contain the paths.
//!
//! The kernel does not reuse an ID, so cached entries stay correct. All searches are limited,
//! because a program could create many groups to make searches slow. A search reads groups near the
//! root first. After a failed search, this module does not search for the same ID again within
//! [`MISSED_TIME`].
//!
//! Limits: [`KNOWN_MAX`] cached paths, and [`MISSED_MAX`] IDs without a group. Searches for IDs
//! read at most [`READ_MAX`] groups per second. A search for systemd units reads at most
//! [`SLICES_MAX`] systemd slices.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tacit_core::policy::{SLICE, unescaped};
use tacit_sys::netlink::nft::host::CgroupId;

/// The maximum number of paths that are cached. When the cache is full, it is emptied for the next
/// search.
const KNOWN_MAX: usize = 4096;
/// The maximum number of groups that searches read in a second.
pub(crate) const READ_MAX: u32 = 16_384;
/// How long a number without a group is not searched for again.
const MISSED_TIME: Duration = Duration::from_secs(2);
/// The maximum number of numbers without a group that are cached. When the cache is full, it is
/// emptied.
const MISSED_MAX: usize = 4096;
/// The maximum number of slices that a search for units reads.
const SLICES_MAX: usize = 4096;

/// The control groups of this host.
#[derive(Debug)]
pub(crate) struct Cgroups {
    /// Where they are mounted; `None`: at the usual place.
    root: Option<PathBuf>,
    /// The paths of groups that were looked up.
    known: HashMap<u64, String>,
    /// Numbers without a group, and the end of their time.
    missed: HashMap<u64, Instant>,
    /// The number of groups that searches may read now.
    readable: u32,
    /// When `readable` was computed.
    computed: Instant,
}

impl Cgroups {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            root: None,
            known: HashMap::new(),
            missed: HashMap::new(),
            readable: READ_MAX,
            computed: now,
        }
    }

    /// Returns the path of a group below the root, which is empty for the root itself; `None` if
    /// the group does not exist, or if searches have read too many groups in this second.
    pub(crate) fn path(&mut self, id: u64, now: Instant) -> Option<&str> {
        let is_missed = || self.missed.get(&id).is_some_and(|end| *end > now);
        if !self.known.contains_key(&id) && !is_missed() {
            self.search(id, now);
        }
        self.known.get(&id).map(String::as_str)
    }

    /// Reads the paths of all groups, those near the root first. Paths of removed groups stay in
    /// the cache while there is room, because sockets of these groups may still exist.
    fn search(&mut self, wanted: u64, now: Instant) {
        let Some(root) = self.root.clone().or_else(root) else { return };
        self.allow_reads(now);
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let mut left = VecDeque::from([root.clone()]);
        while let Some(directory) = left.pop_front() {
            let Some(readable) = self.readable.checked_sub(1) else { return };
            self.readable = readable;
            let Ok(id) = fs::metadata(&directory).map(|found| found.ino()) else { continue };
            if self.known.len() < KNOWN_MAX || id == wanted {
                let path = directory.strip_prefix(&root).map(Path::to_string_lossy);
                self.known.insert(id, path.unwrap_or_default().into_owned());
            }
            left.extend(children(&directory));
        }
        if !self.known.contains_key(&wanted) {
            if self.missed.len() >= MISSED_MAX {
                self.missed.clear();
            }
            self.missed.insert(wanted, now + MISSED_TIME);
        }
    }

    fn allow_reads(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.computed).min(Duration::from_secs(1));
        let more = u128::from(READ_MAX) * passed.as_millis() / 1000;
        self.readable = u32::try_from(more).unwrap_or(READ_MAX).saturating_add(self.readable);
        self.readable = self.readable.min(READ_MAX);
        if more > 0 {
            self.computed = now;
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

/// Returns the groups of units. Reads only slices, because systemd creates all units of the host
/// below slices.
pub(crate) fn units(names: &[String]) -> Vec<CgroupId> {
    root().map_or_else(Vec::new, |root| units_below(root, names))
}

fn units_below(root: PathBuf, names: &[String]) -> Vec<CgroupId> {
    let mut found = Vec::new();
    let mut slices = VecDeque::from([(root, 1)]);
    let mut read = 0;
    while let Some((slice, level)) = slices.pop_front() {
        read += 1;
        if read > SLICES_MAX {
            break;
        }
        for group in children(&slice) {
            let name = group.file_name().unwrap_or_default().to_string_lossy();
            if name.ends_with(SLICE) {
                slices.push_back((group, level + 1));
            } else if names.iter().any(|unit| *unit == unescaped(&name)) {
                found.extend(fs::metadata(&group).map(|group| CgroupId { level, id: group.ino() }));
            }
        }
    }
    found
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
        let now = Instant::now();
        let mut cgroups = Cgroups::new(now);
        let number = fs::metadata(&root).unwrap().ino();
        assert_eq!(cgroups.path(number, now), Some(""));
        assert_eq!(cgroups.path(u64::MAX, now), None);
        for child in children(&root).take(3) {
            let name = child.file_name().unwrap().to_str().unwrap();
            let Some(CgroupId { level, id }) = id(name) else { continue };
            assert_eq!((level, cgroups.path(id, now)), (1, Some(name)));
        }
        assert_eq!(id("no-such-group.slice"), None);
    }

    /// A directory for a test, in place of the groups of the host; removed at the end.
    struct Groups(PathBuf);

    impl Groups {
        fn new(test: &str, names: &[&str]) -> (Self, Cgroups) {
            let root = std::env::temp_dir().join(format!("tacit-{test}-{}", std::process::id()));
            names.iter().for_each(|name| fs::create_dir_all(root.join(name)).unwrap());
            let cgroups = Cgroups { root: Some(root.clone()), ..Cgroups::new(Instant::now()) };
            (Self(root), cgroups)
        }

        fn number(&self, name: &str) -> u64 {
            fs::metadata(self.0.join(name)).unwrap().ino()
        }
    }

    impl Drop for Groups {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn units_are_found_in_slices_by_their_unescaped_names_with_their_levels() {
        let deep = "a.slice/a-b.slice/a-b-c.slice/deep.service";
        let others = ["a.slice/other.service", "a.service/inner/deep.service"];
        let names = ["a.slice/_io.service", deep, others[0], others[1]];
        let (root, _) = Groups::new("units", &names);
        let wanted = ["io.service", "deep.service"].map(str::to_owned);
        let found = units_below(root.0.clone(), &wanted);
        let group = |level, name| CgroupId { level, id: root.number(name) };
        assert_eq!(found, [group(2, "a.slice/_io.service"), group(4, deep)]);
    }

    #[test]
    fn a_number_without_a_group_is_not_searched_for_at_once_again() {
        let (root, mut cgroups) = Groups::new("missed", &["a/b"]);
        let now = Instant::now();
        let (elsewhere, _) = Groups::new("elsewhere", &[""]);
        let id = root.number("a/b");
        fs::rename(root.0.join("a/b"), elsewhere.0.join("b")).unwrap();
        assert_eq!(cgroups.path(id, now), None);
        fs::rename(elsewhere.0.join("b"), root.0.join("a/b")).unwrap();
        assert_eq!(cgroups.path(id, now + MISSED_TIME / 2), None);
        assert_eq!(cgroups.path(id, now + MISSED_TIME), Some("a/b"));
    }

    #[test]
    fn numbers_without_a_group_cost_a_limited_number_of_reads() {
        let (root, mut cgroups) = Groups::new("reads", &["a", "b"]);
        let now = Instant::now();
        assert_eq!(cgroups.path(root.number("a"), now), Some("a"));
        // No number of a file system is as large.
        for missing in 0..u64::from(READ_MAX) {
            assert_eq!(cgroups.path(u64::MAX - missing, now), None);
        }
        assert_eq!(cgroups.readable, 0);
        assert!(cgroups.missed.len() <= MISSED_MAX);
        fs::create_dir(root.0.join("new")).unwrap();
        let new = root.number("new");
        assert_eq!(cgroups.path(new, now), None);
        assert_eq!(cgroups.path(root.number("b"), now), Some("b"), "known groups need no read");
        assert_eq!(cgroups.path(new, now + Duration::from_millis(10)), Some("new"));
    }

    #[test]
    fn groups_near_the_root_are_found_beside_many_others() {
        let many: Vec<_> = (0..200).map(|number| format!("many/{number}")).collect();
        let names: Vec<_> = many.iter().map(String::as_str).chain(["z/service"]).collect();
        let (root, mut cgroups) = Groups::new("many", &names);
        cgroups.readable = 100;
        assert_eq!(cgroups.path(root.number("z"), cgroups.computed), Some("z"));
    }
}
