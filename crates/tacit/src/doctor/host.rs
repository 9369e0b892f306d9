//! Reads features and settings of the kernel and the host, for `tacit doctor`.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use tacit_sys::{namespace, process, sandbox, schedule, spawn};

use super::finding::{Finding, Presence};
use crate::dns::Resolvers;
use crate::placement;
use crate::run::outside::is_routable;

/// The oldest kernel that supports the nftables rules of runs.
const KERNEL_MIN: KernelVersion = KernelVersion { major: 5, minor: 9 };
/// A lower limit of open files is reported as too low.
const DESCRIPTORS_WANTED: u64 = 16_384;

/// The first two numbers of a kernel's release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KernelVersion {
    major: u32,
    minor: u32,
}

/// All checks, in the order of the output.
pub(super) fn look() -> Vec<Finding> {
    let mut findings = vec![kernel(), security_module()];
    findings.extend(families());
    findings.extend([
        resolvers(),
        name_services(),
        descriptors(),
        cpus(),
        ktls(),
        device("vsock", "/dev/vsock", "links to virtual machines on this host use vsock"),
        device("TUN", "/dev/net/tun", "IPsec tunnels of runs (rules with `ipsec`) use TUN devices"),
        cgroups(),
        bridges(),
        congestion_control(),
        sandbox(),
    ]);
    findings
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Whether nftables rules leave what a bridge passes on by itself.
fn bridges() -> Finding {
    let names = ["net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"];
    let file = |name: &str| format!("/proc/sys/{}", name.replace('.', "/"));
    let is_on = |name: &&str| read(&file(name)).as_deref() == Some("1");
    let on: Vec<_> = names.into_iter().filter(is_on).collect();
    let note = if on.is_empty() {
        "br_netfilter is off. So tacit does not disturb traffic between containers on the same \
         bridge, and with `[host] forwarded` containers can use UDP"
            .to_owned()
    } else {
        format!(
            "br_netfilter is on: with `[host] forwarded`, containers cannot use UDP, and \
             containers on the same bridge cannot connect to each other; with sysctl, set {} to 0",
            on.join(" and ")
        )
    };
    Finding::wanted("bridges", Presence::when(on.is_empty()), note)
}

fn congestion_control() -> Finding {
    congestion_finding(read("/proc/sys/net/ipv4/tcp_congestion_control").as_deref())
}

/// Reports whether the programs of the host use bbr. bbr limits the rate, also on one host, and so
/// sends small segments. Different CPUs deliver these to the agent out of order, so that the kernel
/// sends some of them again.
fn congestion_finding(default: Option<&str>) -> Finding {
    let is_bbr = default.is_some_and(|name| name.starts_with("bbr"));
    let note = match default {
        Some(name) if is_bbr => format!(
            "programs of this host use {name}: a stream that `tacit agent --host` captures costs \
             1.2 to 1.4 times the CPU time that it costs with cubic. To use cubic for all new \
             connections of the host, run `sysctl -w net.ipv4.tcp_congestion_control=cubic`. \
             Programs under `tacit run` are not affected"
        ),
        Some(name) => {
            format!("programs of this host use {name}, which suits `tacit agent --host`")
        }
        None => "cannot read net.ipv4.tcp_congestion_control. If it is bbr, a stream that `tacit \
                 agent --host` captures costs more CPU time than with cubic"
            .to_owned(),
    };
    Finding::wanted("host congestion control", Presence::when(!is_bbr), note)
}

fn kernel() -> Finding {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let KernelVersion { major, minor } = KERNEL_MIN;
    let is_new = version(&release).is_none_or(|version| version >= KERNEL_MIN);
    let note = format!("Linux {release}; tacit needs {major}.{minor} or later");
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
            "programs without an AppArmor profile get no capabilities in user namespaces \
             (kernel.apparmor_restrict_unprivileged_userns=1): install the profile of tacit as \
             /etc/apparmor.d/tacit, and load it with `apparmor_parser -r /etc/apparmor.d/tacit`",
        ),
        Some(_) => {
            Finding::wanted(name, Presence::There, "AppArmor does not restrict user namespaces")
        }
        None => Finding::wanted(
            name,
            Presence::There,
            "AppArmor is not active, or does not restrict user namespaces",
        ),
    }
}

