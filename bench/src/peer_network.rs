//! Creates a network namespace whose loopback interface has TCP segments of 256 KiB. Some proxies
//! are also measured in this namespace, because programs under `tacit run` have large segments too.
//!
//! A child process keeps the namespace open. In this namespace, all three connections of a proxy
//! pair have large segments: client to proxy, proxy to proxy, and proxy to server. With tacit, only
//! the connections between programs and agents have large segments. The TLS connection between the
//! agents uses ordinary loopback.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};

use serde_json::json;
use tacit_sys::netlink::{Netlink, Subsystem, route};

use crate::load::Lines;
use crate::network::{Namespace, Network};
use crate::process::{Process, guarded};

/// The ports of the peers in the namespace, where no other program listens.
pub(crate) const ENTRY: u16 = 7001;
pub(crate) const TLS: u16 = 7002;
pub(crate) const APPLICATION: u16 = 9000;

/// A loopback address in the namespace, different for each peer.
pub(crate) fn address(peer: u8, port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(127, 0, 1, peer).into(), port)
}

/// The namespace, and the process that keeps it.
#[derive(Debug)]
pub(crate) struct PeerNetwork {
    holder: Process,
}

impl PeerNetwork {
    /// Creates the namespace.
    pub(crate) fn open(network: &Network) -> Result<Self, String> {
        let start = || {
            let own = std::env::current_exe()?;
            let mut unshare = Command::new("unshare");
            unshare.args(["--net", "--"]).arg(own).args(["peer-network", &network.congestion]);
            let mut command = guarded(&unshare);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let child = start().map_err(|error| format!("cannot run unshare: {error}"))?;
        let mut holder = Process::adopt("bench-peer-network", child);
        Lines::of(&mut holder)?.next()?;
        Ok(Self { holder })
    }

    /// The words in front of a command that runs it in the namespace on one CPU. As with tacit's
    /// placement, a program and its proxy share a CPU, and the two sides have different CPUs.
    pub(crate) fn words(&self, cpu: usize) -> Vec<String> {
        let pid = self.holder.id();
        let net = format!("--net=/proc/{pid}/ns/net");
        let cpu = cpu.to_string();
        ["nsenter", &net, "--", "taskset", "-c", &cpu].map(str::to_owned).to_vec()
    }
}

/// The child process: configures the network, reports it, and waits for end of file.
pub(crate) fn hold(congestion: &str) -> Result<(), String> {
    Network::set_up(Namespace::Own, Some(congestion))?;
    let mut link = Netlink::open(Subsystem::Route).map_err(|error| error.to_string())?;
    let large = route::allow_large_segments(&mut link).map_err(|error| error.to_string())?;
    if !large.v4 {
        return Err(
            "this kernel does not support large TCP segments on loopback: use Linux 6.3 or later"
                .to_owned(),
        );
    }
    println!("{}", json!({ "ready": true }));
    let mut nothing = Vec::new();
    std::io::stdin().read_to_end(&mut nothing).map(|_| ()).map_err(|error| error.to_string())
}
