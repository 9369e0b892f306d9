//! Defines the command line of tacit: parses the arguments and calls the selected command.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tacit_core::dns::HostsEntry;
use tacit_core::message_id::MessageId;
use tacit_core::policy::{FindingsShown, Policy, UnixSocket, parse_duration};
use tacit_sys::{descriptor, process};
use tacit_tls::signer::KeyProvider;

use crate::agent::{self, AgentError, Supervisor, supervisor};
use crate::control::outcome::{Closed, Confirmed, Draining, Reloaded};
use crate::control::running::RunningAgent;
use crate::control::{self, PeerState, Request, client};
use crate::dns::hosts::Hosts;
use crate::exit::{
    EXIT_FAILURE, EXIT_OK, EXIT_POLICY, EXIT_USAGE, complain_of, fail, fail_policy, print, printed,
    versioned, warn,
};
use crate::host::{self, GuardFallback, HostError};
use crate::live::{check_file, check_rules};
use crate::log::{Format, LogDestination, LogLevel};
use crate::policy_file::{self, NO_POLICY};
use crate::run::link::choice::{LinkChoice, LinkLevel};
use crate::runtime::explain_error;
use crate::{
    activate, ca, check, completions, doctor, explain, import, launch, learn, ledger, link,
    policy_test, project, show, signer, top, trace, workload,
};

/// The output of `--version`; `-V` prints the first line.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit ",
    env!("TACIT_COMMIT"),
    "\ntarget ",
    env!("TACIT_TARGET"),
    "\n",
    env!("TACIT_LIBRARIES"),
);

/// TLS by policy for programs that cannot be changed (AT-TLS for Linux)
#[derive(Debug, Parser)]
#[command(
    name = "tacit",
    version,
    long_version = LONG_VERSION,
    propagate_version = true,
    after_help = "\
Examples:
  tacit check policy.toml
  tacit agent --policy policy.toml
  tacit show connections

Manual: tacit(1), tacit-run(1), tacit.toml(5), tacit-messages(7)"
)]
struct CommandLine<V: Subcommand> {
    #[command(subcommand)]
    verb: V,
}

/// The command line with all commands.
type Cli = CommandLine<Verb>;

