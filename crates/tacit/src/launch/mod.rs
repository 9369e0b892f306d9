//! `tacit run`: a program with its children in a network namespace of their own, whose connections
//! an agent carries.
//!
//! ```text
//!   launcher (this) ──starts──> helper   makes the namespace, then sockets on request
//!                   ──starts──> agent    policy, keys, bytes; or one that runs already
//!                   ──starts──> CMD      inside; the launcher's own child
//! ```
//!
//! The launcher stays the parent of CMD and stands in for it: signals, stops and the exit status.
//! It has one thread. Its own failures exit with 125; 126 and 127 are a shell's.

pub mod enrol;
pub mod helper;
mod wait;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;
use tacit_core::policy::{Policy, captured};
use tacit_sys::inside::{self, Inside, Original, StartError};
use tacit_sys::process;

use crate::agent::{AgentError, check_file, directory_of};
use crate::cli::complain;
use crate::control::Answer;
use enrol::{Enrolment, RunSockets};
use helper::Ready;

/// The launcher's own failure.
const EXIT_OWN: u8 = 125;
/// CMD cannot be run.
const EXIT_NOT_RUN: u8 = 126;
/// CMD is not there.
const EXIT_NOT_FOUND: u8 = 127;
/// How long a private agent may take to serve.
const AGENT_WAIT_MAX: Duration = Duration::from_secs(10);

/// Run a program whose connections the policy decides
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit run --policy policy.toml -- curl http://orders.corp.example:8080/
  tacit run --policy policy.toml -- sh -c 'psql -h db.corp.example'

