//! Runs the supervisor: the parent process of an agent, which starts the agent and its successors.
//!
//! An agent in its sandbox cannot start programs. When the agent requests a restart, the supervisor
//! starts a successor from the current program file. The supervisor holds no keys, reads no policy
//! and opens no port. The supervisor forwards SIGHUP (reload) to the newest agent. On SIGTERM or
//! SIGINT, it ends all its agents. On SIGUSR2, it starts a successor.
//!
//! ```text
//!   tacit agent (supervisor) ──starts──> tacit agent ──"ready", "restart"──> supervisor
//! ```
//!
//! If a successor fails while the old agent still accepts connections, the supervisor reports the
//! reason to the old agent. If the old agent no longer accepts connections, the supervisor starts
//! another agent, as after a crash.
//!
//! If an agent crashes, the supervisor starts another agent one second later. After more than
//! `CRASHES_MAX` crashes in one minute, the supervisor starts no further agent. If another process
//! kills the only agent, or all agents within a second, the supervisor ends. If another process
//! kills the serving agent while an older agent still drains, the supervisor starts another agent,
//! as after a crash.
//!
//! The supervisor of a private agent (an agent for one run) is a fork of the launcher `tacit run`.
//! This supervisor ignores SIGHUP, SIGTERM and SIGINT, and does not replace an agent that crashes.
//! When the run ends, its agents end, and then this supervisor ends.
//!
//! The command `tacit agent --no-supervisor` starts an agent without a supervisor. `tacit restart`
//! cannot restart this agent.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use tacit_core::message_id::MessageId;
use tacit_sys::process::{self, Signal};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::supervised::{REPORTS, Supervisor, parse_reason, reason_line};
use super::{AgentOptions, PassedSockets, service_manager};
use crate::control::secret::SuccessorSecret;
use crate::exit::{EXIT_FAILURE, EXIT_OK, complain_of};
use crate::log::{Format, LogDestination, LogLevel};
use crate::run::link::choice::LinkChoice;
use crate::run::protocol::{self, ToLauncher};
use crate::runtime;

/// The maximum number of queued messages from agents.
const MESSAGES_MAX: usize = 16;
/// Signals that the kernel sends to a program for a fault of its own.
const CRASHES: [Signal; 6] =
    [Signal::ABORT, Signal::SEGV, Signal::BUS, Signal::ILL, Signal::FPE, Signal::SYS];
/// The time from a crash to the start of the next agent.
const CRASH_PAUSE: Duration = Duration::from_secs(1);
/// The time in which crashes are counted.
const CRASHES_TIME: Duration = Duration::from_secs(60);
/// The maximum number of crashes in [`CRASHES_TIME`].
const CRASHES_MAX: usize = 5;
/// How long the supervisor waits for the last messages of a successor that has ended.
const LAST_MESSAGES_WAIT: Duration = Duration::from_millis(20);
/// The process name of the supervisor of a private agent, with at most 15 characters.
const PRIVATE_NAME: &str = "tacit-supervise";

/// Starts agents with these arguments until the last one ends.
///
/// # Errors
/// An agent cannot be started, or signals cannot be watched.
pub fn run(arguments: &[OsString]) -> io::Result<ExitCode> {
    process::hide_memory()?;
    let secret = SuccessorSecret::new()?;
    on_runtime(supervise(arguments.to_vec(), secret, None)).map(ExitCode::from)
}

/// The options of a run's private agent.
#[derive(Clone, Debug)]
pub struct Private {
    /// The policy file.
    pub policy: PathBuf,
    /// The path of the control socket.
    pub control: PathBuf,
    /// DNS resolvers; if empty, those of the host.
    pub resolvers: Vec<SocketAddr>,
    /// The link that the run uses.
    pub link: LinkChoice,
    /// Where its log goes.
    pub log: LogDestination,
    /// The least level of the events in its log.
    pub log_level: LogLevel,
    /// The launcher, as the log shows it: `NAME[PID]`.
    pub launcher: String,
}

