//! Data workers: threads that carry connections from beginning to end.
//!
//! Each has a single-threaded runtime of its own; a connection never leaves its worker. `control`
//! tells workers what to listen on through a bounded queue.

use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use tacit_core::meter::Component;
use tokio::runtime::LocalRuntime;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::datagram::{Lane, Receiver};
use crate::dns;
use crate::ledger::{meter, metered};
use crate::live::Live;
use crate::log::{Event, Log};
use crate::stream::connection::Table;
use crate::stream::gate::Gates;
use crate::stream::intercept::{self, Arrival, Listener, Source};
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
    Receive(u64, Arc<Receiver>),
    /// Answered when nothing will be accepted or received any more.
    Unlisten(u64, oneshot::Sender<()>),
    /// Answered when what has arrived is sent on; flows are over soon after.
    Finish(u64, oneshot::Sender<()>),
    /// Answered when everything spent so far stands in the ledger.
    Publish(oneshot::Sender<()>),
}

/// How long a worker may take to publish what it has spent; it is then read as it is.
const PUBLISH_WAIT_MAX: Duration = Duration::from_millis(100);

/// Asks workers to publish what they have spent.
#[derive(Debug)]
pub struct Publisher(Vec<mpsc::Sender<Command>>);

impl Publisher {
    /// Returns when everything spent so far stands in the ledger, as far as workers answer in time.
    pub async fn publish(&self) {
        let answers = self.0.iter().filter_map(|commands| {
            let (done, answer) = oneshot::channel();
            // A worker whose queue is full is busy, and publishes by itself.
            commands.try_send(Command::Publish(done)).is_ok().then_some(answer)
        });
        let answers: Vec<_> = answers.collect();
        let all = async {
            for answer in answers {
                let _ = answer.await;
            }
        };
        let _ = tokio::time::timeout(PUBLISH_WAIT_MAX, all).await;
        meter::publish();
    }
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

    /// For who is about to read the ledger.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        Publisher(self.handles.iter().map(|handle| handle.commands.clone()).collect())
    }

    /// Makes every worker accept on a listener.
    pub async fn listen(&self, id: u64, listener: &Arc<Listener>) {
        for handle in &self.handles {
            // A worker ends only with the agent.
            let _ = handle.commands.send(Command::Listen(id, Arc::clone(listener))).await;
        }
    }

    /// Has one worker carry a run's datagrams: their order is to be kept.
    pub async fn receive(&self, id: u64, receiver: &Arc<Receiver>) {
        let at = usize::try_from(id).unwrap_or(0) % self.handles.len().max(1);
        if let Some(handle) = self.handles.get(at) {
            let _ = handle.commands.send(Command::Receive(id, Arc::clone(receiver))).await;
        }
    }

    /// Makes every worker stop accepting on it, or receiving; when this returns, all of them have.
    /// Flows of datagrams go on to their own end.
    pub async fn unlisten(&self, id: u64) {
        self.tell_all(|done| Command::Unlisten(id, done)).await;
    }

    /// Ends what a worker receives, and its flows, after what has arrived is sent on.
    pub async fn finish(&self, id: u64) {
        self.tell_all(|done| Command::Finish(id, done)).await;
    }

    async fn tell_all(&self, command: impl Fn(oneshot::Sender<()>) -> Command) {
        let mut answers = Vec::with_capacity(self.handles.len());
        for handle in &self.handles {
            let (done, answer) = oneshot::channel();
            let _ = handle.commands.send(command(done)).await;
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
    meter::start(false);
    let log = shared.log.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .on_thread_park(meter::waits)
        .on_thread_unpark(meter::wakes)
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
        let mut tasks: HashMap<u64, AbortHandle> = HashMap::new();
        let mut lanes: HashMap<u64, Rc<Lane>> = HashMap::new();
        while let Some(command) = commands.recv().await {
            match command {
                Command::Listen(id, listener) => {
                    let places = Arc::clone(&shared.places);
                    let task = accept(Rc::clone(&worker), listener, places);
                    let task = metered(Component::Accept, task);
                    tasks.insert(id, tokio::task::spawn_local(task).abort_handle());
                }
                Command::Receive(id, receiver) => {
                    let places = Arc::clone(&shared.places);
                    match Lane::new(Rc::clone(&worker), places, receiver) {
                        Ok(lane) => {
                            let task = Rc::clone(&lane).receive_all();
                            let task = metered(Component::Receive, task);
                            tasks.insert(id, tokio::task::spawn_local(task).abort_handle());
                            lanes.insert(id, lane);
                        }
                        Err(error) => {
                            worker.log.error(Event::new("datagrams-failed").field("error", &error));
                        }
                    }
                }
                Command::Unlisten(id, done) => {
                    // It is not running: it would be on this thread.
                    tasks.remove(&id).as_ref().map(AbortHandle::abort);
                    lanes.remove(&id).inspect(|lane| lane.close());
                    // Who asked may be gone.
                    let _ = done.send(());
                }
                Command::Publish(done) => {
                    meter::publish();
                    let _ = done.send(());
                }
                Command::Finish(id, done) => {
                    tasks.remove(&id).as_ref().map(AbortHandle::abort);
                    if let Some(lane) = lanes.remove(&id) {
                        lane.drain();
                        tokio::task::spawn_local(metered(Component::Control, lane.finish()));
                    }
                    let _ = done.send(());
                }
            }
        }
    });
}

async fn accept(worker: Rc<Worker>, listener: Arc<Listener>, places: Arc<Semaphore>) {
    let log = worker.log.clone();
    let address = listener.address.clone();
    let source = listener.source.clone();
    let serve = |arrival: Arrival| match &source {
        Source::Captured(_, names) if arrival.flow.remote.port() == Some(dns::PORT) => {
            let names = Arc::clone(names);
            let answer = async move { dns::stream::serve(&names, arrival).await };
            tokio::task::spawn_local(metered(Component::Control, answer));
        }
        _ => stream::start(&worker, arrival),
    };
    if let Err(error) = intercept::accept_all(listener, places, log.clone(), serve).await {
        log.error(Event::new("listener-failed").field("listen", &address).field("error", &error));
    }
}
