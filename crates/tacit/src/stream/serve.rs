//! Serves one connection from beginning to end: calls the stages in order.
//!
//! ```text
//!   accept ──> admit ──> establish ──> relay ──> account
//!                            └─ on an engine ── hand over ──> next stages, on a data worker
//! ```
//!
//! Without engines, one data worker accepts a connection and serves it to the end. An engine (a
//! thread for handshakes) serves only the first stages, and then hands the connection over to a
//! data worker. A connection without TLS is handed over before the agent connects to the server. A
//! connection with TLS is handed over after the handshake. If the rule has `relay = "engine"`, the
//! engine also relays the connection.

use std::io;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use tacit_core::icmp::IcmpError;
use tacit_core::meter::Component;
use tacit_core::policy::{Deny, RelayOn};
use tacit_core::starttls::StarttlsError;
use tacit_sys::socket::{self, OnClose};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::AbortHandle;

use crate::dns;
use crate::engine::{SetupSlot, Thread};
use crate::ledger::{Account, charged, meter, metered};
use crate::log::Event;
use crate::net::stream_socket::DetachedSocket;
use crate::net::{Accepted, Security};
use crate::run::hold::{HeldSyn, SynAnswer};
use crate::session::{ConnectionRecord, Failure, account};

use super::admit::{self, Request};
use super::data::PendingDataConnection;
use super::establish::{self, NotEstablished};
use super::intercept::{self, HeldNote, HeldWork, HoldSource, Listener};
use super::lane::{Shared, StreamLane};
use super::relay::{self, Finished, Relayed};
use super::relay_kind::{Established, NotWatched, RelayKind};
use super::stage::{AcceptedConnection, Admitted, Downstream, Stage, Work};

/// Serves a connection from this stage on, as far as this thread does.
///
/// An idle connection needs the memory of this future until it ends. Therefore the futures of short
/// stages are boxed, and get their arguments before the future that waits for them is created.
fn serve(lane: Rc<StreamLane>, stage: Stage) -> impl Future<Output = ()> {
    let arriving = Box::pin(arrive(Rc::clone(&lane), stage));
    async move {
        let Some(Arrival { record, stage }) = arriving.await else { return };
        let life = pin!(live(&lane, stage));
        let Some(stage) = Supervised::new(&lane, record, life).await else { return };
        Box::pin(hand_over(&lane, stage)).await;
    }
}

/// A connection that has its rule.
struct Arrival {
    record: Arc<ConnectionRecord>,
    stage: Stage,
}

async fn arrive(lane: Rc<StreamLane>, stage: Stage) -> Option<Arrival> {
    let stage = admit(&lane, stage).await?;
    let record = stage.record().map(Arc::clone)?;
    Some(Arrival { record, stage })
}

/// Establishes and relays a connection. Returns the stage that continues on another thread.
fn live(
    lane: &StreamLane,
    stage: Stage,
) -> impl Future<Output = Option<Stage<DetachedSocket>>> + '_ {
    let establishing = Box::pin(establish(lane, stage));
    async move {
        let stage = establishing.await?;
        let established = match keep(lane, stage) {
            Kept::Here(established) => established,
            Kept::ForWorker(stage) => return Some(stage),
        };
        match relay::run(lane, established).await? {
            Relayed::Finished(finished) => {
                account(lane, &finished);
                None
            }
            Relayed::Leaves(established) => Some(Stage::Established(established).park()),
        }
    }
}

/// Finds the rule of a connection; `None` if no rule permits it, or it does not arrive. A
/// connection that an engine handed over has its rule already.
async fn admit(lane: &StreamLane, stage: Stage) -> Option<Stage> {
    let admitted = match stage {
        Stage::Accepted(accepted) => admit_accepted(lane, accepted).await?,
        Stage::PendingData(pending) => Box::pin(admit_data(lane, pending)).await?,
        later @ (Stage::Admitted(_) | Stage::Established(_)) => return Some(later),
    };
    Some(Stage::Admitted(admitted))
}

async fn admit_accepted(
    lane: &StreamLane,
    mut accepted: Box<AcceptedConnection>,
) -> Option<Box<Admitted>> {
    if let Some(work) = prepare(lane, &mut accepted) {
        work.await?;
    }
    let AcceptedConnection { mut downstream, flow, scope, permit, claim, usage, slot } = *accepted;
    let request = Request { flow, scope, claim: claim.as_deref(), permit, accepting: usage };
    let connection = match admit::admit(&lane.shared, request) {
        Ok(connection) => connection,
        Err(deny) => {
            refuse(downstream, deny);
            return None;
        }
    };
    if let Downstream::Accepted(socket) = &mut downstream {
        let record = connection.record();
        let begins_with_tls = record.rule.rule.tls_arrives() && record.tls_control().is_none();
        socket.set_security(if begins_with_tls { Security::Tls } else { Security::Clear });
    }
    let early = claim.map(|claim| claim.early.into_boxed_slice());
    Some(Box::new(Admitted { connection, downstream, early, pending: None, slot }))
}

