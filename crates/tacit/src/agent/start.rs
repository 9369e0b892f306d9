//! Starts an agent: loads the policy, opens all sockets, enters the sandbox, and begins to serve.
//! The agent begins to serve only when all steps that can fail have succeeded.

use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use tacit_core::flow::Address;
use tacit_core::policy::{Action, Diagnostic, FindingsShown, Limits, Policy, UnixSocket};
use tacit_sys::input_file::open_regular;
use tacit_sys::socket;
use tacit_tls::signer::KeyProvider;
use tokio::sync::{Semaphore, mpsc};

use super::captured_host::{self, CaptureEnd};
use super::confirmation::Confirmation;
use super::coverage::HostCoverage;
use super::credentials::CredentialStore;
use super::freed_memory::FreedMemory;
use super::lanes::Workers;
use super::last_policy::LastPolicy;
use super::listeners::Listeners;
use super::opened::{Opened, RequiredListener};
use super::passes::Passes;
use super::reload::Changing;
use super::restarting::{self, Restarting};
use super::runs::Runs;
use super::sandbox::Sandbox;
use super::supervised::Supervisor;
use super::tunnels::Tunnels;
use super::{
    Agent, AgentError, AgentOptions, Control, Inbox, Metrics, PassedSockets, Signals, file_name,
    takeover, targets, traces,
};
use crate::activate::client::Starter;
use crate::address::UserNames;
use crate::control::client::ClientError;
use crate::control::directory;
use crate::control::secret::SuccessorSecret;
use crate::control::server::{self, RequestQueue};
use crate::control::trace::Tracer;
use crate::host::HostHelper;
use crate::ledger::meter;
use crate::live::{self, BuildContext, Checked, Live, build, check_text, directory_of};
use crate::log::{Event, Log, LogLevel};
use crate::run::Outside;
use crate::run::launchers;
use crate::run::link::client::{LinkClient, LinkError};
use crate::session::{ConnectionTable, Quotas, RefusalTable};
use crate::signer;
use crate::stream::lane::Shared;
use crate::stream::limiter::HandshakeLimiter;

/// Descriptors for other uses than connections: logs, listeners, displays, resolvers.
const DESCRIPTORS_RESERVED: u64 = 256;
/// The maximum number of addresses in the log line `serving`.
const ADDRESSES_LOGGED_MAX: usize = 16;

/// The state of the process before the agent is created.
pub(super) struct ProcessState {
    pub(super) log: Log,
    /// The limit of open files.
    pub(super) descriptors: u64,
    pub(super) table: Arc<ConnectionTable>,
    /// The helper that captures the host, unless its predecessor hands one over.
    pub(super) helper: Option<HostHelper>,
}

impl Agent {
    /// Loads the policy, opens all sockets and files, and begins to serve.
    pub(super) async fn start(
        options: AgentOptions,
        given: PassedSockets,
        supervisor: Option<Supervisor>,
        process: ProcessState,
    ) -> Result<(Self, Inbox), AgentError> {
        let ProcessState { log, descriptors, table, helper } = process;
        let signer = signer::Client::new(log.clone());
        let keys = signer.keys();
        let (checked, last_policy) = read_policy(&options, &keys, &log)?;
        let Checked { policy, credentials, .. } = checked;
        let credentials =
            CredentialStore::new(credentials, keys, policy.agent.chain_cache.then(Arc::default));
        let installed = install(policy, &credentials)?;
        let connections_max = connections_max(installed.limits(), descriptors, &log);
        let shared = shared(&installed, &options, table, connections_max, log).await?;
        let secret = supervisor.as_ref().and_then(Supervisor::secret);
        let Sources { mut handover, launcher } = Sources::new(&options, given, secret, &shared)?;
        // From here on, signals must not end the process before it has removed its socket files.
        let signals = Signals::watch().map_err(AgentError::Process)?;
        let congestion_control = shared.congestion_control.clone();
        let listeners = Listeners::open(&installed.policy, &mut handover, congestion_control)
            .map_err(AgentError::Listen)?;
        let (sender, requests) = mpsc::channel(server::REQUESTS_MAX);
        let (events, run_events) = mpsc::channel(launchers::EVENTS_MAX);
        let control = Control::open(
            &options.control,
            &mut handover,
            RequestQueue::new(sender),
            traces::tracer(&options, &shared),
            supervisor.as_ref(),
        )?;
        // The agent reads no device before all runs of a predecessor have sent theirs.
        let (opened, tuns) = mpsc::channel(launchers::RUNS_MAX);
        let outside = outside(&installed.policy, &options, &shared.log).await?;
        let runs = Runs::open(&options, &mut handover, shared.clone(), events, opened, outside)?;
        let policy = &installed.policy;
        let metrics = Metrics::open(policy, &mut handover, &control.requests.sender, &shared.log)?;
        let (tunnels, ike_notices) = Tunnels::open(policy)?;
        let (reports, supervisor_reports) = mpsc::channel(restarting::REPORTS_MAX);
        let sandbox = enter_sandbox(policy, &options, &shared);
        sandbox.iter().for_each(|sandbox| sandbox.confine_signer(&signer, &shared.log));
        let workers = start_workers(policy, &shared, sandbox.as_deref()).await;
        // From here on, new threads inherit the sandbox.
        signer.watch().map_err(AgentError::Process)?;
        let mut agent = Self {
            options,
            since: SystemTime::now(),
            policy_installed: SystemTime::now(),
            shared,
            connections_max,
            workers: workers.map_err(AgentError::Process)?,
            listeners,
            credentials,
            runs,
            changing: Changing::default(),
            confirmation: Confirmation::default(),
            last_policy,
            passes: Passes::new(&installed),
            coverage: HostCoverage::default(),
            control,
            metrics,
            tunnels,
            draining: None,
            supervisor,
            restarting: Restarting::new(reports),
            sandbox,
            user_names: UserNames::new(),
            freed_memory: FreedMemory::default(),
        };
        agent.begin(handover, launcher, helper).await?;
        let inbox = Inbox { requests, run_events, tuns, ike_notices, supervisor_reports, signals };
        Ok((agent, inbox))
    }

