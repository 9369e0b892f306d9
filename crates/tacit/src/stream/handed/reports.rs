//! The kernel's reports about destroyed sockets. Each report costs CPU time, and the kernel sends
//! one for each TCP socket of each program in the network namespace. So this module ends the
//! reports while no connection needs them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_sys::netlink::usage;

/// How long unneeded reports continue. So a program that often opens connections does not change
/// the state each time.
const UNNEEDED_TIME: Duration = Duration::from_secs(1);

/// Whether the kernel reports destroyed sockets.
#[derive(Debug)]
pub(super) struct Reports {
    socket: Arc<OwnedFd>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A connection needs them, or no report has been unneeded since then.
    Needed,
    /// They are sent, and have not been needed since this time.
    UnneededSince(Instant),
    /// The agent has asked the kernel to send none.
    Paused,
    /// The agent cannot receive them any more.
    Ended,
}

impl Reports {
    /// The reports on this socket, which are sent.
    pub(super) fn new(socket: Arc<OwnedFd>) -> Self {
        Self { socket, state: State::Needed }
    }

    /// A connection needs them from now on.
    ///
    /// # Errors
    /// The kernel does not report.
    pub(super) fn resume(&mut self) -> io::Result<()> {
        match self.state {
            State::Ended => return Err(io::ErrorKind::NotConnected.into()),
            State::Paused => usage::resume_destroyed(self.socket.as_fd())?,
            State::Needed | State::UnneededSince(_) => {}
        }
        self.state = State::Needed;
        Ok(())
    }

    /// A report has arrived that no connection needs.
    pub(super) fn note_unneeded(&mut self, now: Instant) {
        match self.state {
            State::Needed => self.state = State::UnneededSince(now),
            State::UnneededSince(since) if now.duration_since(since) < UNNEEDED_TIME => {}
            State::UnneededSince(_) => {
                // After an error the kernel may send some of them. This costs only CPU time.
                let _ = usage::pause_destroyed(self.socket.as_fd());
                self.state = State::Paused;
            }
            State::Paused | State::Ended => {}
        }
    }

    /// The agent cannot receive them any more.
    pub(super) fn end(&mut self) {
        self.state = State::Ended;
    }

    #[cfg(test)]
    pub(super) fn are_paused(&self) -> bool {
        self.state == State::Paused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use tacit_sys::netlink::usage::{Destroyed, UsageSockets, next_destroyed};

    #[test]
    fn reports_pause_while_no_connection_needs_them() {
        let socket = Arc::new(UsageSockets::open().unwrap().destroyed);
        let mut reports = Reports::new(Arc::clone(&socket));
        let start = Instant::now();
        reports.note_unneeded(start);
        reports.note_unneeded(start + UNNEEDED_TIME / 2);
        assert!(reports_socket(&socket, REPORT_WAIT_MAX), "too early");
        reports.resume().unwrap();
        let later = start + UNNEEDED_TIME;
        reports.note_unneeded(later);
        assert!(reports_socket(&socket, REPORT_WAIT_MAX), "a connection needed them");
        reports.note_unneeded(later + UNNEEDED_TIME);
        while next_destroyed(socket.as_fd()).unwrap().is_some() {}
        assert!(!reports_socket(&socket, Duration::from_millis(500)));
        // Reports that were sent before.
        reports.note_unneeded(later + UNNEEDED_TIME * 2);
        reports.resume().unwrap();
        assert!(reports_socket(&socket, REPORT_WAIT_MAX));
        reports.end();
        assert!(reports.resume().is_err());
    }

    const REPORT_WAIT_MAX: Duration = Duration::from_secs(10);

    /// Whether the kernel reports a socket of this test within this time.
    fn reports_socket(socket: &OwnedFd, wait: Duration) -> bool {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cookie = tacit_sys::handed::identity(listener.as_fd()).unwrap().cookie;
        drop(listener);
        let deadline = Instant::now() + wait;
        while Instant::now() < deadline {
            match next_destroyed(socket.as_fd()).unwrap() {
                Some(Destroyed::Socket(usage)) if usage.cookie == cookie => return true,
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        false
    }
}
