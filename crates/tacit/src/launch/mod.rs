//! `tacit run`: runs a program (CMD) in its own network namespace. From there, the connections of
//! the program pass through an agent.
//!
//! ```text
//!   launcher (this) ──forks──> helper    creates the namespaces, and acts in them for the agent
//!                   ──forks──> agent     (or connects to a running agent) has policy and keys
//!                   ──starts─> CMD       in the namespaces; a child of the launcher
//! ```
//!
//! The launcher is the parent of CMD. The launcher forwards signals to CMD, stops when CMD stops,
//! continues when CMD continues, and exits with CMD's status. The launcher reads no policy and
//! holds no key. The exit status is 125 if tacit itself fails, and 126 or 127 if CMD cannot be
//! started. A shell also exits with 126 or 127 if it cannot start a command.

mod agent;
mod arguments;
mod connects;
mod covers;
mod enter;
mod error;
pub mod helper;
pub mod inherited;
mod join;
mod notices;
pub mod oci;
mod orphans;
mod policy;
mod running;
mod stop;
mod unix_sockets;
pub mod user;
mod wait;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};

use tacit_core::message_id::MessageId;
use tacit_sys::spawn::{self, ConnectCalls, LauncherState, SpawnOptions};
use tacit_sys::{job, query, schedule};

use crate::exit::{EXIT_FAILURE, EXIT_OK, EXIT_USAGE, complain_of, fail, print, warn};
use crate::log::LogDestination;
use crate::run::protocol::{Enrolment, RunTerms, SocketSet};
use agent::Agent;
pub use agent::control_of;
pub use arguments::RunArgs;
use arguments::{Orphans, PathArg};
use enter::{Helper, Prepared};
pub use error::RunError;
use join::JoinedNetwork;
pub use policy::OptionsError;
use policy::{HOW_TO_START, PolicySource};
use running::Running;

/// Runs the command.
#[must_use]
pub fn run(args: &RunArgs) -> ExitCode {
    let Some(source) = args.policy_source() else {
        return fail(MessageId("usage"), HOW_TO_START, EXIT_USAGE);
    };
    if args.tls.print_policy {
        return match args.tls.policy_text() {
            Ok(text) => print(text, EXIT_OK),
            Err(error) => fail(MessageId("tls-options"), error, EXIT_FAILURE),
        };
    }
    if matches!(args.log, LogDestination::Descriptor(_)) {
        let reason = "--log fd:N works only with `tacit agent`\n    fix: use --log ./run.log";
        return fail(MessageId("usage"), reason, EXIT_USAGE);
    }
    let joins = args.netns.is_some() || args.pid.is_some();
    if args.command.is_empty() && !joins {
        return fail(
            MessageId("usage"),
            "the command line has no program to run\n    \
             fix: add the program after `--`: tacit run ... -- CMD",
            EXIT_USAGE,
        );
    }
    let ended = if joins { run_joined(args, &source) } else { run_own(args, &source) };
    match ended {
        Ok(code) => code,
        Err(RunError::Signal(number)) => wait::end_by_signal(number),
        Err(error) => {
            complain_of(error.id(), &error);
            error.exit_code().into()
        }
    }
}

/// Runs the program in a network namespace of its own.
fn run_own(args: &RunArgs, source: &PolicySource) -> Result<ExitCode, RunError> {
    let sudo = if args.as_root { user::UnderSudo::StayRoot } else { user::UnderSudo::BecomeCaller };
    user::become_caller(sudo).map_err(RunError::User)?;
    let origin = Origin::capture(args)?;
    // Helper and agent start in parallel, and before signals are blocked, because child processes
    // inherit the signal mask.
    let starting = Helper::start()?;
    let agent = Agent::start(args, source)?;
    watch_signals()?;
    let Prepared { mut helper, given: sockets, channel } = starting.ready()?;
    let enrolment = Enrolment {
        name: args.run_name(),
        pid: std::process::id(),
        sockets: SocketSet::Held,
        covers_files: true,
        lists_unix_sockets: true,
    };
    let mut terms = agent.enrol(enrolment, sockets)?;
    // A process that stays after the run could continue to use such a socket.
    let stays = args.orphans == Orphans::Leave;
    terms.hands_sockets &= args.path != Some(PathArg::Relay) && !stays;
    for warning in &terms.warnings {
        warn(MessageId("run-policy"), warning);
    }
    let mut command = command(args);
    command.env(query::VARIABLE, query::ADDRESS);
    let needs_helper = terms.hands_sockets;
    let StartedProgram { child, mounts, files } =
        origin.start(command, &helper, terms, Some(channel.as_fd()))?;
    // The helper now has the filter's listener, or sees end of file if there is none.
    drop(channel);
    helper.keep_hidden(mounts, files);
    let running = Running { program: Some(child.id()), agent, helper, needs_helper };
    running.wait(&child, args.orphans)
}

