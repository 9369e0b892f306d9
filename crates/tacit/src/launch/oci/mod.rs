//! `tacit oci-hook`: captures the traffic of a container before the container's program starts. A
//! container runtime (runc, crun) calls this command as the OCI hook `createRuntime`.
//!
//! ```text
//! runtime ── state ──> hook (this) ── forks ──> launcher ── registers ─> agent
//!         <─ exit status ─┘ <─ captured ───────────┘
//! ```
//!
//! The launcher runs until the container's process ends.
//!
//! If the hook cannot capture the traffic of the container's network namespace, the hook fails.
//! Then the runtime does not start the container.

mod state;

use std::fmt;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::{Deserialize, Serialize};
use tacit_core::message_id::MessageId;
use tacit_sys::namespace::ExistingNetwork;
use tacit_sys::process::{self, StandardError};

use super::agent::Agent;
use super::error::RunError;
use super::join::{JoinedNetwork, ProtectedNetwork};
use crate::exit::{EXIT_FAILURE, EXIT_OK, fail};
use crate::run::protocol;

pub use state::{HookTask, STATE_BYTES_MAX, StateError, parse};

/// Protect a container, as a hook of an OCI runtime; reads the container's state from standard
/// input
#[derive(Debug, Args)]
#[command(after_help = "\
Example, in config.json of the container:
  \"hooks\": { \"createRuntime\": [ {
    \"path\": \"/usr/bin/tacit\",
    \"args\": [\"tacit\", \"oci-hook\", \"--agent\", \"/run/tacit/enrol.sock\"] } ] }")]
pub struct OciHookArgs {
    /// The enrolment socket of the agent that serves the container, as an absolute path
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
}

/// Why a container is not protected.
#[derive(Debug)]
enum HookError {
    /// Standard input cannot be read.
    Read(io::Error),
    State(StateError),
    SystemCall(&'static str, io::Error),
    /// The launcher failed. The text is the reason.
    Launcher(String),
}

impl HookError {
    fn id(&self) -> MessageId {
        match self {
            Self::Read(_) | Self::State(_) => MessageId("container-state"),
            Self::SystemCall(..) | Self::Launcher(_) => MessageId("container-not-protected"),
        }
    }
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => {
                write!(f, "cannot read the state of the container from standard input: {error}")
            }
            Self::State(error) => error.fmt(f),
            Self::SystemCall(what, error) => {
                write!(
                    f,
                    "cannot capture the traffic of the container, so the container does not start: \
                     cannot {what}: {error}"
                )
            }
            Self::Launcher(reason) => write!(
                f,
                "cannot capture the traffic of the container, so the container does not start: \
                 {reason}"
            ),
        }
    }
}

/// The launcher's message to the hook.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum HookOutcome {
    /// The traffic of the container is captured.
    Captured,
    /// The traffic of the container is not captured. The text is the reason.
    Failed(String),
}

/// Runs the command.
#[must_use]
pub fn hook(args: &OciHookArgs) -> ExitCode {
    match try_hook(args) {
        Ok(()) => EXIT_OK.into(),
        Err(error) => fail(error.id(), &error, EXIT_FAILURE),
    }
}

fn try_hook(args: &OciHookArgs) -> Result<(), HookError> {
    let mut text = Vec::new();
    // One byte more, so that a longer state is noticed.
    let bytes_max = u64::try_from(STATE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    io::stdin().take(bytes_max).read_to_end(&mut text).map_err(HookError::Read)?;
    let HookTask::Protect { pid, name } = parse(&text).map_err(HookError::State)? else {
        return Ok(());
    };
    let failed = |error| HookError::SystemCall("start the launcher", error);
    let (outcome, theirs) = UnixStream::pair().map_err(failed)?;
    process::fork(|| launch(&theirs, &args.agent, pid, name)).map_err(failed)?;
    drop(theirs);
    match protocol::read(&outcome).map_err(failed)?.map(|frame| frame.message) {
        Some(HookOutcome::Captured) => Ok(()),
        Some(HookOutcome::Failed(reason)) => Err(HookError::Launcher(reason)),
        None => Err(HookError::Launcher("the launcher process ended unexpectedly".to_owned())),
    }
}

/// Runs the launcher, which reports the outcome to the hook, and stays until the container's
/// process has ended. No process reads the exit status that this function returns.
fn launch(outcome: &UnixStream, agent: &Path, pid: u32, name: String) -> u8 {
    match protect(outcome, agent, pid, name) {
        // If the hook was killed, the runtime does not start the container.
        Ok(protected) if protocol::write(outcome, &HookOutcome::Captured, &[]).is_ok() => {
            let _ = protected.hold();
            EXIT_OK
        }
        Ok(_) => EXIT_FAILURE,
        Err(error) => {
            let _ = protocol::write(outcome, &HookOutcome::Failed(error.to_string()), &[]);
            EXIT_FAILURE
        }
    }
}

fn protect(
    outcome: &UnixStream,
    agent: &Path,
    pid: u32,
    name: String,
) -> Result<ProtectedNetwork, RunError> {
    let failed =
        |error| RunError::SystemCall("detach the launcher from the container runtime", error);
    // The runtime waits until the hook's pipes are closed, and may signal its group.
    process::keep_only(&[outcome.as_fd()], StandardError::Discarded).map_err(failed)?;
    rustix::process::setsid().map_err(|errno| failed(errno.into()))?;
    // The directory is that of the container, which may be removed.
    std::env::set_current_dir("/").map_err(failed)?;
    let network = ExistingNetwork::of_process(pid).map_err(RunError::Network)?;
    let joined = JoinedNetwork::new(network)?;
    let agent = Agent::connect(agent)?;
    super::watch_signals()?;
    let (protected, _) = joined.enrol(agent, name)?;
    Ok(protected)
}
