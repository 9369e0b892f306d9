//! The launcher's side of the helper: starting it, and starting it anew.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tacit_sys::namespace::Sockets;
use tacit_sys::process::{self, StandardError};

use super::error::RunError;
use super::helper::{self, Ready};
use crate::exit::complain;
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
}

/// A helper that is setting up.
pub(super) struct Starting {
    pid: u32,
    line: UnixStream,
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
        let launcher = std::process::id();
        let work = || {
            let kept = process::keep_only(&[theirs.as_fd()], StandardError::Discarded);
            process::name_thread("tacit-helper");
            ending(kept.and_then(|()| helper::run(&theirs, launcher)))
        };
        let pid = process::fork(work).map_err(own)?;
        Ok(Starting { pid, line: ours })
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
        let launcher = std::process::id();
        let user = self.user.as_ref().map(AsFd::as_fd);
        let pause = START_INTERVAL.saturating_sub(self.started.elapsed());
        let work = || {
            let mut needed = vec![theirs.as_fd(), self.network.as_fd()];
            needed.extend(user);
            let kept = process::keep_only(&needed, StandardError::Discarded);
            process::name_thread("tacit-helper");
            std::thread::sleep(pause);
            let line = theirs.try_clone();
            let run = |line| helper::run_anew(line, launcher, self.network.as_fd(), user);
            ending(kept.and(line).and_then(run))
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
    /// Waits until the namespace is there and no listener is held by the helper any more: whoever
    /// keeps a copy of one would go on taking connections after the agent's end.
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
        let made = Sockets::from_descriptors(descriptors).ok_or_else(died)?;
        let Sockets { network, user, .. } = made;
        let of_run = [line, made.query, made.syn_log];
        let ipv4 = [made.tcp4, made.udp4, made.raw4, made.hold4, made.release4];
        let ipv6 = [made.tcp6, made.udp6, made.raw6, made.hold6, made.release6];
        let ipv6 = ipv6.into_iter().flatten();
        let sockets = of_run.into_iter().chain(ipv4).chain(ipv6).collect();
        let user = has_own_user.then_some(user);
        let started = Instant::now();
        let helper = Helper { pid: self.pid, started, network, user };
        Ok(Prepared { helper, given: Given { sockets }, channel: self.line })
    }
}

/// A process's exit status for what it came to.
fn ending(result: io::Result<()>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            complain(format_args!("tacit: the helper ended: {error}"));
            1
        }
    }
}
