//! Starts and manages the threads that serve connections. Data workers serve connections from
//! beginning to end. Engines do the handshakes, and usually hand the connections over to data
//! workers (see [`crate::engine`]).
//!
//! The modules for streams and datagrams implement [`Lanes`] and [`WorkSource`], so workers do not
//! depend on protocols. The control thread sends sources of work, such as listeners, to the
//! engines. If there are no engines, the control thread sends the sources of work to the data
//! workers.
//!
//! The agent starts with one data worker. It starts another data worker when all data workers are
//! busy and there are more connections than data workers. Workers run until the agent ends.
//!
//! Limits: the queue of a thread has `COMMANDS_MAX` entries; [`CpuPlan`] limits the number of
//! workers.

mod lanes;
mod thread;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc as blocking};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tacit_core::policy::{self, Policy};
use tacit_sys::sandbox::WorkerRights;
use tacit_sys::schedule;
use tokio::sync::{mpsc, oneshot};

use crate::engine::{
    CPU_WORKERS_MAX, ClockLook, CpuWorkers, EngineSlots, EngineThread, HAND_OVER_QUEUE_MAX,
    ThreadLoad, ThreadState, WhenSaturated, WorkerHandle, WorkerHandles,
};
use crate::ledger::meter;
use crate::log::{Event, Log};
use crate::placement::{self, CpuAssignment, CpuPlan, RunCpu};

pub use lanes::{Lanes, Served, WorkSource};
use thread::{Command, Scheduling, ThreadRole};

/// The maximum number of queued commands of a worker.
const COMMANDS_MAX: usize = 1024;
/// A worker that ran, or was runnable, for more than this part of the time is busy.
const BUSY_SHARE: f64 = 0.8;
/// The interval of checks for busy workers while there are more connections than workers.
pub const GROWTH_INTERVAL: Duration = Duration::from_millis(100);
/// Two checks that are further apart are not compared.
const GROWTH_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// The pause after a thread could not be started; each failure is logged.
const GROWTH_RETRY: Duration = Duration::from_secs(60);
/// The shortest interval of the recent load in displays.
const RECENT_MIN: Duration = Duration::from_millis(500);

/// How long a worker may take to publish its CPU time. After that, displays read the published
/// values.
const PUBLISH_WAIT_MAX: Duration = Duration::from_millis(100);

/// Makes workers and engines publish their CPU time. It does not keep them from ending: a display
/// may be in progress when the agent ends.
#[derive(Debug)]
pub struct Publisher<L: Lanes>(Vec<mpsc::WeakSender<Command<L>>>);

impl<L: Lanes> Publisher<L> {
    /// Returns when all CPU time so far is in the ledger, as far as workers answer in time.
    pub async fn publish(&self) {
        let answers = self.0.iter().filter_map(|commands| {
            let (done, answer) = oneshot::channel();
            // A worker with a full queue is busy, so it publishes anyway.
            commands.upgrade()?.try_send(Command::Publish(done)).is_ok().then_some(answer)
        });
        let requested: Vec<_> = answers.collect();
        let all = async {
            for answer in requested {
                let _ = answer.await;
            }
        };
        let _ = tokio::time::timeout(PUBLISH_WAIT_MAX, all).await;
        meter::publish();
    }
}

/// All data workers and engines of the agent. Dropping it ends them and their connections.
#[derive(Debug)]
pub struct Workers<L: Lanes> {
    shared: L::Shared,
    log: Log,
    /// The rights of threads in their sandbox; `None` without a sandbox.
    sandbox: Option<WorkerRights>,
    plan: CpuPlan,
    spill: bool,
    engines: Vec<ThreadHandle<L>>,
    workers: RefCell<Vec<ThreadHandle<L>>>,
    handles: Arc<WorkerHandles<L::HandedOver>>,
    /// The workers on the CPUs of programs.
    cpu_workers: RefCell<Vec<ThreadHandle<L>>>,
    /// Hands connections over to these workers.
    cpu_handles: Arc<CpuWorkers<L::HandedOver>>,
    wanted: mpsc::Receiver<usize>,
    /// The sources of all accepting threads, for workers that are started later.
    common: RefCell<BTreeMap<u64, Arc<dyn WorkSource<L>>>>,
    /// The number of the last source.
    last_source: Cell<u64>,
    grown_at: Cell<Option<Instant>>,
    /// The time before which no further worker is started because of load, after a worker could not
    /// be started.
    stays_until: Cell<Option<Instant>>,
    recent: Cell<Option<Instant>>,
}

