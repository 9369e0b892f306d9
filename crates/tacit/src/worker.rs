//! Data workers: threads that carry connections from beginning to end.
//!
//! Each has a single-threaded runtime of its own; a connection never leaves its worker. `control`
//! tells workers what to listen on through a bounded queue.

use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use tokio::runtime::LocalRuntime;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::live::Live;
use crate::log::{Event, Log};
use crate::stream::connection::Table;
use crate::stream::gate::Gates;
use crate::stream::intercept::{self, Listener};
use crate::stream::relay::Scratch;
use crate::stream::{self, Worker};

/// Commands that may wait for one worker.
const COMMANDS_MAX: usize = 1024;

/// What all workers share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The installed policy.
    pub live: Arc<ArcSwap<Live>>,
    /// All connections.
    pub table: Arc<Table>,
    /// Places for handshakes.
    pub gates: Arc<Gates>,
    /// Places for connections.
    pub places: Arc<Semaphore>,
    /// Congestion control of dialled sockets.
    pub congestion_control: Option<String>,
    /// Where events go.
    pub log: Log,
}

/// What `control` tells a worker.
#[derive(Debug)]
enum Command {
    Listen(u64, Arc<Listener>),
    /// Answered when nothing will be accepted any more.
    Unlisten(u64, oneshot::Sender<()>),
}

/// All data workers of the agent. Dropping it ends them, and every connection they carry.
#[derive(Debug)]
pub struct Workers {
    handles: Vec<Handle>,
}

#[derive(Debug)]
struct Handle {
    commands: mpsc::Sender<Command>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` workers.
    ///
    /// # Errors
    /// A thread or its runtime cannot be made.
    pub fn start(count: usize, shared: &Shared) -> io::Result<Self> {
        let mut handles = Vec::with_capacity(count);
        for number in 0..count {
            let (commands, received) = mpsc::channel(COMMANDS_MAX);
            let shared = shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("data-{number}"))
                .spawn(move || run(shared, received))?;
            handles.push(Handle { commands, thread: Some(thread) });
        }
        Ok(Self { handles })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.handles.len()
    }

    /// Makes every worker accept on a listener.
    pub async fn listen(&self, id: u64, listener: &Arc<Listener>) {
        for handle in &self.handles {
            // A worker ends only with the agent.
            let _ = handle.commands.send(Command::Listen(id, Arc::clone(listener))).await;
        }
    }

    /// Makes every worker stop accepting on it; when this returns, all of them have.
    pub async fn unlisten(&self, id: u64) {
        let mut answers = Vec::with_capacity(self.handles.len());
        for handle in &self.handles {
            let (done, answer) = oneshot::channel();
            let _ = handle.commands.send(Command::Unlisten(id, done)).await;
            answers.push(answer);
        }
        for answer in answers {
            let _ = answer.await;
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let threads: Vec<_> =
            self.handles.drain(..).filter_map(|mut handle| handle.thread.take()).collect();
        for thread in threads {
            // A worker that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

fn run(shared: Shared, commands: mpsc::Receiver<Command>) {
    let log = shared.log.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(tokio::runtime::LocalOptions::default());
    match runtime {
        Ok(runtime) => work(&runtime, shared, commands),
        Err(error) => log.error(Event::new("worker-failed").field("error", &error)),
    }
}

fn work(runtime: &LocalRuntime, shared: Shared, mut commands: mpsc::Receiver<Command>) {
    let worker = Rc::new(Worker {
        live: shared.live,
        table: shared.table,
        gates: shared.gates,
        scratch: Scratch::default(),
        congestion_control: shared.congestion_control,
        log: shared.log,
    });
    runtime.block_on(async {
        let mut accepting: HashMap<u64, AbortHandle> = HashMap::new();
        while let Some(command) = commands.recv().await {
            match command {
                Command::Listen(id, listener) => {
                    let task = tokio::task::spawn_local(accept(
                        Rc::clone(&worker),
                        listener,
                        Arc::clone(&shared.places),
                    ));
                    accepting.insert(id, task.abort_handle());
                }
                Command::Unlisten(id, done) => {
                    if let Some(task) = accepting.remove(&id) {
                        // It is not running: it would be on this thread.
                        task.abort();
                    }
                    // Who asked may be gone.
                    let _ = done.send(());
                }
            }
        }
    });
}

async fn accept(worker: Rc<Worker>, listener: Arc<Listener>, places: Arc<Semaphore>) {
    let log = worker.log.clone();
    let address = listener.address.clone();
    let serve = |arrival| {
        stream::start(&worker, arrival);
    };
    if let Err(error) = intercept::accept_all(listener, places, log.clone(), serve).await {
        log.error(Event::new("listener-failed").field("listen", &address).field("error", &error));
    }
}
