//! The life of one connection, in order.
//!
//! ```text
//!   start ─> admit ─> establish ──────────────────────> carry
//!                        └─ on an engine: Begun ─> go_on, on a data worker
//! ```
//!
//! Without engines all of it is on the data worker that accepted. An engine does the first half
//! and hands over once; it hands a connection in clear over before it is dialled, and keeps one
//! whose rule wants its relay there.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::Poll;

use arc_swap::ArcSwap;
use tacit_core::meter::Component;
use tacit_core::policy::{Action, RelayOn};
use tacit_sys::socket;
use tokio::sync::OwnedSemaphorePermit;

use crate::engine::{Engine, Handed, Load};
use crate::ledger::{Account, charged, meter, metered};
use crate::live::Live;
use crate::log::Log;
use crate::run::Run;

use super::connection::{Admitted, Connection, Record, Table};
use super::gate::Gates;
use super::intercept::Arrival;
use super::leg::Parked;
use super::relay::controlled::{self, Calm, Starting};
use super::relay::{Finished, Host, Job};
use super::secure::{ControlledPath, Failure, Secured, Surroundings};
use super::{account, data, relay, secure};

/// What the connections of one worker share.
#[derive(Debug)]
pub struct Worker {
    /// The installed policy.
    pub live: Arc<ArcSwap<Live>>,
    /// All connections of the agent.
    pub table: Arc<Table>,
    /// Places for handshakes.
    pub gates: Arc<Gates>,
    /// What relays use.
    pub host: Host,
    /// Where events go.
    pub log: Log,
    /// What displays see of this thread.
    pub load: Arc<Load>,
    /// What an engine knows of the others; `None` on a data worker.
    pub engine: Option<Engine>,
}

impl AsRef<Host> for Worker {
    fn as_ref(&self) -> &Host {
        &self.host
    }
}

impl Worker {
    fn around(&self) -> Surroundings<'_> {
        let congestion_control = self.host.congestion_control.as_deref();
        Surroundings { gates: &self.gates, congestion_control }
    }
}

/// A place among the connections that an engine sets up; none on a data worker.
pub type Place = Option<OwnedSemaphorePermit>;

/// A connection on its way from an engine to a data worker, with how far it is.
#[derive(Debug)]
pub enum Begun {
    /// It has its rule.
    Admitted(Box<Admitted<Parked>>),
    /// It is dialled and its handshake complete.
    Secured(Box<Secured<Parked>>),
}

impl Begun {
    /// The run it belongs to.
    #[must_use]
    pub fn run(&self) -> Option<&Run> {
        let record = match self {
            Self::Admitted(admitted) => admitted.connection.record(),
            Self::Secured(secured) => secured.connection.record(),
        };
        record.run.as_ref().map(|of_run| &*of_run.run)
    }
}

/// Serves a connection from its arrival to its end. First comes what the choice of the rule may
/// need: the PROXY header where the address wants one, the program where a rule asks for it.
pub fn start(worker: &Rc<Worker>, arrival: Arrival, place: Place) {
    let live = worker.live.load();
    let is_proxied = arrival.flow.listen.as_ref().is_some_and(|at| live.accepts_proxy(at));
    let needs_owner = arrival.run.is_some() && live.needs_owner(&arrival.flow);
    if is_proxied {
        tokio::task::spawn_local(serve_proxied(Rc::clone(worker), arrival, place));
    } else if needs_owner {
        tokio::task::spawn_local(serve_attributed(Rc::clone(worker), arrival, place));
    } else {
        serve(worker, arrival, place);
    }
}

/// Goes on with what an engine has begun.
pub fn go_on(worker: &Rc<Worker>, begun: Begun) {
    let started = match begun {
        Begun::Admitted(admitted) => admitted.watch().map(|admitted| {
            tokio::task::spawn_local(serve_whole(Rc::clone(worker), Box::new(admitted)));
        }),
        Begun::Secured(secured) => secured.watch().map(|secured| {
            tokio::task::spawn_local(serve_rest(Rc::clone(worker), Box::new(secured)));
        }),
    };
    if let Err((connection, error)) = started {
        account::failed(&worker.log, &connection, &Failure::Broken(error));
        connection.record().settle();
    }
}

/// Starts a data connection that a control connection of this worker has agreed on.
pub fn start_data(worker: &Rc<Worker>, job: Job) {
    tokio::task::spawn_local(serve_data(Rc::clone(worker), Box::new(job)));
}

