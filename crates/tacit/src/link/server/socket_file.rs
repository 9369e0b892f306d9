//! Opens the UNIX socket of a link for the link's server. Removes the file of the socket when the
//! server no longer serves the link.
//!
//! ```text
//!   no file                                 ──> bind
//!   a socket on which no process listens    ──> remove, bind
//!   a socket on which a process listens     ──> error that names the process
//!   another file                            ──> error
//! ```
//!
//! The server locks the directory of the file during these steps. Otherwise, two servers that start
//! together could both find an old file. Then the second server would remove the new file of the
//! first server.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use tacit_sys::socket::{self, StreamOptions};
use tokio::net::UnixListener;

use crate::link::{directory, make_directory};

/// Only the owner and root can connect.
const SOCKET_MODE: u32 = 0o600;
/// How long another server may hold the lock on the directory.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
/// The time between two attempts to get the lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// The file of a link's socket, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Another process may have replaced the file.
    identity: FileIdentity,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // Another process may have removed it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl SocketFile {
    /// Opens the socket of a link.
    ///
    /// # Errors
    /// A process listens there, the path has another file, or the error of the kernel.
    pub(super) fn listen(path: &Path) -> io::Result<(UnixListener, Self)> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or_else(|| Path::new("."));
        if parent == directory() {
            make_directory()?;
        }
        let _lock = lock(parent)?;
        if let Ok(found) = rustix::fs::lstat(path) {
            if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
                let reason = "the file is not a socket";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
            }
            check_unused(path)?;
            std::fs::remove_file(path)?;
        }
        let address = socket::SocketAddress::from(socket::UnixAddress::new(path)?);
        let listener = socket::listen_unix(&address, SOCKET_MODE, || Ok(()))?;
        let file = Self { path: path.to_owned(), identity: identity(path)? };
        Ok((UnixListener::from_std(listener.into())?, file))
    }
}

/// The device, the inode and the creation time of a file. A file system may use the inode of a
/// removed file again.
type FileIdentity = (u64, u64, Option<SystemTime>);

fn identity(path: &Path) -> io::Result<FileIdentity> {
    let found = std::fs::symlink_metadata(path)?;
    // Not every file system has the time.
    Ok((found.dev(), found.ino(), found.created().ok()))
}

/// Locks a directory against other servers of links, until the result is dropped. A directory that
/// this user cannot read cannot be locked.
fn lock(directory: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(directory, flags, Mode::empty()) {
        Err(rustix::io::Errno::ACCESS) => return Ok(None),
        opened => opened?,
    };
    let until = Instant::now() + LOCK_WAIT_MAX;
    loop {
        match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(opened)),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(LOCK_INTERVAL);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let reason = format!(
                    "another process keeps {directory} locked",
                    directory = directory.display()
                );
                return Err(io::Error::new(io::ErrorKind::WouldBlock, reason));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Reports the process that listens at a socket.
fn check_unused(path: &Path) -> io::Result<()> {
    let address = socket::SocketAddress::from(socket::UnixAddress::new(path)?);
    let process = match socket::dial(&address, &StreamOptions::default()) {
        Ok(dialled) => socket::peer_credentials(dialled.socket.as_fd())?.pid,
        // Its queue is full.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(()),
        Err(error) => return Err(error),
    };
    let process = match process {
        Some(pid) => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("process {pid} ({})", name.trim_end())
        }
        None => "another process".to_owned(),
    };
    let mut reason = format!("{process} already listens on this socket");
    if path.starts_with(directory()) {
        reason.push_str(
            "; if the listening process serves another policy, give the link another name",
        );
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_with_a_server_is_not_taken_over() {
        let directory = std::env::temp_dir().join(format!("tacit-socket-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("a.sock");
        let (listener, file) = SocketFile::listen(&path).unwrap();
        let error = SocketFile::listen(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let process = format!("process {} (", std::process::id());
        assert!(error.to_string().starts_with(&process), "{error}");
        // The file of a server that was killed is replaced, and the replaced server does not remove
        // the new file.
        drop(listener);
        let (_listener, other) = SocketFile::listen(&path).unwrap();
        drop(file);
        assert!(path.exists());
        drop(other);
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        let error = SocketFile::listen(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn servers_that_start_together_do_not_replace_each_other() {
        let directory = std::env::temp_dir().join(format!("tacit-lock-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let held = lock(&directory).unwrap();
        let (sender, locked) = std::sync::mpsc::channel();
        let at = directory.clone();
        let other = std::thread::spawn(move || {
            let _held = lock(&at).unwrap();
            sender.send(()).unwrap();
        });
        std::thread::sleep(3 * LOCK_INTERVAL);
        assert!(locked.try_recv().is_err());
        drop(held);
        other.join().unwrap();
        locked.recv().unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
