//! Connects to the server for an accepted connection. The address of the server depends on the
//! rule:
//!
//! ```text
//! forwarding rule            the addresses of the targets in order; targets that are down come
//!                            last
//! outbound, from a run       the address to which the program connects
//! inbound, to a run          the address on which the program listens; the source address and
//!                            port are those of the client
//! inbound, to captured host  the address on which the program listens; the source address is that
//!                            of the client; the source port is not that of the client, because the
//!                            client's connection to the agent already uses that port
//! ```

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use tacit_core::failover::{Shares, TARGET_SKIPPED};
use tacit_core::flow::{Address, Protocol};
use tacit_core::starttls::StarttlsSide;
use tacit_core::starttls::ftp::DataRequest;
use tacit_sys::socket::{self, StreamOptions};
use tacit_sys::{IpVersion, transparent};

use crate::address;
use crate::log::{Event, EventCause, Log};
use crate::net::Security;
use crate::net::stream_socket::StreamSocket;
use crate::net::target::{LiveTarget, LiveTargets, SeveralTargets};
use crate::run::Outside;
use crate::run::{Run, Scope};
use crate::session::{ConnectionRecord, Unreached};

/// The upstream socket of a connection.
pub(super) struct Upstream {
    pub(super) socket: StreamSocket,
    /// The address that answered.
    pub(super) target: Address,
}

/// The addresses of an inbound connection to a program of a run.
#[derive(Clone, Copy)]
struct InsideRoute {
    /// The address on which the program listens.
    program: SocketAddr,
    /// The source address, which the program sees as the client's.
    source: SocketAddr,
}

/// Dials the target of a connection within `timeout`. `security` is the protection of the new
/// socket.
///
/// # Errors
/// The error of the last address.
pub(super) async fn dial(
    record: &ConnectionRecord,
    log: &Log,
    options: &StreamOptions,
    timeout: Duration,
    security: Security,
) -> Result<Upstream, Unreached> {
    let begun = Instant::now();
    let dialled = dial_within(record, log, options, timeout, security).await;
    if dialled.is_ok() {
        record.rule.counters.connects.add(begun.elapsed());
    }
    dialled
}

async fn dial_within(
    record: &ConnectionRecord,
    log: &Log,
    options: &StreamOptions,
    timeout: Duration,
    security: Security,
) -> Result<Upstream, Unreached> {
    if let Some(LiveTargets::Several(several)) = record.rule.targets.as_deref() {
        let work = dial_several(several, record, log, options, timeout, security);
        // Boxed, so that the future of a connection stays small.
        return Box::pin(work).await;
    }
    match (&record.scope, record.rule.targets.as_deref()) {
        (Some(facts), _) if facts.is_inbound => {
            let work = async {
                match &facts.scope {
                    Scope::Run(run) => dial_inside(run, record, options, security).await,
                    Scope::Host(run) | Scope::Joined(run) => {
                        dial_on_host(run, record, options, security).await
                    }
                }
            };
            tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
                let reason = "the program did not accept the connection in time";
                Err(Unreached::timed_out(reason.to_owned()))
            })
        }
        (Some(facts), _) => {
            let outside = &facts.scope.run().outside;
            let addresses = vec![record.remote.clone()];
            dial_addresses(outside, addresses, options, timeout, security).await
        }
        (None, Some(LiveTargets::Only(target))) => {
            dial_target(target, options, timeout, security).await
        }
        (None, Some(LiveTargets::Several(_)) | None) => {
            Err(Unreached::from("the rule has no target; this is a bug in tacit"))
        }
    }
}

async fn dial_addresses(
    outside: &Outside,
    addresses: Vec<Address>,
    options: &StreamOptions,
    timeout: Duration,
    security: Security,
) -> Result<Upstream, Unreached> {
    let mut last = Unreached::from(
        "the agent is exiting, and does not resolve the name of the target any more",
    );
    // Each address gets an equal share of the time, so that a silent one cannot hide the rest.
    let share = timeout / u32::try_from(addresses.len().max(1)).unwrap_or(1);
    for address in addresses {
        match tokio::time::timeout(share, dial_one(outside, &address, options, security)).await {
            Ok(Ok(socket)) => return Ok(Upstream { socket, target: address }),
            Ok(Err(error)) => last = Unreached::new(&address, &error),
            Err(_) => last = unanswered(&address),
        }
    }
    Err(last)
}

