//! Starts the services for one run (a program under `tacit run`). The services accept connections,
//! relay datagrams, answer DNS queries, and serve the query socket (`$TACIT_QUERY`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tacit_core::dns::HostsEntry;
use tacit_sys::socket;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::inbound::Inbound;
use super::notices::ReportReceiver;
use crate::address;
use crate::datagram::Receiver;
use crate::dns::{Forwarder, Resolvers};
use crate::live::Live;
use crate::log::{Event, Log};
use crate::net::Security;
use crate::query::QueryService;
use crate::run::capture::Capture;
use crate::run::handover::{Departing, HeldAddress, ServedSockets};
use crate::run::hold::{Hold, HoldSockets};
use crate::run::launchers::{self, Launcher, RunSockets};
use crate::run::protocol::RelayReason;
use crate::run::registry;
use crate::run::tunnels::{HandedTunnels, OpenedTun, RunTunnels};
use crate::run::{Run, Scope, listening};
use crate::session::{ConnectionTable, RefusalTable};
use crate::stream::handed::{ConnectJudge, HandedConnections};
use crate::stream::intercept::{ConnectionSource, HoldSource, Listener};
use crate::stream::lane::Shared;

/// A run with its services.
pub(super) type Enrolled = registry::Enrolled<Services>;
/// An event that a launcher causes.
pub(super) type RunEvent = launchers::RunEvent<Enrolled>;

/// The services of one run.
#[derive(Debug)]
pub(super) struct Services {
    /// The listeners on which workers accept; none if SYNs are held.
    pub(super) listeners: Vec<ServedSource<Listener>>,
    /// The source of held SYNs.
    pub(super) hold: Option<ServedSource<HoldSource>>,
    /// The sockets from which a worker receives datagrams.
    pub(super) receivers: Vec<ServedSource<Receiver>>,
    /// The outside addresses for clients of the run's servers.
    pub(super) inbound: Inbound,
    /// The query socket.
    query: Option<QueryService>,
    /// Watches the ports on which programs listen.
    watching: JoinHandle<()>,
    /// Renews the names of a host that are in use.
    renewing: JoinHandle<()>,
    /// Receives reports about refused sockets from the helper.
    receiving_reports: JoinHandle<()>,
    /// Answers the helper's questions about connections; `None` if programs get no sockets of the
    /// agent.
    judging: Option<JoinHandle<()>>,
    /// Dropped when the run has ended.
    _serving: oneshot::Sender<()>,
}

/// A source that workers serve.
#[derive(Debug)]
pub(super) struct ServedSource<T> {
    pub(super) source: Arc<T>,
    /// The number of the source at the workers; `None` before they serve it.
    pub(super) number: Option<u64>,
}

impl<T> ServedSource<T> {
    fn new(source: T) -> Self {
        Self { source: Arc::new(source), number: None }
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.watching.abort();
        self.renewing.abort();
        self.judging.iter().for_each(JoinHandle::abort);
    }
}

/// The parts of the agent that its runs use.
pub(super) struct RunContext {
    pub(super) live: Arc<ArcSwap<Live>>,
    pub(super) table: Arc<ConnectionTable>,
    pub(super) resolvers: Arc<Resolvers>,
    pub(super) hosts: Arc<[HostsEntry]>,
    pub(super) refusals: Arc<RefusalTable>,
    pub(super) log: Log,
    pub(super) events: mpsc::Sender<RunEvent>,
    /// Where TUN devices of runs go.
    pub(super) tuns: mpsc::Sender<OpenedTun>,
    pub(super) held_syns_max: usize,
    pub(super) shared: Shared,
    /// The connections of handed sockets, or why the agent gives no sockets to programs.
    pub(super) handed: Result<Rc<HandedConnections>, RelayReason>,
}

/// A run whose services are to be started.
pub(super) struct Candidate {
    pub(super) run: Run,
    pub(super) sockets: RunSockets,
    pub(super) launcher: Launcher,
    /// The TUN device that the predecessor has handed over.
    pub(super) tunnels: Option<HandedTunnels>,
    /// A channel to the predecessor, for queries about connections that stayed there.
    pub(super) before: Option<OwnedFd>,
}

