//! From options to an agent that serves: everything that can fail comes first.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use tacit_core::flow::Address;
use tacit_core::policy::{Diagnostic, Limits, Policy, UnixSocket};
use tacit_sys::socket;
use tokio::sync::{Semaphore, mpsc};

use super::expiry::Expiries;
use super::lanes::Workers;
use super::listeners::{self, Opened, Wanted};
use super::reload::Changing;
use super::runs::Enrol;
use super::services::{RunEvent, Runs};
use super::supervised::Supervisor;
use super::{Agent, AgentError, Control, Given, Metrics, Options, file_name, takeover};
use crate::control::server::{self, Asked};
use crate::dns::Resolvers;
use crate::dns::hosts::Hosts;
use crate::ledger::meter;
use crate::live::{BuildContext, Checked, Live, build, check_file};
use crate::log::{Event, Log};
use crate::run::handover::RunState;
use crate::run::launchers;
use crate::session::Table;
use crate::stream::gate::Gates;
use crate::stream::lane::Shared;

/// Descriptors that are not connections: logs, listeners, displays, resolvers.
const DESCRIPTORS_RESERVED: u64 = 256;

impl Agent {
    /// Checks the policy, opens everything, and serves.
    pub(super) async fn start(
        options: Options,
        given: Given,
        supervisor: Option<Supervisor>,
        log: Log,
        descriptors: u64,
        table: Arc<Table>,
    ) -> Result<(Self, mpsc::Receiver<Asked>, mpsc::Receiver<RunEvent>), AgentError> {
        let checked = check_file(&options.policy)
            .map_err(|findings| AgentError::Policy(options.policy.clone(), findings))?;
        log_warnings(&checked.warnings, &options, &log);
        let Checked { policy, materials, .. } = checked;
        let chains = policy.agent.chain_cache.then(Arc::default);
        let context = BuildContext { materials: &materials, chains: chains.as_ref() };
        let installed = Arc::new(build(policy, context).map_err(AgentError::Rule)?);
        installed.mark_relays();
        meter::allow(installed.policy.agent.accounting);
        let live = Arc::new(ArcSwap::new(Arc::clone(&installed)));
        let connections_max = connections_max(installed.limits(), descriptors);
        let shared = shared(&live, table, connections_max, &log);
        let (mut handover, launcher) = take_over(&options, given)?;
        let mut listeners = open_listeners(&mut handover, &installed, &shared)?;
        let (requests, asked) = mpsc::channel(server::REQUESTS_MAX);
        let (run_events, events) = mpsc::channel(launchers::EVENTS_MAX);
        let mut control =
            Control::open(&options.control, &mut handover, requests, &log, supervisor.as_ref())?;
        let mut enrol = Enrol::open(&options, &mut handover)?;
        let mut metrics = Metrics::open(&installed.policy, &mut handover, &control.requests, &log)?;
        let workers = Workers::start(&installed.policy, &shared, &log).await;
        let workers = workers.map_err(AgentError::Process)?;
        for (number, opened) in listeners.values() {
            workers.serve(*number, Arc::clone(&opened.listener) as _).await;
        }
        let runs = handover.release().map_err(AgentError::TakeOver)?;
        listeners.values_mut().for_each(|(_, opened)| opened.take_file());
        control.opened.take_file();
        if let Some(enrol) = &mut enrol {
            enrol.opened.take_file();
        }
        if let Some(metrics) = &mut metrics {
            metrics.opened.take_file();
        }
        log.info(serving(&installed, listeners.len(), workers.count_max()));
        let resolvers = Arc::new(Resolvers::new(&options.resolvers));
        let mut agent = Self {
            listeners_made: listeners.len() as u64,
            options,
            since: SystemTime::now(),
            log,
            live,
            materials,
            chains,
            material_errors: Vec::new(),
            changing: Changing::default(),
            expiries: Expiries::default(),
            table: shared.table,
            gates: shared.gates,
            places: shared.places,
            connections_max,
            congestion_control: shared.congestion_control,
            workers,
            listeners,
            control,
            enrol,
            metrics,
            draining: None,
            supervisor,
            runs: Runs::default(),
            resolvers,
            hosts: Hosts::default(),
            run_events,
        };
        agent.begin(runs, launcher).await?;
        Ok((agent, asked, events))
    }

    /// Goes on with the runs of the agent before this one, and takes new ones.
    async fn begin(
        &mut self,
        runs: Vec<(RunState, Vec<OwnedFd>)>,
        launcher: Option<StdStream>,
    ) -> Result<(), AgentError> {
        for (state, sockets) in runs {
            self.resume_run(state, sockets).await;
        }
        self.welcome_launchers(launcher)?;
        self.report_ready().map_err(AgentError::Process)
    }
}

fn log_warnings(warnings: &[Diagnostic], options: &Options, log: &Log) {
    if options.quiet {
        return;
    }
    for warning in warnings {
        log.warn(Event::new("policy").field("text", &warning.render(&file_name(options))));
    }
}

fn serving(live: &Live, listeners: usize, workers: usize) -> Event {
    Event::new("serving")
        .field("rules", &live.rules.len())
        .field("listeners", &listeners)
        .field("workers", &workers)
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

/// What all workers share.
fn shared(
    live: &Arc<ArcSwap<Live>>,
    table: Arc<Table>,
    connections_max: usize,
    log: &Log,
) -> Shared {
    let installed = live.load();
    Shared {
        live: Arc::clone(live),
        table,
        gates: Arc::new(Gates::new(installed.limits())),
        places: Arc::new(Semaphore::new(connections_max)),
        congestion_control: congestion_control(&installed.policy, log),
        log: log.clone(),
    }
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
    /// Opens the control socket, or takes it over, and serves it.
    pub(super) fn open(
        path: &Path,
        handover: &mut takeover::Handover,
        requests: mpsc::Sender<Asked>,
        log: &Log,
        supervisor: Option<&Supervisor>,
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
        let supervisor = supervisor.map(Supervisor::pid);
        let serve = server::serve(listening, requests.clone(), log.clone(), supervisor);
        let task = tokio::task::spawn_local(serve);
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

/// What the policy says; else cubic, if the kernel lets us: model-based algorithms cost a relay on
/// one host twice the CPU.
fn congestion_control(policy: &Policy, log: &Log) -> Option<String> {
    let said = policy.agent.congestion_control.as_deref();
    let name = said.unwrap_or("cubic");
    if socket::has_congestion_control(name) {
        return Some(name.to_owned());
    }
    if said.is_some() {
        log.warn(
            Event::new("congestion-control-refused")
                .field("name", &name)
                .field("needed", &"a name of net.ipv4.tcp_allowed_congestion_control"),
        );
    }
    None
}

fn connections_max(limits: &Limits, descriptors: u64) -> usize {
    let pairs = descriptors.saturating_sub(DESCRIPTORS_RESERVED) / 2;
    limits.connections.min(usize::try_from(pairs).unwrap_or(usize::MAX)).max(1)
}
