//! Holds the data of the stream lane. The stream lane is the code that serves TCP and UNIX
//! connections. Some data belongs to one worker thread. All threads share the other data.

use std::rc::Rc;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, mpsc};

use crate::activate::client::Starter;
use crate::engine::{CpuWorkers, EngineThread, Thread, ThreadLoad};
use crate::live::Live;
use crate::log::Log;
use crate::placement::CpuBinding;
use crate::session::{ConnectionTable, Quotas, RecentTls, RefusalTable};

use super::data::PendingDataConnection;
use super::limiter::HandshakeLimiter;
use super::scratch::Scratch;
use super::stage::Work;

/// The maximum number of announced data connections of one worker that wait for their task.
const PENDING_DATA_MAX: usize = 256;

/// The state that the connections of all threads share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The installed policy.
    pub live: Arc<ArcSwap<Live>>,
    /// All connections of the agent.
    pub table: Arc<ConnectionTable>,
    /// The limiter of handshakes.
    pub limiter: Arc<HandshakeLimiter>,
    /// The limits of connections for each source, rule and run.
    pub quotas: Arc<Quotas>,
    /// The permits for connections.
    pub places: Arc<Semaphore>,
    /// The congestion control of new sockets.
    pub congestion_control: Option<String>,
    /// The table of refusals.
    pub refusals: Arc<RefusalTable>,
    /// Starts programs; `None` if the policy of the agent's start had none.
    pub starter: Option<Arc<Starter>>,
    /// The log.
    pub log: Log,
}

/// The stream lane on one worker thread.
#[derive(Debug)]
pub struct StreamLane {
    /// The state that all threads share.
    pub shared: Shared,
    /// The buffers of the thread.
    pub scratch: Scratch,
    /// The results of the thread's last handshakes.
    pub recent_tls: RecentTls,
    /// The counters of the thread.
    pub load: Arc<ThreadLoad>,
    /// The engines and workers, for an engine; `None` on a data worker.
    pub engine: Option<EngineThread<Work>>,
    /// The workers on CPUs of programs; `None` if connections do not move to them.
    pub cpu_workers: Option<Arc<CpuWorkers<Work>>>,
    /// Binds the thread to its CPU.
    pub binding: Option<CpuBinding>,
    /// Announced data connections, which this thread serves.
    pub pending_data: mpsc::Sender<Box<PendingDataConnection>>,
}

impl StreamLane {
    /// The lane of the calling thread, and the receiver of announced data connections.
    #[must_use]
    pub fn new(
        shared: Shared,
        thread: Thread<Work>,
    ) -> (Rc<Self>, mpsc::Receiver<Box<PendingDataConnection>>) {
        let (pending_data, agreed) = mpsc::channel(PENDING_DATA_MAX);
        let scratch = Scratch::new(shared.log.clone());
        let Thread { load, engine, cpu_workers, binding } = thread;
        let recent_tls = RecentTls::default();
        let lane =
            Self { shared, scratch, recent_tls, load, engine, cpu_workers, binding, pending_data };
        (Rc::new(lane), agreed)
    }
}
