//! Files that stay hidden from the program although others take their place.
//!
//! ```text
//!   launcher ── ToCover + the program's mounts ──> helper     once the program runs
//!   agent    ── Hide, at each reload ────────────> helper
//!   kernel   ── a directory has changed ─────────> helper     covers what stands there now
//! ```
//!
//! At its start the program's hidden files have something empty mounted over them. That mount goes
//! with the file: a new one under the same name, behind a link that is turned, or in a directory
//! that takes the place of another, is in sight until the helper has covered it, which takes well
//! below a millisecond on an idle machine. A directory that is hidden whole has no such moment, and
//! stays hidden as long as it stays. The helper covers files only: programs may be in a directory
//! by now, and would see there what the helper no longer does.
//!
//! What could not be covered or watched is tried again after [`AGAIN_AFTER`].
//!
//! Limits: [`PATHS_MAX`]; those of `watches.rs`.

mod watches;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFlags, Timespec};
use rustix::fs::inotify::{self, CreateFlags};
use serde::{Deserialize, Serialize};
use tacit_sys::spawn;

use crate::run::protocol::{self, Frame};
use watches::Watches;

/// Paths that a launcher or an agent names at most; further ones are refused.
const PATHS_MAX: usize = 1024;
/// From one attempt to cover and watch everything to the next.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What a launcher has its helper keep hidden; the program's mounts ride along.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct ToCover {
    /// Files, as the policy names them.
    pub(super) paths: Vec<PathBuf>,
}

/// What is kept hidden.
#[derive(Debug)]
pub(super) struct Covers {
    mounts: Mounts,
    /// What the launcher named, to the end.
    of_launcher: BTreeSet<PathBuf>,
    /// What an agent named last.
    of_agent: BTreeSet<PathBuf>,
    watches: Watches,
    /// Why one of the files may be in sight.
    failure: Option<String>,
    /// When everything is looked at again whatever the kernel reports.
    again_at: Option<Instant>,
}

/// The mounts of the program.
#[derive(Debug)]
enum Mounts {
    /// The launcher's word comes from here.
    Awaited(UnixStream),
    /// There are none in which anything can be covered.
    None,
    /// They are this process's too.
    Joined,
    /// They cannot be joined, and why.
    Refused(String),
}

/// Where the kernel reports changes of directories. The launcher makes it for all helpers: programs
/// of the same user could take the place of one that ends with its helper.
///
/// # Errors
/// The user has as many as there may be.
pub(super) fn changes() -> io::Result<OwnedFd> {
    Ok(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?)
}

impl Covers {
    /// Nothing yet; the launcher will say what. `changes` is of [`changes`].
    pub(super) fn awaited(launcher: UnixStream, changes: Option<OwnedFd>) -> Self {
        Self {
            mounts: Mounts::Awaited(launcher),
            of_launcher: BTreeSet::new(),
            of_agent: BTreeSet::new(),
            watches: Watches::new(changes),
            failure: None,
            again_at: None,
        }
    }

