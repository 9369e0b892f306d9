//! Captures the traffic of the whole host, for `tacit agent --host`. Installs routing rules and
//! nftables rules that send this traffic to the agent, and creates the agent's sockets.
//!
//! ```text
//! HostCapture::open(marks)   opens the netlink sockets in the current network namespace
//!   .sockets()               creates the sockets that the agent uses
//!   .install(contents)       installs the routing rules and, in one transaction, nftables rules
//!   .learn(addresses, names) captures addresses to which DNS names in policy rules resolve
//! remove()                   removes the routing rules and the nftables rules
//! ```
//!
//! The process needs `CAP_NET_ADMIN` and `CAP_NET_RAW` in this namespace. If the kernel supports
//! owners of nftables tables, no other process can change the nftables rules until this process
//! ends.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::ip_version::IpVersion;
use crate::namespace::{NamespaceError, Netlinks, ip_support, netlinks, with_ipv6};
use crate::netlink::nft::host::{
    self, HostMarks, HostTable, PartAddress, SavedRules, StoredName, WindowTime,
};
use crate::netlink::nft::{Copies, Element, SocketMarks};
use crate::netlink::{Error, Netlink, Subsystem, routing_rule};
use crate::{syn_log, transparent};

pub use crate::netlink::routing_rule::MarkRule;

/// How long to wait for an earlier owner of the table that is ending.
const OWNER_WAIT_MAX: Duration = Duration::from_secs(3);
/// How often names and addresses are read until nothing changes meanwhile.
const READS_MAX: usize = 5;
/// The interval between two checks for the earlier owner.
const OWNER_POLL: Duration = Duration::from_millis(20);

/// The rights to change the capture of a host.
#[derive(Debug)]
pub struct HostCapture {
    /// The netlink sockets.
    pub netlinks: Netlinks,
    marks: HostMarks,
}

/// The sockets of one IP version.
#[derive(Debug)]
struct FamilySockets {
    tcp: OwnedFd,
    udp: OwnedFd,
    raw: OwnedFd,
    hold: OwnedFd,
    release: OwnedFd,
}

/// The sockets that the agent uses. On a kernel without IPv6, the sockets for IPv6 are absent.
#[derive(Debug)]
pub struct HostSockets {
    syn_log: OwnedFd,
    families: Vec<FamilySockets>,
    inbound: Vec<OwnedFd>,
}

impl HostSockets {
    /// Copies of SYNs. Then of each IP version the sockets for captured TCP, for captured UDP, for
    /// errors in the name of others, and those that hold and release SYNs. Then of each IP version
    /// the listener for clients of the host's programs.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = vec![self.syn_log.as_fd()];
        for FamilySockets { tcp, udp, raw, hold, release } in &self.families {
            all.extend([tcp, udp, raw, hold, release].map(AsFd::as_fd));
        }
        all.extend(self.inbound.iter().map(AsFd::as_fd));
        all
    }
}

impl HostCapture {
    /// Opens the lines to the kernel.
    ///
    /// # Errors
    /// The error of a system call.
    pub fn open(marks: HostMarks) -> Result<Self, NamespaceError> {
        let mut netlinks = netlinks()?;
        // Without it a large policy is refused, with that reason.
        let _ = netlinks.netfilter.allow_large_batches();
        Ok(Self { netlinks, marks })
    }

    /// The bits of packet marks.
    #[must_use]
    pub fn marks(&self) -> HostMarks {
        self.marks
    }

    /// The marks of the sockets it makes.
    #[must_use]
    pub fn socket_marks(&self) -> SocketMarks {
        SocketMarks { agent: self.marks.agent(), release: self.marks.release() }
    }

    /// Makes the sockets. Those of an agent that ends just now may still have their ports: it waits
    /// for these for a moment.
    ///
    /// # Errors
    /// Those of the system calls: `EADDRINUSE` if another process has a port of the agent, `EBUSY`
    /// if it has its log group.
    pub fn sockets(&self) -> io::Result<HostSockets> {
        let until = Instant::now() + OWNER_WAIT_MAX;
        loop {
            match self.make() {
                Err(error) if is_taken(&error) && Instant::now() < until => {
                    std::thread::sleep(OWNER_POLL);
                }
                made => return made,
            }
        }
    }

