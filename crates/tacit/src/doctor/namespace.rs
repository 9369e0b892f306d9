//! Checks whether `tacit run` works on this host: makes the namespaces of a run and starts a
//! program in them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use tacit_sys::namespace::{self, Namespace, NamespaceError, NamespaceStep};
use tacit_sys::netlink::route::{Families, LargeSegments};
use tacit_sys::process::{self, StandardError};
use tacit_sys::spawn::{
    self, ConnectCalls, FilterOutcome, LauncherState, ReceivedFilter, SpawnError, SpawnOptions,
};

use super::finding::{Finding, Presence};
use crate::host;
use crate::run::protocol;

const NAMESPACE: &str = "network namespace";
const RULES: &str = "nftables rules";
const SOCKETS: &str = "sockets in the namespace";
const START: &str = "program start";
const HIDE: &str = "hidden files";
const HANDED: &str = "handed sockets";

/// The result of trying to make a namespace.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum AttemptResult {
    Made {
        has_own_user: bool,
        large_v4: bool,
        large_v6: bool,
        congestion_control: String,
        missing: Vec<String>,
        /// Why the nftables rules of a captured host do not work; `None`: they do.
        without_host: Option<String>,
    },
    Refused {
        at: FailedStep,
        reason: String,
    },
}

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum FailedStep {
    Namespace,
    Rules,
    Sockets,
}

/// Tries everything that a run needs of the kernel.
pub(super) fn look() -> Vec<Finding> {
    let original = LauncherState::capture();
    match try_to_make() {
        Ok(attempt) => found(&attempt, &original),
        Err(error) => refused(FailedStep::Namespace, format!("the check failed: {error}")),
    }
}

fn found(attempt: &Attempt, original: &LauncherState) -> Vec<Finding> {
    match &attempt.tried {
        AttemptResult::Refused { at, reason } => refused(*at, reason.clone()),
        AttemptResult::Made {
            has_own_user,
            large_v4,
            large_v6,
            congestion_control,
            missing,
            without_host,
        } => {
            let user = if *has_own_user { User::Own } else { User::Root };
            let large = LargeSegments { v4: *large_v4, v6: *large_v6 };
            let mut findings = made(user);
            findings.extend(start(&attempt.namespaces, user, original));
            findings.push(large_segments(large));
            findings.extend(settings(missing, congestion_control));
            findings.push(host_capture(without_host.as_deref()));
            findings
        }
    }
}

fn host_capture(refused: Option<&str>) -> Finding {
    let name = "host capture";
    match refused {
        None => Finding::wanted(
            name,
            Presence::There,
            "`tacit agent --host` works if it has the capabilities CAP_NET_ADMIN and CAP_NET_RAW; \
             rules with DNS names need DNS on port 53, not DNS over TLS or HTTPS",
        ),
        Some(reason) => Finding::wanted(
            name,
            Presence::Missing,
            format!("`tacit agent --host` does not work: {reason}"),
        ),
    }
}

/// The user of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    /// It has its own user namespace.
    Own,
    /// Root made it without a user namespace.
    Root,
}

/// The result of the child process.
struct Attempt {
    tried: AttemptResult,
    namespaces: Vec<OwnedFd>,
    /// The child stays in the namespaces until this is closed.
    _channel: UnixStream,
}

/// Makes the namespaces in a child process.
fn try_to_make() -> io::Result<Attempt> {
    let (ours, theirs) = UnixStream::pair()?;
    let parent = std::process::id();
    let work = || {
        let tried = process::keep_only(&[theirs.as_fd()], StandardError::Discarded)
            .and_then(|()| try_inside(&theirs, parent));
        u8::from(tried.is_err())
    };
    process::fork(work)?;
    drop(theirs);
    let frame = protocol::read::<AttemptResult>(&ours)?
        .ok_or_else(|| io::Error::other("the child process ended without a result"))?;
    Ok(Attempt { tried: frame.message, namespaces: frame.descriptors, _channel: ours })
}

