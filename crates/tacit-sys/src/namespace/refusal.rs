//! Explains why a namespace could not be created, and what an administrator can change.
//!
//! The same error number can have several causes: the seccomp filter of a container, a `chroot`, or
//! a setting of the kernel. So this module examines the machine to find the cause.

use std::fmt;
use std::fs;
use std::io;

use rustix::thread::CapabilitySet;

use crate::netlink;

/// A step of [`super::create`], [`super::join`] or [`super::sockets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceStep {
    /// Leaving the terminal's session.
    Session,
    /// Requesting to be killed when the parent ends.
    ParentDeath,
    /// Creating the namespaces.
    Unshare,
    /// Joining existing namespaces.
    Join,
    /// Mapping the user and the group.
    Map,
    /// Configuring `lo`, addresses and routes.
    Network,
    /// Installing the nftables rules.
    PacketRules,
    /// Creating the agent's sockets.
    Sockets,
}

impl NamespaceStep {
    fn text(self) -> &'static str {
        match self {
            Self::Session => "start a new session (setsid)",
            Self::ParentDeath => "set the signal that the kernel sends when the parent ends",
            Self::Unshare => "create a user namespace and a network namespace",
            Self::Join => "join the namespaces of the run",
            Self::Map => "map the user ID into the user namespace",
            Self::Network => "configure the network namespace",
            Self::PacketRules => "install the nftables rules",
            Self::Sockets => "create the agent's sockets",
        }
    }

    pub(super) fn failed(self) -> impl FnOnce(io::Error) -> NamespaceError {
        move |error| NamespaceError::new(self, error.raw_os_error(), error.to_string())
    }

    pub(super) fn refused(self) -> impl FnOnce(netlink::Error) -> NamespaceError {
        move |error| NamespaceError::new(self, error.errno(), error.to_string())
    }
}

/// A step that failed, with the likely reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceError {
    /// The step.
    pub step: NamespaceStep,
    /// The error number of the kernel.
    pub errno: Option<i32>,
    /// The error in words, with the part of the request that was refused.
    pub detail: String,
    /// The reason on this machine and what to do about it, if they can be determined.
    pub reason: Option<String>,
}

impl NamespaceError {
    fn new(step: NamespaceStep, errno: Option<i32>, detail: String) -> Self {
        let reason = errno.and_then(|errno| reason(step, errno, &Machine::read()));
        Self { step, errno, detail, reason }
    }
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.step.text(), self.detail)?;
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, "; {reason}"))
    }
}

impl std::error::Error for NamespaceError {}

/// The state of the machine, as far as it may be the reason.
#[derive(Clone, Debug, Default)]
struct Machine {
    user_namespaces_max: Option<u64>,
    network_namespaces_max: Option<u64>,
    /// The setting of Debian and Arch Linux.
    user_namespaces_allowed: Option<bool>,
    /// The setting of Ubuntu.
    apparmor_restricts: bool,
    has_own_root: bool,
    is_filtered: bool,
    /// Whether the process is root, but without the right to create a network namespace.
    is_powerless_root: bool,
}

impl Machine {
    fn read() -> Self {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kernel = "/proc/sys/kernel";
        Self {
            user_namespaces_max: number("/proc/sys/user/max_user_namespaces"),
            network_namespaces_max: number("/proc/sys/user/max_net_namespaces"),
            user_namespaces_allowed: number(&format!("{kernel}/unprivileged_userns_clone"))
                .map(|value| value != 0),
            apparmor_restricts: number(&format!("{kernel}/apparmor_restrict_unprivileged_userns"))
                == Some(1),
            has_own_root: has_own_root(),
            is_powerless_root: rustix::process::geteuid().is_root()
                && rustix::thread::capabilities(None)
                    .is_ok_and(|sets| !sets.effective.contains(CapabilitySet::SYS_ADMIN)),
            is_filtered: status
                .lines()
                .any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2")),
        }
    }
}

/// Whether `/` of this process is not the root of the mount namespace. The kernel then refuses to
/// create a user namespace.
fn has_own_root() -> bool {
    // The mount table shows paths as the process sees them. If it has no mount at `/`, the
    // process's root is a directory below a mount.
    fs::read_to_string("/proc/self/mountinfo")
        .is_ok_and(|table| !table.lines().any(|line| line.split(' ').nth(4) == Some("/")))
}

const APPARMOR: &str = "AppArmor gives unprivileged user namespaces no capabilities \
                        (kernel.apparmor_restrict_unprivileged_userns=1): load the AppArmor \
                        profile of tacit, which grants `userns`";

