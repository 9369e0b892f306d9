//! The network that the benchmark runs in: a namespace of its own, if it may have one.
//!
//! There, loopback carries nothing else, ports are free, and every socket of every process has
//! the same congestion control, the applications' included. That decides up to half of the cost
//! of large transfers, so a comparison that leaves it to the host compares hosts.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// What most machines have, and what every namespace may choose where the host does not let it
/// have the first; on loopback the two cost the same.
const PREFERRED: [&str; 2] = ["cubic", "reno"];

/// Whose network namespace it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// The host's, with everything else that is in there.
    Host,
    /// One that was made for the benchmark, which may configure it.
    Own,
}

/// Where the samples were taken.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) namespace: Namespace,
    /// The congestion control of every socket.
    pub(crate) congestion: String,
}

/// Returns the command that runs `driver` with a verb in a namespace of its own, as root or
/// without; if both are refused, in the host's.
pub(crate) fn private(driver: &Path, verb: &str) -> Command {
    for flags in [&["--net", "--mount"][..], &["--net", "--mount", "--map-root-user"]] {
        let unshare = || {
            let mut command = Command::new("unshare");
            command.args(flags).arg("--");
            command
        };
        let mut trial = unshare();
        trial.args(["ip", "link", "set", "lo", "up"]).stdout(Stdio::null()).stderr(Stdio::null());
        if trial.status().is_ok_and(|status| status.success()) {
            let mut command = unshare();
            command.arg(driver).args([verb, "--private-network"]);
            return command;
        }
    }
    let mut command = Command::new(driver);
    command.arg(verb);
    command
}

impl Network {
    /// Brings loopback up and sets the congestion control, if the namespace is ours to change.
    pub(crate) fn set_up(namespace: Namespace, wanted: Option<&str>) -> Result<Self, String> {
        if namespace == Namespace::Own {
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
            if !up.is_ok_and(|status| status.success()) {
                return Err("ip link set lo up failed in the benchmark's namespace".to_owned());
            }
            match wanted {
                Some("host") => {}
                Some(name) => fs::write(CONGESTION, name)
                    .map_err(|error| format!("--congestion {name}: not to be had here: {error}"))?,
                // If none is to be had, the report shows what there was instead.
                None => _ = PREFERRED.iter().find(|name| fs::write(CONGESTION, name).is_ok()),
            }
        } else if wanted.is_some_and(|name| name != "host") {
            return Err("--congestion: no network namespace was granted to set it in".to_owned());
        }
        let congestion =
            fs::read_to_string(CONGESTION).map_err(|error| format!("{CONGESTION}: {error}"))?;
        Ok(Self { namespace, congestion: congestion.trim().to_owned() })
    }

    /// Whether the benchmark may configure it.
    pub(crate) fn is_own(&self) -> bool {
        self.namespace == Namespace::Own
    }

    pub(crate) fn describe(&self) -> String {
        let congestion = &self.congestion;
        if self.is_own() {
            format!("network: a namespace of its own, TCP congestion control {congestion}")
        } else {
            format!(
                "network: the host's, TCP congestion control {congestion} as it is there (no \
                 namespace of its own: unshare was refused)"
            )
        }
    }
}
