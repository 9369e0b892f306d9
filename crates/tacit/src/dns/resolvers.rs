//! The host's resolvers, and what is known of them.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tacit_core::dns::{Configuration, Health, Nameserver, Options, Servers};

use super::PORT;
use super::host_file::HostFile;

/// How long the host's file is taken to stay as it was: no program can change it and ask sooner.
const RECHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The host's resolvers, as its file says now, or those that an operator gave.
#[derive(Debug)]
pub struct Resolvers {
    given: Vec<SocketAddr>,
    of_host: Mutex<HostResolvers>,
    health: Mutex<Health>,
}

/// What the host's file says.
#[derive(Debug)]
struct HostResolvers {
    file: HostFile,
    checked: Option<Instant>,
    current: Current,
}

/// Whom to ask now.
#[derive(Clone, Debug)]
pub(super) struct Current {
    pub(super) servers: Arc<Servers>,
    /// The domains that programs try behind short names.
    pub(super) search: Arc<[String]>,
}

impl Resolvers {
    /// The resolvers that were given, or else those of the host.
    #[must_use]
    pub fn new(given: &[SocketAddr]) -> Self {
        let of_host = HostResolvers {
            file: HostFile::new("/etc/resolv.conf"),
            checked: None,
            current: current(given, &Configuration::read("")),
        };
        Self { given: given.to_vec(), of_host: Mutex::new(of_host), health: Mutex::default() }
    }

    /// Where to ask, in order.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.current().servers.addresses.clone()
    }

    pub(super) fn current(&self) -> Current {
        let mut of_host = self.of_host.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_due = of_host.checked.is_none_or(|checked| now - checked >= RECHECK_INTERVAL);
        if is_due {
            of_host.checked = Some(now);
            if let Some(text) = of_host.file.news() {
                of_host.current = current(&self.given, &Configuration::read(&text));
            }
        }
        of_host.current.clone()
    }

    /// What is known of the resolvers.
    pub(super) fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operator's list has the times that resolvers have without a file.
fn current(given: &[SocketAddr], configuration: &Configuration) -> Current {
    let servers = if given.is_empty() {
        let addresses = configuration.nameservers.iter().filter_map(socket_address).collect();
        Servers { addresses, options: configuration.options }
    } else {
        Servers { addresses: given.to_vec(), options: Options::default() }
    };
    Current { servers: Arc::new(servers), search: configuration.search.as_slice().into() }
}

/// `None` for an interface that is not there.
fn socket_address(server: &Nameserver) -> Option<SocketAddr> {
    match (server.address, &server.interface) {
        (IpAddr::V6(address), Some(interface)) => {
            let number = interface.parse().ok().or_else(|| interface_number(interface))?;
            Some(SocketAddrV6::new(address, PORT, 0, number).into())
        }
        (address, _) => Some(SocketAddr::new(address, PORT)),
    }
}

fn interface_number(name: &str) -> Option<u32> {
    let path = format!("/sys/class/net/{name}/ifindex");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
