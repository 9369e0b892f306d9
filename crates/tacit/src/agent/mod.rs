//! Runs the agent: starts workers and listeners for the installed policy. After that, the control
//! thread handles signals, changed files and the requests of operators, until the agent ends.
//!
//! ```text
//!   control (this thread)             data-0 … data-N
//!   policy, certificates, DNS names,  accept, handshake, relay
//!   `tacit show`, signals
//! ```
//!
//! The control thread never blocks a data worker. A new policy replaces the old one atomically, and
//! `tacit show` reads copies of the counters.

mod answer;
mod captured_host;
mod confirmation;
mod coverage;
mod credentials;
mod departures;
mod drain;
mod error;
mod expiry;
mod freed_memory;
mod host_sockets;
mod inbound;
mod lanes;
mod last_policy;
mod limits;
mod listeners;
mod listening_process;
mod metrics;
mod notices;
mod opened;
mod passes;
mod prepare;
mod reload;
mod restarting;
mod runs;
mod sandbox;
pub mod secrets;
mod service_manager;
mod services;
mod start;
mod supervised;
pub mod supervisor;
mod takeover;
mod targets;
mod traces;
mod tunnels;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tacit_core::policy::UnixSocket;
use tacit_sys::process;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::address::UserNames;
use crate::clock;
use crate::control::server::{PendingRequest, RequestQueue};
use crate::host::{self, HostError};
use crate::ike::IkeNotice;
use crate::ledger::{self, ThreadKind, meter};
use crate::log::{Event, Format, Log, LogDestination, LogLevel, Settings};
use crate::run::link::choice::LinkChoice;
use crate::run::tunnels::OpenedTun;
use crate::runtime;
use crate::session::ConnectionTable;
use crate::stream::lane::Shared;
use crate::worker::GROWTH_INTERVAL;

use confirmation::Confirmation;
use coverage::HostCoverage;
pub(crate) use credentials::CredentialStore;
use drain::{Drain, LINGER};
pub use error::AgentError;
use freed_memory::FreedMemory;
use lanes::Workers;
use last_policy::LastPolicy;
use listeners::Listeners;
use metrics::Metrics;
pub use opened::ListenError;
use opened::Opened;
use passes::Passes;
use reload::{Changing, ReloadOrigin};
use restarting::Restarting;
use runs::{EndedRun, Runs};
use sandbox::Sandbox;
use services::RunEvent;
pub use supervised::Supervisor;
use supervised::SupervisorReport;
#[cfg(feature = "fuzz")]
pub(crate) use takeover::{parse_announced, parse_runs};
use tunnels::Tunnels;

/// How often certificate, key and trust files are checked.
pub(crate) const FILES_INTERVAL: Duration = Duration::from_secs(2);
/// How often names of runs are checked for expired ones.
const NAMES_INTERVAL: Duration = Duration::from_secs(30);
/// How often time windows of rules are checked, if there are any.
const WINDOWS_INTERVAL: Duration = Duration::from_secs(1);
/// How often an agent that ends lets its other tasks run: a task needs three turns to accept a
/// control connection, to read its request, and to refuse it.
const LAST_TURNS: usize = 4;
/// How often an agent that ends checks whether its last answers are sent. After that, it closes the
/// connections that have none.
const LAST_ANSWERS_POLLS_MAX: usize = 500;
/// The time between these checks.
const LAST_ANSWERS_POLL: Duration = Duration::from_millis(1);

