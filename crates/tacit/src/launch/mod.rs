//! `tacit run`: a program with its children in a network namespace of their own, whose connections
//! an agent carries.
//!
//! ```text
//!   launcher (this) ──forks──> helper    makes the namespace, then serves the agent inside
//!                   ──forks──> agent     policy, keys, bytes; or one that runs already
//!                   ──starts─> CMD       inside; the launcher's own child
//! ```
//!
//! The launcher stays the parent of CMD and stands in for it: signals, stops and the exit status.
//! It has one thread, reads no policy and holds no key. A helper that dies is started anew. Its
//! own failures exit with 125; 126 and 127 are a shell's.

mod agent;
mod enter;
pub mod helper;
pub mod inherited;
mod orphans;
pub mod user;
mod wait;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

use clap::Args;
use tacit_sys::inside::{self, Inside, Original, StartError};
use tacit_sys::schedule;

use crate::exit::complain;
use crate::run::protocol::{Enrolment, Terms};
use agent::Agent;
pub use agent::control_of;
use enter::Helper;
use orphans::Orphans;

/// The launcher's own failure.
const EXIT_OWN: u8 = 125;
/// CMD cannot be run.
const EXIT_NOT_RUN: u8 = 126;
/// CMD is not there.
const EXIT_NOT_FOUND: u8 = 127;

/// Where CMD finds the address at which it may ask about its connections.
const QUERY_VARIABLE: &str = "TACIT_QUERY";

/// How much of a program's name a run takes on; four bytes each are within what an agent takes.
const NAME_CHARACTERS: usize = 16;

/// Run a program whose connections the policy decides
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit run --policy policy.toml -- curl http://orders.corp.example:8080/
  tacit run --policy policy.toml -- sh -c 'psql -h db.corp.example'
  tacit run --agent /run/tacit/enrol.sock --name orders -- ./orders-server

Exit status: CMD's; 125 if tacit itself fails, 126 if CMD cannot be run, 127 if it is not there.")]
pub struct RunArgs {
    /// The policy file, for an agent of this run's own
    #[arg(long, value_name = "FILE", required_unless_present = "agent")]
    policy: Option<PathBuf>,
    /// Enrol with the agent that serves this socket, and its policy, instead
    #[arg(long, value_name = "PATH", conflicts_with_all = ["policy", "resolvers"])]
    agent: Option<PathBuf>,
    /// What displays call the run [default: the program's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Ask this resolver instead of those in /etc/resolv.conf; may be repeated
    #[arg(long = "resolver", value_name = "ADDRESS")]
    resolvers: Vec<SocketAddr>,
    /// What becomes of processes that the program leaves behind when it ends
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    orphans: Orphans,
    /// Let the program have this open network socket, which goes past the policy; may be repeated
    #[arg(long = "inherit-fd", value_name = "NUMBER")]
    inherit: Vec<i32>,
    /// Under sudo, stay root instead of becoming the user who called it
    #[arg(long)]
    as_root: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Why a run could not start.
#[derive(Debug)]
pub enum RunError {
    /// The user who called sudo.
    User(user::UserError),
    /// The program would have a way past the policy.
    Inherit(inherited::InheritError),
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
            Self::Own(what, error) => write!(f, "cannot {what}: {error}"),
            Self::User(error) => write!(f, "{error}"),
            Self::Inherit(error) => write!(f, "{error}"),
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
    match start(args).and_then(|running| running.wait(args.orphans)) {
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
    agent: Agent,
    helper: Helper,
}

fn start(args: &RunArgs) -> Result<Running, RunError> {
    let sudo = if args.as_root { user::UnderSudo::StayRoot } else { user::UnderSudo::BecomeCaller };
    user::settle(sudo).map_err(RunError::User)?;
    inherited::check(&args.inherit).map_err(RunError::Inherit)?;
    let original = Original::capture();
    // Both set up at the same time. They are started before signals are blocked: they would
    // inherit that.
    let starting = Helper::start()?;
    let agent = Agent::start(args)?;
    tacit_sys::job::watch_signals().map_err(|error| RunError::Own("watch signals", error))?;
    let (helper, sockets) = starting.ready()?;
    let name = args.name.clone().unwrap_or_else(|| name_of(Path::new(&args.command[0])));
    let terms = agent.enrol(Enrolment { name, pid: std::process::id() }, sockets)?;
    let mut hidden: Vec<PathBuf> = inside::NAME_SERVICE_SOCKETS.iter().map(PathBuf::from).collect();
    let cpus = cpus(&terms);
    hidden.extend(terms.hide);
    let inside = Inside {
        network: helper.network.as_fd(),
        user: helper.user.as_ref().map(AsFd::as_fd),
        hide: &hidden,
        original: &original,
        dies_with_parent: false,
        cpus: &cpus,
    };
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).env(QUERY_VARIABLE, tacit_sys::query::ADDRESS);
    tacit_sys::orphan::collect().map_err(|error| RunError::Own("collect orphans", error))?;
    let started = inside::spawn(command, &inside).map_err(RunError::Start)?;
    for path in &started.not_hidden {
        complain(format_args!("tacit: cannot be hidden from the program: {path}"));
    }
    Ok(Running { child: started.child, agent, helper })
}

/// The CPUs that CMD is to be on, where the policy says anything of them; else none. An agent of
/// others may name CPUs that this process may not use.
fn cpus(terms: &Terms) -> Vec<usize> {
    if terms.keep_off.is_empty() && terms.cpu.is_none() {
        return Vec::new();
    }
    let allowed = schedule::allowed_cpus().unwrap_or_default();
    let left = |cpu: &usize| match terms.cpu {
        Some(only) => *cpu == only,
        None => !terms.keep_off.contains(cpu),
    };
    let cpus: Vec<_> = allowed.into_iter().filter(left).collect();
    if cpus.is_empty() {
        complain(
            "tacit: the program runs on whatever CPU it may: none is left of those that the \
             agent's policy wants",
        );
    }
    cpus
}

/// What a run is called that nobody named: the program's file name, as far as names may be that.
fn name_of(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let name: String = name.chars().filter(|c| !c.is_control()).take(NAME_CHARACTERS).collect();
    if name.is_empty() { "run".into() } else { name }
}
