//! Runs the starter process. At the request of the agent, this process starts a program that the
//! policy defines.
//!
//! Some programs serve one connection each. Such a program gets one end of a pair of UNIX sockets,
//! and the agent gets the other end. Other programs serve all connections. Such a program gets a
//! listening UNIX socket, and the starter connects to this socket for the agent.
//!
//! No other process can connect to the listening socket, because the starter removes the file of
//! this socket before the program starts. The starter keeps a descriptor of the file (`O_PATH`),
//! and connects through this descriptor.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream as StdStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, open};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tacit_core::message_id::MessageId;
use tacit_core::policy::Activation;
use tacit_sys::descriptor;
use tacit_sys::process::{self, Signal};
use tacit_sys::sandbox::{self, CapabilitySet};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

use super::EXEC_VERB;
use super::passwd::{self, UserEntry};
use super::protocol::{FromStarter, MESSAGE_BYTES_MAX, Program, StartRequest, ToStarter};
use crate::exit::{EXIT_FAILURE, EXIT_OK, complain_of};
use crate::random;
use crate::run::channel::{adopt, read_frame, write_frame};
use crate::run::protocol::{Frame, encode};

/// The limit of open files of programs, unless they raise it: programs that use select(2) fail with
/// more.
const PROGRAM_DESCRIPTORS: u64 = 1024;
/// The limit of locked memory of programs, which is that of other processes: the agent has none,
/// for its signer.
const PROGRAM_LOCKED_BYTES: u64 = 8 << 20;
/// Where programs find other programs, as under systemd.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The number of the descriptor that a program gets with `LISTEN_FDS`.
const LISTEN_FD: i32 = 3;
/// The exit status of a program that could not be executed, as in a shell.
const EXIT_NOT_EXECUTED: u8 = 127;

/// Serves the agent whose channel is standard input, until that closes.
#[must_use]
pub fn run() -> ExitCode {
    process::name_thread("starter");
    match serve_agent() {
        Ok(()) => EXIT_OK.into(),
        Err(error) => {
            complain_of(
                MessageId("starter-not-served"),
                format_args!(
                    "the process that starts programs of [activate] tables cannot continue: {error}"
                ),
            );
            EXIT_FAILURE.into()
        }
    }
}

fn serve_agent() -> io::Result<()> {
    // It has all requests of the agent, and the sockets of programs for all connections.
    process::hide_memory()?;
    process::close_inherited()?;
    sandbox::keep_uninherited_capabilities(rights())?;
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.map(|limit| limit.min(PROGRAM_DESCRIPTORS));
    setrlimit(Resource::Nofile, Rlimit { current, ..limit })?;
    let limit = getrlimit(Resource::Memlock);
    let [current, maximum] = [limit.current, limit.maximum]
        .map(|limit| Some(limit.unwrap_or(PROGRAM_LOCKED_BYTES).min(PROGRAM_LOCKED_BYTES)));
    setrlimit(Resource::Memlock, Rlimit { current, maximum })?;
    let channel = rustix::io::fcntl_dupfd_cloexec(io::stdin(), LISTEN_FD)?;
    // Programs must not inherit the channel.
    rustix::stdio::dup2_stdin(open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)?;
    let runtime = crate::runtime::builder()?
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())?;
    runtime.block_on(serve(channel))
}

/// The capabilities of the starter. None for programs of its own user. An agent of root may start
/// programs as another user, and signals them; a program may be in a directory of that user.
fn rights() -> CapabilitySet {
    match process::effective_user() {
        0 => {
            CapabilitySet::SETUID
                | CapabilitySet::SETGID
                | CapabilitySet::KILL
                | CapabilitySet::DAC_READ_SEARCH
        }
        _ => CapabilitySet::empty(),
    }
}

async fn serve(channel: OwnedFd) -> io::Result<()> {
    // The starter outlives signals for the whole group, because the agent may continue after them.
    // A handler, unlike an ignored signal, is not inherited by programs.
    let _handlers = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
        signal(SignalKind::quit())?,
    ];
    let mut ended = signal(SignalKind::child())?;
    let reader = rustix::io::fcntl_dupfd_cloexec(&channel, LISTEN_FD)?;
    let mut reader = adopt(reader)?;
    let mut writer = adopt(channel)?;
    let first = read_frame(&mut reader, MESSAGE_BYTES_MAX).await?;
    let Some(Frame { message: ToStarter::Programs(programs), .. }) = first else { return Ok(()) };
    let mut programs = match ServedPrograms::new(programs) {
        Ok(programs) => programs,
        Err(reason) => return write_frame(&mut writer, &FromStarter::Unusable(reason)).await,
    };
    write_frame(&mut writer, &FromStarter::Ready).await?;
    // A task of its own, because a frame must not be read in part.
    let (requests, mut received) = tokio::sync::mpsc::channel(1);
    tokio::task::spawn_local(async move {
        while let Ok(Some(Frame { message: ToStarter::Start(request), .. })) =
            read_frame(&mut reader, MESSAGE_BYTES_MAX).await
        {
            if requests.send(request).await.is_err() {
                return;
            }
        }
    });
    let served = loop {
        let step = tokio::select! {
            request = received.recv() => match request {
                Some(request) => programs.answer(&mut writer, &request).await,
                None => break Ok(()),
            },
            _ = ended.recv() => programs.note_ended(&mut writer).await,
        };
        if let Err(error) = step {
            break Err(error);
        }
    };
    programs.end_shared();
    served
}