/// The CPUs of programs of runs.
#[derive(Clone, Copy, Debug)]
pub struct CpusOfRuns<'a> {
    /// The CPUs that they must not use.
    pub engines: &'a [usize],
    /// The only CPU that they may use, if there is one.
    pub only: Option<usize>,
}

/// The worker's CPU with the fewest runs, to which a run was added.
struct FewestRuns {
    share: RunCpu,
    /// The number of runs.
    runs_before: usize,
}

#[derive(Debug)]
struct ThreadHandle<L: Lanes> {
    commands: mpsc::Sender<Command<L>>,
    thread: Option<JoinHandle<()>>,
    load: Arc<ThreadLoad>,
    /// The busy time at the last check.
    grown_ns: Cell<u64>,
    /// Readings of its clock for displays, the newest last.
    recent: Cell<[ClockLook; 2]>,
    /// The number of runs on its CPU.
    runs: Arc<AtomicUsize>,
    _assignment: Option<CpuAssignment>,
}

impl<L: Lanes> ThreadHandle<L> {
    fn look(&self) {
        let [_, newest] = self.recent.get();
        let now = ClockLook { at: Instant::now(), cpu_ns: self.load.cpu_ns() };
        self.recent.set([newest, now]);
    }

    /// The newest reading that is old enough.
    fn recent(&self) -> ClockLook {
        let [older, newest] = self.recent.get();
        if newest.at.elapsed() >= RECENT_MIN { newest } else { older }
    }
}

impl<L: Lanes> Workers<L> {
    /// Starts all engines and the first worker. Each drops the rights that serving does not need,
    /// except for the capabilities of `sandbox`; with `None` they drop nothing.
    ///
    /// # Errors
    /// A thread or its runtime cannot be created, or the thread cannot run on the CPU of the plan.
    pub async fn start(
        policy: &Policy,
        shared: &L::Shared,
        log: &Log,
        sandbox: Option<WorkerRights>,
    ) -> io::Result<Self> {
        let plan = CpuPlan::new(policy);
        let engine = policy.engine.as_ref();
        plan.settle()?;
        let own = schedule::own_scheduling();
        if own.is_ok_and(|own| own.class == schedule::SchedulingClass::Idle) {
            let next = "the agent runs in the scheduling class `idle`, so it gets only CPU time \
                        that no other process needs: start the agent in another scheduling class, \
                        or set `class` in [engine]";
            log.warn(Event::new("lowest-class").field("class", "idle").field("next", next));
        }
        let (cpu_handles, wanted) = CpuWorkers::new();
        let mut workers = Self {
            shared: shared.clone(),
            log: log.clone(),
            sandbox,
            plan,
            spill: engine.is_some_and(|engine| engine.spill),
            engines: Vec::new(),
            workers: RefCell::default(),
            handles: Arc::default(),
            cpu_workers: RefCell::default(),
            cpu_handles,
            wanted,
            common: RefCell::default(),
            last_source: Cell::default(),
            grown_at: Cell::default(),
            stays_until: Cell::default(),
            recent: Cell::default(),
        };
        workers.add(None).await?;
        if let Some(engine) = engine {
            workers.start_engines(engine)?;
        }
        Ok(workers)
    }

