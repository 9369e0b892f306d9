//! Answers the requests on the agent's control socket, such as `tacit show`, reload, drain, and
//! restart.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tacit_core::flow::Flow;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use super::opened::Opened;
use super::reload::ReloadOrigin;
use super::supervised::{Supervisor, SupervisorReport};
use super::{Agent, Control, Drain, service_manager, takeover, traces};
use crate::control::display::audit::audit;
use crate::control::display::cpus::{CpuUsers, PlacedRun, cpu_users};
use crate::control::display::engines::{EnginesDisplay, PacketEnginesDisplay};
use crate::control::display::filters::filters;
use crate::control::display::identities::identities;
use crate::control::display::policy::policy;
use crate::control::display::refused::refused;
use crate::control::display::rules::rules;
use crate::control::display::stats::StatsDisplay;
use crate::control::display::unix::unix;
use crate::control::display::{VERSION, connections, costs};
use crate::control::outcome::{Closed, Confirmed, Draining};
use crate::control::running::RunningAgent;
use crate::control::server::{PendingRequest, Reply};
use crate::control::{Display, PeerState, Request};
use crate::exit::with_fix;
use crate::ledger::on_own_thread;
use crate::live::{ClearAccessState, Live};
use crate::log::Event;
use crate::net::udp_counters::udp_counters;
use crate::run::Run;
use crate::session::ConnectionRecord;
use crate::session::trace::TraceEndReason;

impl Agent {
    /// Answers one request, at once or when the requested work is done.
    pub(super) async fn take_request(&mut self, pending: PendingRequest) {
        let PendingRequest { client, request, back } = pending;
        let reply = match request {
            Request::Show { what } => return self.show(what, back),
            Request::ShowConnection { id } => return self.show_connection(id, back),
            Request::Explain { flow } => return self.explain(*flow, back),
            Request::Reload => return self.reload(ReloadOrigin::Operator(back, client, None)),
            Request::ReloadForTime { confirm_ms } => {
                let time = Some(Duration::from_millis(confirm_ms));
                return self.reload(ReloadOrigin::Operator(back, client, time));
            }
            Request::Confirm => match self.confirm() {
                Ok(has_waited) => {
                    let warnings = self.store_policy().await.into_iter().collect();
                    Reply::written(&Confirmed { has_waited, warnings })
                }
                Err(reason) => Reply::error(reason),
            },
            Request::Drain { timeout_ms } => {
                let requested = timeout_ms.map(Duration::from_millis);
                self.drain(requested).await;
                Reply::written(&Draining { open: self.shared.table.len() })
            }
            Request::Restart => return self.restart_for_operator(back),
            Request::Identify => Reply::ok(self.identify()),
            Request::Close { ids, stale, peer, clear } => {
                let invalid_peer = peer == Some(PeerState::Invalid);
                let selection = CloseSelection { stale, invalid_peer, clear };
                Reply::written(&self.close(&ids, selection))
            }
            Request::TakeOver { .. } => match self.refusal_of_successor() {
                Some(reason) => Reply::error(reason),
                None => {
                    self.runs.successor_takes_tuns = false;
                    self.hand_over()
                }
            },
            Request::ClearAccess => Reply::written(&self.clear_access()),
            // The task of the control connection serves it.
            Request::Trace(_) => Reply::error(
                "a client must send a trace request on a separate connection to the control socket",
            ),
            Request::Release => match self.release().await {
                Ok(reply) => reply,
                Err(error) => Reply::error(error),
            },
            Request::RelayedFlows => {
                // Every version that sends this request also takes over TUN devices.
                self.runs.successor_takes_tuns = true;
                Reply::written(&self.relayed_flows())
            }
        };
        // The client may have closed its connection.
        let _ = back.send(reply);
    }

    fn show(&self, what: Display, back: oneshot::Sender<Reply>) {
        if let Ok(handed) = &self.runs.handed {
            handed.refresh();
        }
        let reply = match what {
            Display::Connections => return self.show_connections(back),
            Display::Costs => return self.show_costs(back),
            Display::Unix => return self.show_unix(back),
            Display::Metrics => return self.show_metrics(back),
            Display::Rules => return self.show_rules(back),
            Display::Filters => return self.show_filters(back),
            Display::Policy => return self.show_policy(back),
            Display::Identities => return self.show_identities(back),
            Display::Coverage => return self.show_coverage(back),
            Display::Runs => Reply::written(&self.runs.show()),
            Display::Engines => Reply::written(&self.show_engines()),
            Display::Cpus => Reply::written(&self.show_cpus()),
            Display::Refused => Reply::written(&refused(&self.shared.refusals)),
            Display::Audit => Reply::written(&audit(&self.shared.live.load())),
            Display::Limits => Reply::written(&self.show_limits()),
            Display::Traces => Reply::written(&self.show_traces()),
            Display::Ike => Reply::written(&self.tunnels.show_ike(&self.credentials.loaded)),
            Display::Sa => Reply::written(&self.tunnels.show_sa()),
            Display::Stats => self.show_stats(),
        };
        // The client may have closed its connection.
        let _ = back.send(reply);
    }