/// Captures the addresses that the policy requires, and creates the services of the run.
///
/// # Errors
/// The kernel refuses the address sets or a socket.
pub(super) async fn enrol(candidate: Candidate, context: &RunContext) -> io::Result<Enrolled> {
    let Candidate { run, sockets, launcher, tunnels, before } = candidate;
    let RunContext { live, table, resolvers, hosts, refusals, log, events, .. } = context;
    let run = Arc::new(run);
    let tunnels = RunTunnels::new(context.tuns.clone(), tunnels);
    let asked = resolvers.addresses();
    let capture = Capture::new(Arc::clone(&run), Arc::clone(live), &asked, tunnels, log.clone());
    let capture = Arc::new(capture);
    let query = sockets.query.zip(sockets.tcp.first()).and_then(|(query, network)| {
        let started = QueryService::start(query, network, before, &run, table, log);
        started.inspect_err(|error| note_no_queries(&run, error, log)).ok()
    });
    run.set_capture(&capture);
    let generation = live.load().generation;
    capture.take_hosts(hosts);
    capture.take_kept_names().await?;
    capture.follow().await?;
    let names = Arc::new(Forwarder::new(
        Arc::clone(live),
        Arc::clone(&capture),
        Arc::clone(resolvers),
        Arc::clone(refusals),
        log.clone(),
    ));
    let mut listeners = Vec::new();
    for socket in sockets.tcp {
        listeners.push(captured_listener(socket, &run, &names)?);
    }
    let raw: Vec<_> = sockets.raw.into_iter().map(Arc::new).collect();
    let receiver = |(socket, raw): (OwnedFd, &Arc<OwnedFd>)| {
        let socket = Arc::new(socket);
        let raw = Arc::clone(raw);
        let run = Arc::clone(&run);
        ServedSource::new(Receiver { socket, raw, run, names: Arc::clone(&names) })
    };
    let receivers = sockets.udp.into_iter().zip(&raw).map(receiver).collect();
    let scope = Scope::of(Arc::clone(&run));
    let hold = match sockets.syn_log {
        Some(log) => {
            let hold_sockets = hold_sockets(&listeners, sockets.hold, sockets.release, &raw);
            let hold = Arc::new(Hold::new(log, &run.host, hold_sockets, context.held_syns_max)?);
            // All listeners capture SYNs by the same source.
            let listener = listeners.drain(..).next().ok_or(io::ErrorKind::InvalidData)?;
            let listener = Arc::new(listener);
            Some(ServedSource::new(HoldSource { hold, scope, listener }))
        }
        None => None,
    };
    let listeners = listeners.into_iter().map(ServedSource::new).collect();
    let watching = listening::watch(Arc::clone(&run), Arc::clone(live), events.clone());
    let watching = tokio::task::spawn_local(watching);
    let renewing = tokio::task::spawn_local(Arc::clone(&capture).renew_names_always());
    let receiver =
        ReportReceiver { run: Arc::clone(&run), refusals: Arc::clone(refusals), log: log.clone() };
    let judging = begin_judging(&run, &names, context).await;
    let (serving, run_ended) = oneshot::channel();
    let receiving_reports = tokio::task::spawn_local(receiver.receive(run_ended));
    let services = Services {
        listeners,
        hold,
        receivers,
        inbound: Inbound::default(),
        query,
        watching,
        renewing,
        receiving_reports,
        judging,
        _serving: serving,
    };
    Ok(Enrolled { run, launcher, generation, capture, services })
}

/// Offers the helper sockets of the agent. If that fails, all connections are relayed.
async fn begin_judging(
    run: &Arc<Run>,
    names: &Arc<Forwarder>,
    context: &RunContext,
) -> Option<JoinHandle<()>> {
    if run.has_plan() {
        return None;
    }
    let judging = async {
        let table = context.handed.as_ref().map_err(|reason| *reason)?;
        let scope = Scope::of(Arc::clone(run));
        let shared = context.shared.clone();
        let mut judge = ConnectJudge::new(shared, scope, Arc::clone(names), Rc::clone(table));
        let channel = judge.offer().await.map_err(|_| RelayReason::Kernel)?;
        Ok(tokio::task::spawn_local(judge.serve(channel)))
    };
    let begun = judging.await;
    run.note_judging(begun.as_ref().map(drop).map_err(|reason| *reason));
    begun.ok()
}

/// The run is protected without the query socket too. Old kernels cannot identify the network of a
/// socket.
fn note_no_queries(run: &Run, error: &io::Error, log: &Log) {
    let event = Event::new("query-unavailable").field("run", &run.name);
    log.warn(event.field("error", error));
}