/// Parses only the command `tacit run`. Users wait for this parser at the start of every program,
/// and the parser for all commands takes ten times as long to build.
#[derive(Debug, Subcommand)]
enum RunAlone {
    Run(launch::RunArgs),
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve a policy: accept connections, connect to their destinations, and relay them with TLS
    Agent(AgentArgs),
    /// Run a program, and protect its connections by the rules of a policy
    Run(launch::RunArgs),
    /// Provide network sockets for programs that have no network
    Link(link::command::LinkArgs),
    /// Check a policy file and all files that it names; print errors as file:line:column
    Check(check::CheckArgs),
    /// Print which rule decides about a connection, and why earlier rules do not match
    Explain(explain::ExplainArgs),
    /// Test a policy: evaluate the flows in a file and compare the decisions with the expected ones
    Test(policy_test::TestArgs),
    /// Check which features of the kernel and the host are available to tacit
    Doctor(doctor::DoctorArgs),
    /// Print the state of a running agent
    Show(show::ShowArgs),
    /// Display the activity and the CPU time of a running agent, continuously
    Top(top::TopArgs),
    /// Write the decrypted bytes of connections, or their keys, to files
    Trace(trace::TraceArgs),
    /// Let the agent read its policy file again; after an error, the agent keeps the old policy
    Reload(ReloadArgs),
    /// Keep the policy that was installed with `--confirm`
    #[command(after_help = "\
Examples:
  tacit reload --confirm 60  installs the new policy for a minute
  tacit confirm              keeps the new policy")]
    Confirm(ControlArgs),
    /// Let the agent accept no new connections, and exit when its open connections have ended
    Drain(DrainArgs),
    /// Replace the agent by a new process without refusing or interrupting a connection
    #[command(after_help = "\
Examples:
  tacit restart
  tacit restart --control ./agent.sock")]
    Restart(ControlArgs),
    /// Close connections with a TCP reset
    Close(CloseArgs),
    /// Estimate the CPU time that measured traffic would need with other settings
    Project(project::ProjectArgs),
    /// Generate network load, and measure throughput, latency and CPU time
    Workload(workload::WorkloadArgs),
    /// Translate the configuration of another product to a policy
    Import(import::ImportArgs),
    /// Observe the connections of this host, and write a first policy that permits them
    Learn(learn::LearnArgs),
    /// Create a private CA and issue certificates
    Ca(ca::CaArgs),
    /// Hold an agent's private keys and sign its handshakes (only agents start this command)
    #[command(hide = true)]
    Signer,
    /// Start the programs of [activate.NAME] (only agents start this command)
    #[command(hide = true)]
    Starter,
    /// Execute a program with a socket as descriptor 3 (only `tacit starter` starts this command)
    #[command(hide = true)]
    ListenFds {
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// Protect a container, as a hook of an OCI runtime
    OciHook(launch::oci::OciHookArgs),
    /// Print the rules, connections or runs of a running agent, for completion in a shell
    #[command(hide = true)]
    Names(completions::NamesArgs),
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  source <(tacit completions bash)                          for this shell
  tacit completions zsh > ~/.zfunc/_tacit                   for a directory in fpath
  tacit completions fish > ~/.config/fish/completions/tacit.fish")]
    Completions {
        /// The shell that will execute the script
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit agent --policy /etc/tacit/policy.toml
  tacit agent --policy policy.toml --control ./agent.sock --log-format json
  tacit agent --host --policy /etc/tacit/host.toml --confirm 60

Signals: HUP reloads the policy, USR2 restarts the agent, TERM and INT end it immediately.")]
struct AgentArgs {
    /// The policy file [default: $TACIT_POLICY]
    #[arg(short, long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The control socket [default: /run/tacit/agent.sock for root, else tacit/agent.sock in
    /// $XDG_RUNTIME_DIR or tacit-UID/agent.sock in the directory for temporary files]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Destination of the log: stderr, journal, syslog, state (a file in $XDG_STATE_HOME/tacit),
    /// none, fd:N (an open descriptor) or a path with a `/`
    #[arg(long, value_name = "DEST", default_value = "stderr")]
    log: LogDestination,
    /// Format of log lines
    #[arg(long, value_enum, default_value_t)]
    log_format: Format,
    /// Append a line of JSON to this file for each connection that was allowed or denied, or that
    /// failed
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// Log only events that require an action
    #[arg(long)]
    quiet: bool,
    /// The lowest level of events that the agent logs
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t)]
    log_level: LogLevel,
    /// Accept runs (`tacit run --agent`) at this socket
    #[arg(long, value_name = "PATH")]
    enrol: Option<PathBuf>,
    /// Mode of the --enrol socket: users with write permission can use the policy's identities
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = mode)]
    enrol_mode: u32,
    /// Owner of the socket of --enrol: user, user:group or :group [default: the agent's user]
    #[arg(long, value_name = "OWNER")]
    enrol_owner: Option<String>,
    /// Send DNS queries of runs to this resolver instead of those in /etc/resolv.conf; may be
    /// repeated
    #[arg(long = "resolver", value_name = "ADDRESS")]
    resolvers: Vec<std::net::SocketAddr>,
    /// Serve one run, and exit when the run ends
    #[arg(long, hide = true)]
    private: bool,
    /// The socket of the run's link; with `--link-level policy`, the directory of link sockets
    #[arg(long, hide = true, value_name = "PATH")]
    link: Option<PathBuf>,
    /// How the link of this run is chosen: by --link, by $TACIT_LINK, by the policy, or not at all
    #[arg(long, hide = true, value_enum, value_name = "LEVEL")]
    link_level: Option<LinkLevel>,
    /// The launcher of this run, as `NAME[PID]`
    #[arg(long, hide = true, value_name = "LAUNCHER")]
    launcher: Option<String>,
    /// Capture the flows of all programs of this host, with the settings in [host] of the policy
    #[arg(long)]
    host: bool,
    /// Install the nftables rules of the policy, and end; these rules refuse all captured flows
    /// until an agent starts
    #[arg(long, requires = "host", conflicts_with = "remove")]
    guard: bool,
    /// Remove tacit's nftables rules and routing rules from the host, and end
    #[arg(long, requires = "host")]
    remove: bool,
    /// Write systemd drop-ins to this directory, one for each unit that the rules select, and end
    #[arg(
        long,
        requires = "host",
        conflicts_with_all = ["guard", "remove"],
        value_name = "DIRECTORY"
    )]
    drop_ins: Option<PathBuf>,
    /// Stop the capture and end after this time if `tacit confirm` was not run; a plain number
    /// means seconds
    #[arg(
        long,
        requires = "host",
        conflicts_with_all = ["guard", "remove", "drop_ins"],
        value_name = "DURATION",
        value_parser = confirm_time
    )]
    confirm: Option<Duration>,
    /// File for the last installed policy: the agent stores the policy, and --guard uses the stored
    /// policy if the policy file has an error
    #[arg(
        long,
        requires = "host",
        conflicts_with_all = ["remove", "drop_ins"],
        value_name = "FILE"
    )]
    last_policy: Option<PathBuf>,
    /// Run the agent in this process, without a supervisor that starts its successor
    #[arg(long)]
    no_supervisor: bool,
    /// The supervisor starts the agent with --supervised (in older versions of tacit, with --kept)
    #[arg(long, hide = true, alias = "kept")]
    supervised: bool,
    /// First read a secret from the supervisor; a new agent that replaces this agent must know the
    /// secret
    #[arg(long, hide = true)]
    with_secret: bool,
    /// Take over the listening sockets of the running agent
    #[arg(long, hide = true)]
    take_over: bool,
}