/// The programs of the policy, and their processes.
struct ServedPrograms {
    programs: HashMap<String, ServedProgram>,
    running: Vec<Running>,
}

/// A program of the policy.
struct ServedProgram {
    program: Program,
    user: Option<UserEntry>,
    /// The socket of a program for all connections.
    listener: Option<SharedListener>,
    /// When it was started, the latest last.
    starts: VecDeque<Instant>,
}

/// A running process.
struct Running {
    program: String,
    child: Child,
}

impl ServedPrograms {
    fn new(programs: Vec<Program>) -> Result<Self, String> {
        let mut served = HashMap::new();
        for program in programs {
            let unusable = |reason: io::Error| {
                format!("cannot start the program of [activate.{}]: {reason}", program.name)
            };
            let user = program.user.as_deref().map(passwd::find).transpose().map_err(unusable)?;
            if user.as_ref().is_some_and(|user| user.uid != process::effective_user())
                && process::effective_user() != 0
            {
                return Err(unusable(io::Error::other(
                    "only an agent that runs as root can start programs as another user",
                )));
            }
            let is_agents = user.as_ref().is_none_or(|user| user.uid == process::effective_user());
            if program.is_of_captured_host && is_agents {
                return Err(unusable(io::Error::other(
                    "programs of the agent's user bypass the nftables rules of the host: set \
                     `user` of the [activate] table to another user",
                )));
            }
            let listener =
                program.is_shared.then(SharedListener::open).transpose().map_err(unusable)?;
            let name = program.name.clone();
            served.insert(name, ServedProgram { program, user, listener, starts: VecDeque::new() });
        }
        Ok(Self { programs: served, running: Vec::new() })
    }

    /// Answers a request, with a socket if there is one.
    async fn answer(&mut self, to: &mut UnixStream, request: &StartRequest) -> io::Result<()> {
        let StartRequest { number, program, remote } = request;
        let remote = *remote;
        let started = match self.programs.get(program).map(|served| served.program.is_shared) {
            None => Err(io::Error::other("the policy has no [activate] table with this name")),
            Some(true) => self.connect(program),
            Some(false) => self.start_for(program, remote),
        };
        match started {
            Ok((socket, pid)) => {
                let bytes = encode(&FromStarter::Started { number: *number, pid })?;
                send(to, &bytes, socket.as_fd()).await
            }
            Err(error) => {
                let reason = format!("cannot start the program of [activate.{program}]: {error}");
                write_frame(to, &FromStarter::Refused { number: *number, reason }).await
            }
        }
    }

    /// Starts a process for one connection. Returns the agent's end of its socket.
    fn start_for(&mut self, name: &str, remote: Option<SocketAddr>) -> io::Result<(OwnedFd, u32)> {
        let (ours, theirs) = StdStream::pair()?;
        let pid = self.spawn(name, theirs.into(), remote)?;
        Ok((ours.into(), pid))
    }

    /// Connects to the process for all connections, and starts it if it does not run.
    fn connect(&mut self, name: &str) -> io::Result<(OwnedFd, u32)> {
        let running = self.running.iter().find(|one| one.program == name);
        let pid = match running.map(|one| one.child.id()) {
            Some(pid) => pid,
            None => self.start_shared(name)?,
        };
        let listener = self.programs.get(name).and_then(|served| served.listener.as_ref());
        let socket = listener.ok_or(io::ErrorKind::NotFound)?.connect()?;
        Ok((socket, pid))
    }

    fn start_shared(&mut self, name: &str) -> io::Result<u32> {
        let listener = self.programs.get(name).and_then(|served| served.listener.as_ref());
        let socket = listener.ok_or(io::ErrorKind::NotFound)?.socket.try_clone()?;
        self.spawn(name, socket.into(), None)
    }