/// A data connection, from its door to its end.
async fn serve_data(worker: Rc<Worker>, mut job: Box<Job>) {
    let account = Arc::clone(job.parent.account());
    let arrival = charged(&account, Component::Accept, pin!(job.arrive()), |_| ()).await;
    let Some(came) = arrival else { return };
    let (connection, leg) = data::begin(&worker.table, &job, came);
    let record = Arc::clone(connection.record());
    let life = pin!(async {
        let established = Box::pin(data::establish(worker.around(), &job, connection, leg)).await;
        carry(&worker, set_up(&worker, established)?).await
    });
    attend(&worker, &record, life).await;
}

async fn serve_attributed(worker: Rc<Worker>, mut arrival: Arrival, place: Place) {
    metered(Component::Accept, arrival.attribute()).await;
    serve(&worker, arrival, place);
}

async fn serve_proxied(worker: Rc<Worker>, mut arrival: Arrival, place: Place) {
    match metered(Component::Accept, arrival.read_header()).await {
        Ok(()) => serve(&worker, arrival, place),
        Err(reason) => account::unclaimed(&worker.log, &arrival, &reason),
    }
}

/// The rest is a task of its own: what only the choice of the rule needed is gone by then.
fn serve(worker: &Rc<Worker>, arrival: Arrival, place: Place) {
    let Some(admitted) = admit(worker, arrival) else { return };
    let worker = Rc::clone(worker);
    match worker.engine {
        None => tokio::task::spawn_local(serve_whole(worker, Box::new(admitted))),
        Some(_) => tokio::task::spawn_local(serve_half(worker, admitted, place)),
    };
}

/// Both halves, on a data worker. What only the first needs is boxed, and gone by the second, in
/// which a connection spends its life.
async fn serve_whole(worker: Rc<Worker>, admitted: Box<Admitted>) {
    let record = Arc::clone(admitted.connection.record());
    let life = pin!(async {
        let established = Box::pin(secure::establish(worker.around(), *admitted)).await;
        carry(&worker, set_up(&worker, established)?).await
    });
    attend(&worker, &record, life).await;
}

/// The second half of what an engine has begun.
async fn serve_rest(worker: Rc<Worker>, secured: Box<Secured>) {
    let record = Arc::clone(secured.connection.record());
    attend(&worker, &record, pin!(carry(&worker, secured))).await;
}

/// The engine's half, or both where the rule's relay stays there. What it gives away is given when
/// it is done with it: two threads never count for one connection at the same time.
async fn serve_half(worker: Rc<Worker>, admitted: Admitted, place: Place) {
    // Given back when what is handed over is taken, or the relay begins here.
    let place = Cell::new(place);
    let record = Arc::clone(admitted.connection.record());
    let half = pin!(async {
        let Action::Tls(tls) = &record.rule.rule.action else {
            return Some(Begun::Admitted(Box::new(admitted.park())));
        };
        let established = Box::pin(secure::establish(worker.around(), admitted)).await;
        let secured = set_up(&worker, established)?;
        match tls.common().relay {
            RelayOn::Worker => Some(Begun::Secured(Box::new(secured.park()))),
            RelayOn::Engine => {
                drop(place.take());
                carry(&worker, secured).await
            }
        }
    });
    let begun = attend(&worker, &record, half).await;
    if let (Some(begun), Some(engine)) = (begun, &worker.engine) {
        metered(Component::Accept, engine.hand_over(Handed::Begun(begun))).await;
    }
}

/// Finds the rule of an arrival, and charges it with what that and accepting cost.
fn admit(worker: &Worker, arrival: Arrival) -> Option<Admitted> {
    let accepting = arrival.spent;
    let opened = Connection::open(&worker.live.load(), &worker.table, arrival);
    let looking = meter::take();
    let rule = match &opened {
        Ok(admitted) => Some(&admitted.connection.record().rule),
        Err(denied) => denied.refused.rule.as_ref(),
    };
    let account = match rule {
        Some(rule) => rule.account(),
        None => Account::agent(),
    };
    meter::charge(account, Component::Accept, accepting);
    meter::charge(account, Component::Policy, looking);
    opened.inspect_err(|denied| account::denied(&worker.log, denied)).ok()
}

/// Lives a connection's life on this thread, or what of it is lived here, unless an operator ends
/// it. What its life costs is charged to its rule, and to itself. Returns what goes on elsewhere;
/// a wish to close that comes in between waits in the record.
async fn attend(
    worker: &Worker,
    record: &Record,
    mut life: Pin<&mut impl Future<Output = Option<Begun>>>,
) -> Option<Begun> {
    let _held = worker.load.hold();
    let mut closed = pin!(reset_when_closed(record));
    // What `ledger::charged` does, written out: a future around this one would cost every
    // connection 72 bytes for its life.
    let mut component = Component::Accept;
    let begun = std::future::poll_fn(|cx| {
        let (polled, ns) = meter::turn(record.account(), &mut component, || {
            if closed.as_mut().poll(cx).is_ready() {
                account::closed_by_operator(&worker.log, record);
                return Poll::Ready(None);
            }
            life.as_mut().poll(cx)
        });
        record.spend_ns(ns);
        polled
    })
    .await;
    if begun.is_none() {
        record.settle();
    }
    begun
}

