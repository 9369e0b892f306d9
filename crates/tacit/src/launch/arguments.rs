//! The command line of `tacit run`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::log::LogDestination;

/// How much of a program's name a run takes on; four bytes each are within what an agent takes.
const NAME_CHARACTERS: usize = 16;

/// Run a program whose connections the policy decides
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit run --policy policy.toml -- curl http://orders.corp.example:8080/
  tacit run --policy policy.toml -- sh -c 'psql -h db.corp.example'
  tacit run --policy policy.toml --log stderr -- ./batch-job
  tacit run --agent /run/tacit/enrol.sock --name orders -- ./orders-server

Exit status: CMD's; 125 if tacit itself fails, 126 if CMD cannot be run, 127 if it is not there.")]
pub struct RunArgs {
    /// The policy file, for an agent of this run's own
    #[arg(long, value_name = "FILE", required_unless_present = "agent")]
    pub(super) policy: Option<PathBuf>,
    /// Enrol with the agent that serves this socket, and its policy, instead
    #[arg(long, value_name = "PATH", conflicts_with_all = ["policy", "resolvers"])]
    pub(super) agent: Option<PathBuf>,
    /// What displays and rules (`run`) call the run [default: the program's name]
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// Ask this resolver instead of those in /etc/resolv.conf; may be repeated
    #[arg(long = "resolver", value_name = "ADDRESS")]
    pub(super) resolvers: Vec<SocketAddr>,
    /// Where the log of this run's agent goes: state (run.log in $XDG_STATE_HOME/tacit or
    /// ~/.local/state/tacit), stderr, journal, syslog, none or a path with a `/`
    #[arg(long, value_name = "DEST", default_value = "state", conflicts_with = "agent")]
    pub(super) log: LogDestination,
    /// What becomes of processes that the program leaves behind when it ends
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub(super) orphans: Orphans,
    /// Let the program have this open network socket or io_uring, which goes past the policy, or
    /// this open directory, in which the policy and its keys are not hidden; may be repeated
    #[arg(long = "inherit-fd", value_name = "NUMBER")]
    pub(super) inherit: Vec<i32>,
    /// Under sudo, stay root instead of becoming the user who called it
    #[arg(long)]
    pub(super) as_root: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

impl RunArgs {
    /// What displays call the run.
    pub(super) fn run_name(&self) -> String {
        // There is a command: the command line is refused without one.
        let program = self.command.first().map(Path::new);
        self.name.clone().or_else(|| program.map(name_of)).unwrap_or_default()
    }
}

/// What a run is called that nobody named: the program's file name, as far as names may be that.
fn name_of(program: &Path) -> String {
    let file_name = program.file_name().unwrap_or_default().to_string_lossy();
    let name: String =
        file_name.chars().filter(|c| !c.is_control()).take(NAME_CHARACTERS).collect();
    if name.is_empty() { "run".into() } else { name }
}

/// What to do with processes that outlive CMD
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Orphans {
    /// Ask them to end, and kill them after 5 seconds
    #[default]
    Terminate,
    /// End when the last of them has
    Wait,
    /// Leave them, without a network
    Leave,
}
