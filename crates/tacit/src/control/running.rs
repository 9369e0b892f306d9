//! Identifies the agent that already listens at a control socket. A second agent cannot listen at
//! this socket. The error message of the second agent describes the first agent.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tacit_sys::socket;

use super::Request;
use super::client;
use super::directory;

/// How long a start waits for the answer of the running agent.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// An agent that listens at a control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunningAgent {
    /// Its process number.
    pub pid: u32,
    /// Its policy file; `None` if it did not report it.
    pub policy: Option<PathBuf>,
    /// Whether it is draining.
    pub draining: bool,
    /// The number of its open connections.
    pub open: usize,
}

impl RunningAgent {
    /// The agent that listens at this control socket, if there is one.
    #[must_use]
    pub fn at(control: &Path) -> Option<Self> {
        directory::check(control).ok()?;
        let stream = UnixStream::connect(control).ok()?;
        let listening = socket::peer_credentials(stream.as_fd()).ok()?;
        let pid = listening.pid?;
        let answer = Self::ask(&stream).ok();
        // Only the process is known if the agent is stopped, is of an older version, or refuses
        // clients in other network namespaces.
        Some(answer.unwrap_or(Self { pid, policy: None, draining: false, open: 0 }))
    }

    fn ask(stream: &UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
        let answer = client::ask_on(stream, &Request::Identify).map_err(io::Error::other)?;
        serde_json::from_value(answer).map_err(io::Error::other)
    }
}

impl fmt::Display for RunningAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)?;
        match &self.policy {
            Some(policy) => write!(f, ", policy {}", policy.display())?,
            None => f.write_str("; this agent does not report its policy to this process")?,
        }
        if self.draining {
            write!(f, "; this agent is draining, and has {} open connections", self.open)?;
        }
        Ok(())
    }
}