fn try_inside(line: &UnixStream, parent: u32) -> io::Result<()> {
    let both = Families { v4: true, v6: true };
    let made = namespace::create(parent, both, None).and_then(|made| {
        let sockets = namespace::sockets(made.copies)?;
        Ok((made, sockets))
    });
    match made {
        Ok((namespace, sockets)) => {
            let Namespace { has_own_user, large_segments, congestion_control, missing, .. } =
                namespace;
            let made = AttemptResult::Made {
                has_own_user,
                large_v4: large_segments.v4,
                large_v6: large_segments.v6,
                congestion_control,
                missing,
                // This test replaces the nftables rules of the previous test.
                without_host: host::probe().err().map(|error| error.to_string()),
            };
            protocol::write(line, &made, &[sockets.network.as_fd(), sockets.user.as_fd()])?;
            // Waits until the parent has finished its checks.
            io::Read::read(&mut &*line, &mut [0]).map(|_| ())
        }
        Err(error) => {
            let refused = AttemptResult::Refused { at: place(&error), reason: error.to_string() };
            protocol::write(line, &refused, &[])
        }
    }
}

fn place(error: &NamespaceError) -> FailedStep {
    match error.step {
        NamespaceStep::PacketRules => FailedStep::Rules,
        NamespaceStep::Sockets => FailedStep::Sockets,
        NamespaceStep::Session
        | NamespaceStep::ParentDeath
        | NamespaceStep::Unshare
        | NamespaceStep::Join
        | NamespaceStep::Map
        | NamespaceStep::Network => FailedStep::Namespace,
    }
}

fn refused(at: FailedStep, reason: String) -> Vec<Finding> {
    let steps = [
        (FailedStep::Namespace, NAMESPACE),
        (FailedStep::Rules, RULES),
        (FailedStep::Sockets, SOCKETS),
    ];
    let mut findings = Vec::new();
    for (step, name) in steps {
        if step == at {
            findings.push(Finding::needed(name, Presence::Missing, reason));
            break;
        }
        findings.push(Finding::needed(name, Presence::There, "`tacit run` needs this feature"));
    }
    findings
}

fn made(user: User) -> Vec<Finding> {
    let whose = match user {
        User::Own => "each run has a user namespace of its own; its programs have no capabilities",
        User::Root => {
            "runs that root starts have no user namespace; their programs keep root's \
             capabilities, except capabilities that act outside of the run"
        }
    };
    vec![
        Finding::needed(NAMESPACE, Presence::There, whose),
        Finding::needed(
            RULES,
            Presence::There,
            "nftables supports sets, tproxy, socket and reject, which tacit needs to capture \
             connections",
        ),
        Finding::needed(
            SOCKETS,
            Presence::There,
            "the agent can use any source address, so programs and peers see the real addresses of \
             each other",
        ),
    ]
}

/// Starts a program that exits immediately, with a file hidden from it.
fn start(namespaces: &[OwnedFd], user: User, original: &LauncherState) -> Vec<Finding> {
    let [network, user_namespace] = namespaces else {
        return vec![Finding::needed(
            START,
            Presence::Missing,
            "the child process did not send the descriptor of the namespace",
        )];
    };
    let hide = [PathBuf::from("/etc/passwd")];
    let (filter, listener_to) = UnixStream::pair().ok().unzip();
    let inside = SpawnOptions {
        network: network.as_fd(),
        user: (user == User::Own).then_some(user_namespace.as_fd()),
        hide: &hide,
        original,
        dies_with_parent: true,
        cpus: &[],
        listener_to: listener_to.as_ref().map(AsFd::as_fd),
        connects: ConnectCalls::Notified,
    };
    let mut command = Command::new("/proc/self/exe");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match spawn::spawn(command, &inside) {
        Ok(mut started) => {
            let hidden = match started.not_hidden.first() {
                None => Finding::wanted(
                    HIDE,
                    Presence::There,
                    "programs under `tacit run` cannot read tacit's keys, and cannot resolve names \
                     without tacit",
                ),
                Some(why) => Finding::wanted(
                    HIDE,
                    Presence::Missing,
                    format!(
                        "no mount namespace: programs can read all files of their user, including \
                         keys. Name services of the host can resolve names without tacit ({why})"
                    ),
                ),
            };
            drop(listener_to);
            let connects = filter.and_then(|filter| ReceivedFilter::receive(&filter).connects);
            let ended = started.child.wait().is_ok_and(|status| status.success());
            let note = "programs start with a seccomp filter that allows only sockets of the \
                        families UNIX, INET, INET6 and NETLINK";
            vec![Finding::needed(START, Presence::when(ended), note), hidden, handed(connects)]
        }
        Err(error @ (SpawnError::Setup { .. } | SpawnError::Program(_))) => {
            vec![Finding::needed(START, Presence::Missing, error.to_string())]
        }
    }
}

