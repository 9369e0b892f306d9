//! Part of the server of a link: checks requests for sockets against the policy, and opens the
//! permitted sockets. The requests come from the other side of the link, which has no network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tacit_core::datagram::is_for_one;
use tacit_core::flow::{Direction, Flow, Protocol};
use tacit_core::policy::selector::AddressSelector;
use tacit_core::policy::{LinkNames, LinkRule, LinkVerdict};
use tacit_sys::datagram::{self, AnswerSources};
use tacit_sys::socket::{self, SocketAddress, StreamOptions};
use tacit_sys::watch::watch;
use tacit_sys::{IpVersion, handed};
use tokio::io::Interest;

use super::Server;
use crate::clock;
use crate::run::link::protocol::{OpenKind, OpenRequest};
use crate::run::outside::is_routable;

/// The port of DNS.
const DNS_PORT: u16 = crate::dns::PORT;
/// The maximum number of ports that are tried for a request for any port.
const PORTS_TRIED_MAX: usize = 1024;

/// A request whose port is known.
pub(super) struct PortedRequest {
    pub(super) request: OpenRequest,
    /// The socket, if it was bound to find a free port.
    pub(super) socket: Option<OwnedFd>,
}

/// The IP versions that a server reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) ipv4: bool,
    pub(super) ipv6: bool,
}

impl Server {
    /// Whether the policy lets a link have this socket; otherwise the reason.
    pub(super) fn judge(&self, link: &str, request: &OpenRequest) -> Result<(), String> {
        let OpenRequest { kind, address, .. } = *request;
        let address = canonical(address);
        let none = SocketAddr::new(unspecified(address), 0);
        let (direction, protocol) = match kind {
            OpenKind::Connected | OpenKind::Handed => (Direction::Outbound, Protocol::Tcp),
            OpenKind::Bound | OpenKind::BoundAgain => (Direction::Inbound, Protocol::Tcp),
            OpenKind::Datagrams | OpenKind::DatagramsOfHost | OpenKind::DatagramsOfAll => {
                (Direction::Outbound, Protocol::Udp)
            }
        };
        let is_query = matches!(kind, OpenKind::Connected | OpenKind::Datagrams);
        if is_query && self.offered_resolvers(link).contains(&address) {
            return Ok(());
        }
        self.check_local(link, direction, address)?;
        if direction == Direction::Outbound && !is_for_one(address.ip()) {
            return Err(format!("{ip} is not a unicast address", ip = address.ip()));
        }
        let (local, remote) = match direction {
            Direction::Outbound => (none, address),
            Direction::Inbound => (address, none),
        };
        let flow = Flow {
            direction,
            protocol,
            listen: None,
            local: local.into(),
            remote: remote.into(),
            remote_names: Vec::new(),
            alias: None,
            is_shared: false,
            program: None,
            user: None,
            group: None,
            cgroup: None,
            run: None,
            to_own_host: direction == Direction::Outbound && self.host.has(address.ip()),
            at_unix_s: clock::now_unix_s(),
        };
        let policy = Arc::clone(&self.policy.borrow());
        let what = || match direction {
            Direction::Outbound => format!("{word} to {address}", word = protocol.word()),
            Direction::Inbound => format!("listening at {address}"),
        };
        match policy.link_rule(link, &flow) {
            Some(rule) if rule.verdict == LinkVerdict::Permit => Ok(()),
            Some(rule) => Err(format!("rule `{}` of the link {link} denies {}", rule.name, what())),
            None if flow.to_own_host => Err(format!(
                "no rule of the link {link} matches {}. This is an address of the server's own \
                 host, so `remote` must contain this address or its name, and not only a network",
                what()
            )),
            None => Err(format!("no rule of the link {link} matches {}", what())),
        }
    }