#[derive(Debug, Args)]
struct ControlArgs {
    /// The control socket of the agent
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl ControlArgs {
    /// Formats the result of a command as text or, with `--json`, as JSON.
    fn form<T: Serialize>(&self, result: &T, text: impl FnOnce(&T) -> String) -> String {
        if self.json { versioned(result) } else { text(result) }
    }

    fn path(&self) -> PathBuf {
        self.control.clone().unwrap_or_else(control::default_path)
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit reload
  tacit reload --confirm 60   installs the new policy for a minute; `tacit confirm` keeps it")]
struct ReloadArgs {
    /// Install the previous policy again after this time if `tacit confirm` was not run; a plain
    /// number means seconds
    #[arg(long, value_name = "DURATION", value_parser = confirm_time)]
    confirm: Option<Duration>,
    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit drain
  tacit drain --timeout 30s")]
struct DrainArgs {
    /// Reset connections that are still open after this time [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = wait)]
    timeout: Option<Duration>,
    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit close 17 18            the connections with these ids
  tacit close --stale          connections whose rule has been changed or removed
  tacit close --peer invalid   connections whose peer has a certificate that is no longer valid
  tacit close --clear          unencrypted connections of rules with accept = \"both\"")]
struct CloseArgs {
    /// Connection ids, as `tacit show connections` prints them
    #[arg(required_unless_present_any = ["stale", "peer", "clear"])]
    ids: Vec<u64>,
    /// Close all connections whose rule has been changed or removed since they were opened
    #[arg(long)]
    stale: bool,
    /// Close all connections whose peer's certificate is expired, revoked or otherwise invalid
    #[arg(long, value_name = "STATE")]
    peer: Option<PeerState>,
    /// Close all unencrypted connections of rules with `accept = "both"`; these rules then accept
    /// only TLS
    #[arg(long)]
    clear: bool,
    #[command(flatten)]
    control: ControlArgs,
}

/// Parses and runs the command line; returns the exit status.
#[must_use]
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    if arguments.get(1).is_some_and(|verb| verb == "run")
        && let Ok(CommandLine { verb: RunAlone::Run(args) }) =
            CommandLine::try_parse_from(&arguments)
    {
        return launch::run(&args);
    }
    // Help, and errors with the commands that may be meant, need all commands.
    match Cli::try_parse_from(with_version_option(arguments.clone())) {
        Ok(cli) => dispatch(cli.verb, &arguments),
        Err(error) => {
            if arguments.get(1).is_some_and(|verb| verb == "version") {
                return fail(
                    MessageId("usage"),
                    "`version` is not a command\n    fix: use tacit --version",
                    EXIT_USAGE,
                );
            }
            // Requests for help and version arrive here as well, and are not errors.
            if !error.use_stderr() {
                return printed(error.print(), EXIT_OK);
            }
            if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                let _ = error.print();
                return EXIT_USAGE.into();
            }
            let text = usage_error(&error.render().to_string(), &arguments);
            fail(MessageId("usage"), text, EXIT_USAGE)
        }
    }
}

/// Formats an error of the command line. Replaces the tip of the parser with a line `fix:`.
fn usage_error(text: &str, arguments: &[OsString]) -> String {
    let mut paragraphs = text.trim_end().split("\n\n");
    let message = paragraphs.next().unwrap_or_default();
    let (tips, rest): (Vec<_>, Vec<_>) =
        paragraphs.partition(|paragraph| paragraph.trim_start().starts_with("tip: "));
    let tip = tips.first().and_then(|tips| tips.lines().next()?.trim_start().strip_prefix("tip: "));
    let fix = match tip.map(|tip| (tip, tip.split_once(" exists: "))) {
        Some((_, Some((_, similar)))) => format!("did you mean {}?", similar.replace('\'', "`")),
        Some((tip, None)) => tip.replace('\'', "`"),
        None => format!("see `{} --help`", command_of(arguments)),
    };
    let rest = rest.iter().filter(|paragraph| !paragraph.starts_with("For more information"));
    let rest: String = rest.map(|paragraph| format!("\n\n{paragraph}")).collect();
    format!("{}\n    fix: {fix}{rest}", message.strip_prefix("error: ").unwrap_or(message))
}

/// Returns the command in these arguments, such as `tacit ca issue`.
fn command_of(arguments: &[OsString]) -> String {
    let root = Cli::command();
    let mut command = &root;
    let mut path = "tacit".to_owned();
    for word in arguments.iter().skip(1) {
        let Some(below) = word.to_str().and_then(|word| command.find_subcommand(word)) else {
            break;
        };
        path = format!("{path} {}", below.get_name());
        command = below;
    }
    path
}

/// Replaces a single argument `-v` with `-V`, because many programs print their version with `-v`.
fn with_version_option(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if let [_, only] = arguments.as_mut_slice()
        && only == "-v"
    {
        *only = "-V".into();
    }
    arguments
}

fn dispatch(verb: Verb, arguments: &[OsString]) -> ExitCode {
    match verb {
        Verb::Agent(args) if args.remove => finished(host::remove()),
        Verb::Agent(args) if args.supervised => agent(args, Parent::Supervisor),
        Verb::Agent(args) => start_agent(args, arguments.get(1..).unwrap_or_default()),
        Verb::Run(args) => launch::run(&args),
        Verb::Link(args) => link::command::run(args),
        Verb::OciHook(args) => launch::oci::hook(&args),
        Verb::Signer => signer::run(),
        Verb::Starter => activate::serve::run(),
        Verb::ListenFds { command } => activate::serve::exec(&command),
        Verb::Check(args) => check::run(&args),
        Verb::Explain(args) => explain::run(&args),
        Verb::Test(args) => policy_test::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Show(args) => show::run(&args),
        Verb::Top(args) => top::run(&args),
        Verb::Trace(args) => trace::run(&args),
        Verb::Reload(args) => {
            let request = args.confirm.map_or(Request::Reload, |time| Request::ReloadForTime {
                confirm_ms: time.as_millis().try_into().unwrap_or(u64::MAX),
            });
            send_request(&args.control, &request, Reloaded::text)
        }
        Verb::Confirm(args) => send_request(&args, &Request::Confirm, Confirmed::text),
        Verb::Drain(args) => {
            let milliseconds = |timeout: Duration| timeout.as_millis().try_into();
            let timeout_ms = args.timeout.map(|timeout| milliseconds(timeout).unwrap_or(u64::MAX));
            send_request(&args.control, &Request::Drain { timeout_ms }, |done: &Draining| {
                format!("draining: {} open connections\n", done.open)
            })
        }
        Verb::Restart(args) => send_request(&args, &Request::Restart, |done: &Draining| {
            format!("a new agent serves; the old agent keeps its {} open connections\n", done.open)
        }),
        Verb::Close(args) => close(args),
        Verb::Project(args) => project::run(&args),
        Verb::Workload(args) => workload::run(&args),
        Verb::Import(args) => import::run(&args),
        Verb::Learn(args) => learn::run(&args),
        Verb::Ca(args) => match ca::run(args) {
            Ok(()) => EXIT_OK.into(),
            Err(error) => fail(error.id(), error, EXIT_FAILURE),
        },
        Verb::Names(args) => completions::names(&args),
        Verb::Completions { shell } => print(completions::script(shell, &Cli::command()), EXIT_OK),
    }
}

/// Which process is the parent of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    /// The parent is the agent's supervisor.
    Supervisor,
    /// The parent is another process, such as a shell or a service manager.
    Other,
}

