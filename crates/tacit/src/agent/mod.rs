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
mod takeover;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::{Value, json};
use tacit_core::flow::Address;
use tacit_core::policy::{Limits, Policy, UnixSocket};
use tacit_sys::{process, socket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use crate::control::server::{self, Asked, Reply};
use crate::control::{Display, Request, display};
use crate::live::Live;
use crate::log::{Event, Format, Log};
use crate::stream::connection::Table;
use crate::stream::gate::Gates;
use crate::worker::{Shared, Workers};

pub use error::AgentError;
pub use install::{Checked, Materials, check_file, directory_of, names};
use keeper::Keeper;
pub use listeners::ListenError;
use listeners::{Opened, Wanted};

/// How often certificate, key and trust files are looked at.
const FILES_INTERVAL: Duration = Duration::from_secs(2);
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
    /// Whether to take the listening sockets of the agent at the control socket.
    pub take_over: bool,
}

/// Runs an agent to its end.
///
/// # Errors
/// It could not start; nothing was changed then.
pub fn run(
    options: Options,
    inherited: Vec<OwnedFd>,
    keeper: Option<Keeper>,
) -> Result<(), AgentError> {
    process::keep_secrets().map_err(AgentError::Process)?;
    let descriptors = process::raise_descriptor_limit().map_err(AgentError::Process)?;
    let log = Log::start(options.log_format, options.audit.as_deref()).map_err(AgentError::Log)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .map_err(AgentError::Process)?;
    runtime.block_on(async {
        let (mut agent, requests) =
            Agent::start(options, inherited, keeper, log, descriptors).await?;
        agent.work(requests).await;
        Ok(())
    })
}