/// Dials one of several targets within `timeout`.
///
/// # Errors
/// The error of the last target.
async fn dial_several(
    several: &SeveralTargets,
    record: &ConnectionRecord,
    log: &Log,
    options: &StreamOptions,
    timeout: Duration,
    security: Security,
) -> Result<Upstream, Unreached> {
    let begun = Instant::now();
    let SeveralTargets { targets, failover, .. } = several;
    let mut last = Unreached::from("no target of the rule answered in time");
    let attempts = failover.attempts(record.target(), begun);
    let mut shares = Shares::new(timeout, attempts.len(), begun);
    for (place, target) in attempts.iter().filter_map(|place| Some((*place, targets.get(*place)?)))
    {
        let Some(share) = shares.take(Instant::now()) else { break };
        match dial_target(target, options, share, security).await {
            Ok(upstream) => {
                record.set_target(place);
                if failover.connected(place) {
                    log.info(about_target(Event::new("target-up"), record, target));
                }
                return Ok(upstream);
            }
            Err(unreached) => {
                if !unreached.is_ours && failover.failed(place, Instant::now()) {
                    let down = about_target(Event::new("target-down"), record, target);
                    let skipped = format!("{}s", TARGET_SKIPPED.as_secs());
                    log.warn(down.field("reason", &unreached.reason).field("skipped", &skipped));
                }
                last = unreached;
            }
        }
    }
    Err(last)
}

/// An event about a target, limited to one line in each second: of connections that are dialled at
/// the same time, some may reach the target and others not.
fn about_target(event: Event, record: &ConnectionRecord, target: &LiveTarget) -> Event {
    let rule = record.rule.name();
    let key = format!("{} {rule} {target}", event.id());
    let event = event.limited(key).caused_by(EventCause::Rule(rule.to_owned()));
    event.field("rule", rule).field("target", target)
}

/// Dials one target within `timeout`, which begins before its name is resolved.
async fn dial_target(
    target: &LiveTarget,
    options: &StreamOptions,
    timeout: Duration,
    security: Security,
) -> Result<Upstream, Unreached> {
    let begun = Instant::now();
    let Ok(addresses) = tokio::time::timeout(timeout, target.addresses()).await else {
        let reason =
            format!("cannot connect to {target}: tacit could not resolve the name in time");
        return Err(Unreached::timed_out(reason));
    };
    let left = timeout.saturating_sub(begun.elapsed());
    dial_addresses(&Outside::Host, addresses, options, left, security).await.map_err(|unreached| {
        // The address alone does not show which name it belongs to.
        let reason = match target {
            LiveTarget::Address(_) => unreached.reason,
            LiveTarget::Name { text, .. } => format!("{text}: {}", unreached.reason),
        };
        Unreached { reason, ..unreached }
    })
}

/// The error for an address that did not answer in time.
pub(super) fn unanswered(address: &impl Display) -> Unreached {
    Unreached::timed_out(format!("cannot connect to {address}: no answer within the timeout"))
}

async fn dial_one(
    outside: &Outside,
    address: &Address,
    options: &StreamOptions,
    security: Security,
) -> io::Result<StreamSocket> {
    outside.dial(&address::to_socket(address)?, options, security).await
}

/// Connects to a server program in a run, from the address of the client.
async fn dial_inside(
    run: &Run,
    record: &ConnectionRecord,
    options: &StreamOptions,
    security: Security,
) -> Result<Upstream, Unreached> {
    let ports = record.rule.rule.inbound().map(|inbound| inbound.local_ports.as_slice());
    let (Address::Inet(client), Address::Inet(dialled)) = (&record.remote, &record.local) else {
        return Err(Unreached::from(
            "tacit connects to the program from the IP address of the client, but this client \
             uses a UNIX socket and has no IP address",
        ));
    };
    let route = find_route(&run.listening(), ports.unwrap_or_default(), *client, *dialled);
    let Some(route) = route else {
        return Err(Unreached::from(
            "no program of the run listens on any of the ports in the rule's `local-ports`",
        ));
    };
    let program = route.program;
    match connect_inside(run, route, options, security).await {
        Ok(socket) => Ok(Upstream { socket, target: program.into() }),
        Err(error) => Err(Unreached::new(
            &format_args!("the program that listens at address {program}"),
            &error,
        )),
    }
}