    fn make(&self) -> io::Result<HostSockets> {
        let marks = self.socket_marks();
        let of_family = |version| {
            Ok(FamilySockets {
                tcp: transparent::listener(version, Some(marks.agent))?,
                udp: transparent::receiver(version)?,
                raw: transparent::raw_socket(version, marks)?,
                hold: transparent::hold_listener(version)?,
                release: transparent::release_socket(version, marks)?,
            })
        };
        let mut families = vec![of_family(IpVersion::V4)?];
        families.extend(with_ipv6(of_family)?);
        let mut inbound = vec![transparent::inbound_listener(IpVersion::V4)?];
        inbound.extend(with_ipv6(transparent::inbound_listener)?);
        Ok(HostSockets { syn_log: syn_log::open(Copies::OfRule)?, families, inbound })
    }

    /// Installs the routing rules and the table, in place of those that are there.
    ///
    /// # Errors
    /// What the kernel refuses; the nftables rules are then those from before. `EPERM`: another
    /// process owns the table.
    pub fn install(&mut self, table: &HostTable<'_>) -> Result<(), Error> {
        let kernel = ip_support();
        routing_rule::install(&mut self.netlinks.route, kernel, self.marks.captured())?;
        let until = Instant::now() + OWNER_WAIT_MAX;
        loop {
            match host::install(&mut self.netlinks.netfilter, kernel, table) {
                Err(error) if is_owned(&error) && Instant::now() < until => {
                    std::thread::sleep(OWNER_POLL);
                }
                installed => return installed,
            }
        }
    }