/// Starts the agent. Fails if the policy has an error or if an agent is already running. Otherwise,
/// this process becomes the agent's supervisor or, with `--no-supervisor`, the agent.
fn start_agent(args: AgentArgs, arguments: &[OsString]) -> ExitCode {
    let Some(policy) = policy_file::named(args.policy.as_deref()) else {
        return fail(MessageId("no-policy"), NO_POLICY, EXIT_USAGE);
    };
    if args.guard {
        return guard(policy, args.last_policy.as_deref());
    }
    // Without a supervisor, this process becomes the agent.
    ledger::charge_parallel_threads();
    let checked = match check_file(&policy, &KeyProvider::local(), FindingsShown::All) {
        Ok(checked) => checked,
        Err(findings) => return fail_policy(AgentError::Policy(policy, findings)),
    };
    if args.host && checked.policy.host.is_none() {
        return fail(HostError::NoSettings.id(), HostError::NoSettings, EXIT_POLICY);
    }
    if let Some(directory) = &args.drop_ins {
        return write_drop_ins(&checked.policy, directory);
    }
    let control = args.control.clone().unwrap_or_else(control::default_path);
    if let Some(running) = RunningAgent::at(&control) {
        let control = control.display();
        let reason = format!(
            "an agent is already running at {control}: {running}\n    fix: end that agent with \
             `tacit drain --control {control}` (or `kill {pid}` to end it immediately), or choose \
             another control socket with --control",
            pid = running.pid
        );
        return fail(MessageId("agent-runs-already"), reason, EXIT_FAILURE);
    }
    if args.no_supervisor {
        return agent(args, Parent::Other);
    }
    // The supervisor needs no policy. A large one would stay in its memory as long as it runs.
    drop(checked);
    process::return_freed_memory();
    match supervisor::run(arguments) {
        Ok(code) => code,
        Err(error) => {
            let reason = format!("cannot start the agent: {}", explain_error(&error));
            fail(MessageId("agent-not-started"), reason, EXIT_FAILURE)
        }
    }
}