impl Private {
    /// The options as command line arguments, for successors.
    fn arguments(&self) -> Vec<OsString> {
        let mut all: Vec<OsString> = ["agent", "--private", "--policy"].map(Into::into).into();
        all.extend([self.policy.clone().into(), "--control".into(), self.control.clone().into()]);
        all.extend(["--log".into(), self.log.to_string().into()]);
        all.extend(["--log-level".into(), self.log_level.word().into()]);
        all.extend(["--launcher".into(), self.launcher.clone().into()]);
        all.extend(self.link.arguments());
        for resolver in &self.resolvers {
            all.extend(["--resolver".into(), resolver.to_string().into()]);
        }
        all
    }

    fn options(self) -> AgentOptions {
        AgentOptions {
            policy: self.policy,
            control: self.control,
            log: self.log,
            log_format: Format::default(),
            launcher: Some(self.launcher),
            audit: None,
            level: self.log_level,
            enrol: None,
            private: true,
            link: self.link,
            resolvers: self.resolvers,
            host: false,
            confirm: None,
            last_policy: None,
            take_over: false,
        }
    }
}

/// Starts the private agent for the run that `launcher` enrols, and supervises it. The process must
/// have a single thread.
///
/// # Errors
/// The agent cannot be started.
pub fn run_private(private: Private, launcher: UnixStream) -> io::Result<u8> {
    process::name_thread(PRIVATE_NAME);
    process::hide_memory()?;
    let secret = SuccessorSecret::new()?;
    let of_agent = secret.clone();
    let (ours, theirs) = UnixStream::pair()?;
    let arguments = private.arguments();
    let refusals = launcher.try_clone()?;
    let ours = Cell::new(Some(ours));
    let work = || {
        // Otherwise the agent would not notice the end of its supervisor.
        drop(ours.take());
        process::name_thread("tacit-agent");
        let supervisor = Supervisor::of_fork(theirs, of_agent);
        match super::run(private.options(), PassedSockets::Launcher(launcher), Some(supervisor)) {
            Ok(()) => EXIT_OK,
            Err(error) => {
                let refused = ToLauncher::Refused(error.to_string());
                // The launcher may have ended.
                let _ = protocol::write(&refusals, &refused, &[]);
                EXIT_FAILURE
            }
        }
    };
    let pid = process::fork(work)?;
    drop(refusals);
    let first = ours.take().map(|channel| Started { pid, channel, reads_reports: true });
    on_runtime(supervise(arguments, secret, first))
}

fn on_runtime<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    runtime::builder()?
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())?
        .block_on(work)
}

/// A running agent, and the supervisor's end of the channel to it.
struct Started {
    pid: u32,
    channel: UnixStream,
    reads_reports: bool,
}

/// The channel to a running agent, for reports.
struct Channel {
    stream: UnixStream,
    /// Whether the agent reads reports. Older ones do not.
    reads_reports: bool,
}

/// How an agent gets its listening sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// The agent opens them.
    First,
    /// The agent takes over those of its predecessor.
    Successor,
}

struct Agents {
    program: PathBuf,
    arguments: Vec<OsString>,
    /// The secret that authenticates a successor to its predecessor.
    secret: SuccessorSecret,
    running: Vec<u32>,
    /// The channels to agents, by process ID.
    channels: BTreeMap<u32, Channel>,
    /// The successors that are starting, each with the reason of its failure if it sent one.
    starting: BTreeMap<u32, Option<String>>,
    /// The agent that was ready last.
    ready: Option<u32>,
    /// The agent that others do not replace: it was ready last, has released its predecessor, or
    /// was started when no other agent served. Older agents drain.
    serving: Option<u32>,
    /// The status of a serving agent that has failed; `None` if another one serves.
    failure: Option<u8>,
    /// Whether an agent that is starting must reload its policy when it is ready.
    must_reload: bool,
    /// Whether the supervisor prints a message if a signal kills an agent.
    reports_killed: bool,
    /// Whether the end was requested, so that no successor is started any more.
    ending: bool,
    /// The times of recent crashes.
    crashes: Vec<Instant>,
    messages: mpsc::Sender<(u32, Message)>,
}

