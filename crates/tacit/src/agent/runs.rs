//! Starts the runs of the agent, applies policy changes to them, and ends them. A run is a program
//! under `tacit run`. `departures.rs` passes the runs to another agent.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tacit_core::dns::KnownName;
use tacit_core::flow::Address;
use tacit_core::held::HELD_MAX;
use tacit_core::policy::{PathChoice, Policy};
use tacit_sys::netlink::usage::UsageSockets;
use tacit_sys::process;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::drain::{Drain, LINGER};
use super::host_sockets;
use super::inbound::reserve_missing;
use super::lanes::Workers;
use super::opened::{ListenError, Opened, RequiredListener};
use super::secrets;
use super::services::{self, Candidate, Enrolled, RunContext, RunEvent, Services};
use super::{AgentError, AgentOptions, takeover};
use crate::address;
use crate::clock::{self, Rfc3339};
use crate::control::display::VERSION;
use crate::control::display::runs::{RunDisplay, RunLink, RunListener, RunName, RunsDisplay};
use crate::dns::Resolvers;
use crate::dns::hosts::Hosts;
use crate::ike::IkeNotice;
use crate::log::{Event, Log};
use crate::run::Outside;
use crate::run::channel::{HelperChannel, adopt};
use crate::run::handover::HeldAddress;
use crate::run::host::{HostNetwork, InterfaceChanges};
use crate::run::launchers::{self, Admission, Application};
use crate::run::protocol::{Enrolment, RelayReason, RunTerms, SocketSet};
use crate::run::registry::Registry;
use crate::run::tunnels::OpenedTun;
use crate::run::{Run, RunIdentity};
use crate::session::{Closing, ConnectionRecord};
use crate::stream::handed::HandedConnections;
use crate::stream::lane::Shared;

/// How long a reload waits until the address sets in the kernel are updated for all runs.
const CAPTURE_WAIT_MAX: Duration = Duration::from_secs(1);

/// The time after a failed attempt to hide files until the next one.
const HIDE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The files that programs must not read, and the policy that names them.
type SecretsOf = (Weak<Policy>, Arc<Vec<PathBuf>>);

/// The runs that the agent serves.
pub(super) struct Runs {
    pub(super) registry: Registry<Services>,
    enrol: Option<Enrol>,
    hosts: Hosts,
    /// The addresses of the host.
    host: Arc<HostNetwork>,
    host_changes: InterfaceChanges,
    /// Where the sockets of runs to the outside are opened.
    outside: Outside,
    resolvers: Arc<Resolvers>,
    /// Whether the agent that takes over these runs knows TUN devices.
    pub(super) successor_takes_tuns: bool,
    pub(super) events: mpsc::Sender<RunEvent>,
    /// Where TUN devices of runs go.
    tuns: mpsc::Sender<OpenedTun>,
    /// Addresses that peers have assigned to runs that are being set up.
    pub(super) assigned: Vec<IkeNotice>,
    pub(super) shared: Shared,
    /// The maximum number of held SYNs of a run.
    pub(super) held_syns_max: usize,
    /// The connections of sockets that programs got, or why they get none.
    pub(super) handed: Result<Rc<HandedConnections>, RelayReason>,
    /// The policy file, which programs must not read.
    policy_file: PathBuf,
    /// The other files that programs must not read.
    secrets: RefCell<Option<SecretsOf>>,
    /// Which time windows of rules were open at the last check.
    open_windows: Vec<bool>,
    /// Whether the helper that captured the host has ended before this agent.
    pub(super) has_lost_host: bool,
}

/// The table of connections whose sockets programs have. The kernel must report their ends.
fn handed(outside: &Outside, log: &Log) -> Result<Rc<HandedConnections>, RelayReason> {
    let usage = match outside {
        Outside::Host => UsageSockets::open(),
        Outside::Link(link) => Ok(link.take_usage().ok_or(RelayReason::Link)?),
    };
    let table = HandedConnections::new(log.clone());
    match usage.and_then(|usage| table.watch(usage)) {
        Ok(()) => Ok(table),
        Err(error) => {
            log.warn(Event::new("sockets-not-handed").field("error", &error));
            Err(RelayReason::Kernel)
        }
    }
}

