//! Watches the directories on the paths of hidden files, because tacit must also hide files that
//! appear at these paths later.
//!
//! The helper begins to watch a directory, and then looks up the next name of the path in this
//! directory. So the helper misses no change of this name. The helper ignores changes of other
//! names in the directory.
//!
//! Limits: [`DIRECTORIES_MAX`] watched directories, and [`LINKS_MAX`] symbolic links on one path.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// Maximum number of watched directories.
const DIRECTORIES_MAX: usize = 8192;
/// Maximum number of symbolic links on one path, as in the kernel.
const LINKS_MAX: usize = 40;
/// Size of the buffer for events.
const EVENTS_BYTES: usize = 4096;

/// The watched directories.
#[derive(Debug)]
pub(super) struct Watches {
    /// The inotify instance; `None` if the kernel has none left.
    pub(super) changes: Option<OwnedFd>,
    /// The relevant names of each directory, by watch descriptor, which is the same in each helper.
    /// Programs may create any number of other files there.
    names: HashMap<i32, BTreeSet<OsString>>,
}

impl Watches {
    /// Watches no directory yet.
    pub(super) fn new(changes: Option<OwnedFd>) -> Self {
        Self { changes, names: HashMap::new() }
    }

    /// Reads the events; returns whether a relevant name has changed.
    pub(super) fn take_changes(&mut self) -> bool {
        let Some(changes) = &self.changes else { return false };
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut reader = inotify::Reader::new(changes, &mut buffer);
        let mut counts = false;
        while let Ok(event) = reader.next() {
            let names = self.names.get(&event.wd());
            let name = event.file_name().map(CStr::to_bytes).map(OsStr::from_bytes);
            let is_known = names.zip(name).is_some_and(|(names, name)| names.contains(name));
            let kind = event.events();
            if names.is_none() && event.wd() > 0 {
                // An earlier helper added this watch.
                let _ = inotify::remove_watch(changes, event.wd());
            }
            counts |= is_known || kind.contains(ReadFlags::QUEUE_OVERFLOW);
            if kind.contains(ReadFlags::IGNORED) {
                // The directory was removed.
                self.names.remove(&event.wd());
            }
        }
        counts
    }

    /// Starts to add all paths again. Directories that are on no path are dropped at the end.
    pub(super) fn renew(&mut self) -> Renewal<'_> {
        let before = std::mem::take(&mut self.names);
        Renewal { watches: self, before, numbers: HashMap::new(), outcome: Outcome::default() }
    }
}

/// The result of adding all paths.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Whether some directory is not watched.
    pub(super) is_blind: bool,
    /// Why a directory that should be watched is not.
    pub(super) failure: Option<String>,
}

/// A pass that adds all paths again.
#[derive(Debug)]
pub(super) struct Renewal<'a> {
    watches: &'a mut Watches,
    before: HashMap<i32, BTreeSet<OsString>>,
    /// The directories that this pass watches.
    numbers: HashMap<PathBuf, i32>,
    outcome: Outcome,
}

impl Renewal<'_> {
    /// Watches the directories on a path.
    pub(super) fn add(&mut self, path: &Path) {
        follow(path, |directory, name| match self.watch(directory, name) {
            // If the directory appears again, its parent reports that.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => {
                self.outcome.is_blind = true;
                // A directory that only other users may read is one that only they may change.
                if errno != Errno::ACCESS && self.outcome.failure.is_none() {
                    let error = io::Error::from(errno);
                    let text = format!("cannot watch {} for changes: {error}", directory.display());
                    self.outcome.failure = Some(text);
                }
            }
        });
    }

    fn watch(&mut self, directory: &Path, name: &OsStr) -> Result<(), Errno> {
        let Some(changes) = &self.watches.changes else {
            self.outcome.is_blind = true;
            return Ok(());
        };
        let number = match self.numbers.get(directory) {
            Some(number) => *number,
            None if self.numbers.len() >= DIRECTORIES_MAX => return Err(Errno::NOSPC),
            None => {
                let appears = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
                let number = inotify::add_watch(changes, directory, appears)?;
                self.numbers.insert(directory.to_owned(), number);
                number
            }
        };
        self.watches.names.entry(number).or_default().insert(name.to_owned());
        Ok(())
    }

    /// Stops watching the directories that are on no path.
    pub(super) fn finish(self) -> Outcome {
        let Self { watches: Watches { changes, names }, before, outcome, .. } = self;
        for number in before.keys().filter(|number| !names.contains_key(number)) {
            if let Some(changes) = changes {
                // The kernel removes the watches of removed directories.
                let _ = inotify::remove_watch(changes, *number);
            }
        }
        outcome
    }
}

/// Calls `visit` with each name on the path of a file and its directory, before looking it up.
fn follow(path: &Path, mut visit: impl FnMut(&Path, &OsStr)) {
    let mut ahead: VecDeque<OsString> = names_of(path);
    let mut here = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = ahead.pop_front() {
        if name == ".." {
            here.pop();
            continue;
        }
        visit(&here, &name);
        let at = here.join(&name);
        match fs::read_link(&at) {
            Ok(link) if links < LINKS_MAX => {
                links += 1;
                if link.is_absolute() {
                    here = PathBuf::from("/");
                }
                for name in names_of(&link).into_iter().rev() {
                    ahead.push_front(name);
                }
            }
            _ => here = at,
        }
    }
}

fn names_of(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_name_on_a_path_is_visited() {
        let root = std::env::temp_dir().join(format!("tacit-covers-{}", std::process::id()));
        let root_of = |name: &str| root.join(name);
        fs::create_dir_all(root_of("mount/..1")).unwrap();
        fs::create_dir_all(root_of("archive")).unwrap();
        fs::write(root_of("mount/..1/tls.key"), "").unwrap();
        fs::write(root_of("archive/key1.pem"), "").unwrap();
        symlink("..1", root_of("mount/..data")).unwrap();
        symlink("..data/tls.key", root_of("mount/tls.key")).unwrap();
        symlink("../archive/key1.pem", root_of("mount/key.pem")).unwrap();
        let root = root.canonicalize().unwrap();
        let found = |name: &str| {
            let mut found = BTreeSet::new();
            follow(&root.join(name), |at, name| found.extend([at.join(name)]));
            found
        };
        let above: Vec<_> = root.ancestors().filter(|at| at.parent().is_some()).collect();
        let all = |names: &[&str]| -> BTreeSet<PathBuf> {
            let below = names.iter().map(|name| root.join(name));
            above.iter().map(|at| at.to_path_buf()).chain(below).collect()
        };
        let of_mount =
            all(&["mount", "mount/tls.key", "mount/..data", "mount/..1", "mount/..1/tls.key"]);
        assert_eq!(found("mount/tls.key"), of_mount);
        let of_archive = all(&["mount", "mount/key.pem", "archive", "archive/key1.pem"]);
        assert_eq!(found("mount/key.pem"), of_archive);
        // A path that does not exist may be created.
        assert_eq!(found("none/none.pem"), all(&["none", "none/none.pem"]));
        symlink("loop", root.join("loop")).unwrap();
        assert_eq!(found("loop"), all(&["loop"]));
        fs::remove_dir_all(root).unwrap();
    }
}
