//! Decides whether a program under `tacit run` gets a socket of the agent's network. The run's
//! helper process asks this for each `connect` call.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tacit_core::datagram::is_for_one;
use tacit_core::flow::{Address, Protocol};
use tacit_core::policy::PathChoice;
use tacit_sys::handed::{self, SocketIdentity};
use tacit_sys::{IpVersion, descriptor};
use tokio::net::UnixStream;

use super::table::{HandedConnections, StartedConnection};
use crate::dns::Forwarder;
use crate::live::LiveAction;
use crate::run::Scope;
use crate::run::channel::{adopt, read_frame, write_frame};
use crate::run::protocol::{
    ConnectAnswer, ConnectProgress, ConnectQuestion, FromConnects, HelperRequest, REPORT_BYTES_MAX,
    RelayReason, encode,
};
use crate::session::{Failure, Unreached, account};
use crate::stream::admit::{self, ReservedConnection};
use crate::stream::intercept::flow_of_program;
use crate::stream::lane::Shared;

/// The maximum number of sockets for which the helper has not reported a result.
pub(super) const PENDING_MAX: usize = 4096;

/// Decides for the programs of one run.
#[derive(Debug)]
pub struct ConnectJudge {
    shared: Shared,
    scope: Scope,
    names: Arc<Forwarder>,
    table: Rc<HandedConnections>,
    pending: HashMap<u64, PendingSocket>,
    /// The generation of the policy, and whether a rule depends on the program's address.
    selects_local: Option<(u64, bool)>,
}

/// A socket that the helper has, and no program yet.
#[derive(Debug)]
struct PendingSocket {
    reserved: ReservedConnection,
    question: ConnectQuestion,
    identity: SocketIdentity,
    to: SocketAddr,
    asked: Instant,
}

impl ConnectJudge {
    /// For the programs of this scope, whose DNS queries `names` answers.
    #[must_use]
    pub fn new(
        shared: Shared,
        scope: Scope,
        names: Arc<Forwarder>,
        table: Rc<HandedConnections>,
    ) -> Self {
        let pending = HashMap::new();
        Self { shared, scope, names, table, pending, selects_local: None }
    }

    /// Offers the helper to answer its questions; returns the channel for [`Self::serve`].
    ///
    /// # Errors
    /// The helper does not answer, or the kernel does not number network namespaces.
    pub async fn offer(&self) -> io::Result<UnixStream> {
        let own = handed::new_tcp(IpVersion::V4)?;
        let outside = handed::namespace_cookie(own.as_fd())?;
        let mut channel = adopt(self.scope.run().helper.another().await?)?;
        write_frame(&mut channel, &HelperRequest::Connects { outside }).await?;
        self.scope.run().begin_judging();
        Ok(channel)
    }

    /// Answers until the helper ends.
    pub async fn serve(mut self, mut channel: UnixStream) {
        while let Ok(Some(frame)) = read_frame(&mut channel, REPORT_BYTES_MAX).await {
            match frame.message {
                FromConnects::Question(question) => {
                    if self.answer(&channel, question).is_err() {
                        return;
                    }
                }
                FromConnects::Relayed { remote, reason } => {
                    self.scope.run().note_relayed(remote, reason);
                }
                FromConnects::Started { number, local, progress } => {
                    self.start(number, local, progress);
                }
                FromConnects::Ended { number, error } => self.end(number, error),
            }
        }
    }

