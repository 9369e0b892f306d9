//! Reads facts from `/proc` about the process at the other end of a UNIX socket.
//!
//! The kernel reports the PID of the process that connected. When this process has ended, another
//! process may get the same PID, and `/proc` then shows the wrong process. Since Linux 6.5 the
//! kernel also returns a descriptor of the process (`SO_PEERPIDFD`), which shows whether the
//! process still runs. Older kernels return only the PID.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::option::{self, OptionName};

/// The process at the other end of a UNIX socket.
#[derive(Debug)]
pub struct PeerProcess {
    /// Its number when it connected.
    pid: u32,
    /// `None` before Linux 6.5.
    descriptor: Option<OwnedFd>,
}

impl PeerProcess {
    /// The process that connected the other end of `socket`; `pid` is its number in the credentials
    /// of the socket. `None` if it has ended.
    #[must_use]
    pub fn of(socket: BorrowedFd<'_>, pid: u32) -> Option<Self> {
        let descriptor = match peer_descriptor(socket) {
            Ok(descriptor) => Some(descriptor),
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => None,
            // Older kernels return no descriptor of a process that has ended.
            Err(_) => return None,
        };
        Some(Self { pid, descriptor })
    }

    /// Reads a fact by the number of the process. `None` if there is none, or if the process has
    /// ended: the number may then be that of another process.
    pub fn read<T>(&self, fact: impl FnOnce(u32) -> Option<T>) -> Option<T> {
        let found = fact(self.pid)?;
        // After the reading: as long as the process runs, no other process has its number.
        self.runs().then_some(found)
    }

    /// Whether the process runs, as far as this kernel shows it.
    fn runs(&self) -> bool {
        let Some(descriptor) = &self.descriptor else { return true };
        let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // It is readable when the process has ended.
        poll(&mut polled, Some(&now)).is_ok_and(|ready| ready == 0)
    }
}

fn peer_descriptor(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let name = OptionName { level: libc::SOL_SOCKET, name: libc::SO_PEERPIDFD };
    let number = option::option(socket, name)?;
    // SAFETY: the kernel has opened this descriptor for this call, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixListener;
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::socket::peer_credentials;

    /// A process that has connected and waits.
    fn client() -> (Child, OwnedFd) {
        let path = std::env::temp_dir().join(format!(
            "tacit-peer-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let listener = UnixListener::bind(&path).unwrap();
        let script = "import socket, sys; s = socket.socket(socket.AF_UNIX); \
                      s.connect(sys.argv[1]); sys.stdin.read()";
        let child = Command::new("python3")
            .args(["-c", script])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let (accepted, _) = listener.accept().unwrap();
        std::fs::remove_file(&path).unwrap();
        (child, accepted.into())
    }

    fn end(mut child: Child) {
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn facts_about_a_process_that_has_ended_are_not_used() {
        let (child, socket) = client();
        let pid = peer_credentials(socket.as_fd()).unwrap().pid.unwrap();
        let peer = PeerProcess::of(socket.as_fd(), pid).unwrap();
        if peer.descriptor.is_none() {
            println!("skipped: this kernel has no SO_PEERPIDFD");
            return end(child);
        }
        assert_eq!(peer.read(Some), Some(child.id()));
        let mut ended = Some(child);
        let reused = peer.read(|pid| {
            // Another process may have the number when this fact is read.
            end(ended.take()?);
            Some(pid)
        });
        assert_eq!((reused, peer.read(Some)), (None, None));
        let late = PeerProcess::of(socket.as_fd(), pid);
        assert_eq!(late.and_then(|late| late.read(Some)), None);
    }

    #[test]
    fn older_kernels_know_only_the_number() {
        let peer = PeerProcess { pid: 7, descriptor: None };
        assert_eq!(peer.read(Some), Some(7));
        assert_eq!(peer.read(|_| None::<u32>), None);
    }
}
