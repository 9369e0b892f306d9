//! The directories in which a name that counts may come to stand for another file.
//!
//! Every name on the way of a path counts: those of directories, of links, and the last one. A
//! directory is watched before the name in it is looked at, so that no change in between is missed.
//!
//! Limits: [`DIRECTORIES_MAX`]; [`LINKS_MAX`] for one path.

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

/// Directories that are watched at most.
const DIRECTORIES_MAX: usize = 8192;
/// Links on the way of one path at most, as the kernel follows them.
const LINKS_MAX: usize = 40;
/// Bytes of events that are read at once.
const EVENTS_BYTES: usize = 4096;

/// The directories that are watched.
#[derive(Debug)]
pub(super) struct Watches {
    /// `None`: the kernel watches no more.
    pub(super) changes: Option<OwnedFd>,
    /// The names that count in each directory, by the number of its watch, which stays the same for
    /// another helper: programs may make any number of other files there.
    names: HashMap<i32, BTreeSet<OsString>>,
}

impl Watches {
    /// None yet.
    pub(super) fn new(changes: Option<OwnedFd>) -> Self {
        Self { changes, names: HashMap::new() }
    }

    /// Takes what the kernel reports; returns whether a name that counts has changed.
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
                // A helper that has ended watched it.
                let _ = inotify::remove_watch(changes, event.wd());
            }
            counts |= is_known || kind.contains(ReadFlags::QUEUE_OVERFLOW);
            if kind.contains(ReadFlags::IGNORED) {
                // The directory is gone.
                self.names.remove(&event.wd());
            }
        }
        counts
    }

    /// Begins to look at all paths: only the directories on their ways stay watched.
    pub(super) fn renew(&mut self) -> Renewal<'_> {
        let before = std::mem::take(&mut self.names);
        Renewal { watches: self, before, numbers: HashMap::new(), outcome: Outcome::default() }
    }
}

/// What became of the directories on the ways of all paths.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Whether there is one that is not watched.
    pub(super) is_blind: bool,
    /// Why one is not watched that should be.
    pub(super) failure: Option<String>,
}

/// One look at all paths.
#[derive(Debug)]
pub(super) struct Renewal<'a> {
    watches: &'a mut Watches,
    before: HashMap<i32, BTreeSet<OsString>>,
    /// What was watched in this look.
    numbers: HashMap<PathBuf, i32>,
    outcome: Outcome,
}

impl Renewal<'_> {
    /// Watches the way of a path.
    pub(super) fn add(&mut self, path: &Path) {
        follow(path, |directory, name| match self.watch(directory, name) {
            // One that is gone comes again through the directory that names it.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => {
                self.outcome.is_blind = true;
                // What only others may list only others may change.
                if errno != Errno::ACCESS && self.outcome.failure.is_none() {
                    let error = io::Error::from(errno);
                    let text = format!("{}: cannot be watched: {error}", directory.display());
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

    /// Gives up the directories that are on no way any more.
    pub(super) fn finish(self) -> Outcome {
        let Self { watches: Watches { changes, names }, before, outcome, .. } = self;
        for number in before.keys().filter(|number| !names.contains_key(number)) {
            if let Some(changes) = changes {
                // The kernel gives up those of removed directories itself.
                let _ = inotify::remove_watch(changes, *number);
            }
        }
        outcome
    }
}

/// Visits every name on the way to a file, each with its directory and before it is looked at.
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
    fn every_name_on_the_way_is_found() {
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
        // What does not exist may come.
        assert_eq!(found("none/none.pem"), all(&["none", "none/none.pem"]));
        symlink("loop", root.join("loop")).unwrap();
        assert_eq!(found("loop"), all(&["loop"]));
        fs::remove_dir_all(root).unwrap();
    }
}