    fn start_engines(&mut self, engine: &policy::EngineSettings) -> io::Result<()> {
        let when_saturated = if engine.spill { WhenSaturated::Spill } else { WhenSaturated::Wait };
        let queues: Arc<[EngineSlots]> =
            engine.cpus.iter().map(|_| EngineSlots::new(engine.queue)).collect();
        for (number, (cpu, queue)) in engine.cpus.iter().zip(queues.iter()).enumerate() {
            let load = Arc::new(ThreadLoad::new(
                format!("engine-{number}"),
                Some(*cpu),
                Some(queue.clone()),
            ));
            let role = ThreadRole {
                scheduling: Some(Scheduling { class: engine.class, nice: engine.nice }),
                engine: Some(EngineThread::new(
                    number,
                    Arc::clone(&queues),
                    when_saturated,
                    Arc::clone(&self.handles),
                    Arc::clone(&load),
                )),
                handed: None,
                cpu_workers: None,
                also_on: None,
                sandbox: self.sandbox,
                load,
            };
            self.engines.push(start_thread(role, &self.shared, &self.log, None)?);
        }
        Ok(())
    }

    /// Starts a worker, on the given CPU or on a chosen one, if workers are bound to CPUs.
    async fn add(&self, cpu: Option<usize>) -> io::Result<()> {
        let number = self.count();
        let assignment = placement::choose(cpu.as_slice()).or_else(|| {
            let taken: Vec<_> = self.workers.borrow().iter().map(|w| w.load.cpu()).collect();
            let free: Vec<_> = self
                .plan
                .split
                .iter()
                .copied()
                .filter(|cpu| !taken.contains(&Some(*cpu)))
                .collect();
            placement::choose(if free.is_empty() { &self.plan.split } else { &free })
        });
        let cpu = assignment.as_ref().map(|assignment| assignment.cpu);
        let load = Arc::new(ThreadLoad::new(format!("data-{number}"), cpu, None));
        let has_engines = !self.plan.engines.is_empty();
        let (handle, handed) = has_engines.then(|| mpsc::channel(HAND_OVER_QUEUE_MAX)).unzip();
        let handle = handle.map(|handed| WorkerHandle { load: Arc::clone(&load), handed });
        let cpu_workers = self.follows().then(|| Arc::clone(&self.cpu_handles));
        let role = ThreadRole {
            load,
            scheduling: None,
            engine: None,
            handed,
            cpu_workers,
            also_on: None,
            sandbox: self.sandbox,
        };
        let thread = start_thread(role, &self.shared, &self.log, assignment)?;
        let commands = thread.commands.clone();
        self.workers.borrow_mut().push(thread);
        if let Some(handle) = &handle {
            self.handles.add(handle);
        } else {
            let common = self.common.borrow().clone();
            for (id, source) in common.iter().filter(|(_, source)| source.cpu().is_none()) {
                let _ = commands.send(Command::Serve(*id, Arc::clone(source))).await;
            }
        }
        Ok(())
    }

    fn follows(&self) -> bool {
        !self.plan.followed.is_empty()
    }

    /// Waits for a CPU on which a program has no worker yet.
    pub async fn wanted(&mut self) -> usize {
        match self.wanted.recv().await {
            Some(cpu) => cpu,
            // The channel is not closed, because this struct has a sender.
            None => std::future::pending().await,
        }
    }

