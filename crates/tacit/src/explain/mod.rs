//! `tacit explain`: prints which rule matches a flow, and why earlier rules do not match. The
//! command uses a policy file, or the policy of a running agent.
//!
//! With `--peer`, the command prints whether a rule accepts a certificate, and why. With
//! `--packet`, the command prints which rule decides about a packet.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use rustls_pki_types::UnixTime;
use tacit_core::flow::{Address, Direction, Flow, Protocol};
use tacit_core::message_id::MessageId;
use tacit_core::policy::{
    Diagnostic, DiagnosticSeverity, Explanation, FindingsShown, Policy, explain, explain_link,
    parse_files,
};
use tacit_sys::input_file::open_input;

use crate::clock;
use crate::control::client::{self, ClientError};
use crate::control::{Request, private_agents};
use crate::exit::{
    EXIT_FAILURE, EXIT_OK, EXIT_USAGE, complain, fail, fail_policy, print, versioned, with_fix,
};
use crate::live::{directory_of, localize, read_policy};
use crate::policy_file::{self, NO_POLICY};

use self::flow::{FlowDescription, NoFlow};
use self::peer::{Peer, PeerError};

pub(crate) mod flow;
mod packet;
mod peer;

/// The options of `tacit explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  A connection to the listening address of a rule:
    tacit explain --policy policy.toml --listen 0.0.0.0:8443 --remote 192.0.2.7:40000
  A connection that a program opens:
    tacit explain --policy policy.toml --direction outbound \\
        --remote 10.7.0.9:5432 --name db.corp.example --program /usr/bin/psql
  A ping, which may pass through an IPsec tunnel:
    tacit explain --policy policy.toml --direction outbound \\
        --protocol icmp --remote 10.2.0.1:0
  A connection, evaluated with the policy that an agent has installed:
    tacit explain --control --direction outbound --remote 10.7.0.9:5432
  A socket that the other side of a link requests:
    tacit explain --policy link.toml --link guest --direction outbound --remote 10.7.0.9:5432
  One packet of a host under `tacit agent --host`, and all packets in a pcap file:
    tacit explain --policy host.toml --packet \"in eth0 tcp 192.0.2.7:4000 > 10.0.0.1:22 syn\"
    tacit explain --policy host.toml --packet eth0.pcap --way \"in eth0\"
  A client's certificate, with the result of the rule `front` and of its [[map.NAME]] entries:
    tacit explain --policy policy.toml --peer alice.pem --address 10.7.0.9 --rule front")]
