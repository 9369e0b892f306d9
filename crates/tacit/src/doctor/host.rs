//! What else of the host matters, read and not tried.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use tacit_sys::{namespace, process, sandbox, schedule, spawn};

use super::finding::{Finding, Presence};
use crate::dns::Resolvers;
use crate::placement;
use crate::run::capture::is_routable;

/// The oldest kernel whose packet rules do.
const KERNEL_MIN: KernelVersion = KernelVersion { major: 5, minor: 9 };
/// Descriptors below which busy programs feel the limit.
const DESCRIPTORS_WANTED: u64 = 16_384;

/// The first two numbers of a kernel's release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KernelVersion {
    major: u32,
    minor: u32,
}

/// Everything, in the order in which it is shown.
pub(super) fn look() -> Vec<Finding> {
    let mut findings = vec![kernel(), security_module()];
    findings.extend(families());
    findings.extend([
        resolvers(),
        name_services(),
        descriptors(),
        cpus(),
        ktls(),
        device("vsock", "/dev/vsock", "links to virtual machines of this host"),
        device("TUN", "/dev/net/tun", "IPsec, which this version does not implement"),
        cgroups(),
        sandbox(),
    ]);
    findings
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn kernel() -> Finding {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let KernelVersion { major, minor } = KERNEL_MIN;
    let is_new = version(&release).is_none_or(|version| version >= KERNEL_MIN);
    let note = format!("Linux {release}; {major}.{minor} or later is needed");
    Finding::wanted("kernel", Presence::when(is_new), note)
}

fn version(release: &str) -> Option<KernelVersion> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?.parse().ok()?;
    Some(KernelVersion { major, minor })
}

fn security_module() -> Finding {
    let name = "AppArmor";
    match read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() {
        Some("1") => Finding::wanted(
            name,
            Presence::Missing,
            "denies capabilities in user namespaces to programs without a profile \
             (kernel.apparmor_restrict_unprivileged_userns=1): load the profile that comes with \
             tacit",
        ),
        Some(_) => Finding::wanted(name, Presence::There, "does not restrict user namespaces"),
        None => Finding::wanted(
            name,
            Presence::There,
            "not active, or does not restrict user namespaces",
        ),
    }
}

/// Whether the host has a route to the world; a run has the families that its host has.
fn families() -> [Finding; 2] {
    let finding = |name, exists: bool, world: &str| {
        let routable = world.parse::<IpAddr>().is_ok_and(is_routable);
        let note = if !exists {
            "not in this kernel"
        } else if routable {
            "routed: programs can use it"
        } else {
            "no default route: programs can use it only where a rule names addresses with a route"
        };
        Finding::wanted(name, Presence::when(exists && routable), note)
    };
    [
        finding("IPv4", true, "192.0.2.1"),
        finding("IPv6", namespace::kernel_has_ipv6(), "2001:db8::1"),
    ]
}

fn resolvers() -> Finding {
    let resolvers = Resolvers::new(&[]).addresses();
    let found: Vec<_> = resolvers.iter().map(|one| one.ip().to_string()).collect();
    let note = if found.is_empty() {
        "none in /etc/resolv.conf: programs cannot resolve names (--resolver ADDRESS)".to_owned()
    } else {
        format!("{} from /etc/resolv.conf", found.join(", "))
    };
    Finding::wanted("resolvers", Presence::when(!found.is_empty()), note)
}

fn name_services() -> Finding {
    let there = |path: &&&str| Path::new(path).exists();
    let found: Vec<_> = spawn::NAME_SERVICE_SOCKETS.iter().filter(there).copied().collect();
    let note = if found.is_empty() {
        "none that bypasses tacit".to_owned()
    } else {
        format!("{}: hidden from programs", found.join(", "))
    };
    Finding::wanted("name services", Presence::There, note)
}

fn descriptors() -> Finding {
    let limit = process::raise_descriptor_limit().unwrap_or(0);
    let note = format!(
        "at most {limit} open files, two to four for each connection \
                        (RLIMIT_NOFILE)"
    );
    Finding::wanted("open files", Presence::when(limit >= DESCRIPTORS_WANTED), note)
}

/// CPUs for engines and placement; whether threads may be bound to them is tried on this one.
fn cpus() -> Finding {
    let allowed = schedule::allowed_cpus().unwrap_or_default();
    let bound = schedule::pin_thread(&allowed).is_ok();
    let several = allowed.len() > 1;
    let use_of_them = if !bound {
        "threads cannot be bound to CPUs here: [engine] and `placement` do not work"
    } else if several {
        "may be set aside for engines, and programs and workers be placed"
    } else {
        "one: [engine] and `placement` do not work"
    };
    let note = format!("{}: {use_of_them}", placement::list(&allowed));
    Finding::wanted("CPUs", Presence::when(bound && several), note)
}

fn ktls() -> Finding {
    let protocols = read("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
    let has = protocols.split(' ').any(|one| one == "tls");
    let note = if has {
        "the kernel's own TLS; this version does not use it"
    } else {
        "the kernel's own TLS (module tls) is not loaded; this version does not use it"
    };
    Finding::wanted("kTLS", Presence::when(has), note)
}

fn device(name: &'static str, path: &str, purpose: &str) -> Finding {
    let opened = fs::OpenOptions::new().read(true).write(true).open(path);
    let note = match &opened {
        Ok(_) => purpose.to_owned(),
        Err(error) => format!("{purpose} ({path}: {error})"),
    };
    Finding::wanted(name, Presence::when(opened.is_ok()), note)
}

fn cgroups() -> Finding {
    let mounts = read("/proc/self/mounts").unwrap_or_default();
    let has = mounts.lines().any(|line| line.split(' ').nth(2) == Some("cgroup2"));
    let is_root = process::effective_user() == 0;
    let purpose = "policy for a whole host, which this version does not implement";
    let note = if !has {
        format!("{purpose} (no cgroup2 is mounted)")
    } else if is_root {
        purpose.to_owned()
    } else {
        format!("{purpose} (only root can attach programs)")
    };
    Finding::wanted("cgroup BPF", Presence::when(has && is_root), note)
}

/// What the kernel has of an agent's sandbox.
fn sandbox() -> Finding {
    let parts = [
        (sandbox::has_call_filters(), "system calls (seccomp)"),
        (sandbox::has_file_confinement(), "files (Landlock)"),
    ];
    let list = |wanted: bool| {
        let names = parts.iter().filter(|(has, _)| *has == wanted).map(|(_, name)| *name);
        names.collect::<Vec<_>>().join(" and ")
    };
    let missing = list(false);
    let note = if missing.is_empty() {
        format!("agents give up {}", list(true))
    } else {
        format!("this kernel cannot confine {missing}: agents serve without that")
    };
    Finding::wanted("sandbox", Presence::when(missing.is_empty()), note)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_compared_by_number() {
        let wanted = KernelVersion { major: 6, minor: 18 };
        assert_eq!(version("6.18.44-generic"), Some(wanted));
        assert!(version("5.10.0-8-amd64") > Some(KERNEL_MIN));
        assert!(version("5.4.0") < Some(KERNEL_MIN));
        assert_eq!(version("strange"), None);
    }
}
