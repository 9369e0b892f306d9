//! The command line of `tacit run`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::policy::{PolicySource, TlsArgs};
use crate::log::LogDestination;
use crate::policy_file;

/// How much of a program's name a run takes on; four bytes each are within what an agent takes.
const NAME_CHARACTERS: usize = 16;

/// Run a program whose connections the policy decides
#[derive(Debug, Args)]
#[command(override_usage = "\
tacit run --tls --ca FILE [OPTIONS] -- CMD...
       tacit run --policy FILE [OPTIONS] -- CMD...
       tacit run --agent PATH [OPTIONS] -- CMD...")]
#[command(after_help = "\
Examples:
  tacit run --tls --ca ca.pem -- curl http://orders.corp.example:8443/
  tacit run --policy policy.toml -- curl http://orders.corp.example:8080/
  tacit run --policy policy.toml -- sh -c 'psql -h db.corp.example'
  tacit run --policy policy.toml --log stderr -- ./batch-job
  tacit run --agent /run/tacit/enrol.sock --name orders -- ./orders-server

Exit status: CMD's; 125 if tacit itself fails, 126 if CMD cannot be run, 127 if it is not there.")]
pub struct RunArgs {
    /// The policy file, for an agent of this run's own [default: $TACIT_POLICY]
    #[arg(long, value_name = "FILE")]
    pub(super) policy: Option<PathBuf>,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
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
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

impl RunArgs {
    /// Where the policy comes from; `None` if the command line and the environment name none.
    pub(super) fn policy_source(&self) -> Option<PolicySource> {
        if self.tls.tls {
            return Some(PolicySource::Options);
        }
        if let Some(agent) = &self.agent {
            return Some(PolicySource::Agent(agent.clone()));
        }
        policy_file::named(self.policy.as_deref()).map(PolicySource::File)
    }

    /// What displays call the run.
    pub(super) fn run_name(&self) -> String {
        let program = self.command.first().map(Path::new);
        self.name.clone().or_else(|| program.map(name_of)).unwrap_or_default()
    }
}

/// The name of a run without `--name`: the first characters of its program's file name.
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
    fn options_that_contradict_each_other_are_refused() {
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
