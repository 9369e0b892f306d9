//! The agent: assembles policy, listeners and workers, and answers its operator.
//!
//! ```text
//!   control (this thread)            data-0 … data-N
//!   policy, certificates, names,     accept, handshake, relay
//!   displays, signals
//! ```
//!
//! Nothing on the control thread can hold up a data worker: policy is swapped, not locked, and
//! displays read snapshots.

mod error;
mod install;
pub mod keeper;
mod listeners;
mod reload;
mod run_events;
mod runs;
mod takeover;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::{Value, json};
use tacit_core::flow::Address;
use tacit_core::policy::{Limits, Policy, UnixSocket};
use tacit_sys::{process, socket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use crate::control::server::{self, Asked, Reply};
use crate::control::{Display, Request, display};
use crate::dns::Resolvers;
use crate::dns::hosts::Hosts;
use crate::live::Live;
use crate::log::{Event, Format, Log};
use crate::stream::connection::Table;
use crate::stream::gate::Gates;
use crate::worker::{Shared, Workers};

pub use error::AgentError;
pub use install::{Checked, Materials, check_file, directory_of, localize, names};
use keeper::Keeper;
pub use listeners::ListenError;
use listeners::{Opened, Wanted};
use run_events::Enrol;
use runs::{RunEvent, Runs};

/// How often certificate, key and trust files are looked at.
const FILES_INTERVAL: Duration = Duration::from_secs(2);
/// How often windows of rules are looked at, if there are any.
const WINDOWS_INTERVAL: Duration = Duration::from_secs(1);
/// How often a drain is looked at.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);
/// Descriptors that are not connections: logs, listeners, displays, resolvers.
const DESCRIPTORS_RESERVED: u64 = 256;

/// What an agent is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The policy file.
    pub policy: PathBuf,
    /// The control socket.
    pub control: PathBuf,
    /// How log lines look.
    pub log_format: Format,
    /// The audit log.
    pub audit: Option<PathBuf>,
    /// Whether only what somebody must act on is logged.
    pub quiet: bool,
    /// Where launchers enrol their runs.
    pub enrol: Option<(PathBuf, UnixSocket)>,
    /// Whether this agent serves one run, and ends with it.
    pub private: bool,
    /// Resolvers to ask for runs; empty: those of the host.
    pub resolvers: Vec<SocketAddr>,
    /// Whether to take the listening sockets of the agent at the control socket.
    pub take_over: bool,
}

/// What whoever started the agent gave to it.
#[derive(Debug)]
pub enum Given {
    /// Listening sockets of socket activation.
    Listening(Vec<OwnedFd>),
    /// The launcher of the run that this agent is for.
    Launcher(StdStream),
}

/// Runs an agent to its end.
///
/// # Errors
/// It could not start; nothing was changed then.
pub fn run(options: Options, given: Given, keeper: Option<Keeper>) -> Result<(), AgentError> {
    process::keep_secrets().map_err(AgentError::Process)?;
    let descriptors = process::raise_descriptor_limit().map_err(AgentError::Process)?;
    let log = Log::start(options.log_format, options.quiet, options.audit.as_deref())
        .map_err(AgentError::Log)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .map_err(AgentError::Process)?;
    let result = runtime.block_on(async {
        let (mut agent, requests, events) =
            Agent::start(options, given, keeper, log.clone(), descriptors).await?;
        agent.work(requests, events).await;
        Ok(())
    });
    log.flush();
    result
}

struct Agent {
    options: Options,
    log: Log,
    live: Arc<ArcSwap<Live>>,
    materials: Materials,
    material_errors: Vec<String>,
    table: Arc<Table>,
    gates: Arc<Gates>,
    places: Arc<Semaphore>,
    connections_max: usize,
    congestion_control: Option<String>,
    workers: Workers,
    listeners: BTreeMap<String, (u64, Opened)>,
    listeners_made: u64,
    control: Control,
    enrol: Option<Enrol>,
    draining: Option<Drain>,
    keeper: Option<Keeper>,
    runs: Runs,
    runs_made: u64,
    resolvers: Arc<Resolvers>,
    hosts: Hosts,
    run_events: mpsc::Sender<RunEvent>,
    /// Connections of launchers whose runs a successor has.
    departed: Vec<OwnedFd>,
}

/// The control socket while it is served.
struct Control {
    opened: Opened,
    task: tokio::task::JoinHandle<()>,
    requests: mpsc::Sender<Asked>,
}

#[derive(Clone, Copy)]
struct Drain {
    until: Option<Instant>,
}