    /// What to wait for.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let launcher = match &self.mounts {
            Mounts::Awaited(launcher) => Some(launcher.as_fd()),
            Mounts::None | Mounts::Joined | Mounts::Refused(_) => None,
        };
        launcher.into_iter().chain(self.watches.changes.as_ref().map(AsFd::as_fd))
    }

    /// How long to wait at most.
    pub(super) fn timeout(&self) -> Option<Timespec> {
        let wait = self.again_at?.saturating_duration_since(Instant::now());
        Timespec::try_from(wait).ok()
    }

    /// Does what is to be done; `events` are those of [`Self::descriptors`].
    pub(super) fn serve(&mut self, events: &[PollFlags]) {
        if let Mounts::Awaited(launcher) = &self.mounts
            && events.first().is_some_and(|event| !event.is_empty())
        {
            let word = protocol::read(launcher).ok().flatten();
            self.take_word(word);
        }
        let is_changed =
            events.iter().any(|event| !event.is_empty()) && self.watches.take_changes();
        if is_changed || self.again_at.is_some_and(|at| at <= Instant::now()) {
            self.cover_all();
        }
    }

    /// Keeps these files hidden, in place of those that an agent named before.
    ///
    /// # Errors
    /// In words: a file that stays in sight, and why. Before the launcher's word, or where nothing
    /// can be covered, there is none.
    pub(super) fn replace(&mut self, mut paths: Vec<PathBuf>) -> Result<(), String> {
        let beyond = paths.split_off(paths.len().min(PATHS_MAX));
        self.of_agent = paths.into_iter().collect();
        self.cover_all();
        match (&self.mounts, &self.failure, beyond.first()) {
            (Mounts::Awaited(_) | Mounts::None, _, _) => Ok(()),
            (Mounts::Refused(reason), _, _) | (Mounts::Joined, Some(reason), _) => {
                Err(reason.clone())
            }
            (Mounts::Joined, None, Some(path)) => Err(format!(
                "{} and {} others: a run hides {PATHS_MAX} files at most",
                path.display(),
                beyond.len() - 1
            )),
            (Mounts::Joined, None, None) => Ok(()),
        }
    }

    fn take_word(&mut self, word: Option<Frame<ToCover>>) {
        self.mounts = Mounts::None;
        let Some(Frame { message: ToCover { paths }, descriptors }) = word else { return };
        let Some(mounts) = descriptors.first() else { return };
        self.mounts = match spawn::join_mounts(mounts.as_fd()) {
            Ok(()) => Mounts::Joined,
            Err(error) => Mounts::Refused(format!("the program's mounts: {error}")),
        };
        self.of_launcher = paths.into_iter().take(PATHS_MAX).collect();
        self.cover_all();
    }

    /// Covers what stands at the paths now. It watches first: what changes in between is seen.
    fn cover_all(&mut self) {
        if !matches!(self.mounts, Mounts::Joined) {
            return;
        }
        let mut failure = None;
        let mut renewal = self.watches.renew();
        for path in self.of_launcher.union(&self.of_agent) {
            renewal.add(path);
            // What is not there needs no cover, and what the helper may not look at no program may.
            let Ok(real) = path.canonicalize() else { continue };
            match spawn::cover(&real) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    failure.get_or_insert_with(|| format!("{}: {error}", path.display()));
                }
                _ => {}
            }
        }
        let watched = renewal.finish();
        self.failure = failure.or(watched.failure);
        let is_done = self.failure.is_none() && !watched.is_blind;
        self.again_at = (!is_done).then(|| Instant::now() + AGAIN_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_names_replaces_what_it_named_before() {
        let (_launcher, of_helper) = UnixStream::pair().unwrap();
        let mut covers = Covers::awaited(of_helper, None);
        let named = |count: usize| (0..count).map(|number| format!("/none/{number}").into());
        covers.of_launcher = named(1).collect();
        for _ in 0..3 {
            assert_eq!(covers.replace(named(PATHS_MAX).collect()), Ok(()));
        }
        assert_eq!(covers.replace(vec!["/none/later".into()]), Ok(()));
        assert_eq!(covers.of_agent, ["/none/later".into()].into());
        assert_eq!(covers.of_launcher, named(1).collect());
    }

    #[test]
    fn files_that_stay_in_sight_are_refused_by_name() {
        let (_launcher, of_helper) = UnixStream::pair().unwrap();
        let mut covers = Covers::awaited(of_helper, None);
        let named = |count: usize| (0..count).map(|number| format!("/none/{number}").into());
        assert_eq!(covers.replace(named(PATHS_MAX + 2).collect()), Ok(()), "no word yet");
        covers.mounts = Mounts::Joined;
        assert_eq!(covers.replace(named(PATHS_MAX).collect()), Ok(()));
        let refused = covers.replace(named(PATHS_MAX + 2).collect()).unwrap_err();
        assert_eq!(refused, "/none/1024 and 1 others: a run hides 1024 files at most");
        assert_eq!(covers.of_agent.len(), PATHS_MAX);
        covers.mounts = Mounts::Refused("why".into());
        assert_eq!(covers.replace(Vec::new()), Err("why".into()));
        covers.mounts = Mounts::None;
        assert_eq!(covers.replace(named(PATHS_MAX + 2).collect()), Ok(()), "it cannot be done");
    }
}