fn reason(step: NamespaceStep, errno: i32, machine: &Machine) -> Option<String> {
    let in_namespace = matches!(
        step,
        NamespaceStep::Map
            | NamespaceStep::Network
            | NamespaceStep::PacketRules
            | NamespaceStep::Sockets
    );
    let text = match (step, errno) {
        (NamespaceStep::ParentDeath, libc::ESRCH) => "the parent process has ended",
        (NamespaceStep::Unshare, libc::ENOSPC) => return Some(limit(machine)),
        (NamespaceStep::Unshare, libc::EPERM | libc::EACCES) => return Some(forbidden(machine)),
        (NamespaceStep::Unshare, libc::EINVAL) => {
            "this kernel was built without user or network namespaces (CONFIG_USER_NS, \
             CONFIG_NET_NS), or the process has more than one thread"
        }
        (NamespaceStep::Unshare, libc::ENOSYS) => {
            "a seccomp filter blocks this system call, or the kernel does not support namespaces"
        }
        (NamespaceStep::PacketRules, libc::ENOENT | libc::EOPNOTSUPP) => {
            "this kernel does not support a part of nftables that tacit needs, or cannot load the \
             kernel module for this part: use Linux 5.9 or later with CONFIG_NF_TABLES_INET, \
             CONFIG_NFT_TPROXY, CONFIG_NFT_SOCKET and CONFIG_NFT_REJECT (modules nft_tproxy, \
             nft_socket, nft_reject_inet)"
        }
        (_, libc::EPROTONOSUPPORT) => "this kernel lacks nftables (CONFIG_NF_TABLES)",
        (NamespaceStep::Join, libc::EPERM) => {
            "to join the namespaces, a process must have only one thread. It must have the same \
             user, and be in the same user namespace, as the process that created the namespaces"
        }
        (_, libc::EPERM | libc::EACCES) if in_namespace && machine.apparmor_restricts => APPARMOR,
        (NamespaceStep::Map, libc::EPERM | libc::EACCES) => {
            "the kernel does not allow the process to map its user ID (/proc/self/uid_map): either \
             the process is not dumpable, or a security module grants no capabilities in the \
             namespace"
        }
        (_, libc::EPERM | libc::EACCES) if in_namespace => {
            "the kernel created the namespace, but granted no capabilities in it: a security \
             module (AppArmor, SELinux) or the seccomp filter of a container may be the cause"
        }
        (_, libc::EMFILE) => "too many open files (RLIMIT_NOFILE)",
        _ => return None,
    };
    Some(text.to_owned())
}

fn limit(machine: &Machine) -> String {
    match (machine.user_namespaces_max, machine.network_namespaces_max) {
        (Some(0), _) => "user namespaces are disabled: user.max_user_namespaces is 0".into(),
        (_, Some(0)) => "network namespaces are disabled: user.max_net_namespaces is 0".into(),
        (users, networks) => {
            let shown = |value: Option<u64>| {
                value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
            };
            format!(
                "this host has too many namespaces, or namespaces that are nested too deep: \
                 user.max_user_namespaces is {}, user.max_net_namespaces is {}",
                shown(users),
                shown(networks)
            )
        }
    }
}

fn forbidden(machine: &Machine) -> String {
    if machine.is_powerless_root {
        "tacit runs as root without CAP_SYS_ADMIN, for example in a container or under \
         `tacit run`: start tacit as an ordinary user"
    } else if machine.user_namespaces_allowed == Some(false) {
        "unprivileged user namespaces are disabled: set kernel.unprivileged_userns_clone=1"
    } else if machine.has_own_root {
        "this process runs in a chroot, where the kernel does not create user namespaces"
    } else if machine.apparmor_restricts {
        APPARMOR
    } else if machine.is_filtered {
        "a seccomp filter of the surrounding container forbids this system call: allow `unshare` \
         and `clone` with CLONE_NEWUSER in that filter (Docker: use a modified seccomp profile)"
    } else {
        "a chroot, a security module or a container's filter forbids this system call"
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(step: NamespaceStep, errno: i32, machine: &Machine) -> String {
        reason(step, errno, machine).unwrap_or_default()
    }

    #[test]
    fn each_refusal_names_what_to_change() {
        let plain = Machine::default();
        let off = Machine { user_namespaces_max: Some(0), ..Machine::default() };
        assert!(
            text(NamespaceStep::Unshare, libc::ENOSPC, &off).contains("max_user_namespaces is 0")
        );
        assert!(text(NamespaceStep::Unshare, libc::ENOSPC, &plain).contains("too many"));
        let debian = Machine { user_namespaces_allowed: Some(false), ..Machine::default() };
        assert!(
            text(NamespaceStep::Unshare, libc::EPERM, &debian)
                .contains("unprivileged_userns_clone")
        );
        let chroot = Machine { has_own_root: true, ..Machine::default() };
        assert!(text(NamespaceStep::Unshare, libc::EPERM, &chroot).contains("chroot"));
        let container = Machine { is_powerless_root: true, ..Machine::default() };
        assert!(text(NamespaceStep::Unshare, libc::EPERM, &container).contains("ordinary user"));
        let docker = Machine { is_filtered: true, ..Machine::default() };
        assert!(text(NamespaceStep::Unshare, libc::EPERM, &docker).contains("seccomp"));
        let ubuntu = Machine { apparmor_restricts: true, ..Machine::default() };
        for step in [
            NamespaceStep::Unshare,
            NamespaceStep::Map,
            NamespaceStep::Network,
            NamespaceStep::PacketRules,
            NamespaceStep::Sockets,
        ] {
            assert!(text(step, libc::EPERM, &ubuntu).contains("AppArmor profile"), "{step:?}");
        }
        assert!(text(NamespaceStep::PacketRules, libc::ENOENT, &plain).contains("nft_tproxy"));
        assert_eq!(text(NamespaceStep::Network, libc::EIO, &plain), "");
    }

    #[test]
    fn the_message_says_what_failed_and_why() {
        let error = NamespaceError {
            step: NamespaceStep::Unshare,
            errno: Some(libc::ENOSPC),
            detail: "No space left on device (os error 28)".into(),
            reason: Some(limit(&Machine { user_namespaces_max: Some(0), ..Machine::default() })),
        };
        assert_eq!(
            error.to_string(),
            "cannot create a user namespace and a network namespace: No space left on device (os \
             error 28); user namespaces are disabled: user.max_user_namespaces is 0"
        );
        assert!(!has_own_root(), "this test runs at the root of its mount namespace");
    }
}
