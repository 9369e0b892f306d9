//! Creates a network namespace for one program, without root. A separate process, the *helper*,
//! creates the namespace, and then acts inside it for the agent. The *launcher* is `tacit run`.
//!
//! ```text
//! launcher --starts--> helper: create(parent, families)   creates user and network namespace
//!                              sockets()                  creates the sockets of the agent
//!                              --descriptors--> agent     sends these sockets; later, sends others
//!          --starts--> helper: join(parent, ...)          replaces a helper that has ended
//! launcher --spawn::spawn--> program                      joins the helper's namespaces
//! ```
//!
//! The helper must be a new process with one thread, because only such a process can enter a user
//! namespace. In this namespace the helper has every capability. The program joins the namespace
//! later. The program has no capabilities, and keeps its user ID.
//!
//! If root runs the program, the helper creates only a network namespace. In a user namespace, root
//! would keep all capabilities, and could remove tacit's nftables rules.
//!
//! The parent of the helper is the launcher. When the launcher ends, the helper ends too.

mod existing;
mod kernel;
mod mirror;
mod refusal;
mod sockets;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use crate::netlink::route::{self, Families, LargeSegments, SourceAddresses};
use crate::netlink::{self, Netlink, Subsystem, nft};
use crate::syn_log::Copies;

pub use existing::{ExistingNetwork, ExistingNetworkError};
pub(crate) use kernel::ip_support;
pub use kernel::kernel_has_ipv6;
pub use mirror::create_mirror;
pub use refusal::{NamespaceError, NamespaceStep};
pub use sockets::{NamespaceSockets, Netlinks, sockets};
pub(crate) use sockets::{netlinks, with_ipv6};

/// Namespaces to join.
#[derive(Clone, Copy, Debug)]
pub struct JoinedNamespaces<'a> {
    /// The network namespace.
    pub network: BorrowedFd<'a>,
    /// The user namespace; `None` for root.
    pub user: Option<BorrowedFd<'a>>,
}

/// The namespace that the calling process has entered.
#[derive(Debug)]
pub struct Namespace {
    /// Whether it has a user namespace of its own; false for root.
    pub has_own_user: bool,
    /// The IP versions for which `lo` has large segments.
    pub large_segments: LargeSegments,
    /// The TCP congestion control of its sockets; empty if the kernel does not report it.
    pub congestion_control: String,
    /// The source of the copies of SYNs.
    pub copies: Copies,
    /// Optional settings that could not be set. Each entry states what is missing and why.
    pub missing: Vec<String>,
    /// The netlink sockets that configured the namespace, and that can change it.
    pub netlinks: Netlinks,
}

/// Moves the calling process into a new user namespace and a new network namespace, and configures
/// them: `lo`, addresses, routes and nftables rules. No destination is captured yet.
///
/// `wanted` selects the source of the copies of SYNs. With `None`, copies come from the
/// nftables rules or, if the kernel lacks nfnetlink_log, from the interface.
///
/// `parent` is the process ID of the caller's parent. The kernel kills the caller when the thread
/// of the parent that started it ends; the call fails if this thread has already ended. Neither
/// process may have called [`crate::process::keep_secrets`] before, because this function writes to
/// `/proc/self`.
///
/// # Errors
/// The step that failed, and the likely reason on this machine. The process cannot be used for a
/// namespace after an error.
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
        // A change of credentials clears the signal for the death of the parent.
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
        missing.push(format!("the interface lo cannot use large TCP segments: {error}"));
        LargeSegments::default()
    });
    missing.extend(set("net/ipv4/ip_unprivileged_port_start", LOW_PORTS_START).err());
    missing.extend(choose_congestion_control().err());
    missing.extend(allow_ping().err());
    // Otherwise removing an address of the host would also remove the other addresses of its
    // network.
    missing.extend(set("net/ipv4/conf/all/promote_secondaries", "1").err());
    // If the queue of the listener is full, the kernel would answer a released SYN with a SYN
    // cookie, and forget the SYN.
    missing.extend(set("net/ipv4/tcp_syncookies", "0").err());
    let mut netfilter =
        Netlink::open(Subsystem::Netfilter).map_err(NamespaceStep::PacketRules.failed())?;
    let copies =
        install_rules(&mut netfilter, wanted).map_err(NamespaceStep::PacketRules.refused())?;
    if wanted.is_none() && copies == Copies::OfInterface {
        missing.push(
            "the kernel does not support nfnetlink_log, so the agent receives SYN packets \
             through a packet socket, which needs more CPU time"
                .to_owned(),
        );
    }
    let diagnosis =
        Netlink::open(Subsystem::SocketDiagnosis).map_err(NamespaceStep::Sockets.failed())?;
    let netlinks = Netlinks { route, netfilter, diagnosis };
    let congestion_control = congestion_control();
    Ok(Namespace { has_own_user, large_segments, congestion_control, copies, missing, netlinks })
}

