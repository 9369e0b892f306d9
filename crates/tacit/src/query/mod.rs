//! Serves the query socket (`$TACIT_QUERY`). Programs under `tacit run` use this socket to ask
//! which TLS or IPsec protection their own connections have.
//!
//! ```text
//!   program ── query + descriptor ───> client.rs ──> find.rs ── finds the connection
//!           <──────── answer ────────────┘             └──── start, stop, rekey ──> relay
//! ```
//!
//! The query socket exists only in the program's network namespace. A query contains a descriptor
//! of the connection in question. So a program can ask only about its own connections. With the
//! queries `start`, `stop` and `rekey`, a program controls the TLS of its connection. The agent
//! passes these queries to the relay of the connection.
//!
//! Connections never wait for queries. After `tacit restart`, the old agent still serves its open
//! connections. The new agent asks the old agent about these connections.
//!
//! Limits: at most [`QUERY_CLIENTS_MAX`] clients for each `tacit run`, and at most [`CLOSING_MAX`]
//! descriptors that the agent is closing. The agent disconnects a client after [`IDLE_MAX`] without
//! a query.

mod answer;
mod client;
mod client_slots;
mod find;

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

use client_slots::ClientSlots;
use find::QueryResponder;

/// The maximum number of connections of a run's programs to its query socket.
pub const QUERY_CLIENTS_MAX: usize = 64;
/// How long such a connection may be open without a query.
pub const IDLE_MAX: Duration = Duration::from_secs(30);
/// The maximum number of sets of descriptors that are being closed at the same time, for all runs.
/// Closing a descriptor of an unknown kind may block for a long time. At this limit, answers wait.
pub const CLOSING_MAX: usize = 128;

/// The query socket of one run. Dropping it closes all clients except those with a query in
/// progress.
#[derive(Debug)]
pub struct QueryService {
    listener: Arc<OwnedFd>,
    accepting: AbortHandle,
    responder: Rc<QueryResponder>,
    /// Clients end when it is dropped.
    _open: signal::Sender<()>,
}

impl QueryService {
    /// Serves the socket that the run's helper made; `network` is any other socket of the run, and
    /// `predecessor` leads to the agent before this one.
    ///
    /// # Errors
    /// A socket cannot be watched, or the kernel does not identify network namespaces.
    pub fn start(
        listener: OwnedFd,
        network: impl AsFd,
        predecessor: Option<OwnedFd>,
        run: &Arc<Run>,
        table: &Arc<ConnectionTable>,
        log: &Log,
    ) -> io::Result<Self> {
        let network = query::network_of(network.as_fd())?;
        let predecessor = predecessor.map(|socket| watch_socket(Arc::new(socket))).transpose()?;
        let responder =
            Rc::new(QueryResponder::new(Arc::clone(run), Arc::clone(table), network, predecessor)?);
        let listener = Arc::new(listener);
        let watched = watch_socket(Arc::clone(&listener))?;
        let (open, closed) = signal::channel(());
        let accept = accept_clients(watched, Rc::clone(&responder), closed, log.clone());
        let accepting = tokio::task::spawn_local(accept).abort_handle();
        Ok(Self { listener, accepting, responder, _open: open })
    }

    /// Returns what a successor needs to answer queries.
    ///
    /// # Errors
    /// The limit of open files is reached.
    pub fn hand_over(&self) -> io::Result<HandedOver> {
        let (ours, theirs) = query::pair()?;
        let listener = self.listener.try_clone()?;
        let client = watch_socket(Arc::new(ours))?;
        tokio::task::spawn_local(client::serve_successor(client, Rc::clone(&self.responder)));
        Ok(HandedOver { listener, predecessor: theirs })
    }
}

/// The sockets that a successor gets.
#[derive(Debug)]
pub struct HandedOver {
    /// The query socket.
    pub listener: OwnedFd,
    /// Leads to this agent, for queries about the connections that stay here.
    pub predecessor: OwnedFd,
}

impl Drop for QueryService {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept_clients(
    listener: Watched,
    responder: Rc<QueryResponder>,
    closed: signal::Receiver<()>,
    log: Log,
) {
    let slots = ClientSlots::new(QUERY_CLIENTS_MAX);
    loop {
        match accept_one(&listener).await {
            Ok(client) => {
                let taken = slots.take().await;
                let serve = client::serve(client, taken, Rc::clone(&responder), closed.clone());
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

/// Takes the next message of a client.
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

/// The pause after the kernel had no descriptor for a client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
