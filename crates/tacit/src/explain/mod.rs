//! `tacit explain`: which rule a flow gets, and why the earlier ones did not match; or what a rule
//! makes of a certificate.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use rustls_pki_types::UnixTime;
use serde_json::json;
use tacit_core::flow::{Address, Direction, Flow, Protocol};
use tacit_core::policy::{Diagnostic, DiagnosticSeverity, Policy, explain, parse};

use crate::address::user_word;
use crate::clock;
use crate::exit::{EXIT_OK, EXIT_POLICY, EXIT_USAGE, fail, pretty, print};
use crate::live::{directory_of, localize};
use crate::policy_file::{self, NO_POLICY};

use self::peer::Peer;

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
  What a rule makes of a client's certificate, and which entry of its map decides:
    tacit explain --policy policy.toml --peer alice.pem --address 10.7.0.9 --rule front")]
pub struct ExplainArgs {
    /// The policy file [default: $TACIT_POLICY]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
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
    /// The map to ask alone, as if the certificate were believed
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

/// Runs the verb: 0 whatever the verdict, 64 for a flow that makes no sense, 78 for a bad policy.
#[must_use]
pub fn run(args: &ExplainArgs) -> ExitCode {
    let Some(path) = policy_file::named(args.policy.as_deref()) else {
        return fail(NO_POLICY, EXIT_USAGE);
    };
    let file = path.display();
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => return fail(format_args!("{file}: {error}"), EXIT_POLICY),
    };
    let mut parsed = parse(&text);
    Diagnostic::quote(&mut parsed.diagnostics, &text);
    let Some(mut policy) = parsed.policy else {
        let errors =
            parsed.diagnostics.iter().filter(|one| one.severity == DiagnosticSeverity::Error);
        let lines: Vec<_> = errors.map(|error| error.render(&file.to_string())).collect();
        return fail(lines.join("\n"), EXIT_POLICY);
    };
    if let Some(warning) = localize(&mut policy) {
        eprintln!("{}", warning.render(&file.to_string()));
    }
    if let Some(file) = &args.peer {
        return explain_peer(args, &policy, &directory_of(&path), file);
    }
    let flow = match flow(args) {
        Ok(flow) => flow,
        Err(next_step) => return fail(next_step, EXIT_USAGE),
    };
    let explanation = explain(&policy, &flow);
    let json = || pretty(&json!(explanation));
    print(if args.json { json() } else { format!("{explanation}\n") }, EXIT_OK)
}

/// The same for a certificate.
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
        Err(error) => fail(error, EXIT_USAGE),
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
    let direction = match (args.direction, &args.listen) {
        (None | Some(DirectionArg::Inbound), Some(_)) => Direction::Inbound,
        (None | Some(DirectionArg::Inbound), None) => {
            return Err("say --listen ADDRESS too: an inbound flow arrives at that of a rule");
        }
        (Some(DirectionArg::Outbound), None) => Direction::Outbound,
        (Some(DirectionArg::Outbound), Some(_)) => {
            return Err("leave out --listen or --direction: an outbound flow arrives at no rule's");
        }
    };
    let protocol = match (direction, args.protocol) {
        // A listening address takes TCP and UNIX streams only.
        (Direction::Inbound, _) | (Direction::Outbound, ProtocolArg::Tcp) => Protocol::Tcp,
        (Direction::Outbound, ProtocolArg::Udp) => Protocol::Udp,
    };
    // A program that opens a connection leaves its own end to the kernel.
    let unbound = Address::Unnamed;
    Ok(Flow {
        direction,
        protocol,
        listen: args.listen.clone(),
        local: args.local.clone().or_else(|| args.listen.clone()).unwrap_or(unbound),
        remote: args.remote.clone().unwrap_or(Address::Unnamed),
        remote_names: args.names.iter().map(|name| name.to_ascii_lowercase()).collect(),
        alias: None,
        is_shared: false,
        program: args.program.clone(),
        user: args.user.as_deref().map(user_word),
        run: args.run.clone(),
        to_own_host: false,
        at_unix_s: args.at.map_or_else(clock::now_unix_s, Timestamp::as_second),
    })
}

fn time(text: &str) -> Result<Timestamp, &'static str> {
    text.parse().map_err(|_| "write date, time and zone, as in 2025-06-01T12:00:00Z")
}
