//! Listening sockets from others: from systemd, or from the agent that this one replaces.
//!
//! ```text
//!   successor                         agent in place
//!   TakeOver ───────────────────────> names of its listening sockets,
//!            <─────────────────────── then the sockets, one to a message
//!   (opens what is missing, serves)
//!   Release  ───────────────────────> accepts no more, serves what is open to its end
//!            <─────────────────────── runs, then their sockets, one to a message
//! ```
//!
//! Until `Release` both accept: no connection is refused in between. If the successor fails before
//! it, nothing has changed. Runs change hands in one step, at `Release`: what arrives in between
//! waits in their sockets.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::json;
use tacit_core::flow::Address;
use tacit_sys::{descriptor, socket};
use tokio::net::UnixListener;

use crate::address;
use crate::control::Request;
use crate::control::client::{ClientError, ask_on};
use crate::control::server::Reply;

use super::listeners::{self, ListenError, Opened, Wanted};
use crate::run::handover::RunState;

/// Sockets that were given to us and are not used yet.
#[derive(Debug, Default)]
pub(super) struct Handover {
    sockets: Vec<Given>,
    /// The agent to release; none where the sockets came from systemd.
    predecessor: Option<UnixStream>,
}

/// A listening socket from somebody else.
#[derive(Debug)]
struct Given {
    address: Address,
    socket: OwnedFd,
    /// Whether its file is removed by whoever has the socket last; systemd keeps its own.
    with_file: bool,
}

impl Handover {
    /// Sockets of socket activation.
    #[must_use]
    pub(super) fn from_activation(sockets: Vec<OwnedFd>) -> Self {
        let named = sockets.into_iter().filter_map(|socket| {
            let address = socket::local_address(socket.as_fd()).ok()?;
            let address = address::from_socket(&address);
            Some(Given { address, socket, with_file: false })
        });
        Self { sockets: named.collect(), predecessor: None }
    }

    /// The listening socket at an address: one that was given, or a new one.
    ///
    /// # Errors
    /// See [`listeners::open`].
    pub(super) fn open(
        &mut self,
        address: &Address,
        wanted: &Wanted,
        congestion_control: Option<&str>,
    ) -> Result<Opened, ListenError> {
        let given = self.sockets.iter().position(|given| given.address == *address);
        match given.map(|at| self.sockets.swap_remove(at)) {
            Some(Given { socket, with_file, .. }) => {
                listeners::adopt(address, wanted, socket, congestion_control, with_file)
            }
            None => listeners::open(address, wanted, congestion_control),
        }
    }

    /// Tells the agent in place that this one serves, and takes its runs. Socket files that it had
    /// and this one has no use for are removed.
    ///
    /// # Errors
    /// It refuses, or is gone.
    pub(super) fn release(self) -> Result<Vec<(RunState, Vec<OwnedFd>)>, ClientError> {
        let Some(predecessor) = self.predecessor else { return Ok(Vec::new()) };
        let runs = ask_on(&predecessor, &Request::Release)?;
        // An agent of an older version has none.
        let runs: Option<Vec<RunState>> = serde_json::from_value(runs)
            .map_err(|error| ClientError::Broken(io::Error::other(error)))?;
        let runs = runs.unwrap_or_default().into_iter().map(|state| {
            let sockets = (0..state.sockets).map(|_| receive_one(&predecessor));
            sockets.collect::<Result<_, _>>().map(|sockets| (state, sockets))
        });
        let runs = runs.collect::<Result<_, _>>()?;
        for unused in self.sockets.iter().filter(|given| given.with_file) {
            listeners::remove_file(&unused.address);
        }
        Ok(runs)
    }
}

fn receive_one(predecessor: &UnixStream) -> Result<OwnedFd, ClientError> {
    let (_, mut received) =
        descriptor::receive(predecessor, &mut [0; 1]).map_err(ClientError::Broken)?;
    received.pop().ok_or_else(|| ClientError::Broken(io::ErrorKind::UnexpectedEof.into()))
}

/// Asks the agent in place for its sockets.
///
/// # Errors
/// There is none, or it refuses.
pub(super) fn request(control: &Path) -> Result<Handover, ClientError> {
    let predecessor = UnixStream::connect(control)
        .map_err(|error| ClientError::NoAgent(control.to_owned(), error))?;
    let names = ask_on(&predecessor, &Request::TakeOver)?;
    let names: Vec<(Address, bool)> = serde_json::from_value(names)
        .map_err(|error| ClientError::Broken(io::Error::other(error)))?;
    let mut sockets = Vec::with_capacity(names.len());
    for (address, with_file) in names {
        let socket = receive_one(&predecessor)?;
        sockets.push(Given { address, socket, with_file });
    }
    Ok(Handover { sockets, predecessor: Some(predecessor) })
}

/// Answers [`request`].
pub(super) fn offer<'a>(control: &'a Opened, listening: impl Iterator<Item = &'a Opened>) -> Reply {
    let mut names = Vec::new();
    let mut descriptors = Vec::new();
    for opened in std::iter::once(control).chain(listening) {
        match opened.listener.socket.try_clone() {
            Ok(socket) => {
                names.push((&opened.listener.address, opened.has_file()));
                descriptors.push(socket);
            }
            Err(error) => return Reply::error(format!("no descriptor for the successor: {error}")),
        }
    }
    let mut reply = Reply::ok(json!(names));
    reply.descriptors = descriptors;
    reply
}

/// A copy of a listening UNIX socket for the control runtime.
///
/// # Errors
/// No descriptor is left.
pub(super) fn listen_on(socket: &OwnedFd) -> io::Result<UnixListener> {
    UnixListener::from_std(socket.try_clone()?.into())
}