pub struct ExplainArgs {
    /// The policy file [default: $TACIT_POLICY]
    #[arg(short, long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Use the policy that an agent has installed; PATH is its control socket
    #[arg(long, value_name = "PATH", num_args = 0..=1, conflicts_with_all = ["policy", "peer"])]
    control: Option<Option<PathBuf>>,
    /// The listening address of a rule, as written in the policy
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Address>,
    /// Evaluate a request for a socket from the other side of this link. For an inbound flow, add
    /// --local; for an outbound flow, add --remote
    #[arg(long, value_name = "NAME", requires = "direction")]
    #[arg(conflicts_with_all = ["control", "listen", "peer", "program", "user", "group"])]
    #[arg(conflicts_with_all = ["cgroup", "run", "names"])]
    link: Option<String>,
    /// The direction of the connection, seen from the program [default: inbound with --listen]
    #[arg(long, value_enum)]
    direction: Option<DirectionArg>,
    /// The transport protocol
    #[arg(long, value_enum, default_value_t = ProtocolArg::Tcp)]
    protocol: ProtocolArg,
    /// The local address [default: that of --listen]
    #[arg(long, value_name = "ADDRESS")]
    local: Option<Address>,
    /// The remote address, with its port
    #[arg(long, value_name = "ADDRESS")]
    #[arg(required_unless_present_any = ["peer", "link", "packet"])]
    remote: Option<Address>,
    /// A name that the program resolved; may be repeated
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// The program's executable
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The user who runs the program
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// The group of the program
    #[arg(long, value_name = "GROUP", conflicts_with = "listen")]
    group: Option<String>,
    /// The control group of the program's socket, such as system.slice/nginx.service
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    cgroup: Option<String>,
    /// The name of the run
    #[arg(long, value_name = "NAME", conflicts_with = "listen")]
    run: Option<String>,
    /// PEM file with the certificate that a peer sends, and its intermediate certificates
    #[arg(long, value_name = "FILE", requires = "asked")]
    #[arg(conflicts_with_all = ["listen", "direction", "local", "remote"])]
    #[arg(conflicts_with_all = ["program", "user", "group", "cgroup", "run"])]
    peer: Option<PathBuf>,
    /// The address of the peer
    #[arg(long, value_name = "IP", requires = "peer")]
    address: Option<IpAddr>,
    /// The rule that checks the peer's certificate
    #[arg(long, value_name = "NAME", requires = "peer", group = "asked")]
    rule: Option<String>,
    /// Evaluate only this identity map, without checking the certificate
    #[arg(long, value_name = "NAME", requires = "peer", group = "asked")]
    map: Option<String>,
    /// Explain which rule decides about one packet, or about each packet of a pcap file
    #[arg(long, value_name = "TEXT|PCAP")]
    #[arg(conflicts_with_all = ["listen", "direction", "local", "remote", "peer", "control"])]
    #[arg(conflicts_with_all = ["program", "user", "group", "cgroup", "run"])]
    packet: Option<String>,
    /// How the packets of the pcap file pass through the host: "in IF", "out IF" or "routed IF IF",
    /// where IF is an interface
    #[arg(long, value_name = "WAY", requires = "packet")]
    way: Option<String>,
    /// When the connection opens, such as 2025-06-01T12:00:00Z [default: now]
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<Timestamp>,
    /// Print as JSON
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
    Icmp,
}

/// A flow that cannot exist.
const NO_FLOW: MessageId = MessageId("no-such-flow");

/// Runs the command. The exit status is 0 for any decision, 1 for an unusable file, 64 for an
/// invalid flow, and 78 for a policy with errors.
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
            if let Some(packet) = &args.packet {
                return explain_packet(args, &policy, packet);
            }
            if let Some(file) = &args.peer {
                return explain_peer(args, &policy, &directory_of(path), file);
            }
            match (flow(args), &args.link) {
                (Ok(flow), None) => Ok(explain(&policy, &flow)),
                (Ok(_), Some(link)) if !policy.links.contains_key(link) => {
                    let reason = format!("the policy has no [link.{link}]");
                    return fail(MessageId("no-link"), reason, EXIT_USAGE);
                }
                (Ok(flow), Some(link)) => Ok(explain_link(&policy, link, &flow)),
                (Err(next_step), _) => return fail(NO_FLOW, next_step, EXIT_USAGE),
            }
        }
    };
    let explanation = match explanation {
        Ok(explanation) => explanation,
        Err(error) => return fail(error.id(), error, EXIT_FAILURE),
    };
    let json = || versioned(&explanation);
    print(if args.json { json() } else { format!("{explanation}\n") }, EXIT_OK)
}

/// Lets an agent evaluate its installed policy.
fn ask(args: &ExplainArgs, flow: Flow) -> Result<Explanation, ClientError> {
    let control =
        private_agents::for_display(args.control.iter().flatten().next().map(AsRef::as_ref));
    let request = Request::Explain { flow: Box::new(flow) };
    client::ask_typed(&control, &request)
}

/// Reads a policy file, but not the files that it names. Prints a warning about the time zone to
/// standard error.
///
/// # Errors
/// The errors of the policy, as text.
pub(crate) fn read(path: &Path) -> Result<Policy, String> {
    let file = path.display().to_string();
    let render = |errors: Vec<Diagnostic>| {
        let lines: Vec<_> = errors.iter().map(|error| error.render(&file)).collect();
        lines.join("\n")
    };
    let text = read_policy(path, open_input, |_, _| Ok(())).map_err(render)?;
    let mut parsed = parse_files(&text, FindingsShown::All);
    text.quote(&mut parsed.diagnostics);
    let Some(mut policy) = parsed.policy else {
        parsed.diagnostics.retain(|one| one.severity == DiagnosticSeverity::Error);
        return Err(render(parsed.diagnostics));
    };
    if let Some(warning) = localize(&mut policy) {
        complain(warning.render(&file));
    }
    Ok(policy)
}

