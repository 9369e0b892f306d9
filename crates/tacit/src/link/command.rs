//! `tacit link`: starts and stops link servers, shows their state, and passes sockets from one
//! program to another program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use tacit_core::message_id::MessageId;

use super::hand::find::find;
use super::hand::give::Then;
use super::hand::take::TakenAs;
use super::init::{LinkInitArgs, init};
use super::query::{self, paths, status};
use super::server::{self, ServeOptions};
use super::start::start;
use super::status::LinkReports;
use super::{enabled, hand, path_of};
use crate::control::private_agents;
use crate::control::render::table::{Column, table};
use crate::control::render::width::TextWidth;
use crate::exit::{
    EXIT_FAILURE, EXIT_OK, EXIT_POLICY, EXIT_USAGE, fail, fail_policy, print, versioned,
};
use crate::log::{Format, LogDestination};
use crate::policy_file::{self, NO_POLICY};
use crate::run::link::protocol::{
    LinkAnswer, LinkControl, LinkRequest, LinkSocket, LinkStatus, LinkedRun,
};

/// Provide network sockets for programs that have no network
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
    /// Serve links: open the sockets that `tacit run --link` requests and the policy permits
    Serve(ServeArgs),
    /// Run CMD through a link, as the first process of a virtual machine without a network
    Init(LinkInitArgs),
    /// List the links that are served on this host
    List(ListArgs),
    /// Show the state of a link, and the runs that use it
    Info(InfoArgs),
    /// Show state, limits and configuration of links
    Status(StatusArgs),
    /// Start the server of a link in the background
    Start(StartArgs),
    /// Stop serving a link
    Stop(StopArgs),
    /// Log each request of a link, or stop logging
    Trace(TraceArgs),
    /// Pass a connected socket of a running program to a waiting `tacit link take`
    Give(GiveArgs),
    /// Wait for a socket from `tacit link give`, and run a program with it
    Take(TakeArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit link serve --policy link.toml
  tacit link serve --policy link.toml guest

Signals: HUP reads the policy again, TERM and INT end the server.")]
struct ServeArgs {
    /// The policy file, with a table [link.NAME] for each link [default: $TACIT_POLICY]
    #[arg(short, long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Destination of the log: stderr, journal, syslog, state (a file in $XDG_STATE_HOME/tacit),
    /// none, fd:N (an open descriptor) or a path with a `/`
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
  tacit link info guest --tasks
  tacit link info /run/guest.sock --json")]
struct InfoArgs {
    /// The name of the link, or the path of its socket
    #[arg(value_name = "LINK")]
    link: PathBuf,
    /// Also list the open sockets of each run
    #[arg(long)]
    tasks: bool,
    /// Print the state as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit link status
  tacit link status guest --json
  tacit link status --metrics

Exit status: 1 if one of the links is stopped.")]
struct StatusArgs {
    /// The name of a link, or the path of its socket [default: all links]
    #[arg(value_name = "LINK")]
    link: Option<PathBuf>,
    /// Print the state as JSON
    #[arg(long, conflicts_with = "metrics")]
    json: bool,
    /// Print metrics in the text format of Prometheus
    #[arg(long)]
    metrics: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit link start guest
  tacit link start guest --policy link.toml --log journal")]
struct StartArgs {
    /// The name of the link
    #[arg(value_name = "NAME")]
    link: String,
    /// The policy file [default: /etc/tacit/links-enabled/NAME.toml, then $TACIT_POLICY]
    #[arg(short, long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Destination of the log: journal, syslog, state (a file in $XDG_STATE_HOME/tacit), none or a
    /// path with a `/`
    #[arg(long, value_name = "DEST", default_value = "state")]
    log: String,
    /// Print the state of the link as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit link stop guest

After the stop, a run on the same kernel as the server keeps its open sockets. While the link
is stopped, no run can open further sockets through it.")]
struct StopArgs {
    /// The name of the link, or the path of its socket
    #[arg(value_name = "LINK")]
    link: PathBuf,
    /// Print the state that the link had before it stopped, as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit link trace guest on
  tacit link trace guest off")]
struct TraceArgs {
    /// The name of the link, or the path of its socket
    #[arg(value_name = "LINK")]
    link: PathBuf,
    /// Whether each request is logged
    #[arg(value_enum)]
    switch: TraceSwitch,
    /// Print the state of the link as JSON
    #[arg(long)]
    json: bool,
}

/// Whether the requests of a link are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TraceSwitch {
    /// Log each request and its result
    On,
    /// Log only refused requests
    Off,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  The socket of connection 17 in `tacit show connections`:
    tacit link give 17 --to worker
  Descriptor 5 of process 4711, which is then killed:
    tacit link give 4711/5 --to worker --then kill")]
struct GiveArgs {
    /// The id of a connection of a run, or a process and its descriptor as PID/FD
    #[arg(value_name = "CONNECTION")]
    socket: String,
    /// The NAME of the waiting command `tacit link take NAME`
    #[arg(long, value_name = "NAME")]
    to: String,
    /// What happens, after the transfer, to the program whose socket was passed
    #[arg(long, value_enum, default_value_t)]
    then: Then,
    /// The control socket of the agent that has the connection
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit link take worker -- ./serve --stdio
  tacit run -- tacit link take worker --socket listen-fds -- ./serve")]
struct TakeArgs {
    /// The name that `tacit link give --to` uses
    #[arg(value_name = "NAME")]
    name: String,
    /// How the program gets the socket
    #[arg(long = "socket", value_enum, default_value_t)]
    taken_as: TakenAs,
    /// The program and its arguments
    #[arg(value_name = "CMD", last = true, required = true)]
    command: Vec<OsString>,
}

/// The state of a link; also the open sockets of its runs, if the user requests them.
#[derive(Debug, Serialize)]
struct LinkTasks {
    #[serde(flatten)]
    status: LinkStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks: Option<Vec<LinkSocket>>,
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
        Verb::Init(args) => init(args),
        Verb::List(args) => show_list(&args),
        Verb::Info(args) => info(&args),
        Verb::Status(args) => show_status(&args),
        Verb::Start(args) => start_link(&args),
        Verb::Stop(args) => {
            let output = if args.json { Output::Json } else { Output::Nothing };
            change(&args.link, LinkControl::Stop, output)
        }
        Verb::Trace(args) => {
            let control = match args.switch {
                TraceSwitch::On => LinkControl::TraceOn,
                TraceSwitch::Off => LinkControl::TraceOff,
            };
            let output = if args.json { Output::Json } else { Output::Nothing };
            change(&args.link, control, output)
        }
        Verb::Give(args) => give(&args),
        Verb::Take(args) => take(&args),
    }
}

fn give(args: &GiveArgs) -> ExitCode {
    let GiveArgs { socket, to, then, control } = args;
    let control = private_agents::for_display(control.as_deref());
    let failed = |reason: &dyn std::fmt::Display| {
        fail(
            MessageId("socket-not-given"),
            format!("cannot give the socket {socket}: {reason}"),
            EXIT_FAILURE,
        )
    };
    let from = match find(socket, &control) {
        Ok(from) => from,
        Err(error) => return failed(&error),
    };
    match on_this_thread(hand::give::give(from, to, *then)) {
        Ok(Ok(pid)) => print(format!("process {pid} has the socket\n"), EXIT_OK),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}

fn take(args: &TakeArgs) -> ExitCode {
    let TakeArgs { name, taken_as, command } = args;
    let taken = on_this_thread(hand::take::take(name, *taken_as, command));
    match taken.and_then(|taken| taken) {
        Ok(status) => status.into(),
        Err(error) => {
            let reason = format!("`tacit link take {name}` failed: {error}");
            fail(MessageId("socket-not-taken"), reason, EXIT_FAILURE)
        }
    }
}

/// Runs a future to its end.
fn on_this_thread<T>(work: impl Future<Output = T>) -> std::io::Result<T> {
    let runtime = crate::runtime::builder()?.enable_all().build()?;
    Ok(runtime.block_on(work))
}

fn show_status(args: &StatusArgs) -> ExitCode {
    let reports = LinkReports::read(args.link.as_deref());
    let code = if reports.has_stopped() { EXIT_FAILURE } else { EXIT_OK };
    match (args.json, args.metrics) {
        (true, _) => print(versioned(&reports), code),
        (_, true) => print(reports.metrics(), code),
        _ => print(reports.text(), code),
    }
}

fn start_link(args: &StartArgs) -> ExitCode {
    let StartArgs { link, policy, log, json } = args;
    let enabled = || enabled::policy_of(link).filter(|_| policy.is_none());
    let Some(policy) = enabled().or_else(|| policy_file::named(policy.as_deref())) else {
        return fail(MessageId("no-policy"), NO_POLICY, EXIT_USAGE);
    };
    match start(link, &policy, log) {
        Ok(status) if *json => print(versioned(&status), EXIT_OK),
        Ok(status) => print(
            format!(
                "process {} serves the link {} at {}\n",
                status.pid,
                link,
                status.path.display()
            ),
            EXIT_OK,
        ),
        Err(error) => {
            let reason = format!("cannot start the link {link}: {error}");
            fail(MessageId("link-not-started"), reason, EXIT_FAILURE)
        }
    }
}

/// What a command prints if it succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Nothing,
    /// The state of the link.
    Json,
}

/// Sends `stop` or `trace` to the server of a link. Prints the new state of the link if the output
/// is JSON.
fn change(link: &Path, control: LinkControl, output: Output) -> ExitCode {
    let path = path_of(link);
    match query::request(&path, &LinkRequest::Control(control)) {
        Ok(LinkAnswer::Status(status)) if output == Output::Json => {
            print(versioned(&status), EXIT_OK)
        }
        Ok(_) => EXIT_OK.into(),
        Err(error) => no_link(&path, &error),
    }
}

fn no_link(path: &Path, error: &std::io::Error) -> ExitCode {
    let reason = format!(
        "no link server answers at {}: {error}\n    fix: start a server with `tacit link serve`; \
         `tacit link list` shows the links of this user",
        path.display()
    );
    fail(MessageId("no-link"), reason, EXIT_FAILURE)
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
    print(table(&links, &COLUMNS, TextWidth::of_stdout().wrapped()), EXIT_OK)
}

fn info(args: &InfoArgs) -> ExitCode {
    let path = path_of(&args.link);
    let tasks = || args.tasks.then(|| sockets(&path)).transpose();
    let requested = status(&path).and_then(|status| Ok(LinkTasks { status, tasks: tasks()? }));
    match requested {
        Ok(all) if args.json => print(versioned(&all), EXIT_OK),
        Ok(LinkTasks { status, tasks }) => {
            let width = TextWidth::of_stdout();
            let tasks = tasks.map(|tasks| table(&tasks, &TASK_COLUMNS, width.wrapped()));
            let tasks = tasks.map(|tasks| format!("\n{tasks}"));
            print(text(&status, width) + &tasks.unwrap_or_default(), EXIT_OK)
        }
        Err(error) => no_link(&path, &error),
    }
}

const TASK_COLUMNS: [Column<LinkSocket>; 5] = [
    ("SESSION", |socket| socket.session.to_string()),
    ("KIND", |socket| socket.kind.word().to_owned()),
    ("ADDRESS", |socket| socket.address.to_string()),
    ("SINCE", |socket| socket.since.to_string()),
    ("RUN", |socket| String::from(if socket.outlived_run { "ended" } else { "running" })),
];

/// The open sockets of a link.
fn sockets(path: &Path) -> std::io::Result<Vec<LinkSocket>> {
    match query::request(path, &LinkRequest::Control(LinkControl::Sockets))? {
        LinkAnswer::Sockets(sockets) => Ok(sockets),
        _ => Err(std::io::ErrorKind::InvalidData.into()),
    }
}

fn text(link: &LinkStatus, width: TextWidth) -> String {
    const COLUMNS: [Column<LinkedRun>; 10] = [
        ("SESSION", |run| run.session.to_string()),
        ("RUN", |run| run.run.clone()),
        ("PID", |run| run.pid.to_string()),
        ("USER", |run| run.user.clone()),
        ("SOCKETS", |run| run.sockets.to_string()),
        ("OPENED", |run| run.opened.to_string()),
        ("FAILED", |run| run.failed.to_string()),
        ("REFUSED", |run| run.refused.to_string()),
        ("SINCE", |run| run.since.to_string()),
        ("ENDED", |run| run.ended.map_or_else(|| "-".to_owned(), |at| at.to_string())),
    ];
    let resolvers: Vec<_> = link.resolvers.iter().map(ToString::to_string).collect();
    let resolvers = if resolvers.is_empty() { "-".to_owned() } else { resolvers.join(" ") };
    let families: Vec<_> = [(link.ipv4, "ipv4"), (link.ipv6, "ipv6")]
        .iter()
        .filter(|one| one.0)
        .map(|one| one.1)
        .collect();
    let families = if families.is_empty() { "-".to_owned() } else { families.join(" ") };
    let runs = table(&link.runs, &COLUMNS, width.wrapped());
    let tcp = link.tcp.map(|tcp| tcp.to_string()).or_else(|| link.vsock.clone());
    let tcp = tcp.map_or_else(String::new, |at| format!("listen    {at}\n"));
    let connect = link.connect.iter().map(|to| format!("connect   {to}\n")).collect::<String>();
    format!(
        "link      {}\npath      {}\n{tcp}{connect}pid       {}\nsince     {}\npolicy    {}\n\
         sockets   {} of {}\nfamilies  {families}\nresolvers {resolvers}\n\
         files-max {}\nsandbox   files: {}\nsandbox   system calls: {}\n\
         sandbox   capabilities: {}\n\n{runs}",
        link.name,
        link.path.display(),
        link.pid,
        link.since,
        link.policy.display(),
        link.sockets,
        link.sockets_max,
        link.files_max,
        link.sandbox.files,
        link.sandbox.calls,
        link.sandbox.capabilities,
    )
}