    /// Begins to serve, releases the predecessor, and continues its runs.
    async fn begin(
        &mut self,
        handover: takeover::Handover,
        launcher: Option<StdStream>,
        helper: Option<HostHelper>,
    ) -> Result<(), AgentError> {
        self.listeners.serve(&self.workers).await;
        let takeover::Released { runs, relayed } = self.release_predecessor(handover)?;
        if self.options.take_over {
            self.supervisor.iter_mut().for_each(Supervisor::released);
        }
        self.sockets_mut().for_each(Opened::take_file);
        let live = self.shared.live.load_full();
        self.shared.log.info(self.serving(&live));
        for handed in runs {
            self.runs.resume(handed, &self.workers).await;
        }
        if self.runs.registry.host().is_some() {
            self.coverage.inherit(relayed);
        }
        self.runs.accept_launchers(launcher)?;
        if self.options.private && self.options.take_over && self.runs.registry.is_empty() {
            // The run ended before the predecessor could hand it over. No other will follow.
            self.end_run().await;
        }
        match helper {
            Some(helper) if self.runs.registry.host().is_some() => helper.dismiss(),
            Some(helper) => {
                let end = self.options.confirm.map_or(CaptureEnd::Rules, |_| CaptureEnd::AsBefore);
                self.runs.begin_host(helper, &self.workers, end).await.map_err(AgentError::Host)?;
                self.follow_start();
            }
            None => {}
        }
        self.store_policy().await;
        self.report_ready();
        Ok(())
    }

    fn serving(&self, live: &Live) -> Event {
        let addresses: Vec<_> =
            self.listeners.all().map(|opened| opened.listener.address.to_string()).collect();
        let left_out = addresses.len().saturating_sub(ADDRESSES_LOGGED_MAX);
        let mut listen = addresses[..addresses.len() - left_out].join(" ");
        if left_out > 0 {
            listen.push_str(&format!(" and {left_out} more"));
        }
        Event::new("serving")
            .field("policy", &self.options.policy.display())
            .value("rules", live.rules.len() + live.filters.len())
            .value("listeners", self.listeners.len())
            .field("listen", &listen)
            .value("workers", self.workers.count_max())
    }

    /// Releases the predecessor and takes over its runs. If the predecessor ends meanwhile, this
    /// agent serves without them, because it has the listening sockets already.
    fn release_predecessor(
        &self,
        handover: takeover::Handover,
    ) -> Result<takeover::Released, AgentError> {
        match self.adopt_clear_access(&handover).and_then(|()| handover.release()) {
            Ok(released) => Ok(released),
            Err(error @ ClientError::Broken(_)) => {
                let event = Event::new("predecessor-lost").field("error", &error);
                self.shared.log.error(event.field(
                    "next",
                    "this agent could not take over the runs of the previous agent, so their \
                     programs have no network: start these programs again",
                ));
                Ok(takeover::Released::default())
            }
            Err(error) => Err(AgentError::TakeOver(error)),
        }
    }

    /// Takes over from the predecessor which clients must use TLS.
    fn adopt_clear_access(&self, handover: &takeover::Handover) -> Result<(), ClientError> {
        let live = self.shared.live.load();
        if live.rules.iter().all(|rule| rule.clear_access.is_none()) {
            return Ok(());
        }
        for (name, state) in handover.clear_access()? {
            if let Some(access) = live.find(&name).and_then(|rule| rule.clear_access.as_ref()) {
                access.adopt(state);
            }
        }
        Ok(())
    }