    /// Whether the table must be installed again, because NAT may change destinations now.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn is_outdated(&mut self) -> Result<bool, Error> {
        host::is_outdated(&mut self.netlinks.netfilter)
    }

    /// Makes the installed table cheaper if no connection is left that an earlier table captured
    /// and this one would not.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn forget_strays(&mut self, table: &HostTable<'_>) -> Result<(), Error> {
        host::forget_strays(&mut self.netlinks.netfilter, table)
    }

    /// How many connections and datagrams the installed table, which is this one, has counted.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn counts(&mut self, table: &HostTable<'_>) -> Result<BTreeMap<u32, u64>, Error> {
        let netfilter = &mut self.netlinks.netfilter;
        read_unbroken(|| {
            let mut counts = host::counts(netfilter, table)?;
            if let Some(filters) = &table.filters {
                host::count_filters(netfilter, filters, &mut counts)?;
            }
            Ok(counts)
        })
    }

    /// Replaces the time windows of filters in the installed table.
    ///
    /// # Errors
    /// The kernel's. `ENOENT`: the table has no filters.
    pub fn set_windows(&mut self, present: &[WindowTime]) -> Result<(), Error> {
        host::set_windows(&mut self.netlinks.netfilter, present)
    }

    /// Installs the routing rules that another program has removed; returns whether there were any.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn restore_routes(&mut self) -> Result<bool, Error> {
        routing_rule::install(&mut self.netlinks.route, ip_support(), self.marks.captured())
    }

    /// Installs the table of units with these destinations. It keeps the units that it has.
    ///
    /// # Errors
    /// What the kernel refuses; nothing has changed then.
    pub fn install_units(&mut self, mark: u32, destinations: &[Element]) -> Result<(), Error> {
        host::install_units(&mut self.netlinks.netfilter, mark, destinations)
    }

    /// The control groups of units that the kernel has; `None` without the table.
    ///
    /// # Errors
    /// The kernel's.
    pub fn units(&mut self) -> Result<Option<Vec<u64>>, Error> {
        read_unbroken(|| host::units_in_kernel(&mut self.netlinks.netfilter))
    }

    /// Whether the table of units has rules; another program may have removed them.
    ///
    /// # Errors
    /// The kernel's.
    pub fn has_unit_rules(&mut self) -> Result<bool, Error> {
        host::has_unit_rules(&mut self.netlinks.netfilter)
    }

    /// Adds control groups of units.
    ///
    /// # Errors
    /// The kernel's. `ENOENT`: the table of units is not installed.
    pub fn add_units(&mut self, groups: &[u64]) -> Result<(), Error> {
        host::add_units(&mut self.netlinks.netfilter, groups)
    }

    /// Removes the table of units, if it is there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_units(&mut self) -> Result<(), Error> {
        host::remove_units(&mut self.netlinks.netfilter)
    }

    /// Captures addresses with names, and stores the names, at one stroke.
    ///
    /// # Errors
    /// The kernel's; nothing has changed then. `ENOENT`: no table for rules by name is installed.
    pub fn learn(&mut self, addresses: &[PartAddress], names: &[StoredName]) -> Result<(), Error> {
        host::learn(&mut self.netlinks.netfilter, addresses, names)
    }

    /// The names that the kernel has; a change meanwhile is waited for.
    ///
    /// # Errors
    /// The kernel's.
    pub fn stored_names(&mut self) -> Result<Vec<StoredName>, Error> {
        read_unbroken(|| host::stored_names(&mut self.netlinks.netfilter))
    }

    /// The addresses with names that the kernel captures, and the rest of their times.
    ///
    /// # Errors
    /// The kernel's.
    pub fn named_addresses(&mut self) -> Result<Vec<PartAddress>, Error> {
        read_unbroken(|| host::named_addresses(&mut self.netlinks.netfilter))
    }

    /// Copies the nftables rules that are there; `None`: there are none.
    ///
    /// # Errors
    /// The kernel's.
    pub fn save(&mut self) -> Result<Option<SavedRules>, Error> {
        read_unbroken(|| host::save(&mut self.netlinks.netfilter))
    }

    /// Installs saved nftables rules in place of those that are there. Routing rules stay: those of
    /// the saved nftables rules are among them.
    ///
    /// # Errors
    /// The kernel's. `EPERM`: another process owns the table.
    pub fn put_back(&mut self, saved: &SavedRules) -> Result<(), Error> {
        host::put_back(&mut self.netlinks.netfilter, saved)
    }

    /// Removes table and routing rules.
    ///
    /// # Errors
    /// What the kernel refuses. `EPERM`: another process owns the table.
    pub fn remove(&mut self) -> Result<(), Error> {
        // Without the table nothing is marked any more.
        host::remove(&mut self.netlinks.netfilter)?;
        routing_rule::remove(&mut self.netlinks.route, ip_support())
    }

    /// Whether table and routing rules are there, and the table was installed since the host has
    /// booted: no copy of an earlier one that another program has restored.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn is_of_this_boot(&mut self) -> Result<bool, Error> {
        Ok(host::is_of_this_boot(&mut self.netlinks.netfilter)?
            && routing_rule::is_installed(&mut self.netlinks.route, ip_support())?)
    }

    /// Whether the table is there.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn is_installed(&mut self) -> Result<bool, Error> {
        host::is_installed(&mut self.netlinks.netfilter)
    }
}

/// The routing rules of other programs that look at packet marks, in the namespace of the calling
/// thread.
///
/// # Errors
/// Those of the system calls.
pub fn mark_rules_of_others() -> Result<Vec<MarkRule>, Error> {
    let route = Netlink::open(Subsystem::Route);
    let mut route = route.map_err(|error| Error::Socket { call: "socket", error })?;
    routing_rule::of_others(&mut route, ip_support())
}

/// Removes table and routing rules from the namespace of the calling thread.
///
/// # Errors
/// What the kernel refuses; what could be removed is removed. `EPERM`: another process owns the
/// table.
pub fn remove() -> Result<(), Error> {
    let open = |subsystem| {
        Netlink::open(subsystem).map_err(|error| Error::Socket { call: "socket", error })
    };
    // Without the table nothing is marked any more.
    host::remove(&mut open(Subsystem::Netfilter)?)?;
    routing_rule::remove(&mut open(Subsystem::Route)?, ip_support())
}

/// Reads until nothing changes meanwhile.
fn read_unbroken<T>(mut read: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 1..READS_MAX {
        match read() {
            Err(error) if error.errno() == Some(libc::EINTR) => {}
            read => return read,
        }
    }
    read()
}

/// Whether another process has the sockets of [`HostCapture::sockets`].
#[must_use]
pub fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::ResourceBusy)
}

fn is_owned(error: &Error) -> bool {
    error.errno() == Some(libc::EPERM)
}
