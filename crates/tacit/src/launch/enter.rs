//! Starts the helper process of `tacit run`, and another one if the helper dies.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tacit_core::message_id::MessageId;
use tacit_sys::namespace::{JoinedNamespaces, NamespaceSockets};
use tacit_sys::process::{self, StandardError};

use super::covers::{self, Covers, FilesToHide};
use super::error::RunError;
use super::helper::{self, Ready};
use crate::exit::{complain_of, warn};
use crate::run::protocol;

/// Minimum time between two starts, so that a helper that fails at once does not use up a CPU.
pub(super) const START_INTERVAL: Duration = Duration::from_millis(100);

/// The namespaces of a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelperKind {
    /// The first helper made them.
    OfRun,
    /// They existed before.
    OfExisting,
}

/// The helper process, and the namespaces that it made or joined.
pub(super) struct Helper {
    pub(super) kind: HelperKind,
    /// The process id; 0 after the helper has ended.
    pub(super) pid: u32,
    pub(super) started: Instant,
    pub(super) network: OwnedFd,
    /// The user namespace; `None` for root, which uses the launcher's.
    pub(super) user: Option<OwnedFd>,
    /// Sends the helper the files to hide; `None` after they were sent.
    pub(super) covers: Option<UnixStream>,
    /// The files to hide, for helpers that are started later.
    pub(super) hidden: Hidden,
    /// The inotify instance of all helpers. Without it they check the files once a second.
    pub(super) changes: io::Result<OwnedFd>,
}

/// The files that are hidden from the program.
#[derive(Default)]
pub(super) struct Hidden {
    /// The program's mount namespace; `None` if it has none of its own, so that nothing is hidden.
    mounts: Option<OwnedFd>,
    paths: Vec<PathBuf>,
}

impl Hidden {
    /// Sends the files to a helper.
    fn send(&self, helper: &UnixStream) {
        if let Some(mounts) = &self.mounts {
            let word = FilesToHide { paths: self.paths.clone() };
            // If the helper has ended, its successor gets the message.
            let _ = protocol::write(helper, &word, &[mounts.as_fd()]);
        }
    }
}

/// A helper that is making the namespace.
pub(super) struct StartingHelper {
    pid: u32,
    line: UnixStream,
    covers: UnixStream,
    changes: io::Result<OwnedFd>,
}

/// The parts of the namespace that the agent needs.
pub(super) struct NamespaceForAgent {
    pub(super) sockets: Vec<OwnedFd>,
}

/// A helper that has made the namespace.
pub(super) struct Prepared {
    pub(super) helper: Helper,
    pub(super) given: NamespaceForAgent,
    /// Sends the helper the listener of the program's system call filter.
    pub(super) channel: UnixStream,
}

impl Helper {
    /// Starts a helper.
    pub(super) fn start() -> Result<StartingHelper, RunError> {
        let own = |error| RunError::SystemCall("start the helper", error);
        let (ours, theirs) = UnixStream::pair().map_err(own)?;
        let (covers, of_helper) = UnixStream::pair().map_err(own)?;
        let changes = covers::changes();
        let launcher = std::process::id();
        let work = || {
            let mut needed = vec![theirs.as_fd(), of_helper.as_fd()];
            needed.extend(changes.as_ref().ok().map(AsFd::as_fd));
            let kept = process::keep_only(&needed, StandardError::Discarded);
            process::name_thread("tacit-helper");
            let run = |covers| helper::run(&theirs, launcher, covers);
            ending(kept.and_then(|()| awaited(&of_helper, &changes)).and_then(run))
        };
        let pid = process::fork(work).map_err(own)?;
        Ok(StartingHelper { pid, line: ours, covers, changes })
    }

    /// Lets this helper and its successors hide these files in the program's mount namespace.
    pub(super) fn keep_hidden(&mut self, mounts: Option<OwnedFd>, paths: Vec<PathBuf>) {
        if let (Some(_), Err(error)) = (&mounts, &self.changes) {
            warn(
                MessageId("hidden-late"),
                format_args!(
                    "cannot watch the secret files of the policy for changes: {error}. After you \
                     replace a secret file, the program may be able to read the new file for up \
                     to a second\n    fix: raise fs.inotify.max_user_instances"
                ),
            );
        }
        self.hidden = Hidden { mounts, paths };
        if let Some(helper) = self.covers.take() {
            self.hidden.send(&helper);
        }
    }

    /// The process id, unless the helper has ended.
    pub(super) fn pid(&self) -> Option<u32> {
        Some(self.pid).filter(|pid| *pid > 0)
    }

    /// Records that the helper has ended.
    pub(super) fn forget(&mut self) {
        self.pid = 0;
    }