impl Agent {
    async fn start(
        options: Options,
        given: Given,
        keeper: Option<Keeper>,
        log: Log,
        descriptors: u64,
    ) -> Result<(Self, mpsc::Receiver<Asked>, mpsc::Receiver<RunEvent>), AgentError> {
        let checked = check_file(&options.policy)
            .map_err(|findings| AgentError::Policy(options.policy.clone(), findings))?;
        for warning in checked.warnings.iter().filter(|_| !options.quiet) {
            log.warn(Event::new("policy").field("text", &warning.render(&file_name(&options))));
        }
        let Checked { policy, materials, .. } = checked;
        let rules = install::build_rules(&policy, &materials, None).map_err(AgentError::Rule)?;
        let connections_max = connections_max(&policy.limits, descriptors);
        let live = Arc::new(ArcSwap::from_pointee(Live::new(1, policy, rules)));
        let installed = live.load_full();
        let shared = Shared {
            live: Arc::clone(&live),
            table: Arc::new(Table::default()),
            gates: Arc::new(Gates::new(installed.limits())),
            places: Arc::new(Semaphore::new(connections_max)),
            congestion_control: congestion_control(&installed.policy),
            log: log.clone(),
        };
        let (mut handover, launcher) = take_over(&options, given)?;
        let mut listeners = open_listeners(&mut handover, &installed, &shared)?;
        let (requests, asked) = mpsc::channel(server::REQUESTS_MAX);
        let (run_events, events) = mpsc::channel(runs::EVENTS_MAX);
        let mut control = Control::open(&options.control, &mut handover, requests, &log)?;
        let mut enrol = Enrol::open(&options, &mut handover)?;
        let workers = Workers::start(worker_count(&installed.policy), &shared)
            .map_err(AgentError::Process)?;
        for (number, opened) in listeners.values() {
            workers.listen(*number, &opened.listener).await;
        }
        let runs = handover.release().map_err(AgentError::TakeOver)?;
        let all = listeners.values_mut().map(|(_, opened)| opened);
        let all = all.chain([&mut control.opened]);
        all.chain(enrol.as_mut().map(|enrol| &mut enrol.opened)).for_each(Opened::take_file);
        log.info(
            Event::new("serving")
                .field("rules", &installed.rules.len())
                .field("listeners", &listeners.len())
                .field("workers", &workers.count()),
        );
        let resolvers = Arc::new(Resolvers::new(&options.resolvers));
        let mut agent = Self {
            listeners_made: listeners.len() as u64,
            options,
            log,
            live,
            materials,
            material_errors: Vec::new(),
            table: shared.table,
            gates: shared.gates,
            places: shared.places,
            connections_max,
            congestion_control: shared.congestion_control,
            workers,
            listeners,
            control,
            enrol,
            draining: None,
            keeper,
            runs: Runs::new(),
            runs_made: 0,
            resolvers,
            hosts: Hosts::default(),
            run_events,
            departed: Vec::new(),
        };
        for (state, sockets) in runs {
            agent.resume_run(state, sockets).await;
        }
        agent.welcome_launchers(launcher)?;
        agent.tell_keeper(Keeper::ready);
        Ok((agent, asked, events))
    }

    /// Answers the operator until the agent ends.
    async fn work(
        &mut self,
        mut requests: mpsc::Receiver<Asked>,
        mut run_events: mpsc::Receiver<RunEvent>,
    ) {
        let mut files = tokio::time::interval(FILES_INTERVAL);
        let mut windows = tokio::time::interval(WINDOWS_INTERVAL);
        windows.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut open_windows = Vec::new();
        let private = self.options.private;
        let (Some(mut stop), Some(mut quit), Some(mut reload)) = (
            self.watch(SignalKind::terminate()),
            self.watch(SignalKind::interrupt()),
            self.watch(SignalKind::hangup()),
        ) else {
            return;
        };
        loop {
            tokio::select! {
                Some((request, back)) = requests.recv() => {
                    if request == (Request::Show { what: Display::Connections }) {
                        self.show_connections(back);
                        continue;
                    }
                    let reply = self.answer(request).await;
                    // Who asked may be gone.
                    let _ = back.send(reply);
                }
                Some(event) = run_events.recv() => self.take_run_event(event).await,
                _ = files.tick() => {
                    self.refresh_materials();
                    self.refresh_hosts().await;
                }
                _ = windows.tick(), if self.live.load().has_windows => {
                    self.follow_windows(&mut open_windows).await;
                }
                Some(()) = reload.recv() => {
                    if let Err(reason) = self.reload().await {
                        self.log.error(Event::new("reload-refused").field("reason", &reason));
                    }
                }
                // A private agent ends with its run: such a signal is meant for the program.
                _ = stop.recv(), if !private => break,
                _ = quit.recv(), if !private => break,
                () = tokio::time::sleep(DRAIN_INTERVAL), if self.draining.is_some() => {
                    if self.is_drained() {
                        break;
                    }
                }
            }
        }
        self.log.info(Event::new("ended").field("connections-cut", &self.table.len()));
    }

