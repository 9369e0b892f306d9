//! Runs as they begin, end, and pass to a successor.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tacit_core::flow::Address;
use tacit_sys::process;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::inbound::reserve_missing;
use super::listeners::{ListenError, Opened, Wanted};
use super::services::{self, Enrolled, RunEvent, Surroundings};
use super::{Agent, AgentError, Drain, Options, takeover};
use crate::address;
use crate::clock::{self, Rfc3339};
use crate::control::server::Reply;
use crate::log::Event;
use crate::run::Run;
use crate::run::handover::{Departing, HeldAddress, Resumed, RunState};
use crate::run::launchers::{self, Launcher, RunSockets};
use crate::run::line::{Line, adopt};
use crate::run::protocol::{Enrolment, Terms};
use crate::session::Record;

/// How long a reload waits for the kernel's sets of all runs.
const CAPTURE_WAIT_MAX: Duration = Duration::from_secs(1);

/// The enrolment socket while it is served.
pub(super) struct Enrol {
    pub(super) opened: Opened,
    task: Option<JoinHandle<()>>,
}

impl Enrol {
    /// Opens it, or takes it over, if there is to be one.
    pub(super) fn open(
        options: &Options,
        handover: &mut takeover::Handover,
    ) -> Result<Option<Self>, AgentError> {
        let Some((path, unix)) = options.enrol.clone() else { return Ok(None) };
        let wanted = Wanted { clear: true, unix };
        let opened =
            handover.open(&Address::Path(path), &wanted, None).map_err(AgentError::Listen)?;
        Ok(Some(Self { opened, task: None }))
    }
}

impl Drop for Enrol {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// How long connections of a run may go on after its end: what its program sent last is to arrive,
/// but nobody may stay for ever. As long as a kernel keeps the socket of an ended process.
const LINGER: Duration = Duration::from_secs(60);

impl Agent {
    /// Takes runs at the enrolment socket, if there is one, and from the launcher that started
    /// this agent.
    pub(super) fn welcome_launchers(
        &mut self,
        launcher: Option<StdStream>,
    ) -> Result<(), AgentError> {
        if let Some(launcher) = launcher {
            let stream = adopt(launcher).map_err(AgentError::Process)?;
            let welcome = launchers::welcome(stream, self.run_events.clone(), self.log.clone());
            tokio::task::spawn_local(welcome);
        }
        let Some(enrol) = &mut self.enrol else { return Ok(()) };
        let listener =
            takeover::listen_on(&enrol.opened.listener.socket).map_err(AgentError::Process)?;
        let events = self.run_events.clone();
        let accept = launchers::accept_launchers(listener, events, self.log.clone());
        enrol.task = Some(tokio::task::spawn_local(accept));
        Ok(())
    }

    pub(super) async fn take_run_event(&mut self, event: RunEvent) {
        match event {
            RunEvent::Begin { enrolment, sockets, uid, launcher, back } => {
                self.begin_run(enrolment, sockets, uid, launcher, back).await;
            }
            RunEvent::Begun(enrolled, back) => {
                let taken = self.admit(*enrolled).await;
                // A launcher that is gone by now ends its run by that.
                let _ = back.send(taken);
            }
            RunEvent::Listening(id) => self.follow_listening(id).await,
            RunEvent::Line(id, line) => {
                if let Some(enrolled) = self.runs.get(id) {
                    enrolled.run.line.replace(line);
                    self.log.info(Event::new("helper-replaced").field("run", &enrolled.run.name));
                }
            }
            RunEvent::End(id) => self.end_run(id).await,
            // A private agent is there for one run, which will not come.
            RunEvent::NoRun if self.options.private => self.drain(Some(LINGER)).await,
            RunEvent::NoRun => {}
        }
    }