/// The resolvers for runs: those that the operator has given, or those of the outside.
fn resolvers(given: &[SocketAddr], outside: &Outside) -> Resolvers {
    let offered = outside.resolvers().filter(|_| given.is_empty());
    Resolvers::new(offered.unwrap_or(given))
}

/// What has ended with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedRun {
    /// The program of a run.
    Program,
    /// The helper that captured the host.
    Host,
    /// No run has this number any more.
    Unknown,
}

/// The maximum number of held SYNs of a run: an eighth of the agent's connections, so that a run
/// that connects to silent addresses cannot use up the connections of all.
fn held_syns_max(connections_max: usize) -> usize {
    (connections_max / 8).clamp(HELD_SYNS_MIN.min(connections_max), HELD_MAX)
}

/// The smallest value of [`held_syns_max`], unless the limit of connections is lower.
const HELD_SYNS_MIN: usize = 64;

/// The enrolment socket, and the task that serves it.
struct Enrol {
    opened: Opened,
    task: Option<JoinHandle<()>>,
}

impl Drop for Enrol {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// The enrolment socket.
impl Runs {
    /// The state without runs. Opens or takes over the enrolment socket, if the options have one.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub(super) fn open(
        options: &AgentOptions,
        handover: &mut takeover::Handover,
        shared: Shared,
        events: mpsc::Sender<RunEvent>,
        tuns: mpsc::Sender<OpenedTun>,
        outside: Outside,
    ) -> Result<Self, AgentError> {
        let mut enrol = None;
        if let Some(enrolment) = &options.enrol {
            let address = Address::Path(enrolment.path.clone());
            let wanted = RequiredListener { address, clear: true, unix: enrolment.unix.clone() };
            let opened = handover.open(&wanted, None).map_err(AgentError::Listen)?;
            enrol = Some(Enrol { opened, task: None });
        }
        Ok(Self {
            registry: Registry::default(),
            enrol,
            hosts: Hosts::default(),
            host: Arc::default(),
            host_changes: InterfaceChanges::watch(),
            resolvers: Arc::new(resolvers(&options.resolvers, &outside)),
            successor_takes_tuns: false,
            events,
            tuns,
            assigned: Vec::new(),
            held_syns_max: held_syns_max(shared.places.available_permits()),
            handed: if options.private {
                handed(&outside, &shared.log)
            } else {
                Err(RelayReason::Agent)
            },
            outside,
            shared,
            policy_file: options.policy.clone(),
            secrets: RefCell::default(),
            open_windows: Vec::new(),
            has_lost_host: false,
        })
    }

    /// Accepts runs at the enrolment socket, if there is one, and from the launcher that started
    /// this agent.
    ///
    /// # Errors
    /// The limit of open files is reached.
    pub(super) fn accept_launchers(
        &mut self,
        launcher: Option<StdStream>,
    ) -> Result<(), AgentError> {
        if let Some(launcher) = launcher {
            let stream = adopt(launcher).map_err(AgentError::Process)?;
            let log = self.shared.log.clone();
            tokio::task::spawn_local(launchers::welcome(stream, self.events.clone(), log));
        }
        let Some(enrol) = &mut self.enrol else { return Ok(()) };
        let listener =
            takeover::listen_on(&enrol.opened.listener.socket).map_err(AgentError::Process)?;
        let log = self.shared.log.clone();
        let accept = launchers::accept_launchers(listener, self.events.clone(), log);
        enrol.task = Some(tokio::task::spawn_local(accept));
        Ok(())
    }

    /// Closes the enrolment socket.
    pub(super) fn close_enrolment(&mut self) {
        self.enrol = None;
    }

    /// The enrolment socket.
    pub(super) fn enrolment(&self) -> Option<&Opened> {
        self.enrol.as_ref().map(|enrol| &enrol.opened)
    }

    /// The enrolment socket, mutable.
    pub(super) fn enrolment_mut(&mut self) -> Option<&mut Opened> {
        self.enrol.as_mut().map(|enrol| &mut enrol.opened)
    }
}

