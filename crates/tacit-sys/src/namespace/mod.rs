//! Creates a network namespace for one program, in a helper process and without root.
//!
//! ```text
//! launcher --starts--> helper: create(parent, families)   user and network namespace, same uid
//!                              sockets()                  the sockets that the agent needs
//!                              --descriptors--> agent     then creates more at the agent's request
//!          --starts--> helper: join(parent, ...)          in place of a helper that ended
//! launcher --spawn::spawn--> program                      joins the helper's namespaces
//! ```
//!
//! The helper must be a new process with one thread: the kernel lets only such a process enter a
//! user namespace. There the helper has every capability, but only over that namespace. The program
//! that joins the namespace later has no capability, because executing a program drops them. The
//! user ID inside is the same as outside, because many programs behave differently as user 0.
//!
//! Root gets only a network namespace. In a user namespace of its own, a program of user 0 would
//! keep all capabilities over the network namespace, and could remove the packet rules.
//!
//! The helper ends with its parent. The caller starts the helper process, and sends the descriptors
//! to the agent.

mod kernel;
mod refusal;
mod sockets;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use crate::netlink::route::{self, Families, LargeSegments, SourceAddresses};
use crate::netlink::{self, Netlink, Subsystem, nft};
use crate::syn_log::Copies;

pub(crate) use kernel::ip_support;
pub use kernel::kernel_has_ipv6;
pub use refusal::{NamespaceError, NamespaceStep};
pub use sockets::{NamespaceSockets, Netlinks, sockets};
pub(crate) use sockets::{netlinks, with_ipv6};

/// The namespace that the calling process is in now.
#[derive(Debug)]
pub struct Namespace {
    /// Whether it has a user namespace of its own; false for root.
    pub has_own_user: bool,
    /// For which families `lo` carries large segments.
    pub large_segments: LargeSegments,
    /// The TCP congestion control of its sockets; empty if the kernel does not say.
    pub congestion_control: String,
    /// Where copies of SYNs come from.
    pub copies: Copies,
    /// Optional settings that could not be made. Each entry states what is missing and why.
    pub missing: Vec<String>,
    /// The lines to the kernel over which it was set up, and can be changed.
    pub netlinks: Netlinks,
}

/// Moves the calling process into a new user and network namespace and sets that up: `lo`,
/// addresses, routes, packet rules. Nothing is captured yet.
///
/// `wanted` says where copies of SYNs come from; `None`: from the packet rules, or where the kernel
/// lacks nfnetlink_log from the interface.
///
/// `parent` is the process id of the caller's parent: the caller is killed when the thread
/// of the parent that started it ends, and fails if that is the case already. Neither may have
/// made its memory unreadable before ([`crate::process::keep_secrets`]): `/proc/self` is written.
///
/// # Errors
/// The step that failed and what on this machine is the reason. The process is then of no use.
pub fn create(
    parent: u32,
    families: Families,
    wanted: Option<Copies>,
) -> Result<Namespace, NamespaceError> {
    lead_session().map_err(NamespaceStep::Session.failed())?;
    end_with(parent).map_err(NamespaceStep::ParentDeath.failed())?;
    let has_own_user = !rustix::process::geteuid().is_root();
    if has_own_user {
        own_user()?;
        // A change of credentials takes it away.
        end_with(parent).map_err(NamespaceStep::ParentDeath.failed())?;
    } else {
        unshare(libc::CLONE_NEWNET).map_err(NamespaceStep::Unshare.failed())?;
    }
    let mut missing = Vec::new();
    let mut route = Netlink::open(Subsystem::Route).map_err(NamespaceStep::Network.failed())?;
    route::bring_up(&mut route).map_err(NamespaceStep::Network.refused())?;
    route::allow(&mut route, families, SourceAddresses::default())
        .map_err(NamespaceStep::Network.refused())?;
    let large_segments = route::allow_large_segments(&mut route).unwrap_or_else(|error| {
        missing.push(format!("large segments on lo: {error}"));
        LargeSegments::default()
    });
    missing.extend(set("net/ipv4/ip_unprivileged_port_start", LOW_PORTS_START).err());
    missing.extend(choose_congestion_control().err());
    missing.extend(allow_ping().err());
    // An address of the host that goes must not take others of its network with it.
    missing.extend(set("net/ipv4/conf/all/promote_secondaries", "1").err());
    // A cookie would answer a released SYN when the listener is full, and forget it.
    missing.extend(set("net/ipv4/tcp_syncookies", "0").err());
    let mut netfilter =
        Netlink::open(Subsystem::Netfilter).map_err(NamespaceStep::PacketRules.failed())?;
    let copies =
        install_rules(&mut netfilter, wanted).map_err(NamespaceStep::PacketRules.refused())?;
    if wanted.is_none() && copies == Copies::OfInterface {
        missing.push("nfnetlink_log: connecting costs more".to_owned());
    }
    let diagnosis =
        Netlink::open(Subsystem::SocketDiagnosis).map_err(NamespaceStep::Sockets.failed())?;
    let netlinks = Netlinks { route, netfilter, diagnosis };
    let congestion_control = congestion_control();
    Ok(Namespace { has_own_user, large_segments, congestion_control, copies, missing, netlinks })
}