/// The options of an agent.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The policy file.
    pub policy: PathBuf,
    /// The control socket.
    pub control: PathBuf,
    /// Where the log goes.
    pub log: LogDestination,
    /// The format of log lines.
    pub log_format: Format,
    /// The launcher of the run of a private agent, as `NAME[PID]`.
    pub launcher: Option<String>,
    /// The audit log.
    pub audit: Option<PathBuf>,
    /// Whether only warnings and errors are logged.
    pub level: LogLevel,
    /// The socket at which launchers enrol their runs.
    pub enrol: Option<EnrolmentSocket>,
    /// Whether this agent serves one run only, and ends with it.
    pub private: bool,
    /// The link that its run uses.
    pub link: LinkChoice,
    /// DNS resolvers for runs; if empty, those of the host.
    pub resolvers: Vec<SocketAddr>,
    /// Whether it captures this host.
    pub host: bool,
    /// How long the capture of the host waits for a confirmation before it ends again.
    pub confirm: Option<Duration>,
    /// Where an agent that captures this host stores the policy in force, for a guard.
    pub last_policy: Option<PathBuf>,
    /// Whether to take over the listening sockets of the agent at the control socket.
    pub take_over: bool,
}

/// The socket at which launchers enrol their runs.
#[derive(Clone, Debug)]
pub struct EnrolmentSocket {
    /// The path of the socket file.
    pub path: PathBuf,
    /// The owner and mode of the socket file.
    pub unix: UnixSocket,
}

/// The sockets that the parent process passed to the agent.
#[derive(Debug)]
pub enum PassedSockets {
    /// Listening sockets of socket activation.
    Listening(Vec<OwnedFd>),
    /// The connection to the launcher of a private agent's run.
    Launcher(StdStream),
}

/// Runs an agent to its end. Without `supervisor` it cannot be restarted.
///
/// # Errors
/// The agent could not start. Nothing was changed then.
pub fn run(
    options: AgentOptions,
    given: PassedSockets,
    supervisor: Option<Supervisor>,
) -> Result<(), AgentError> {
    meter::start(ThreadKind::General);
    ledger::charge_parallel_threads();
    process::keep_secrets().map_err(AgentError::Process)?;
    let descriptors = process::raise_descriptor_limit().map_err(AgentError::Process)?;
    // Before there is a thread. A successor needs it only if the helper of its predecessor has
    // ended, which it does not know yet.
    let helper = options
        .host
        .then(host::start)
        .transpose()
        .map_err(|error| AgentError::Host(HostError::Helper(error)))?;
    // Created before any other thread is started, because the creation waits for all threads.
    let table = Arc::new(ConnectionTable::default());
    let log = Log::start(Settings {
        format: options.log_format,
        level: options.level,
        destination: options.log.clone(),
        launcher: options.launcher.clone(),
        audit: options.audit.clone(),
    })
    .map_err(AgentError::Log)?;
    let runtime = runtime::builder()
        .map_err(AgentError::Process)?
        .enable_all()
        .on_thread_park(meter::waits)
        .on_thread_unpark(meter::wakes)
        .build_local(tokio::runtime::LocalOptions::default())
        .map_err(AgentError::Process)?;
    let process = start::ProcessState { log: log.clone(), descriptors, table, helper };
    let failure = supervisor.as_ref().map(Supervisor::failure_channel).transpose();
    let failure = failure.map_err(AgentError::Process)?;
    let result = runtime.block_on(async {
        let started = Agent::start(options, given, supervisor, process).await;
        let (mut agent, mut inbox) = match started {
            Ok(started) => started,
            Err(error) => {
                failure.into_iter().for_each(|channel| channel.report(&error.to_string()));
                return Err(error);
            }
        };
        drop(failure);
        agent.work(&mut inbox).await;
        Ok(())
    });
    // Closing descriptors that programs of runs have passed may block: do not wait for that.
    runtime.shutdown_background();
    log.flush();
    result
}

struct Agent {
    options: AgentOptions,
    since: SystemTime,
    /// When the policy was installed.
    policy_installed: SystemTime,
    /// The state that workers share: the installed policy, the connections, the limits.
    shared: Shared,
    connections_max: usize,
    workers: Workers,
    listeners: Listeners,
    credentials: CredentialStore,
    runs: Runs,
    changing: Changing,
    confirmation: Confirmation,
    last_policy: LastPolicy,
    passes: Passes,
    coverage: HostCoverage,
    control: Control,
    metrics: Option<Metrics>,
    tunnels: Tunnels,
    draining: Option<Drain>,
    supervisor: Option<Supervisor>,
    restarting: Restarting,
    /// The sandbox that is in force; `None` if the policy disables it.
    sandbox: Option<Arc<Sandbox>>,
    user_names: UserNames,
    freed_memory: FreedMemory,
}