/// Whether programs can get sockets of the agent's network.
fn handed(connects: Option<FilterOutcome>) -> Finding {
    let why = match connects {
        Some(FilterOutcome::Handled) => {
            return Finding::wanted(
                HANDED,
                Presence::There,
                "for rules with path = \"auto\", the agent can pass sockets of the host's network \
                 namespace to programs",
            );
        }
        Some(FilterOutcome::Nested) => {
            "another process already handles system calls of this process (seccomp), for example \
             because `tacit doctor` runs under `tacit run`"
        }
        Some(FilterOutcome::NotWanted | FilterOutcome::TooOld) | None => {
            "the kernel cannot pass `connect` calls to a helper process (this needs Linux 5.19)"
        }
    };
    let note = format!("the agent relays connections of rules with path = \"auto\": {why}");
    Finding::wanted(HANDED, Presence::Missing, note)
}

fn large_segments(large: LargeSegments) -> Finding {
    let name = "large segments";
    if large.v4 && large.v6 {
        return Finding::wanted(
            name,
            Presence::There,
            "programs and the agent exchange packets of up to 256 KiB over loopback",
        );
    }
    let missing = if large.v4 { "IPv6 (needs Linux 5.19)" } else { "IPv4 (needs Linux 6.3)" };
    let note = format!(
        "programs and the agent cannot exchange packets of more than 64 KiB over {missing}, so \
         data costs more CPU time"
    );
    Finding::wanted(name, Presence::Missing, note)
}

/// Settings of the namespace, each with its purpose. The congestion control is printed, because a
/// namespace may not be allowed to use that of the host.
fn settings(missing: &[String], congestion_control: &str) -> [Finding; 3] {
    let why = |setting| missing.iter().find(|what| what.contains(setting));
    let finding = |name, setting, good: String, bad: &str| match why(setting) {
        None => Finding::wanted(name, Presence::There, good),
        Some(why) => Finding::wanted(name, Presence::Missing, format!("{bad} ({why})")),
    };
    [
        finding(
            "low ports",
            "ip_unprivileged_port_start",
            "programs under `tacit run` can listen on ports below 1024".into(),
            "programs under `tacit run` cannot listen on ports below 1024",
        ),
        finding(
            "ping",
            "ping_group_range",
            "programs under `tacit run` can ping their own addresses".into(),
            "programs under `tacit run` cannot ping their own addresses",
        ),
        finding(
            "congestion control",
            "tcp_congestion_control",
            format!(
                "programs and the agent use the congestion control {congestion_control}; the host \
                 may use another congestion control"
            ),
            "programs and the agent use the congestion control of the host; this congestion \
             control may delay packets",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_before_a_failed_step_are_available_and_later_ones_unknown() {
        let findings = refused(FailedStep::Rules, "no tproxy".into());
        let shown: Vec<_> = findings.iter().map(|one| (one.name, one.is_present())).collect();
        assert_eq!(shown, [(NAMESPACE, true), (RULES, false)]);
        assert_eq!(findings[1].note, "no tproxy");
    }

    #[test]
    fn the_reason_is_named_why_connections_are_relayed() {
        assert!(handed(Some(FilterOutcome::Handled)).is_present());
        let note = |outcome| handed(outcome).note;
        assert!(note(Some(FilterOutcome::Nested)).contains("another process"));
        assert!(note(Some(FilterOutcome::TooOld)).contains("Linux 5.19"));
        assert!(!handed(None).is_present());
    }

    #[test]
    fn a_refused_setting_is_reported_with_its_effect_and_reason() {
        let missing = ["net.ipv4.ping_group_range = 1 1: Read-only file system".to_owned()];
        let findings = settings(&missing, "reno");
        assert!(findings[0].is_present() && !findings[1].is_present() && findings[2].is_present());
        assert!(findings[2].note.contains("congestion control reno"));
        assert_eq!(
            findings[1].note,
            "programs under `tacit run` cannot ping their own addresses (net.ipv4.ping_group_range \
             = 1 1: Read-only file system)"
        );
        assert!(!large_segments(LargeSegments { v4: true, v6: false }).is_present());
        let without_v4 = large_segments(LargeSegments { v4: false, v6: true });
        assert!(without_v4.note.contains("IPv4"));
    }
}
