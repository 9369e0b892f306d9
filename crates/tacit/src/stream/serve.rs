//! The life of one connection, in order.

use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::Poll;

use arc_swap::ArcSwap;
use tacit_core::meter::Component;
use tacit_sys::socket;

use crate::ledger::{Account, meter, metered};
use crate::live::Live;
use crate::log::Log;

use super::connection::{Admitted, Connection, Record, Table};
use super::gate::Gates;
use super::intercept::Arrival;
use super::relay::Scratch;
use super::secure::Surroundings;
use super::{account, relay, secure};

/// What the connections of one worker share.
#[derive(Debug)]
pub struct Worker {
    /// The installed policy.
    pub live: Arc<ArcSwap<Live>>,
    /// All connections of the agent.
    pub table: Arc<Table>,
    /// Places for handshakes.
    pub gates: Arc<Gates>,
    /// The worker's buffers.
    pub scratch: Scratch,
    /// Congestion control of dialled sockets.
    pub congestion_control: Option<String>,
    /// Where events go.
    pub log: Log,
}

/// Serves a connection from its arrival to its end. First comes what the choice of the rule may
/// need: the PROXY header where the address wants one, the program where a rule asks for it.
pub fn start(worker: &Rc<Worker>, arrival: Arrival) {
    let live = worker.live.load();
    let is_proxied = arrival.flow.listen.as_ref().is_some_and(|at| live.accepts_proxy(at));
    let needs_owner = arrival.run.is_some() && live.needs_owner(&arrival.flow);
    let worker = Rc::clone(worker);
    if is_proxied {
        tokio::task::spawn_local(serve_proxied(worker, arrival));
    } else if needs_owner {
        tokio::task::spawn_local(serve_attributed(worker, arrival));
    } else {
        tokio::task::spawn_local(serve(worker, arrival));
    }
}

async fn serve_attributed(worker: Rc<Worker>, mut arrival: Arrival) {
    metered(Component::Accept, arrival.attribute()).await;
    serve(worker, arrival).await;
}

async fn serve_proxied(worker: Rc<Worker>, mut arrival: Arrival) {
    match metered(Component::Accept, arrival.read_header()).await {
        Ok(()) => serve(worker, arrival).await,
        Err(reason) => account::unclaimed(&worker.log, &arrival, &reason),
    }
}

async fn serve(worker: Rc<Worker>, arrival: Arrival) {
    let Some(admitted) = admit(&worker, arrival) else { return };
    let record = Arc::clone(admitted.connection.record());
    let mut closed = pin!(reset_when_closed(&record));
    let mut life = pin!(carry(&worker, admitted));
    let mut component = Component::Accept;
    // What its life costs is charged to its rule, and to itself.
    std::future::poll_fn(|cx| {
        let (polled, ns) = meter::turn(record.account(), &mut component, || {
            if closed.as_mut().poll(cx).is_ready() {
                account::closed_by_operator(&worker.log, &record);
                return Poll::Ready(());
            }
            life.as_mut().poll(cx)
        });
        record.spend_ns(ns);
        polled
    })
    .await;
    record.settle();
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

/// Waits for an operator to close the connection; its legs are reset then, not ended.
async fn reset_when_closed(record: &Record) {
    record.closed().await;
    let Some(legs) = record.legs.get() else { return };
    for leg in [&legs.accepted, &legs.dialled].into_iter().filter_map(Weak::upgrade) {
        // A socket whose peer is gone already has nothing left to be told.
        let _ = socket::reset_on_close(leg.as_fd(), true);
    }
}

async fn carry(worker: &Worker, admitted: Admitted) {
    let around = Surroundings {
        gates: &worker.gates,
        congestion_control: worker.congestion_control.as_deref(),
    };
    match secure::establish(around, admitted).await {
        Ok(secured) => {
            meter::switch(Component::Control);
            account::opened(&worker.log, &secured.connection);
            meter::switch(Component::Receive);
            let finished = relay::run(&worker.scratch, secured).await;
            meter::switch(Component::Control);
            account::settle(&worker.log, &finished);
            meter::switch(Component::Accept);
        }
        Err((connection, failure)) => {
            meter::switch(Component::Control);
            account::failed(&worker.log, &connection, &failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::secure::SealedPath;

    /// The task of a connection: all it needs while it waits, but for the boxes below.
    const TASK_BYTES_MAX: usize = 1472;
    /// What displays know of a connection.
    const RECORD_BYTES_MAX: usize = 336;
    /// Both legs and the session on their way into the relay.
    const SEALED_BYTES_MAX: usize = 384;

    fn future_bytes<A, B, F: Future>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_idle_connection_is_small() {
        let (task, record) = (future_bytes(serve), size_of::<Record>());
        assert!(task <= TASK_BYTES_MAX, "task: {task}");
        assert!(record <= RECORD_BYTES_MAX, "record: {record}");
        assert!(size_of::<SealedPath>() <= SEALED_BYTES_MAX, "{}", size_of::<SealedPath>());
    }
}
