//! Defines the options and arguments of `tacit run`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use tacit_sys::namespace::ExistingNetwork;

use super::error::RunError;
use super::policy::{PolicySource, TlsArgs};
use crate::link::{LINK_VARIABLE, directory, path_of};
use crate::log::{LogDestination, LogLevel};
use crate::policy_file;
use crate::run::link::choice::{ChosenLink, LinkChoice, LinkLevel};

/// The maximum length of a run's default name. A character has at most four bytes, so the name does
/// not exceed the agent's limit of 64 bytes.
const NAME_CHARACTERS: usize = 16;

/// Run a program in a network namespace, and protect its connections by the rules of a policy
#[derive(Debug, Args)]
#[command(override_usage = "\
tacit run --tls --ca FILE [OPTIONS] -- CMD...
       tacit run --policy FILE [OPTIONS] -- CMD...
       tacit run --agent PATH [OPTIONS] -- CMD...
       tacit run --netns PATH [OPTIONS] [-- CMD...]
       tacit run --pid PID [OPTIONS] [-- CMD...]")]
#[command(after_help = "\
Examples:
  tacit run --tls --ca ca.pem -- curl http://orders.corp.example:8443/
  tacit run --policy policy.toml -- curl http://orders.corp.example:8080/
  tacit run --policy policy.toml -- sh -c 'psql -h db.corp.example'
  tacit run --policy policy.toml --log stderr -- ./batch-job
  tacit run --agent /run/tacit/enrol.sock --name orders -- ./orders-server
  tacit run --agent /run/tacit/enrol.sock --netns /run/netns/blue

Exit status: the exit status of CMD; 125 if tacit itself fails; 126 if CMD cannot be executed; 127
if CMD does not exist.")]
pub struct RunArgs {
    /// Start a private agent for this run, with the policy FILE [default: $TACIT_POLICY]
    #[arg(short, long, value_name = "FILE")]
    pub(super) policy: Option<PathBuf>,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
    /// Use a running agent and its policy. PATH is the socket where this agent accepts runs
    #[arg(long, value_name = "PATH", conflicts_with_all = ["policy", "resolvers"])]
    pub(super) agent: Option<PathBuf>,
    /// Use sockets that a link server (`tacit link serve`) opens in its network. LINK is the name
    /// of the link, or the path of its socket [default: $TACIT_LINK, then the link with
    /// `default = true` in the policy]
    #[arg(long, value_name = "LINK", conflicts_with_all = ["agent", "netns", "pid"])]
    pub(super) link: Option<PathBuf>,
    /// Protect the programs of the existing network namespace PATH, and create no namespace.
    /// Without CMD, tacit protects these programs until PATH is removed
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    pub(super) netns: Option<PathBuf>,
    /// Protect the programs in the network namespace of the process PID. Without CMD, tacit
    /// protects these programs until the process has ended
    #[arg(long, value_name = "PID")]
    pub(super) pid: Option<u32>,
    /// The name of the run, for displays and for the key `run` of rules [default: the program's
    /// name]
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// Send DNS queries to this resolver instead of those in /etc/resolv.conf; may be repeated
    #[arg(long = "resolver", value_name = "ADDRESS")]
    pub(super) resolvers: Vec<SocketAddr>,
    /// Where the agent of this run writes its log: `state` (run.log in $XDG_STATE_HOME/tacit or
    /// ~/.local/state/tacit), `stderr`, `journal`, `syslog`, `none` or a path with a `/`
    #[arg(long, value_name = "DEST", default_value = "state", conflicts_with = "agent")]
    pub(super) log: LogDestination,
    /// The lowest level of events that the agent of this run logs
    #[arg(
        long,
        value_enum,
        value_name = "LEVEL",
        default_value_t = LogLevel::Warn,
        conflicts_with = "agent"
    )]
    pub(super) log_level: LogLevel,
    /// How bytes of connections in clear (rules with `permit`) move: as the policy says (`auto`),
    /// or always through the agent (`relay`)
    #[arg(long, value_enum, value_name = "PATH")]
    pub(super) path: Option<PathArg>,
    /// What to do with processes that still run when CMD ends
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub(super) orphans: Orphans,
    /// Let CMD inherit the descriptor NUMBER: a network socket, io_uring or directory; may be
    /// repeated. The policy does not apply to this socket or io_uring. Through this directory, CMD
    /// can read files that tacit hides, such as private keys
    #[arg(long = "inherit-fd", value_name = "NUMBER")]
    pub(super) inherit: Vec<i32>,
    /// With sudo, run CMD as root instead of the user who called sudo
    #[arg(long)]
    pub(super) as_root: bool,
    /// The program to run, and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

