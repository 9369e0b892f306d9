//! `tacit link`: serves links, and shows their state.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tacit_core::message_id::MessageId;

use super::server::{self, ServeOptions};
use super::{SOCKET_SUFFIX, directory, path_of};
use crate::control::render::table::{Column, table};
use crate::exit::{
    EXIT_FAILURE, EXIT_OK, EXIT_POLICY, EXIT_USAGE, fail, fail_policy, print, versioned,
};
use crate::log::{Format, LogDestination};
use crate::policy_file::{self, NO_POLICY};
use crate::run::link::client::ask;
use crate::run::link::protocol::{LinkAnswer, LinkRequest, LinkStatus, LinkedRun};

/// How long a server may take for its status.
const STATUS_WAIT_MAX: Duration = Duration::from_secs(5);
/// The maximum number of links that `tacit link list` tries.
const LISTED_MAX: usize = 256;

/// Let runs without a network use the sockets of this side
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  On the side with a network:
    tacit link serve --policy link.toml
  On the side without a network:
    tacit run --link guest --policy policy.toml -- curl https://www.example.com")]
pub struct LinkArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Open sockets for the runs of `tacit run --link`, as the rules with `link` allow
    Serve(ServeArgs),
    /// List the links that are served on this host
    List(ListArgs),
    /// Show the state of a link, and the runs that use it
    Info(InfoArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit link serve --policy link.toml
  tacit link serve --policy link.toml guest

Signals: HUP reads the policy again, TERM and INT end the server.")]
struct ServeArgs {
    /// The policy file, with a table [link.NAME] for each link [default: $TACIT_POLICY]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Destination of the log: stderr, journal, syslog, state, none or a path with a `/`
    #[arg(long, value_name = "DEST", default_value = "stderr")]
    log: LogDestination,
    /// Format of log lines
    #[arg(long, value_enum, default_value_t)]
    log_format: Format,
    /// The links to serve [default: all links of the policy]
    #[arg(value_name = "NAME")]
    links: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit link list
  tacit link list --json")]
struct ListArgs {
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit link info guest
  tacit link info /run/guest.sock --json")]
struct InfoArgs {
    /// The name of the link, or the path of its socket
    #[arg(value_name = "LINK")]
    link: PathBuf,
    /// Print the state as JSON
    #[arg(long)]
    json: bool,
}

/// The links of this host.
#[derive(Debug, Serialize)]
struct LinkList {
    links: Vec<LinkStatus>,
}

/// Runs the command.
#[must_use]
pub fn run(args: LinkArgs) -> ExitCode {
    match args.verb {
        Verb::Serve(args) => serve(args),
        Verb::List(args) => show_list(&args),
        Verb::Info(args) => info(&args),
    }
}

fn serve(args: ServeArgs) -> ExitCode {
    let ServeArgs { policy, log, log_format, links } = args;
    let Some(policy) = policy_file::named(policy.as_deref()) else {
        return fail(MessageId("no-policy"), NO_POLICY, EXIT_USAGE);
    };
    match server::serve(ServeOptions { policy, links, log, log_format }) {
        Ok(()) => EXIT_OK.into(),
        Err(error @ server::ServeError::Policy(..)) => fail_policy(error),
        Err(error @ server::ServeError::NoLink(_)) => fail(error.id(), error, EXIT_POLICY),
        Err(error) => fail(error.id(), error, EXIT_FAILURE),
    }
}

fn show_list(args: &ListArgs) -> ExitCode {
    const COLUMNS: [Column<LinkStatus>; 6] = [
        ("LINK", |link| link.name.clone()),
        ("PID", |link| link.pid.to_string()),
        ("RUNS", |link| link.runs.len().to_string()),
        ("SOCKETS", |link| link.sockets.to_string()),
        ("MAX", |link| link.sockets_max.to_string()),
        ("PATH", |link| link.path.display().to_string()),
    ];
    let links: Vec<_> = paths().iter().filter_map(|path| status(path).ok()).collect();
    if args.json {
        return print(versioned(&LinkList { links }), EXIT_OK);
    }
    print(table(&links, &COLUMNS), EXIT_OK)
}

/// The sockets in the directory of links, in the order of their names.
fn paths() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory()) else { return Vec::new() };
    let is_socket = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.ends_with(SOCKET_SUFFIX))
    };
    let mut all: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(is_socket).take(LISTED_MAX).collect();
    all.sort();
    all
}

fn info(args: &InfoArgs) -> ExitCode {
    let path = path_of(&args.link);
    match status(&path) {
        Ok(status) if args.json => print(versioned(&status), EXIT_OK),
        Ok(status) => print(text(&status), EXIT_OK),
        Err(error) => {
            let reason = format!(
                "no link server answers at {}: {error}\n    fix: start a server with `tacit link \
                 serve`; `tacit link list` shows the links of this user",
                path.display()
            );
            fail(MessageId("no-link"), reason, EXIT_FAILURE)
        }
    }
}

fn text(link: &LinkStatus) -> String {
    const COLUMNS: [Column<LinkedRun>; 9] = [
        ("SESSION", |run| run.session.to_string()),
        ("RUN", |run| run.run.clone()),
        ("PID", |run| run.pid.to_string()),
        ("USER", |run| run.user.clone()),
        ("SOCKETS", |run| run.sockets.to_string()),
        ("OPENED", |run| run.opened.to_string()),
        ("FAILED", |run| run.failed.to_string()),
        ("REFUSED", |run| run.refused.to_string()),
        ("SINCE", |run| run.since.to_string()),
    ];
    let resolvers: Vec<_> = link.resolvers.iter().map(ToString::to_string).collect();
    let resolvers = if resolvers.is_empty() { "-".to_owned() } else { resolvers.join(" ") };
    let families: Vec<_> = [(link.ipv4, "ipv4"), (link.ipv6, "ipv6")]
        .iter()
        .filter(|one| one.0)
        .map(|one| one.1)
        .collect();
    let families = if families.is_empty() { "-".to_owned() } else { families.join(" ") };
    let runs = table(&link.runs, &COLUMNS);
    let tcp = link.tcp.map_or_else(String::new, |tcp| format!("listen    {tcp}\n"));
    let connect = link.connect.iter().map(|to| format!("connect   {to}\n")).collect::<String>();
    format!(
        "link      {}\npath      {}\n{tcp}{connect}pid       {}\nsince     {}\npolicy    {}\n\
         sockets   {} of {}\nfamilies  {families}\nresolvers {resolvers}\n\n{runs}",
        link.name,
        link.path.display(),
        link.pid,
        link.since,
        link.policy.display(),
        link.sockets,
        link.sockets_max,
    )
}

/// Asks the server of a link for its state.
fn status(path: &Path) -> std::io::Result<LinkStatus> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asked = runtime.block_on(async {
        tokio::time::timeout(STATUS_WAIT_MAX, ask(path, &LinkRequest::Status)).await
    });
    match asked.map_err(|_| std::io::ErrorKind::TimedOut)??.1.message {
        LinkAnswer::Status(status) => Ok(status),
        LinkAnswer::Refused(reason) => Err(std::io::Error::other(reason)),
        _ => Err(std::io::ErrorKind::InvalidData.into()),
    }
}
