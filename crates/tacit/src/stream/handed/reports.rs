//! The kernel's reports about destroyed sockets. Each report costs CPU time, and the kernel sends
//! one for each TCP socket of each program in the network namespace. So this module ends the
//! reports while no connection needs them. While there are many reports, the agent does not wake
//! for each of them, but reads them every [`READ_INTERVAL`], if the kernel can store them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_sys::netlink::usage::{self, Destroyed};
use tacit_sys::watch::{Watched, watch};
use tokio::io::Interest;
use tokio::time::sleep_until;

/// The time between two reads while there are reports.
const READ_INTERVAL: Duration = Duration::from_millis(2);
/// How long unneeded reports continue. So a program that often opens connections does not change
/// the state each time.
const UNNEEDED_TIME: Duration = Duration::from_secs(1);

/// How many reports are read without a pause.
const READ_AT_ONCE_MAX: usize = 256;

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

    /// The socket on which they arrive.
    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
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

/// What was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadReports {
    /// No report had arrived.
    Nothing,
    /// All reports that had arrived.
    All,
    /// As many as are read at once; more may have arrived.
    Part,
}

/// Reads the reports that have arrived, but not more than [`READ_AT_ONCE_MAX`]. Passes each of them
/// to `take`, and `None` after the last one.
///
/// # Errors
/// The socket has failed.
pub(super) fn read(
    socket: BorrowedFd<'_>,
    mut take: impl FnMut(Option<Destroyed>),
) -> io::Result<ReadReports> {
    for count in 0..READ_AT_ONCE_MAX {
        let report = usage::next_destroyed(socket)?;
        take(report);
        if report.is_none() {
            return Ok(if count == 0 { ReadReports::Nothing } else { ReadReports::All });
        }
    }
    Ok(ReadReports::Part)
}

/// The socket on which the kernel reports destroyed sockets.
#[derive(Debug)]
pub(super) struct DestroyedSockets {
    socket: Arc<OwnedFd>,
    /// Whether the kernel stores the reports of [`READ_INTERVAL`].
    stores_many: bool,
    wait: ReadWait,
}

/// What the next read waits for.
#[derive(Debug)]
enum ReadWait {
    /// A report.
    Report(Watched),
    /// This time. The runtime does not watch the socket, so that reports do not wake the thread.
    Time(tokio::time::Instant),
    /// Nothing: more reports may have arrived already.
    AtOnce,
}

impl DestroyedSockets {
    /// The reports on this socket.
    ///
    /// # Errors
    /// The runtime does not watch the socket.
    pub(super) fn new(socket: Arc<OwnedFd>) -> io::Result<Self> {
        let stores_many = usage::stores_many(socket.as_fd());
        let wait = ReadWait::Report(watch(Arc::clone(&socket), Interest::READABLE)?);
        Ok(Self { socket, stores_many, wait })
    }

    /// Waits until reports may be read.
    ///
    /// # Errors
    /// The runtime does not watch the socket.
    pub(super) async fn ready(&mut self) -> io::Result<()> {
        match &self.wait {
            ReadWait::Report(watched) => watched.readable().await.map(drop)?,
            ReadWait::Time(until) => sleep_until(*until).await,
            ReadWait::AtOnce => {}
        }
        Ok(())
    }

    /// Reads reports; see [`read`].
    ///
    /// # Errors
    /// The socket has failed.
    pub(super) fn read(&mut self, take: impl FnMut(Option<Destroyed>)) -> io::Result<()> {
        let read = read(self.socket.as_fd(), take)?;
        if read == ReadReports::Part {
            self.wait = ReadWait::AtOnce;
            return Ok(());
        }
        self.wait = ReadWait::Time(tokio::time::Instant::now() + READ_INTERVAL);
        if read == ReadReports::All && self.stores_many {
            return Ok(());
        }
        // If the runtime cannot watch the socket now, the agent tries again.
        if let Ok(watched) = watch(Arc::clone(&self.socket), Interest::READABLE) {
            self.wait = ReadWait::Report(watched);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use tacit_sys::netlink::usage::{UsageSockets, next_destroyed};

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

    #[tokio::test]
    async fn reports_that_follow_soon_do_not_wake_the_thread_and_are_read_later() {
        let socket = Arc::new(UsageSockets::open().unwrap().destroyed);
        let mut destroyed = DestroyedSockets::new(socket).unwrap();
        destroyed.stores_many = true;
        expect_end(&mut destroyed).await;
        assert!(matches!(destroyed.wait, ReadWait::Time(_)));
        expect_end(&mut destroyed).await;
        // Other sockets of this machine may end, too.
        while matches!(destroyed.wait, ReadWait::Time(_)) {
            destroyed.ready().await.unwrap();
            destroyed.read(|_| ()).unwrap();
        }
        destroyed.stores_many = false;
        expect_end(&mut destroyed).await;
        assert!(matches!(destroyed.wait, ReadWait::Report(_)));
    }

    /// Closes a socket, and waits until its end is read.
    async fn expect_end(destroyed: &mut DestroyedSockets) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cookie = tacit_sys::handed::identity(listener.as_fd()).unwrap().cookie;
        drop(listener);
        let mut is_found = false;
        while !is_found {
            tokio::time::timeout(REPORT_WAIT_MAX, destroyed.ready()).await.unwrap().unwrap();
            let is_it =
                |report| matches!(report, Some(Destroyed::Socket(one)) if one.cookie == cookie);
            destroyed.read(|report| is_found |= is_it(report)).unwrap();
        }
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
