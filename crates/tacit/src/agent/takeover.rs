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

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tacit_core::flow::Address;
use tacit_sys::{descriptor, socket};
use tokio::net::UnixListener;

use crate::address;
use crate::control::Request;
use crate::control::client::{ClientError, ask_on};
use crate::control::secret::SuccessorSecret;
use crate::control::server::Reply;

use super::opened::{self, Inherited, InheritedFile, ListenError, Opened, Wanted};
use crate::run::handover::RunState;

/// Sockets that were given to us and are not used yet.
#[derive(Debug, Default)]
pub(super) struct Handover {
    sockets: Vec<PredecessorSocket>,
    /// The agent to release; none where the sockets came from systemd.
    predecessor: Option<UnixStream>,
}

/// A listening socket from somebody else.
#[derive(Debug)]
struct PredecessorSocket {
    address: Address,
    inherited: Inherited,
}

/// A listening socket as an agent announces it: its address, and whether it has a file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announced(pub(crate) Address, pub(crate) bool);

/// A run of the agent before this one, in words, with its sockets.
#[derive(Debug)]
pub(super) struct HandedRun {
    pub(super) state: RunState,
    pub(super) sockets: Vec<OwnedFd>,
}

impl Handover {
    /// Sockets of socket activation.
    #[must_use]
    pub(super) fn from_activation(sockets: Vec<OwnedFd>) -> Self {
        let named = sockets.into_iter().filter_map(|socket| {
            let address = address::from_socket(&socket::local_address(socket.as_fd()).ok()?);
            // systemd keeps the file.
            let inherited = Inherited { socket, file: InheritedFile::Opener };
            Some(PredecessorSocket { address, inherited })
        });
        Self { sockets: named.collect(), predecessor: None }
    }

    /// The listening socket at an address: one that was given, or a new one.
    ///
    /// # Errors
    /// See [`opened::open`].
    pub(super) fn open(
        &mut self,
        wanted: &Wanted,
        congestion_control: Option<&str>,
    ) -> Result<Opened, ListenError> {
        let given = self.sockets.iter().position(|given| given.address == wanted.address);
        match given.map(|at| self.sockets.swap_remove(at)) {
            Some(given) => opened::adopt(wanted, given.inherited, congestion_control),
            None => opened::open(wanted, congestion_control),
        }
    }

    /// Tells the agent in place that this one serves, and takes its runs. Socket files that it had
    /// and this one has no use for are removed.
    ///
    /// # Errors
    /// It refuses, or is gone.
    pub(super) fn release(self) -> Result<Vec<HandedRun>, ClientError> {
        let Some(predecessor) = self.predecessor else { return Ok(Vec::new()) };
        let mut runs = Vec::new();
        for state in parse_runs(ask_on(&predecessor, &Request::Release)?)? {
            let sockets = (0..state.sockets).map(|_| receive_one(&predecessor));
            let sockets = sockets.collect::<Result<_, _>>()?;
            runs.push(HandedRun { state, sockets });
        }
        let has_file = |given: &&PredecessorSocket| given.inherited.file == InheritedFile::Agent;
        for unused in self.sockets.iter().filter(has_file) {
            opened::remove_file(&unused.address);
        }
        Ok(runs)
    }
}

/// The runs that an agent gives away; one of an older version has none.
pub(crate) fn parse_runs(answer: Value) -> Result<Vec<RunState>, ClientError> {
    let runs: Option<Vec<RunState>> = serde_json::from_value(answer)
        .map_err(|error| ClientError::Broken(io::Error::other(error)))?;
    Ok(runs.unwrap_or_default())
}

/// The listening sockets that an agent offers.
pub(crate) fn parse_announced(answer: Value) -> Result<Vec<Announced>, ClientError> {
    serde_json::from_value(answer).map_err(|error| ClientError::Broken(io::Error::other(error)))
}

fn receive_one(predecessor: &UnixStream) -> Result<OwnedFd, ClientError> {
    let mut received =
        descriptor::receive(predecessor, &mut [0; 1]).map_err(ClientError::Broken)?;
    received
        .descriptors
        .pop()
        .ok_or_else(|| ClientError::Broken(io::ErrorKind::UnexpectedEof.into()))
}

/// Asks the agent in place for its sockets.
///
/// # Errors
/// There is none, or it refuses.
pub(super) fn request(
    control: &Path,
    secret: Option<&SuccessorSecret>,
) -> Result<Handover, ClientError> {
    let predecessor = UnixStream::connect(control)
        .map_err(|error| ClientError::NoAgent(control.to_owned(), error))?;
    let request = Request::TakeOver { secret: secret.map(SuccessorSecret::to_text) };
    let announced = parse_announced(ask_on(&predecessor, &request)?)?;
    let mut sockets = Vec::with_capacity(announced.len());
    for Announced(address, has_file) in announced {
        let socket = receive_one(&predecessor)?;
        let file = if has_file { InheritedFile::Agent } else { InheritedFile::Opener };
        sockets.push(PredecessorSocket { address, inherited: Inherited { socket, file } });
    }
    Ok(Handover { sockets, predecessor: Some(predecessor) })
}

/// Answers [`request`].
pub(super) fn offer<'a>(sockets: impl Iterator<Item = &'a Opened>) -> Reply {
    let mut announced = Vec::new();
    let mut descriptors = Vec::new();
    for opened in sockets {
        match opened.listener.socket.try_clone() {
            Ok(socket) => {
                let address = opened.listener.address.clone();
                announced.push(Announced(address, opened.has_file()));
                descriptors.push(socket);
            }
            Err(error) => return Reply::error(format!("no descriptor for the successor: {error}")),
        }
    }
    let mut reply = Reply::ok(json!(announced));
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