    /// Binds a free port that the rules of a link permit, if a request is for port 0. Requests that
    /// no rule permits are returned as they are.
    ///
    /// # Errors
    /// All these ports are in use, or another error of `bind`.
    pub(super) fn with_port(&self, link: &str, request: OpenRequest) -> io::Result<PortedRequest> {
        let none = PortedRequest { request, socket: None };
        if request.kind != OpenKind::Bound || request.address.port() != 0 {
            return Ok(none);
        }
        let policy = Arc::clone(&self.policy.borrow());
        let is_for = |rule: &&LinkRule| {
            rule.selectors.direction == Direction::Inbound
                && rule.verdict == LinkVerdict::Permit
                && rule.links.iter().any(|one| one == link)
        };
        let rules = policy.link_rules.iter().filter(is_for);
        let ports: Vec<_> = rules.flat_map(|rule| rule.selectors.local_ports.clone()).collect();
        let count: usize = ports.iter().map(|range| range.clone().count()).sum();
        let first = self.last_port.get().wrapping_add(1) % count.max(1);
        self.last_port.set(first);
        let mut in_use = None;
        let tried =
            ports.into_iter().flatten().cycle().skip(first).take(count.min(PORTS_TRIED_MAX));
        for port in tried {
            let mut request = request;
            request.address.set_port(port);
            if self.judge(link, &request).is_err() {
                continue;
            }
            match bind(canonical(request.address)) {
                Ok(socket) => return Ok(PortedRequest { request, socket: Some(socket) }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => in_use = Some(error),
                Err(error) => return Err(error),
            }
        }
        in_use.map_or(Ok(none), Err)
    }

    /// Rejects addresses that sockets with the local addresses of the link cannot have or reach.
    fn check_local(
        &self,
        link: &str,
        direction: Direction,
        address: SocketAddr,
    ) -> Result<(), String> {
        let policy = self.policy.borrow();
        let Some(parsed) = policy.links.get(link) else { return Ok(()) };
        let ip = address.ip();
        let is_possible = match direction {
            Direction::Outbound => parsed.has_local_like(ip),
            Direction::Inbound => parsed.local.is_empty() || parsed.local.contains(&ip),
        };
        if is_possible {
            return Ok(());
        }
        let local: Vec<_> = parsed.local.iter().map(ToString::to_string).collect();
        let verb = if direction == Direction::Outbound { "reach" } else { "listen at" };
        Err(format!(
            "sockets of the link {link} cannot {verb} {address}, because `local` of [link.{link}] \
             contains only {local}",
            local = local.join(" ")
        ))
    }

    /// The local address of a socket that a link opens to an address; `None`: the kernel chooses.
    pub(super) fn local_for(&self, link: &str, address: SocketAddr) -> Option<IpAddr> {
        let address = canonical(address).ip();
        self.policy.borrow().links.get(link).and_then(|link| link.local_for(address))
    }

    /// The addresses from which sockets of a link connect.
    pub(super) fn source_addresses(&self, link: &str) -> Vec<IpAddr> {
        match self.policy.borrow().links.get(link) {
            Some(link) if !link.local.is_empty() => link.local.clone(),
            _ => self.host.source_addresses(),
        }
    }

    /// The resolvers that a link may use.
    pub(super) fn offered_resolvers(&self, link: &str) -> Vec<SocketAddr> {
        let policy = self.policy.borrow();
        let Some(link) = policy.links.get(link).filter(|link| link.names == LinkNames::Resolved)
        else {
            return Vec::new();
        };
        let mut all = self.resolvers.addresses();
        let is_reached = |address: IpAddr| address.is_loopback() || link.has_local_like(address);
        all.retain(|server| server.port() == DNS_PORT && is_reached(server.ip()));
        all
    }

    /// The IP versions of which this host has a route to a public address, or to an address that a
    /// rule of the link contains.
    pub(super) fn reached(&self, link: &str) -> Reached {
        let policy = self.policy.borrow();
        let rules =
            policy.link_rules.iter().filter(|rule| rule.links.iter().any(|one| one == link));
        let named = rules.flat_map(|rule| &rule.selectors.remote).filter_map(first_address);
        let public: [IpAddr; 2] = [
            Ipv4Addr::new(192, 0, 2, 1).into(),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        ];
        let mut reached = Reached { ipv4: false, ipv6: false };
        for address in public.into_iter().chain(named) {
            let one = if address.is_ipv4() { &mut reached.ipv4 } else { &mut reached.ipv6 };
            *one = *one || is_routable(address);
        }
        if let Some(link) = policy.links.get(link) {
            reached.ipv4 &= link.has_local_like(Ipv4Addr::UNSPECIFIED.into());
            reached.ipv6 &= link.has_local_like(Ipv6Addr::UNSPECIFIED.into());
        }
        reached
    }
}

fn first_address(selector: &AddressSelector) -> Option<IpAddr> {
    match selector {
        AddressSelector::Prefix { network, .. } => Some(*network),
        AddressSelector::Range { first, .. } => Some(*first),
        AddressSelector::Near(_) | AddressSelector::Name { .. } => None,
    }
}

/// Opens a socket, from a local address if there is one. Does not wait longer than the kernel.
///
/// # Errors
/// The error of the kernel.
pub(super) async fn open(request: &OpenRequest, local: Option<IpAddr>) -> io::Result<Arc<OwnedFd>> {
    let address = canonical(request.address);
    let socket = match request.kind {
        OpenKind::Connected => return connect(local, address).await,
        OpenKind::Handed => {
            let version = IpVersion::of(request.address.ip());
            local.map_or_else(
                || handed::new_tcp(version),
                |local| handed::new_tcp_from(version, local),
            )
        }
        OpenKind::Bound | OpenKind::BoundAgain => bind(address),
        OpenKind::Datagrams => datagram::dial_from(local, address),
        OpenKind::DatagramsOfHost => {
            datagram::dial_unconnected_from(local, address, AnswerSources::Destination)
        }
        OpenKind::DatagramsOfAll => {
            datagram::dial_unconnected_from(local, address, AnswerSources::Any)
        }
    };
    Ok(Arc::new(socket?))
}

/// Binds a TCP socket.
fn bind(address: SocketAddr) -> io::Result<OwnedFd> {
    let at = SocketAddress::from(address);
    socket::reserve(&at, &StreamOptions::default().for_address(&at))
}

async fn connect(local: Option<IpAddr>, address: SocketAddr) -> io::Result<Arc<OwnedFd>> {
    let to = SocketAddress::from(address);
    let dialled = socket::dial_from(local, &to, &StreamOptions::default().for_address(&to))?;
    let socket = Arc::new(dialled.socket);
    if !dialled.is_connected && !socket::is_connected(socket.as_fd())? {
        let watched = watch(Arc::clone(&socket), Interest::WRITABLE)?;
        drop(watched.writable().await?);
        socket::take_error(socket.as_fd())?;
    }
    Ok(socket)
}

/// IPv4 addresses inside IPv6 are connected as IPv4, and compared with rules as such.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(address.ip().to_canonical(), address.port())
        }
        _ => address,
    }
}

fn unspecified(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
