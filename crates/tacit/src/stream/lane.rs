//! The state that all connections of a worker thread share, and the state that all threads share.

use std::rc::Rc;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, mpsc};

use crate::engine::{CpuWorkers, EngineThread, Thread, ThreadLoad};
use crate::live::Live;
use crate::log::Log;
use crate::placement::CpuBinding;
use crate::session::{ConnectionTable, Quotas, RefusalTable};

use super::data::PendingDataConnection;
use super::limiter::HandshakeLimiter;
use super::scratch::Scratch;
use super::stage::Work;

/// Data connections of one worker that were agreed and wait for their task.
const PENDING_DATA_MAX: usize = 256;

/// What the connections of all threads share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The installed policy.
    pub live: Arc<ArcSwap<Live>>,
    /// All connections of the agent.
    pub table: Arc<ConnectionTable>,
    /// Places for handshakes.
    pub limiter: Arc<HandshakeLimiter>,
    /// What one source, rule and run may have open.
    pub quotas: Arc<Quotas>,
    /// Places for connections.
    pub places: Arc<Semaphore>,
    /// Congestion control of sockets that are opened.
    pub congestion_control: Option<String>,
    /// What was refused.
    pub refusals: Arc<RefusalTable>,
    /// Where events go.
    pub log: Log,
}

/// The stream lane on one worker thread.
#[derive(Debug)]
pub struct StreamLane {
    /// What all threads share.
    pub shared: Shared,
    /// The thread's buffers.
    pub scratch: Scratch,
    /// What displays see of this thread.
    pub load: Arc<ThreadLoad>,
    /// What an engine knows of the others; `None` on a data worker.
    pub engine: Option<EngineThread<Work>>,
    /// Where connections follow their programs to; `None`: they do not.
    pub cpu_workers: Option<Arc<CpuWorkers<Work>>>,
    /// How the thread keeps to its CPU.
    pub binding: Option<CpuBinding>,
    /// Data connections that control connections have agreed on, to be served on this thread.
    pub pending_data: mpsc::Sender<Box<PendingDataConnection>>,
}

impl StreamLane {
    /// The lane of the calling thread, and the data connections that its connections agree on.
    #[must_use]
    pub fn new(
        shared: Shared,
        thread: Thread<Work>,
    ) -> (Rc<Self>, mpsc::Receiver<Box<PendingDataConnection>>) {
        let (pending_data, agreed) = mpsc::channel(PENDING_DATA_MAX);
        let scratch = Scratch::new(shared.log.clone());
        let Thread { load, engine, cpu_workers, binding } = thread;
        (
            Rc::new(Self { shared, scratch, load, engine, cpu_workers, binding, pending_data }),
            agreed,
        )
    }
}