/// The life of a run.
impl Runs {
    /// Sets up the run of a launcher, or refuses it. [`admit`](Self::admit) is called with the
    /// result.
    pub(super) async fn begin(&mut self, application: Application, workers: &Workers) {
        let Application { enrolment, sockets, uid, launcher, back } = application;
        if let Err(reason) = self.registry.check(&enrolment) {
            self.shared.log.warn(Event::new("run-refused").field("error", &reason));
            back.decide(Err(reason));
            return;
        }
        let Enrolment { name, pid, sockets: socket_set, covers_files, lists_unix_sockets } =
            enrolment;
        let identity = RunIdentity {
            id: self.registry.next_id(),
            name,
            pid,
            user: address::user_name(uid),
            since: SystemTime::now(),
            claimed: uid != process::effective_user(),
            covers_files,
            lists_unix_sockets,
        };
        let id = identity.id;
        let context = self.context();
        let is_joined = socket_set == SocketSet::Joined;
        // Programs of a joined namespace run already.
        let place = if is_joined { None } else { workers.place_run().await };
        let host = self.host();
        let outside = self.outside();
        let congestion_control = self.shared.congestion_control.clone();
        tokio::task::spawn_local(async move {
            let begun = async {
                let helper = HelperChannel::open(sockets.helper.try_clone()?)?;
                let (sockets, clients) = if is_joined {
                    host_sockets::sockets_of_joined(&helper, sockets.helper).await?
                } else {
                    (sockets, Vec::new())
                };
                let run = Run::new(identity, helper, place, host, socket_set, outside);
                let candidate = Candidate { run, sockets, launcher, tunnels: None, before: None };
                let mut enrolled = services::enrol(candidate, &context).await?;
                let run = Arc::clone(&enrolled.run);
                enrolled.services.take_clients(clients, &run, congestion_control.as_deref())?;
                Ok::<_, std::io::Error>(enrolled)
            };
            match begun.await {
                Ok(enrolled) => {
                    let begun = RunEvent::Begun(Box::new(enrolled), back);
                    // The control thread lives as long as the agent.
                    let _ = context.events.send(begun).await;
                }
                Err(error) => {
                    context.log.error(Event::new("run-refused").field("error", &error));
                    // The run may have a TUN device and tunnels already.
                    let _ = context.events.send(RunEvent::End(id)).await;
                    back.decide(Err(format!("the agent cannot set up the run: {error}")));
                }
            }
        });
    }

    /// Where the sockets of runs to the outside are opened.
    pub(super) fn outside(&self) -> Outside {
        self.outside.clone()
    }

    /// The addresses of the host.
    pub(super) fn host(&self) -> Arc<HostNetwork> {
        Arc::clone(&self.host)
    }

    /// Updates every run if the addresses of the host have changed; returns whether they have.
    pub(super) fn follow_host(&self) -> bool {
        let has_changed = self.host.look();
        if has_changed {
            self.capture_again();
        }
        has_changed
    }

    /// Waits until a network interface of the host changes.
    pub(super) async fn host_changed(&self) {
        self.host_changes.next().await;
    }

    /// The parts of the agent that a run uses.
    pub(super) fn context(&self) -> RunContext {
        RunContext {
            live: Arc::clone(&self.shared.live),
            table: Arc::clone(&self.shared.table),
            resolvers: Arc::clone(&self.resolvers),
            hosts: self.hosts.pairs(),
            refusals: Arc::clone(&self.shared.refusals),
            log: self.shared.log.clone(),
            events: self.events.clone(),
            tuns: self.tuns.clone(),
            held_syns_max: self.held_syns_max,
            shared: self.shared.clone(),
            handed: self.handed.clone(),
        }
    }

    /// Adds a run that is set up.
    ///
    /// # Errors
    /// A message for the launcher.
    pub(super) async fn admit(
        &mut self,
        enrolled: Enrolled,
        workers: &Workers,
    ) -> Result<Admission, String> {
        let reserved = self.prepare(&enrolled).await.inspect_err(|reason| {
            self.shared.log.error(Event::new("run-refused").field("error", reason));
        })?;
        let run_cpu = enrolled.run.cpu();
        let id = self.take(enrolled, reserved, workers).await;
        let cpus = workers.cpus_of_runs();
        let policy = &self.shared.live.load().policy;
        let mut hide = secrets::paths(policy, &self.policy_file);
        hide.extend(self.outside.link_path());
        let terms = RunTerms {
            hide,
            keep_off: cpus.engines.to_vec(),
            cpu: run_cpu.or(cpus.only),
            hands_sockets: self.handed.is_ok() && policy.hands_sockets(),
            warnings: about_no_run(policy).map(str::to_owned).into_iter().collect(),
        };
        Ok(Admission { id, terms })
    }

