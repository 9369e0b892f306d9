//! Copies the interfaces and addresses of the host into the network namespace of every program
//! under `tacit run`. The copies behave like loopback interfaces.
//!
//! ```text
//! host's interfaces ── read ──> HostNetwork ──> helper: the same interfaces in the run
//!                                └─────> policy: a flow to one of these addresses matches
//!                                         only rules that list the address
//! ```
//!
//! When the kernel reports a change of the host's interfaces, this module reads the addresses
//! again. [`RouteChanges`] receives the kernel's reports about routes, for tunnels.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use tacit_sys::netlink::changes;
use tacit_sys::netlink::interfaces::{self, Assigned, Found, Interface};
use tacit_sys::netlink::route::{OWN_UNIQUE_LOCAL, OWN_V4, OWN_V6, SourceAddresses};
use tacit_sys::netlink::{Netlink, Subsystem};
use tacit_sys::watch::{Watched, watch};
use tokio::io::Interest;
use tokio::time::Instant;

use crate::net::route::source_towards;

/// How long after a change of the routes the next reports of the kernel are read. A host may change
/// its routes thousands of times in a second.
const ROUTES_INTERVAL: Duration = Duration::from_secs(1);

/// The addresses of the host, as they were last read.
#[derive(Debug)]
pub struct HostNetwork {
    now: ArcSwap<HostAddresses>,
    /// The netlink socket; `None` if it cannot be opened, and then the host has no addresses.
    route: Option<Mutex<Netlink>>,
}

/// The addresses of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostAddresses {
    /// Its interfaces, which are copied into runs.
    pub interfaces: Vec<HostInterface>,
    /// Addresses of interfaces that are down, which are not copied.
    #[serde(default)]
    pub elsewhere: Vec<IpAddr>,
    /// Its source address for IPv4; `None` if it has none.
    pub source_v4: Option<Ipv4Addr>,
    /// Its source address for IPv6.
    pub source_v6: Option<Ipv6Addr>,
    /// Its source address for unique local addresses.
    pub source_unique_local: Option<Ipv6Addr>,
}

/// An interface of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostInterface {
    /// Its name.
    pub name: String,
    /// Its addresses, each with the length of its prefix.
    pub addresses: Vec<(IpAddr, u8)>,
}

impl HostNetwork {
    /// The current addresses of the host.
    #[must_use]
    pub fn new() -> Self {
        let route = Netlink::open(Subsystem::Route).ok().map(Mutex::new);
        let host = Self { now: ArcSwap::default(), route };
        host.look();
        host
    }

    /// Reads the addresses again; returns whether they have changed.
    pub fn look(&self) -> bool {
        let Some(route) = &self.route else { return false };
        let found = {
            let mut route = route.lock().unwrap_or_else(PoisonError::into_inner);
            interfaces::find(&mut route)
        };
        // If the addresses cannot be read, the old ones stay in use.
        let Ok(found) = found else { return false };
        let addresses = HostAddresses::new(found);
        let has_changed = addresses != **self.now.load();
        if has_changed {
            self.now.store(Arc::new(addresses));
        }
        has_changed
    }

    /// The addresses of the host.
    #[must_use]
    pub fn addresses(&self) -> Arc<HostAddresses> {
        self.now.load_full()
    }

    /// The addresses from which the host connects to other hosts.
    #[must_use]
    pub fn source_addresses(&self) -> Vec<IpAddr> {
        let now = self.now.load();
        let v4 = now.source_v4.map(IpAddr::from);
        v4.into_iter().chain(now.source_v6.map(IpAddr::from)).collect()
    }

    /// Whether the host has the address.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.now.load().all().any(|own| own == address)
    }
}

/// The kernel's reports about changes of the host's interfaces.
#[derive(Debug)]
pub struct InterfaceChanges(ChangeSocket);

impl InterfaceChanges {
    /// Watches the reports with the runtime of the calling thread. If the kernel cannot report
    /// changes, the host is assumed not to change.
    #[must_use]
    pub fn watch() -> Self {
        Self(ChangeSocket::watch(changes::of_interfaces()))
    }

    /// Waits for the next change.
    pub async fn next(&self) {
        self.0.next().await;
    }
}

