//! Installs a new policy or changed files in a running agent. A policy is installed completely or
//! not at all. If a file cannot be loaded, the agent keeps the file's old content.
//!
//! ```text
//!   control thread                                another thread
//!   reload, or a changed file ── Inputs ────────> prepare.rs: read, check, build
//!   listeners, swap, answer  <── Prepared ───────
//! ```
//!
//! The control thread continues its other work during a preparation. Only one change is prepared at
//! a time. If requests arrive meanwhile, they wait for the next reload. That reload answers all of
//! them.
//!
//! Limit: at most [`WAITING_MAX`] requests wait.

use std::future::pending;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tacit_core::policy::Policy;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::confirmation::Previous;
use super::opened::ListenError;
use super::prepare::{Inputs, NewFiles, NewPolicy, PolicySource, Prepared};
use super::{Agent, runs};
use crate::control::outcome::Reloaded;
use crate::control::server::{ControlClient, Reply};
use crate::ledger::on_own_thread;
use crate::live::{Built, Changes};
use crate::log::{Event, Log};
use crate::session::trace::TraceEndReason;

/// The maximum number of requests that wait for the next reload.
const WAITING_MAX: usize = 64;
/// Who requests that a policy returns.
const NOT_CONFIRMED: &str = "no confirmation";
const UNCONFIRMED: &str = "the policy was not installed: the policy in use waits for a \
                           confirmation; run `tacit confirm` first, or reload with --confirm";
const TOO_LATE: &str = "the new policy was not confirmed in time, so the agent has installed the \
                        previous policy again\n    fix: run `tacit reload --confirm TIME` again, \
                        and confirm the policy within this time";
const TAKING_BACK: &str = "the new policy was not confirmed in time, so the agent is installing \
                           the previous policy again";
const ENDING: &str = "the policy was not installed: the agent is ending";
const RESTARTING: &str = "the policy was not installed: a new agent is starting, and it reads the \
                          policy file itself\n    fix: run `tacit reload` again when the \
                          new agent serves";
/// A preparation that takes longer than this is logged.
const PREPARATION_TIME_NOTED: Duration = Duration::from_secs(10);

/// The origin of a reload request.
#[derive(Debug)]
pub(super) enum ReloadOrigin {
    /// `tacit reload`, which waits for the answer. With a time, the policy is taken back unless it
    /// is confirmed in that time.
    Operator(oneshot::Sender<Reply>, Option<ControlClient>, Option<Duration>),
    /// SIGHUP.
    Signal,
    /// The installed policy was not confirmed: the one before returns.
    NotConfirmed,
}

impl ReloadOrigin {
    /// Whether the policy is taken back unless it is confirmed.
    fn is_for_a_time(&self) -> bool {
        matches!(self, Self::Operator(_, _, Some(_)))
    }
}

/// The change in preparation, and the requests that wait for the next one.
#[derive(Debug, Default)]
pub(super) struct Changing {
    under_way: Option<Preparation>,
    waiting: Vec<ReloadOrigin>,
}

#[derive(Debug)]
struct Preparation {
    prepared: oneshot::Receiver<Prepared>,
    origins: Vec<ReloadOrigin>,
    begun: Instant,
    /// Whether the long preparation was logged.
    is_noted: bool,
}

impl Preparation {
    /// Logs once that reading the files takes long: a network file system may not answer.
    fn note_delay(&mut self, log: &Log) {
        if self.is_noted || self.begun.elapsed() < PREPARATION_TIME_NOTED {
            return;
        }
        self.is_noted = true;
        let seconds = self.begun.elapsed().as_secs();
        let event = Event::new("reload-waits").value("seconds", seconds);
        let next = "the agent cannot install a policy or a renewed certificate, because it is \
                    still reading the files of the policy: check whether one of these files is on \
                    a file system that does not respond, such as NFS";
        log.warn(event.field("next", next));
    }

    fn new(prepared: oneshot::Receiver<Prepared>, origins: Vec<ReloadOrigin>) -> Self {
        Self { prepared, origins, begun: Instant::now(), is_noted: false }
    }
}

/// A prepared change, and the requests that it answers.
#[derive(Debug)]
pub(super) struct Due {
    prepared: Prepared,
    origins: Vec<ReloadOrigin>,
}

impl Changing {
    /// Whether a change is in preparation.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether a policy is being prepared that must be confirmed.
    pub(super) fn needs_confirmation(&self) -> bool {
        let origins = self.under_way.iter().flat_map(|preparation| &preparation.origins);
        origins.chain(&self.waiting).any(ReloadOrigin::is_for_a_time)
    }