    /// Prepares a run that is set up for the policy that is now in force; returns the outside
    /// addresses that are held for it.
    ///
    /// # Errors
    /// A message for the launcher.
    async fn prepare(&self, enrolled: &Enrolled) -> Result<Vec<HeldAddress>, String> {
        self.registry.check_room()?;
        let live = self.shared.live.load_full();
        let was_reloaded = enrolled.generation != live.generation;
        if enrolled.run.has_plan() {
            // Without the rules of this policy, its flows would pass in clear.
            let follow =
                async { if was_reloaded { enrolled.capture.follow().await } else { Ok(()) } };
            let followed = tokio::time::timeout(CAPTURE_WAIT_MAX, follow).await;
            let followed = followed.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
            return match followed {
                Ok(()) => Ok(Vec::new()),
                Err(error) => Err(format!("the agent cannot set up the run: {error}")),
            };
        }
        if was_reloaded {
            // A reload that happened during the set-up has not updated this run.
            drop(self.start_capturing([enrolled]));
        }
        self.reserve_for_runs(&live.policy).await.map_err(|error| error.to_string())
    }

    /// If there are runs, binds the inbound addresses of a policy that are not bound yet.
    ///
    /// # Errors
    /// An address cannot be bound.
    pub(super) async fn reserve(&self, policy: &Policy) -> Result<Vec<HeldAddress>, ListenError> {
        if self.registry.is_empty() { Ok(Vec::new()) } else { self.reserve_for_runs(policy).await }
    }

    async fn reserve_for_runs(&self, policy: &Policy) -> Result<Vec<HeldAddress>, ListenError> {
        let held = self.registry.all().map(|run| &run.services.inbound);
        let congestion_control = self.shared.congestion_control.as_deref();
        reserve_missing(policy, held, congestion_control, &self.outside).await
    }

    /// Makes the workers accept the connections of a run and receive its datagrams.
    pub(super) async fn take(
        &mut self,
        mut enrolled: Enrolled,
        reserved: Vec<HeldAddress>,
        workers: &Workers,
    ) -> u64 {
        let run = Arc::clone(&enrolled.run);
        if run.has_plan() {
            let congestion_control = self.shared.congestion_control.as_deref();
            let taken = enrolled.services.take_clients(reserved, &run, congestion_control);
            if let Err(error) = taken {
                // Clients are then refused.
                self.shared.log.error(Event::new("listen-failed").field("error", &error));
            }
        } else {
            enrolled.services.inbound.take(reserved, &run, &self.shared.live.load().policy);
        }
        for listener in &mut enrolled.services.listeners {
            listener.number = Some(workers.serve(Arc::clone(&listener.source) as _).await);
        }
        if let Some(hold) = &mut enrolled.services.hold {
            hold.number = Some(workers.serve(Arc::clone(&hold.source) as _).await);
        }
        for receiver in &mut enrolled.services.receivers {
            receiver.number = Some(workers.serve_on_one(Arc::clone(&receiver.source) as _).await);
        }
        let event = Event::new("run-began").field("run", &run.name).value("pid", run.pid);
        self.shared.log.info(event);
        self.registry.insert(enrolled);
        self.take_early_notices(run.id);
        self.follow_listening(run.id, workers).await;
        run.id
    }

    /// Opens and closes the inbound addresses of a run according to the ports on which its programs
    /// listen.
    pub(super) async fn follow_listening(&mut self, id: u64, workers: &Workers) {
        let Some(enrolled) = self.registry.find_mut(id) else { return };
        let live = self.shared.live.load_full();
        let listening = enrolled.run.listening();
        let outside = self.outside.clone();
        let inbound = &mut enrolled.services.inbound;
        let followed = inbound.follow(&live.policy, &listening, workers, &outside).await;
        if let Err(error) = followed {
            let event = Event::new("listen-failed").field("run", &enrolled.run.name);
            self.shared.log.error(event.field("error", &error));
        }
    }

