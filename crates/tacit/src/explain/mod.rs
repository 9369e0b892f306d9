//! `tacit explain`: which rule of a policy file or of the installed policy decides about a flow,
//! and why the earlier ones did not match; or how a rule evaluates a certificate.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use rustls_pki_types::UnixTime;
use serde_json::json;
use tacit_core::flow::{Address, Direction, Flow, Protocol};
use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, DiagnosticSeverity, Explanation, Policy, explain, parse};

use crate::clock;
use crate::control::client::{self, ClientError};
use crate::control::{self, Request};
use crate::exit::{EXIT_FAILURE, EXIT_OK, EXIT_USAGE, complain, fail, fail_policy, pretty, print};
use crate::live::{directory_of, localize};
use crate::policy_file::{self, NO_POLICY};

use self::flow::{FlowDescription, NoFlow};
use self::peer::Peer;

pub(crate) mod flow;
mod peer;

/// A flow, in the words of the policy.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  Who connects to a listening address of a rule, a forwarding rule or one about a run:
    tacit explain --policy policy.toml --listen 0.0.0.0:8443 --remote 192.0.2.7:40000
  What a program opens:
    tacit explain --policy policy.toml --direction outbound \\
        --remote 10.7.0.9:5432 --name db.corp.example --program /usr/bin/psql
  The same with the policy that the agent has installed:
    tacit explain --control --direction outbound --remote 10.7.0.9:5432
  What a rule makes of a client's certificate, and which entry of its map decides:
    tacit explain --policy policy.toml --peer alice.pem --address 10.7.0.9 --rule front")]