/// Rejects a connection that no rule permits.
fn refuse(downstream: Downstream, deny: Deny) {
    match (downstream, deny) {
        // A connection that was accepted can only be reset.
        (Downstream::Accepted(mut socket), _) => socket.set_security(Security::Clear),
        (Downstream::Held(held), Deny::Refused) => held.refuse(SynAnswer::Reset),
        (Downstream::Held(held), Deny::Prohibited) => {
            held.refuse(SynAnswer::Unreachable(IcmpError::Prohibited));
        }
    }
}

/// Reads what the selection of the rule needs in addition to the addresses: the PROXY header if the
/// rule requires one, the program if a rule selects by it. `None` if nothing is needed.
fn prepare<'a>(
    lane: &'a StreamLane,
    accepted: &'a mut AcceptedConnection,
) -> Option<Pin<Box<impl Future<Output = Option<()>> + 'a>>> {
    let live = lane.shared.live.load();
    let is_proxied = accepted.flow.listen.as_ref().is_some_and(|at| live.accepts_proxy(at));
    let needs_owner = accepted.scope.is_some() && live.needs_owner(&accepted.flow);
    if !is_proxied && !needs_owner {
        return None;
    }
    Some(Box::pin(metered(Component::Accept, async move {
        if !is_proxied {
            accepted.attribute().await;
            return Some(());
        }
        match accepted.read_header().await {
            Ok(()) => Some(()),
            Err(reason) => {
                account::unclaimed(&lane.shared.log, &accepted.flow, &reason);
                None
            }
        }
    })))
}

/// Waits for a data connection on its listener; `None` if it does not arrive.
async fn admit_data(
    lane: &StreamLane,
    mut pending: Box<PendingDataConnection>,
) -> Option<Box<Admitted>> {
    let account = Arc::clone(pending.parent.account());
    let accepted = charged(&account, Component::Accept, pin!(pending.accept()), |_| ()).await;
    let Accepted { mut socket, local, remote, permit } = accepted?;
    socket.set_security(pending.downstream_security());
    let connection = admit::admit_data(&lane.shared, &pending, local, remote, permit);
    let pending = Some(pending);
    let downstream = Downstream::Accepted(socket);
    Some(Box::new(Admitted { connection, downstream, early: None, pending, slot: None }))
}

/// Establishes a connection; `None` if that failed. A connection that an engine leaves to a worker
/// is returned unchanged.
async fn establish(lane: &StreamLane, stage: Stage) -> Option<Stage> {
    let admitted = match stage {
        Stage::Admitted(admitted) if establishes(lane, &admitted) => admitted,
        other => return Some(other),
    };
    let established = establish::establish(lane, *admitted).await;
    meter::switch(Component::Control);
    match established {
        Ok(established) => {
            if established.connection.record().tls.get().is_some() {
                lane.load.count_handshake();
            }
            let Established { connection, relay, .. } = &established;
            match relay {
                RelayKind::Delivery(_) => account::cancel_opened(&lane.shared.log, connection),
                _ => account::opened(&lane.shared.log, connection),
            }
            Some(Stage::Established(Box::new(established)))
        }
        Err(NotEstablished { connection, failure }) => {
            let Shared { log, refusals, .. } = &lane.shared;
            match failure {
                Failure::Starttls(StarttlsError::CancelInClear) => {
                    account::cancel_refused(log, refusals, &connection);
                }
                failure => account::failed(log, &connection, &failure),
            }
            None
        }
    }
}

/// Whether this thread establishes a connection. An engine only establishes those with TLS.
fn establishes(lane: &StreamLane, admitted: &Admitted) -> bool {
    lane.engine.is_none() || admitted.connection.record().rule.tls_common().is_some()
}

/// The thread that relays a connection.
enum Kept {
    /// On this thread.
    Here(Box<Established>),
    /// On a data worker.
    ForWorker(Stage<DetachedSocket>),
}

/// Decides where a connection is relayed.
fn keep(lane: &StreamLane, stage: Stage) -> Kept {
    match stage {
        Stage::Established(established) if relays_here(lane, &established) => {
            Kept::Here(established)
        }
        other => Kept::ForWorker(other.park()),
    }
}