    /// Whether the policy is being prepared that was in use before one that was not confirmed.
    pub(super) fn is_taking_back(&self) -> bool {
        let mut origins = self.under_way.iter().flat_map(|preparation| &preparation.origins);
        origins.any(|origin| matches!(origin, ReloadOrigin::NotConfirmed))
    }

    /// Refuses all requests because the agent ends.
    pub(super) fn refuse_all(&mut self, log: &Log) {
        let under_way = self.under_way.take().map(|preparation| preparation.origins);
        let mut origins = under_way.unwrap_or_default();
        origins.append(&mut self.waiting);
        answer(origins, &Err(ENDING.to_owned()), log);
    }

    /// Waits until a change is prepared.
    pub(super) async fn due(&mut self) -> Due {
        let Some(preparation) = &mut self.under_way else { return pending().await };
        let prepared = (&mut preparation.prepared).await.unwrap_or_else(|_| {
            let reason = "the policy was not installed: the agent failed while it read the policy. \
                          This is a bug in tacit; report the bug, and attach the policy";
            Prepared::Policy(Err(reason.to_owned()))
        });
        let origins = self.under_way.take().map(|done| done.origins).unwrap_or_default();
        Due { prepared, origins }
    }
}

/// A policy that was installed.
struct Installation {
    /// The answer to the operator.
    answer: Reloaded,
    /// The tasks that update the capture of runs.
    capturing: Vec<JoinHandle<()>>,
}

impl Agent {
    /// Starts a reload, or adds the request to those that wait for the next one. The answer is sent
    /// when the policy is installed or rejected.
    pub(super) fn reload(&mut self, origin: ReloadOrigin) {
        let refusal = if self.draining.is_some() {
            ENDING
        } else if self.restarting.is_under_way() {
            RESTARTING
        } else if self.confirmation.is_waiting() && !origin.is_for_a_time() {
            UNCONFIRMED
        } else if self.changing.waiting.len() >= WAITING_MAX {
            "the policy was not installed: too many requests wait for the current reload; try \
             again later"
        } else {
            self.changing.waiting.push(origin);
            return self.prepare_next();
        };
        answer(vec![origin], &Err(refusal.to_owned()), &self.shared.log);
    }

    /// Starts the reload that requests wait for, unless another change is in preparation.
    fn prepare_next(&mut self) {
        if self.changing.under_way.is_some() || self.changing.waiting.is_empty() {
            return;
        }
        let mut origins = std::mem::take(&mut self.changing.waiting);
        if self.confirmation.is_waiting() {
            // They were sent before the policy in use began to wait for its confirmation.
            let refused: Vec<_> =
                origins.extract_if(.., |origin| !origin.is_for_a_time()).collect();
            answer(refused, &Err(UNCONFIRMED.to_owned()), &self.shared.log);
        }
        if origins.is_empty() {
            return;
        }
        self.prepare(PolicySource::File(self.options.policy.clone()), origins);
    }

    fn prepare(&mut self, source: PolicySource, origins: Vec<ReloadOrigin>) {
        let inputs = self.inputs();
        match on_own_thread("reload", move || Prepared::Policy(inputs.policy(source))) {
            Ok(prepared) => self.changing.under_way = Some(Preparation::new(prepared, origins)),
            Err(error) => {
                let refusal =
                    format!("the policy was not installed: cannot start a thread: {error}");
                answer(origins, &Err(refusal), &self.shared.log);
            }
        }
    }

    /// Returns to the state before a policy that was not confirmed in its time. Breaks if the agent
    /// did not run then.
    pub(super) async fn take_back(&mut self) -> ControlFlow<()> {
        match self.confirmation.take_due(Instant::now()) {
            None => ControlFlow::Continue(()),
            Some(Previous::Policy(policy)) => {
                self.prepare(PolicySource::Parsed(policy), vec![ReloadOrigin::NotConfirmed]);
                ControlFlow::Continue(())
            }
            Some(Previous::NoCapture) => match self.runs.end_capture().await {
                Ok(()) => {
                    let next =
                        "the agent ends; it has restored the earlier nftables rules of the host";
                    let event = Event::new("policy-taken-back").field("next", &next);
                    self.shared.log.warn(event);
                    ControlFlow::Break(())
                }
                Err(error) => {
                    let event = Event::new("reload-refused").field("by", &NOT_CONFIRMED);
                    self.shared.log.error(event.field("reason", &error));
                    ControlFlow::Continue(())
                }
            },
        }
    }

    /// Confirms the installed policy for the operator; returns whether the policy waited for a
    /// confirmation.
    ///
    /// # Errors
    /// The confirmation is too late: the previous policy is installed again.
    pub(super) fn confirm(&mut self) -> Result<bool, String> {
        if self.changing.is_taking_back() {
            return Err(TAKING_BACK.to_owned());
        }
        if self.confirmation.was_taken_back() {
            return Err(TOO_LATE.to_owned());
        }
        let has_waited = self.confirmation.end();
        if has_waited {
            self.shared.log.info(Event::new("policy-confirmed"));
            if self.runs.has_lost_host {
                self.restart_on_signal();
            }
        }
        Ok(has_waited)
    }