pub struct ExplainArgs {
    /// The policy file [default: $TACIT_POLICY]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Evaluate the policy that an agent has installed; PATH is its control socket
    #[arg(long, value_name = "PATH", num_args = 0..=1, conflicts_with_all = ["policy", "peer"])]
    control: Option<Option<PathBuf>>,
    /// The address a rule listens at, as the policy writes it
    #[arg(long, value_name = "ADDRESS", required_unless_present_any = ["direction", "peer"])]
    listen: Option<Address>,
    /// Who opens the connection, seen from the program
    #[arg(long, value_enum)]
    direction: Option<DirectionArg>,
    /// The transport
    #[arg(long, value_enum, default_value_t = ProtocolArg::Tcp)]
    protocol: ProtocolArg,
    /// The near address [default: the listening one]
    #[arg(long, value_name = "ADDRESS")]
    local: Option<Address>,
    /// The far address, with its port
    #[arg(long, value_name = "ADDRESS", required_unless_present = "peer")]
    remote: Option<Address>,
    /// A name the program asked for; may be repeated
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// The program's executable
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The user the program runs as
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// The name of the program's run
    #[arg(long, value_name = "NAME", conflicts_with = "listen")]
    run: Option<String>,
    /// A peer's certificate in a PEM file, with the intermediates it sends
    #[arg(long, value_name = "FILE", requires = "asked")]
    #[arg(conflicts_with_all = ["listen", "direction", "local", "remote"])]
    #[arg(conflicts_with_all = ["program", "user", "run"])]
    peer: Option<PathBuf>,
    /// Where the peer comes from
    #[arg(long, value_name = "IP", requires = "peer")]
    address: Option<IpAddr>,
    /// The rule whose peer it is
    #[arg(long, value_name = "NAME", requires = "peer", group = "asked")]
    rule: Option<String>,
    /// The map to ask alone, without a check of the certificate
    #[arg(long, value_name = "NAME", requires = "peer", group = "asked")]
    map: Option<String>,
    /// When it opens, as 2025-06-01T12:00:00Z or with an offset [default: now]
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<Timestamp>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DirectionArg {
    Inbound,
    Outbound,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ProtocolArg {
    Tcp,
    Udp,
}

/// A flow that cannot exist.
const NO_FLOW: MessageId = MessageId("no-such-flow");

/// Runs the verb. Its exit code is 0 whatever the verdict is, 64 for a flow that cannot exist, 78
/// for a policy with errors.
#[must_use]
pub fn run(args: &ExplainArgs) -> ExitCode {
    let path = policy_file::named(args.policy.as_deref()).filter(|_| args.control.is_none());
    let explanation = match &path {
        None if args.control.is_none() => {
            return fail(MessageId("no-policy"), NO_POLICY, EXIT_USAGE);
        }
        None => match flow(args) {
            Ok(flow) => ask(args, flow),
            Err(next_step) => return fail(NO_FLOW, next_step, EXIT_USAGE),
        },
        Some(path) => {
            let policy = match read(path) {
                Ok(policy) => policy,
                Err(errors) => return fail_policy(errors),
            };
            if let Some(file) = &args.peer {
                return explain_peer(args, &policy, &directory_of(path), file);
            }
            match flow(args) {
                Ok(flow) => Ok(explain(&policy, &flow)),
                Err(next_step) => return fail(NO_FLOW, next_step, EXIT_USAGE),
            }
        }
    };
    let explanation = match explanation {
        Ok(explanation) => explanation,
        Err(error) => return fail(error.id(), error, EXIT_FAILURE),
    };
    let json = || pretty(&json!(explanation));
    print(if args.json { json() } else { format!("{explanation}\n") }, EXIT_OK)
}

/// Has an agent evaluate its policy.
fn ask(args: &ExplainArgs, flow: Flow) -> Result<Explanation, ClientError> {
    let control = args.control.clone().flatten().unwrap_or_else(control::default_path);
    let request = Request::Explain { flow: Box::new(flow) };
    client::ask_typed(&control, &request)
}

/// Reads a policy file without the files that it names, and writes a warning about its time zone to
/// standard error.
///
/// # Errors
/// What is wrong with it, as text.
pub(crate) fn read(path: &Path) -> Result<Policy, String> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{file}: {error}"))?;
    let mut parsed = parse(&text);
    Diagnostic::quote(&mut parsed.diagnostics, &text);
    let Some(mut policy) = parsed.policy else {
        let errors =
            parsed.diagnostics.iter().filter(|one| one.severity == DiagnosticSeverity::Error);
        let lines: Vec<_> = errors.map(|error| error.render(&file)).collect();
        return Err(lines.join("\n"));
    };
    if let Some(warning) = localize(&mut policy) {
        complain(warning.render(&file));
    }
    Ok(policy)
}

/// Evaluates a certificate instead of a flow.
fn explain_peer(args: &ExplainArgs, policy: &Policy, base: &Path, file: &Path) -> ExitCode {
    let at_unix_s = args.at.map_or_else(clock::now_unix_s, Timestamp::as_second);
    let at = Duration::from_secs(u64::try_from(at_unix_s).unwrap_or(0));
    let now = UnixTime::since_unix_epoch(at);
    let peer = Peer { file, address: args.address, names: &args.names, now };
    let answer = match (&args.rule, &args.map) {
        (Some(rule), _) => peer::ask_rule(policy, base, rule, &peer),
        (None, Some(map)) => peer::ask_map(policy, map, &peer),
        // INVARIANT: `requires = "asked"`.
        (None, None) => Err("say --rule or --map".to_owned()),
    };
    match answer {
        Ok(answer) if args.json => print(pretty(&json!(answer)), EXIT_OK),
        Ok(answer) => print(format!("{answer}\n"), EXIT_OK),
        Err(error) => fail(MessageId("no-answer"), error, EXIT_USAGE),
    }
}

/// The flow that words of a command line describe, if they do: for the fuzzer.
#[cfg(feature = "fuzz")]
pub(crate) fn parse_flow<'a>(words: impl Iterator<Item = &'a str>) -> Option<Flow> {
    #[derive(clap::Parser)]
    #[command(no_binary_name = true)]
    struct Alone {
        #[command(flatten)]
        args: ExplainArgs,
    }
    let alone = <Alone as clap::Parser>::try_parse_from(words).ok()?;
    flow(&alone.args).ok()
}

fn flow(args: &ExplainArgs) -> Result<Flow, &'static str> {
    if args.direction.is_none() && args.listen.is_none() {
        return Err(LISTEN_MISSING);
    }
    let description = FlowDescription {
        direction: args.direction.map(|direction| match direction {
            DirectionArg::Inbound => Direction::Inbound,
            DirectionArg::Outbound => Direction::Outbound,
        }),
        protocol: match args.protocol {
            ProtocolArg::Tcp => Protocol::Tcp,
            ProtocolArg::Udp => Protocol::Udp,
        },
        listen: args.listen.clone(),
        local: args.local.clone(),
        remote: args.remote.clone().unwrap_or(Address::Unnamed),
        names: args.names.clone(),
        program: args.program.clone(),
        user: args.user.clone(),
        run: args.run.clone(),
        at: args.at,
    };
    description.into_flow().map_err(|error| match error {
        NoFlow::ListenMissing => LISTEN_MISSING,
        NoFlow::ListenUnexpected => {
            "leave out --listen or --direction: an outbound flow has no listening address"
        }
    })
}

const LISTEN_MISSING: &str =
    "say --listen ADDRESS too: an inbound flow arrives at the listening address of a rule";

pub(crate) fn time(text: &str) -> Result<Timestamp, &'static str> {
    text.parse().map_err(|_| "write date, time and zone, as in 2025-06-01T12:00:00Z")
}
