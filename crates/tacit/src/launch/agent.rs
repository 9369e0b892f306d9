//! Starts the private agent of `tacit run`, or connects to a running agent. In both cases,
//! registers the program with the agent.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tacit_core::message_id::MessageId;
use tacit_sys::process::{Signal, StandardError};
use tacit_sys::{job, process, socket};

use super::arguments::RunArgs;
use super::enter::NamespaceForAgent;
use super::error::RunError;
use super::policy::{self, PolicySource};
use crate::agent::supervisor::{self, Private};
use crate::control::private_agents::{self, DIRECTORY_PREFIX, SOCKET_NAME};
use crate::exit::{EXIT_FAILURE, complain_of, warn};
use crate::run::protocol::{self, Enrolment, FromLauncher, RunTerms, ToLauncher};
use crate::runtime::explain_error;

/// How many directory names a launcher tries.
const DIRECTORIES_TRIED_MAX: u32 = 100;

/// How often a launcher that waits for its agent checks for signals.
const SIGNALS_INTERVAL: Duration = Duration::from_millis(100);

/// The agent of this run. It ends the run when this connection is closed.
pub(super) struct Agent {
    line: UnixStream,
    /// The socket of a running agent; `None` for a private one.
    socket: Option<PathBuf>,
    private: Option<PrivateAgent>,
    serves: bool,
}

/// An agent that serves only this run, and the directory of its control socket.
struct PrivateAgent {
    /// The process id; 0 after the agent has ended.
    pid: u32,
    directory: PathBuf,
}

impl PrivateAgent {
    /// Creates the directory.
    fn new() -> io::Result<Self> {
        Ok(Self { pid: 0, directory: make_directory()? })
    }
}

impl Agent {
    /// Starts a private agent, or connects to the agent of `--agent`.
    pub(super) fn start(args: &RunArgs, source: &PolicySource) -> Result<Self, RunError> {
        let own = |error| RunError::SystemCall("start the agent", error);
        let private = || PrivateAgent::new().map_err(own);
        let (policy, private) = match source {
            PolicySource::Agent(path) => return Self::connect(path),
            PolicySource::File(policy) => (policy.clone(), private()?),
            PolicySource::Options => {
                let text = args.tls.policy_text().map_err(RunError::Options)?;
                let private = private()?;
                (policy::write(&text, &private.directory).map_err(own)?, private)
            }
        };
        Self::start_private(policy, private, args).map_err(own)
    }

    /// Connects to the agent that serves this enrolment socket.
    pub(super) fn connect(path: &Path) -> Result<Self, RunError> {
        let line = UnixStream::connect(path).map_err(|error| {
            let path = path.display();
            RunError::Agent(format!(
                "cannot connect to an agent at {path}: {error}\n    fix: start an agent with \
                 `tacit agent --enrol {path}`"
            ))
        })?;
        Ok(Self { line, socket: Some(path.to_owned()), private: None, serves: true })
    }

