//! Takes over listening sockets from another agent, or from systemd. The new agent is the
//! *successor*. The agent that it replaces is the *predecessor*.
//!
//! ```text
//!   successor                         predecessor
//!   TakeOver ───────────────────────> sends the addresses of its listening sockets,
//!            <─────────────────────── then the sockets, one in each message
//!   (opens missing sockets, serves)
//!   ClearAccess  ───────────────────> sends, for each rule, the clients that must use TLS
//!   RelayedFlows ───────────────────> sends the flows of the captured host that it relays
//!   Release  ───────────────────────> stops accepting, serves open connections to their end,
//!            <─────────────────────── and sends its runs and their sockets, one in each message
//! ```
//!
//! Until `Release`, both agents accept connections, so that no connection is refused. If the
//! successor fails before `Release`, the predecessor continues. Runs (programs under `tacit run`)
//! are handed over at `Release`.

use std::collections::BTreeMap;
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
use crate::control::client::{ClientError, ask_long_on, ask_on, typed};
use crate::control::secret::SuccessorSecret;
use crate::control::server::Reply;

use super::coverage::RelayedFlow;
use super::opened::{self, Inherited, InheritedFile, ListenError, Opened, RequiredListener};
use crate::live::ClearAccessState;
use crate::run::handover::RunState;

/// Sockets that were passed to this agent and are not used yet.
#[derive(Debug, Default)]
pub(super) struct Handover {
    sockets: Vec<PredecessorSocket>,
    /// The control connection to the predecessor; `None` if systemd passed the sockets.
    predecessor: Option<UnixStream>,
}

/// A listening socket that another process opened.
#[derive(Debug)]
struct PredecessorSocket {
    address: Address,
    inherited: Inherited,
}

/// The description of a listening socket for a successor: its address, and whether it has a file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announced(pub(crate) Address, pub(crate) bool);

/// A run of the predecessor: its state and its sockets.
#[derive(Debug)]
pub(super) struct HandedRun {
    pub(super) state: RunState,
    pub(super) sockets: Vec<OwnedFd>,
}

/// A predecessor that has been released.
#[derive(Debug, Default)]
pub(super) struct Released {
    /// Its runs.
    pub(super) runs: Vec<HandedRun>,
    /// The flows of the captured host that it, or an agent before it, relays.
    pub(super) relayed: Vec<RelayedFlow>,
}

impl Handover {
    /// Sockets of socket activation.
    #[must_use]
    pub(super) fn from_activation(sockets: Vec<OwnedFd>) -> Self {
        let named = sockets.into_iter().filter_map(|socket| {
            let address = address::from_socket(&socket::local_address(socket.as_fd()).ok()?);
            // systemd removes the file.
            let inherited = Inherited { socket, file: InheritedFile::Opener };
            Some(PredecessorSocket { address, inherited })
        });
        Self { sockets: named.collect(), predecessor: None }
    }

    /// Returns the listening socket for an address: a passed one, or a new one.
    ///
    /// # Errors
    /// See [`opened::open`].
    pub(super) fn open(
        &mut self,
        wanted: &RequiredListener,
        congestion_control: Option<&str>,
    ) -> Result<Opened, ListenError> {
        let given = self.sockets.iter().position(|given| given.address == wanted.address);
        match given.map(|at| self.sockets.swap_remove(at)) {
            Some(given) => opened::adopt(wanted, given.inherited, congestion_control),
            None => opened::open(wanted, congestion_control),
        }
    }

    /// Returns which clients need TLS, by rule, as recorded by the predecessor; nothing if the
    /// predecessor's version has no such rules.
    ///
    /// # Errors
    /// The predecessor has ended.
    pub(super) fn clear_access(&self) -> Result<BTreeMap<String, ClearAccessState>, ClientError> {
        let Some(predecessor) = &self.predecessor else { return Ok(BTreeMap::new()) };
        match ask_long_on(predecessor, &Request::ClearAccess) {
            Ok(states) => serde_json::from_value(states)
                .map_err(|error| ClientError::Broken(io::Error::other(error))),
            Err(ClientError::Refused(_)) => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        }
    }

    /// Releases the predecessor, and takes over its runs. Removes socket files of the predecessor
    /// that this agent does not use.
    ///
    /// # Errors
    /// The predecessor refuses, or has ended.
    pub(super) fn release(self) -> Result<Released, ClientError> {
        let Some(predecessor) = self.predecessor else { return Ok(Released::default()) };
        // Older versions do not know this request. Without an answer, only the coverage is less
        // exact.
        let relayed = relayed_flows(&predecessor).unwrap_or_default();
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
        Ok(Released { runs, relayed })
    }
}

/// Parses the runs of the predecessor; an agent of an older version reports none.
pub(crate) fn parse_runs(answer: Value) -> Result<Vec<RunState>, ClientError> {
    let runs: Option<Vec<RunState>> = serde_json::from_value(answer)
        .map_err(|error| ClientError::Broken(io::Error::other(error)))?;
    Ok(runs.unwrap_or_default())
}

/// Parses the descriptions of the predecessor's listening sockets.
pub(crate) fn parse_announced(answer: Value) -> Result<Vec<Announced>, ClientError> {
    serde_json::from_value(answer).map_err(|error| ClientError::Broken(io::Error::other(error)))
}

fn relayed_flows(predecessor: &UnixStream) -> Result<Vec<RelayedFlow>, ClientError> {
    typed(ask_long_on(predecessor, &Request::RelayedFlows)?)
}

fn receive_one(predecessor: &UnixStream) -> Result<OwnedFd, ClientError> {
    let mut received =
        descriptor::receive(predecessor, &mut [0; 1]).map_err(ClientError::Broken)?;
    received
        .descriptors
        .pop()
        .ok_or_else(|| ClientError::Broken(io::ErrorKind::UnexpectedEof.into()))
}

/// Requests the listening sockets of the running agent.
///
/// # Errors
/// No agent is running, or it refuses.
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
            Err(error) => {
                let reason = format!("cannot duplicate a listening socket: {error}");
                return Reply::error(reason);
            }
        }
    }
    let mut reply = Reply::ok(json!(announced));
    reply.descriptors = descriptors;
    reply
}

/// Duplicates a listening UNIX socket for the control runtime.
///
/// # Errors
/// The limit of open files is reached.
pub(super) fn listen_on(socket: &OwnedFd) -> io::Result<UnixListener> {
    UnixListener::from_std(socket.try_clone()?.into())
}