    /// All listening sockets.
    pub(super) fn sockets(&self) -> impl Iterator<Item = &Opened> {
        let control = std::iter::once(&self.control.opened);
        let metrics = self.metrics.as_ref().map(|metrics| &metrics.opened);
        control.chain(self.listeners.all()).chain(self.runs.enrolment()).chain(metrics)
    }

    /// All listening sockets, mutable.
    pub(super) fn sockets_mut(&mut self) -> impl Iterator<Item = &mut Opened> {
        let control = std::iter::once(&mut self.control.opened);
        let metrics = self.metrics.as_mut().map(|metrics| &mut metrics.opened);
        let enrolment = self.runs.enrolment_mut();
        control.chain(self.listeners.all_mut()).chain(enrolment).chain(metrics)
    }
}

/// Makes a policy ready for connections.
fn install(policy: Policy, credentials: &CredentialStore) -> Result<Arc<Live>, AgentError> {
    let context =
        BuildContext { credentials: &credentials.loaded, chains: credentials.chains.as_ref() };
    let installed = Arc::new(build(policy, context).map_err(AgentError::Rule)?);
    installed.mark_relays();
    if !installed.policy.agent.accounting {
        meter::turn_off();
    }
    Ok(installed)
}

/// Reads the policy that the options name. If the agent captures the host, the nftables rules
/// recognise all sockets that it opens from then on.
fn read_policy(
    options: &AgentOptions,
    keys: &KeyProvider,
    log: &Log,
) -> Result<(Checked, LastPolicy), AgentError> {
    let shown = match options.level > LogLevel::Info {
        true => FindingsShown::Errors,
        false => FindingsShown::All,
    };
    let refused = |findings| AgentError::Policy(options.policy.clone(), findings);
    let text = live::read_policy(&options.policy, open_regular, |_, _| Ok(())).map_err(refused)?;
    let base = directory_of(&options.policy);
    let checked = check_text(&text, &base, keys, shown, |_| Ok(())).map_err(refused)?;
    let last_policy = LastPolicy::new(options.last_policy.as_ref().map(|_| text.into_text()));
    log_warnings(&checked.warnings, options, log);
    if options.host {
        captured_host::mark_own_packets(&checked.policy).map_err(AgentError::Host)?;
    } else if checked.policy.host.is_some() {
        let next = "to capture the traffic of this host, start the agent with --host; without \
                    --host, the agent serves only forwarding rules and programs under `tacit run`";
        log.warn(Event::new("host-not-requested").field("next", next));
    }
    Ok((checked, last_policy))
}

/// The process that starts the programs of the policy. A private agent has no clients that could
/// start one.
async fn starter(
    policy: &Policy,
    options: &AgentOptions,
    log: &Log,
) -> Result<Option<Arc<Starter>>, AgentError> {
    if policy.activations.is_empty() || options.private {
        return Ok(None);
    }
    let started = Starter::start(policy, log.clone()).await;
    started.map(Some).map_err(AgentError::Activate)
}

/// Where the sockets of runs to the outside are opened.
async fn outside(
    policy: &Policy,
    options: &AgentOptions,
    log: &Log,
) -> Result<Outside, AgentError> {
    let Some(chosen) = options.link.of_run(policy) else { return Ok(Outside::Host) };
    if policy.rules.iter().any(|rule| matches!(rule.action, Action::Ipsec(_))) {
        return Err(AgentError::Link(LinkError::tunnels(&chosen.path)));
    }
    let run = options.launcher.as_deref().unwrap_or("run");
    let client = LinkClient::open(chosen, run, log.clone()).await.map_err(AgentError::Link)?;
    Ok(Outside::Link(client))
}

fn log_warnings(warnings: &[Diagnostic], options: &AgentOptions, log: &Log) {
    if options.level > LogLevel::Info {
        return;
    }
    for warning in warnings {
        // The log does not show the source line with a mark under the column.
        let warning = Diagnostic { line: None, ..warning.clone() };
        log.warn(Event::new("policy-warning").field("text", &warning.render(&file_name(options))));
    }
}

/// Starts the workers, and drops the rights that the policy does not need.
async fn start_workers(
    policy: &Policy,
    shared: &Shared,
    sandbox: Option<&Sandbox>,
) -> std::io::Result<Workers> {
    let rights = sandbox.map(Sandbox::of_workers);
    let workers = Workers::start(policy, shared, &shared.log, rights).await;
    if let Some(sandbox) = sandbox {
        sandbox.drop_rights(&shared.log);
    }
    workers
}