    fn answer(&mut self, channel: &UnixStream, question: ConnectQuestion) -> io::Result<()> {
        let number = question.number;
        let judged = self.judge(&question);
        let made = judged.and_then(|judged| {
            let Judged { reserved, to } = judged;
            let socket =
                self.socket(version_of(&question)).map_err(|_| Some(RelayReason::Kernel))?;
            let identity = handed::identity(socket.as_fd());
            let identity = identity.map_err(|_| Some(RelayReason::Kernel))?;
            let asked = Instant::now();
            Ok((socket, PendingSocket { reserved, question, identity, to, asked }))
        });
        let (socket, pending) = made.ok().unzip();
        let to = pending.as_ref().map(|pending| pending.to);
        if let Some(pending) = pending {
            self.table.expect(pending.identity.cookie);
            self.pending.insert(number, pending);
        }
        let frame = encode(&ConnectAnswer { number, to })?;
        let descriptors: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
        // The helper reads each answer before the program continues, so the buffer has room.
        let sent = descriptor::send(channel, &frame, &descriptors)?;
        if sent == frame.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// A socket without options of the agent: the program gets what it would get without tacit.
    fn socket(&self, version: IpVersion) -> io::Result<OwnedFd> {
        let socket = handed::new_tcp(version)?;
        if let Some(name) = &self.shared.congestion_control {
            tacit_sys::socket::set_congestion_control(socket.as_fd(), name)?;
        }
        Ok(socket)
    }

    /// Decides about a connection. The error is the reason to relay it, if its rule permits it.
    fn judge(&mut self, question: &ConnectQuestion) -> Result<Judged, Option<RelayReason>> {
        let noted = self.decide(question);
        if let Err(Some(reason)) = &noted {
            self.scope.run().note_relayed(question.remote, *reason);
        }
        noted
    }

    fn decide(&mut self, question: &ConnectQuestion) -> Result<Judged, Option<RelayReason>> {
        let remote = question.remote;
        let local = SocketAddr::new(version_of(question).unspecified(), 0);
        let run = self.scope.run();
        let is_question = self.names.answers(Protocol::Tcp, &local.into(), remote);
        if is_question || run.is_expected(remote) || !is_for_one(remote.ip()) {
            return Err(None);
        }
        let live = self.shared.live.load_full();
        let generation = live.generation;
        let known = self.selects_local.filter(|(known, _)| *known == generation);
        let selects_local = known.map_or_else(|| live.policy.selects_local(), |(_, known)| known);
        self.selects_local = Some((generation, selects_local));
        let mut flow = flow_of_program(&self.scope, Protocol::Tcp, local.into(), remote.into());
        self.scope.attribute(&mut flow, Some(question.owner.clone()));
        let Address::Inet(to) = flow.remote else { return Err(None) };
        let to_own_host = flow.to_own_host;
        let rule = match live.decide(&mut flow) {
            Ok(rule) if matches!(rule.action, LiveAction::Permit) => Arc::clone(rule),
            _ => return Err(None),
        };
        let reason = if live.policy.path_of(&rule.rule) != PathChoice::Auto {
            let audited = rule.rule.audited.is_some();
            Some(if audited { RelayReason::Audit } else { RelayReason::Path })
        } else if to_own_host || to.ip().is_loopback() {
            Some(RelayReason::Local)
        } else if selects_local {
            Some(RelayReason::Selector)
        } else if rule.rule.idle.is_some() {
            Some(RelayReason::Idle)
        } else if !self.shared.table.traces().is_empty() {
            Some(RelayReason::Trace)
        } else if self.pending.len() >= PENDING_MAX {
            Some(RelayReason::Limit)
        } else {
            None
        };
        if reason.is_some() {
            return Err(reason);
        }
        let reserved = admit::reserve(&self.shared, rule, flow, self.scope.clone());
        let reserved = reserved.ok_or(Some(RelayReason::Limit))?;
        Ok(Judged { reserved, to })
    }

    fn start(&mut self, number: u64, local: SocketAddr, progress: ConnectProgress) {
        let Some(pending) = self.pending.remove(&number) else { return };
        let PendingSocket { reserved, question, identity, to, asked } = pending;
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        let connection = reserved.open(&self.shared, local, question.owner);
        let started = StartedConnection { connection, identity, local, to, asked };
        self.table.start(started, number, progress, self.scope.run());
    }

    /// The program has no socket of the agent. With an error, its connection has failed.
    fn end(&mut self, number: u64, error: Option<i32>) {
        let pending = self.pending.remove(&number);
        let error = error.map(io::Error::from_raw_os_error);
        let Some(pending) = pending else {
            // It has started before, and has failed then.
            if let Some(error) = error {
                self.table.fail(self.scope.run(), number, &error);
            }
            return;
        };
        self.table.forget(pending.identity.cookie);
        let Some(error) = error else { return };
        let PendingSocket { reserved, question, to, .. } = pending;
        let local = SocketAddr::new(version_of(&question).unspecified(), 0);
        let connection = reserved.open(&self.shared, local, question.owner);
        let failure = Failure::Dial(Unreached::new(&to, &error));
        account::failed(&self.shared.log, &connection, &failure);
        connection.record().settle();
    }
}

/// A connection for which the program gets a socket.
struct Judged {
    reserved: ReservedConnection,
    /// The address to which the socket is connected.
    to: SocketAddr,
}

fn version_of(question: &ConnectQuestion) -> IpVersion {
    if question.ipv6 { IpVersion::V6 } else { IpVersion::V4 }
}
