//! Hides the secret files of the policy from programs under `tacit run`, even if a file is replaced
//! later.
//!
//! ```text
//!   launcher ── FilesToHide + the program's mounts ──> helper  when the program has started
//!   agent    ── Hide, at each reload ────────────────> helper
//!   kernel   ── a directory has changed (inotify) ───> helper  hides the new file
//! ```
//!
//! When the program starts, the helper mounts an empty file over each secret file. When a user
//! replaces a secret file, the kernel removes the mount. The program can then read the new file
//! until the helper hides it, usually for less than a millisecond. The helper hides a whole
//! directory under two conditions: only the owner may read the directory, and all its files must be
//! hidden. The program can never read new files in a hidden directory.
//!
//! Limits: [`PATHS_MAX`] paths, and the limits of `watches.rs`.

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

/// Maximum number of paths from a launcher or an agent; further ones are refused.
const PATHS_MAX: usize = 1024;
/// The interval between attempts after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The files that a launcher lets its helper hide; the message carries the program's mounts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct FilesToHide {
    /// The paths in the policy.
    pub(super) paths: Vec<PathBuf>,
}

/// The files that the helper keeps hidden.
#[derive(Debug)]
pub(super) struct Covers {
    mounts: Mounts,
    /// Paths from the launcher, which do not change.
    of_launcher: BTreeSet<PathBuf>,
    /// Paths from the agent's last request.
    of_agent: BTreeSet<PathBuf>,
    watches: Watches,
    /// Why one of the files may be visible.
    failure: Option<String>,
    /// Whether the agent has received the report about it.
    is_reported: bool,
    /// When to hide and watch all files again, even without an event.
    retry_at: Option<Instant>,
}

/// The mount namespace of the program.
#[derive(Debug)]
enum Mounts {
    /// The launcher will send it through this socket.
    Awaited(UnixStream),
    /// There is none in which files can be hidden.
    None,
    /// This process has joined it.
    Joined,
    /// This process cannot join it, for this reason.
    Refused(String),
}

/// Creates the inotify instance. The launcher creates it for all helpers, because the number of
/// instances is limited per user, and another program could use up the limit before a new helper
/// starts.
///
/// # Errors
/// The user has reached the limit of inotify instances.
pub(super) fn changes() -> io::Result<OwnedFd> {
    Ok(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?)
}

impl Covers {
    /// No files yet: the launcher will send them. `changes` comes from [`changes`].
    pub(super) fn awaited(launcher: UnixStream, changes: Option<OwnedFd>) -> Self {
        Self {
            mounts: Mounts::Awaited(launcher),
            of_launcher: BTreeSet::new(),
            of_agent: BTreeSet::new(),
            watches: Watches::new(changes),
            failure: None,
            is_reported: false,
            retry_at: None,
        }
    }

