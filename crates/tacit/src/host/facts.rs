//! Reads information about this host for `tacit check`: its resolvers, the operator's SSH session,
//! and other software that sets fwmarks.
//!
//! The check needs no capabilities. It omits all information that it cannot read.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use tacit_core::dns::ResolverConfig;
use tacit_core::policy::{ForeignMark, HostFacts, KNOWN_MARKS, KnownMark, SshSession};
use tacit_sys::host;
use tacit_sys::netlink::nft::{AGENT_PORT, HOLD_PORT, INBOUND_PORT};

/// Where systemd-resolved writes the resolvers that it asks itself.
const UPSTREAM: &str = "/run/systemd/resolve/resolv.conf";

/// The facts of this host.
#[must_use]
pub fn facts() -> HostFacts {
    let session = std::env::var("SSH_CONNECTION").ok();
    HostFacts {
        resolvers: resolvers(),
        session: session.and_then(|text| SshSession::parse(&text)),
        marks: marks(),
        agent_ports: vec![AGENT_PORT, HOLD_PORT, INBOUND_PORT],
    }
}

/// The resolvers that are asked over the network: those of `/etc/resolv.conf`, or those behind a
/// resolver on this host.
fn resolvers() -> Vec<IpAddr> {
    let files = ["/etc/resolv.conf", UPSTREAM];
    let found = files.into_iter().map(|file| remote_resolvers(Path::new(file)));
    found.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
}

fn remote_resolvers(file: &Path) -> Vec<IpAddr> {
    let Ok(text) = fs::read_to_string(file) else { return Vec::new() };
    let servers = ResolverConfig::read(&text).nameservers;
    let addresses = servers.into_iter().map(|one| one.address.to_canonical());
    addresses.filter(|address| !address.is_loopback()).collect()
}

/// The marks in routing rules, and those of known software that is here.
fn marks() -> Vec<ForeignMark> {
    let rules = host::mark_rules_of_others().unwrap_or_default();
    let of_rules = rules.into_iter().map(|rule| ForeignMark {
        by: format!("the routing rule with priority {}", rule.priority),
        bits: rule.mark,
    });
    let interfaces = interfaces();
    let present = KNOWN_MARKS.iter().filter(|known| is_present(known, &interfaces));
    let of_known = present.map(|known| ForeignMark { by: known.name.to_owned(), bits: known.bits });
    of_rules.chain(of_known).collect()
}

fn interfaces() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/sys/class/net") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn is_present(known: &KnownMark, interfaces: &[String]) -> bool {
    let begins = |name: &String| known.interfaces.iter().any(|begin| name.starts_with(begin));
    interfaces.iter().any(begins) || known.directory.is_some_and(|path| Path::new(path).exists())
}