Exit status: CMD's; 125 if tacit itself fails, 126 if CMD cannot be run, 127 if it is not there.")]
pub struct RunArgs {
    /// The policy file
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// What displays call the run [default: the program's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Ask this resolver instead of those in /etc/resolv.conf; may be repeated
    #[arg(long = "resolver", value_name = "ADDRESS")]
    resolvers: Vec<SocketAddr>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Why a run could not start.
#[derive(Debug)]
pub enum RunError {
    /// The policy has errors.
    Policy(AgentError),
    /// A process, socket or file of the launcher's own.
    Own(&'static str, io::Error),
    /// The namespace cannot be made; says which knob.
    Namespace(String),
    /// The agent refuses the run, or ended.
    Agent(String),
    /// The program cannot be started.
    Start(StartError),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(error) => write!(f, "{error}"),
            Self::Own(what, error) => write!(f, "cannot {what}: {error}"),
            Self::Namespace(reason) | Self::Agent(reason) => f.write_str(reason),
            Self::Start(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for RunError {}

impl RunError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Start(StartError::Program(error)) if error.kind() == io::ErrorKind::NotFound => {
                EXIT_NOT_FOUND
            }
            Self::Start(StartError::Program(_)) => EXIT_NOT_RUN,
            _ => EXIT_OWN,
        }
    }
}

/// Runs the verb.
#[must_use]
pub fn run(args: &RunArgs) -> ExitCode {
    match start(args).and_then(Running::wait) {
        Ok(code) => code,
        Err(error) => {
            complain(format_args!("tacit: {error}"));
            error.exit_code().into()
        }
    }
}

/// A program that runs, and what ends with it.
struct Running {
    child: Child,
    _agent: PrivateAgent,
    /// Closing it tells the agent that the run is over.
    _enrolled: UnixStream,
    _helper: Helper,
}

fn start(args: &RunArgs) -> Result<Running, RunError> {
    let original = Original::capture();
    let checked = check_file(&args.policy)
        .map_err(|findings| RunError::Policy(AgentError::Policy(args.policy.clone(), findings)))?;
    let mut helper = Helper::start(&checked.policy)?;
    let agent = PrivateAgent::start(args)?;
    // From here on signals are for CMD. Helper and agent were started before: they inherit masks.
    tacit_sys::job::watch_signals().map_err(|error| RunError::Own("watch signals", error))?;
    let enrolled = agent.enrol(args, &mut helper)?;
    let mut hidden: Vec<PathBuf> = inside::NAME_SERVICE_SOCKETS.iter().map(PathBuf::from).collect();
    hidden.push(agent.directory.clone());
    hidden.extend(secret_files(args, &checked.policy));
    let inside = Inside {
        network: helper.network.as_fd(),
        user: helper.user.as_ref().map(AsFd::as_fd),
        hide: &hidden,
        original: &original,
        dies_with_parent: false,
    };
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    let started = inside::spawn(command, &inside).map_err(RunError::Start)?;
    for path in &started.not_hidden {
        complain(format_args!("tacit: {path}"));
    }
    Ok(Running { child: started.child, _agent: agent, _enrolled: enrolled, _helper: helper })
}

/// The policy file and everything that it names: not the program's business.
fn secret_files(args: &RunArgs, policy: &Policy) -> Vec<PathBuf> {
    let base = directory_of(&args.policy);
    let keys = policy.identities.values().map(|identity| base.join(&identity.key));
    keys.chain([args.policy.clone()]).filter_map(|file| file.canonicalize().ok()).collect()
}

/// The process inside, and what it made.
struct Helper {
    child: Child,
    network: OwnedFd,
    user: Option<OwnedFd>,
    /// Gone once the agent has them.
    sockets: Option<RunSockets>,
    ipv6: bool,
}

impl Helper {
    fn start(policy: &Policy) -> Result<Self, RunError> {
        let own = |error| RunError::Own("start the helper", error);
        let (mut ours, theirs) = UnixStream::pair().map_err(own)?;
        let program = std::env::current_exe().map_err(own)?;
        let (v4, v6) = families(policy);
        let child = Command::new(program)
            .arg("run-helper")
            .args(v4.then_some("--v4"))
            .args(v6.then_some("--v6"))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(own)?;
        let received = enrol::receive::<Ready>(&ours).map_err(own)?;
        let Some((ready, sockets)) = received else {
            return Err(RunError::Namespace("the helper ended without a word".into()));
        };
        if let Some(error) = ready.error {
            return Err(RunError::Namespace(error));
        }
        let mut sockets = sockets.into_iter();
        let (Some(network), Some(user)) = (sockets.next(), sockets.next()) else {
            return Err(RunError::Namespace("the helper sent no namespace".into()));
        };
        let sockets = RunSockets::from_order(sockets.collect(), ready.ipv6).map_err(own)?;
        // The helper says so when it holds none of them any more.
        io::Read::read_exact(&mut ours, &mut [0]).map_err(own)?;
        let user = ready.has_own_user.then_some(user);
        Ok(Self { child, network, user, sockets: Some(sockets), ipv6: ready.ipv6 })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Address families that the host can route to something the policy lets through: others stay
/// absent inside, so that programs do not try them first.
fn families(policy: &Policy) -> (bool, bool) {
    let public = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().ok());
    let boxes = captured(policy, []).into_iter().map(|one| Some(one.first));
    let mut found = (false, false);
    for address in public.into_iter().chain(boxes).flatten() {
        match address {
            IpAddr::V4(_) => found.0 = found.0 || is_routable(address),
            IpAddr::V6(_) => found.1 = found.1 || is_routable(address),
        }
    }
    found
}

/// Connecting a datagram socket sends nothing: the kernel only looks for a route.
fn is_routable(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind((any, 0)).is_ok_and(|socket| socket.connect((address, 9)).is_ok())
}

/// An agent for this run alone.
struct PrivateAgent {
    child: Child,
    directory: PathBuf,
}

impl PrivateAgent {
    fn start(args: &RunArgs) -> Result<Self, RunError> {
        let own = |error| RunError::Own("start the agent", error);
        let directory =
            std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let directory = directory.join(format!("tacit-run-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&directory).map_err(own)?;
        let mut command = Command::new(std::env::current_exe().map_err(own)?);
        command.arg("agent").arg("--quiet").arg("--policy").arg(&args.policy);
        command.arg("--control").arg(directory.join("agent.sock"));
        command.arg("--enrol").arg(directory.join("enrol.sock"));
        for resolver in &args.resolvers {
            command.arg("--resolver").arg(resolver.to_string());
        }
        // Neither the terminal's interrupts nor its end are for the agent: the launcher ends it.
        process::own_process_group(&mut command);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(own)?;
        Ok(Self { child, directory })
    }

    /// Waits until the agent serves, and gives it the run.
    fn enrol(&self, args: &RunArgs, helper: &mut Helper) -> Result<UnixStream, RunError> {
        let own = |error| RunError::Own("enrol with the agent", error);
        let stream = self.connect()?;
        let program = Path::new(&args.command[0]).file_name().unwrap_or_default();
        let name = args.name.clone().unwrap_or_else(|| program.to_string_lossy().into_owned());
        let enrolment = Enrolment { name, pid: std::process::id(), ipv6: helper.ipv6 };
        // Whoever keeps a copy of a listener would go on taking connections after the agent's end.
        let Some(sockets) = helper.sockets.take() else {
            return Err(RunError::Agent("the run is enrolled already".into()));
        };
        enrol::send(&stream, &enrolment, &sockets.in_order()).map_err(own)?;
        drop(sockets);
        match enrol::receive::<Answer>(&stream).map_err(own)? {
            Some((Answer::Ok(Value::Null), _)) => Ok(stream),
            Some((Answer::Error(reason), _)) => Err(RunError::Agent(reason)),
            _ => Err(RunError::Agent("the agent ended without an answer".into())),
        }
    }

    fn connect(&self) -> Result<UnixStream, RunError> {
        let end = Instant::now() + AGENT_WAIT_MAX;
        loop {
            match UnixStream::connect(self.directory.join("enrol.sock")) {
                Ok(stream) => return Ok(stream),
                Err(_) if Instant::now() < end && !self.has_ended() => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => {
                    return Err(RunError::Agent(format!("the agent does not serve: {error}")));
                }
            }
        }
    }

    fn has_ended(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        stat.map_or(true, |stat| stat.contains(") Z "))
    }
}

impl Drop for PrivateAgent {
    fn drop(&mut self) {
        let _ = process::signal(self.child.id(), process::Signal::TERM);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
