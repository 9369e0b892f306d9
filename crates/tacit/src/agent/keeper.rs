//! The parent process of an agent: it starts agents, and nothing else.
//!
//! It holds no keys, reads no policy and opens no port, so that it can start a successor (of a
//! newer version, if the program was replaced) although the agents it starts have given up the
//! right to. Signals it gets are for the newest agent; its exit status is that agent's.
//!
//! ```text
//!   tacit agent (keeper) ──starts──> tacit agent (serves) ──"ready"/"restart"──> keeper
//! ```
//!
//! The keeper of a run's private agent is a copy of the launcher, and the first agent a copy of
//! the keeper: starting programs would cost more than all the rest. It takes no signals: it ends
//! with its agents, and they with the run.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use tacit_sys::process;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::{Given, Options};
use crate::exit::{EXIT_FAILURE, EXIT_OK, complain};
use crate::log::Format;
use crate::run::protocol::{self, ToLauncher};

/// Messages from agents that wait.
const MESSAGES_MAX: usize = 16;

/// The agent's end of the line to its keeper.
#[derive(Debug)]
pub struct Keeper {
    line: UnixStream,
}

impl Keeper {
    /// Takes the line, which the keeper left at standard input.
    ///
    /// # Errors
    /// There is none.
    pub fn inherit() -> io::Result<Self> {
        let line = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
        Ok(Self { line: line.into() })
    }

    pub(super) fn ready(&mut self) -> io::Result<()> {
        self.line.write_all(b"ready\n")
    }

    pub(super) fn restart(&mut self) -> io::Result<()> {
        self.line.write_all(b"restart\n")
    }
}

/// Starts agents until the last one ends; the arguments are the agent's own.
///
/// # Errors
/// An agent cannot be started, or signals cannot be watched.
pub fn run(arguments: &[OsString]) -> io::Result<ExitCode> {
    on_runtime(keep(arguments.to_vec(), None)).map(ExitCode::from)
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
}

impl Private {
    /// As the command line of an agent, for successors.
    fn arguments(&self) -> Vec<OsString> {
        let mut all: Vec<OsString> =
            ["agent", "--quiet", "--private", "--policy"].map(Into::into).into();
        all.extend([self.policy.clone().into(), "--control".into(), self.control.clone().into()]);
        for resolver in &self.resolvers {
            all.extend(["--resolver".into(), resolver.to_string().into()]);
        }
        all
    }

    fn options(self) -> Options {
        Options {
            policy: self.policy,
            control: self.control,
            log_format: Format::default(),
            audit: None,
            quiet: true,
            enrol: None,
            private: true,
            resolvers: self.resolvers,
            take_over: false,
        }
    }
}

/// Starts the private agent of the run that comes over `launcher`, and keeps it. The process must
/// have one thread.
///
/// # Errors
/// It cannot be started.
pub fn run_private(private: Private, launcher: UnixStream) -> io::Result<u8> {
    process::name_thread("tacit-keeper");
    let (ours, theirs) = UnixStream::pair()?;
    let arguments = private.arguments();
    let told = launcher.try_clone()?;
    let work = || {
        process::name_thread("tacit-agent");
        let (given, keeper) = (Given::Launcher(launcher), Keeper { line: theirs });
        match super::run(private.options(), given, Some(keeper)) {
            Ok(()) => EXIT_OK,
            Err(error) => {
                let refused = ToLauncher::Refused(error.to_string());
                // A launcher that is gone need not know.
                let _ = protocol::write(&told, &refused, &[]);
                EXIT_FAILURE
            }
        }
    };
    let pid = process::fork(work)?;
    drop(told);
    on_runtime(keep(arguments, Some((pid, ours))))
}

fn on_runtime<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())?
        .block_on(work)
}

struct Agents {
    program: PathBuf,
    arguments: Vec<OsString>,
    running: Vec<u32>,
    /// Somebody asked for the end: no successor starts any more.
    ending: bool,
    messages: mpsc::Sender<(u32, Message)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Ready,
    Restart,
}