/// The state of the agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// At least one agent is running.
    Run,
    /// The last agent has ended with this status.
    Ended(u8),
    /// The last agent has crashed, which gives this status.
    Crashed(u8),
    /// The serving agent has failed, and only agents that drain are running.
    OnlyDraining,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Message {
    ReadsReports,
    /// The agent has released its predecessor.
    Released,
    Ready,
    Restart,
    /// The agent cannot start, for this reason.
    Failed(String),
    /// A successor ended while it was starting.
    Ended,
}

impl Message {
    /// Parses a line without its end; `None` for a line of a newer version.
    fn parse(line: &str) -> Option<Self> {
        if let Some(reason) = parse_reason("failed", line) {
            return Some(Self::Failed(reason));
        }
        match line {
            "reads-reports" => Some(Self::ReadsReports),
            "released" => Some(Self::Released),
            "ready" => Some(Self::Ready),
            "restart" => Some(Self::Restart),
            _ => None,
        }
    }
}

/// Supervises a running agent, or starts the first one.
async fn supervise(
    arguments: Vec<OsString>,
    secret: SuccessorSecret,
    first: Option<Started>,
) -> io::Result<u8> {
    let program = std::env::current_exe()?;
    let private = first.is_some();
    let mut ended = signal(SignalKind::child())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut restart = signal(SignalKind::user_defined2())?;
    let (messages, mut received) = mpsc::channel(MESSAGES_MAX);
    let mut agents = Agents {
        program,
        arguments,
        secret,
        running: Vec::new(),
        channels: BTreeMap::new(),
        starting: BTreeMap::new(),
        ready: None,
        serving: None,
        failure: None,
        must_reload: false,
        ending: false,
        crashes: Vec::new(),
        // For a private agent, the launcher reports that.
        reports_killed: !private,
        messages,
    };
    match first {
        Some(started) => agents.follow(started)?,
        None => agents.start(Start::First)?,
    }
    // An agent may have ended before SIGCHLD was watched.
    let mut outcome = agents.reap()?;
    loop {
        match outcome {
            Outcome::Run => {}
            Outcome::Crashed(_) | Outcome::OnlyDraining if !private && agents.may_start_again() => {
                tokio::time::sleep(CRASH_PAUSE).await;
                if let Some(code) = agents.start_again_unless_killed()? {
                    return Ok(code);
                }
            }
            Outcome::OnlyDraining => agents.report_to_all("the new agent has ended"),
            Outcome::Crashed(code) => return Ok(code),
            Outcome::Ended(code) => return Ok(agents.failure.unwrap_or(code)),
        }
        outcome = Outcome::Run;
        tokio::select! {
            _ = ended.recv() => outcome = agents.reap()?,
            Some((pid, message)) = received.recv() => outcome = agents.take_message(pid, message),
            _ = restart.recv() => agents.replace(),
            _ = hangup.recv(), if !private => agents.reload(),
            _ = terminate.recv(), if !private => agents.end(),
            _ = interrupt.recv(), if !private => agents.end(),
        }
    }
}