    /// Waits for a confirmation of the capture that has just begun, if the operator asks for that.
    pub(super) fn follow_start(&mut self) {
        if let Some(time) = self.options.confirm.filter(|_| !self.options.take_over) {
            self.wait_for_confirmation(Previous::NoCapture, time);
        }
    }

    fn wait_for_confirmation(&mut self, replaced: Previous, time: Duration) {
        self.confirmation.begin(replaced, time, Instant::now());
        let seconds = time.as_secs();
        let event = Event::new("policy-unconfirmed").value("seconds", seconds);
        let next = format!(
            "to keep the new policy, run `tacit confirm` within {seconds} s. Otherwise the agent \
             restores the previous state: it installs the previous policy again, or stops \
             capturing the host if no policy was installed before"
        );
        self.shared.log.warn(event.field("next", &next));
    }

    /// Waits for a confirmation of a policy that was just installed, if its requests ask for that.
    fn follow_confirmation(&mut self, origins: &[ReloadOrigin], replaced: Arc<Policy>) {
        let times = origins.iter().filter_map(|origin| match origin {
            ReloadOrigin::Operator(_, _, time) => *time,
            ReloadOrigin::Signal | ReloadOrigin::NotConfirmed => None,
        });
        if let Some(time) = times.min() {
            self.wait_for_confirmation(Previous::Policy(replaced), time);
        } else if origins.iter().any(|origin| matches!(origin, ReloadOrigin::NotConfirmed)) {
            self.confirmation.take_back();
            let next = "the policy file still contains the policy that was not confirmed: correct \
                        the file";
            self.shared.log.warn(Event::new("policy-taken-back").field("next", &next));
        } else if self.confirmation.was_taken_back() {
            // Another policy is in use now.
            self.confirmation.end();
        }
    }

    /// Loads certificate, key and trust files that have changed. If a file cannot be loaded, its
    /// old content stays in use.
    pub(super) fn refresh_credentials(&mut self) {
        if let Some(preparation) = &mut self.changing.under_way {
            // The files are checked again after FILES_INTERVAL.
            preparation.note_delay(&self.shared.log);
            return;
        }
        if !self.credentials.have_changed() {
            return;
        }
        let inputs = self.inputs();
        match on_own_thread("reload", move || Prepared::Files(inputs.files())) {
            Ok(prepared) => {
                self.changing.under_way = Some(Preparation::new(prepared, Vec::new()));
            }
            Err(error) => {
                let event = Event::new("files-not-read").field("error", &error);
                self.shared.log.error(event.field(
                    "next",
                    "the agent will soon try again to read the certificates, keys and CRLs",
                ));
            }
        }
    }

    fn inputs(&self) -> Inputs {
        Inputs {
            file: self.options.policy.clone(),
            live: self.shared.live.load_full(),
            credentials: self.credentials.loaded.clone(),
            keys: self.credentials.keys.clone(),
            chains: self.credentials.chains.clone(),
            sandbox: self.sandbox.clone(),
            stores_text: self.options.last_policy.is_some(),
            raw: self.tunnels.raw(),
        }
    }

    /// Installs a prepared change, and starts the next one.
    pub(super) async fn take_change(&mut self, due: Due) {
        let Due { prepared, origins } = due;
        match prepared {
            Prepared::Files(files) => {
                self.take_files(*files);
                self.runs.hide_again();
            }
            Prepared::Policy(Err(refusal)) => self.refuse(origins, refusal),
            Prepared::Policy(Ok(policy)) => match self.install(*policy, &origins).await {
                Err(refusal) => self.refuse(origins, refusal),
                Ok(Installation { answer: installed, capturing }) => {
                    let log = self.shared.log.clone();
                    tokio::task::spawn_local(async move {
                        runs::wait_for_capture(capturing).await;
                        answer(origins, &Ok(installed), &log);
                    });
                }
            },
        }
        self.prepare_next();
    }

    /// Answers with a refusal. Hides the files of the installed policy again, because they may have
    /// been replaced.
    fn refuse(&self, origins: Vec<ReloadOrigin>, refusal: String) {
        answer(origins, &Err(refusal), &self.shared.log);
        self.runs.hide_again();
    }

