//! Decides whether a program under `tacit run` gets a socket of the agent's network namespace,
//! instead of a relayed connection. The run's helper process asks for this decision at each
//! `connect` call.
//!
//! If the run uses a link, the server of the link also decides, by its own rules. The server opens
//! the socket, and passes the socket directly to the helper. Some servers cannot do this, for
//! example servers of an older version of tacit. These servers pass the socket to the agent, and
//! the agent passes it to the helper.
//!
//! While the server decides, this module answers other requests of helpers.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tacit_core::datagram::is_for_one;
use tacit_core::flow::{Address, Protocol};
use tacit_sys::IpVersion;
use tacit_sys::handed::{self, SocketIdentity};
use tacit_sys::watch::{Watched, watch};
use tokio::io::Interest;
use tokio::task::JoinSet;

use super::table::{
    ExpectedSocket, HandedConnections, LINK_WAIT_MAX, RequestToLink, StartedConnection,
};
use crate::dns::Forwarder;
use crate::live::LiveAction;
use crate::run::channel::{adopt, read_frame, write_frame};
use crate::run::link::client::{LinkClient, PassedSocket};
use crate::run::link::protocol::OpenKind;
use crate::run::protocol::{
    ConnectAnswer, ConnectProgress, ConnectQuestion, FromConnects, HelperReply, HelperRequest,
    REPLY_BYTES_MAX, REPORT_BYTES_MAX, RelayReason, ToConnects, receive_packet, send_packet,
    send_with_socket,
};
use crate::run::{Outside, Scope};
use crate::session::{Failure, Unreached, account};
use crate::stream::admit::{self, ReservedConnection};
use crate::stream::intercept::flow_of_program;
use crate::stream::lane::Shared;

/// How long the helper may take to accept the offer.
const OFFER_WAIT_MAX: Duration = Duration::from_secs(1);
/// The largest number of reports about one question before the end of its request to a link. A
/// helper sends two at most, such as that the program has the socket, and that it has lost it.
const EARLY_REPORTS_MAX: usize = 4;
/// The numbers of errors.
const ERRORS: std::ops::RangeInclusive<i32> = 1..=4095;
/// The maximum number of sockets that were requested from a link, or for which the helper has not
/// reported a result.
pub(super) const PENDING_MAX: usize = 4096;

/// Decides for the programs of one run.
#[derive(Debug)]
pub struct ConnectJudge {
    shared: Shared,
    scope: Scope,
    names: Arc<Forwarder>,
    table: Rc<HandedConnections>,
    pending: HashMap<u64, PendingSocket>,
    /// Sockets of the agent for the next answers, for IPv4 and IPv6.
    spare: [Option<OwnSocket>; 2],
    /// Requests for sockets of a link, each for the connection that it is for.
    requests: JoinSet<Requested>,
    /// What the helper has reported about sockets before the end of their requests, by the numbers
    /// of the questions.
    early: HashMap<u64, Vec<FromConnects>>,
    /// The generation of the policy of which the helper knows what to ask about.
    sent_generation: u64,
}

/// A socket of the agent that no program has.
#[derive(Debug)]
struct OwnSocket {
    socket: OwnedFd,
    identity: SocketIdentity,
}