    fn start_private(policy: PathBuf, mut made: PrivateAgent, args: &RunArgs) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let private = Private {
            policy,
            control: made.directory.join(SOCKET_NAME),
            resolvers: args.resolvers.clone(),
            link: args.link_choice(),
            log: args.log.clone(),
            log_level: args.log_level,
            launcher: format!("{}[{}]", args.run_name(), std::process::id()),
        };
        let work = || {
            // The agent must not receive the terminal's signals or those sent to CMD.
            let ended = process::keep_only(&[theirs.as_fd()], StandardError::Kept)
                .and_then(|()| process::lead_process_group())
                .and_then(|()| supervisor::run_private(private, theirs));
            // A launcher that is killed does not remove the directory.
            let _ = std::fs::remove_dir_all(&made.directory);
            match ended {
                Ok(code) => code,
                Err(error) => {
                    complain_of(
                        MessageId("agent-not-started"),
                        format_args!("cannot start the agent: {}", explain_error(&error)),
                    );
                    EXIT_FAILURE
                }
            }
        };
        let pid = process::fork(work)?;
        made.pid = pid;
        Ok(Self { line: ours, socket: None, private: Some(made), serves: true })
    }

    /// Connects to the next agent at the socket of this one; `None` while there is none.
    ///
    /// # Errors
    /// This agent was private, so no other can take its place.
    pub(super) fn successor(&self) -> Result<Option<Self>, RunError> {
        match &self.socket {
            Some(path) => Ok(Self::connect(path).ok()),
            None => Err(RunError::Agent("the agent of this run has ended".into())),
        }
    }

    /// Enrols the run; returns the agent's terms for CMD.
    pub(super) fn enrol(
        &self,
        enrolment: Enrolment,
        given: NamespaceForAgent,
    ) -> Result<RunTerms, RunError> {
        let own = |error| RunError::SystemCall("register the run with the agent", error);
        let sockets: Vec<_> = given.sockets.iter().map(AsFd::as_fd).collect();
        // An agent that cannot start prints the reason before it closes the connection, so the
        // error of this write adds nothing.
        let _ = protocol::write(&self.line, &FromLauncher::Enrol(enrolment), &sockets);
        drop(given);
        loop {
            // The agent may wait for a file system or a link, so the user must be able to end and
            // to stop the launcher.
            while !socket::is_readable_within(self.line.as_fd(), SIGNALS_INTERVAL).map_err(own)? {
                if let Some(number) = job::end_requested().map_err(own)? {
                    self.kill_private();
                    return Err(RunError::Signal(number));
                }
                job::stop_if_requested().map_err(own)?;
            }
            job::stop_if_requested().map_err(own)?;
            let answer = protocol::read::<ToLauncher>(&self.line).map_err(own)?;
            match answer.map(|frame| frame.message) {
                Some(ToLauncher::Waiting(what)) => warn(MessageId("run-waits"), what),
                Some(ToLauncher::Terms(mut terms)) => {
                    let directory = self.private.as_ref().map(|private| private.directory.clone());
                    terms.hide.extend(directory);
                    return Ok(terms);
                }
                Some(ToLauncher::Refused(reason)) => return Err(RunError::Agent(reason)),
                None => {
                    return Err(RunError::Agent(
                        "the agent exited before it accepted the run".into(),
                    ));
                }
            }
        }
    }

    /// Kills a private agent that serves no run yet. It may wait for a file that never ends.
    fn kill_private(&self) {
        if let Some(supervisor) = self.private_pid() {
            // The processes of the agent may have ended.
            let _ = process::signal_group(supervisor, Signal::KILL);
        }
    }

    /// Sends the agent the channel to a new helper.
    pub(super) fn send_channel(&self, line: &OwnedFd) -> io::Result<()> {
        protocol::write(&self.line, &FromLauncher::HelperChannel, &[line.as_fd()])
    }

    /// The process id of a private agent that runs.
    pub(super) fn private_pid(&self) -> Option<u32> {
        self.private.as_ref().map(|private| private.pid).filter(|pid| *pid > 0)
    }

    /// Whether the agent has ended since the last call.
    pub(super) fn has_just_ended(&mut self) -> bool {
        if let Some(private) = &mut self.private
            && private.pid > 0
            && process::try_wait(private.pid).is_ok_and(|ended| ended.is_some())
        {
            private.pid = 0;
        }
        let served = std::mem::replace(&mut self.serves, !socket::is_hung_up(self.line.as_fd()));
        served && !self.serves
    }

    /// Whether the agent was running at the last check.
    pub(super) fn serves(&self) -> bool {
        self.serves
    }
}

/// Creates a directory that only this user may enter. The name may be taken: by a killed launcher
/// with the same process id, or by another user who guessed it.
fn make_directory() -> io::Result<PathBuf> {
    let mut taken = io::Error::from(io::ErrorKind::AlreadyExists);
    for directory in directories(std::process::id()) {
        match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
            Err(error) => {
                let text = format!("{}: {error}", directory.display());
                return Err(io::Error::new(error.kind(), text));
            }
        }
    }
    Err(taken)
}

/// The directory names that a launcher tries, in this order.
fn directories(launcher: u32) -> impl Iterator<Item = PathBuf> {
    let base = private_agents::base();
    (0..DIRECTORIES_TRIED_MAX).map(move |attempt| {
        let mut name = format!("{DIRECTORY_PREFIX}{launcher}");
        if attempt > 0 {
            name.push_str(&format!("-{attempt}"));
        }
        base.join(name)
    })
}

/// The control socket of the private agent that the launcher `launcher` started. The first name
/// that exists is used, which may belong to a killed launcher with the same process id.
#[must_use]
pub fn control_of(launcher: u32) -> Option<PathBuf> {
    directories(launcher)
        .take_while(|directory| directory.exists())
        .last()
        .map(|directory| directory.join(SOCKET_NAME))
}

impl Drop for PrivateAgent {
    fn drop(&mut self) {
        // The agent ends when it has sent the program's last bytes.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