    /// The agent's part of `tacit show cpus`.
    fn show_cpus(&self) -> CpuUsers {
        let placed = self.runs.registry.all().filter_map(|enrolled| {
            let run = &enrolled.run;
            Some(PlacedRun { cpu: run.cpu()?, id: run.id, name: run.name.clone() })
        });
        cpu_users(&self.shared.table, self.workers.threads(), placed)
    }

    fn show_engines(&self) -> EnginesDisplay {
        EnginesDisplay {
            version: VERSION,
            threads: self.workers.threads(),
            engines: self.workers.engine_count(),
            spill: self.workers.spill(),
            workers: self.workers.count(),
            workers_max: self.workers.count_max(),
            packets: PacketEnginesDisplay::new(&self.tunnels.statistics()),
        }
    }

    fn show_stats(&self) -> Reply {
        match udp_counters() {
            Ok(udp) => {
                let packets = self.tunnels.statistics();
                Reply::written(&StatsDisplay::new(self.since, &packets, udp))
            }
            Err(error) => Reply::error(format!("cannot read /proc/net/snmp: {error}")),
        }
    }

    /// Answers after the helpers of runs have reported which programs own their connections. Other
    /// requests are answered meanwhile.
    fn show_connections(&self, back: oneshot::Sender<Reply>) {
        let table = Arc::clone(&self.shared.table);
        let live = self.shared.live.load_full();
        tokio::task::spawn_local(async move {
            let shown = connections::connections(&table, &live).await;
            // The client may have closed its connection.
            let _ = back.send(Reply::written(&shown));
        });
    }

    fn show_connection(&self, id: u64, back: oneshot::Sender<Reply>) {
        if let Ok(handed) = &self.runs.handed {
            handed.refresh();
        }
        let table = Arc::clone(&self.shared.table);
        let live = self.shared.live.load_full();
        tokio::task::spawn_local(async move {
            let reply = match connections::one_connection(&table, &live, id).await {
                Some(shown) => Reply::written(&shown),
                None => Reply::error(format!(
                    "no open connection has the id {id}\n    \
                     fix: use an id that `tacit show connections` lists"
                )),
            };
            // The client may have closed its connection.
            let _ = back.send(reply);
        });
    }

    /// Answers after the workers have published their CPU time, and the helpers of runs that of
    /// their programs. Other requests are answered meanwhile.
    fn show_costs(&self, back: oneshot::Sender<Reply>) {
        let table = Arc::clone(&self.shared.table);
        let live = self.shared.live.load_full();
        let runs: Vec<_> =
            self.runs.registry.all().map(|enrolled| Arc::clone(&enrolled.run)).collect();
        let since = self.since;
        let publisher = self.workers.publisher();
        tokio::task::spawn_local(async move {
            publisher.publish().await;
            let costs = costs(&table, &live, &runs, since).await;
            let _ = back.send(Reply::written(&costs));
        });
    }

    /// Answers after the helpers of runs have listed their sockets. Other requests are answered
    /// meanwhile.
    fn show_unix(&self, back: oneshot::Sender<Reply>) {
        let is_of_programs = |run: &Arc<Run>| !run.is_host() && !run.is_joined();
        let all = self.runs.registry.all().map(|enrolled| Arc::clone(&enrolled.run));
        let runs: Vec<_> = all.filter(is_of_programs).collect();
        tokio::task::spawn_local(async move {
            let shown = unix(&runs).await;
            // The client may have closed its connection.
            let _ = back.send(Reply::written(&shown));
        });
    }

    /// Answers after the kernel of a captured host has reported which flows it has decided. Other
    /// requests are answered meanwhile.
    fn show_rules(&self, back: oneshot::Sender<Reply>) {
        let table = Arc::clone(&self.shared.table);
        let live = self.shared.live.load_full();
        let counted = self.count_flows_of_host();
        tokio::task::spawn_local(async move {
            counted.await;
            show_aside(back, move || Reply::written(&rules(&table, &live)));
        });
    }

