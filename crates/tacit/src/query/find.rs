//! Answers the queries of programs about their connections. A query contains a descriptor of a
//! socket. This module finds the connection of this socket.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tacit_core::flow::Protocol;
use tacit_core::query::{ANSWER_BYTES_MAX, ConnectionState, PolicyState, QueryError, QueryRequest};
use tacit_sys::watch::Watched;
use tacit_sys::{process, query, socket};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::answer::{self, QueryAnswer};
use super::{receive, send};
use crate::run::Run;
use crate::run::protocol::{SocketEnds, SocketOwner};
use crate::session::tls_control::TlsRequestError;
use crate::session::{ConnectionRecord, ConnectionTable};

/// How long the agent waits for a connection: the program's socket is open a moment before the
/// agent's.
const RECORD_WAIT_MAX: Duration = Duration::from_secs(1);
/// The first interval between two checks.
const RECORD_POLL_MIN: Duration = Duration::from_millis(1);
/// The longest interval between two checks.
const RECORD_POLL_MAX: Duration = Duration::from_millis(50);

/// Answers the queries of one run.
#[derive(Debug)]
pub(super) struct QueryResponder {
    run: Arc<Run>,
    table: Arc<ConnectionTable>,
    /// The network namespace of the run.
    network: u64,
    /// The network namespace of the agent.
    outside: u64,
    /// That of sockets that programs get.
    handed: u64,
    /// The socket to the previous agent, for one query at a time; `None` when that agent has ended.
    predecessor: Mutex<Option<Watched>>,
}

/// How to handle a connection that the agent does not know yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfUnknown {
    /// Wait for it.
    Wait,
    /// Refuse.
    Refuse,
}

/// The connection of a descriptor.
struct Found {
    ends: SocketEnds,
    origin: SocketOrigin,
}

/// Where the socket of a descriptor was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketOrigin {
    /// In the network of the run.
    Run,
    /// In the network of handed sockets: it is one, or was made outside the run and passed to its
    /// program.
    Agent,
}

impl QueryResponder {
    pub(super) fn new(
        run: Arc<Run>,
        table: Arc<ConnectionTable>,
        network: u64,
        predecessor: Option<Watched>,
    ) -> std::io::Result<Self> {
        let outside = query::own_network()?;
        let handed = run.outside.handed_namespace().unwrap_or(outside);
        Ok(Self { run, table, network, outside, handed, predecessor: Mutex::new(predecessor) })
    }

    /// Answers one query about the connection of a descriptor.
    ///
    /// # Errors
    /// The descriptor is not a connection of this run, or the request failed.
    pub(super) async fn answer(
        &self,
        question: QueryRequest,
        descriptor: &Arc<OwnedFd>,
        if_unknown: IfUnknown,
    ) -> Result<Value, TlsRequestError> {
        let Some(found) = self.look_at(descriptor.as_fd())? else {
            return Ok(unprotected(question, PolicyState::Off)?);
        };
        if let Some(record) = self.find(&found) {
            return answer::about(&record, question, descriptor).await;
        }
        if let Some(answer) = self.ask_predecessor(question, descriptor).await {
            return Ok(answer);
        }
        if if_unknown == IfUnknown::Refuse {
            return Err(QueryError::Unknown.into());
        }
        let until = Instant::now() + RECORD_WAIT_MAX;
        let mut pause = RECORD_POLL_MIN;
        loop {
            if found.origin == SocketOrigin::Run && self.is_within(&found.ends).await {
                return Ok(unprotected(question, PolicyState::None)?);
            }
            tokio::time::sleep(pause).await;
            if let Some(record) = self.find(&found) {
                return answer::about(&record, question, descriptor).await;
            }
            if Instant::now() > until {
                return match found.origin {
                    SocketOrigin::Run => Err(QueryError::Unknown.into()),
                    SocketOrigin::Agent => Ok(unprotected(question, PolicyState::Off)?),
                };
            }
            pause = (pause * 2).min(RECORD_POLL_MAX);
        }
    }

