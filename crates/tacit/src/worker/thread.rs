//! Runs the thread of a data worker or an engine. The thread sets its CPU and its scheduling class,
//! enters the sandbox, and serves its listeners.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, mpsc as blocking};
use std::time::Duration;

use tacit_core::meter::Component;
use tacit_core::policy::EngineClass;
use tacit_sys::sandbox::{self, WorkerRights};
use tacit_sys::schedule;
use tokio::runtime::LocalRuntime;
use tokio::sync::{mpsc, oneshot};

use crate::engine::{CpuWorkers, EngineThread, Thread, ThreadLoad};
use crate::ledger::{ThreadKind, meter, metered};
use crate::log::{Event, Log};
use crate::placement::{self, CpuBinding};

use super::lanes::{Lanes, Served, WorkSource};

/// The time slice of a worker. A worker that relays streams always has work, so the kernel makes it
/// wait whenever programs want its CPU. With a short slice these waits are short too, and so are
/// those of short messages on its other connections.
const WORKER_SLICE: Duration = Duration::from_micros(100);

/// A command from `control` to a thread.
pub(super) enum Command<L> {
    /// Serve a source, by this number.
    Serve(u64, Arc<dyn WorkSource<L>>),
    /// Stop accepting from the source with this number. Answered when the thread has stopped.
    Stop(u64, oneshot::Sender<()>),
    /// End the source with this number. Answered when the data that has arrived is passed on; its
    /// connections end soon after.
    Finish(u64, oneshot::Sender<()>),
    /// Publish the CPU time used so far. Answered when it is in the ledger.
    Publish(oneshot::Sender<()>),
}

impl<L> fmt::Debug for Command<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serve(id, _) => write!(f, "Serve({id})"),
            Self::Stop(id, _) => write!(f, "Stop({id})"),
            Self::Finish(id, _) => write!(f, "Finish({id})"),
            Self::Publish(_) => f.write_str("Publish"),
        }
    }
}

/// How the kernel schedules a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scheduling {
    pub(super) class: EngineClass,
    pub(super) nice: i32,
}

/// The role of a thread.
pub(super) struct ThreadRole<L: Lanes> {
    pub(super) load: Arc<ThreadLoad>,
    /// `None`: the scheduling of the agent's process.
    pub(super) scheduling: Option<Scheduling>,
    pub(super) engine: Option<EngineThread<L::HandedOver>>,
    /// The queue in which engines hand work over to the thread.
    pub(super) handed: Option<mpsc::Receiver<L::HandedOver>>,
    /// The workers to which connections move with their programs.
    pub(super) cpu_workers: Option<Arc<CpuWorkers<L::HandedOver>>>,
    /// The CPUs that the thread may use while its own CPU is busy; `None`: no other CPU.
    pub(super) also_on: Option<Vec<usize>>,
    /// The rights that the thread keeps in its sandbox; `None`: it has no sandbox.
    pub(super) sandbox: Option<WorkerRights>,
}

impl<L: Lanes> ThreadRole<L> {
    /// Sets up the calling thread for this role.
    fn take(&self) -> io::Result<()> {
        if let Some(cpu) = self.load.cpu() {
            placement::bind_thread(self.load.name(), cpu)?;
        }
        if let Some(Scheduling { class, nice }) = self.scheduling {
            placement::set_engine_class(class, nice)?;
        }
        if self.engine.is_none() {
            // Without it, only latencies are longer.
            let _ = schedule::set_own_slice(WORKER_SLICE);
        }
        self.load.begin();
        Ok(())
    }
}

/// Runs a thread from its beginning to its end.
pub(super) fn run<L: Lanes>(
    shared: L::Shared,
    log: &Log,
    role: ThreadRole<L>,
    commands: mpsc::Receiver<Command<L>>,
    started: &blocking::SyncSender<io::Result<()>>,
) {
    let runtime = role.take().and_then(|()| {
        meter::start(match role.engine {
            Some(_) => ThreadKind::Engine,
            None => ThreadKind::General,
        });
        tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .on_thread_park(meter::waits)
            .on_thread_unpark(meter::wakes)
            .build_local(tokio::runtime::LocalOptions::default())
    });
    match runtime {
        Ok(runtime) => {
            // The thread that started this one waits for it.
            let _ = started.try_send(Ok(()));
            work(&runtime, shared, log, role, commands);
        }
        Err(error) => drop(started.try_send(Err(error))),
    }
}

fn work<L: Lanes>(
    runtime: &LocalRuntime,
    shared: L::Shared,
    log: &Log,
    role: ThreadRole<L>,
    mut commands: mpsc::Receiver<Command<L>>,
) {
    let ThreadRole { load, engine, handed, cpu_workers, also_on, sandbox, .. } = role;
    let binding = load.cpu().zip(also_on).map(|(cpu, others)| CpuBinding::new(cpu, others));
    runtime.block_on(async {
        let lanes = L::open(shared, Thread { load, engine, cpu_workers, binding });
        if let Some(rights) = sandbox {
            enter_sandbox(rights, log);
        }
        if let Some(handed) = handed {
            let resume = resume_all(Rc::clone(&lanes), handed);
            tokio::task::spawn_local(metered(Component::Accept, resume));
        }
        let mut served: HashMap<u64, Box<dyn Served>> = HashMap::new();
        while let Some(command) = commands.recv().await {
            match command {
                Command::Serve(id, source) => match source.serve(&lanes) {
                    Ok(source) => drop(served.insert(id, source)),
                    Err(error) => log.error(Event::new("source-failed").field("error", &error)),
                },
                Command::Stop(id, done) => {
                    if let Some(source) = served.remove(&id) {
                        source.stop();
                    }
                    // The requester may have ended.
                    let _ = done.send(());
                }
                Command::Finish(id, done) => {
                    if let Some(source) = served.remove(&id) {
                        source.finish();
                    }
                    let _ = done.send(());
                }
                Command::Publish(done) => {
                    meter::publish();
                    let _ = done.send(());
                }
            }
        }
    });
}

/// Drops the rights that serving does not need: to files, programs and new threads.
fn enter_sandbox(rights: WorkerRights, log: &Log) {
    let WorkerRights { capabilities, sockets } = rights;
    let entered =
        sandbox::keep_capabilities(capabilities).and_then(|()| sandbox::filter_worker(sockets));
    if let Err(error) = entered
        && sandbox::has_call_filters()
    {
        let event = Event::new("sandbox-incomplete").field("part", "worker").field("error", &error);
        let next = "the worker continues, but may use more capabilities or system calls than it \
                    needs";
        log.warn(event.field("next", next));
    }
}

/// Continues what engines hand over, for as long as there are any.
async fn resume_all<L: Lanes>(lanes: Rc<L>, mut handed: mpsc::Receiver<L::HandedOver>) {
    while let Some(work) = handed.recv().await {
        lanes.resume(work);
    }
}