    /// Waits until inbound addresses must be bound again, because another server serves the link.
    pub(super) async fn must_rebind(&self) {
        self.outside.must_rebind().await;
    }

    /// Binds inbound addresses again. Those that are not free are tried again after a pause.
    pub(super) async fn rebind(&mut self, workers: &Workers) {
        let outside = self.outside.clone();
        let congestion_control = self.shared.congestion_control.clone();
        let live = self.shared.live.load_full();
        let missing = self.reserve(&live.policy).await;
        // Only a private agent uses a link, and it has one run.
        let Some(enrolled) = self.registry.first_mut() else { return };
        let Enrolled { run, services, .. } = enrolled;
        let run = Arc::clone(run);
        let inbound = &mut services.inbound;
        let mut results =
            vec![inbound.bind_again(workers, congestion_control.as_deref(), &outside).await];
        match missing {
            Ok(reserved) => inbound.take(reserved, &run, &live.policy),
            Err(error) => results.push(Err(std::io::Error::other(error))),
        }
        if let Some(error) = results.into_iter().find_map(Result::err) {
            let event = Event::new("listen-failed").field("run", &run.name).field("error", &error);
            self.shared.log.error(event.limited(format!("listen-failed {}", run.name)));
            outside.rebind_later();
        }
        self.follow_listening(run.id, workers).await;
    }

    /// Replaces the helper of a run.
    pub(super) fn replace_helper(&self, id: u64, channel: OwnedFd) {
        if let Some(Enrolled { run, capture, .. }) = self.registry.get(id) {
            run.helper.replace(channel);
            self.hide_from(run);
            let replaced = Event::new("helper-replaced").field("run", &run.name);
            if !run.is_joined() {
                self.shared.log.info(replaced);
                return;
            }
            let capture = Arc::clone(capture);
            let log = self.shared.log.clone();
            tokio::task::spawn_local(async move {
                match capture.install_again().await {
                    // Before this, another program could remove the rules of the earlier helper.
                    Ok(()) => log.info(replaced),
                    Err(error) => {
                        let event = Event::new("capture-failed").field("run", &capture.run.name);
                        log.error(event.field("error", &error));
                    }
                }
            });
        }
    }

    /// Ends a run at once, and its connections after [`LINGER`], unless they outlive their run;
    /// those of a host stay.
    pub(super) async fn end(&mut self, id: u64, workers: &Workers) -> EndedRun {
        let Some(mut enrolled) = self.registry.remove(id) else { return EndedRun::Unknown };
        enrolled.capture.tunnels.end();
        for receiver in &enrolled.services.receivers {
            if let Some(number) = receiver.number {
                workers.finish(number).await;
            }
        }
        unlisten(&mut enrolled, workers).await;
        if enrolled.run.is_host() {
            let event = Event::new("host-helper-ended").value("pid", enrolled.run.pid);
            let next = "restart the agent: until then, the nftables rules refuse all flows that \
                        the policy captures";
            self.shared.log.error(event.field("next", next));
            self.has_lost_host = true;
            return EndedRun::Host;
        }
        self.shared.log.info(Event::new("run-ended").field("run", &enrolled.run.name));
        if self.outside.outlives_run() {
            return EndedRun::Program;
        }
        let table = Arc::clone(&self.shared.table);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(LINGER).await;
            for record in table.snapshot() {
                if record.is_of_run(id) {
                    record.close_because(Closing::RunEnded);
                }
            }
        });
        EndedRun::Program
    }

    /// How the connections of a run end that has ended now.
    pub(super) fn linger(&self) -> Drain {
        let until = (!self.outside.outlives_run()).then(|| Instant::now() + LINGER);
        Drain::of_ended_run(until)
    }

    /// Stops accepting runs, and connections and datagrams of existing runs.
    pub(super) async fn close(&mut self, workers: &Workers) {
        self.close_enrolment();
        for mut enrolled in self.registry.take_all() {
            unlisten(&mut enrolled, workers).await;
        }
    }
}

