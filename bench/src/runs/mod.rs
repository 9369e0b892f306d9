//! Programs under `tacit run`, beside other ways to give a program a network without root.
//!
//! ```text
//! direct   program ────────────────────────────────────> load server
//! permit   program ─ tacit run ────────────────────────> load server
//! tls      program ─ tacit run ══ TLS 1.3 ══> far agent ─> load server
//! pasta, slirp4netns   program ─ a TCP stack as a program ─> load server
//! ```
//! Two questions: what it costs to start and end ([`start`]), and what a connection and a gigabyte
//! cost ([`carry`]). Everything runs as an ordinary user, root's benchmark included.
//!
//! Not done: UDP, programs that accept. The kernel's own threads, which take namespaces apart,
//! are charged to no process, so no figure has them.

mod carry;
mod setup;
mod start;

use serde_json::{Value, json};

use self::setup::{RULES, many_rules};
use crate::network::Network;
use crate::options::Options;
use crate::place::Place;

/// What stands for the host's network: addresses, and a default route for those who look for one.
/// Thousands of short connections to one address leave their ports occupied for a minute.
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

/// Lets everybody open the tun device, as most hosts do; in this namespace only.
const TUN: &str = "mknod tun c 10 200 && chmod 666 tun && mount --bind tun /dev/net/tun";

/// What was seen.
pub(crate) struct Measured {
    /// For people.
    pub(crate) text: String,
    /// The same with every sample.
    pub(crate) json: Value,
}

/// Measures.
pub(crate) fn measure(
    options: &Options,
    network: &Network,
    place: &Place,
) -> Result<Measured, String> {
    place.write("one.toml", &many_rules(1))?;
    place.write("many.toml", &many_rules(RULES))?;
    place.shell(NETWORK)?;
    if place.is_root {
        place.shell(TUN)?;
    }
    let carried = carry::measure(options, network, place)?;
    let started = start::measure(options, place)?;
    let json = json!({ "carry": carried.json(), "start": started.json() });
    Ok(Measured { text: format!("{carried}{started}"), json })
}