    /// Starts the worker for the programs on a CPU, unless there is one.
    pub fn place(&self, cpu: usize) {
        let is_there = |worker: &ThreadHandle<L>| worker.load.cpu() == Some(cpu);
        let count = self.cpu_workers.borrow().len();
        let is_useless = count >= CPU_WORKERS_MAX || !self.plan.followed.contains(&cpu);
        let stays = self.stays_until.get().is_some_and(|until| Instant::now() < until);
        if is_useless || stays || self.cpu_workers.borrow().iter().any(is_there) {
            return;
        }
        let load = Arc::new(ThreadLoad::new(format!("data-cpu-{cpu}"), Some(cpu), None));
        let (handle, handed) = mpsc::channel(HAND_OVER_QUEUE_MAX);
        let handle = WorkerHandle { load: Arc::clone(&load), handed: handle };
        let role = ThreadRole {
            load,
            scheduling: None,
            engine: None,
            handed: Some(handed),
            cpu_workers: Some(Arc::clone(&self.cpu_handles)),
            also_on: Some(self.plan.followed.clone()),
            sandbox: self.sandbox,
        };
        match start_thread(role, &self.shared, &self.log, None) {
            Ok(thread) => {
                self.cpu_workers.borrow_mut().push(thread);
                self.cpu_handles.add(&handle);
            }
            Err(error) => {
                self.stays_until.set(Some(Instant::now() + GROWTH_RETRY));
                self.log.error(Event::new("worker-failed").field("error", &error));
            }
        }
    }