/// Connects to the program of the host or of a joined namespace to which the client connected, from
/// the client's address. The source port is not the client's own, because the accepted connection
/// uses that.
async fn dial_on_host(
    run: &Run,
    record: &ConnectionRecord,
    options: &StreamOptions,
    security: Security,
) -> Result<Upstream, Unreached> {
    let (Address::Inet(client), Address::Inet(program)) = (&record.remote, &record.local) else {
        return Err(Unreached::from(
            "tacit connects to the program from the IP address of the client, but this client \
             uses a UNIX socket and has no IP address",
        ));
    };
    let program = canonical(*program);
    let source = SocketAddr::new(canonical(*client).ip(), 0);
    match connect_inside_as(run, InsideRoute { program, source }, options, security).await {
        Ok(socket) => Ok(Upstream { socket, target: program.into() }),
        Err(error) => Err(Unreached::new(
            &format_args!("the program that listens at address {program}"),
            &error,
        )),
    }
}

/// Connects to the peer or program that waits for an FTP data connection.
///
/// # Errors
/// An error of the kernel or of the helper.
pub(super) async fn dial_data(
    record: &ConnectionRecord,
    request: DataRequest,
    options: &StreamOptions,
    security: Security,
) -> io::Result<StreamSocket> {
    match &record.scope {
        Some(facts) if request.connects == StarttlsSide::Peer => {
            let run = facts.scope.run();
            dial_program(run, record, request.dial, options, security).await
        }
        scope => {
            let outside = scope.as_ref().map_or(&Outside::Host, |facts| &facts.scope.run().outside);
            dial_one(outside, &request.dial.into(), options, security).await
        }
    }
}

/// Connects to a program of a run that waits for a data connection from its peer.
async fn dial_program(
    run: &Run,
    record: &ConnectionRecord,
    program: SocketAddr,
    options: &StreamOptions,
    security: Security,
) -> io::Result<StreamSocket> {
    let client = match &record.remote {
        Address::Inet(client) => canonical(*client),
        _ => return Err(io::ErrorKind::AddrNotAvailable.into()),
    };
    let source = shown_as(client, program);
    connect_inside(run, InsideRoute { program, source }, options, security).await
}

async fn connect_inside(
    run: &Run,
    route: InsideRoute,
    options: &StreamOptions,
    security: Security,
) -> io::Result<StreamSocket> {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable};
    match connect_inside_as(run, route, options, security).await {
        // The program has a socket with this address, or an earlier connection of the client has
        // not ended completely: use another port of the same client.
        Err(error) if matches!(error.kind(), AddrInUse | AddrNotAvailable) => {
            let source = SocketAddr::new(route.source.ip(), 0);
            connect_inside_as(run, InsideRoute { source, ..route }, options, security).await
        }
        other => other,
    }
}

async fn connect_inside_as(
    run: &Run,
    route: InsideRoute,
    options: &StreamOptions,
    security: Security,
) -> io::Result<StreamSocket> {
    let InsideRoute { program, source } = route;
    let socket = run.helper.socket(Protocol::Tcp, IpVersion::of(program.ip())).await?;
    // The namespace has a congestion control of its own.
    let options = StreamOptions { congestion_control: None, ..options.clone() };
    socket::adopt(socket.as_fd(), &options)?;
    let connected = transparent::bind_spoofed_source(socket.as_fd(), source, program)?;
    let socket = StreamSocket::new(socket, security)?;
    if !connected {
        socket.wait_connected().await?;
    }
    Ok(socket)
}

/// The source address for the program: the client's, if the program accepts its family.
fn shown_as(client: SocketAddr, program: SocketAddr) -> SocketAddr {
    if client.is_ipv4() == program.is_ipv4() {
        return client;
    }
    match program {
        SocketAddr::V4(_) => (Ipv4Addr::LOCALHOST, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::LOCALHOST, 0).into(),
    }
}

