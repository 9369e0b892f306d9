//! For programs under `tacit run`, captures the additional connections that a protocol negotiates,
//! such as FTP data connections.
//!
//! While a task of the agent waits for an additional connection, the kernel captures connections to
//! the expected destination address. The agent passes the accepted connection to the task.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tacit_core::flow::Address;
use tokio::sync::oneshot;

use super::Run;
use crate::net::Accepted;

/// The maximum number of expected connections of one run.
pub const EXPECTED_MAX: usize = 1024;

/// The expected connections of a run.
#[derive(Debug, Default)]
pub(super) struct Expectations(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// The waiting tasks, by the address that the program will connect to.
    senders: HashMap<SocketAddr, oneshot::Sender<Accepted>>,
    /// Whether a successor serves new connections of the run.
    departed: bool,
}

impl Expectations {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An expected connection. Its address is captured until [`Expected::end`]. After that, or when
/// this is dropped, no task gets the connection.
#[derive(Debug)]
pub struct Expected {
    run: Arc<Run>,
    address: SocketAddr,
    arrives: oneshot::Receiver<Accepted>,
}

impl Run {
    /// Expects a connection of one of the run's programs to an address.
    ///
    /// # Errors
    /// Another connection to the address is expected, there are too many, the address cannot be
    /// captured, or a successor has the run.
    pub async fn expect(self: &Arc<Self>, address: SocketAddr) -> io::Result<Expected> {
        let (waiting, arrives) = oneshot::channel();
        {
            let mut all = self.expected.lock();
            if all.departed {
                return Err(departed());
            }
            if all.senders.len() >= EXPECTED_MAX {
                return Err(io::Error::other(format!(
                    "the run already waits for {EXPECTED_MAX} FTP data connections, which is the \
                     maximum"
                )));
            }
            if all.senders.contains_key(&address) {
                return Err(io::Error::other(
                    "the run already expects another FTP data connection to the same address",
                ));
            }
            all.senders.insert(address, waiting);
        }
        let expected = Expected { run: Arc::clone(self), address, arrives };
        self.follow_expected().await?;
        Ok(expected)
    }

    /// The addresses of expected connections.
    #[must_use]
    pub fn expects(&self) -> Vec<SocketAddr> {
        self.expected.lock().senders.keys().copied().collect()
    }

    /// Whether a connection to this address is expected.
    #[must_use]
    pub fn is_expected(&self, address: SocketAddr) -> bool {
        self.expected.lock().senders.contains_key(&address)
    }

    /// Ends all expectations, because a successor serves new connections of the run.
    pub fn expect_no_more(&self) {
        *self.expected.lock() = Waiting { departed: true, ..Waiting::default() };
    }

    /// Passes a connection to the task that expects it; returns it if there is no such task.
    #[must_use]
    pub fn deliver_expected(&self, accepted: Accepted) -> Option<Accepted> {
        let waiting = match &accepted.remote {
            Address::Inet(address) => self.expected.lock().senders.remove(address),
            Address::Path(_) | Address::Abstract(_) | Address::Unnamed => None,
        };
        match waiting {
            Some(waiting) => waiting.send(accepted).err(),
            None => Some(accepted),
        }
    }

    async fn follow_expected(&self) -> io::Result<()> {
        if self.expected.lock().departed {
            return Err(departed());
        }
        match self.capture.get().and_then(Weak::upgrade) {
            Some(capture) => capture.follow().await,
            None => Err(io::Error::other("the run has ended")),
        }
    }
}

fn departed() -> io::Error {
    io::Error::other(
        "this FTP control connection can open no further data connections, because a new agent has \
         taken over the run: open the control connection again",
    )
}

impl Expected {
    /// Waits for the connection.
    ///
    /// # Errors
    /// A successor has the run now.
    pub async fn arrive(&mut self) -> io::Result<Accepted> {
        (&mut self.arrives).await.map_err(|_| io::ErrorKind::NotConnected.into())
    }

    /// Ends the expectation: whether the address is captured depends on the policy again.
    pub async fn end(self) {
        let run = Arc::clone(&self.run);
        drop(self);
        // If there is no helper, the next change removes the address.
        let _ = run.follow_expected().await;
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.run.expected.lock().senders.remove(&self.address);
    }
}