/// Enters the sandbox, after all sockets and files are open and before any client is served.
fn enter_sandbox(policy: &Policy, options: &AgentOptions, shared: &Shared) -> Option<Arc<Sandbox>> {
    let enter =
        || Sandbox::enter(policy, options, shared.congestion_control.as_deref(), &shared.log);
    policy.agent.sandbox.then(enter).map(Arc::new)
}

/// Sockets that other processes passed to this agent.
struct Sources {
    /// Listening sockets.
    handover: takeover::Handover,
    /// The connection to the launcher of a private agent's run.
    launcher: Option<StdStream>,
}

impl Sources {
    fn new(
        options: &AgentOptions,
        given: PassedSockets,
        secret: Option<&SuccessorSecret>,
        shared: &Shared,
    ) -> Result<Self, AgentError> {
        let sources = match given {
            PassedSockets::Listening(sockets) => {
                Self { handover: takeover::Handover::from_activation(sockets), launcher: None }
            }
            PassedSockets::Launcher(launcher) => {
                Self { handover: takeover::Handover::default(), launcher: Some(launcher) }
            }
        };
        if !options.take_over {
            return Ok(sources);
        }
        targets::inherit(&shared.live.load(), &options.control, &shared.log);
        let handover = takeover::request(&options.control, secret).map_err(AgentError::TakeOver)?;
        Ok(Self { handover, ..sources })
    }
}

/// The state that all workers share.
async fn shared(
    installed: &Arc<Live>,
    options: &AgentOptions,
    table: Arc<ConnectionTable>,
    connections_max: usize,
    log: Log,
) -> Result<Shared, AgentError> {
    Ok(Shared {
        live: Arc::new(ArcSwap::new(Arc::clone(installed))),
        table,
        limiter: Arc::new(HandshakeLimiter::new(installed.limits(), connections_max)),
        quotas: Arc::new(Quotas::new(installed.limits())),
        places: Arc::new(Semaphore::new(connections_max)),
        congestion_control: congestion_control(&installed.policy, &log),
        refusals: Arc::new(RefusalTable::default()),
        starter: starter(&installed.policy, options, &log).await?,
        log,
    })
}

impl Control {
    /// Opens the control socket, or takes it over, and serves it.
    pub(super) fn open(
        path: &Path,
        handover: &mut takeover::Handover,
        requests: RequestQueue,
        tracer: Tracer,
        supervisor: Option<&Supervisor>,
    ) -> Result<Self, AgentError> {
        let address = Address::Path(path.to_owned());
        let wanted = RequiredListener {
            address,
            clear: true,
            unix: UnixSocket { mode: 0o600, owner: None, replace_stale: true },
        };
        directory::make(path).map_err(|error| AgentError::Control(path.into(), error))?;
        let opened = handover.open(&wanted, None).map_err(AgentError::Listen)?;
        let listening = takeover::listen_on(&opened.listener.socket)
            .map_err(|error| AgentError::Control(path.into(), error))?;
        let secret = supervisor.and_then(Supervisor::secret).cloned();
        let log = tracer.log.clone();
        let serve = server::serve(listening, requests.clone(), log, secret, tracer);
        let task = tokio::task::spawn_local(serve);
        Ok(Self { opened, task, requests })
    }
}

/// The congestion control of the policy; otherwise cubic, if the kernel allows it, because
/// model-based algorithms use twice the CPU time for relays on one host.
fn congestion_control(policy: &Policy, log: &Log) -> Option<String> {
    let from_policy = policy.agent.congestion_control.as_deref();
    let name = from_policy.unwrap_or("cubic");
    if socket::has_congestion_control(name) {
        return Some(name.to_owned());
    }
    if from_policy.is_some() {
        log.warn(Event::new("congestion-control-refused").field("name", &name).field(
            "needed",
            &"set `congestion-control` to a value that the sysctl \
              net.ipv4.tcp_allowed_congestion_control lists",
        ));
    }
    None
}

/// A warning is logged if fewer connections than this are possible and the policy allows more.
const FEW_CONNECTIONS: usize = 1000;

/// The number of connections that the policy and the limit of open files allow. Logs a warning if
/// these are few, and the policy allows more.
fn connections_max(limits: &Limits, descriptors: u64, log: &Log) -> usize {
    let pairs = descriptors.saturating_sub(DESCRIPTORS_RESERVED) / 2;
    let pairs = usize::try_from(pairs).unwrap_or(usize::MAX);
    let connections_max = limits.connections.min(pairs).max(1);
    if connections_max < FEW_CONNECTIONS.min(limits.connections) {
        let next = "raise the limit of open files (LimitNOFILE= of the systemd unit, or ulimit \
                    -n): each connection needs two descriptors";
        let event = Event::new("few-descriptors").value("connections", connections_max);
        log.warn(event.value("wanted", limits.connections).field("next", next));
    }
    connections_max
}