/// Whether this thread relays a connection. An engine only relays if the rule says so.
fn relays_here(lane: &StreamLane, established: &Established) -> bool {
    let common = established.connection.record().rule.tls_common();
    lane.engine.is_none() || common.is_some_and(|common| common.relay == RelayOn::Engine)
}

/// Logs and counts the end of a connection.
fn account(lane: &StreamLane, finished: &Finished) {
    meter::switch(Component::Control);
    finished.connection.trace_end(&finished.end);
    account::settle(&lane.shared.log, finished.connection.record(), &finished.end);
    meter::switch(Component::Accept);
}

/// Runs a connection on this thread until it ends or an operator closes it, and charges its CPU
/// time to its rule and to itself. Returns the stage that continues on another thread. A request to
/// close that arrives during the hand-over stays in the record.
///
/// It is written out as a future, because an `async` function would cost every connection 168 bytes
/// more during its life.
struct Supervised<'a, L> {
    lane: &'a StreamLane,
    record: Arc<ConnectionRecord>,
    life: Pin<&'a mut L>,
    /// The component to which its next CPU time is charged.
    component: Component,
    /// Whether a request to close it wakes this task.
    is_woken_to_close: bool,
}

impl<'a, L> Supervised<'a, L> {
    fn new(lane: &'a StreamLane, record: Arc<ConnectionRecord>, life: Pin<&'a mut L>) -> Self {
        lane.load.begin_connection();
        Self { lane, record, life, component: Component::Accept, is_woken_to_close: false }
    }

    fn poll_closed(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.is_woken_to_close {
            return if self.record.is_closing() { Poll::Ready(()) } else { Poll::Pending };
        }
        self.is_woken_to_close = true;
        self.record.poll_closed(cx)
    }
}

impl<L> Drop for Supervised<'_, L> {
    fn drop(&mut self) {
        self.lane.load.end_connection();
        self.record.forget_closer();
    }
}

impl<L: Future<Output = Option<Stage<DetachedSocket>>>> Future for Supervised<'_, L> {
    type Output = Option<Stage<DetachedSocket>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let supervised = self.get_mut();
        let is_closed = supervised.poll_closed(cx).is_ready();
        let Self { lane, record, life, component, .. } = supervised;
        let turn = meter::turn(record.account(), component, || {
            if is_closed {
                reset_on_close(record);
                account::closed_on_request(&lane.shared.log, record);
                return Poll::Ready(None);
            }
            life.as_mut().poll(cx)
        });
        record.spend_ns(turn.usage_ns);
        if matches!(turn.output, Poll::Ready(None)) {
            record.settle();
        }
        turn.output
    }
}

/// Lets the end of a connection reset its sockets.
fn reset_on_close(record: &ConnectionRecord) {
    let Some(sockets) = record.sockets.get() else { return };
    for socket in [&sockets.downstream, &sockets.upstream].into_iter().filter_map(Weak::upgrade) {
        // If this fails, the peer has closed and needs no reset.
        let _ = socket::set_on_close(socket.as_fd(), OnClose::Reset);
    }
}

/// Hands a connection over to a data worker: one that an engine has set up, or one with its program
/// on another CPU. This thread does not touch it after that, so two threads never count for one
/// connection at the same time. Its slot is free again when a worker has it.
async fn hand_over(lane: &StreamLane, mut stage: Stage<DetachedSocket>) {
    let _slot = stage.take_slot();
    let work = Work::Connection(stage);
    let cpu = work.cpu();
    if let Some(engine) = &lane.engine {
        metered(Component::Accept, engine.hand_over(work, cpu)).await;
    } else if let Some((placed, cpu)) = lane.cpu_workers.as_ref().zip(cpu) {
        lane.load.count_left();
        metered(Component::Accept, placed.give(work, cpu)).await;
    }
}

/// Opens the stream lane of the calling thread.
#[must_use]
pub fn open(shared: Shared, thread: Thread<Work>) -> Rc<StreamLane> {
    let (lane, agreed) = StreamLane::new(shared, thread);
    let pending_data = serve_pending_data(Rc::clone(&lane), agreed);
    tokio::task::spawn_local(metered(Component::Control, pending_data));
    let turns = Rc::clone(&lane);
    let turns = async move { turns.scratch.bulk.give().await };
    tokio::task::spawn_local(metered(Component::Control, turns));
    lane
}