/// The kernel's reports about changes of the host's routes.
#[derive(Debug)]
pub struct RouteChanges {
    socket: ChangeSocket,
    /// When the next reports are read.
    next_at: Cell<Instant>,
}

impl RouteChanges {
    /// Watches the reports with the runtime of the calling thread. If the kernel cannot report
    /// changes, the routes are assumed not to change.
    #[must_use]
    pub fn watch() -> Self {
        let socket = ChangeSocket::watch(changes::of_routes());
        Self { socket, next_at: Cell::new(Instant::now()) }
    }

    /// Waits for the next change. Changes within a second count as one.
    pub async fn next(&self) {
        tokio::time::sleep_until(self.next_at.get()).await;
        self.socket.next().await;
        self.next_at.set(Instant::now() + ROUTES_INTERVAL);
    }
}

/// The socket for the kernel's reports about changes; `None`: the kernel cannot report changes.
#[derive(Debug)]
struct ChangeSocket(Option<Watched>);

impl ChangeSocket {
    fn watch(socket: io::Result<OwnedFd>) -> Self {
        Self(socket.and_then(|socket| watch(Arc::new(socket), Interest::READABLE)).ok())
    }

    /// Waits for reports, and discards them.
    async fn next(&self) {
        let Some(socket) = &self.0 else { return std::future::pending().await };
        if let Ok(mut ready) = socket.readable().await {
            changes::discard(socket.get_ref().as_fd());
            ready.clear_ready();
        }
    }
}

impl Default for HostNetwork {
    fn default() -> Self {
        Self::new()
    }
}

impl HostAddresses {
    fn new(found: Found) -> Self {
        let Found { interfaces, elsewhere } = found;
        let interface = |Interface { name, addresses }: Interface| HostInterface {
            name,
            addresses: addresses.into_iter().map(|one| (one.address, one.prefix_bits)).collect(),
        };
        let interfaces = interfaces.into_iter().map(interface).collect();
        let mut host = Self { interfaces, elsewhere, ..Self::default() };
        let source =
            |to: IpAddr| source_towards(to).filter(|own| host.inside().any(|one| one == *own));
        let first = |is_v4: bool| host.inside().find(|own| own.is_ipv4() == is_v4);
        let v4 = source(TOWARDS_V4.into()).or_else(|| first(true));
        let v6 = source(TOWARDS_V6.into()).or_else(|| first(false));
        let unique_local = source(TOWARDS_UNIQUE_LOCAL.into()).or(v6);
        host.source_v4 = v4.and_then(only_v4);
        host.source_v6 = v6.and_then(only_v6);
        host.source_unique_local = unique_local.and_then(only_v6);
        host
    }

    /// All addresses.
    pub fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.inside().chain(self.elsewhere.iter().copied())
    }

    /// The addresses that are copied into runs.
    fn inside(&self) -> impl Iterator<Item = IpAddr> {
        self.interfaces.iter().flat_map(|one| one.addresses.iter().map(|(address, _)| *address))
    }

    /// The interfaces in the form of the kernel.
    #[must_use]
    pub fn interfaces(&self) -> Vec<Interface> {
        let assigned = |(address, prefix_bits): &(IpAddr, u8)| Assigned {
            address: *address,
            prefix_bits: *prefix_bits,
        };
        let interface = |one: &HostInterface| Interface {
            name: one.name.clone(),
            addresses: one.addresses.iter().map(assigned).collect(),
        };
        self.interfaces.iter().map(interface).collect()
    }

    /// The source addresses of programs; those of the run if the host has none.
    #[must_use]
    pub fn sources(&self) -> SourceAddresses {
        SourceAddresses {
            v4: self.source_v4.unwrap_or(OWN_V4),
            v6: self.source_v6.unwrap_or(OWN_V6),
            unique_local: self.source_unique_local.unwrap_or(OWN_UNIQUE_LOCAL),
        }
    }
}

fn only_v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

fn only_v6(address: IpAddr) -> Option<Ipv6Addr> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(address),
    }
}

/// Documentation addresses (RFC 5737, RFC 3849), and a unique local address.
const TOWARDS_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const TOWARDS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const TOWARDS_UNIQUE_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