struct Agent {
    options: Options,
    log: Log,
    live: Arc<ArcSwap<Live>>,
    materials: Materials,
    material_errors: Vec<String>,
    table: Arc<Table>,
    gates: Arc<Gates>,
    connections_max: usize,
    congestion_control: Option<String>,
    workers: Workers,
    listeners: BTreeMap<String, (u64, Opened)>,
    listeners_made: u64,
    control: Control,
    draining: Option<Drain>,
    keeper: Option<Keeper>,
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
        inherited: Vec<OwnedFd>,
        keeper: Option<Keeper>,
        log: Log,
        descriptors: u64,
    ) -> Result<(Self, mpsc::Receiver<Asked>), AgentError> {
        let checked = check_file(&options.policy)
            .map_err(|findings| AgentError::Policy(options.policy.clone(), findings))?;
        for warning in &checked.warnings {
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
        let mut handover = takeover::Handover::from_activation(inherited);
        if options.take_over {
            handover = takeover::request(&options.control).map_err(AgentError::TakeOver)?;
        }
        let mut listeners = BTreeMap::new();
        for (number, (key, (address, wanted))) in (0..).zip(listeners::wanted(&installed.policy)) {
            let opened = handover.open(&address, &wanted, shared.congestion_control.as_deref());
            listeners.insert(key, (number, opened.map_err(AgentError::Listen)?));
        }
        let (requests, asked) = mpsc::channel(server::REQUESTS_MAX);
        let control = Control::open(&options.control, &mut handover, requests, &log)?;
        let workers = Workers::start(worker_count(&installed.policy), &shared)
            .map_err(AgentError::Process)?;
        for (number, opened) in listeners.values() {
            workers.listen(*number, &opened.listener).await;
        }
        handover.release().map_err(AgentError::TakeOver)?;
        log.info(
            Event::new("serving")
                .field("rules", &installed.rules.len())
                .field("listeners", &listeners.len())
                .field("workers", &workers.count()),
        );
        let mut agent = Self {
            listeners_made: listeners.len() as u64,
            options,
            log,
            live,
            materials,
            material_errors: Vec::new(),
            table: shared.table,
            gates: shared.gates,
            connections_max,
            congestion_control: shared.congestion_control,
            workers,
            listeners,
            control,
            draining: None,
            keeper,
        };
        agent.tell_keeper(Keeper::ready);
        Ok((agent, asked))
    }

    /// Answers the operator until the agent ends.
    async fn work(&mut self, mut requests: mpsc::Receiver<Asked>) {
        let mut files = tokio::time::interval(FILES_INTERVAL);
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
                    let reply = self.answer(request).await;
                    // Who asked may be gone.
                    let _ = back.send(reply);
                }
                _ = files.tick() => self.refresh_materials(),
                Some(()) = reload.recv() => {
                    if let Err(reason) = self.reload().await {
                        self.log.error(Event::new("reload-refused").field("reason", &reason));
                    }
                }
                _ = stop.recv() => break,
                _ = quit.recv() => break,
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
                Ok(()) => Reply::ok(Value::Null),
                Err(error) => Reply::error(error),
            },
        }
    }

    fn show(&self, what: Display) -> Value {
        let live = self.live.load();
        match what {
            Display::Connections => display::connections(&self.table, &live),
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
            { "name": "workers", "max": self.workers.count(), "used": self.workers.count() },
        ])
    }

    /// Installs the policy file as it is now, or changes nothing.
    async fn reload(&mut self) -> Result<Value, String> {
        let file = file_name(&self.options);
        let checked = check_file(&self.options.policy).map_err(|findings| {
            let lines: Vec<_> = findings.iter().map(|finding| finding.render(&file)).collect();
            format!("nothing was installed:\n{}", lines.join("\n"))
        })?;
        let before = self.live.load_full();
        let used = Some((before.as_ref(), &self.materials));
        let Checked { policy, materials, warnings } = checked;
        let rules = install::build_rules(&policy, &materials, used)
            .map_err(|(rule, error)| format!("nothing was installed: rule {rule}: {error}"))?;
        // New listeners are opened before anything is changed: one that fails leaves all as it was.
        let wanted = listeners::wanted(&policy);
        let mut opened = Vec::new();
        for (key, (address, wanted)) in &wanted {
            if !self.listeners.contains_key(key) {
                let new = listeners::open(address, wanted, self.congestion_control.as_deref());
                let new = new.map_err(|error| format!("nothing was installed: {error}"))?;
                opened.push((key.clone(), new));
            }
        }
        let restart = needs_restart(&before.policy, &policy);
        let live = Live::new(before.generation + 1, policy, rules);
        let diff = difference(&before, &live);
        self.live.store(Arc::new(live));
        self.materials = materials;
        self.material_errors.clear();
        for (key, new) in opened {
            self.listeners_made += 1;
            self.workers.listen(self.listeners_made, &new.listener).await;
            self.listeners.insert(key, (self.listeners_made, new));
        }
        let gone: Vec<_> =
            self.listeners.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
        for key in gone {
            if let Some((id, _closed)) = self.listeners.remove(&key) {
                self.workers.unlisten(id).await;
            }
        }
        self.log.info(Event::new("reloaded").field("changes", &diff));
        let warnings: Vec<_> = warnings.iter().map(|warning| warning.render(&file)).collect();
        Ok(json!({ "generation": before.generation + 1, "changes": diff, "warnings": warnings,
                   "needs-restart": restart }))
    }

    /// Takes certificate, key and trust files that changed on disk; bad ones keep the old.
    fn refresh_materials(&mut self) {
        let before = self.live.load_full();
        let base = directory_of(&self.options.policy);
        let (fresh, errors) = self.materials.refreshed(&before.policy, &base);
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        if errors != self.material_errors {
            for error in &errors {
                self.log.error(
                    Event::new("file-refused")
                        .field("reason", error)
                        .field("next", "the old one stays in use until the file is right"),
                );
            }
            self.material_errors = errors;
        }
        let used = Some((before.as_ref(), &self.materials));
        match install::build_rules(&before.policy, &fresh, used) {
            Ok(rules) => {
                let live = Live::new(before.generation + 1, before.policy.clone(), rules);
                let diff = difference(&before, &live);
                if diff != Value::Null {
                    self.live.store(Arc::new(live));
                    self.log.info(Event::new("files-reloaded").field("changes", &diff));
                }
                self.materials = fresh;
            }
            Err((rule, error)) => self
                .log
                .error(Event::new("file-refused").field("rule", &rule).field("reason", &error)),
        }
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
        self.log.info(Event::new("draining").field("open", &self.table.len()));
    }

    fn is_drained(&self) -> bool {
        let over = self
            .draining
            .and_then(|drain| drain.until)
            .is_some_and(|until| Instant::now() >= until);
        over || self.table.is_empty()
    }

    /// Copies of all listening sockets, for a successor.
    fn hand_over(&self) -> Reply {
        let all = self.listeners.values().map(|(_, opened)| opened);
        takeover::offer(&self.control.opened, all)
    }

    /// A successor serves: leave it the sockets, and serve the open connections to their end.
    async fn release(&mut self) -> Result<(), String> {
        let own = own_control_path(&self.options.control);
        let mut handover = takeover::Handover::default();
        let requests = self.control.requests.clone();
        let mut control = Control::open(&own, &mut handover, requests, &self.log)
            .map_err(|error| error.to_string())?;
        std::mem::swap(&mut self.control, &mut control);
        control.task.abort();
        control.opened.leave_file();
        for (_, opened) in self.listeners.values_mut() {
            opened.leave_file();
        }
        self.drain(None).await;
        Ok(())
    }

    fn tell_keeper(&mut self, tell: impl FnOnce(&mut Keeper) -> std::io::Result<()>) {
        if let Some(keeper) = &mut self.keeper
            && let Err(error) = tell(keeper)
        {
            self.log.warn(Event::new("parent-gone").field("error", &error));
        }
    }
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

/// What a reload cannot change under a running agent.
fn needs_restart(before: &Policy, now: &Policy) -> Vec<&'static str> {
    let mut parts = Vec::new();
    if before.agent != now.agent {
        parts.push("[agent]");
    }
    if before.limits != now.limits {
        parts.push("[limits]");
    }
    parts
}

/// Rules that came, went or changed; null if none did.
fn difference(before: &Live, now: &Live) -> Value {
    let mut changes = serde_json::Map::new();
    let mut note = |kind: &str, name: &str| {
        if let Value::Array(list) =
            changes.entry(kind.to_owned()).or_insert_with(|| Value::Array(Vec::new()))
        {
            list.push(name.into());
        }
    };
    for rule in &now.rules {
        match before.find(rule.name()) {
            None => note("added", rule.name()),
            Some(old) if !Arc::ptr_eq(old, rule) => note("changed", rule.name()),
            Some(_) => {}
        }
    }
    for rule in &before.rules {
        if now.find(rule.name()).is_none() {
            note("removed", rule.name());
        }
    }
    if changes.is_empty() { Value::Null } else { Value::Object(changes) }
}
