//! Compares `tacit run` with other commands that give a program a network. None of these commands
//! needs root privileges.
//!
//! ```text
//! direct   program ────────────────────────────────────> load server
//! permit   program ─ tacit run ────────────────────────> load server
//! tls      program ─ tacit run ══ TLS 1.3 ══> agent ─────> load server
//! pasta, slirp4netns   program ─ TCP stack in user space ──> load server
//! ```
//! The module [`start`] measures the start and end of a program, and [`transfer`] measures
//! connections and a large transfer. All programs run as an ordinary user, even if root runs the
//! benchmark.
//!
//! UDP and inbound connections are not measured. The figures do not include the kernel's work to
//! remove namespaces.

mod setup;
mod start;
mod transfer;

use serde_json::{Value, json};

use self::setup::{RULES, many_rules};
use crate::network::Network;
use crate::options::Options;
use crate::run_directory::RunDirectory;

/// Prepares the benchmark's network like that of a host: addresses and a default route. Ports are
/// reused early, because thousands of short connections occupy them for a minute.
const NETWORK: &str = "
echo 10000 65000 >/proc/sys/net/ipv4/ip_local_port_range
echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse
ip route add local 10.9.8.7/32 dev lo
ip route add local 10.9.8.8/32 dev lo
ip link add bench0 type veth peer name bench1
ip link set bench0 up
ip link set bench1 up
ip addr add 192.168.77.1/24 dev bench0
ip route add default via 192.168.77.2
";

/// Opens the tun device to all users, as on most hosts, but only in this mount namespace.
const TUN: &str = "mknod tun c 10 200 && chmod 666 tun && mount --bind tun /dev/net/tun";

/// The results.
pub(crate) struct Measured {
    /// The results as text.
    pub(crate) text: String,
    /// The results with all samples as JSON.
    pub(crate) json: Value,
}

/// Measures and returns the results.
pub(crate) fn measure(
    options: &Options,
    network: &Network,
    directory: &RunDirectory,
) -> Result<Measured, String> {
    directory.write("one.toml", &many_rules(1))?;
    directory.write("many.toml", &many_rules(RULES))?;
    directory.shell(NETWORK)?;
    if directory.is_root {
        directory.shell(TUN)?;
    }
    let transferred = transfer::measure(options, network, directory)?;
    let started = start::measure(options, directory)?;
    let json = json!({ "transfer": transferred.json(), "start": started.json() });
    Ok(Measured { text: format!("{transferred}{started}"), json })
}
