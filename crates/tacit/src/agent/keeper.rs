//! The parent process of an agent: it starts agents, and nothing else.
//!
//! It holds no keys, reads no policy and opens no port, so that it can start a successor (of a
//! newer version, if the program was replaced) although the agents it starts have given up the
//! right to. Signals it gets are for the newest agent; its exit status is that agent's.
//!
//! ```text
//!   tacit agent (keeper) ──starts──> tacit agent (serves) ──"ready"/"restart"──> keeper
//! ```

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use tacit_sys::process;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::cli::complain;

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
    let program = std::env::current_exe()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())?;
    runtime.block_on(keep(program, arguments))
}

struct Agents {
    program: PathBuf,
    arguments: Vec<OsString>,
    running: Vec<Child>,
    /// Somebody asked for the end: no successor starts any more.
    ending: bool,
    messages: mpsc::Sender<(u32, Message)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Ready,
    Restart,
}

async fn keep(program: PathBuf, arguments: &[OsString]) -> io::Result<ExitCode> {
    let mut ended = signal(SignalKind::child())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut restart = signal(SignalKind::user_defined2())?;
    let (messages, mut received) = mpsc::channel(MESSAGES_MAX);
    let arguments = arguments.to_vec();
    let mut agents = Agents { program, arguments, running: Vec::new(), ending: false, messages };
    agents.start(false)?;
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
            _ = hangup.recv() => agents.signal_newest(process::Signal::HUP),
            _ = terminate.recv() => agents.end(),
            _ = interrupt.recv() => agents.end(),
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
        let child = process::own_process_group(&mut command).spawn()?;
        let pid = child.id();
        self.running.push(child);
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
    fn reap(&mut self) -> io::Result<Option<ExitCode>> {
        let mut code = ExitCode::SUCCESS;
        let mut failed = None;
        self.running.retain_mut(|child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                // One that was just starting knows no better than to die of the signal.
                let obeyed = self.ending && status.signal() == Some(process::Signal::TERM.as_raw());
                let status = status.code().and_then(|code| u8::try_from(code).ok());
                code = match status {
                    Some(status) => status.into(),
                    None if obeyed => ExitCode::SUCCESS,
                    None => ExitCode::FAILURE,
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
        if let Some(child) = self.running.last() {
            // It may have ended a moment ago.
            let _ = process::signal(child.id(), what);
        }
    }

    fn end(&mut self) {
        self.ending = true;
        for child in &self.running {
            let _ = process::signal(child.id(), process::Signal::TERM);
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