impl RunArgs {
    /// The source of the policy; `None` if neither the command line nor the environment has one.
    pub(super) fn policy_source(&self) -> Option<PolicySource> {
        if self.tls.tls {
            return Some(PolicySource::Options);
        }
        if let Some(agent) = &self.agent {
            return Some(PolicySource::Agent(agent.clone()));
        }
        policy_file::named(self.policy.as_deref()).map(PolicySource::File)
    }

    /// Opens the network namespace to protect; `None` if the run gets one of its own.
    pub(super) fn existing_network(&self) -> Result<Option<ExistingNetwork>, RunError> {
        let opened = match (&self.netns, self.pid) {
            (Some(path), _) => ExistingNetwork::open(path),
            (None, Some(pid)) => ExistingNetwork::of_process(pid),
            (None, None) => return Ok(None),
        };
        opened.map(Some).map_err(RunError::Network)
    }

    /// Returns the link of the command line, or else the link of the environment, or else the link
    /// of the policy. A run with `--agent`, `--netns` or `--pid` has no link.
    pub(super) fn link_choice(&self) -> LinkChoice {
        if self.agent.is_some() || self.netns.is_some() || self.pid.is_some() {
            return LinkChoice::None;
        }
        let named =
            |link: &Path, level| LinkChoice::Named(ChosenLink { path: path_of(link), level });
        let variable = std::env::var_os(LINK_VARIABLE).filter(|value| !value.is_empty());
        match (&self.link, variable) {
            (Some(link), _) => named(link, LinkLevel::Option),
            (None, Some(link)) => named(Path::new(&link), LinkLevel::Environment),
            (None, None) => LinkChoice::OfPolicy(directory()),
        }
    }

    /// The name of the run in displays.
    pub(super) fn run_name(&self) -> String {
        let program = self.command.first().map(Path::new).or(self.netns.as_deref());
        let of_process = self.pid.map(|pid| format!("pid-{pid}"));
        self.name.clone().or_else(|| program.map(name_of)).or(of_process).unwrap_or_default()
    }
}

/// The name of a run without `--name`: the first characters of its program's file name.
fn name_of(program: &Path) -> String {
    let file_name = program.file_name().unwrap_or_default().to_string_lossy();
    let name: String =
        file_name.chars().filter(|c| !c.is_control()).take(NAME_CHARACTERS).collect();
    if name.is_empty() { "run".into() } else { name }
}

/// How bytes of connections in clear (rules with `permit`) move
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PathArg {
    /// Relay a connection through the agent only if the policy requires it
    Auto,
    /// Relay all connections through the agent
    Relay,
}

/// What to do with processes that still run when CMD ends
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Orphans {
    /// Send SIGTERM, and SIGKILL after 5 seconds
    #[default]
    Terminate,
    /// Wait until the remaining processes have ended
    Wait,
    /// Let the remaining processes run without a network
    Leave,
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use clap::error::ErrorKind;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        args: RunArgs,
    }

    fn args(words: &str) -> Result<RunArgs, ErrorKind> {
        let words = std::iter::once("run").chain(words.split_whitespace());
        Alone::try_parse_from(words).map(|alone| alone.args).map_err(|error| error.kind())
    }

    #[test]
    fn conflicting_options_are_refused() {
        use ErrorKind::{ArgumentConflict, MissingRequiredArgument};
        for (words, wanted) in [
            ("--tls -- true", MissingRequiredArgument),
            ("--tls --ca PEM --cert PEM -- true", MissingRequiredArgument),
            ("--tls --ca PEM --key PEM -- true", MissingRequiredArgument),
            ("--ca PEM -- true", MissingRequiredArgument),
            ("--print-policy -- true", MissingRequiredArgument),
            ("--tls --ca PEM --policy p.toml -- true", ArgumentConflict),
            ("--tls --ca PEM --agent enrol.sock -- true", ArgumentConflict),
        ] {
            assert_eq!(args(words).unwrap_err(), wanted, "{words}");
        }
    }
}
