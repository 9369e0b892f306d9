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

mod answer;
mod error;
mod expiry;
mod holder;
mod inbound;
mod lanes;
mod listeners;
mod metrics;
mod prepare;
mod reload;
mod running;
mod runs;
mod service_manager;
mod services;
mod start;
mod supervised;
pub mod supervisor;
mod takeover;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use tacit_core::policy::UnixSocket;
use tacit_sys::process;
use tacit_tls::verify::Chains;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

use crate::control::server::Asked;
use crate::dns::Resolvers;
use crate::dns::hosts::Hosts;
use crate::ledger::meter;
use crate::live::{Live, Materials};
use crate::log::{Event, Format, Log};
use crate::session::Table;
use crate::stream::gate::Gates;
use crate::worker::GROWTH_INTERVAL;

pub use error::AgentError;
use expiry::Expiries;
use lanes::Workers;
pub use listeners::ListenError;
use listeners::Opened;
use metrics::Metrics;
use reload::{Asker, Changing};
pub use running::RunningAgent;
use runs::Enrol;
use services::{RunEvent, Runs};
pub use supervised::Supervisor;

/// How often certificate, key and trust files are looked at.
const FILES_INTERVAL: Duration = Duration::from_secs(2);
/// How often names of runs are looked at for those that are believed no longer.
const NAMES_INTERVAL: Duration = Duration::from_secs(30);
/// How often windows of rules are looked at, if there are any.
const WINDOWS_INTERVAL: Duration = Duration::from_secs(1);
/// How often a drain is looked at.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);

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

/// Runs an agent to its end; without a supervisor nothing can start its successor.
///
/// # Errors
/// It could not start; nothing was changed then.
pub fn run(
    options: Options,
    given: Given,
    supervisor: Option<Supervisor>,
) -> Result<(), AgentError> {
    meter::start(false);
    process::keep_secrets().map_err(AgentError::Process)?;
    let descriptors = process::raise_descriptor_limit().map_err(AgentError::Process)?;
    // Making it waits for every thread there is, and so comes before all of them.
    let table = Arc::new(Table::default());
    let log = Log::start(options.log_format, options.quiet, options.audit.as_deref())
        .map_err(AgentError::Log)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(meter::waits)
        .on_thread_unpark(meter::wakes)
        .build_local(tokio::runtime::LocalOptions::default())
        .map_err(AgentError::Process)?;
    let result = runtime.block_on(async {
        let (mut agent, requests, events) =
            Agent::start(options, given, supervisor, log.clone(), descriptors, table).await?;
        agent.work(requests, events).await;
        Ok(())
    });
    // Not waited for: what programs of runs passed, and what takes for ever to close.
    runtime.shutdown_background();
    log.flush();
    result
}

struct Agent {
    options: Options,
    since: SystemTime,
    log: Log,
    live: Arc<ArcSwap<Live>>,
    materials: Materials,
    /// Chains of peers that were verified; `None`: each is verified anew.
    chains: Option<Arc<Chains>>,
    material_errors: Vec<String>,
    changing: Changing,
    expiries: Expiries,
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
    metrics: Option<Metrics>,
    draining: Option<Drain>,
    supervisor: Option<Supervisor>,
    runs: Runs,
    resolvers: Arc<Resolvers>,
    hosts: Hosts,
    run_events: mpsc::Sender<RunEvent>,
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
    /// Answers the operator until the agent ends.
    async fn work(
        &mut self,
        mut requests: mpsc::Receiver<Asked>,
        mut run_events: mpsc::Receiver<RunEvent>,
    ) {
        // What was read a moment ago has not changed: nothing is due at once.
        let now = Instant::now();
        let mut files = tokio::time::interval_at(now + FILES_INTERVAL, FILES_INTERVAL);
        let mut names = tokio::time::interval_at(now + NAMES_INTERVAL, NAMES_INTERVAL);
        names.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut windows = tokio::time::interval(WINDOWS_INTERVAL);
        windows.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut open_windows = Vec::new();
        let mut growth = tokio::time::interval(GROWTH_INTERVAL);
        growth.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let private = self.options.private;
        let (Some(mut stop), Some(mut quit), Some(mut reload), Some(mut restart)) = (
            self.watch(SignalKind::terminate()),
            self.watch(SignalKind::interrupt()),
            self.watch(SignalKind::hangup()),
            self.watch(SignalKind::user_defined2()),
        ) else {
            return;
        };
        loop {
            tokio::select! {
                Some((request, back)) = requests.recv() => self.take_request(request, back).await,
                Some(event) = run_events.recv() => self.take_run_event(event).await,
                _ = growth.tick(), if self.workers.may_grow() => self.workers.grow().await,
                _ = files.tick() => {
                    self.workers.look();
                    self.refresh_materials();
                    self.tell_expiries();
                    self.refresh_hosts();
                }
                _ = names.tick() => self.forget_names(),
                _ = windows.tick(), if self.live.load().has_windows() => {
                    self.follow_windows(&mut open_windows);
                }
                Some(()) = reload.recv() => self.reload(Asker::Signal),
                Some(()) = restart.recv() => self.restart_on_signal(),
                due = self.changing.due() => self.take_change(due).await,
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
}

fn file_name(options: &Options) -> String {
    options.policy.display().to_string()
}