/// The sockets for holding SYNs, one for each IP version.
fn hold_sockets(
    listeners: &[Listener],
    hold: Vec<OwnedFd>,
    release: Vec<OwnedFd>,
    raw: &[Arc<OwnedFd>],
) -> Vec<HoldSockets> {
    let own = listeners.iter().zip(raw).zip(hold.into_iter().zip(release));
    let of_family = own.map(|((listener, raw), (hold, release))| HoldSockets {
        listener: Arc::clone(&listener.socket),
        hold,
        release,
        raw: Arc::clone(raw),
    });
    of_family.collect()
}

fn captured_listener(
    socket: OwnedFd,
    run: &Arc<Run>,
    names: &Arc<Forwarder>,
) -> io::Result<Listener> {
    // The namespace's default congestion control suits connections within one machine.
    let options = socket::StreamOptions { congestion_control: None, reset_on_exit: true };
    socket::adopt(socket.as_fd(), &options)?;
    let address = address::from_socket(&socket::local_address(socket.as_fd())?);
    let source = ConnectionSource::Captured(Scope::of(Arc::clone(run)), Arc::clone(names));
    Ok(Listener { address, socket: Arc::new(socket), security: Security::Clear, source })
}

impl Services {
    /// Takes the listeners for clients of the host's programs.
    ///
    /// # Errors
    /// The error of a system call.
    pub(super) fn take_clients(
        &mut self,
        held: Vec<HeldAddress>,
        run: &Arc<Run>,
        congestion_control: Option<&str>,
    ) -> io::Result<()> {
        // A rule may begin with clear text, so a truncated connection must be reset.
        let congestion_control = congestion_control.map(str::to_owned);
        let options = socket::StreamOptions { congestion_control, reset_on_exit: true };
        for HeldAddress { address, socket } in held {
            socket::adopt(socket.as_fd(), &options)?;
            let source = ConnectionSource::Inbound(Scope::of(Arc::clone(run)));
            let socket = Arc::new(socket);
            let listener = Listener { address, socket, security: Security::Clear, source };
            self.listeners.push(ServedSource::new(listener));
        }
        Ok(())
    }

    /// Stops the services. Connections, datagrams and queries that arrive wait in the sockets.
    pub(super) fn stop(&self) {
        self.watching.abort();
        self.renewing.abort();
        // The successor receives further reports and questions of the helper.
        self.receiving_reports.abort();
        self.judging.iter().for_each(JoinHandle::abort);
    }

    /// Duplicates of all sockets, for a successor.
    ///
    /// # Errors
    /// The limit of open files is reached.
    fn copies(&self) -> io::Result<ServedSockets> {
        let mut served = ServedSockets::default();
        if let Some(query) = &self.query {
            let handed_over = query.hand_over()?;
            served.query = Some(handed_over.listener);
            served.before = Some(handed_over.predecessor);
        }
        let copy = |socket: &OwnedFd| socket.try_clone();
        match &self.hold {
            Some(hold) => {
                let hold = &hold.source.hold;
                served.syn_log = Some(copy(hold.log().socket())?);
                for (tcp, udp) in hold.sockets().zip(&self.receivers) {
                    let of_family = [&*tcp.listener, &*udp.source.socket, &*tcp.raw];
                    for socket in of_family.into_iter().chain([&tcp.hold, &tcp.release]) {
                        served.captured.push(copy(socket)?);
                    }
                }
            }
            None => {
                for (tcp, udp) in self.listeners.iter().zip(&self.receivers) {
                    for socket in [&tcp.source.socket, &udp.source.socket, &udp.source.raw] {
                        served.captured.push(copy(socket)?);
                    }
                }
            }
        }
        served.inbound = self.inbound.copies()?;
        if self.hold.is_some() {
            // The sockets of a host: captured connections arrive at its hold sockets.
            for ServedSource { source, .. } in &self.listeners {
                let socket = copy(&source.socket)?;
                served.inbound.push(HeldAddress { address: source.address.clone(), socket });
            }
        }
        Ok(served)
    }
}

/// Prepares the hand-over of a run to a successor.
///
/// # Errors
/// The limit of open files is reached, or the helper creates no channel.
pub(super) async fn depart(
    enrolled: &Enrolled,
    tunnels: Option<HandedTunnels>,
) -> io::Result<Departing> {
    let mut served = enrolled.services.copies()?;
    served.tunnels = tunnels;
    Departing::new(&enrolled.run, &enrolled.launcher, served).await
}

/// Updates the capture of a run for the current policy and `/etc/hosts` of the host.
///
/// # Errors
/// The kernel refuses the address sets, or the helper does not answer.
pub(super) async fn follow_with(capture: &Capture, hosts: &[HostsEntry]) -> io::Result<()> {
    capture.take_hosts(hosts);
    capture.follow().await
}