    /// Starts another helper in the same namespaces; returns its channel for the agent.
    pub(super) fn restart(&mut self) -> io::Result<OwnedFd> {
        if self.kind == HelperKind::OfExisting {
            return self.fork_joined(None);
        }
        let (ours, theirs) = UnixStream::pair()?;
        let (covers, of_helper) = UnixStream::pair()?;
        self.hidden.send(&covers);
        let launcher = std::process::id();
        let user = self.user.as_ref().map(AsFd::as_fd);
        let pause = START_INTERVAL.saturating_sub(self.started.elapsed());
        let work = || {
            let mut needed = vec![theirs.as_fd(), of_helper.as_fd(), self.network.as_fd()];
            needed.extend(user);
            needed.extend(self.changes.as_ref().ok().map(AsFd::as_fd));
            let kept = process::keep_only(&needed, StandardError::Discarded);
            process::name_thread("tacit-helper");
            std::thread::sleep(pause);
            let given =
                theirs.try_clone().and_then(|line| Ok((line, awaited(&of_helper, &self.changes)?)));
            let run = |(line, covers)| {
                let network = self.network.as_fd();
                helper::run_again(line, launcher, JoinedNamespaces { network, user }, covers)
            };
            ending(kept.and(given).and_then(run))
        };
        self.pid = process::fork(work)?;
        self.started = Instant::now() + pause;
        Ok(ours.into())
    }
}

impl Helper {
    /// Kills the process, if it runs.
    pub(super) fn end(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = process::signal(pid, process::Signal::KILL);
            let _ = process::wait(pid);
            self.forget();
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let Some(pid) = self.pid().filter(|_| self.kind == HelperKind::OfRun) else {
            // The nftables rules of an existing namespace must be gone when this process ends.
            return self.end();
        };
        // The kernel lets the process wait that closes the last descriptor of these. The helper has
        // one of each, and no process waits for the end of the helper.
        self.hidden = Hidden::default();
        self.changes = Err(io::ErrorKind::NotConnected.into());
        let _ = process::signal(pid, process::Signal::KILL);
    }
}

impl StartingHelper {
    /// Waits until the namespace exists and the helper has closed its copies of the listening
    /// sockets: through such a copy, connections would be accepted after the agent has ended.
    pub(super) fn ready(self) -> Result<Prepared, RunError> {
        let own = |error| RunError::SystemCall("start the helper", error);
        let died = || {
            RunError::Namespace(
                "the helper process ended unexpectedly while it created the network namespace"
                    .into(),
            )
        };
        let frame = protocol::read::<Ready>(&self.line).map_err(own)?.ok_or_else(died)?;
        let mut descriptors = frame.descriptors;
        let has_own_user = match frame.message {
            Ready::Failed(reason) => {
                let _ = process::wait(self.pid);
                return Err(RunError::Namespace(reason));
            }
            Ready::Made { has_own_user, .. } => has_own_user,
        };
        protocol::read::<()>(&self.line).map_err(own)?.ok_or_else(died)?;
        let line = descriptors.pop().ok_or_else(died)?;
        let made = NamespaceSockets::from_descriptors(descriptors).ok_or_else(died)?;
        let NamespaceSockets { network, user, .. } = made;
        let of_run = [line, made.query, made.syn_log];
        let ipv4 = [made.tcp4, made.udp4, made.raw4, made.hold4, made.release4];
        let ipv6 = [made.tcp6, made.udp6, made.raw6, made.hold6, made.release6];
        let ipv6 = ipv6.into_iter().flatten();
        let sockets = of_run.into_iter().chain(ipv4).chain(ipv6).collect();
        let user = has_own_user.then_some(user);
        let started = Instant::now();
        let covers = Some(self.covers);
        let hidden = Hidden::default();
        let Self { pid, changes, .. } = self;
        let kind = HelperKind::OfRun;
        let helper = Helper { kind, pid, started, network, user, covers, hidden, changes };
        Ok(Prepared { helper, given: NamespaceForAgent { sockets }, channel: self.line })
    }
}

/// Prepares the helper's state for hiding files, in the helper process.
fn awaited(launcher: &UnixStream, changes: &io::Result<OwnedFd>) -> io::Result<Covers> {
    let changes = changes.as_ref().ok().map(OwnedFd::try_clone).transpose()?;
    Ok(Covers::awaited(launcher.try_clone()?, changes))
}

/// The exit status of the helper process.
pub(super) fn ending(result: io::Result<()>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            complain_of(MessageId("no-helper"), format_args!("the helper process failed: {error}"));
            1
        }
    }
}