/// Serves the data connections that control connections of this thread have announced.
async fn serve_pending_data(
    lane: Rc<StreamLane>,
    mut agreed: mpsc::Receiver<Box<PendingDataConnection>>,
) {
    while let Some(mut pending) = agreed.recv().await {
        let lane = Rc::clone(&lane);
        tokio::task::spawn_local(async move {
            // Counts as a data connection of its control connection until it ends.
            let _permit = pending.permit.take();
            serve(lane, Stage::PendingData(pending)).await;
        });
    }
}

/// Accepts on a listener until its task is aborted, and serves the connections.
pub async fn accept(lane: Rc<StreamLane>, listener: Arc<Listener>) {
    let log = lane.shared.log.clone();
    let places = Arc::clone(&lane.shared.places);
    let accepted = match &lane.engine {
        None => {
            let take = async |work, ()| begin(&lane, work);
            intercept::accept_all(&listener, places, &log, async || (), take).await
        }
        Some(engine) => {
            let take = async |work, turn| match (turn, work) {
                (SetupSlot::Engine(slot), Work::Connection(Stage::Accepted(mut accepted))) => {
                    accepted.slot = Some(slot);
                    begin(&lane, Work::Connection(Stage::Accepted(accepted)));
                }
                // DNS queries need no rule, and workers answer them.
                (SetupSlot::Engine(_), work) => {
                    give(&lane, work, Reason::NotForEngines).await;
                }
                (SetupSlot::Spill, work) => give(&lane, work, Reason::Saturated).await,
            };
            intercept::accept_all(&listener, places, &log, || engine.acquire_slot(), take).await
        }
    };
    if let Err(error) = accepted {
        let event = Event::new("listener-failed").field("listen", &listener.address);
        log.error(event.field("error", &error));
    }
}

/// Serves the connections of a run's programs until its task is aborted, each from its SYN on.
pub async fn hold(lane: Rc<StreamLane>, source: Arc<HoldSource>) {
    let places = Arc::clone(&lane.shared.places);
    let strays = tokio::task::spawn_local(take_strays(Rc::clone(&lane), Arc::clone(&source)));
    source.hold.take_waiting();
    let _ended = AbortOnDrop(strays.abort_handle());
    let note = |note: HeldNote| match note {
        HeldNote::Refused(flow) => {
            admit::note_refused(&lane.shared, flow, source.scope.clone());
        }
        HeldNote::Filtered(packet) => admit::note_filtered(&lane.shared, &packet),
    };
    let held = match &lane.engine {
        None => {
            let take = async |work, ()| match work {
                HeldWork::Connection(work) => begin(&lane, work),
                HeldWork::AtOnce(held, permit) => {
                    connect_at_once(&lane, &source, held, permit);
                }
                HeldWork::Unknown(held, permit) => find_out(&lane, &source, held, permit),
            };
            intercept::hold_all(&source, places, async || (), take, note).await
        }
        Some(engine) => {
            let take = async |work, turn| match (turn, work) {
                (_, HeldWork::AtOnce(held, permit)) => {
                    connect_at_once(&lane, &source, held, permit);
                }
                (_, HeldWork::Unknown(held, permit)) => find_out(&lane, &source, held, permit),
                (SetupSlot::Engine(slot), HeldWork::Connection(mut work)) => {
                    if let Work::Connection(Stage::Accepted(accepted)) = &mut work {
                        accepted.slot = Some(slot);
                    }
                    begin(&lane, work);
                }
                (SetupSlot::Spill, HeldWork::Connection(work)) => {
                    give(&lane, work, Reason::Saturated).await;
                }
            };
            intercept::hold_all(&source, places, || engine.acquire_slot(), take, note).await
        }
    };
    if let Err(error) = held {
        let event = Event::new("listener-failed").field("listen", &source.listener.address);
        lane.shared.log.error(event.field("error", &error));
    }
}

/// Finds out whether a SYN is held, and if so, serves its connection.
fn find_out(
    lane: &Rc<StreamLane>,
    source: &Arc<HoldSource>,
    held: HeldSyn,
    permit: OwnedSemaphorePermit,
) {
    let lane = Rc::clone(lane);
    let source = Arc::clone(source);
    let finding = async move {
        match intercept::find_out(&source, held, permit).await {
            Some(HeldWork::Connection(work)) => begin(&lane, work),
            Some(HeldWork::AtOnce(held, permit)) => connect_at_once(&lane, &source, held, permit),
            Some(HeldWork::Unknown(..)) | None => {}
        }
    };
    tokio::task::spawn_local(metered(Component::Accept, finding));
}