    /// Starts a process with this socket, within the limits of the policy.
    fn spawn(
        &mut self,
        name: &str,
        socket: OwnedFd,
        remote: Option<SocketAddr>,
    ) -> io::Result<u32> {
        let processes = self.running.iter().filter(|one| one.program == name).count();
        let served = self.programs.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        if processes >= served.program.processes_max {
            return Err(io::Error::other(format!(
                "the program already has {processes} processes, and `max` allows no more"
            )));
        }
        served.count_start(Instant::now())?;
        let mut command = served.command(socket)?;
        if let Some(remote) = remote {
            command.env("REMOTE_ADDR", remote.ip().to_string());
            command.env("REMOTE_PORT", remote.port().to_string());
        }
        let child = command.spawn()?;
        let pid = child.id();
        self.running.push(Running { program: name.to_owned(), child });
        Ok(pid)
    }

    /// Reports the processes that have ended. A process for all connections that has left
    /// connections in its queue is started again.
    async fn note_ended(&mut self, to: &mut UnixStream) -> io::Result<()> {
        let mut ended = Vec::new();
        self.running.retain_mut(|one| match one.child.try_wait() {
            Ok(Some(status)) => {
                let failure = (!status.success()).then(|| how(status));
                ended.push((one.program.clone(), one.child.id(), failure));
                false
            }
            _ => true,
        });
        for (program, pid, failure) in ended {
            let message = FromStarter::Ended { program: program.clone(), pid, failure };
            write_frame(to, &message).await?;
            let is_waited_for = |served: &ServedProgram| {
                served.listener.as_ref().is_some_and(SharedListener::has_connections)
            };
            if self.programs.get(&program).is_some_and(is_waited_for)
                && self.start_shared(&program).is_err()
                && let Some(served) = self.programs.get_mut(&program)
            {
                served.end_waiting();
            }
        }
        Ok(())
    }

    /// Ends the processes that serve all connections: no further connection can reach them.
    fn end_shared(&self) {
        let is_shared =
            |name: &str| self.programs.get(name).is_some_and(|served| served.program.is_shared);
        for one in self.running.iter().filter(|one| is_shared(&one.program)) {
            // It may have ended by itself.
            let _ = process::signal(one.child.id(), Signal::TERM);
        }
    }
}

impl ServedProgram {
    /// Ends the connections that wait for the program, because no process will accept them.
    fn end_waiting(&mut self) {
        // Another listener takes the place of theirs. If that fails, because the file system of
        // temporary files is full, they are accepted and closed: other programs must continue.
        match SharedListener::open() {
            Ok(listener) => self.listener = Some(listener),
            Err(_) => {
                if let Some(listener) = &self.listener {
                    listener.end_connections();
                }
            }
        }
    }

    /// Counts a start, if the limit of starts permits it.
    fn count_start(&mut self, now: Instant) -> io::Result<()> {
        let window = Duration::from_secs(Activation::STARTS_WINDOW_S);
        while self.starts.front().is_some_and(|at| now.duration_since(*at) >= window) {
            self.starts.pop_front();
        }
        if self.starts.len() >= self.program.starts_max {
            return Err(io::Error::other(format!(
                "the program was started {} times in {} s, which is the maximum (`starts`)",
                self.starts.len(),
                Activation::STARTS_WINDOW_S
            )));
        }
        self.starts.push_back(now);
        Ok(())
    }

    /// The command that gets this socket.
    fn command(&self, socket: OwnedFd) -> io::Result<Command> {
        let Program { command: words, listen_fds, is_shared, name, .. } = &self.program;
        let (path, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        // Otherwise only the standard error of the process would report it.
        accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)?;
        let mut command = if *listen_fds {
            let mut command = Command::new("/proc/self/exe");
            command.arg0("tacit").arg(EXEC_VERB).args(words);
            command.stdout(Stdio::from(io::stderr()));
            command
        } else {
            let mut command = Command::new(path);
            command.args(arguments).stdout(Stdio::from(socket.try_clone()?));
            command
        };
        command.stdin(Stdio::from(socket)).stderr(Stdio::inherit()).current_dir("/");
        command.env_clear().env("PATH", PATH).env("TACIT_ACTIVATE", name);
        if *listen_fds {
            command.env("LISTEN_FDNAMES", if *is_shared { name.as_str() } else { "connection" });
        }
        if let Some(UserEntry { name, uid, gid, home }) = &self.user {
            command.env("USER", name).env("LOGNAME", name).env("HOME", home);
            if *uid != process::effective_user() {
                // The standard library then also drops the supplementary groups of root.
                command.uid(*uid).gid(*gid);
            }
        }
        process::own_process_group(&mut command);
        Ok(command)
    }
}