    /// The number of workers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.workers.borrow().len()
    }

    /// The maximum number of workers.
    #[must_use]
    pub fn count_max(&self) -> usize {
        self.plan.workers_max
    }

    /// Whether there may be more workers, and there is work for them.
    #[must_use]
    pub fn may_grow(&self) -> bool {
        let count = self.count();
        // If a run shares a CPU with a worker, this worker gets all connections and datagrams of
        // the run.
        let for_all = || self.common.borrow().values().any(|source| source.cpu().is_none());
        count < self.count_max() && L::connections(&self.shared) > count && for_all()
    }

    /// Starts a worker if all existing workers have been busy since the last call.
    pub async fn grow(&self) {
        let now = Instant::now();
        let since = self.grown_at.replace(Some(now));
        let wall = since
            .map(|since| now.duration_since(since))
            .filter(|wall| (GROWTH_INTERVAL / 2..GROWTH_INTERVAL_MAX).contains(wall));
        let all_busy = self.workers.borrow().iter().fold(true, |busy, worker| {
            let ns = worker.load.busy_ns();
            let used = Duration::from_nanos(ns.saturating_sub(worker.grown_ns.replace(ns)));
            busy && wall.is_some_and(|wall| used.as_secs_f64() > wall.as_secs_f64() * BUSY_SHARE)
        });
        let stays = self.stays_until.get().is_some_and(|until| now < until);
        if all_busy
            && !stays
            && let Err(error) = self.add(None).await
        {
            self.stays_until.set(Some(now + GROWTH_RETRY));
            self.log.error(Event::new("worker-failed").field("error", &error));
        }
    }

    /// Returns the CPU that a new run shares with a worker; `None` if runs are not placed.
    ///
    /// It is the CPU with the fewest runs. A worker is started there if there is none.
    pub async fn place_run(&self) -> Option<RunCpu> {
        if self.plan.split.is_empty() {
            return None;
        }
        let fewest = self.fewest_runs();
        let all_taken = fewest.as_ref().is_none_or(|least| least.runs_before > 0);
        if all_taken && self.count() < self.count_max() {
            match self.add(None).await {
                Ok(()) => return self.fewest_runs().map(|least| least.share),
                Err(error) => {
                    self.log.error(Event::new("worker-failed").field("error", &error));
                }
            }
        }
        fewest.map(|least| least.share)
    }

    /// The worker's CPU with the fewest runs.
    fn fewest_runs(&self) -> Option<FewestRuns> {
        let workers = self.workers.borrow();
        let cpu_workers =
            workers.iter().filter_map(|worker| Some((worker.load.cpu()?, &worker.runs)));
        let (cpu, runs) = cpu_workers.min_by_key(|(_, runs)| runs.load(Ordering::Relaxed))?;
        let runs_before = runs.load(Ordering::Relaxed);
        Some(FewestRuns { share: RunCpu::new(cpu, runs), runs_before })
    }

    /// Places a run on the CPU that it had under the predecessor.
    pub async fn place_run_on(&self, cpu: Option<usize>) -> Option<RunCpu> {
        let cpu = cpu.filter(|cpu| self.plan.split.contains(cpu))?;
        if self.share_of(cpu).is_none()
            && self.count() < self.count_max()
            && let Err(error) = self.add(Some(cpu)).await
        {
            self.log.error(Event::new("worker-failed").field("error", &error));
        }
        self.share_of(cpu)
    }

    fn share_of(&self, cpu: usize) -> Option<RunCpu> {
        let workers = self.workers.borrow();
        let there = workers.iter().find(|worker| worker.load.cpu() == Some(cpu))?;
        Some(RunCpu::new(cpu, &there.runs))
    }

    /// Returns the CPUs on which programs of runs may run.
    #[must_use]
    pub fn cpus_of_runs(&self) -> CpusOfRuns<'_> {
        CpusOfRuns { engines: &self.plan.engines, only: self.plan.one_cpu() }
    }

    /// Makes every engine serve a source. Without engines, every worker serves the source, or only
    /// the worker on the source's CPU. Returns the number by which the source can be stopped.
    pub async fn serve(&self, source: Arc<dyn WorkSource<L>>) -> u64 {
        let id = self.next_source();
        self.common.borrow_mut().insert(id, Arc::clone(&source));
        for commands in self.acceptors(source.cpu()) {
            // A worker ends only with the agent.
            let _ = commands.send(Command::Serve(id, Arc::clone(&source))).await;
        }
        id
    }

    fn next_source(&self) -> u64 {
        let id = self.last_source.get() + 1;
        self.last_source.set(id);
        id
    }

    fn acceptors(&self, cpu: Option<usize>) -> Vec<mpsc::Sender<Command<L>>> {
        if !self.engines.is_empty() {
            return self.engines.iter().map(|engine| engine.commands.clone()).collect();
        }
        self.workers_on(cpu)
    }

    /// The worker that has the CPU; without one, all.
    fn workers_on(&self, cpu: Option<usize>) -> Vec<mpsc::Sender<Command<L>>> {
        let workers = self.workers.borrow();
        let there = workers.iter().find(|worker| cpu.is_some() && worker.load.cpu() == cpu);
        let all = workers.iter().filter(|_| there.is_none());
        there.into_iter().chain(all).map(|worker| worker.commands.clone()).collect()
    }

    /// Makes one worker serve a source whose order must be kept. Returns the number by which the
    /// source can be stopped.
    pub async fn serve_on_one(&self, source: Arc<dyn WorkSource<L>>) -> u64 {
        let id = self.next_source();
        let workers = self.workers_on(source.cpu());
        let at = usize::try_from(id).unwrap_or(0) % workers.len().max(1);
        if let Some(commands) = workers.get(at) {
            let _ = commands.send(Command::Serve(id, source)).await;
        }
        id
    }

    /// Makes every thread stop accepting from a source. When this returns, all of them have
    /// stopped. Accepted connections continue until they end.
    pub async fn stop(&self, id: u64) {
        self.common.borrow_mut().remove(&id);
        self.command_all(|done| Command::Stop(id, done)).await;
    }

    /// Ends a source and its connections, after the data that has arrived is passed on.
    pub async fn finish(&self, id: u64) {
        self.command_all(|done| Command::Finish(id, done)).await;
    }

    /// Returns the publisher for a display that is about to read the ledger.
    #[must_use]
    pub fn publisher(&self) -> Publisher<L> {
        Publisher(self.all().iter().map(mpsc::Sender::downgrade).collect())
    }

    /// Every engine and every worker.
    fn all(&self) -> Vec<mpsc::Sender<Command<L>>> {
        let workers = self.workers.borrow();
        let cpu_workers = self.cpu_workers.borrow();
        let all = self.engines.iter().chain(workers.iter()).chain(cpu_workers.iter());
        all.map(|handle| handle.commands.clone()).collect()
    }

    async fn command_all(&self, command: impl Fn(oneshot::Sender<()>) -> Command<L>) {
        let mut answers = Vec::new();
        for commands in self.all() {
            let (done, answer) = oneshot::channel();
            let _ = commands.send(command(done)).await;
            answers.push(answer);
        }
        for answer in answers {
            let _ = answer.await;
        }
    }

    /// Reads all clocks, so that displays can show the recent usage.
    pub fn look(&self) {
        if self.recent.get().is_none_or(|at| at.elapsed() >= RECENT_MIN) {
            self.recent.set(Some(Instant::now()));
            self.engines.iter().for_each(ThreadHandle::<L>::look);
            self.workers.borrow().iter().for_each(ThreadHandle::<L>::look);
            self.cpu_workers.borrow().iter().for_each(ThreadHandle::<L>::look);
        }
    }

    /// Rows of `tacit show engines`: engines first.
    #[must_use]
    pub fn threads(&self) -> Vec<ThreadState> {
        let workers = self.workers.borrow();
        let cpu_workers = self.cpu_workers.borrow();
        let all = self.engines.iter().chain(workers.iter()).chain(cpu_workers.iter());
        all.map(|handle| handle.load.show(handle.recent())).collect()
    }

    /// The number of engines.
    #[must_use]
    pub fn engine_count(&self) -> usize {
        self.engines.len()
    }

    /// Whether workers set connections up when all engines are saturated; `None`: there are no
    /// engines.
    #[must_use]
    pub fn spill(&self) -> Option<bool> {
        (!self.engines.is_empty()).then_some(self.spill)
    }
}

