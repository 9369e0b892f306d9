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
use tacit_sys::inside;

use crate::run::protocol;
use watches::Watches;

/// Paths of one run at most; further ones are not covered.
pub(super) const PATHS_MAX: usize = 1024;
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
    /// Where the launcher's word comes from; `None`: it has come, or never will.
    launcher: Option<UnixStream>,
    has_joined: bool,
    paths: BTreeSet<PathBuf>,
    watches: Watches,
    /// When everything is looked at again whatever the kernel reports.
    again_at: Option<Instant>,
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
            launcher: Some(launcher),
            has_joined: false,
            paths: BTreeSet::new(),
            watches: Watches::new(changes),
            again_at: None,
        }
    }

    /// What to wait for.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let launcher = self.launcher.as_ref().map(AsFd::as_fd);
        launcher.into_iter().chain(self.watches.changes.as_ref().map(AsFd::as_fd))
    }

    /// How long to wait at most.
    pub(super) fn timeout(&self) -> Option<Timespec> {
        let wait = self.again_at?.saturating_duration_since(Instant::now());
        Timespec::try_from(wait).ok()
    }

    /// Does what is to be done; `events` are those of [`Self::descriptors`].
    pub(super) fn serve(&mut self, events: &[PollFlags]) {
        let says = self.launcher.is_some() && events.first().is_some_and(|event| !event.is_empty());
        if says && let Some(launcher) = self.launcher.take() {
            self.take_word(&launcher);
        }
        let is_changed =
            events.iter().any(|event| !event.is_empty()) && self.watches.take_changes();
        if is_changed || self.again_at.is_some_and(|at| at <= Instant::now()) {
            self.cover_all();
        }
    }

    /// Keeps these files hidden too.
    pub(super) fn add(&mut self, paths: Vec<PathBuf>) {
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

    /// Covers what stands at the paths now. It watches first: what changes in between is seen.
    fn cover_all(&mut self) {
        if !self.has_joined {
            return;
        }
        let mut failure = None;
        let mut renewal = self.watches.renew();
        for path in &self.paths {
            renewal.add(path);
            // What is not there needs no cover, and what the helper may not look at no program may.
            let Ok(real) = path.canonicalize() else { continue };
            match inside::cover(&real) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    failure.get_or_insert_with(|| format!("{}: {error}", path.display()));
                }
                _ => {}
            }
        }
        let watched = renewal.finish();
        let is_done = failure.is_none() && !watched.is_blind;
        self.again_at = (!is_done).then(|| Instant::now() + AGAIN_AFTER);
    }
}