/// Keeps the agent that runs already, or starts the first one.
async fn keep(arguments: Vec<OsString>, first: Option<(u32, UnixStream)>) -> io::Result<u8> {
    let program = std::env::current_exe()?;
    let private = first.is_some();
    let mut ended = signal(SignalKind::child())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut restart = signal(SignalKind::user_defined2())?;
    let (messages, mut received) = mpsc::channel(MESSAGES_MAX);
    let mut agents = Agents { program, arguments, running: Vec::new(), ending: false, messages };
    match first {
        Some((pid, line)) => agents.keep(pid, line)?,
        None => agents.start(false)?,
    }
    // One that ended before its end was watched for is not told of.
    if let Some(code) = agents.reap()? {
        return Ok(code);
    }
    loop {
        tokio::select! {
            _ = ended.recv() => {
                if let Some(code) = agents.reap()? {
                    return Ok(code);
                }
            }
            Some((pid, message)) = received.recv() => match message {
                Message::Ready => notify_ready(pid),
                Message::Restart => agents.replace(),
            },
            _ = restart.recv() => agents.replace(),
            _ = hangup.recv(), if !private => agents.signal_newest(process::Signal::HUP),
            _ = terminate.recv(), if !private => agents.end(),
            _ = interrupt.recv(), if !private => agents.end(),
        }
    }
}

impl Agents {
    fn start(&mut self, take_over: bool) -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg("--kept").stdin(Stdio::from(OwnedFd::from(theirs)));
        if take_over {
            command.arg("--take-over");
        }
        let pid = process::own_process_group(&mut command).spawn()?.id();
        self.keep(pid, ours)
    }

    fn keep(&mut self, pid: u32, ours: UnixStream) -> io::Result<()> {
        self.running.push(pid);
        ours.set_nonblocking(true)?;
        let mut lines = BufReader::new(tokio::net::UnixStream::from_std(ours)?).lines();
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
        if let Err(error) = self.start(true) {
            complain(format_args!("tacit: no successor: {error}"));
        }
    }

    /// Removes agents that ended; the code of the last one.
    fn reap(&mut self) -> io::Result<Option<u8>> {
        let mut code = EXIT_OK;
        let mut failed = None;
        self.running.retain(|pid| match process::try_wait(*pid) {
            Ok(None) => true,
            Ok(Some(status)) => {
                // One that was just starting knows no better than to die of the signal.
                let obeyed = self.ending && status.signal() == Some(process::Signal::TERM.as_raw());
                let status = status.code().and_then(|code| u8::try_from(code).ok());
                code = match status {
                    Some(status) => status,
                    None if obeyed => EXIT_OK,
                    None => EXIT_FAILURE,
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
        Ok(self.running.is_empty().then_some(code))
    }

    fn signal_newest(&self, what: process::Signal) {
        if let Some(pid) = self.running.last() {
            // It may have ended a moment ago.
            let _ = process::signal(*pid, what);
        }
    }

    fn end(&mut self) {
        self.ending = true;
        for pid in &self.running {
            let _ = process::signal(*pid, process::Signal::TERM);
        }
    }
}

/// Tells systemd that the service is up; this process stays the main one.
fn notify_ready(agent: u32) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let state = format!("READY=1\nSTATUS=agent {agent} serves");
    let sent = UnixDatagram::unbound().and_then(|socket| {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::ffi::OsStrExt;
        match path.as_bytes().strip_prefix(b"@") {
            Some(name) => socket.send_to_addr(
                state.as_bytes(),
                &std::os::unix::net::SocketAddr::from_abstract_name(name)?,
            ),
            None => socket.send_to(state.as_bytes(), &path),
        }
    });
    if let Err(error) = sent {
        complain(format_args!("tacit: the service manager cannot be told: {error}"));
    }
}