    /// The same for rules for packets.
    fn show_filters(&self, back: oneshot::Sender<Reply>) {
        let live = self.shared.live.load_full();
        let counted = self.count_flows_of_host();
        tokio::task::spawn_local(async move {
            counted.await;
            show_aside(back, move || Reply::written(&filters(&live, crate::clock::now_unix_s())));
        });
    }

    fn show_policy(&self, back: oneshot::Sender<Reply>) {
        let live = self.shared.live.load_full();
        let file = absolute(&self.options.policy);
        let installed = self.policy_installed;
        show_aside(back, move || Reply::written(&policy(&live, &file, installed)));
    }

    /// Evaluates the installed policy for a flow.
    fn explain(&self, flow: Flow, back: oneshot::Sender<Reply>) {
        let live = self.shared.live.load_full();
        show_aside(back, move || Reply::written(&live.explain(&flow)));
    }

    fn show_identities(&self, back: oneshot::Sender<Reply>) {
        let credentials = self.credentials.loaded.clone();
        let live = self.shared.live.load_full();
        show_aside(back, move || Reply::written(&identities(&credentials, &live)));
    }

    fn close(&self, ids: &[u64], selection: CloseSelection) -> Closed {
        let live = self.shared.live.load();
        let is_invalid =
            |record: &ConnectionRecord| record.tls.get().is_some_and(|tls| tls.check.is_rejected());
        if selection.clear {
            self.end_clear(&live, &self.shared.table.snapshot());
        }
        let mut closed = Vec::new();
        for record in self.shared.table.snapshot() {
            let is_meant = ids.contains(&record.id)
                || (selection.stale && !live.is_current(&record.rule))
                || (selection.invalid_peer && is_invalid(&record))
                || (selection.clear && record.is_accepted_in_clear());
            if is_meant {
                record.close();
                closed.push(record.id);
            }
        }
        let unknown = ids.iter().copied().filter(|id| !closed.contains(id)).collect();
        Closed { closed, unknown }
    }

    /// Requires TLS of all clients of rules with `accept = "both"`. A reload may have replaced the
    /// rule of a client whose first byte is awaited.
    fn end_clear(&self, live: &Live, records: &[Arc<ConnectionRecord>]) {
        let rules = live.rules.iter().chain(records.iter().map(|record| &record.rule));
        let with_clear = rules.filter_map(|rule| Some((rule, rule.clear_access.as_ref()?)));
        for (rule, access) in with_clear.filter(|(_, access)| !access.has_ended()) {
            access.end();
            let event = Event::new("clear-ended").field("rule", &rule.name());
            self.shared.log.info(event.field("reason", "tacit close --clear"));
        }
    }

    /// Which clients need TLS, by rule, for a successor.
    fn clear_access(&self) -> BTreeMap<String, ClearAccessState> {
        let live = self.shared.live.load();
        let states = live
            .rules
            .iter()
            .filter_map(|rule| Some((rule.name().to_owned(), rule.clear_access.as_ref()?.state())));
        states.collect()
    }

    /// Stops accepting connections and runs.
    pub(super) async fn drain(&mut self, timeout: Option<Duration>) {
        let timeout = timeout.or_else(|| self.shared.live.load().limits().drain);
        let until = timeout.map(|timeout| Instant::now() + timeout);
        self.begin_drain(Drain::new(until)).await;
    }

    /// The run of this private agent has ended.
    pub(super) async fn end_run(&mut self) {
        self.runs.outside().report_run_end();
        self.begin_drain(self.runs.linger()).await;
    }

    async fn begin_drain(&mut self, drain: Drain) {
        self.draining = Some(drain);
        self.listeners.close(&self.workers).await;
        self.runs.close(&self.workers).await;
        self.shared.log.info(Event::new("draining").value("open", self.shared.table.len()));
    }

    pub(super) fn is_drained(&mut self) -> bool {
        self.follow_departed();
        self.restarting.answer_late(self.shared.table.len());
        let now = Instant::now();
        let drain = self.draining.as_mut();
        let until = drain.and_then(|drain| {
            drain.note_check(now);
            drain.until
        });
        let over = until.is_some_and(|until| now >= until);
        // A connection has a permit from accept on; it enters the table a little later.
        over || self.shared.places.available_permits() == self.connections_max
    }

    /// Copies of all listening sockets, for a successor.
    fn hand_over(&self) -> Reply {
        takeover::offer(self.sockets())
    }