/// Installs the nftables rules of a policy. Reads no certificates and no keys, because a missing
/// or wrong file must not leave the host without nftables rules.
fn guard(file: PathBuf, last: Option<&Path>) -> ExitCode {
    let hosts = Hosts::default().pairs();
    let failed = match check_rules(&file) {
        Ok(policy) => match host::guard(&policy, &hosts) {
            Ok(_) => return EXIT_OK.into(),
            Err(error @ HostError::InUse) => return fail(error.id(), error, EXIT_FAILURE),
            Err(error @ HostError::NoSettings) => fail(error.id(), error, EXIT_POLICY),
            Err(error) => fail(error.id(), error, EXIT_FAILURE),
        },
        Err(findings) => fail_policy(AgentError::Policy(file, findings)),
    };
    if let Some(last) = last {
        guard_without_policy(last, &hosts);
    }
    failed
}

/// Installs nftables rules for a host whose policy cannot be used, and prints which rules
/// are in force.
fn guard_without_policy(last: &Path, hosts: &[HostsEntry]) {
    let file = last.display();
    match host::guard_without_policy(last, hosts) {
        Ok(GuardFallback::Present) => {
            let message = "`tacit agent --host --guard` changes nothing: the nftables rules that \
                           tacit installed after the boot are in force";
            warn(MessageId("guard-changed-nothing"), message);
        }
        Ok(GuardFallback::Last) => {
            let message = format_args!(
                "the nftables rules of {file} are in force: this file contains the last policy \
                 that an agent installed"
            );
            warn(MessageId("last-policy-installed"), message);
        }
        Ok(GuardFallback::Audit) => {
            let message = format_args!(
                "tacit installs no nftables rules, because {file}, the last policy that an agent \
                 installed, has mode = \"audit\""
            );
            warn(MessageId("last-policy-audits"), message);
        }
        Ok(GuardFallback::Closed(reason)) => {
            let message = format_args!(
                "tacit cannot use {file}, the last policy that an agent installed: {reason}\n    \
                 so the host is closed: it permits only DHCP, ICMP errors, neighbour discovery, \
                 and connections to its TCP port 22\n    \
                 fix: correct the policy, and start tacit-host.service"
            );
            complain_of(MessageId("host-closed"), message);
        }
        Err(error) => complain_of(error.id(), error),
    }
}