/// The queues and signals that the control thread reads.
struct Inbox {
    requests: mpsc::Receiver<PendingRequest>,
    run_events: mpsc::Receiver<RunEvent>,
    /// TUN devices of runs.
    tuns: mpsc::Receiver<OpenedTun>,
    /// Reports of the driver of IKE.
    ike_notices: mpsc::Receiver<IkeNotice>,
    supervisor_reports: mpsc::Receiver<SupervisorReport>,
    signals: Signals,
}

/// The signals that the agent handles. A signal that arrives is kept until it is received.
struct Signals {
    stop: Signal,
    quit: Signal,
    reload: Signal,
    restart: Signal,
}

impl Signals {
    fn watch() -> std::io::Result<Self> {
        Ok(Self {
            stop: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::interrupt())?,
            reload: signal(SignalKind::hangup())?,
            restart: signal(SignalKind::user_defined2())?,
        })
    }
}

/// The control socket, and the task that serves it.
struct Control {
    opened: Opened,
    task: tokio::task::JoinHandle<()>,
    requests: RequestQueue,
}

impl Agent {
    /// Handles requests, runs, signals and timers until the agent ends.
    async fn work(&mut self, inbox: &mut Inbox) {
        // The files were read a moment ago: the first check is due after an interval.
        let now = Instant::now();
        let mut files = tokio::time::interval_at(now + FILES_INTERVAL, FILES_INTERVAL);
        let mut names = tokio::time::interval_at(now + NAMES_INTERVAL, NAMES_INTERVAL);
        names.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut windows = tokio::time::interval(WINDOWS_INTERVAL);
        windows.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut growth = tokio::time::interval(GROWTH_INTERVAL);
        growth.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let private = self.options.private;
        let Inbox { requests, run_events, tuns, ike_notices, supervisor_reports, signals } = inbox;
        loop {
            tokio::select! {
                Some(pending) = requests.recv() => self.take_request(pending).await,
                Some(event) = run_events.recv() => self.take_run_event(event).await,
                Some(opened) = tuns.recv() => self.take_tun(opened),
                Some(notice) = ike_notices.recv() => self.runs.take_notice(notice),
                Some(report) = supervisor_reports.recv() => self.take_supervisor_report(report),
                _ = growth.tick(), if self.workers.may_grow() => self.workers.grow().await,
                cpu = self.workers.wanted() => self.workers.place(cpu),
                _ = files.tick() => self.check_regularly().await,
                _ = names.tick() => self.runs.capture_again(),
                () = self.runs.resolvers_changed() => self.runs.read_resolvers(),
                () = self.runs.host_changed() => self.follow_host(),
                () = self.tunnels.routes_changed() => self.tunnels.compare_sources(),
                () = self.runs.must_rebind() => self.runs.rebind(&self.workers).await,
                _ = windows.tick(), if self.shared.live.load().has_windows() => {
                    self.runs.follow_windows();
                }
                Some(()) = signals.reload.recv() => self.reload(ReloadOrigin::Signal),
                Some(()) = signals.restart.recv() => self.restart_on_signal(),
                () = self.confirmation.due(), if !self.changing.is_under_way() => {
                    if self.take_back().await.is_break() {
                        break;
                    }
                }
                due = self.changing.due() => self.take_change(due).await,
                () = self.passes.due() => self.look_at_connections(),
                // A private agent ends with its run. It ignores signals for the process group,
                // which are meant for the program.
                _ = signals.stop.recv(), if !private || self.has_outlived_run() => break,
                _ = signals.quit.recv(), if !private => break,
                () = drain::due(self.draining) => {
                    if self.is_drained() {
                        break;
                    }
                }
            }
        }
        if self.restarting.is_replaced() {
            self.restarting.succeed(0);
        } else {
            self.restarting.fail("the agent ended before a new agent served");
        }
        self.changing.refuse_all(&self.shared.log);
        // Requests that wait, and those that still arrive, are refused.
        requests.close();
        for _ in 0..LAST_TURNS {
            while requests.try_recv().is_ok() {}
            tokio::task::yield_now().await;
        }
        // Others are being answered.
        for _ in 0..LAST_ANSWERS_POLLS_MAX {
            if !self.control.requests.has_unanswered() {
                break;
            }
            tokio::time::sleep(LAST_ANSWERS_POLL).await;
        }
        self.end_traces().await;
        self.tunnels.close();
        let cut = self.shared.table.len();
        self.shared.log.info(Event::new("ended").value("connections-cut", cut));
    }