/// Waits for an operator to close the connection; its legs are reset then, not ended.
async fn reset_when_closed(record: &Record) {
    record.closed().await;
    let Some(legs) = record.legs.get() else { return };
    for leg in [&legs.accepted, &legs.dialled].into_iter().filter_map(Weak::upgrade) {
        // A socket whose peer is gone already has nothing left to be told.
        let _ = socket::reset_on_close(leg.as_fd(), true);
    }
}

/// What came of the first half, everything before the first byte is carried. `None`: it failed.
fn set_up(
    worker: &Worker,
    established: Result<Secured, (Connection, Failure)>,
) -> Option<Box<Secured>> {
    meter::switch(Component::Control);
    match established {
        Ok(secured) => {
            if secured.connection.record().tls.get().is_some() {
                worker.load.count_handshake();
            }
            account::opened(&worker.log, &secured.connection);
            Some(Box::new(secured))
        }
        Err((connection, failure)) => {
            account::failed(&worker.log, &connection, &failure);
            None
        }
    }
}

/// Second half: the bytes, and the account of them. Nothing goes on after it.
async fn carry(worker: &Worker, secured: Box<Secured>) -> Option<Begun> {
    let _held = worker.load.hold_relay();
    meter::switch(Component::Receive);
    let finished = relay::run(worker, secured, |worker, connection, path| {
        Box::pin(carry_controlled(worker, connection, path))
    })
    .await?;
    meter::switch(Component::Control);
    account::settle(&worker.log, &finished);
    meter::switch(Component::Accept);
    None
}

/// The bytes of a connection whose program says when TLS begins and ends: handshake and relay in
/// turns. `None`: it ended by a handshake that failed, and that is accounted for.
async fn carry_controlled(
    worker: &Worker,
    connection: Connection,
    path: Box<ControlledPath>,
) -> Option<Finished> {
    let scratch = &worker.host.scratch;
    let mut calm = Calm::from(*path);
    loop {
        let starting = match controlled::in_clear(scratch, &connection, calm).await {
            Ok(starting) => starting,
            Err(end) => return Some(Finished { connection, end }),
        };
        let Starting { program, mut outside, arrives, incoming, asked, wishes } = starting;
        let set_shaking = |is_shaking| {
            let controls = connection.record().controls();
            controls.inspect(|controls| controls.set_shaking(is_shaking));
        };
        set_shaking(true);
        let begun = secure::begin(&worker.gates, &connection, &outside, incoming).await;
        set_shaking(false);
        outside.set_clear(false);
        let begun = match begun {
            Ok(begun) => begun,
            Err(failure) => {
                // The program's leg is reset by that, before it has the answer.
                drop(program);
                controlled::answer(asked, Err(controlled::failed(&failure)));
                secure::farewell(outside).await;
                account::failed(&worker.log, &connection, &failure);
                meter::switch(Component::Accept);
                return None;
            }
        };
        worker.load.count_handshake();
        account::secured(&worker.log, &connection);
        controlled::answer(asked, Ok(()));
        meter::switch(Component::Receive);
        let legs = (program, outside);
        let carried = controlled::under_tls(scratch, &connection, legs, begun, (arrives, wishes));
        calm = match carried.await {
            Ok(calm) => calm,
            Err(end) => return Some(Finished { connection, end }),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::secure::SealedPath;

    /// The task of a connection: all it needs while it waits, but for the boxes below.
    const TASK_BYTES_MAX: usize = 920;
    /// What displays know of a connection.
    const RECORD_BYTES_MAX: usize = 272;
    /// Both legs and the session on their way into the relay.
    const SEALED_BYTES_MAX: usize = 384;

    fn future_bytes<A, B, F: Future>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_idle_connection_is_small() {
        let (task, record) = (future_bytes(serve_whole), size_of::<Record>());
        assert!(task <= TASK_BYTES_MAX, "task: {task}");
        assert!(record <= RECORD_BYTES_MAX, "record: {record}");
        assert!(size_of::<SealedPath>() <= SEALED_BYTES_MAX, "{}", size_of::<SealedPath>());
    }
}