    /// Finds the addresses of the descriptor's socket; `None` if it was made outside the run.
    fn look_at(&self, descriptor: BorrowedFd<'_>) -> Result<Option<Found>, QueryError> {
        if !query::is_tcp(descriptor) {
            return Err(QueryError::NotTcp);
        }
        let origin = match query::network_of(descriptor) {
            Ok(network) if network == self.network => SocketOrigin::Run,
            Ok(network) if network == self.handed && self.hands_sockets() => SocketOrigin::Agent,
            Ok(network) if network == self.outside => return Ok(None),
            _ => return Err(QueryError::NotThisRun),
        };
        let inet = |address: socket::SocketAddress| SocketAddr::try_from(address).ok();
        let program = socket::local_address(descriptor).ok().and_then(inet);
        let peer = socket::peer_address(descriptor).ok().flatten().and_then(inet);
        let (Some(program), Some(peer)) = (program, peer) else {
            return Err(QueryError::NotConnected);
        };
        let [program, peer] = [program, peer].map(canonical);
        let ends = SocketEnds { protocol: Protocol::Tcp, program, peer };
        Ok(Some(Found { ends, origin }))
    }

    /// Whether programs of the run may have sockets of the agent.
    fn hands_sockets(&self) -> bool {
        self.run.is_own() && self.run.why_all_relayed().is_none()
    }

    /// The connection of the run with these addresses.
    fn find(&self, found: &Found) -> Option<Arc<ConnectionRecord>> {
        let Found { ends, origin } = found;
        self.table.find_where(|record| {
            let of_record = || match origin {
                SocketOrigin::Run => record.ends(),
                SocketOrigin::Agent => record.handed_ends(),
            };
            record.is_of_run(self.run.id)
                && of_record().is_some_and(|of_record| {
                    of_record.protocol == ends.protocol
                        && canonical(of_record.program) == ends.program
                        && canonical(of_record.peer) == ends.peer
                })
        })
    }

    /// Whether the other end is a program of the run, too. A private agent is a descendant of the
    /// launcher as programs are, so the supervisor, its parent, tells it apart.
    async fn is_within(&self, ends: &SocketEnds) -> bool {
        let SocketEnds { protocol, program, peer } = *ends;
        let supervisor = std::os::unix::process::parent_id();
        let parent = |owner: SocketOwner| process::parent_of(i32::try_from(owner.pid?).ok()?);
        let is_program = |owner| parent(owner).is_some_and(|parent| parent != supervisor);
        let owner = self.run.helper.owner(protocol, peer, program).await;
        owner.is_ok_and(|owner| owner.is_some_and(is_program))
    }

    /// The predecessor's answer about a connection that it still relays.
    async fn ask_predecessor(&self, question: QueryRequest, descriptor: &OwnedFd) -> Option<Value> {
        let mut predecessor = self.predecessor.lock().await;
        let line = predecessor.as_ref()?;
        let conversation = async {
            send(line, question.word().as_bytes(), Some(descriptor)).await.ok()?;
            let mut buffer = vec![0; ANSWER_BYTES_MAX];
            let message = receive(line, &mut buffer).await.ok()?;
            serde_json::from_slice::<Value>(buffer.get(..message.bytes)?).ok()
        };
        let Some(answer) = conversation.await else {
            *predecessor = None;
            return None;
        };
        let is_unknown = answer["error"] == serde_json::json!(QueryError::Unknown);
        (!is_unknown).then_some(answer)
    }
}

/// The answer for a connection without a rule.
fn unprotected(question: QueryRequest, policy: PolicyState) -> Result<Value, QueryError> {
    match question {
        QueryRequest::Query => Ok(QueryAnswer::plain(policy, ConnectionState::Clear).value()),
        QueryRequest::Start | QueryRequest::Stop | QueryRequest::Rekey => Err(QueryError::Denied),
    }
}

/// Without IPv6 scopes, and IPv4-mapped addresses as IPv4: the two ends may see these differently.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
