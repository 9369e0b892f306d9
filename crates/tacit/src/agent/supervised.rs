//! Implements the agent's end of the channel to its supervisor. Over this channel the agent reports
//! that it is ready, requests a restart, and receives a secret that authenticates its successors.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tokio::io::AsyncReadExt;

use crate::control::secret::{SuccessorSecret, TEXT_BYTES};
use crate::log::{Event, Log};

/// The agent's end of the channel to its supervisor.
#[derive(Debug)]
pub struct Supervisor {
    channel: UnixStream,
    pid: u32,
    secret: Option<SuccessorSecret>,
}

/// How long the agent waits for the secret.
const SECRET_WAIT_MAX: Duration = Duration::from_secs(5);

impl Supervisor {
    /// Takes the channel that the supervisor passed as standard input. Supervisors of older
    /// versions send no secret.
    ///
    /// # Errors
    /// Standard input is not open.
    pub fn inherit() -> io::Result<Self> {
        let channel = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
        Ok(Self::at(channel.into(), None))
    }

    /// Like [`inherit`](Self::inherit), and receives the secret, which is sent first.
    ///
    /// # Errors
    /// Standard input is not open, or no secret arrives.
    pub fn inherit_with_secret() -> io::Result<Self> {
        let mut supervisor = Self::inherit()?;
        let mut text = [0; TEXT_BYTES];
        supervisor.channel.set_read_timeout(Some(SECRET_WAIT_MAX))?;
        supervisor.channel.read_exact(&mut text)?;
        supervisor.channel.set_read_timeout(None)?;
        let text = std::str::from_utf8(&text).ok().and_then(SuccessorSecret::from_text);
        supervisor.secret = Some(text.ok_or(io::ErrorKind::InvalidData)?);
        Ok(supervisor)
    }

    pub(super) fn at(channel: UnixStream, secret: Option<SuccessorSecret>) -> Self {
        Self { channel, pid: std::os::unix::process::parent_id(), secret }
    }

    /// The secret that authenticates a successor; `None` if the supervisor sent none.
    pub(super) fn secret(&self) -> Option<&SuccessorSecret> {
        self.secret.as_ref()
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn ready(&mut self) -> io::Result<()> {
        self.channel.write_all(b"ready\n")
    }

    pub(super) fn restart(&mut self) -> io::Result<()> {
        self.channel.write_all(b"restart\n")
    }

    /// Watches the supervisor, and logs if it ends before the agent.
    ///
    /// # Errors
    /// The limit of open files is reached.
    pub(super) fn watch(&self, log: &Log) -> io::Result<()> {
        let channel = self.channel.try_clone()?;
        channel.set_nonblocking(true)?;
        let mut channel = tokio::net::UnixStream::from_std(channel)?;
        let log = log.clone();
        let gone = Event::new("supervisor-gone").value("pid", self.pid).field(
            "next",
            "the agent continues to serve; to replace the agent, run `tacit drain`, and then start \
             an agent again",
        );
        tokio::task::spawn_local(async move {
            // The supervisor sends nothing more, so the read returns when it has ended.
            let _ = channel.read(&mut [0]).await;
            log.warn(gone);
        });
        Ok(())
    }
}
