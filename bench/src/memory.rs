//! Measures how much memory a pair of proxies needs for one idle connection.
//!
//! The benchmark opens some connections, reads the resident memory of the proxies, opens many more
//! connections, and reads the memory again. The result is the difference between the two memory
//! values, divided by the number of connections opened between the two readings. The report shows
//! the kernel's memory for sockets separately, because all proxies need the same two sockets for
//! each connection.

use std::fs;

use serde_json::{Value, json};

use crate::load::LoadClient;
use crate::peers::{Far, Running, Setting};
use crate::progress::Progress;
use crate::tls_settings::TlsSettings;

/// Connections before the first reading, and connections that are counted.
const BEFORE: usize = 100;
pub(crate) const COUNTED: usize = 1000;
/// Number of groups of connections; the first group is not counted.
const STEPS: usize = 1 + COUNTED / BEFORE;

/// A proxy has one socket per side, so a pair has four.
const SOCKETS_OF_A_PAIR: u64 = 4;

/// The kernel objects of a socket in an epoll set, with their sizes on x86-64 in a recent kernel.
const OBJECTS: [(&str, u64); 5] = [
    ("TCP", 2368),
    ("sock_inode_cache", 832),
    ("filp", 192),
    ("dentry", 192),
    ("eventpoll_epi", 128),
];

/// The memory of one idle connection.
#[derive(Debug)]
pub(crate) struct IdleMemory {
    pub(crate) peer: &'static str,
    pub(crate) bytes: PerSide<f64>,
}

/// Measures all peers with proxies. A peer that cannot keep the connections open is left out, and
/// the report says why.
pub(crate) fn measure(
    running: &[Running],
    setting: &Setting<'_>,
    progress: &Progress,
    absent: &mut Vec<String>,
) -> Vec<IdleMemory> {
    let has_proxies = |peer: &&Running| peer.proxies.is_some() || peer.client_is_run();
    let mut all = Vec::new();
    for peer in
        running.iter().filter(|peer| peer.settings == TlsSettings::Usual).filter(has_proxies)
    {
        progress.say(&format!("memory {}", peer.peer.name));
        match one(peer, setting) {
            Ok(idle) => all.push(idle),
            Err(error) => absent.push(format!("{}, memory: {error}", peer.peer.name)),
        }
    }
    all
}

fn one(peer: &Running, setting: &Setting<'_>) -> Result<IdleMemory, String> {
    Ok(IdleMemory { peer: peer.peer.name, bytes: idle_bytes(peer, setting)? })
}

/// The memory that an idle connection adds to each proxy.
pub(crate) fn idle_bytes(peer: &Running, setting: &Setting<'_>) -> Result<PerSide<f64>, String> {
    let mut client = LoadClient::start(peer.client_command(setting, &hold_words(), peer.entry))?;
    client.go()?;
    let before = resident(peer, &client)?;
    for _ in 1..STEPS {
        client.go()?;
    }
    let after = resident(peer, &client)?;
    client.end()?;
    let each = |after: u64, before: u64| (after as f64 - before as f64) / COUNTED as f64;
    Ok(PerSide {
        client: each(after.client, before.client),
        server: each(after.server, before.server),
    })
}

/// The arguments of `tacit workload` that open connections step by step.
fn hold_words() -> Vec<String> {
    let step = BEFORE.to_string();
    let all = (BEFORE + COUNTED).to_string();
    [
        &["ramp", "client", "--ramps", "1", "--connections", &all, "--step", &step][..],
        &["--at-once", "4", "--pause", "1ms", "--steered"],
    ]
    .concat()
    .into_iter()
    .map(str::to_owned)
    .collect()
}

/// A value for each proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerSide<T> {
    pub(crate) client: T,
    pub(crate) server: T,
}

fn resident(peer: &Running, client: &LoadClient) -> Result<PerSide<u64>, String> {
    match (&peer.proxies, &peer.far) {
        (Some([client, server]), _) => Ok(PerSide {
            client: client.resident_bytes(None)?,
            server: server.resident_bytes(None)?,
        }),
        (None, Far::Run(server)) => {
            Ok(PerSide { client: client.resident_bytes()?, server: server.resident_bytes()? })
        }
        (None, _) => {
            Err("this peer has no proxy, so the benchmark cannot measure the memory of proxies"
                .to_owned())
        }
    }
}

/// The kernel's memory for the sockets of a pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelBytes {
    pub(crate) bytes: u64,
    /// How the value was determined.
    pub(crate) source: &'static str,
}

/// Computes the kernel's memory for the sockets of a pair.
pub(crate) fn kernel_bytes() -> KernelBytes {
    let slabs = fs::read_to_string("/proc/slabinfo").unwrap_or_default();
    let sizes = OBJECTS.map(|(name, _)| object_bytes(&slabs, name));
    let known = sizes.iter().all(Option::is_some);
    let sum: u64 = sizes.iter().zip(OBJECTS).map(|(size, (_, usual))| size.unwrap_or(usual)).sum();
    let source = if known {
        "sizes of kernel objects from /proc/slabinfo"
    } else {
        "built-in sizes of kernel objects, because the benchmark cannot read /proc/slabinfo"
    };
    KernelBytes { bytes: sum * SOCKETS_OF_A_PAIR, source }
}

/// Parses the object size of a cache: name, objects in use, objects, bytes per object.
fn object_bytes(slabs: &str, name: &str) -> Option<u64> {
    let line = slabs.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

impl IdleMemory {
    pub(crate) fn json(&self) -> Value {
        let PerSide { client, server } = self.bytes;
        json!({ "peer": self.peer, "client_bytes": client, "server_bytes": server })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_found_by_the_whole_name() {
        let slabs = "slabinfo - version: 2.1\n# name <active_objs> <num_objs> <objsize> \n\
                     TCPv6 1 2 2496 3\nTCP              36     52   2368   13    8 : tunables\n";
        assert_eq!(object_bytes(slabs, "TCP"), Some(2368));
        assert_eq!(object_bytes(slabs, "filp"), None);
        let bytes = kernel_bytes().bytes;
        assert!((8_000..40_000).contains(&bytes), "{bytes}");
    }
}