/// Installs the nftables rules, with the requested source of copies or the one that this kernel
/// supports.
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
        // If the kernel lacks the expression or the log, no rule was installed.
        Err(error) if error.errno() == Some(libc::ENOENT) => {
            nft::install(netfilter, kernel, Copies::OfInterface).map(|()| Copies::OfInterface)
        }
        Err(error) => Err(error),
    }
}

/// Moves the calling process into namespaces that [`create`] has configured in another process,
/// which has ended since, or into those of an [`ExistingNetwork`]. A new helper has the same rights
/// there. `parent` has the same meaning as in [`create`]; `user` is `None` for root.
///
/// # Errors
/// [`NamespaceStep::Join`], or an earlier step. The process cannot be used for a namespace after an
/// error.
pub fn join(
    parent: u32,
    network: BorrowedFd<'_>,
    user: Option<BorrowedFd<'_>>,
) -> Result<Netlinks, NamespaceError> {
    lead_session().map_err(NamespaceStep::Session.failed())?;
    end_with(parent).map_err(NamespaceStep::ParentDeath.failed())?;
    if let Some(user) = user {
        enter(user, libc::CLONE_NEWUSER).map_err(NamespaceStep::Join.failed())?;
        // A change of credentials clears the signal for the death of the parent.
        end_with(parent).map_err(NamespaceStep::ParentDeath.failed())?;
    }
    enter(network, libc::CLONE_NEWNET).map_err(NamespaceStep::Join.failed())?;
    netlinks()
}

/// The first port that needs no privilege: the program may bind all ports, including those below
/// 1024.
const LOW_PORTS_START: &str = "0";

const CONGESTION_CONTROL: &str = "net/ipv4/tcp_congestion_control";
/// Congestion controls without pacing, best first. A host can reserve the first one for privileged
/// programs, but not the second (`TCP_CONG_NON_RESTRICTED`). Within one machine both cost the same.
const CONGESTION_CONTROLS: [&str; 2] = ["cubic", "reno"];

/// Creates a user namespace with the same user and group, in which this process may configure a
/// network.
fn own_user() -> Result<(), NamespaceError> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET).map_err(NamespaceStep::Unshare.failed())?;
    // The kernel allows a mapping of the group only after this. Otherwise a process could leave a
    // group to which access is denied.
    fs::write("/proc/self/setgroups", "deny").map_err(NamespaceStep::Map.failed())?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))
        .map_err(NamespaceStep::Map.failed())?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).map_err(NamespaceStep::Map.failed())
}

/// Leaves the terminal's session, because signals of the terminal are for the program.
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
    // The parent may have ended before the line above.
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

/// Moves the calling thread into a namespace of this kind.
pub(crate) fn enter(namespace: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointers; the descriptor is open. A process with more than one thread is
    // refused by the kernel where that would be wrong.
    let result = unsafe { libc::setns(namespace.as_raw_fd(), kind) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Allows the program to `ping` its own addresses without privileges.
fn allow_ping() -> Result<(), String> {
    let gid = rustix::process::getegid().as_raw();
    set("net/ipv4/ping_group_range", &format!("{gid} {gid}"))
}

/// The host's own congestion control may pace, which costs up to twice as much for each byte within
/// one machine.
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
