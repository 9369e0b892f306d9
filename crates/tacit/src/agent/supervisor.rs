//! The supervisor: the parent process of an agent. It starts agents, and nothing else.
//!
//! It holds no keys, reads no policy and opens no port, so that it can start a successor (of a
//! newer version, if the program was replaced) although the agents it starts have given up the
//! right to. It passes the signals that it gets to the newest agent; its exit status is that
//! agent's.
//!
//! ```text
//!   tacit agent (supervisor) ──starts──> tacit agent ──"ready", "restart"──> supervisor
//! ```
//!
//! The supervisor of a run's private agent is a copy of the launcher, and the first agent a copy
//! of the supervisor: starting programs would cost more than all the rest. It takes no signals: it
//! ends with its agents, and they with the run.
//!
//! An agent that crashes has a follower after a second, which opens everything again: connections
//! are lost, and refused meanwhile. One that is killed from outside has none: an operator or the
//! service manager decides. After `CRASHES_MAX` crashes in a minute the supervisor ends.
//!
//! An agent whose supervisor was killed serves and answers its operator as before; only a restart
//! needs the supervisor. `tacit agent --no-supervisor` runs without one.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use tacit_sys::process::{self, Signal};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::supervised::Supervisor;
use super::{AgentOptions, PassedSockets, service_manager};
use crate::control::secret::SuccessorSecret;
use crate::exit::{EXIT_FAILURE, EXIT_OK, complain};
use crate::log::{Format, LogDestination};
use crate::run::protocol::{self, ToLauncher};

/// Messages from agents that wait.
const MESSAGES_MAX: usize = 16;
/// Signals that a program gets for a fault of its own; memory that cannot be had is one.
const CRASHES: [Signal; 6] =
    [Signal::ABORT, Signal::SEGV, Signal::BUS, Signal::ILL, Signal::FPE, Signal::SYS];
/// After a crash another agent starts so much later.
const CRASH_PAUSE: Duration = Duration::from_secs(1);
/// Crashes within this time, after which none starts any more.
const CRASHES_TIME: Duration = Duration::from_secs(60);
/// How many they may be.
const CRASHES_MAX: usize = 5;
/// What the supervisor of a private agent is called in lists of processes: 15 characters at most.
const PRIVATE_NAME: &str = "tacit-supervise";

/// Starts agents until the last one ends; the arguments are the agent's own.
///
/// # Errors
/// An agent cannot be started, or signals cannot be watched.
pub fn run(arguments: &[OsString]) -> io::Result<ExitCode> {
    process::hide_memory()?;
    let secret = SuccessorSecret::new()?;
    on_runtime(supervise(arguments.to_vec(), secret, None)).map(ExitCode::from)
}

/// What the private agent of a run is started with.
#[derive(Clone, Debug)]
pub struct Private {
    /// The policy file.
    pub policy: PathBuf,
    /// Where it answers its operator.
    pub control: PathBuf,
    /// Resolvers to ask; empty: those of the host.
    pub resolvers: Vec<SocketAddr>,
    /// Where its log goes.
    pub log: LogDestination,
    /// The launcher, as lines of the log show it: `NAME[PID]`.
    pub launcher: String,
}

impl Private {
    /// As the command line of an agent, for successors.
    fn arguments(&self) -> Vec<OsString> {
        let mut all: Vec<OsString> =
            ["agent", "--quiet", "--private", "--policy"].map(Into::into).into();
        all.extend([self.policy.clone().into(), "--control".into(), self.control.clone().into()]);
        all.extend(["--log".into(), self.log.to_string().into()]);
        all.extend(["--launcher".into(), self.launcher.clone().into()]);
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
            quiet: true,
            enrol: None,
            private: true,
            resolvers: self.resolvers,
            take_over: false,
        }
    }
}

/// Starts the private agent of the run that comes over `launcher`, and supervises it. The process
/// must have one thread.
///
/// # Errors
/// It cannot be started.
pub fn run_private(private: Private, launcher: UnixStream) -> io::Result<u8> {
    process::name_thread(PRIVATE_NAME);
    process::hide_memory()?;
    let secret = SuccessorSecret::new()?;
    let of_agent = secret.clone();
    let (ours, theirs) = UnixStream::pair()?;
    let arguments = private.arguments();
    let refusals = launcher.try_clone()?;
    let work = || {
        process::name_thread("tacit-agent");
        let supervisor = Supervisor::at(theirs, Some(of_agent));
        match super::run(private.options(), PassedSockets::Launcher(launcher), Some(supervisor)) {
            Ok(()) => EXIT_OK,
            Err(error) => {
                let refused = ToLauncher::Refused(error.to_string());
                // A launcher that is gone need not know.
                let _ = protocol::write(&refusals, &refused, &[]);
                EXIT_FAILURE
            }
        }
    };
    let pid = process::fork(work)?;
    drop(refusals);
    on_runtime(supervise(arguments, secret, Some(Started { pid, channel: ours })))
}

