//! The launcher's side of the helper: starting it, and restarting it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tacit_core::message_id::MessageId;
use tacit_sys::namespace::NamespaceSockets;
use tacit_sys::process::{self, StandardError};

use super::covers::{self, Covers, ToCover};
use super::error::RunError;
use super::helper::{self, JoinedNamespaces, Ready};
use crate::exit::{complain_of, warn};
use crate::run::protocol;

/// Helpers start no sooner one after the other: one that cannot live must not cost a CPU.
const START_INTERVAL: Duration = Duration::from_millis(100);

/// The process inside, and the namespaces it made.
pub(super) struct Helper {
    /// 0 once it has ended.
    pid: u32,
    started: Instant,
    pub(super) network: OwnedFd,
    /// None for root, which shares the launcher's.
    pub(super) user: Option<OwnedFd>,
    /// To the helper, which awaits here what it keeps hidden; `None`: it knows.
    covers: Option<UnixStream>,
    /// For helpers to come.
    hidden: Hidden,
    /// Of all helpers; without it they look at the files once a second.
    changes: io::Result<OwnedFd>,
}

/// What is hidden from the program.
#[derive(Default)]
struct Hidden {
    /// The program's mounts; `None`: it has none of its own, and nothing is to be covered.
    mounts: Option<OwnedFd>,
    paths: Vec<PathBuf>,
}

impl Hidden {
    /// Has a helper keep it hidden.
    fn tell(&self, helper: &UnixStream) {
        if let Some(mounts) = &self.mounts {
            let word = ToCover { paths: self.paths.clone() };
            // A helper that has ended is replaced, and the next one gets it.
            let _ = protocol::write(helper, &word, &[mounts.as_fd()]);
        }
    }
}

/// A helper that is setting up.
pub(super) struct Starting {
    pid: u32,
    line: UnixStream,
    covers: UnixStream,
    changes: io::Result<OwnedFd>,
}

/// What the agent is to have of the namespace.
pub(super) struct Given {
    pub(super) sockets: Vec<OwnedFd>,
}

/// A helper that has set up the namespace.
pub(super) struct Prepared {
    pub(super) helper: Helper,
    pub(super) given: Given,
    /// To the helper, which awaits the listener of the program's filter here.
    pub(super) channel: UnixStream,
}

impl Helper {
    /// Starts one.
    pub(super) fn start() -> Result<Starting, RunError> {
        let own = |error| RunError::Own("start the helper", error);
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
        Ok(Starting { pid, line: ours, covers, changes })
    }

    /// Has it keep these files hidden in the mounts of a program, and the helpers after it.
    pub(super) fn keep_hidden(&mut self, mounts: Option<OwnedFd>, paths: Vec<PathBuf>) {
        if let (Some(_), Err(error)) = (&mounts, &self.changes) {
            warn(
                MessageId("hidden-late"),
                format_args!(
                    "cannot be hidden from the program at once: files that take the place of \
                 hidden ones: {error}; raise fs.inotify.max_user_instances"
                ),
            );
        }
        self.hidden = Hidden { mounts, paths };
        if let Some(helper) = self.covers.take() {
            self.hidden.tell(&helper);
        }
    }

    /// Its process, unless it has ended.
    pub(super) fn pid(&self) -> Option<u32> {
        Some(self.pid).filter(|pid| *pid > 0)
    }

    /// It has ended.
    pub(super) fn forget(&mut self) {
        self.pid = 0;
    }

    /// Starts another in the same namespaces; returns the line for the agent.
    pub(super) fn start_anew(&mut self) -> io::Result<OwnedFd> {
        let (ours, theirs) = UnixStream::pair()?;
        let (covers, of_helper) = UnixStream::pair()?;
        self.hidden.tell(&covers);
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
                helper::run_anew(line, launcher, JoinedNamespaces { network, user }, covers)
            };
            ending(kept.and(given).and_then(run))
        };
        self.pid = process::fork(work)?;
        self.started = Instant::now() + pause;
        Ok(ours.into())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = process::signal(pid, process::Signal::KILL);
            let _ = process::wait(pid);
        }
    }
}

impl Starting {
    /// Waits until the namespace is there and the helper has closed its copies of the listeners: a
    /// process that keeps a copy would continue to take connections after the agent's end.
    pub(super) fn ready(self) -> Result<Prepared, RunError> {
        let own = |error| RunError::Own("start the helper", error);
        let died = || RunError::Namespace("the helper ended without a word".into());
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
        let helper = Helper { pid, started, network, user, covers, hidden, changes };
        Ok(Prepared { helper, given: Given { sockets }, channel: self.line })
    }
}

/// What a helper keeps hidden, for the process that it is.
fn awaited(launcher: &UnixStream, changes: &io::Result<OwnedFd>) -> io::Result<Covers> {
    let changes = changes.as_ref().ok().map(OwnedFd::try_clone).transpose()?;
    Ok(Covers::awaited(launcher.try_clone()?, changes))
}

/// A process's exit status for what it came to.
fn ending(result: io::Result<()>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            complain_of(MessageId("no-helper"), format_args!("the helper ended: {error}"));
            1
        }
    }
}