/// Installs the packet rules, with copies of SYNs as wanted or as this kernel makes them.
fn install_rules(
    netfilter: &mut Netlink,
    wanted: Option<Copies>,
) -> Result<Copies, netlink::Error> {
    let kernel = ip_support();
    if let Some(copies) = wanted {
        return nft::install(netfilter, kernel, copies).map(|()| copies);
    }
    match nft::install(netfilter, kernel, Copies::OfRule) {
        Ok(()) => Ok(Copies::OfRule),
        // Without the expression, or what it logs to, nothing was installed.
        Err(error) if error.errno() == Some(libc::ENOENT) => {
            nft::install(netfilter, kernel, Copies::OfInterface).map(|()| Copies::OfInterface)
        }
        Err(error) => Err(error),
    }
}

/// Moves the calling process into namespaces that [`create`] made and set up in a process that has
/// ended since: the new helper has the same rights there. `parent` is as for [`create`]; `user` is
/// `None` for root.
///
/// # Errors
/// [`NamespaceStep::Join`], or the step before it. The process is then of no use.
pub fn join(
    parent: u32,
    network: BorrowedFd<'_>,
    user: Option<BorrowedFd<'_>>,
) -> Result<Netlinks, NamespaceError> {
    lead_session().map_err(NamespaceStep::Session.failed())?;
    end_with(parent).map_err(NamespaceStep::ParentDeath.failed())?;
    if let Some(user) = user {
        enter(user, libc::CLONE_NEWUSER).map_err(NamespaceStep::Join.failed())?;
        // A change of credentials takes it away.
        end_with(parent).map_err(NamespaceStep::ParentDeath.failed())?;
    }
    enter(network, libc::CLONE_NEWNET).map_err(NamespaceStep::Join.failed())?;
    netlinks()
}

/// All ports are the program's to bind, those below 1024 too.
const LOW_PORTS_START: &str = "0";

const CONGESTION_CONTROL: &str = "net/ipv4/tcp_congestion_control";
/// Congestion controls that do not pace, best first. A host may keep the first to itself; the
/// second it cannot (`TCP_CONG_NON_RESTRICTED`). Within one machine they cost the same.
const CONGESTION_CONTROLS: [&str; 2] = ["cubic", "reno"];

/// The same user and group, in a namespace where this process may set up a network.
fn own_user() -> Result<(), NamespaceError> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET).map_err(NamespaceStep::Unshare.failed())?;
    // Without it no group may be mapped: a process could leave a group that is denied something.
    fs::write("/proc/self/setgroups", "deny").map_err(NamespaceStep::Map.failed())?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))
        .map_err(NamespaceStep::Map.failed())?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).map_err(NamespaceStep::Map.failed())
}

/// Leaves the terminal: its signals are for the program.
fn lead_session() -> io::Result<()> {
    match rustix::process::setsid() {
        Err(rustix::io::Errno::PERM) if is_session_leader() => Ok(()),
        led => Ok(led.map(|_| ())?),
    }
}

fn is_session_leader() -> bool {
    rustix::process::getsid(None).is_ok_and(|session| session == rustix::process::getpid())
}

fn end_with(parent: u32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // It may have ended before the line above.
    if std::os::unix::process::parent_id() == parent {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointers; the process has one thread and none of its descriptors or memory
    // are affected by these two flags.
    let result = unsafe { libc::unshare(flags) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Moves the calling thread into a namespace of that kind.
pub(crate) fn enter(namespace: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointers; the descriptor is open. A process with more than one thread is
    // refused by the kernel where that would be wrong.
    let result = unsafe { libc::setns(namespace.as_raw_fd(), kind) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `ping` without privileges, to the program's own addresses.
fn allow_ping() -> Result<(), String> {
    let gid = rustix::process::getegid().as_raw();
    set("net/ipv4/ping_group_range", &format!("{gid} {gid}"))
}

/// Within one machine the host's own choice, which may pace, costs up to twice as much a byte.
fn choose_congestion_control() -> Result<(), String> {
    let mut chosen = Err(String::new());
    for name in CONGESTION_CONTROLS {
        chosen = set(CONGESTION_CONTROL, name);
        if chosen.is_ok() {
            break;
        }
    }
    chosen
}

fn congestion_control() -> String {
    let name = fs::read_to_string(Path::new("/proc/sys").join(CONGESTION_CONTROL));
    name.map(|name| name.trim_end().to_owned()).unwrap_or_default()
}

fn set(name: &str, value: &str) -> Result<(), String> {
    let path = Path::new("/proc/sys").join(name);
    if fs::read_to_string(&path).is_ok_and(|now| now.trim_end() == value) {
        return Ok(());
    }
    fs::write(path, value).map_err(|error| format!("{} = {value}: {error}", name.replace('/', ".")))
}