/// Makes the workers stop accepting connections and datagrams of a run.
pub(super) async fn unlisten(enrolled: &mut Enrolled, workers: &Workers) {
    let services = &mut enrolled.services;
    let listeners = services.listeners.iter().filter_map(|listener| listener.number);
    let receivers = services.receivers.iter().filter_map(|receiver| receiver.number);
    let hold = services.hold.as_ref().and_then(|hold| hold.number);
    for number in listeners.chain(receivers).chain(hold) {
        workers.stop(number).await;
    }
    services.inbound.unlisten(workers).await;
}

/// Updates the capture of runs when the policy, names or time windows change.
impl Runs {
    /// Waits until the host's `/etc/resolv.conf` changes.
    pub(super) async fn resolvers_changed(&self) {
        self.resolvers.host_file_changed().await;
    }

    /// Reads the host's `/etc/resolv.conf` again.
    pub(super) fn read_resolvers(&self) {
        self.resolvers.read_again();
    }

    /// Updates every run if the host's `/etc/hosts` has changed.
    pub(super) fn refresh_hosts(&mut self) {
        if self.hosts.read_again() {
            self.capture_again();
        }
    }

    /// Updates every run for the installed policy, all at the same time. New inbound addresses
    /// belong to the first run.
    pub(super) async fn follow_policy(
        &mut self,
        reserved: Vec<HeldAddress>,
        workers: &Workers,
    ) -> Vec<JoinHandle<()>> {
        if let Some(enrolled) = self.registry.first_mut() {
            let policy = &self.shared.live.load().policy;
            enrolled.services.inbound.take(reserved, &enrolled.run, policy);
        }
        for id in self.registry.ids() {
            self.follow_listening(id, workers).await;
        }
        self.start_capturing(self.registry.all())
    }

    /// Updates the capture when a time window of a rule has opened or closed.
    pub(super) fn follow_windows(&mut self) {
        let now = self.shared.live.load().policy.open_windows(clock::now_unix_s());
        if self.open_windows != now {
            self.capture_again();
            self.open_windows = now;
        }
    }

    /// Updates the captured addresses of every run for the current policy and names. Addresses of
    /// names that have expired are no longer captured.
    pub(super) fn capture_again(&self) {
        drop(self.start_capturing(self.registry.all()));
    }

    /// The files of the policy that programs must not read, as they were when the policy was
    /// installed, because a program may have moved them since. Helpers hide them by name.
    fn secrets(&self) -> Arc<Vec<PathBuf>> {
        let live = self.shared.live.load();
        let mut found = self.secrets.borrow_mut();
        let known =
            found.as_ref().filter(|(policy, _)| policy.as_ptr() == Arc::as_ptr(&live.policy));
        if let Some((_, files)) = known {
            return Arc::clone(files);
        }
        let mut files = secrets::files(&live.policy, &self.policy_file);
        files.extend(self.outside.link_path());
        let files = Arc::new(files);
        *found = Some((Arc::downgrade(&live.policy), Arc::clone(&files)));
        files
    }

    /// Makes the helpers of all runs hide the files of the installed policy again, because the
    /// files may have been replaced together with their directories.
    pub(super) fn hide_again(&self) {
        for enrolled in self.registry.all() {
            self.hide_from(&enrolled.run);
        }
    }

    /// Makes the helper of a run hide the files of the policy from programs.
    pub(super) fn hide_from(&self, run: &Arc<Run>) {
        tokio::task::spawn_local(self.hiding(run));
    }

