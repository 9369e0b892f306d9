//! `tacit link take`: waits for a socket from `tacit link give`, and runs a program with this
//! socket.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tacit_sys::socket;
use tokio::net::{UnixListener, UnixStream};

use super::{Acceptance, MESSAGE_BYTES_MAX, Offer, check_user, make_directory, path_of};
use crate::activate::EXEC_VERB;
use crate::run::channel::{read_frame, write_frame};
use crate::run::protocol::Frame;

/// How long a giver may take for its message.
const OFFER_WAIT_MAX: Duration = Duration::from_secs(10);
/// Only the owner and root can connect.
const SOCKET_MODE: u32 = 0o600;
/// The exit status of a program that a signal has ended is this number plus that of the signal.
const EXIT_SIGNAL: i32 = 128;

/// How the program gets its socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::link) enum TakenAs {
    /// As standard input and standard output
    #[default]
    Stdin,
    /// As descriptor 3, with LISTEN_FDS
    ListenFds,
}

/// Waits for a socket, and runs the program with it to its end. Returns its exit status.
///
/// # Errors
/// The name is in use or wrong.
pub(in crate::link) async fn take(
    name: &str,
    taken_as: TakenAs,
    command: &[OsString],
) -> io::Result<u8> {
    let listener = Taker::listen(name)?;
    let mut program = listener.take(taken_as, command).await?;
    drop(listener);
    Ok(exit_status(program.wait()?))
}

/// The socket of a taker. Its file is removed with it.
struct Taker {
    listener: UnixListener,
    path: std::path::PathBuf,
}

impl Drop for Taker {
    fn drop(&mut self) {
        // Another process may have removed it.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Taker {
    fn listen(name: &str) -> io::Result<Self> {
        make_directory()?;
        let path = path_of(name)?;
        if std::os::unix::net::UnixStream::connect(&path).is_ok() {
            let reason = "another `tacit link take` already waits for a socket with this NAME";
            return Err(io::Error::new(io::ErrorKind::AddrInUse, reason));
        }
        // What a killed taker has left; the directory contains nothing else.
        let _ = std::fs::remove_file(&path);
        let address = socket::SocketAddress::from(socket::UnixAddress::new(&path)?);
        let socket = socket::listen_unix(&address, SOCKET_MODE, || Ok(()))?;
        Ok(Self { listener: UnixListener::from_std(socket.into())?, path })
    }

    /// Waits until a giver has passed a socket and the program runs.
    async fn take(&self, taken_as: TakenAs, command: &[OsString]) -> io::Result<Child> {
        loop {
            let (mut stream, _) = self.listener.accept().await?;
            if check_user(&stream).is_err() {
                continue;
            }
            let offered = tokio::time::timeout(OFFER_WAIT_MAX, receive(&mut stream)).await;
            // A giver that ends keeps its socket.
            let Ok(Ok(socket)) = offered else { continue };
            match spawn(socket, taken_as, command) {
                Ok(program) => {
                    // The giver may have given up. The program has the socket nevertheless.
                    let _ = write_frame(&mut stream, &Acceptance::Taken(program.id())).await;
                    return Ok(program);
                }
                Err(error) => {
                    let refused = Acceptance::Refused(format!("cannot start the program: {error}"));
                    let _ = write_frame(&mut stream, &refused).await;
                    return Err(error);
                }
            }
        }
    }
}

async fn receive(stream: &mut UnixStream) -> io::Result<OwnedFd> {
    let frame = read_frame::<Offer>(stream, MESSAGE_BYTES_MAX).await?;
    let Frame { mut descriptors, .. } = frame.ok_or(io::ErrorKind::UnexpectedEof)?;
    descriptors.pop().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn spawn(socket: OwnedFd, taken_as: TakenAs, words: &[OsString]) -> io::Result<Child> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    match taken_as {
        TakenAs::Stdin => {
            // Programs that use standard input do not expect `WouldBlock`.
            rustix::io::ioctl_fionbio(&socket, false)?;
            let output = socket.try_clone()?;
            Command::new(program)
                .args(arguments)
                .stdin(Stdio::from(socket))
                .stdout(Stdio::from(output))
                .spawn()
        }
        TakenAs::ListenFds => Command::new("/proc/self/exe")
            .arg0("tacit")
            .arg(EXEC_VERB)
            .args(words)
            .env("LISTEN_FDNAMES", "connection")
            .stdin(Stdio::from(socket))
            .spawn(),
    }
}

fn exit_status(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| EXIT_SIGNAL + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