fn write_drop_ins(policy: &Policy, directory: &Path) -> ExitCode {
    match host::write_drop_ins(policy, directory) {
        Ok(files) => {
            let lines: String = files.iter().map(|file| format!("{}\n", file.display())).collect();
            print(lines, EXIT_OK)
        }
        Err(error) => fail(error.id(), error, EXIT_FAILURE),
    }
}

fn agent(args: AgentArgs, parent: Parent) -> ExitCode {
    let Some(policy) = policy_file::named(args.policy.as_deref()) else {
        return fail(MessageId("no-policy"), NO_POLICY, EXIT_USAGE);
    };
    let inherited = descriptor::take_inherited(descriptor::ACTIVATION_FIRST, activated(parent));
    let inherited = match inherited {
        Ok(inherited) => inherited,
        Err(error) => return fail(MessageId("descriptors-unusable"), error, EXIT_FAILURE),
    };
    let supervisor = match parent {
        Parent::Supervisor if args.with_secret => Supervisor::inherit_with_secret().map(Some),
        Parent::Supervisor => Supervisor::inherit().map(Some),
        Parent::Other => Ok(None),
    };
    let supervisor = match supervisor {
        Ok(supervisor) => supervisor,
        Err(error) => return fail(MessageId("descriptors-unusable"), error, EXIT_FAILURE),
    };
    let unix = UnixSocket { mode: args.enrol_mode, owner: args.enrol_owner, replace_stale: true };
    let options = agent::AgentOptions {
        policy,
        control: args.control.unwrap_or_else(control::default_path),
        log: args.log,
        log_format: args.log_format,
        launcher: args.launcher,
        audit: args.audit,
        level: if args.quiet { args.log_level.max(LogLevel::Warn) } else { args.log_level },
        enrol: args.enrol.map(|path| agent::EnrolmentSocket { path, unix }),
        private: args.private,
        link: LinkChoice::from_arguments(args.link, args.link_level),
        host: args.host,
        confirm: args.confirm,
        last_policy: args.last_policy,
        resolvers: args.resolvers,
        take_over: args.take_over,
    };
    match agent::run(options, agent::PassedSockets::Listening(inherited), supervisor) {
        Ok(()) => EXIT_OK.into(),
        Err(error @ AgentError::Policy(..)) => fail_policy(error),
        Err(error) if error.is_policy() => fail(error.id(), error, EXIT_POLICY),
        Err(error) => fail(error.id(), error, EXIT_FAILURE),
    }
}

/// The exit status of `--remove`.
fn finished(result: Result<(), HostError>) -> ExitCode {
    match result {
        Ok(()) => EXIT_OK.into(),
        Err(error) => fail(error.id(), error, EXIT_FAILURE),
    }
}

/// Returns the number of sockets that systemd passed. systemd passes sockets to the process that it
/// starts: to the supervisor or, without a supervisor, to the agent.
fn activated(parent: Parent) -> usize {
    let started = match parent {
        Parent::Supervisor => std::os::unix::process::parent_id(),
        Parent::Other => std::process::id(),
    };
    if std::env::var("LISTEN_PID").ok() != Some(started.to_string()) {
        return 0;
    }
    let count = std::env::var("LISTEN_FDS").ok();
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Sends a request to the agent, and prints its answer.
fn send_request<T: DeserializeOwned + Serialize>(
    args: &ControlArgs,
    request: &Request,
    render: impl FnOnce(&T) -> String,
) -> ExitCode {
    match client::ask_typed(&args.path(), request) {
        Ok(answer) => print(args.form(&answer, render), EXIT_OK),
        Err(error) => fail(error.id(), error, EXIT_FAILURE),
    }
}

fn close(args: CloseArgs) -> ExitCode {
    let CloseArgs { ids, stale, peer, clear, control } = args;
    let request = Request::Close { ids, stale, peer, clear };
    let done: Closed = match client::ask_typed(&control.path(), &request) {
        Ok(done) => done,
        Err(error) => return fail(error.id(), error, EXIT_FAILURE),
    };
    for id in &done.unknown {
        let text = format!(
            "no open connection has the id {id}\n    \
             fix: use an id that `tacit show connections` lists"
        );
        complain_of(MessageId("no-connection"), text);
    }
    let code = if done.unknown.is_empty() { EXIT_OK } else { EXIT_FAILURE };
    print(control.form(&done, |done| format!("closed {}\n", done.closed.len())), code)
}

fn wait(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "expected a duration such as 30s or 1h30m".to_owned())
}

