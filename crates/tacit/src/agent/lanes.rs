//! Connects the agent's worker threads with the lanes: the modules that serve traffic. The stream
//! lane serves TCP and UNIX connections, and the datagram lane serves UDP flows.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tacit_core::meter::Component;
use tokio::task::AbortHandle;

use crate::datagram::{self, Receiver};
use crate::engine::Thread;
use crate::ledger::metered;
use crate::stream::intercept::{HoldSource, Listener};
use crate::stream::lane::{self as stream_lane, StreamLane};
use crate::stream::serve;
use crate::stream::stage::Work;
use crate::worker::{self, Served, WorkSource};

/// The lanes of one worker thread.
#[derive(Debug)]
pub(super) struct AgentLanes {
    streams: Rc<StreamLane>,
    datagrams: datagram::DatagramShared,
}

/// The worker threads that run the lanes.
pub(super) type Workers = worker::Workers<AgentLanes>;

impl worker::Lanes for AgentLanes {
    type Shared = stream_lane::Shared;
    type HandedOver = Work;

    fn open(shared: Self::Shared, thread: Thread<Work>) -> Rc<Self> {
        let datagrams = datagram::DatagramShared {
            live: Arc::clone(&shared.live),
            table: Arc::clone(&shared.table),
            places: Arc::clone(&shared.places),
            refusals: Arc::clone(&shared.refusals),
            log: shared.log.clone(),
        };
        Rc::new(Self { streams: serve::open(shared, thread), datagrams })
    }

    fn resume(self: &Rc<Self>, work: Work) {
        serve::resume(&self.streams, work);
    }

    fn connections(shared: &Self::Shared) -> usize {
        shared.table.len()
    }
}

impl WorkSource<AgentLanes> for Listener {
    fn cpu(&self) -> Option<usize> {
        self.source.cpu()
    }

    fn serve(self: Arc<Self>, lanes: &Rc<AgentLanes>) -> io::Result<Box<dyn Served>> {
        let accepting = metered(Component::Accept, serve::accept(Rc::clone(&lanes.streams), self));
        Ok(Box::new(Accepting(tokio::task::spawn_local(accepting).abort_handle())))
    }
}

impl WorkSource<AgentLanes> for HoldSource {
    fn cpu(&self) -> Option<usize> {
        self.listener.source.cpu()
    }

    fn serve(self: Arc<Self>, lanes: &Rc<AgentLanes>) -> io::Result<Box<dyn Served>> {
        let holding = serve::hold(Rc::clone(&lanes.streams), Arc::clone(&self));
        let holding = tokio::task::spawn_local(metered(Component::Accept, holding));
        Ok(Box::new(Holding { source: self, task: holding.abort_handle() }))
    }
}

/// A run whose SYNs are held.
struct Holding {
    source: Arc<HoldSource>,
    task: AbortHandle,
}

impl Served for Holding {
    fn stop(self: Box<Self>) {
        self.task.abort();
        // SYNs that are still held are left to the successor, which reads the same source.
        self.source.hold.close();
    }

    fn finish(self: Box<Self>) {
        self.stop();
    }
}

/// A listener whose connections a worker accepts.
struct Accepting(AbortHandle);

impl Served for Accepting {
    fn stop(self: Box<Self>) {
        // The task is not running now, because it runs on this thread.
        self.0.abort();
    }

    fn finish(self: Box<Self>) {
        self.stop();
    }
}

impl WorkSource<AgentLanes> for Receiver {
    fn cpu(&self) -> Option<usize> {
        self.run.cpu()
    }

    fn serve(self: Arc<Self>, lanes: &Rc<AgentLanes>) -> io::Result<Box<dyn Served>> {
        let lane = datagram::Lane::new(lanes.datagrams.clone(), self)?;
        let receiving = metered(Component::Receive, Rc::clone(&lane).receive_all());
        let receiving = tokio::task::spawn_local(receiving).abort_handle();
        Ok(Box::new(Receiving { lane, receiving }))
    }
}

/// A receiver whose datagrams a worker reads.
struct Receiving {
    lane: Rc<datagram::Lane>,
    receiving: AbortHandle,
}

impl Served for Receiving {
    fn stop(self: Box<Self>) {
        self.receiving.abort();
        self.lane.close();
    }

    fn finish(self: Box<Self>) {
        self.receiving.abort();
        self.lane.drain();
        tokio::task::spawn_local(metered(Component::Control, Rc::clone(&self.lane).finish()));
    }
}
