//! The agent's end of the channel to its supervisor.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;

use tokio::io::AsyncReadExt;

use crate::log::{Event, Log};

/// The agent's end of the channel to its supervisor.
#[derive(Debug)]
pub struct Supervisor {
    channel: UnixStream,
    pid: u32,
}

impl Supervisor {
    /// Takes the channel that the supervisor passed as standard input.
    ///
    /// # Errors
    /// Standard input is not open.
    pub fn inherit() -> io::Result<Self> {
        let channel = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
        Ok(Self::at(channel.into()))
    }

    pub(super) fn at(channel: UnixStream) -> Self {
        Self { channel, pid: std::os::unix::process::parent_id() }
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

    /// Logs when the supervisor ends before the agent does: nothing else shows it.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn watch(&self, log: &Log) -> io::Result<()> {
        let channel = self.channel.try_clone()?;
        channel.set_nonblocking(true)?;
        let mut channel = tokio::net::UnixStream::from_std(channel)?;
        let log = log.clone();
        let gone = Event::new("supervisor-gone")
            .field("pid", &self.pid)
            .field("next", "the agent serves on; to restart it: tacit drain, then start it again");
        tokio::task::spawn_local(async move {
            // The supervisor never writes: all that can be read is its end.
            let _ = channel.read(&mut [0]).await;
            log.warn(gone);
        });
        Ok(())
    }
}
