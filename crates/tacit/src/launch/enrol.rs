//! How a run becomes known to an agent: one message with sockets made inside its namespace, over
//! a UNIX socket that stays open for as long as the run lives.
//!
//! ```text
//!   launcher ── Enrolment + sockets ──> agent        what the launcher says of itself
//!            <──────── Ok ───────────                captured from here on
//!            ──────── (closed) ─────>                the run has ended
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};
use tacit_sys::descriptor;

/// A message at most.
pub const ENROLMENT_BYTES_MAX: usize = 16 * 1024;

/// What a launcher says of its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Enrolment {
    /// What displays call it.
    pub name: String,
    /// The launcher's process.
    pub pid: u32,
    /// Which sockets follow, in this order; without IPv6 the second of a pair is absent.
    pub ipv6: bool,
}

/// The sockets of a run, made inside and used by the agent outside.
#[derive(Debug)]
pub struct RunSockets {
    /// Captured TCP connections.
    pub tcp: Vec<OwnedFd>,
    /// Captured datagrams.
    pub udp: Vec<OwnedFd>,
    /// Changes what is captured.
    pub netfilter: OwnedFd,
    /// The line to the helper inside, which makes further sockets.
    pub helper: OwnedFd,
}

impl RunSockets {
    /// In the order in which they are sent.
    #[must_use]
    pub fn in_order(&self) -> Vec<BorrowedFd<'_>> {
        let single = [&self.netfilter, &self.helper];
        self.tcp.iter().chain(&self.udp).chain(single).map(AsFd::as_fd).collect()
    }

    /// From the order in which they were sent.
    ///
    /// # Errors
    /// Not as many as `ipv6` asks for.
    pub fn from_order(sockets: Vec<OwnedFd>, ipv6: bool) -> io::Result<Self> {
        let families = if ipv6 { 2 } else { 1 };
        let mut rest = sockets.into_iter();
        let mut take = |count| rest.by_ref().take(count).collect::<Vec<_>>();
        let (tcp, udp, last) = (take(families), take(families), take(2));
        let Ok([netfilter, helper]) = <[OwnedFd; 2]>::try_from(last) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "sockets are missing"));
        };
        Ok(Self { tcp, udp, netfilter, helper })
    }
}

/// Sends one message with its sockets.
///
/// # Errors
/// Whatever the kernel answers.
pub fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    sockets: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let sent = descriptor::send(socket, &line, sockets)?;
    if sent < line.len() {
        // A UNIX socket takes a message of this size whole.
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}

/// Receives one message with its sockets; `None`: the other side has ended.
///
/// # Errors
/// Whatever the kernel answers, or a message that cannot be read.
pub fn receive<T: for<'de> Deserialize<'de>>(
    socket: impl AsFd,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; ENROLMENT_BYTES_MAX];
    let (count, sockets) = descriptor::receive(socket, &mut bytes)?;
    if count == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&bytes[..count])?, sockets)))
}
