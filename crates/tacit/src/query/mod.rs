//! `$TACIT_QUERY`: programs of a run ask how their own connections are protected.
//!
//! ```text
//!   program ── question + descriptor ──> asker ──> desk ── whose connection? ──> record
//!           <──────── answer ─────────────┘          └──── start, stop, rekey ──> relay
//! ```
//!
//! The socket is inside the run's network and nowhere else, so that only the run can ask. Which
//! connection is meant is said by the descriptor that comes with the question: it is looked at
//! (its network, its two addresses), never believed to be what the asker says, and closed before
//! the answer leaves. Nobody can ask about a connection that they do not hold.
//!
//! All of it is on the control thread; no lane waits for it. After `tacit restart` the successor
//! has the socket and asks the agent before it about connections that are still there.
//!
//! Limits: [`ASKERS_MAX`] connections of a run at a time; the one idle for the longest leaves for
//! another one (`seats`). Each is given up after [`IDLE_MAX`] without a question.
//! [`CLOSING_MAX`].

mod answer;
mod asker;
mod find;
mod seats;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tacit_sys::query::{self, QueryMessage};
use tacit_sys::watch::{Watched, watch};
use tokio::io::Interest;
use tokio::sync::watch as signal;
use tokio::task::AbortHandle;

use crate::log::{Event, Log};
use crate::run::Run;
use crate::session::ConnectionTable;

use find::Desk;
use seats::Seats;

/// Connections of a run's programs to its query socket at a time.
pub const ASKERS_MAX: usize = 64;
/// How long such a connection may be open without a question.
pub const IDLE_MAX: Duration = Duration::from_secs(30);
/// Sets of descriptors that are being closed, of all runs: closing a strange one may take for ever.
/// Answers wait beyond that.
pub const CLOSING_MAX: usize = 128;

/// The socket of one run, served. Dropping it ends what is not in the middle of a question.
#[derive(Debug)]
pub struct Service {
    listener: Arc<OwnedFd>,
    accepting: AbortHandle,
    desk: Rc<Desk>,
    /// Askers end when it is dropped.
    _open: signal::Sender<()>,
}

impl Service {
    /// Serves the socket that a helper made inside; `network` is any other socket of the run, and
    /// `before` leads to the agent before this one.
    ///
    /// # Errors
    /// A socket cannot be watched, or the kernel does not tell networks apart.
    pub fn start(
        listener: OwnedFd,
        network: impl AsFd,
        before: Option<OwnedFd>,
        run: &Arc<Run>,
        table: &Arc<ConnectionTable>,
        log: &Log,
    ) -> io::Result<Self> {
        let network = query::network_of(network.as_fd())?;
        let before = before.map(|socket| watch_socket(Arc::new(socket))).transpose()?;
        let desk = Rc::new(Desk::new(Arc::clone(run), Arc::clone(table), network, before)?);
        let listener = Arc::new(listener);
        let watched = watch_socket(Arc::clone(&listener))?;
        let (open, closed) = signal::channel(());
        let accept = accept_askers(watched, Rc::clone(&desk), closed, log.clone());
        let accepting = tokio::task::spawn_local(accept).abort_handle();
        Ok(Self { listener, accepting, desk, _open: open })
    }

    /// Gives a successor what it needs to answer in this agent's place.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn hand_over(&self) -> io::Result<HandedOver> {
        let (ours, theirs) = query::pair()?;
        let listener = self.listener.try_clone()?;
        let asker = watch_socket(Arc::new(ours))?;
        tokio::task::spawn_local(asker::serve_successor(asker, Rc::clone(&self.desk)));
        Ok(HandedOver { listener, before: theirs })
    }
}

/// What a successor gets.
#[derive(Debug)]
pub struct HandedOver {
    /// The socket that programs ask on.
    pub listener: OwnedFd,
    /// Leads to this agent, for questions about the connections that stay here.
    pub before: OwnedFd,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept_askers(listener: Watched, desk: Rc<Desk>, closed: signal::Receiver<()>, log: Log) {
    let seats = Seats::new(ASKERS_MAX);
    loop {
        match accept_one(&listener).await {
            Ok(asker) => {
                let taken = seats.take().await;
                let serve = asker::serve(asker, taken, Rc::clone(&desk), closed.clone());
                tokio::task::spawn_local(serve);
            }
            Err(error) => {
                log.warn(Event::new("query-failed").field("error", &error));
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn accept_one(listener: &Watched) -> io::Result<Watched> {
    let accepted =
        listener.async_io(Interest::READABLE, |fd| tacit_sys::socket::accept(fd.as_fd())).await?;
    watch_socket(Arc::new(accepted.socket))
}

fn watch_socket(socket: Arc<OwnedFd>) -> io::Result<Watched> {
    watch(socket, Interest::READABLE | Interest::WRITABLE)
}

/// Takes the next message of an asker.
async fn receive(socket: &Watched, buffer: &mut [u8]) -> io::Result<QueryMessage> {
    socket.async_io(Interest::READABLE, |fd| query::receive(fd.as_fd(), buffer)).await
}

/// Sends one message.
async fn send(socket: &Watched, bytes: &[u8], with: Option<&OwnedFd>) -> io::Result<()> {
    let with: Vec<_> = with.into_iter().map(AsFd::as_fd).collect();
    socket
        .async_io(Interest::WRITABLE, |fd| tacit_sys::descriptor::send(fd, bytes, &with))
        .await
        .map(drop)
}

/// Pause after the kernel could not give us a descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