    fn watch(&self, kind: SignalKind) -> Option<Signal> {
        signal(kind)
            .inspect_err(|error| self.log.error(Event::new("ended").field("error", error)))
            .ok()
    }

    async fn answer(&mut self, request: Request) -> Reply {
        match request {
            Request::Show { what } => Reply::ok(self.show(what)),
            Request::Reload => match self.reload().await {
                Ok(value) => Reply::ok(value),
                Err(reason) => Reply::error(reason),
            },
            Request::Drain { timeout_ms } => {
                let asked = timeout_ms.map(Duration::from_millis);
                self.drain(asked).await;
                Reply::ok(json!({ "open": self.table.len() }))
            }
            Request::Restart => match &mut self.keeper {
                None => Reply::error("this agent has no parent process that could start another"),
                Some(keeper) => match keeper.restart() {
                    Ok(()) => Reply::ok(json!({ "open": self.table.len() })),
                    Err(error) => Reply::error(format!("the parent process is gone: {error}")),
                },
            },
            Request::Close { ids, stale } => Reply::ok(self.close(&ids, stale)),
            Request::TakeOver => self.hand_over(),
            Request::Release => match self.release().await {
                Ok(reply) => reply,
                Err(error) => Reply::error(error),
            },
        }
    }

    /// Answers when the runs have said whose their connections are; other requests go on.
    fn show_connections(&self, back: oneshot::Sender<Reply>) {
        let (table, live) = (Arc::clone(&self.table), self.live.load_full());
        tokio::task::spawn_local(async move {
            let shown = display::connections(&table, &live).await;
            // Who asked may be gone.
            let _ = back.send(Reply::ok(shown));
        });
    }

    fn show(&self, what: Display) -> Value {
        let live = self.live.load();
        match what {
            // It is answered where requests arrive.
            Display::Connections => Value::Null,
            Display::Runs => self.show_runs(),
            Display::Rules => display::rules(&self.table, &live),
            Display::Identities => display::identities(&self.materials, &live),
            Display::Limits => self.limits(live.limits()),
        }
    }

    fn limits(&self, limits: &Limits) -> Value {
        use crate::stream::relay;
        json!([
            { "name": "connections", "max": self.connections_max, "used": self.table.len(),
              "beyond": "wait in the kernel's queue" },
            { "name": "handshakes", "max": limits.handshakes,
              "used": self.gates.in_flight(limits), "beyond": "wait" },
            { "name": "handshakes-per-rule", "max": limits.handshakes_per_rule, "beyond": "wait" },
            { "name": "handshakes-per-source", "max": limits.handshakes_per_source,
              "beyond": "wait" },
            { "name": "handshake-bytes", "max": crate::tls::INCOMING_BYTES_MAX,
              "beyond": "refused" },
            { "name": "batch-records", "max": relay::BATCH_RECORDS_MAX },
            { "name": "held-bytes-per-worker", "max": relay::HELD_BYTES_MAX,
              "beyond": "batches shrink to one record" },
            { "name": "listen-backlog", "max": socket::LISTEN_BACKLOG,
              "beyond": "the kernel drops, the client tries again" },
            { "name": "log-queue-lines", "max": crate::log::QUEUE_LINES_MAX,
              "used": self.log.lost(), "beyond": "lost, and counted (used = lost so far)" },
            { "name": "runs", "max": run_events::RUNS_MAX, "used": self.runs.len(),
              "beyond": "refused" },
            { "name": "workers", "max": self.workers.count(), "used": self.workers.count() },
        ])
    }

    fn close(&self, ids: &[u64], stale: bool) -> Value {
        let live = self.live.load();
        let mut closed = Vec::new();
        for record in self.table.snapshot() {
            if ids.contains(&record.id) || (stale && !live.is_current(&record.rule)) {
                record.close();
                closed.push(record.id);
            }
        }
        let unknown: Vec<_> = ids.iter().filter(|id| !closed.contains(id)).collect();
        json!({ "closed": closed, "unknown": unknown })
    }

    /// Accepts no more.
    async fn drain(&mut self, timeout: Option<Duration>) {
        let timeout = timeout.or_else(|| self.live.load().limits().drain);
        self.draining = Some(Drain { until: timeout.map(|timeout| Instant::now() + timeout) });
        for (_, (id, _closed)) in std::mem::take(&mut self.listeners) {
            self.workers.unlisten(id).await;
        }
        self.enrol = None;
        for (_, mut enrolled) in std::mem::take(&mut self.runs) {
            self.unlisten_run(&mut enrolled).await;
        }
        self.log.info(Event::new("draining").field("open", &self.table.len()));
    }

    fn is_drained(&mut self) -> bool {
        self.follow_departed();
        let over = self
            .draining
            .and_then(|drain| drain.until)
            .is_some_and(|until| Instant::now() >= until);
        // Places count from the moment of accepting; the table begins a little later.
        over || self.places.available_permits() == self.connections_max
    }

