//! Files that stay hidden from the program although others take their place.
//!
//! ```text
//!   launcher ── ToCover + the program's mounts ──> helper     once the program runs
//!   agent    ── Hide, at each reload ────────────> helper
//!   kernel   ── a directory has changed ─────────> helper     covers what stands there now
//! ```
//!
//! At its start the program's hidden files have something empty mounted over them. That mount goes
//! with the file: a new one under the same name, or behind a link that is turned, is in sight until
//! the helper has covered it, which takes well below a millisecond on an idle machine. A directory
//! that is hidden whole has no such moment.
//!
//! Limits: [`PATHS_MAX`]; [`LINKS_MAX`] for one path.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

use rustix::event::PollFlags;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use serde::{Deserialize, Serialize};
use tacit_sys::inside;

use crate::run::protocol;

/// Paths of one run at most; further ones are not covered.
pub(super) const PATHS_MAX: usize = 1024;
/// Links on the way of one path at most, as the kernel follows them.
const LINKS_MAX: usize = 40;
/// Bytes of events that are read at once.
const EVENTS_BYTES: usize = 4096;

/// What a launcher has its helper keep hidden; the program's mounts ride along.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct ToCover {
    /// Files and directories, as the policy names them.
    pub(super) paths: Vec<PathBuf>,
}

/// What is kept hidden.
#[derive(Debug)]
pub(super) struct Covers {
    /// Where the launcher's word comes from; `None`: it has come, or never will.
    launcher: Option<UnixStream>,
    has_joined: bool,
    paths: BTreeSet<PathBuf>,
    /// `None`: the kernel watches no more; what changes is covered when the agent asks again.
    changes: Option<OwnedFd>,
    /// The names that count in each directory, by the number of its watch: programs may make any
    /// number of other files there.
    watched: HashMap<i32, BTreeSet<OsString>>,
}

impl Covers {
    /// Nothing yet; the launcher will say what.
    pub(super) fn awaited(launcher: UnixStream) -> Self {
        let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        Self {
            launcher: Some(launcher),
            has_joined: false,
            paths: BTreeSet::new(),
            changes,
            watched: HashMap::new(),
        }
    }

    /// What to wait for.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let launcher = self.launcher.as_ref().map(AsFd::as_fd);
        launcher.into_iter().chain(self.changes.as_ref().map(AsFd::as_fd))
    }

    /// Does what is to be done; `events` are those of [`Self::descriptors`].
    pub(super) fn serve(&mut self, events: &[PollFlags]) {
        if events.iter().all(PollFlags::is_empty) {
            return;
        }
        let says = self.launcher.is_some() && events.first().is_some_and(|event| !event.is_empty());
        if says && let Some(launcher) = self.launcher.take() {
            self.take_word(&launcher);
        }
        if self.take_changes() {
            self.cover_all();
        }
    }

    /// Keeps these files hidden too. A directory is hidden whole only from the start on: programs
    /// may be in it by now, and would see there what the helper no longer does.
    pub(super) fn add_files(&mut self, mut paths: Vec<PathBuf>) {
        paths.retain(|path| !path.is_dir());
        self.add(paths);
    }

    fn add(&mut self, paths: Vec<PathBuf>) {
        let room = PATHS_MAX.saturating_sub(self.paths.len());
        self.paths.extend(paths.into_iter().take(room));
        self.cover_all();
    }

    fn take_word(&mut self, launcher: &UnixStream) {
        let Ok(Some(frame)) = protocol::read::<ToCover>(launcher) else { return };
        let Some(mounts) = frame.descriptors.first() else { return };
        self.has_joined = inside::join_mounts(mounts.as_fd()).is_ok();
        self.add(frame.message.paths);
    }

    /// Takes what the kernel says; returns whether a name that counts has changed.
    fn take_changes(&mut self) -> bool {
        let Some(changes) = &self.changes else { return false };
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut reader = inotify::Reader::new(changes, &mut buffer);
        let mut counts = false;
        while let Ok(event) = reader.next() {
            let names = self.watched.get(&event.wd());
            let name = event.file_name().map(CStr::to_bytes).map(OsStr::from_bytes);
            let is_known = names.zip(name).is_some_and(|(names, name)| names.contains(name));
            let kind = event.events();
            counts |= is_known || kind.contains(ReadFlags::QUEUE_OVERFLOW);
            if kind.contains(ReadFlags::IGNORED) {
                // The directory is gone.
                self.watched.remove(&event.wd());
            }
        }
        counts
    }

    /// Covers what stands at the paths now. It watches first: what changes in between is seen.
    fn cover_all(&mut self) {
        if !self.has_joined {
            return;
        }
        for path in std::mem::take(&mut self.paths) {
            for (directory, names) in names_on_the_way(&path) {
                self.watch(&directory, names);
            }
            if let Ok(real) = path.canonicalize() {
                // One that cannot be covered is tried again with the next change.
                let _ = inside::cover(&real);
            }
            self.paths.insert(path);
        }
    }

    fn watch(&mut self, directory: &Path, names: BTreeSet<OsString>) {
        let Some(changes) = &self.changes else { return };
        let appears = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        // One that is gone comes again through the directory that names it.
        if let Ok(watch) = inotify::add_watch(changes, directory, appears) {
            self.watched.entry(watch).or_default().extend(names);
        }
    }
}

/// The names on the way to a file that may come to stand for another one, by their directories:
/// those of links, and the last one.
fn names_on_the_way(path: &Path) -> BTreeMap<PathBuf, BTreeSet<OsString>> {
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    let mut ahead: VecDeque<OsString> = names_of(path);
    let mut here = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = ahead.pop_front() {
        if name == ".." {
            here.pop();
            continue;
        }
        let at = here.join(&name);
        match fs::read_link(&at) {
            Ok(link) if links < LINKS_MAX => {
                links += 1;
                found.entry(here.clone()).or_default().insert(name);
                if link.is_absolute() {
                    here = PathBuf::from("/");
                }
                for name in names_of(&link).into_iter().rev() {
                    ahead.push_front(name);
                }
            }
            _ if ahead.is_empty() => {
                found.entry(here.clone()).or_default().insert(name);
            }
            _ => here = at,
        }
    }
    found
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
            let found = names_on_the_way(&root.join(name)).into_iter();
            let named = found.flat_map(|(at, names)| names.into_iter().map(move |n| at.join(n)));
            named.collect::<BTreeSet<_>>()
        };
        let all = |names: &[&str]| names.iter().map(|name| root.join(name)).collect();
        let of_mount = all(&["mount/tls.key", "mount/..data", "mount/..1/tls.key"]);
        assert_eq!(found("mount/tls.key"), of_mount);
        assert_eq!(found("mount/key.pem"), all(&["mount/key.pem", "archive/key1.pem"]));
        // What does not exist may come.
        assert_eq!(found("mount/none.pem"), all(&["mount/none.pem"]));
        symlink("loop", root.join("loop")).unwrap();
        assert_eq!(found("loop"), all(&["loop"]));
        fs::remove_dir_all(root).unwrap();
    }
}