    /// The descriptors to poll.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let launcher = match &self.mounts {
            Mounts::Awaited(launcher) => Some(launcher.as_fd()),
            Mounts::None | Mounts::Joined | Mounts::Refused(_) => None,
        };
        launcher.into_iter().chain(self.watches.changes.as_ref().map(AsFd::as_fd))
    }

    /// The time until the next attempt.
    pub(super) fn timeout(&self) -> Option<Timespec> {
        let wait = self.retry_at?.saturating_duration_since(Instant::now());
        Timespec::try_from(wait).ok()
    }

    /// Handles the events of [`Self::descriptors`].
    pub(super) fn serve(&mut self, events: &[PollFlags]) {
        if let Mounts::Awaited(launcher) = &self.mounts
            && events.first().is_some_and(|event| !event.is_empty())
        {
            let message = protocol::read(launcher).ok().flatten();
            self.receive_files(message);
        }
        let is_changed =
            events.iter().any(|event| !event.is_empty()) && self.watches.take_changes();
        if is_changed || self.retry_at.is_some_and(|at| at <= Instant::now()) {
            self.cover_all();
        }
    }

    /// Hides these files in place of those of the agent's last request.
    ///
    /// # Errors
    /// Why a file stays visible. None before the launcher's message, or if there is no mount
    /// namespace in which files can be hidden.
    pub(super) fn replace(&mut self, mut paths: Vec<PathBuf>) -> Result<(), String> {
        let beyond = paths.split_off(paths.len().min(PATHS_MAX));
        self.of_agent = paths.into_iter().collect();
        self.cover_all();
        // The answer reports it.
        self.is_reported = true;
        match (&self.mounts, &self.failure, beyond.first()) {
            (Mounts::Awaited(_) | Mounts::None, _, _) => Ok(()),
            (Mounts::Refused(reason), _, _) | (Mounts::Joined, Some(reason), _) => {
                Err(reason.clone())
            }
            (Mounts::Joined, None, Some(path)) => Err(format!(
                "cannot hide {path} and {others} other files: tacit hides at most {PATHS_MAX} \
                 files from a run",
                path = path.display(),
                others = beyond.len() - 1
            )),
            (Mounts::Joined, None, None) => Ok(()),
        }
    }

    /// Why a file may be visible, if that was not reported to an agent yet. A failure is reported
    /// once, until all files are hidden again.
    pub(super) fn take_failure(&mut self) -> Option<String> {
        let failure = self.failure.clone().filter(|_| !self.is_reported)?;
        self.is_reported = true;
        Some(failure)
    }

    fn receive_files(&mut self, message: Option<Frame<FilesToHide>>) {
        self.mounts = Mounts::None;
        let Some(Frame { message: FilesToHide { paths }, descriptors }) = message else { return };
        let Some(mounts) = descriptors.first() else { return };
        self.mounts = match spawn::join_mounts(mounts.as_fd()) {
            Ok(()) => Mounts::Joined,
            Err(error) => {
                Mounts::Refused(format!("cannot join the program's mount namespace: {error}"))
            }
        };
        self.of_launcher = paths.into_iter().take(PATHS_MAX).collect();
        self.cover_all();
    }

    /// Hides the files at all paths. Watching comes first, so that no change in between is missed.
    fn cover_all(&mut self) {
        if !matches!(self.mounts, Mounts::Joined) {
            return;
        }
        let mut failure = None;
        let mut renewal = self.watches.renew();
        for path in self.of_launcher.union(&self.of_agent) {
            renewal.add(path);
            // A missing file needs no hiding, and the program sees no file that the helper cannot.
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
        self.is_reported &= self.failure.is_some();
        let is_done = self.failure.is_none() && !watched.is_blind;
        self.retry_at = (!is_done).then(|| Instant::now() + RETRY_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_request_replaces_its_previous_one() {
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
    fn files_that_stay_visible_are_reported_by_name() {
        let (_launcher, of_helper) = UnixStream::pair().unwrap();
        let mut covers = Covers::awaited(of_helper, None);
        let named = |count: usize| (0..count).map(|number| format!("/none/{number}").into());
        assert_eq!(covers.replace(named(PATHS_MAX + 2).collect()), Ok(()), "no message yet");
        covers.mounts = Mounts::Joined;
        assert_eq!(covers.replace(named(PATHS_MAX).collect()), Ok(()));
        let refused = covers.replace(named(PATHS_MAX + 2).collect()).unwrap_err();
        assert_eq!(
            refused,
            "cannot hide /none/1024 and 1 other files: tacit hides at most 1024 files from a run"
        );
        assert_eq!(covers.of_agent.len(), PATHS_MAX);
        covers.mounts = Mounts::Refused("why".into());
        assert_eq!(covers.replace(Vec::new()), Err("why".into()));
        covers.mounts = Mounts::None;
        assert_eq!(covers.replace(named(PATHS_MAX + 2).collect()), Ok(()), "it cannot be done");
    }

    #[test]
    fn a_failure_is_reported_once_and_again_after_everything_was_hidden() {
        let (_launcher, of_helper) = UnixStream::pair().unwrap();
        let mut covers = Covers::awaited(of_helper, None);
        covers.mounts = Mounts::Joined;
        covers.failure = Some("why".into());
        assert_eq!(covers.take_failure().as_deref(), Some("why"));
        assert_eq!(covers.take_failure(), None);
        covers.cover_all();
        assert_eq!(covers.take_failure(), None, "there is none");
        covers.failure = Some("why".into());
        assert_eq!(covers.take_failure().as_deref(), Some("why"));
        // The request of the agent has been answered.
        covers.failure = None;
        assert_eq!(covers.replace(Vec::new()), Ok(()));
        assert_eq!(covers.take_failure(), None);
    }
}