/// Protects a network namespace that exists. Runs the program in it, or waits for its end.
fn run_joined(args: &RunArgs, source: &PolicySource) -> Result<ExitCode, RunError> {
    // The caller of sudo would have no rights over the namespace.
    let Some(network) = args.existing_network()? else { return Ok(EXIT_OK.into()) };
    let origin = if args.command.is_empty() { None } else { Some(Origin::capture(args)?) };
    let joined = JoinedNetwork::new(network)?;
    let agent = Agent::start(args, source)?;
    watch_signals()?;
    let (mut protected, terms) = joined.enrol(agent, args.run_name())?;
    let Some(origin) = origin else {
        // Programs that wait for the protection read this line.
        let _ = print(format!("captured: {}\n", args.run_name()), EXIT_OK);
        return protected.hold();
    };
    let started = origin.start(command(args), &protected.running.helper, terms, None)?;
    protected.running.program = Some(started.child.id());
    protected.running.wait(&started.child, args.orphans)
}

fn watch_signals() -> Result<(), RunError> {
    job::watch_signals().map_err(|error| RunError::SystemCall("watch signals", error))
}

fn command(args: &RunArgs) -> Command {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    command
}

/// The state in which the launcher was started, which CMD gets.
struct Origin {
    state: LauncherState,
    working_directory: PathBuf,
}

/// A program that was started.
struct StartedProgram {
    child: Child,
    /// The program's mount namespace.
    mounts: Option<OwnedFd>,
    /// The files that the agent wants hidden.
    files: Vec<PathBuf>,
}

impl Origin {
    fn capture(args: &RunArgs) -> Result<Self, RunError> {
        inherited::check(&args.inherit).map_err(RunError::Inherit)?;
        let working_directory = inherited::working_directory().map_err(RunError::Inherit)?;
        Ok(Self { state: LauncherState::capture(), working_directory })
    }

    /// Starts the program in the namespaces of the helper.
    fn start(
        &self,
        command: Command,
        helper: &Helper,
        terms: RunTerms,
        listener_to: Option<BorrowedFd<'_>>,
    ) -> Result<StartedProgram, RunError> {
        let cpus = cpus(&terms);
        let connects = match terms.hands_sockets && listener_to.is_some() {
            true => ConnectCalls::Notified,
            false => ConnectCalls::Allowed,
        };
        let (directories, files): (Vec<_>, Vec<_>) =
            terms.hide.into_iter().partition(|path| path.is_dir());
        let mut hidden: Vec<PathBuf> =
            spawn::NAME_SERVICE_SOCKETS.iter().map(PathBuf::from).collect();
        // Files first: the files in a directory cannot be reached after the directory is hidden.
        hidden.extend(real_paths(&files));
        // A directory is not hidden if CMD's working directory is in it, because CMD would still
        // see its content. The files in it are hidden one by one.
        let working = &self.working_directory;
        hidden.extend(real_paths(&directories).into_iter().filter(|at| !working.starts_with(at)));
        let inside = SpawnOptions {
            network: helper.network.as_fd(),
            user: helper.user.as_ref().map(AsFd::as_fd),
            hide: &hidden,
            original: &self.state,
            dies_with_parent: false,
            cpus: &cpus,
            listener_to,
            connects,
        };
        tacit_sys::orphan::collect()
            .map_err(|error| RunError::SystemCall("collect orphans", error))?;
        let program = command.get_program().to_owned();
        let started =
            spawn::spawn(command, &inside).map_err(|error| RunError::Start(program, error))?;
        for path in &started.not_hidden {
            warn(
                MessageId("not-hidden"),
                format_args!("cannot hide files from the program: {path}"),
            );
        }
        Ok(StartedProgram { child: started.child, mounts: started.mounts, files })
    }
}

/// The canonical paths of these files, without duplicates.
fn real_paths(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    paths.iter().filter_map(|path| path.canonicalize().ok()).collect()
}

/// The CPUs for CMD if the policy assigns CPUs, otherwise an empty list. The agent of another user
/// may assign CPUs that this process may not use.
fn cpus(terms: &RunTerms) -> Vec<usize> {
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
        warn(
            MessageId("no-wanted-cpu"),
            "the agent's policy assigns CPUs that the program is not allowed to use, so tacit \
             does not bind the program to CPUs",
        );
    }
    cpus
}