    async fn take_run_event(&mut self, event: RunEvent) {
        match event {
            RunEvent::Begin(application) if self.draining.is_some() => {
                application.back.decide(Err(self.refuse_run()));
            }
            RunEvent::Begin(application) => self.runs.begin(*application, &self.workers).await,
            RunEvent::Begun(enrolled, back) => {
                let id = enrolled.run.id;
                let capture = Arc::clone(&enrolled.capture);
                let decision = if self.draining.is_some() {
                    Err(self.refuse_run())
                } else {
                    self.runs.admit(*enrolled, &self.workers).await
                };
                if decision.is_err() {
                    capture.tunnels.end();
                    self.forget_tunnels(id);
                }
                self.runs.answer_launcher(decision, back);
            }
            RunEvent::Listening(id) => self.runs.follow_listening(id, &self.workers).await,
            RunEvent::HelperChannel(id, channel) => self.runs.replace_helper(id, channel),
            RunEvent::End(id) => {
                self.forget_tunnels(id);
                let ended = self.runs.end(id, &self.workers).await;
                match ended {
                    EndedRun::Host if self.confirmation.is_waiting() => self.refuse_restart(),
                    EndedRun::Host => self.restart_on_signal(),
                    EndedRun::Program if self.options.private => self.end_run().await,
                    EndedRun::Program | EndedRun::Unknown => {}
                }
            }
            // A private agent is for one run, and its launcher ended before the run began.
            RunEvent::NoRun if self.options.private => self.drain(Some(LINGER)).await,
            RunEvent::NoRun => {}
        }
    }

    /// Checks what may have changed since the last [`FILES_INTERVAL`].
    async fn check_regularly(&mut self) {
        self.workers.look();
        self.refresh_credentials();
        if self.last_policy.is_late() {
            self.store_policy().await;
        }
        self.look_at_connections();
        self.look_at_host_sockets();
        self.return_freed_memory();
        self.credentials.report_expiries(clock::now_unix_s(), &self.shared.log);
        self.runs.refresh_hosts();
        self.user_names.read_again();
    }

    /// Returns freed memory to the kernel when most connections have ended.
    fn return_freed_memory(&mut self) {
        let table = &self.shared.table;
        if self.freed_memory.is_due(table.len(), table.take_len_max()) {
            process::return_freed_memory();
        }
    }

    /// Logs that the agent refuses a run because it is ending; returns the reason.
    fn refuse_run(&self) -> String {
        let reason = "the agent is ending and accepts no new runs".to_owned();
        self.shared.log.warn(Event::new("run-refused").field("error", &reason));
        reason
    }

    /// Whether only connections are left, which have outlived their run.
    fn has_outlived_run(&self) -> bool {
        self.draining.is_some_and(|drain| drain.outlives_run)
    }

    /// After a private agent has handed its run over: ends its connections when the run ends.
    fn follow_departed(&mut self) {
        if self.options.private && self.runs.registry.departed_have_ended() {
            self.runs.outside().report_run_end();
            self.draining = Some(self.runs.linger());
        }
    }
}

fn file_name(options: &AgentOptions) -> String {
    options.policy.display().to_string()
}