impl Agents {
    fn start(&mut self, start: Start) -> io::Result<()> {
        let (mut ours, theirs) = UnixStream::pair()?;
        // The secret stays in the channel until the agent reads it.
        ours.write_all(self.secret.to_text().as_bytes())?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).args(["--supervised", "--with-secret"]);
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        if start == Start::Successor {
            command.arg("--take-over");
        }
        let pid = process::own_process_group(&mut command).spawn()?.id();
        if start == Start::Successor {
            self.starting.insert(pid, None);
        }
        self.follow(Started { pid, channel: ours, reads_reports: false })
    }

    /// Starts another agent after one that has failed. If another process has meanwhile killed the
    /// last agent that drained too, returns the exit status of the supervisor instead.
    fn start_again_unless_killed(&mut self) -> io::Result<Option<u8>> {
        if !self.running.is_empty()
            && let Outcome::Ended(code) = self.reap()?
            && code != EXIT_OK
        {
            return Ok(Some(self.failure.unwrap_or(code)));
        }
        self.start_again()?;
        Ok(None)
    }

    /// Starts another agent after one that has failed.
    fn start_again(&mut self) -> io::Result<()> {
        match self.start(Start::First) {
            Ok(()) => self.serving = self.running.last().copied(),
            // The connections of agents that drain continue.
            Err(error) if !self.running.is_empty() => {
                report_no_successor(&error);
                self.report_to_all("the new agent has ended, and no other one could be started");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Adds a running agent, and receives its messages.
    fn follow(&mut self, started: Started) -> io::Result<()> {
        let Started { pid, channel, reads_reports } = started;
        self.running.push(pid);
        channel.set_nonblocking(true)?;
        let stream = channel.try_clone()?;
        self.channels.insert(pid, Channel { stream, reads_reports });
        let mut lines = BufReader::new(tokio::net::UnixStream::from_std(channel)?).lines();
        let messages = self.messages.clone();
        tokio::task::spawn_local(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let Some(message) = Message::parse(&line) else { continue };
                if messages.send((pid, message)).await.is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    fn take_message(&mut self, pid: u32, message: Message) -> Outcome {
        match message {
            Message::ReadsReports => {
                let channel = self.channels.get_mut(&pid);
                channel.into_iter().for_each(|channel| channel.reads_reports = true);
                self.report_to(pid, REPORTS);
            }
            Message::Released => {
                self.starting.remove(&pid);
                self.serving = Some(pid);
            }
            Message::Ready => {
                self.starting.remove(&pid);
                self.note_ready(pid);
                service_manager::notify_ready(pid);
                let others = self.channels.keys().filter(|other| **other != pid);
                others.for_each(|other| self.report_to(*other, b"restart-done\n"));
            }
            Message::Restart => self.replace(),
            Message::Failed(reason) => {
                if let Some(known) = self.starting.get_mut(&pid) {
                    *known = Some(reason);
                }
            }
            // Its message `released` arrived after its end was known.
            Message::Ended if self.serving == Some(pid) => {
                self.failure = Some(EXIT_FAILURE);
                return Outcome::OnlyDraining;
            }
            Message::Ended => self.report_failure(pid),
        }
        Outcome::Run
    }

    /// Reports to the serving agent that a successor has failed, unless another one is starting.
    fn report_failure(&mut self, pid: u32) {
        let Some(reason) = self.starting.remove(&pid) else { return };
        if !self.starting.is_empty() {
            return;
        }
        let unknown = || format!("the process of the new agent, {pid}, ended before it served");
        self.report_restart_failed(&reason.unwrap_or_else(unknown));
    }

    fn report_restart_failed(&self, reason: &str) {
        self.report(reason_line("restart-failed", reason).as_bytes());
    }

    /// Sends a report to the serving agent.
    fn report(&self, line: &[u8]) {
        self.serving.into_iter().for_each(|pid| self.report_to(pid, line));
    }

    /// Reports to agents that drain that no agent serves.
    fn report_to_all(&self, reason: &str) {
        let line = reason_line("restart-failed", reason);
        self.channels.keys().for_each(|pid| self.report_to(*pid, line.as_bytes()));
    }

    fn report_to(&self, pid: u32, line: &[u8]) {
        let Some(channel) = self.channels.get(&pid).filter(|channel| channel.reads_reports) else {
            return;
        };
        // The agent may have ended. The socket has space for all reports: they are few and short.
        let _ = (&channel.stream).write_all(line);
    }

    /// Starts a successor. If that fails, the current agent continues to serve.
    fn replace(&mut self) {
        if self.ending {
            return self.report_restart_failed("the agent is ending");
        }
        self.report(b"restart-begins\n");
        if let Err(error) = self.start(Start::Successor) {
            report_no_successor(&error);
            self.report_restart_failed(&error.to_string());
        }
    }

    /// Counts a crash, and returns whether another agent may be started.
    fn may_start_again(&mut self) -> bool {
        let now = Instant::now();
        self.crashes.retain(|at| now.duration_since(*at) < CRASHES_TIME);
        self.crashes.push(now);
        !self.ending && self.crashes.len() <= CRASHES_MAX
    }

    /// Removes agents that ended.
    fn reap(&mut self) -> io::Result<Outcome> {
        let mut code = EXIT_OK;
        let mut has_crashed = false;
        let mut failed = None;
        let mut serving_failed = None;
        let mut ended = Vec::new();
        self.running.retain(|pid| match process::try_wait(*pid) {
            Ok(None) => true,
            Ok(Some(status)) => {
                // SIGTERM kills an agent that does not handle it yet because it was just starting.
                let obeyed = self.ending && status.signal() == Some(Signal::TERM.as_raw());
                has_crashed = status
                    .signal()
                    .is_some_and(|signal| CRASHES.iter().any(|one| one.as_raw() == signal));
                let exit = status.code().and_then(|code| u8::try_from(code).ok());
                code = match exit {
                    Some(exit) => exit,
                    None if obeyed => EXIT_OK,
                    None => {
                        if self.reports_killed {
                            report_killed(*pid, status.signal());
                        }
                        EXIT_FAILURE
                    }
                };
                if self.serving == Some(*pid) && code != EXIT_OK {
                    serving_failed = Some(code);
                }
                ended.push(*pid);
                false
            }
            Err(error) => {
                failed = Some(error);
                true
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        ended.into_iter().for_each(|pid| self.forget(pid));
        if serving_failed.is_some() {
            self.failure = serving_failed;
        }
        // An agent that was starting may have ended.
        self.reload_if_due();
        Ok(match (self.running.is_empty(), has_crashed) {
            (false, _) if serving_failed.is_some() => Outcome::OnlyDraining,
            (false, _) => Outcome::Run,
            (true, true) => Outcome::Crashed(code),
            (true, false) => Outcome::Ended(code),
        })
    }

    /// Forgets an agent that has ended. If it was a successor that was starting, its last messages
    /// may still be in the channel, so its failure is reported a moment later.
    fn forget(&mut self, pid: u32) {
        self.channels.remove(&pid);
        if self.starting.contains_key(&pid) {
            let messages = self.messages.clone();
            tokio::task::spawn_local(async move {
                tokio::time::sleep(LAST_MESSAGES_WAIT).await;
                let _ = messages.send((pid, Message::Ended)).await;
            });
        }
    }

    /// Lets the serving agent reload its policy. SIGHUP would kill an agent that is starting, so
    /// such an agent gets it when it is ready.
    fn reload(&mut self) {
        match self.running.last() {
            Some(newest) if self.ready == Some(*newest) => {
                // The agent may have ended a moment ago.
                let _ = process::signal(*newest, Signal::HUP);
            }
            _ => self.must_reload = true,
        }
    }

    fn note_ready(&mut self, pid: u32) {
        self.ready = Some(pid);
        self.serving = Some(pid);
        self.failure = None;
        self.reload_if_due();
    }

    /// Repeats a request to reload that came while an agent was starting.
    fn reload_if_due(&mut self) {
        if std::mem::take(&mut self.must_reload) {
            self.reload();
        }
    }

    fn end(&mut self) {
        self.ending = true;
        for pid in &self.running {
            let _ = process::signal(*pid, Signal::TERM);
        }
    }
}

/// Prints that no agent could be started, and that the running ones continue.
fn report_no_successor(error: &io::Error) {
    let text =
        format_args!("cannot start a new agent: {error}; the current agent continues to serve");
    complain_of(MessageId("no-successor"), text);
}

/// Prints that a signal has killed an agent, which cannot log that itself.
fn report_killed(pid: u32, signal: Option<i32>) {
    let signal = signal.map_or_else(|| "unknown".to_owned(), |signal| signal.to_string());
    complain_of(
        MessageId("agent-killed"),
        format_args!(
            "the agent, process {pid}, was killed by signal {signal}: all its connections \
             were reset"
        ),
    );
}
