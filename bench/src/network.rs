//! Runs the benchmark in its own network namespace, if the host allows it.
//!
//! In this namespace there is no other traffic on loopback, all ports are free, and all sockets use
//! the same congestion control. The congestion control is important, because it can cause half of
//! the CPU time of large transfers.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// The congestion controls to try. Most hosts use cubic; every namespace may use reno. On loopback
/// the two cost the same.
const PREFERRED: [&str; 2] = ["cubic", "reno"];

/// The network namespace of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// The host's, with all other traffic.
    Host,
    /// One made for the benchmark, which may configure it.
    Own,
}

/// The network in which samples are taken.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) namespace: Namespace,
    /// The congestion control of every socket.
    pub(crate) congestion: String,
}

/// The command that runs `driver` with a subcommand in its own network namespace, as root or with a
/// user namespace; if the host refuses both, in the host's namespace.
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
    /// Enables loopback and sets the congestion control, if the namespace is the benchmark's own.
    pub(crate) fn set_up(namespace: Namespace, wanted: Option<&str>) -> Result<Self, String> {
        if namespace == Namespace::Own {
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
            if !up.is_ok_and(|status| status.success()) {
                return Err("cannot enable loopback: `ip link set lo up` failed".to_owned());
            }
            match wanted {
                Some("host") => {}
                Some(name) => fs::write(CONGESTION, name)
                    .map_err(|error| format!("cannot set --congestion {name}: {error}"))?,
                // If none can be set, the report shows the actual one.
                None => _ = PREFERRED.iter().find(|name| fs::write(CONGESTION, name).is_ok()),
            }
        } else if wanted.is_some_and(|name| name != "host") {
            return Err(
                "cannot set --congestion: this machine does not allow network namespaces: run the \
                 benchmark as root, or omit --congestion"
                    .to_owned(),
            );
        }
        let congestion = fs::read_to_string(CONGESTION)
            .map_err(|error| format!("cannot read {CONGESTION}: {error}"))?;
        Ok(Self { namespace, congestion: congestion.trim().to_owned() })
    }

    /// Whether the benchmark may configure the network.
    pub(crate) fn is_own(&self) -> bool {
        self.namespace == Namespace::Own
    }

    pub(crate) fn describe(&self) -> String {
        let congestion = &self.congestion;
        if self.is_own() {
            format!(
                "network: a new network namespace that uses the TCP congestion control {congestion}"
            )
        } else {
            format!(
                "network: the network of the host, because unshare failed; TCP congestion control \
                 {congestion}"
            )
        }
    }
}