    /// Copies of all listening sockets, for a successor.
    fn hand_over(&self) -> Reply {
        let all = self.listeners.values().map(|(_, opened)| opened);
        let enrol = self.enrol.as_ref().map(|enrol| &enrol.opened);
        takeover::offer(&self.control.opened, all.chain(enrol))
    }

    /// A successor serves: leave it the sockets, give it the runs, and serve the open connections
    /// to their end.
    async fn release(&mut self) -> Result<Reply, String> {
        let own = own_control_path(&self.options.control);
        let mut handover = takeover::Handover::default();
        let requests = self.control.requests.clone();
        let mut control = Control::open(&own, &mut handover, requests, &self.log)
            .map_err(|error| error.to_string())?;
        std::mem::swap(&mut self.control, &mut control);
        control.task.abort();
        control.opened.leave_file();
        let enrol = self.enrol.as_mut().map(|enrol| &mut enrol.opened);
        for opened in self.listeners.values_mut().map(|(_, opened)| opened).chain(enrol) {
            opened.leave_file();
        }
        let runs = self.hand_over_runs().await;
        self.drain(None).await;
        Ok(runs)
    }

    fn tell_keeper(&mut self, tell: impl FnOnce(&mut Keeper) -> std::io::Result<()>) {
        if let Some(keeper) = &mut self.keeper
            && let Err(error) = tell(keeper)
        {
            self.log.warn(Event::new("parent-gone").field("error", &error));
        }
    }
}

/// What others hand to this agent: listening sockets, and the launcher of its run.
fn take_over(
    options: &Options,
    given: Given,
) -> Result<(takeover::Handover, Option<StdStream>), AgentError> {
    let (handover, launcher) = match given {
        Given::Listening(sockets) => (takeover::Handover::from_activation(sockets), None),
        Given::Launcher(launcher) => (takeover::Handover::default(), Some(launcher)),
    };
    if !options.take_over {
        return Ok((handover, launcher));
    }
    let handover = takeover::request(&options.control).map_err(AgentError::TakeOver)?;
    Ok((handover, launcher))
}

/// Every listening address of the policy, by its text, with the number that workers know it by.
fn open_listeners(
    handover: &mut takeover::Handover,
    live: &Live,
    shared: &Shared,
) -> Result<BTreeMap<String, (u64, Opened)>, AgentError> {
    let mut listeners = BTreeMap::new();
    for (number, (key, (address, wanted))) in (0..).zip(listeners::wanted(&live.policy)) {
        let opened = handover.open(&address, &wanted, shared.congestion_control.as_deref());
        listeners.insert(key, (number, opened.map_err(AgentError::Listen)?));
    }
    Ok(listeners)
}

impl Control {
    fn open(
        path: &Path,
        handover: &mut takeover::Handover,
        requests: mpsc::Sender<Asked>,
        log: &Log,
    ) -> Result<Self, AgentError> {
        let wanted = Wanted {
            clear: true,
            unix: UnixSocket { mode: 0o600, owner: None, replace_stale: true },
        };
        make_private_directory(path).map_err(|error| AgentError::Control(path.into(), error))?;
        let address = Address::Path(path.to_owned());
        let opened = handover.open(&address, &wanted, None).map_err(AgentError::Listen)?;
        let listening = takeover::listen_on(&opened.listener.socket)
            .map_err(|error| AgentError::Control(path.into(), error))?;
        let task =
            tokio::task::spawn_local(server::serve(listening, requests.clone(), log.clone()));
        Ok(Self { opened, task, requests })
    }
}

/// The default directory is ours to make; any other must be there.
fn make_private_directory(control: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    match control.parent() {
        Some(directory) if control == crate::control::default_path() && !directory.exists() => {
            std::fs::DirBuilder::new().mode(0o700).create(directory)
        }
        _ => Ok(()),
    }
}

/// Where an agent that was replaced still answers.
fn own_control_path(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(format!(".{}", std::process::id()));
    path.into()
}

fn file_name(options: &Options) -> String {
    options.policy.display().to_string()
}

fn worker_count(policy: &Policy) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    policy.agent.workers.unwrap_or_else(|| (cpus / 2).max(1))
}

/// Cubic where the kernel has it: model-based algorithms cost a relay on one host twice the CPU.
fn congestion_control(policy: &Policy) -> Option<String> {
    let name = policy.agent.congestion_control.clone().unwrap_or_else(|| "cubic".to_owned());
    socket::has_congestion_control(&name).then_some(name)
}

fn connections_max(limits: &Limits, descriptors: u64) -> usize {
    let pairs = descriptors.saturating_sub(DESCRIPTORS_RESERVED) / 2;
    limits.connections.min(usize::try_from(pairs).unwrap_or(usize::MAX)).max(1)
}
