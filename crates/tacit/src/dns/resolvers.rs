//! Stores the resolvers of the host (`/etc/resolv.conf`), and records which of them answer.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tacit_core::dns::{Health, Nameserver, ResolverConfig, ResolverOptions, ServerList};
use tokio::sync::{Notify, watch};

use super::PORT;
use crate::host_file::HostFile;

/// The interval of checks whether the host's file has changed.
const RECHECK_INTERVAL: Duration = Duration::from_millis(1);
/// The interval of checks if the file could not be read.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a query waits until a changed file has been read. After that time it is sent to the
/// previous resolvers.
const READ_WAIT_MAX: Duration = Duration::from_millis(100);

/// The resolvers in the host's file, or those that the operator has given.
#[derive(Debug)]
pub struct Resolvers {
    given: Vec<SocketAddr>,
    of_host: Mutex<HostResolvers>,
    /// Wakes the thread that reads the file.
    host_file_changed: Notify,
    /// Counts the readings.
    reads: watch::Sender<u64>,
    health: Mutex<Health>,
}

/// The content of the host's file.
#[derive(Debug)]
struct HostResolvers {
    file: HostFile,
    /// When the file is checked again.
    due: Instant,
    is_outdated: bool,
    current: Current,
}

/// The servers to which queries are sent.
#[derive(Clone, Debug)]
pub(super) struct Current {
    pub(super) servers: Arc<ServerList>,
    /// The search domains of programs.
    pub(super) search: Arc<[String]>,
}

impl Resolvers {
    /// The given resolvers, or otherwise those of the host.
    #[must_use]
    pub fn new(given: &[SocketAddr]) -> Self {
        let of_host = HostResolvers {
            file: HostFile::new("/etc/resolv.conf"),
            due: Instant::now(),
            is_outdated: true,
            current: current(given, &ResolverConfig::read("")),
        };
        let resolvers = Self {
            given: given.to_vec(),
            of_host: Mutex::new(of_host),
            host_file_changed: Notify::new(),
            reads: watch::Sender::default(),
            health: Mutex::default(),
        };
        resolvers.read_again();
        resolvers
    }

    /// Waits until a thread that opens no files has found that the host's file has changed.
    pub async fn host_file_changed(&self) {
        self.host_file_changed.notified().await;
    }

    /// Reads the host's file if it has changed.
    pub fn read_again(&self) {
        let mut of_host = self.of_host();
        match of_host.file.news() {
            Some(text) => of_host.current = current(&self.given, &ResolverConfig::read(&text)),
            None if of_host.is_outdated => of_host.due = Instant::now() + RETRY_INTERVAL,
            None => {}
        }
        of_host.is_outdated = false;
        self.reads.send_modify(|reads| *reads += 1);
    }

    /// If the host's file is being read, waits for the end of that.
    pub(super) fn reading(&self) -> Option<impl Future<Output = ()> + 'static> {
        let mut of_host = self.of_host();
        let now = Instant::now();
        if now >= of_host.due {
            of_host.due = now + RECHECK_INTERVAL;
            if !of_host.is_outdated && of_host.file.has_changed() {
                of_host.is_outdated = true;
                self.host_file_changed.notify_one();
            }
        }
        let mut reads = of_host.is_outdated.then(|| self.reads.subscribe())?;
        Some(async move {
            let _ = tokio::time::timeout(READ_WAIT_MAX, reads.changed()).await;
        })
    }

    fn of_host(&self) -> MutexGuard<'_, HostResolvers> {
        self.of_host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The servers to which queries are sent, in order.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.current().servers.addresses.clone()
    }

    pub(super) fn current(&self) -> Current {
        self.of_host().current.clone()
    }

    /// The state of the resolvers.
    pub(super) fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For resolvers that an operator lists, the default options of `/etc/resolv.conf` apply.
fn current(given: &[SocketAddr], configuration: &ResolverConfig) -> Current {
    let servers = if given.is_empty() {
        let addresses = configuration.nameservers.iter().filter_map(socket_address).collect();
        ServerList { addresses, options: configuration.options }
    } else {
        ServerList { addresses: given.to_vec(), options: ResolverOptions::default() }
    };
    Current { servers: Arc::new(servers), search: configuration.search.as_slice().into() }
}

/// Returns `None` if the interface does not exist.
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