/// Finds the rules for packets.
fn explain_packet(args: &ExplainArgs, policy: &Policy, packet: &str) -> ExitCode {
    let unix_s = args.at.map_or_else(clock::now_unix_s, Timestamp::as_second);
    match packet::explain(policy, packet, args.way.as_deref(), unix_s) {
        Ok(answers) if args.json => print(versioned(&answers), EXIT_OK),
        Ok(answers) => print(answers.text(), EXIT_OK),
        Err(error) => fail(MessageId("no-such-packet"), error, EXIT_USAGE),
    }
}

/// Evaluates a certificate.
fn explain_peer(args: &ExplainArgs, policy: &Policy, base: &Path, file: &Path) -> ExitCode {
    let at_unix_s = args.at.map_or_else(clock::now_unix_s, Timestamp::as_second);
    let at = Duration::from_secs(u64::try_from(at_unix_s).unwrap_or(0));
    let now = UnixTime::since_unix_epoch(at);
    let peer = Peer { file, address: args.address, names: &args.names, now };
    let answer = match (&args.rule, &args.map) {
        (Some(rule), _) => peer::check_with_rule(policy, base, rule, &peer),
        (None, Some(map)) => peer::check_with_map(policy, map, &peer),
        // INVARIANT: `requires = "asked"`.
        (None, None) => Err(PeerError::Usage("--peer needs --rule NAME or --map NAME".to_owned())),
    };
    match answer {
        Ok(answer) if args.json => print(versioned(&answer), EXIT_OK),
        Ok(answer) => print(format!("{answer}\n"), EXIT_OK),
        Err(error) => {
            let next =
                "set --peer to a PEM file that contains the peer's certificate and its chain";
            let text = with_fix(&error.to_string(), next);
            fail(MessageId("no-answer"), text, error.exit_status())
        }
    }
}

/// Parses a flow from the words of a command line; used by the fuzzer.
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
        return Err("the direction of the connection is missing\n    \
                    fix: for a connection that a program opens, add --direction outbound; for \
                    a connection to the `listen` address of a rule, add --direction inbound \
                    --listen ADDRESS");
    }
    let needed = match args.direction {
        Some(DirectionArg::Inbound) => &args.local,
        _ => &args.remote,
    };
    if args.link.is_some() && needed.is_none() {
        return Err(LINK_END_MISSING);
    }
    let description = FlowDescription {
        direction: args.direction.map(|direction| match direction {
            DirectionArg::Inbound => Direction::Inbound,
            DirectionArg::Outbound => Direction::Outbound,
        }),
        protocol: match args.protocol {
            ProtocolArg::Tcp => Protocol::Tcp,
            ProtocolArg::Udp => Protocol::Udp,
            ProtocolArg::Icmp => Protocol::Icmp,
        },
        listen: args.listen.clone(),
        link: args.link.clone(),
        local: args.local.clone(),
        remote: args.remote.clone().unwrap_or(Address::Unnamed),
        names: args.names.clone(),
        program: args.program.clone(),
        user: args.user.clone(),
        group: args.group.clone(),
        cgroup: args.cgroup.clone(),
        run: args.run.clone(),
        at: args.at,
    };
    description.into_flow().map_err(|error| match error {
        NoFlow::ListenMissing => {
            "an inbound flow needs the address at which the connection arrives\n    \
             fix: add --listen ADDRESS, the `listen` address of a rule"
        }
        NoFlow::ListenUnexpected => {
            "an outbound flow has no listening address\n    fix: omit either --listen or \
             --direction outbound"
        }
    })
}

const LINK_END_MISSING: &str = "--link also needs an address\n    fix: for an outbound flow, add \
                                --remote; for an inbound flow, add --local";

pub(crate) fn time(text: &str) -> Result<Timestamp, &'static str> {
    text.parse().map_err(|_| "expected date, time and zone, such as 2025-06-01T12:00:00Z")
}
