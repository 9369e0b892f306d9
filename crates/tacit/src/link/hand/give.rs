//! `tacit link give`: passes a socket of a running program to `tacit link take`.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal,
};
use tacit_sys::{descriptor, socket};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use super::find::DescriptorOf;
use super::{Acceptance, MESSAGE_BYTES_MAX, Offer, check_user, path_of};
use crate::run::channel::read_frame;
use crate::run::protocol::encode;

/// How long the taker may take to start its program.
const TAKE_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long the giver may take to stop.
const STOP_WAIT_MAX: Duration = Duration::from_secs(5);
/// The time between two looks at its state.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// What happens to the giver after the transfer. It still has the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::link) enum Then {
    /// The program continues. It must not use the socket any more
    #[default]
    Continue,
    /// The program stays stopped
    Stop,
    /// The program is killed
    Kill,
}

/// Why a socket was not given.
#[derive(Debug)]
pub(in crate::link) enum GiveError {
    /// No taker has this name, or it does not answer.
    NoTaker(String, io::Error),
    /// The socket of the giver cannot be taken.
    Giver(u32, io::Error),
    /// The taker refused the socket.
    Refused(String),
}

impl fmt::Display for GiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTaker(name, error) => write!(
                f,
                "no program waits for a socket with the name {name}: {error}\n    fix: start a \
                 program that takes the socket: `tacit link take {name} -- CMD`"
            ),
            Self::Giver(pid, error) => {
                write!(f, "cannot take the socket of process {pid}: {error}")
            }
            Self::Refused(reason) => write!(f, "`tacit link take` refused the socket: {reason}"),
        }
    }
}

impl std::error::Error for GiveError {}

/// Gives a socket to a taker. Returns the process that has it.
///
/// # Errors
/// See [`GiveError`]. The giver then continues with its socket.
pub(in crate::link) async fn give(
    from: DescriptorOf,
    to: &str,
    then: Then,
) -> Result<u32, GiveError> {
    let no_taker = |error| GiveError::NoTaker(to.to_owned(), error);
    let path = path_of(to).map_err(no_taker)?;
    let mut stream = UnixStream::connect(path).await.map_err(no_taker)?;
    check_user(&stream).map_err(no_taker)?;
    let failed = |error| GiveError::Giver(from.pid, error);
    let giver = StoppedGiver::stop(from.pid).map_err(failed)?;
    let socket = giver.socket(from.number).map_err(failed)?;
    let given = tokio::time::timeout(TAKE_WAIT_MAX, offer(&mut stream, from.pid, &socket)).await;
    match given.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(no_taker)? {
        Acceptance::Taken(pid) => {
            giver.conclude(then).map_err(failed)?;
            Ok(pid)
        }
        Acceptance::Refused(reason) => Err(GiveError::Refused(reason)),
    }
}

async fn offer(stream: &mut UnixStream, giver: u32, socket: &OwnedFd) -> io::Result<Acceptance> {
    let bytes = encode(&Offer { giver })?;
    let send = || descriptor::send(&*stream, &bytes, &[socket.as_fd()]);
    let sent = stream.async_io(Interest::WRITABLE, send).await?;
    stream.write_all(bytes.get(sent..).unwrap_or_default()).await?;
    let answer = read_frame(stream, MESSAGE_BYTES_MAX).await?;
    Ok(answer.ok_or(io::ErrorKind::UnexpectedEof)?.message)
}

/// A process that is stopped until this is dropped, or the transfer is complete.
struct StoppedGiver {
    process: OwnedFd,
    /// Whether it was stopped before, and so is not continued.
    was_stopped: bool,
    is_complete: bool,
}

impl StoppedGiver {
    fn stop(pid: u32) -> io::Result<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or(io::ErrorKind::InvalidInput)?;
        let process = pidfd_open(number, PidfdFlags::empty())?;
        let was_stopped = is_stopped(pid)?;
        pidfd_send_signal(&process, Signal::STOP)?;
        let giver = Self { process, was_stopped, is_complete: false };
        let deadline = Instant::now() + STOP_WAIT_MAX;
        while !is_stopped(pid)? {
            if Instant::now() > deadline {
                let reason = "the process has not stopped after SIGSTOP";
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(giver)
    }

    /// A copy of one of its sockets.
    fn socket(&self, number: i32) -> io::Result<OwnedFd> {
        let copy = pidfd_getfd(&self.process, number, PidfdGetfdFlags::empty());
        let copy = copy.map_err(|error| {
            let error = io::Error::from(error);
            match error.kind() {
                io::ErrorKind::PermissionDenied => io::Error::new(
                    error.kind(),
                    "this user is not permitted to use ptrace on the process\n    fix: run `tacit \
                     link give` and `tacit link take` as root, or set the sysctl \
                     kernel.yama.ptrace_scope to 0",
                ),
                _ => error,
            }
        })?;
        match socket::is_connected(copy.as_fd()) {
            Ok(true) => Ok(copy),
            Ok(false) => Err(io::Error::other(format!(
                "the socket with descriptor {number} is not connected"
            ))),
            Err(_) => {
                let kind = copy.as_raw_fd();
                let shown = std::fs::read_link(format!("/proc/self/fd/{kind}")).unwrap_or_default();
                Err(io::Error::other(format!(
                    "descriptor {number} is not a connected socket, but {shown}",
                    shown = shown.display()
                )))
            }
        }
    }

    /// Ends the transfer.
    fn conclude(mut self, then: Then) -> io::Result<()> {
        self.is_complete = true;
        match then {
            Then::Continue if self.was_stopped => Ok(()),
            Then::Continue => Ok(pidfd_send_signal(&self.process, Signal::CONT)?),
            Then::Stop => Ok(()),
            Then::Kill => Ok(pidfd_send_signal(&self.process, Signal::KILL)?),
        }
    }
}

impl Drop for StoppedGiver {
    fn drop(&mut self) {
        if !self.is_complete && !self.was_stopped {
            // The process may have been killed meanwhile.
            let _ = pidfd_send_signal(&self.process, Signal::CONT);
        }
    }
}

/// Whether all threads of a process are stopped.
fn is_stopped(pid: u32) -> io::Result<bool> {
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended meanwhile.
        let stat = std::fs::read_to_string(task?.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
        if state.is_some_and(|state| !state.starts_with(['T', 't', 'Z', 'X'])) {
            return Ok(false);
        }
    }
    Ok(true)
}