/// How a process ended, if it failed.
fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(number)) => format!("signal {number}"),
        (None, None) => status.to_string(),
    }
}

/// The listening socket of a program for all connections. Its file has been removed.
struct SharedListener {
    socket: UnixListener,
    /// The inode of the file, by which the starter connects.
    inode: OwnedFd,
}

impl SharedListener {
    fn open() -> io::Result<Self> {
        let mut name = [0; 16];
        random::fill(&mut name)?;
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let directory = std::env::temp_dir().join(format!("tacit-{name}"));
        std::fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let opened = Self::open_in(&directory);
        let removed = std::fs::remove_dir_all(&directory);
        opened.and_then(|opened| removed.map(|()| opened))
    }

    fn open_in(directory: &Path) -> io::Result<Self> {
        let path = directory.join("socket");
        let socket = UnixListener::bind(&path)?;
        let inode = open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { socket, inode })
    }

    /// Connects to it. Does not wait: the queue of a program that does not accept may be full.
    fn connect(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let path = format!("/proc/self/fd/{}", self.inode.as_raw_fd());
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }

    /// Accepts the connections that wait, and closes them.
    fn end_connections(&self) {
        while self.has_connections() && self.socket.accept().is_ok() {}
    }

    /// Whether connections wait to be accepted.
    fn has_connections(&self) -> bool {
        let mut one = [PollFd::new(&self.socket, PollFlags::IN)];
        poll(&mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }
}

/// Writes a message with a descriptor.
async fn send(to: &mut UnixStream, bytes: &[u8], socket: BorrowedFd<'_>) -> io::Result<()> {
    let send = || descriptor::send(&*to, bytes, &[socket]);
    let sent = to.async_io(Interest::WRITABLE, send).await?;
    to.write_all(bytes.get(sent..).unwrap_or_default()).await
}

/// Executes a program with the socket at standard input as descriptor 3, and `LISTEN_FDS`.
#[must_use]
pub fn exec(command: &[OsString]) -> ExitCode {
    let Err(error) = exec_with_listen_fds(command);
    let program = command.first().cloned().unwrap_or_default();
    let program = program.to_string_lossy();
    complain_of(MessageId("program-not-started"), format_args!("cannot start {program}: {error}"));
    EXIT_NOT_EXECUTED.into()
}

fn exec_with_listen_fds(command: &[OsString]) -> Result<std::convert::Infallible, io::Error> {
    let (path, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    process::close_inherited()?;
    let socket = rustix::io::fcntl_dupfd_cloexec(io::stdin(), LISTEN_FD)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty())?;
    if socket.as_raw_fd() != LISTEN_FD {
        return Err(io::Error::other(
            "cannot pass the socket as descriptor 3, because this descriptor is in use",
        ));
    }
    rustix::stdio::dup2_stdin(open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)?;
    let pid = std::process::id().to_string();
    Err(Command::new(path).args(arguments).env("LISTEN_PID", pid).env("LISTEN_FDS", "1").exec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(starts_max: usize) -> ServedProgram {
        let program = Program {
            name: "cat".into(),
            command: vec!["/bin/cat".into()],
            is_shared: false,
            listen_fds: false,
            processes_max: 1,
            starts_max,
            user: None,
            is_of_captured_host: false,
        };
        ServedProgram { program, user: None, listener: None, starts: VecDeque::new() }
    }

    #[test]
    fn starts_are_limited_within_the_window_only() {
        let mut served = served(2);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(served.count_start(at(0)).is_ok() && served.count_start(at(1)).is_ok());
        let refused = served.count_start(at(9)).unwrap_err().to_string();
        assert!(refused.starts_with("the program was started 2 times in 10 s"), "{refused}");
        assert!(served.count_start(at(10)).is_ok(), "the first start is out of the window");
        assert!(served.count_start(at(10)).is_err());
    }

    #[test]
    fn connections_that_wait_end_and_later_ones_wait() {
        let listener = SharedListener::open().unwrap();
        let ended = StdStream::from(listener.connect().unwrap());
        listener.end_connections();
        ended.set_nonblocking(false).unwrap();
        assert_eq!(io::Read::read(&mut &ended, &mut [0]).unwrap(), 0);
        let _waiting = listener.connect().unwrap();
        assert!(listener.has_connections());
    }

    #[test]
    fn a_shared_listener_has_no_name_and_connections_reach_it() {
        let listener = SharedListener::open().unwrap();
        assert!(!listener.has_connections());
        let _ours = listener.connect().unwrap();
        assert!(listener.has_connections());
        listener.socket.accept().unwrap();
        let path = listener.socket.local_addr().unwrap();
        assert!(!path.as_pathname().unwrap().exists());
    }
}