impl<L: Lanes> Drop for Workers<L> {
    fn drop(&mut self) {
        let engines = self.engines.drain(..);
        let threads: Vec<_> = engines
            .chain(self.workers.get_mut().drain(..))
            .chain(self.cpu_workers.get_mut().drain(..))
            .filter_map(|mut handle| handle.thread.take())
            .collect();
        for thread in threads {
            // A worker that panicked has printed it to standard error.
            let _ = thread.join();
        }
    }
}

/// Starts a thread and waits until it runs in its role: a thread that failed must get no work.
fn start_thread<L: Lanes>(
    role: ThreadRole<L>,
    shared: &L::Shared,
    log: &Log,
    assignment: Option<CpuAssignment>,
) -> io::Result<ThreadHandle<L>> {
    let (commands, received) = mpsc::channel(COMMANDS_MAX);
    let shared = shared.clone();
    let log = log.clone();
    let load = Arc::clone(&role.load);
    let (started, has_started) = blocking::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(load.name().to_owned())
        .spawn(move || thread::run(shared, &log, role, received, &started))?;
    has_started.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
    let now = Instant::now();
    Ok(ThreadHandle {
        commands,
        thread: Some(thread),
        load,
        grown_ns: Cell::new(0),
        recent: Cell::new([ClockLook { at: now, cpu_ns: 0 }; 2]),
        runs: Arc::default(),
        _assignment: assignment,
    })
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::mpsc::channel;

    use super::*;

    #[derive(Debug)]
    struct NoLanes;

    impl Lanes for NoLanes {
        type Shared = ();
        type HandedOver = ();

        fn open((): (), _: crate::engine::Thread<()>) -> Rc<Self> {
            Rc::new(Self)
        }

        fn resume(self: &Rc<Self>, (): ()) {}

        fn connections((): &()) -> usize {
            0
        }
    }

    #[test]
    fn a_display_in_progress_does_not_keep_workers_from_ending() {
        let (done, ended) = channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let log = Log::without_lines();
                let policy = policy::parse("version = 1\n").policy.unwrap();
                let workers = Workers::<NoLanes>::start(&policy, &(), &log, None).await;
                let workers = workers.unwrap();
                let publisher = workers.publisher();
                publisher.publish().await;
                drop(workers);
                publisher.publish().await;
            });
            done.send(())
        });
        let patience = Duration::from_secs(20);
        assert_eq!(ended.recv_timeout(patience), Ok(()), "a worker has not ended, or not begun");
    }
}
