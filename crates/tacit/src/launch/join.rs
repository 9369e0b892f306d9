//! Captures the traffic of a network namespace that another program has created. Starts a helper
//! process in this namespace, and registers the namespace with an agent.
//!
//! ```text
//!   launcher (this) ──forks──> helper    joins the namespace, then acts in it for the agent
//!                   ──starts or connects to─> agent
//!                   ──starts─> CMD       in the namespace, if the command line has one
//! ```
//!
//! Without CMD, `tacit run` waits until the kernel destroys the namespace. If the agent ends
//! meanwhile, `tacit run` registers the namespace with the next agent at the same socket. As long
//! as no agent runs, the nftables rules refuse the flows that they capture.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tacit_core::message_id::MessageId;
use tacit_sys::job;
use tacit_sys::namespace::{ExistingNetwork, JoinedNamespaces};
use tacit_sys::process::{self, StandardError};

use super::agent::Agent;
use super::enter::{Helper, HelperKind, NamespaceForAgent, START_INTERVAL, ending};
use super::error::RunError;
use super::helper::Ready;
use super::running::Running;
use crate::exit::{EXIT_FAILURE, complain_of, warn};
use crate::host;
use crate::run::protocol::{self, Enrolment, Frame, RunTerms, SocketSet};

/// The time between two checks whether the namespace has ended and the agent is there.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A namespace with its helper, which no agent serves yet.
pub(super) struct JoinedNetwork {
    pub(super) network: ExistingNetwork,
    pub(super) helper: Helper,
    /// The helper's channel for the agent.
    channel: OwnedFd,
}

impl JoinedNetwork {
    /// Starts a helper in the namespace.
    pub(super) fn new(mut network: ExistingNetwork) -> Result<Self, RunError> {
        let own = |error| RunError::SystemCall("start the helper", error);
        let (ready, theirs) = UnixStream::pair().map_err(own)?;
        let mut helper = Helper::of_existing(&network).map_err(own)?;
        let channel = helper.fork_joined(Some(&theirs)).map_err(own)?;
        drop(theirs);
        let died = || {
            RunError::Namespace(
                "the helper process ended unexpectedly while it joined the namespace".into(),
            )
        };
        let Frame { message, mut descriptors } =
            protocol::read(&ready).map_err(own)?.ok_or_else(died)?;
        if let Ready::Failed(reason) = message {
            return Err(RunError::Namespace(reason));
        }
        let inside = descriptors.pop().ok_or_else(died)?;
        helper.network = inside.try_clone().map_err(own)?;
        network.release_file(inside);
        Ok(Self { network, helper, channel })
    }

    /// Enrols the namespace. When this returns, its flows are captured.
    pub(super) fn enrol(
        self,
        agent: Agent,
        name: String,
    ) -> Result<(ProtectedNetwork, RunTerms), RunError> {
        let Self { network, helper, channel } = self;
        let terms = agent.enrol(enrolment(name.clone()), given(channel))?;
        for warning in &terms.warnings {
            warn(MessageId("run-policy"), warning);
        }
        let running = Running { program: None, agent, helper, needs_helper: false };
        Ok((ProtectedNetwork { network, running, name }, terms))
    }
}

fn enrolment(name: String) -> Enrolment {
    let pid = std::process::id();
    Enrolment {
        name,
        pid,
        sockets: SocketSet::Joined,
        covers_files: false,
        lists_unix_sockets: false,
    }
}

fn given(channel: OwnedFd) -> NamespaceForAgent {
    NamespaceForAgent { sockets: vec![channel] }
}

/// A namespace that an agent serves.
pub(super) struct ProtectedNetwork {
    network: ExistingNetwork,
    pub(super) running: Running,
    name: String,
}

impl ProtectedNetwork {
    /// Waits until the namespace has ended, or a signal asks to end.
    pub(super) fn hold(mut self) -> Result<ExitCode, RunError> {
        let own =
            |error| RunError::SystemCall("wait until the network namespace is destroyed", error);
        loop {
            match job::next_signal_within(LOOK_INTERVAL).map_err(own)? {
                Some(signal) if job::asks_to_end(signal.number) => return Ok(ExitCode::SUCCESS),
                Some(signal) if job::asks_to_stop(signal.number) => {
                    job::stop_self().map_err(own)?;
                }
                Some(_) | None => {}
            }
            if self.network.has_ended() {
                return Ok(ExitCode::SUCCESS);
            }
            self.running.check_children();
            if !self.running.agent.serves() {
                self.enrol_again()?;
            }
        }
    }

    /// Enrols the namespace with another agent at the same socket, if there is one.
    fn enrol_again(&mut self) -> Result<(), RunError> {
        let Running { agent, helper, .. } = &mut self.running;
        let Some(next) = agent.successor()? else { return Ok(()) };
        helper.end();
        let own = |error| RunError::SystemCall("start the helper", error);
        let channel = helper.fork_joined(None).map_err(own)?;
        match next.enrol(enrolment(self.name.clone()), given(channel)) {
            Ok(_) => *agent = next,
            Err(error) => complain_of(error.id(), &error),
        }
        Ok(())
    }
}

impl Helper {
    /// A helper of an existing namespace, which is not started yet.
    fn of_existing(existing: &ExistingNetwork) -> io::Result<Self> {
        Ok(Self {
            pid: 0,
            started: Instant::now(),
            network: existing.network().try_clone_to_owned()?,
            user: existing.user().map(|user| user.try_clone_to_owned()).transpose()?,
            covers: None,
            hidden: super::enter::Hidden::default(),
            changes: Err(io::ErrorKind::Unsupported.into()),
            kind: HelperKind::OfExisting,
        })
    }

    /// Starts it; returns its channel for the agent. It reports to `ready` that it has joined the
    /// namespace, or why not.
    pub(super) fn fork_joined(&mut self, ready: Option<&UnixStream>) -> io::Result<OwnedFd> {
        let (ours, theirs) = UnixStream::pair()?;
        let launcher = std::process::id();
        let network = self.network.as_fd();
        let user = self.user.as_ref().map(AsFd::as_fd);
        let is_first = ready.is_some();
        let pause = START_INTERVAL.saturating_sub(self.started.elapsed());
        let work = || {
            let mut needed = vec![theirs.as_fd(), network];
            needed.extend(user);
            needed.extend(ready.map(AsFd::as_fd));
            let kept = process::keep_only(&needed, StandardError::Kept);
            process::name_thread("tacit-helper");
            if !is_first {
                std::thread::sleep(pause);
            }
            let is_ready = Cell::new(false);
            let report = |channel: BorrowedFd<'_>| {
                is_ready.set(true);
                if let Some(ready) = ready {
                    let inside = File::open("/proc/self/ns/net")?;
                    let made = Ready::Made { has_own_user: false, missing: Vec::new() };
                    protocol::write(ready, &made, &[inside.as_fd()])?;
                }
                // The descriptor of a file would keep the file from being unmounted.
                process::keep_only(&[channel], StandardError::Kept)
            };
            let served = kept.and_then(|()| theirs.try_clone()).and_then(|channel| {
                let namespaces = JoinedNamespaces { network, user };
                host::serve_joined(channel, launcher, namespaces, report)
            });
            match (served, ready) {
                (Err(error), Some(ready)) if !is_ready.get() => {
                    // If the launcher has ended too, no process can report it.
                    let _ = protocol::write(ready, &Ready::Failed(error.to_string()), &[]);
                    EXIT_FAILURE
                }
                (served, _) => ending(served),
            }
        };
        self.pid = process::fork(work)?;
        self.started = Instant::now() + pause;
        Ok(ours.into())
    }
}