fn confirm_time(text: &str) -> Result<Duration, String> {
    match text.parse().map(Duration::from_secs).or_else(|_| wait(text))? {
        Duration::ZERO => Err("expected at least one second".to_owned()),
        time => Ok(time),
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let octal = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    octal.ok_or_else(|| "expected permission bits such as 0660".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, Command};
    use clap_complete::Shell;

    const MANUAL: &str = include_str!("../../../docs/tacit.1");

    /// The parts of the synopsis for a command.
    fn synopsis(words: &[&str]) -> String {
        let (_, rest) = MANUAL.split_once(".Sh SYNOPSIS").unwrap();
        let (synopsis, _) = rest.split_once(".Sh DESCRIPTION").unwrap();
        let begin = format!(".Cm {}", words[0]);
        let is_of = |part: &&str| {
            let first = part.lines().find(|line| !line.is_empty()).unwrap_or_default();
            let rest = first.strip_prefix(&begin);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        synopsis.split("\n.Nm\n").filter(is_of).collect::<Vec<_>>().join("\n").replace("\\-", "-")
    }

    fn check(command: &Command, words: &[&str], missing: &mut Vec<String>) {
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            check(below, &[words, &[below.get_name()]].concat(), missing);
        }
        if words.is_empty() || command.has_subcommands() {
            return;
        }
        let synopsis = synopsis(words);
        if synopsis.is_empty() {
            missing.push(words.join(" "));
        }
        // Commands with many options refer to the description.
        let options = if synopsis.contains(".Op Ar OPTION ...") { MANUAL } else { &synopsis };
        let options = options.replace("\\-", "-");
        for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
            let Some(long) = option.get_long() else { continue };
            let is_named =
                |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-');
            let found = options.split(&format!("Fl -{long}")).skip(1).any(is_named);
            if !found && !["help", "version"].contains(&long) {
                missing.push(format!("{} --{long}", words.join(" ")));
            }
        }
    }

    #[test]
    fn the_synopsis_of_the_manual_has_every_command_and_option() {
        let mut missing = Vec::new();
        check(&Cli::command(), &[], &mut missing);
        assert_eq!(missing, [""; 0]);
    }

    /// The long options of a command and of those below it that `selects` selects.
    fn options(command: &Command, selects: fn(&Arg) -> bool) -> Vec<String> {
        let arguments = command.get_arguments().filter(|one| selects(one));
        let own = arguments.filter_map(|one| one.get_long()).map(str::to_owned);
        let below = command.get_subcommands().filter(|below| !below.is_hide_set());
        own.chain(below.flat_map(|below| options(below, selects))).collect()
    }

    #[test]
    fn completions_have_every_option_except_hidden_ones() {
        let command = Cli::command();
        let visible = options(&command, |one| !one.is_hide_set());
        let mut hidden = options(&command, Arg::is_hide_set);
        // Another command may show an option with the same name.
        hidden.retain(|long| !visible.contains(long));
        assert!(hidden.contains(&"take-over".to_owned()), "{hidden:?}");
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let script = completions::script(shell, &command);
            let has = |long: &str| {
                let name = match shell {
                    Shell::Fish => format!("-l {long}"),
                    _ => format!("--{long}"),
                };
                let ends =
                    |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-');
                script.split(&name).skip(1).any(ends)
            };
            let offered: Vec<_> = hidden.iter().filter(|long| has(long)).collect();
            assert!(offered.is_empty(), "{shell}: {offered:?}");
            // The scripts of other shells have no options of commands at the third level.
            if matches!(shell, Shell::Bash | Shell::Zsh) {
                let missing: Vec<_> = visible.iter().filter(|long| !has(long)).collect();
                assert!(missing.is_empty(), "{shell}: {missing:?}");
            }
        }
    }
}