/// Whether the host has default routes. A run has the address families of its host.
fn families() -> [Finding; 2] {
    let finding = |name, exists: bool, world: &str| {
        let routable = world.parse::<IpAddr>().is_ok_and(is_routable);
        let note = if !exists {
            "the kernel does not support this IP version"
        } else if routable {
            "the host has a default route"
        } else {
            "the host has no default route of this IP version, so programs under `tacit run` can \
             connect only to addresses that a policy rule lists"
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
        "/etc/resolv.conf has no resolver, so programs under `tacit run` cannot resolve names: add \
         a resolver to this file, or use `tacit run --resolver ADDRESS`"
            .to_owned()
    } else {
        format!("{resolvers}, from /etc/resolv.conf", resolvers = found.join(", "))
    };
    Finding::wanted("resolvers", Presence::when(!found.is_empty()), note)
}

fn name_services() -> Finding {
    let there = |path: &&&str| Path::new(path).exists();
    let found: Vec<_> = spawn::NAME_SERVICE_SOCKETS.iter().filter(there).copied().collect();
    let note = if found.is_empty() {
        "found no local name service that programs could use to bypass tacit".to_owned()
    } else {
        format!(
            "{sockets}: programs could bypass tacit through these sockets, so tacit hides these \
             sockets from runs",
            sockets = found.join(", ")
        )
    };
    Finding::wanted("name services", Presence::There, note)
}

fn descriptors() -> Finding {
    let limit = process::raise_descriptor_limit().unwrap_or(0);
    let note = format!(
        "at most {limit} open files (RLIMIT_NOFILE); each connection needs two to four open files"
    );
    Finding::wanted("open files", Presence::when(limit >= DESCRIPTORS_WANTED), note)
}

/// The CPUs for engines and placement. Tries to bind this thread to a CPU.
fn cpus() -> Finding {
    let allowed = schedule::allowed_cpus().unwrap_or_default();
    let bound = schedule::pin_thread(&allowed).is_ok();
    let several = allowed.len() > 1;
    let use_of_them = if !bound {
        "threads cannot be bound to CPUs: [engine] and `placement` do not work"
    } else if several {
        "tacit can use these CPUs for engines, and for the placement of programs and workers"
    } else {
        "[engine] and `placement` need more than one CPU"
    };
    let note = format!("{}: {use_of_them}", placement::list(&allowed));
    Finding::wanted("CPUs", Presence::when(bound && several), note)
}

fn ktls() -> Finding {
    let protocols = read("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
    let has = protocols.split(' ').any(|one| one == "tls");
    let note = if has {
        "the kernel supports kernel TLS (kTLS), but this version of tacit does not use it"
    } else {
        "the kernel module `tls` is not loaded; this version of tacit does not need it"
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
    let purpose = "`tacit agent --host` needs cgroup2 for rules with `cgroup`, `slice` or `unit`";
    let note = if has { purpose.to_owned() } else { format!("cgroup2 is not mounted: {purpose}") };
    Finding::wanted("cgroup2", Presence::when(has), note)
}

/// The sandbox features of the kernel that an agent uses.
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
        format!(
            "the kernel restricts each agent to the {resources} that it needs",
            resources = list(true)
        )
    } else {
        format!(
            "this kernel cannot restrict {missing} for a process, so agents run without this \
             protection"
        )
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

    #[test]
    fn bbr_on_a_captured_host_is_reported_as_advice() {
        let bbr = congestion_finding(Some("bbr"));
        assert_eq!(congestion_finding(Some("bbr3")).presence, Presence::Missing);
        assert!(!bbr.is_present() && !bbr.needed, "{bbr:?}");
        let fix = "`sysctl -w net.ipv4.tcp_congestion_control=cubic`";
        assert!(bbr.note.contains(fix), "{}", bbr.note);
        for other in [Some("cubic"), Some("reno"), None] {
            let finding = congestion_finding(other);
            assert!(finding.is_present() && !finding.needed, "{finding:?}");
            assert!(!finding.note.contains(fix), "{}", finding.note);
        }
    }
}