fn on_runtime<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())?
        .block_on(work)
}

/// An agent that runs, and the supervisor's end of the channel to it.
struct Started {
    pid: u32,
    channel: UnixStream,
}

/// How an agent comes to its listening sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// It opens them.
    First,
    /// It takes those of the agent in place.
    Successor,
}

struct Agents {
    program: PathBuf,
    arguments: Vec<OsString>,
    /// What the agents know each other by.
    secret: SuccessorSecret,
    running: Vec<u32>,
    /// Whether it reports agents that a signal killed.
    reports_killed: bool,
    /// The end was requested: no successor starts any more.
    ending: bool,
    /// When agents have crashed lately.
    crashes: Vec<Instant>,
    messages: mpsc::Sender<(u32, Message)>,
}

/// What has become of the agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// One runs at least.
    Run,
    /// The last one has ended, with this status.
    Ended(u8),
    /// The same by a fault of its own.
    Crashed(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Ready,
    Restart,
}

/// Supervises the agent that runs already, or starts the first one.
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
        ending: false,
        crashes: Vec::new(),
        // The launcher of a run reports the end of its agent.
        reports_killed: !private,
        messages,
    };
    match first {
        Some(started) => agents.follow(started)?,
        None => agents.start(Start::First)?,
    }
    // No signal comes for an agent that ended before signals were watched.
    let mut outcome = agents.reap()?;
    loop {
        match outcome {
            Outcome::Run => {}
            Outcome::Crashed(_) if !private && agents.may_start_again() => {
                tokio::time::sleep(CRASH_PAUSE).await;
                agents.start(Start::First)?;
            }
            Outcome::Ended(code) | Outcome::Crashed(code) => return Ok(code),
        }
        outcome = Outcome::Run;
        tokio::select! {
            _ = ended.recv() => outcome = agents.reap()?,
            Some((pid, message)) = received.recv() => match message {
                Message::Ready => service_manager::notify_ready(pid),
                Message::Restart => agents.replace(),
            },
            _ = restart.recv() => agents.replace(),
            _ = hangup.recv(), if !private => agents.signal_newest(Signal::HUP),
            _ = terminate.recv(), if !private => agents.end(),
            _ = interrupt.recv(), if !private => agents.end(),
        }
    }
}

impl Agents {
    fn start(&mut self, start: Start) -> io::Result<()> {
        let (mut ours, theirs) = UnixStream::pair()?;
        // It waits in the channel until the agent reads it.
        ours.write_all(self.secret.to_text().as_bytes())?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).args(["--supervised", "--with-secret"]);
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        if start == Start::Successor {
            command.arg("--take-over");
        }
        let pid = process::own_process_group(&mut command).spawn()?.id();
        self.follow(Started { pid, channel: ours })
    }

    /// Takes the messages of an agent that runs.
    fn follow(&mut self, started: Started) -> io::Result<()> {
        let Started { pid, channel } = started;
        self.running.push(pid);
        channel.set_nonblocking(true)?;
        let mut lines = BufReader::new(tokio::net::UnixStream::from_std(channel)?).lines();
        let messages = self.messages.clone();
        tokio::task::spawn_local(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let message = match line.as_str() {
                    "ready" => Message::Ready,
                    "restart" => Message::Restart,
                    _ => continue,
                };
                if messages.send((pid, message)).await.is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    /// A successor that cannot start leaves the agent in place as it is.
    fn replace(&mut self) {
        if self.ending {
            return;
        }
        if let Err(error) = self.start(Start::Successor) {
            complain(format_args!("tacit: cannot start a successor: {error}"));
        }
    }

    /// Whether another agent may follow one that has crashed; it counts as one.
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
        self.running.retain(|pid| match process::try_wait(*pid) {
            Ok(None) => true,
            Ok(Some(status)) => {
                // An agent that was just starting does not handle the signal yet.
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
        Ok(match (self.running.is_empty(), has_crashed) {
            (false, _) => Outcome::Run,
            (true, true) => Outcome::Crashed(code),
            (true, false) => Outcome::Ended(code),
        })
    }

    fn signal_newest(&self, what: Signal) {
        if let Some(pid) = self.running.last() {
            // It may have ended a moment ago.
            let _ = process::signal(*pid, what);
        }
    }

    fn end(&mut self) {
        self.ending = true;
        for pid in &self.running {
            let _ = process::signal(*pid, Signal::TERM);
        }
    }
}

/// An agent that a signal kills cannot log that itself.
fn report_killed(pid: u32, signal: Option<i32>) {
    let signal = signal.map_or_else(|| "unknown".to_owned(), |signal| signal.to_string());
    complain(format_args!(
        "tacit: the agent, process {pid}, was killed by signal {signal}: its connections are reset"
    ));
}
