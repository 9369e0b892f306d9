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
//! Not done: UDP, programs that accept. The kernel's own threads, which take namespaces apart, are
//! on nobody's clock and so in no figure.

mod carry;
mod start;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use super::certs::SERVER_NAME;
use super::network::Network;
use super::options::Options;
use super::place::Place;

/// Where the load server listens; not loopback, which runs have of their own.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 8, 7);
/// Where the far agent answers TLS.
const FAR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 8, 8)), 8443);

/// What stands for the host's network: addresses, and a default route for those who look for one.
/// Thousands of short connections to one address leave their ports occupied for a minute.
const NETWORK: &str = "
echo 10000 65000 >/proc/sys/net/ipv4/ip_local_port_range
echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse
ip addr add 10.9.8.7/32 dev lo
ip addr add 10.9.8.8/32 dev lo
ip link add bench0 type veth peer name bench1
ip link set bench0 up
ip link set bench1 up
ip addr add 192.168.77.1/24 dev bench0
ip route add default via 192.168.77.2
";

/// Lets everybody open the tun device, as most hosts do; in this namespace only.
const TUN: &str = "mknod tun c 10 200 && chmod 666 tun && mount --bind tun /dev/net/tun";

/// Rules of the larger policy.
const RULES: u32 = 1000;

/// Measures; returns the report and the same with every sample.
pub(crate) fn measure(
    options: &Options,
    network: &Network,
    place: &Place,
) -> Result<(String, Value), String> {
    place.write("one.toml", &many_rules(1))?;
    place.write("many.toml", &many_rules(RULES))?;
    place.shell(NETWORK)?;
    if place.is_root {
        place.shell(TUN)?;
    }
    let carried = carry::measure(options, network, place)?;
    let started = start::measure(options, place)?;
    let json = json!({ "carry": carried.json(), "start": started.json() });
    Ok((format!("{carried}{started}"), json))
}

/// A policy of so many rules that nothing can be left out of.
fn many_rules(count: u32) -> String {
    let rule = |number: u32| {
        let [network, host] = [number / 250 + 1, number % 250];
        format!(
            "[[rule]]\nname = \"rule-{number}\"\ndirection = \"outbound\"\n\
             remote = \"10.{network}.{host}.0/24\"\nremote-ports = {}\npermit = true\n",
            1000 + number
        )
    };
    format!("version = 1\n{}", (0..count).map(rule).collect::<String>())
}

/// The policies of the run and of the far agent.
fn policies(server: SocketAddr, congestion: &str) -> [(&'static str, String); 3] {
    let head = format!(
        "version = 1\n[agent]\nworkers = 1\ncongestion-control = \"{congestion}\"\n\
         [trust.bench]\nca = \"ca.pem\"\n"
    );
    let outbound = |address: SocketAddr, action: &str| {
        format!(
            "{head}[[rule]]\nname = \"bench\"\ndirection = \"outbound\"\nremote = \"{}\"\n\
             remote-ports = {}\n{action}\n",
            address.ip(),
            address.port()
        )
    };
    let alike = "min-version = \"1.3\"\ngroups = [\"x25519\"]\nresumption = false";
    let client = format!("[rule.tls]\ntrust = \"bench\"\nserver-name = \"{SERVER_NAME}\"\n{alike}");
    let far = format!(
        "{head}[identity.server]\ncert = \"server.pem\"\nkey = \"server.key\"\n\
         [[rule]]\nname = \"far\"\nlisten = \"{FAR}\"\nconnect = \"{server}\"\nclear = true\n\
         [rule.tls]\nrole = \"server\"\nidentity = \"server\"\nclient-cert = \"none\"\n{alike}\n"
    );
    [
        ("permit.toml", outbound(server, "permit = true")),
        ("tls.toml", outbound(FAR, &client)),
        ("far.toml", far),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tacit_takes_all_policies() {
        let server = SocketAddr::from((SERVER, 9000));
        let many = [("one", many_rules(1)), ("many", many_rules(RULES))];
        for (name, text) in policies(server, "cubic").into_iter().chain(many) {
            let parsed = tacit_core::policy::parse(&text);
            assert!(parsed.policy.is_some(), "{name}: {parsed:?}\n{text}");
        }
    }
}