    /// Sets a run up beside the control thread's other work: its helper may be slow.
    async fn begin_run(
        &mut self,
        enrolment: Enrolment,
        sockets: RunSockets,
        uid: u32,
        launcher: Launcher,
        back: oneshot::Sender<Result<(u64, Terms), String>>,
    ) {
        if let Err(reason) = self.check_enrolment(&enrolment) {
            self.log.warn(Event::new("run-refused").field("error", &reason));
            let _ = back.send(Err(reason));
            return;
        }
        let id = self.runs.next_id();
        let Enrolment { name, pid } = enrolment;
        let user = address::user_name(uid);
        let claimed = uid != process::effective_user();
        let events = self.run_events.clone();
        let log = self.log.clone();
        let live = Arc::clone(&self.live);
        let resolvers = Arc::clone(&self.resolvers);
        let table = Arc::clone(&self.table);
        let hosts = self.hosts.pairs();
        let place = self.workers.place_run().await;
        tokio::task::spawn_local(async move {
            let around = Surroundings {
                live: &live,
                table: &table,
                resolvers: &resolvers,
                hosts: &hosts,
                log: &log,
                events: &events,
            };
            let begun = async {
                let line = Line::open(sockets.line.try_clone()?)?;
                let mut run = Run::new(id, name, pid, user, claimed, line);
                run.place = place;
                services::enrol(Arc::new(run), sockets, launcher, None, around).await
            };
            match begun.await {
                Ok(enrolled) => {
                    let _ = events.send(RunEvent::Begun(Box::new(enrolled), back)).await;
                }
                Err(error) => {
                    log.error(Event::new("run-refused").field("error", &error));
                    let _ = back.send(Err(format!("the agent refuses the run: {error}")));
                }
            }
        });
    }

    /// Takes a run that is set up, unless this agent has begun to end meanwhile; returns its number
    /// and the terms for its program.
    async fn admit(&mut self, enrolled: Enrolled) -> Result<(u64, Terms), String> {
        let reserved =
            self.check_room().and_then(|()| self.lead_in().map_err(|error| error.to_string()));
        let reserved = reserved.inspect_err(|reason| {
            self.log.error(Event::new("run-refused").field("error", reason));
        })?;
        if enrolled.generation != self.live.load().generation {
            // A reload has not seen this run.
            drop(self.start_capturing([&enrolled]));
        }
        let of_run = enrolled.run.cpu();
        let id = self.take_run(enrolled, reserved).await;
        let (engines, all) = self.workers.cpus_of_runs();
        let keep_off = engines.to_vec();
        let cpu = of_run.or(all);
        Ok((id, Terms { hide: self.secret_files(), keep_off, cpu }))
    }

    /// Holds the addresses that lead into runs and are not held yet.
    fn lead_in(&self) -> Result<Vec<HeldAddress>, ListenError> {
        let policy = &self.live.load().policy;
        let held = self.runs.all().map(|run| &run.services.inbound);
        reserve_missing(policy, held, self.congestion_control.as_deref())
    }

    /// Opens and closes the ways into a run as its programs listen.
    async fn follow_listening(&mut self, id: u64) {
        let Some(enrolled) = self.runs.find_mut(id) else { return };
        let live = self.live.load_full();
        let listening = enrolled.run.listening();
        let made = &mut self.listeners_made;
        let number = || {
            *made += 1;
            *made
        };
        let followed =
            enrolled.services.inbound.follow(&live.policy, &listening, &self.workers, number).await;
        if let Err(error) = followed {
            let name = &enrolled.run.name;
            self.log.error(Event::new("listen-failed").field("run", name).field("error", &error));
        }
    }

    fn check_enrolment(&self, enrolment: &Enrolment) -> Result<(), String> {
        self.check_room()?;
        self.runs.check(enrolment)
    }

    fn check_room(&self) -> Result<(), String> {
        if self.draining.is_some() {
            return Err("the agent is ending".into());
        }
        self.runs.check_room()
    }