/// Connects a program whose connection needs no rule.
fn connect_at_once(
    lane: &Rc<StreamLane>,
    source: &Arc<HoldSource>,
    held: HeldSyn,
    permit: OwnedSemaphorePermit,
) {
    let lane = Rc::clone(lane);
    let source = Arc::clone(source);
    let connecting = async move {
        let work = intercept::connect_at_once(&source, held, permit).await;
        begin_or_give(&lane, work).await;
    };
    tokio::task::spawn_local(metered(Component::Accept, connecting));
}

async fn take_strays(lane: Rc<StreamLane>, source: Arc<HoldSource>) {
    loop {
        let work = intercept::take_stray(&source, &lane.shared.places).await;
        begin_or_give(&lane, work).await;
    }
}

/// Begins to serve work; an engine hands work that it does not serve over to a worker.
async fn begin_or_give(lane: &Rc<StreamLane>, work: io::Result<Option<Work>>) {
    match work {
        Ok(Some(work @ Work::Question { .. })) if lane.engine.is_some() => {
            give(lane, work, Reason::NotForEngines).await;
        }
        Ok(Some(work)) => begin(lane, work),
        Ok(None) => {}
        Err(error) => lane.shared.log.warn(Event::new("accept-failed").field("error", &error)),
    }
}

/// Ends a task together with the one that has started it.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why an engine hands over a connection that it has accepted.
#[derive(Clone, Copy)]
enum Reason {
    NotForEngines,
    /// No engine has a free slot.
    Saturated,
}

/// Hands accepted work over to a worker. A task of its own waits until the worker's queue has room,
/// so that the hand-over continues if accepting stops.
async fn give(lane: &Rc<StreamLane>, mut work: Work, reason: Reason) {
    if let Work::Connection(Stage::Accepted(accepted)) = &mut work {
        // Charged here, because this thread has used the time.
        let usage = std::mem::take(&mut accepted.usage);
        meter::charge(Account::agent(), Component::Accept, usage);
    }
    let lane = Rc::clone(lane);
    let given = metered(Component::Accept, async move {
        let Some(engine) = &lane.engine else { return };
        let cpu = work.cpu();
        match reason {
            Reason::NotForEngines => engine.hand_over(work, cpu).await,
            Reason::Saturated => engine.spill(work, cpu).await,
        }
    });
    // The task fails only if the thread ends.
    let _ = tokio::task::spawn_local(given).await;
}

/// Continues what an engine has handed over.
pub fn resume(lane: &Rc<StreamLane>, work: Work) {
    lane.load.count_handed();
    begin(lane, work);
}

/// Begins to serve work, from whichever stage it has reached.
fn begin(lane: &Rc<StreamLane>, work: Work) {
    let log = &lane.shared.log;
    match work {
        Work::Question { accepted, names } => match accepted.watch() {
            Ok(accepted) => {
                let answer = async move { dns::stream::serve(names, accepted).await };
                tokio::task::spawn_local(metered(Component::Control, answer));
            }
            Err(error) => log.warn(Event::new("accept-failed").field("error", &error)),
        },
        Work::Connection(stage) => match stage.watch() {
            Ok(stage) => {
                tokio::task::spawn_local(serve(Rc::clone(lane), stage));
            }
            Err(NotWatched { connection: Some(connection), error }) => {
                account::failed(log, &connection, &Failure::Broken(error));
                connection.record().settle();
            }
            Err(NotWatched { connection: None, error }) => {
                log.warn(Event::new("accept-failed").field("error", &error));
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::ScopeFacts;
    use crate::stream::relay_kind::SealedRelay;

    /// The maximum size of the task of a connection, without the boxes below. The runtime adds 104
    /// bytes, and rounds up to its alignment: 128 bytes on most processors.
    const TASK_BYTES_MAX: usize = 536;
    /// The maximum size of the record of a connection, without the two counts of its `Arc`.
    const RECORD_BYTES_MAX: usize = 240;
    /// The maximum size of the facts of a captured connection.
    const FACTS_BYTES_MAX: usize = 88;
    /// The maximum size of the box with both sockets and the session.
    const SEALED_BYTES_MAX: usize = 288;

    fn future_bytes<A, B, F: Future>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_idle_connection_is_small() {
        let task = future_bytes(serve);
        let record = size_of::<ConnectionRecord>();
        assert!(task <= TASK_BYTES_MAX, "task: {task}");
        assert!(record <= RECORD_BYTES_MAX, "record: {record}");
        let facts = size_of::<ScopeFacts>();
        assert!(facts <= FACTS_BYTES_MAX, "facts of its scope: {facts}");
        assert!(size_of::<SealedRelay>() <= SEALED_BYTES_MAX, "{}", size_of::<SealedRelay>());
    }
}
