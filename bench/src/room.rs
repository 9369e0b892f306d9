//! A second network, for peers that are given what `tacit run` gives its programs: a loopback
//! with large segments, and CPUs of their own.
//!
//! ```text
//! driver ── a child that holds a network namespace: lo with segments of 256 KiB, the same
//!             congestion control; all that is to run in it is started by way of nsenter
//! ```
//! All three connections of a peer inside have large segments. tacit has them only on the two
//! connections between programs and agents: its TLS connection is on the ordinary loopback.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};

use serde_json::json;
use tacit_sys::netlink::{Netlink, Subsystem, route};

use crate::load::Lines;
use crate::network::{Namespace, Network};
use crate::process::{Process, guarded};

/// The ports of the peers inside; no other program listens there.
pub(crate) const ENTRY: u16 = 7001;
pub(crate) const TLS: u16 = 7002;
pub(crate) const APPLICATION: u16 = 9000;

/// An address of the loopback in the room, other ones for each peer.
pub(crate) fn address(peer: u8, port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(127, 0, 1, peer).into(), port)
}

/// The network, and the process that holds it.
#[derive(Debug)]
pub(crate) struct Room {
    holder: Process,
}

impl Room {
    /// Opens one.
    pub(crate) fn open(network: &Network) -> Result<Self, String> {
        let start = || {
            let own = std::env::current_exe()?;
            let mut unshare = Command::new("unshare");
            unshare.args(["--net", "--"]).arg(own).args(["room", &network.congestion]);
            let mut command = guarded(&unshare);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let child = start().map_err(|error| format!("unshare: {error}"))?;
        let mut holder = Process::adopt("bench-room", child);
        Lines::of(&mut holder)?.next()?;
        Ok(Self { holder })
    }

    /// What to put before a command that is to run in there, on one CPU. Split as tacit's
    /// placement does it: a program and its proxy on one, the two sides on different ones.
    pub(crate) fn words(&self, cpu: usize) -> Vec<String> {
        let pid = self.holder.id();
        let net = format!("--net=/proc/{pid}/ns/net");
        let cpu = cpu.to_string();
        ["nsenter", &net, "--", "taskset", "-c", &cpu].map(str::to_owned).to_vec()
    }
}

/// The child: sets the network up, says so, and holds it until its input ends.
pub(crate) fn hold(congestion: &str) -> Result<(), String> {
    Network::set_up(Namespace::Own, Some(congestion))?;
    let mut link = Netlink::open(Subsystem::Route).map_err(|error| error.to_string())?;
    let large = route::allow_large_segments(&mut link).map_err(|error| error.to_string())?;
    if !large.v4 {
        return Err("this kernel has no large segments on loopback (Linux 6.3)".to_owned());
    }
    println!("{}", json!({ "ready": true }));
    let mut nothing = Vec::new();
    std::io::stdin().read_to_end(&mut nothing).map(|_| ()).map_err(|error| error.to_string())
}