    /// A successor serves: leaves the sockets to it, hands the runs over, and drains.
    async fn release(&mut self) -> Result<Reply, String> {
        if let Some(reason) = self.refusal_of_successor() {
            return Err(reason.to_owned());
        }
        let own = own_control_path(&self.options.control);
        let mut handover = takeover::Handover::default();
        let requests = self.control.requests.clone();
        let supervisor = self.supervisor.as_ref();
        let tracer = traces::tracer(&self.options, &self.shared);
        let mut control = Control::open(&own, &mut handover, requests, tracer, supervisor)
            .map_err(|error| error.to_string())?;
        self.shared.table.traces().end_all(TraceEndReason::Restart);
        self.sockets_mut().for_each(Opened::leave_file);
        std::mem::swap(&mut self.control, &mut control);
        control.task.abort();
        self.metrics = None;
        let runs = self.runs.hand_over(&self.workers).await;
        // The successor makes tunnels of its own, for packets that wait in the same TUN devices.
        self.tunnels.abandon();
        self.drain(None).await;
        self.restarting.note_replaced();
        Ok(runs)
    }

    /// Reports that this agent serves, to its supervisor or, without one, to the service manager.
    pub(super) fn report_ready(&mut self) {
        let Some(supervisor) = &mut self.supervisor else {
            service_manager::notify_ready(std::process::id());
            return;
        };
        // The predecessor was released: this agent must serve even if this fails.
        if let Err(error) = supervisor.watch(&self.shared.log, self.restarting.reports.clone()) {
            let event = Event::new("supervisor-not-watched").field("error", &error);
            self.shared.log.warn(event.field(
                "next",
                "the agent continues to serve, but will not report the end of its supervisor",
            ));
        }
        // If the supervisor has ended, the watch reports that.
        let _ = supervisor.ready();
    }

    /// Requests a successor, and answers when the successor serves or has failed.
    fn restart_for_operator(&mut self, back: oneshot::Sender<Reply>) {
        match self.restart() {
            Ok(()) if self.restarting.is_under_way() => self.restarting.wait(back),
            // A supervisor of an older version does not report the outcome.
            Ok(()) => {
                let _ = back.send(Reply::written(&Draining { open: self.shared.table.len() }));
            }
            Err(reason) => {
                let _ = back.send(Reply::error(reason));
            }
        }
    }

    /// Handles a report of the supervisor about itself or about a successor.
    pub(super) fn take_supervisor_report(&mut self, report: SupervisorReport) {
        let open = self.shared.table.len();
        match report {
            SupervisorReport::Reports => {
                self.supervisor.iter_mut().for_each(Supervisor::note_reports);
            }
            SupervisorReport::RestartBegins => self.restarting.begin(),
            SupervisorReport::RestartDone if self.restarting.is_replaced() => {
                self.restarting.succeed(open);
            }
            // It is about an earlier successor.
            SupervisorReport::RestartDone => {}
            SupervisorReport::RestartFailed(reason) if self.restarting.is_replaced() => {
                let text = "the new agent failed after it had taken the place of this agent";
                self.restarting.fail(&format!("{text}: {reason}"));
            }
            SupervisorReport::RestartFailed(reason) => {
                let text = self.log_failed_restart(&reason);
                let fix = "correct the cause, and run `tacit restart` again";
                self.restarting.fail(&with_fix(&text, fix));
            }
            SupervisorReport::Ended if self.restarting.is_under_way() => {
                let text = self.log_failed_restart("the supervisor of this agent has ended");
                self.restarting.refuse(&with_fix(&text, DRAIN_AND_START));
            }
            SupervisorReport::Ended if self.restarting.is_replaced() => {
                self.restarting.succeed(open);
            }
            SupervisorReport::Ended => {}
        }
    }

    /// Logs that no successor serves, and returns the error for the operator.
    fn log_failed_restart(&self, reason: &str) -> String {
        let event = Event::new("restart-failed").field("reason", reason);
        self.shared.log.error(event.field("next", "this agent continues with its policy"));
        format!("cannot start a new agent, so this agent continues with its policy: {reason}")
    }