    /// Tries again until the helper has hidden the files, the run has ended, or the list of files
    /// has changed.
    fn hiding(&self, run: &Arc<Run>) -> impl Future<Output = ()> + 'static {
        let secrets = self.secrets();
        let turn = run.begin_hiding();
        let name = run.name.clone();
        let run = Arc::downgrade(run);
        let log = self.shared.log.clone();
        let mut is_reported = false;
        async move {
            while let Some(run) = run.upgrade().filter(|run| run.is_to_hide(turn)) {
                let Err(error) = run.helper.hide(secrets.to_vec()).await else { return };
                drop(run);
                if !std::mem::replace(&mut is_reported, true) {
                    let event = Event::new("files-not-hidden").field("run", &name);
                    let next = "programs of the run may be able to read these files, because the \
                                helper of the run could not hide the files; the agent tries again \
                                every second";
                    log.error(event.field("error", &error).field("next", next));
                }
                tokio::time::sleep(HIDE_AGAIN_AFTER).await;
            }
        }
    }

    fn start_capturing<'a>(
        &self,
        runs: impl IntoIterator<Item = &'a Enrolled>,
    ) -> Vec<JoinHandle<()>> {
        let hosts = self.hosts.pairs();
        let start = |enrolled: &Enrolled| {
            enrolled.run.note_reload();
            let hosts = Arc::clone(&hosts);
            let log = self.shared.log.clone();
            let capture = Arc::clone(&enrolled.capture);
            let hiding = self.hiding(&enrolled.run);
            tokio::task::spawn_local(async move {
                if let Err(error) = services::follow_with(&capture, &hosts).await {
                    let event = Event::new("capture-failed").field("run", &capture.run.name);
                    log.error(event.field("error", &error));
                }
                hiding.await;
            })
        };
        runs.into_iter().map(start).collect()
    }
}

impl Runs {
    /// The largest number of held SYNs of a run.
    pub(super) fn most_held(&self) -> usize {
        let held = |enrolled: &Enrolled| {
            enrolled.services.hold.as_ref().map_or(0, |hold| hold.source.hold.count())
        };
        self.registry.all().map(held).max().unwrap_or(0)
    }

    /// `tacit show runs`.
    pub(super) fn show(&self) -> RunsDisplay {
        let open = self.shared.table.snapshot();
        let now = SystemTime::now();
        let runs = self.registry.all().map(|enrolled| one_run(enrolled, &open, now));
        RunsDisplay { version: VERSION, runs: runs.collect() }
    }
}

fn one_run(enrolled: &Enrolled, open: &[Arc<ConnectionRecord>], now: SystemTime) -> RunDisplay {
    let run = &enrolled.run;
    let names = run.learnt().into_iter().map(|known| {
        let KnownName { name, address, alias, remaining, .. } = known;
        RunName { name, address, alias, seconds: remaining.as_secs() }
    });
    let listen = enrolled.services.inbound.shown();
    let listen = listen.map(|(address, open)| RunListener { address: address.clone(), open });
    RunDisplay {
        id: run.id,
        name: run.name.clone(),
        pid: run.pid,
        user: run.user.clone(),
        claimed: run.claimed,
        since: Rfc3339(run.since),
        age_s: now.duration_since(run.since).unwrap_or_default().as_secs(),
        open: open.iter().filter(|record| record.is_of_run(run.id)).count(),
        host: run.is_host(),
        joined: run.is_joined(),
        captured: enrolled.capture.count(),
        cpu: run.cpu(),
        path: path_of(run),
        link: RunLink::of(run.outside.link()),
        names: names.collect(),
        listen: listen.collect(),
        listening: run.listening().to_vec(),
    }
}

/// How its programs may reach destinations that a rule permits, as connections show it.
fn path_of(run: &Run) -> String {
    match run.why_all_relayed() {
        Some(reason) => format!("relay ({})", reason.word()),
        None if run.is_own() => PathChoice::Auto.word().to_owned(),
        None => PathChoice::Relay.word().to_owned(),
    }
}

/// The message for a policy that only has forwarding rules, which do not apply to runs.
fn about_no_run(policy: &Policy) -> Option<&'static str> {
    policy.rules.iter().all(|rule| rule.forward().is_some()).then_some(
        "no rule of the policy has `direction`, so every connection of the program is \
         rejected\n    fix: add a rule with direction = \"outbound\"; forwarding rules (`listen` \
         and `connect`) do not apply to programs under `tacit run`",
    )
}

/// Waits until the capture of all runs is updated, for a limited time. If a helper is slow, its run
/// is updated later; if the helper is dead, all new connections of the run are refused.
pub(super) async fn wait_for_capture(capturing: Vec<JoinHandle<()>>) {
    let all = async {
        for run in capturing {
            // If the task panicked, the panic was printed.
            let _ = run.await;
        }
    };
    let _ = tokio::time::timeout(CAPTURE_WAIT_MAX, all).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_holds_an_eighth_of_the_connections() {
        let max = [4, 100, 8000, 100_000].map(held_syns_max);
        assert_eq!(max, [4, 64, 1000, HELD_MAX]);
    }
}