/// A socket that the helper has, and no program yet.
#[derive(Debug)]
struct PendingSocket {
    reserved: ReservedConnection,
    question: ConnectQuestion,
    expected: ExpectedSocket,
    to: SocketAddr,
    requested: Instant,
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
        let requests = JoinSet::new();
        let early = HashMap::new();
        Self {
            shared,
            scope,
            names,
            table,
            pending,
            spare: [None, None],
            requests,
            early,
            sent_generation: 0,
        }
    }

    /// Offers the helper to answer its questions; returns the socket for [`Self::serve`].
    ///
    /// # Errors
    /// The helper does not answer, or the kernel does not number network namespaces.
    pub async fn offer(&mut self) -> io::Result<Watched> {
        let outside = match self.scope.run().outside.handed_namespace() {
            Some(of_link) => of_link,
            None => {
                let own = self.socket(IpVersion::V4)?;
                let cookie = handed::namespace_cookie(own.socket.as_fd())?;
                self.spare[IpVersion::V4.index()] = Some(own);
                cookie
            }
        };
        let mut channel = adopt(self.scope.run().helper.another().await?)?;
        write_frame(&mut channel, &HelperRequest::Connects { outside }).await?;
        let reply = read_frame::<HelperReply>(&mut channel, REPLY_BYTES_MAX);
        let reply = tokio::time::timeout(OFFER_WAIT_MAX, reply).await;
        let mut reply = reply??.ok_or(io::ErrorKind::UnexpectedEof)?;
        let socket = reply.descriptors.pop().ok_or(io::ErrorKind::InvalidData)?;
        let questions = watch(Arc::new(socket), Interest::READABLE)?;
        self.update_helper(&questions)?;
        Ok(questions)
    }

    /// Answers until the helper ends.
    pub async fn serve(mut self, questions: Watched) {
        let mut space = vec![0; REPORT_BYTES_MAX];
        let scope = self.scope.clone();
        while self.update_helper(&questions).is_ok() {
            let message = tokio::select! {
                received = receive(&questions, &mut space) => received,
                () = scope.run().reloaded() => continue,
                Some(requested) = self.requests.join_next() => {
                    let Ok(requested) = requested else { return };
                    if self.conclude(&questions, requested).is_err() {
                        return;
                    }
                    continue;
                }
            };
            let Ok(Some(message)) = message else { return };
            if let FromConnects::Question(question) = message {
                if self.answer(&questions, question).is_err() {
                    return;
                }
                continue;
            }
            match message.of_question().and_then(|number| self.early.get_mut(&number)) {
                Some(early) if early.len() < EARLY_REPORTS_MAX => early.push(message),
                // The helper has broken the protocol.
                Some(_) => return,
                None => self.take_report(message),
            }
        }
    }

    /// The helper reports what has become of a question.
    fn take_report(&mut self, report: FromConnects) {
        match report {
            FromConnects::Question(_) => {}
            FromConnects::Relayed { number, remote, reason } => {
                if let Some(number) = number {
                    self.end(number, None);
                }
                self.scope.run().note_relayed(remote, reason);
            }
            FromConnects::Started { number, local, progress } => {
                self.start(number, local, progress);
            }
            FromConnects::Ended { number, error } => self.end(number, error),
        }
    }

    /// Sends the destinations to ask about to the helper, if it does not have those of the
    /// installed policy.
    fn update_helper(&mut self, questions: &Watched) -> io::Result<()> {
        let live = self.shared.live.load();
        if self.sent_generation != live.generation {
            let all = ToConnects::AskAbout(live.handable().to_vec());
            match send_packet(questions.get_ref(), &all, &[]) {
                // The next message of the helper comes when there is room again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => {
                    sent?;
                    self.sent_generation = live.generation;
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self, questions: &Watched, question: ConnectQuestion) -> io::Result<()> {
        let judged = match self.judge(&question) {
            Ok(judged) => judged,
            Err(reason) => return self.leave(questions, &question, reason),
        };
        let version = version_of(&question);
        if let Outside::Link(link) = &self.scope.run().outside {
            let Ok(under_way) = self.table.begin_request() else {
                return self.leave(questions, &question, Some(RelayReason::Kernel));
            };
            self.early.insert(question.number, Vec::new());
            let wanted = WantedSocket {
                link: Arc::clone(link),
                version,
                to: judged.to,
                answer: given(&question, judged.to),
                channel: link.passes().then(|| Arc::clone(questions.get_ref())),
                congestion_control: self.congestion_control(),
                under_way,
            };
            self.requests.spawn_local(async move {
                let result = wanted.request().await;
                Requested { judged, question, result }
            });
            return Ok(());
        }
        let own = match self.spare[version.index()].take() {
            Some(spare) => spare,
            None => match self.socket(version) {
                Ok(own) => own,
                Err(_) => return self.leave(questions, &question, Some(RelayReason::Kernel)),
            },
        };
        self.give(questions, question, judged, own)
    }

    /// Makes a socket for the next answer. The helper may wait for the CPU of this thread, so this
    /// is not done before a program has its socket.
    fn make_spare(&mut self, version: IpVersion) {
        if self.spare[version.index()].is_none() {
            self.spare[version.index()] = self.socket(version).ok();
        }
    }

    /// Continues after the end of a request to a link.
    fn conclude(&mut self, questions: &Watched, requested: Requested) -> io::Result<()> {
        let number = requested.question.number;
        self.conclude_request(questions, requested)?;
        for report in self.early.remove(&number).into_iter().flatten() {
            self.take_report(report);
        }
        Ok(())
    }

    /// Answers after the link has passed a socket on, or has refused it.
    fn conclude_request(&mut self, questions: &Watched, requested: Requested) -> io::Result<()> {
        let Requested { judged, question, result } = requested;
        if let Ok(GrantedSocket::Passed(expected)) = result {
            // A reload since the question changes nothing, as for a socket that a program has.
            self.note_pending(question, judged, expected);
            return Ok(());
        }
        if judged.generation != self.shared.live.load().generation {
            // The agent decides by the new policy when it relays the connection.
            return self.leave(questions, &question, None);
        }
        match result {
            Ok(GrantedSocket::Passed(_)) => Ok(()),
            Ok(GrantedSocket::Agent(own)) => match self.set_congestion_control(&own.socket) {
                Ok(()) => self.give(questions, question, judged, own),
                Err(_) => self.leave(questions, &question, Some(RelayReason::Link)),
            },
            Err(NotPassed::Unusable) => self.leave(questions, &question, Some(RelayReason::Link)),
            Err(NotPassed::Refused(error)) => {
                let errno = error.raw_os_error().filter(|errno| ERRORS.contains(errno));
                let errno = errno.unwrap_or(Errno::CONNREFUSED.raw_os_error());
                let number = question.number;
                let Judged { reserved, to, .. } = judged;
                self.note_failed(reserved, question, to, &error);
                send_without_socket(questions, number, Some(errno))
            }
        }
    }

    /// Gives the helper a socket for a program.
    fn give(
        &mut self,
        questions: &Watched,
        question: ConnectQuestion,
        judged: Judged,
        own: OwnSocket,
    ) -> io::Result<()> {
        let OwnSocket { socket, identity } = own;
        let Ok(expected) = self.table.expect(identity) else {
            return self.leave(questions, &question, Some(RelayReason::Kernel));
        };
        let answer = given(&question, judged.to);
        self.note_pending(question, judged, expected);
        without_room(send_with_socket(questions.get_ref(), answer, socket))
    }

    /// The helper has, or soon gets, the socket for a question.
    fn note_pending(
        &mut self,
        question: ConnectQuestion,
        judged: Judged,
        expected: ExpectedSocket,
    ) {
        let number = question.number;
        let Judged { reserved, to, .. } = judged;
        let pending = PendingSocket { reserved, question, expected, to, requested: Instant::now() };
        self.pending.insert(number, pending);
    }

    /// Lets the agent relay a connection; `reason` is shown with it.
    fn leave(
        &self,
        questions: &Watched,
        question: &ConnectQuestion,
        reason: Option<RelayReason>,
    ) -> io::Result<()> {
        if let Some(reason) = reason {
            self.scope.run().note_relayed(question.remote, reason);
        }
        send_without_socket(questions, question.number, None)
    }

    /// A socket without options of the agent: the program gets what it would get without tacit.
    fn socket(&self, version: IpVersion) -> io::Result<OwnSocket> {
        let socket = handed::new_tcp(version)?;
        self.set_congestion_control(&socket)?;
        let identity = handed::identity(socket.as_fd())?;
        Ok(OwnSocket { socket, identity })
    }

    /// The congestion control that the policy names. The agent's own default is for relays.
    fn congestion_control(&self) -> Option<String> {
        let is_named = self.shared.live.load().policy.agent.congestion_control.is_some();
        self.shared.congestion_control.clone().filter(|_| is_named)
    }

    fn set_congestion_control(&self, socket: &OwnedFd) -> io::Result<()> {
        self.congestion_control()
            .map_or(Ok(()), |name| tacit_sys::socket::set_congestion_control(socket.as_fd(), &name))
    }

    /// Decides about a connection. The error is the reason to relay it, if neither the policy nor
    /// the destination is the reason.
    fn judge(&mut self, question: &ConnectQuestion) -> Result<Judged, Option<RelayReason>> {
        let remote = question.remote;
        let local = SocketAddr::new(version_of(question).unspecified(), 0);
        let run = self.scope.run();
        let is_question = self.names.answers(Protocol::Tcp, &local.into(), remote);
        if is_question || run.is_expected(remote) || !is_for_one(remote.ip()) {
            return Err(None);
        }
        let live = self.shared.live.load_full();
        let mut flow = flow_of_program(&self.scope, Protocol::Tcp, local.into(), remote.into());
        self.scope.attribute(&mut flow, Some(question.owner.clone()));
        let Address::Inet(to) = flow.remote else { return Err(None) };
        let rule = match live.decide(&mut flow) {
            Ok(rule) if matches!(rule.action, LiveAction::Permit) => Arc::clone(rule),
            _ => return Err(None),
        };
        if admit::hindrance(&self.shared, &live, &rule, &flow).is_some() {
            return Err(None);
        }
        if self.pending.len() + self.requests.len() >= PENDING_MAX {
            return Err(Some(RelayReason::Limit));
        }
        let reserve =
            |flow| admit::reserve(&self.shared, Arc::clone(&rule), flow, self.scope.clone());
        let reserved = reserve(flow).or_else(|flow| {
            // Connections that have ended may still count.
            self.table.read_ends();
            reserve(*flow).map_err(|_| Some(RelayReason::Limit))
        })?;
        Ok(Judged { reserved, to, generation: live.generation })
    }

    fn start(&mut self, number: u64, local: SocketAddr, progress: ConnectProgress) {
        let Some(pending) = self.pending.remove(&number) else { return };
        let PendingSocket { reserved, question, expected, to, requested } = pending;
        let identity = expected.identity;
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        let version = version_of(&question);
        let connection = reserved.open(&self.shared, local, question.owner);
        let started = StartedConnection { connection, identity, local, to, requested };
        self.table.start(started, number, progress, self.scope.run());
        if matches!(self.scope.run().outside, Outside::Host) {
            self.make_spare(version);
        }
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
        let Some(error) = error else { return };
        let PendingSocket { reserved, question, to, .. } = pending;
        self.note_failed(reserved, question, to, &error);
    }

    /// Records a connection that has failed at once.
    fn note_failed(
        &self,
        reserved: ReservedConnection,
        question: ConnectQuestion,
        to: SocketAddr,
        error: &io::Error,
    ) {
        let local = SocketAddr::new(version_of(&question).unspecified(), 0);
        let connection = reserved.open(&self.shared, local, question.owner);
        let failure = Failure::Dial(Unreached::new(&to, error));
        account::failed(&self.shared.log, &connection, &failure);
        connection.record().settle();
    }
}

/// A request for a socket of a link that has its result.
struct Requested {
    judged: Judged,
    question: ConnectQuestion,
    result: Result<GrantedSocket, NotPassed>,
}

/// A socket of a link.
enum GrantedSocket {
    /// The agent has it.
    Agent(OwnSocket),
    /// The helper gets it from the link.
    Passed(ExpectedSocket),
}

/// Why there is no socket of a link.
enum NotPassed {
    /// The other side has refused it.
    Refused(io::Error),
    /// It is no socket for a program, or comes too late.
    Unusable,
}

/// A socket of a link that a program needs.
struct WantedSocket {
    link: Arc<LinkClient>,
    version: IpVersion,
    to: SocketAddr,
    /// The answer that the helper gets with the socket.
    answer: ConnectAnswer,
    /// The channel on which the link passes the socket to the helper; `None` if the agent does.
    channel: Option<Arc<OwnedFd>>,
    congestion_control: Option<String>,
    under_way: RequestToLink,
}

impl WantedSocket {
    /// Requests the socket.
    async fn request(self) -> Result<GrantedSocket, NotPassed> {
        let answer = tokio::time::timeout(LINK_WAIT_MAX, self.ask()).await;
        let socket = answer.map_err(|_| NotPassed::Unusable)?.map_err(NotPassed::Refused)?;
        let socket = match socket {
            PassedSocket::ToHelper(identity) => {
                return Ok(GrantedSocket::Passed(self.under_way.expect(identity)));
            }
            PassedSocket::ToAgent(socket) => socket,
        };
        let namespace = self.link.handed_namespace().ok_or(NotPassed::Unusable)?;
        // The server may have been replaced by one in another network namespace.
        let identity = handed::adopt(socket.as_fd(), self.version, namespace);
        let identity = identity.map_err(|_| NotPassed::Unusable)?;
        Ok(GrantedSocket::Agent(OwnSocket { socket, identity }))
    }

    async fn ask(&self) -> io::Result<PassedSocket> {
        let address = match (self.version, self.to) {
            (IpVersion::V6, SocketAddr::V4(to)) => {
                SocketAddr::new(to.ip().to_ipv6_mapped().into(), to.port())
            }
            _ => self.to,
        };
        match &self.channel {
            Some(channel) => {
                let answer = self.answer;
                let congestion_control = self.congestion_control.clone();
                self.link.pass(address, congestion_control, answer, channel.as_fd()).await
            }
            None => self.link.socket(OpenKind::Handed, address).await.map(PassedSocket::ToAgent),
        }
    }
}

/// Answers a question: the program gets no socket, but this error, or a relayed connection.
fn send_without_socket(questions: &Watched, number: u64, error: Option<i32>) -> io::Result<()> {
    let answer = ConnectAnswer { number, to: None, error, socket_first: false };
    without_room(send_packet(questions.get_ref(), &ToConnects::Answer(answer), &[]))
}

/// The result of sending an answer. An answer without room is lost: after its waiting time, the
/// helper has the connection relayed, and reports this.
fn without_room(sent: io::Result<()>) -> io::Result<()> {
    match sent {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        sent => sent,
    }
}

/// The answer that gives a program a socket.
fn given(question: &ConnectQuestion, to: SocketAddr) -> ConnectAnswer {
    let ConnectQuestion { number, socket_first, .. } = *question;
    ConnectAnswer { number, to: Some(to), error: None, socket_first }
}

/// Waits for a message of the helper; `None` if it has ended.
async fn receive(questions: &Watched, space: &mut [u8]) -> io::Result<Option<FromConnects>> {
    loop {
        let mut ready = questions.readable().await?;
        match receive_packet(questions.get_ref(), space) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            received => return Ok(received?.map(|frame| frame.message)),
        }
    }
}

/// A connection for which the program gets a socket.
struct Judged {
    reserved: ReservedConnection,
    /// The address to which the socket is connected.
    to: SocketAddr,
    /// The generation of the policy that permits it.
    generation: u64,
}

fn version_of(question: &ConnectQuestion) -> IpVersion {
    if question.ipv6 { IpVersion::V6 } else { IpVersion::V4 }
}