    /// Why a successor may not take over, if so.
    fn refusal_of_successor(&self) -> Option<&'static str> {
        if self.restarting.is_replaced() {
            return Some(REPLACED);
        }
        if self.restarting.refuses_successors() {
            return Some("the restart has failed, because the supervisor has ended");
        }
        self.must_be_confirmed().then_some(UNCONFIRMED)
    }

    /// Whether a policy waits for its confirmation, or is being installed until it is confirmed.
    /// Without the helper of the host, the agent cannot install the previous policy.
    fn must_be_confirmed(&self) -> bool {
        let waits = self.confirmation.is_waiting() || self.changing.needs_confirmation();
        waits && !self.runs.has_lost_host
    }

    /// Requests a successor from the supervisor. Only one is started at a time.
    fn restart(&mut self) -> Result<(), String> {
        if self.restarting.is_under_way() {
            return Ok(());
        }
        if self.restarting.is_replaced() {
            return Err(REPLACED.to_owned());
        }
        if self.must_be_confirmed() {
            return Err(UNCONFIRMED.to_owned());
        }
        let Some(supervisor) = &mut self.supervisor else {
            return Err(NO_SUPERVISOR.to_owned());
        };
        let pid = supervisor.pid();
        let requested = supervisor.restart().map_err(|_| {
            format!(
                "cannot start a new agent: the supervisor of this agent, process {pid}, has ended; \
                 this agent continues to serve\n    fix: {DRAIN_AND_START}"
            )
        });
        if requested.is_ok() && supervisor.sends_reports() {
            self.restarting.begin();
        }
        requested
    }

    /// Logs that the agent starts no successor, because the successor would install the policy that
    /// waits for its confirmation.
    pub(super) fn refuse_restart(&self) {
        let reason = "the installed policy waits for a confirmation, and the helper that captured \
                      the host's traffic has ended: the nftables rules refuse all captured flows";
        let next = "write the previous policy to the policy file, and run `tacit restart`";
        let event = Event::new("restart-refused").field("reason", reason);
        self.shared.log.error(event.field("next", next));
    }

    pub(super) fn restart_on_signal(&mut self) {
        if let Err(reason) = self.restart() {
            self.shared.log.error(Event::new("restart-refused").field("reason", &reason));
        }
    }

    /// Identifies this agent, for a process that finds its sockets in use.
    fn identify(&self) -> Value {
        let identity = RunningAgent {
            pid: std::process::id(),
            policy: Some(absolute(&self.options.policy)),
            draining: self.draining.is_some(),
            open: self.shared.table.len(),
        };
        serde_json::to_value(identity).unwrap_or_default()
    }
}

/// Connections to close in addition to those that the operator listed by number.
#[derive(Clone, Copy)]
struct CloseSelection {
    /// Connections whose rule was changed or removed since they opened.
    stale: bool,
    /// Connections whose peer sent a certificate that is not trusted.
    invalid_peer: bool,
    /// Connections in clear of rules with `accept = "both"`.
    clear: bool,
}

/// The maximum number of displays that are made at the same time, each on its own thread.
const DISPLAYS_MAX: usize = 16;

const NO_SUPERVISOR: &str = "cannot start a new agent: this agent was started with \
                             --no-supervisor\n    fix: run `tacit drain`, wait until the agent has \
                             ended, and start the agent again; or, if you accept that open \
                             connections are reset, run `systemctl restart` for the agent's \
                             service";

const DRAIN_AND_START: &str =
    "run `tacit drain`, wait until this agent has ended, and start the agent again";
const UNCONFIRMED: &str = "the agent cannot restart while the installed policy waits for a \
                           confirmation\n    fix: run `tacit confirm` first";
const REPLACED: &str = "a new agent has replaced this agent already\n    fix: run `tacit restart` \
                        with the control socket of the new agent";

/// The absolute path, or the path itself if there is no current directory.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Makes a display on a thread of its own, because it can be as long as the policy. Other requests
/// are answered meanwhile.
pub(super) fn show_aside(
    back: oneshot::Sender<Reply>,
    make: impl FnOnce() -> Reply + Send + 'static,
) {
    static DISPLAYS: Semaphore = Semaphore::const_new(DISPLAYS_MAX);
    let Ok(permit) = DISPLAYS.try_acquire() else {
        // The client may have closed its connection.
        let _ = back.send(Reply::error(
            "too many `tacit show` requests are in progress\n    fix: try again later",
        ));
        return;
    };
    let made = on_own_thread("display", move || {
        let _permit = permit;
        make()
    });
    tokio::task::spawn_local(async move {
        let reply = match made {
            Ok(made) => made.await.unwrap_or_else(|_| {
                Reply::error(
                    "the agent could not create the output of this `tacit show` request; this is a \
                     bug in tacit",
                )
            }),
            Err(error) => Reply::error(format!(
                "cannot start a thread for this `tacit show` request: {error}"
            )),
        };
        // The client may have closed its connection.
        let _ = back.send(reply);
    });
}

/// The control socket of an agent whose successor has taken over the usual path.
fn own_control_path(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(format!(".{}", std::process::id()));
    path.into()
}