/// Finds the listening program for a client, and the source address: the client's own, if the
/// program accepts its family.
///
/// The ports of the rule are tried in order. If the program listens on all addresses, the address
/// that the client used is dialled, so that the program sees the same local address.
fn find_route(
    listening: &[SocketAddr],
    ports: &[RangeInclusive<u16>],
    client: SocketAddr,
    dialled: SocketAddr,
) -> Option<InsideRoute> {
    let client = canonical(client);
    let dialled = canonical(dialled);
    let on_ports = ports.iter().flat_map(|ports| {
        let within = listening.iter().filter(|at| ports.contains(&at.port()));
        let mut sorted: Vec<_> = within.copied().collect();
        // Prefer a listener that accepts the client's family, then one with a specific address.
        sorted.sort_by_key(|at| (!takes(*at, client), at.ip().is_unspecified(), *at));
        sorted
    });
    let listener = on_ports.into_iter().next()?;
    let ip = match listener.ip() {
        IpAddr::V6(ip) if ip.is_unspecified() && client.is_ipv4() => dialled.ip(),
        ip if ip.is_unspecified() && ip.is_ipv4() == dialled.is_ipv4() => dialled.ip(),
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let program = SocketAddr::new(ip, listener.port());
    Some(InsideRoute { program, source: shown_as(client, program) })
}

/// Whether a listener accepts connections from a client's address.
fn takes(listening: SocketAddr, client: SocketAddr) -> bool {
    let any_v6 = listening.is_ipv6() && listening.ip().is_unspecified();
    listening.is_ipv4() == client.is_ipv4() || any_v6
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;

    fn placed(listening: &[&str], ports: &[RangeInclusive<u16>], client: &str) -> String {
        let listening: Vec<SocketAddr> = listening.iter().map(|at| at.parse().unwrap()).collect();
        let dialled = if client.starts_with('[') { "[2001:db8::1]:80" } else { "192.0.2.1:80" };
        let found =
            find_route(&listening, ports, client.parse().unwrap(), dialled.parse().unwrap());
        found.map_or_else(
            || "-".to_owned(),
            |InsideRoute { program, source }| format!("{program} {source}"),
        )
    }

    #[tokio::test]
    async fn a_failure_names_the_target_and_whether_its_name_was_resolved() {
        let (resolved, addresses) = watch::channel(Vec::new());
        let target = LiveTarget::Name { text: "db.example:5432".to_owned(), addresses };
        let options = StreamOptions { congestion_control: None, reset_on_exit: true };
        let dial = async |timeout| {
            let dialled = dial_target(&target, &options, timeout, Security::Clear).await;
            dialled.err().unwrap().reason
        };
        assert_eq!(
            dial(Duration::from_millis(1)).await,
            "cannot connect to db.example:5432: tacit could not resolve the name in time"
        );
        // Port 1 of loopback has no listener.
        resolved.send_replace(vec!["127.0.0.1:1".parse().unwrap()]);
        let reason = dial(Duration::from_secs(60)).await;
        assert!(reason.starts_with("db.example:5432: cannot connect to 127.0.0.1:1: "), "{reason}");
    }

    #[test]
    fn a_client_keeps_its_address_if_the_program_accepts_its_family() {
        let v4 = "203.0.113.9:40000";
        let v6 = "[2001:db8::9]:40000";
        let port = [8000..=8000];
        for (listening, client, wanted) in [
            (&["0.0.0.0:8000"][..], v4, "192.0.2.1:8000 203.0.113.9:40000"),
            (&["127.0.0.1:8000"], v4, "127.0.0.1:8000 203.0.113.9:40000"),
            (&["[::]:8000"], v4, "192.0.2.1:8000 203.0.113.9:40000"),
            (&["[::]:8000"], v6, "[2001:db8::1]:8000 [2001:db8::9]:40000"),
            (&["0.0.0.0:8000", "[::]:8000"], v6, "[2001:db8::1]:8000 [2001:db8::9]:40000"),
            (&["0.0.0.0:8000"], v6, "127.0.0.1:8000 127.0.0.1:0"),
            (&["[::1]:8000"], v4, "[::1]:8000 [::1]:0"),
            (&["0.0.0.0:8001"], v4, "-"),
        ] {
            assert_eq!(placed(listening, &port, client), wanted, "{listening:?} {client}");
        }
    }

    #[test]
    fn the_first_local_port_with_a_listener_is_used() {
        let listening = ["0.0.0.0:80", "0.0.0.0:8080"];
        let client = "203.0.113.9:40000";
        assert!(placed(&listening, &[8080..=8080, 80..=80], client).starts_with("192.0.2.1:8080"));
        assert!(placed(&listening, &[79..=9000], client).starts_with("192.0.2.1:80 "));
    }
}