    /// Installs a policy. All steps that can fail come first.
    async fn install(
        &mut self,
        new: NewPolicy,
        origins: &[ReloadOrigin],
    ) -> Result<Installation, String> {
        if self.draining.is_some() {
            return Err(ENDING.to_owned());
        }
        let NewPolicy { live, credentials, changes, listeners, .. } = new;
        let NewPolicy { mut warnings, needs_restart, text, new_contents, .. } = new;
        let refused = |error: ListenError| format!("the policy was not installed: {error}");
        let reserved = self.runs.reserve(&live.policy).await.map_err(refused)?;
        let new_listeners = self.listeners.prepare(&listeners).map_err(refused)?;
        // The kernel is changed first: flows that the policy adds are refused until it is
        // installed.
        self.runs.lead_host(&live.policy).await?;
        let generation = live.generation;
        live.mark_relays();
        let old_live = self.shared.live.swap(Arc::new(live));
        self.policy_installed = SystemTime::now();
        let replaced = Arc::clone(&old_live.policy);
        let old_credentials = self.credentials.replace(credentials);
        drop_aside(old_credentials);
        self.tunnels.follow(self.ike_policy());
        self.passes.note_replaced(old_live, &self.shared.live.load());
        if !self.shared.live.load().policy.agent.trace {
            self.shared.table.traces().end_all(TraceEndReason::Policy);
        }
        let capturing = self.runs.follow_policy(reserved, &self.workers).await;
        self.listeners.change(&listeners, new_listeners, &self.workers).await;
        self.look_at_connections();
        self.follow_confirmation(origins, replaced);
        self.last_policy.note(text);
        warnings.extend(self.store_policy().await);
        let event = Event::new("reloaded").field("by", &requesters(origins));
        self.shared.log.info(with_changes(event, &changes, &new_contents));
        let needs_restart = needs_restart.into_iter().map(str::to_owned).collect();
        let answer = Reloaded { generation, changes, new_contents, warnings, needs_restart };
        Ok(Installation { answer, capturing })
    }

    fn take_files(&mut self, files: NewFiles) {
        let NewFiles { credentials, new_contents, mut errors, built } = files;
        match built {
            None => {}
            Some(Err(refused)) => errors.push(refused.to_string()),
            Some(Ok(Built { live, changes })) => {
                if !changes.is_empty() {
                    let old_live = self.shared.live.swap(Arc::new(live));
                    self.passes.note_replaced(old_live, &self.shared.live.load());
                }
                // Rules with `ipsec` do not change with the files of their tunnel.
                if !changes.is_empty() || !new_contents.is_empty() {
                    let event = Event::new("files-reloaded");
                    self.shared.log.info(with_changes(event, &changes, &new_contents));
                }
                self.credentials.loaded = credentials;
                self.tunnels.follow(self.ike_policy());
            }
        }
        self.credentials.report_errors(errors, &self.shared.log);
        self.look_at_connections();
    }
}

/// The rules that were added, changed or removed, and the tables whose files have other contents,
/// for the log.
fn with_changes(event: Event, changes: &Changes, new_contents: &[String]) -> Event {
    let Changes { added, changed, removed } = changes;
    let event = event.names("added", added).names("changed", changed).names("removed", removed);
    event.names("new-contents", new_contents)
}

/// Drops a value that may contain many thousand rules without blocking the control thread.
fn drop_aside<T: Send + 'static>(old: T) {
    // If no thread can be started, the value is dropped here.
    let _ = on_own_thread("reload", move || drop(old));
}

/// Who requested a reload, for the log.
fn requesters(origins: &[ReloadOrigin]) -> String {
    let requester = |origin: &ReloadOrigin| match origin {
        ReloadOrigin::Operator(_, Some(client), _) => client.to_string(),
        ReloadOrigin::Operator(_, None, _) => "the agent".to_owned(),
        ReloadOrigin::Signal => "a signal".to_owned(),
        ReloadOrigin::NotConfirmed => NOT_CONFIRMED.to_owned(),
    };
    origins.iter().map(requester).collect::<Vec<_>>().join(", ")
}

/// Answers reload requests. Logs a refusal as well, because a reload by signal has no answer, and
/// because other operators must be able to see why the policy was not replaced.
fn answer(origins: Vec<ReloadOrigin>, result: &Result<Reloaded, String>, log: &Log) {
    if let Err(reason) = result
        && !origins.is_empty()
    {
        let event = Event::new("reload-refused").field("by", &requesters(&origins));
        log.error(event.field("reason", reason));
    }
    for origin in origins {
        // The client may have closed its connection.
        match (origin, result) {
            (ReloadOrigin::Operator(back, ..), Ok(installed)) => {
                drop(back.send(Reply::written(installed)))
            }
            (ReloadOrigin::Operator(back, ..), Err(reason)) => {
                drop(back.send(Reply::error(reason)))
            }
            (ReloadOrigin::Signal | ReloadOrigin::NotConfirmed, _) => {}
        }
    }
}