    /// Has the workers accept a run's connections and receive its datagrams.
    async fn take_run(&mut self, mut enrolled: Enrolled, reserved: Vec<HeldAddress>) -> u64 {
        enrolled.services.inbound.take(reserved, &enrolled.run, &self.live.load().policy);
        for listener in &mut enrolled.services.listeners {
            self.listeners_made += 1;
            listener.number = self.listeners_made;
            self.workers.serve(listener.number, Arc::clone(&listener.source) as _).await;
        }
        for receiver in &mut enrolled.services.receivers {
            self.listeners_made += 1;
            receiver.number = self.listeners_made;
            self.workers.serve_on_one(receiver.number, Arc::clone(&receiver.source) as _).await;
        }
        let run = &enrolled.run;
        self.log.info(Event::new("run-began").field("run", &run.name).field("pid", &run.pid));
        let id = run.id;
        self.runs.insert(enrolled);
        self.follow_listening(id).await;
        id
    }

    fn secret_files(&self) -> Vec<PathBuf> {
        services::secret_files(&self.live.load().policy, &self.options.policy)
    }

    async fn end_run(&mut self, id: u64) {
        let Some(mut enrolled) = self.runs.remove(id) else { return };
        for receiver in &enrolled.services.receivers {
            self.workers.finish(receiver.number).await;
        }
        self.unlisten_run(&mut enrolled).await;
        self.log.info(Event::new("run-ended").field("run", &enrolled.run.name));
        if self.options.private {
            return self.drain(Some(LINGER)).await;
        }
        let table = Arc::clone(&self.table);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(LINGER).await;
            for record in table.snapshot() {
                if record.run.as_ref().is_some_and(|of_run| of_run.run.id == id) {
                    record.close();
                }
            }
        });
    }

    pub(super) async fn unlisten_run(&self, enrolled: &mut Enrolled) {
        for listener in &enrolled.services.listeners {
            self.workers.stop(listener.number).await;
        }
        for receiver in &enrolled.services.receivers {
            self.workers.stop(receiver.number).await;
        }
        enrolled.services.inbound.unlisten(&self.workers).await;
    }

    /// Has every run follow the host's file of names, if it has changed.
    pub(super) fn refresh_hosts(&mut self) {
        if self.hosts.read_again() {
            drop(self.start_capturing(self.runs.all()));
        }
    }

    /// Has every run follow the installed policy, all at the same time; addresses that lead in from
    /// now on go to the first run.
    pub(super) async fn follow_policy(
        &mut self,
        reserved: Vec<HeldAddress>,
    ) -> Vec<JoinHandle<()>> {
        if let Some(enrolled) = self.runs.first_mut() {
            enrolled.services.inbound.take(reserved, &enrolled.run, &self.live.load().policy);
        }
        for id in self.runs.ids() {
            self.follow_listening(id).await;
        }
        self.start_capturing(self.runs.all())
    }

    fn start_capturing<'a>(
        &self,
        runs: impl IntoIterator<Item = &'a Enrolled>,
    ) -> Vec<JoinHandle<()>> {
        let hosts = self.hosts.pairs();
        let start = |enrolled: &Enrolled| {
            let hosts = Arc::clone(&hosts);
            let log = self.log.clone();
            let capture = Arc::clone(&enrolled.capture);
            tokio::task::spawn_local(async move {
                if let Err(error) = services::follow_with(&capture, &hosts).await {
                    let event = Event::new("capture-failed").field("run", &capture.run.name);
                    log.error(event.field("error", &error));
                }
            })
        };
        runs.into_iter().map(start).collect()
    }

    /// Gives up the addresses of names that are believed no longer.
    pub(super) fn forget_names(&self) {
        drop(self.start_capturing(self.runs.all()));
    }

    /// Captures again when rules have come or gone with the time of day since `open` was filled.
    pub(super) fn follow_windows(&self, open: &mut Vec<bool>) {
        let now = self.live.load().policy.open_windows(clock::now_unix_s());
        if *open != now {
            drop(self.start_capturing(self.runs.all()));
            *open = now;
        }
    }

    /// Gives all runs to a successor; nothing is read from their sockets here any more.
    pub(super) async fn hand_over_runs(&mut self) -> Reply {
        let mut states = Vec::new();
        let mut descriptors = Vec::new();
        for mut enrolled in self.runs.take_all() {
            self.unlisten_run(&mut enrolled).await;
            enrolled.services.stop();
            match services::depart(&enrolled).await {
                Ok(Departing { state, sockets }) => {
                    states.push(state);
                    descriptors.extend(sockets);
                    self.runs.add_departed(&enrolled.launcher);
                }
                Err(error) => self.log.error(
                    Event::new("run-lost").field("run", &enrolled.run.name).field("error", &error),
                ),
            }
        }
        let mut reply = Reply::ok(json!(states));
        reply.descriptors = descriptors;
        reply
    }

    /// Goes on with a run of the agent before this one.
    pub(super) async fn resume_run(&mut self, state: RunState, sockets: Vec<OwnedFd>) {
        let id = state.id;
        let hosts = self.hosts.pairs();
        let resumed = async {
            let place = self.workers.place_run_on(state.cpu).await;
            let Resumed { mut run, launcher, followed, sockets, inbound, before } =
                state.resume(sockets)?;
            run.place = place;
            let around = Surroundings {
                live: &self.live,
                table: &self.table,
                resolvers: &self.resolvers,
                hosts: &hosts,
                log: &self.log,
                events: &self.run_events,
            };
            let enrolled =
                services::enrol(Arc::new(run), sockets, launcher, before, around).await?;
            Ok::<_, std::io::Error>((enrolled, inbound, followed))
        };
        match resumed.await {
            Ok((enrolled, inbound, followed)) => {
                self.take_run(enrolled, inbound).await;
                let events = self.run_events.clone();
                let log = self.log.clone();
                tokio::task::spawn_local(launchers::follow(followed, events, log));
            }
            Err(error) => {
                self.log.error(Event::new("run-lost").field("id", &id).field("error", &error));
            }
        }
    }

    /// `tacit show runs`.
    pub(super) fn show_runs(&self) -> Value {
        let open = self.table.snapshot();
        let now = SystemTime::now();
        let runs = self.runs.all().map(|enrolled| {
            let run = &enrolled.run;
            let of_run = |record: &&Arc<Record>| {
                record.run.as_ref().is_some_and(|of_run| of_run.run.id == run.id)
            };
            let names = run.learnt().into_iter().map(|(name, address, left)| {
                json!({ "name": name, "address": address, "seconds": left.as_secs() })
            });
            let listen = enrolled
                .services
                .inbound
                .shown()
                .map(|(address, open)| json!({ "address": address, "open": open }));
            json!({
                "id": run.id,
                "name": run.name,
                "pid": run.pid,
                "user": run.user,
                "claimed": run.claimed,
                "since": Rfc3339(run.since).to_string(),
                "age-s": now.duration_since(run.since).unwrap_or_default().as_secs(),
                "open": open.iter().filter(of_run).count(),
                "captured": enrolled.capture.count(),
                "names": names.collect::<Vec<_>>(),
                "listen": listen.collect::<Vec<_>>(),
                "listening": *run.listening(),
            })
        });
        runs.collect()
    }

    /// After a private agent has handed its run over: its connections end with the run too.
    pub(super) fn follow_departed(&mut self) {
        if self.options.private && self.runs.departed_have_ended() {
            self.draining = Some(Drain { until: Some(Instant::now() + LINGER) });
        }
    }
}

/// Waits until runs capture what the policy says, but not for a helper that is slow or gone: that
/// run follows later, or is refused everything.
pub(super) async fn wait_for_capture(capturing: Vec<JoinHandle<()>>) {
    let all = async {
        for run in capturing {
            // A task that panicked has said so.
            let _ = run.await;
        }
    };
    let _ = tokio::time::timeout(CAPTURE_WAIT_MAX, all).await;
}
