//! Runs one end of a tunnel: a process with one packet worker. The test scripts in `bulk.rs` start
//! this process.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tacit::packet::{
    FlowOpener, PacketEngine, PacketEvent, PacketThreads, PacketWorker, PeerAddress, SpillLimits,
    Tunnel, TunnelAccounts, TunnelFlow, Underlay,
};
use tacit_core::policy::EngineClass;
use tacit_ipsec::esp::DataLifetime;
use tacit_ipsec::{Cipher, IntegrityHash};
use tacit_sys::sandbox::{CapabilitySet, WorkerRights, WorkerSockets, has_call_filters};
use tacit_sys::schedule;
use tacit_sys::tun::Tun;

use super::{ip, keys};

/// Receiving moves to the other thread after each round of packets.
pub(crate) const MOVING: PacketThreads = PacketThreads {
    engine: None,
    second: Some(SpillLimits {
        window: Duration::ZERO,
        begin_busy_percent: 0,
        end_busy_percent: u64::MAX,
    }),
};

/// `PACKET_THREADS`: `moving`, an `engine` on the last CPU, one that does not poll
/// (`waiting-engine`), one that begins to spill with its first packets (`spill`), or the default.
fn threads() -> PacketThreads {
    let cpu = *schedule::allowed_cpus().unwrap().last().unwrap();
    let poll = PacketEngine::POLL_TIME;
    let nice = schedule::own_scheduling().unwrap().nice;
    let engine = Some(PacketEngine { cpu, class: EngineClass::Normal, nice, poll });
    let at_once = SpillLimits {
        window: Duration::from_millis(1),
        begin_busy_percent: 1,
        end_busy_percent: 0,
    };
    match std::env::var("PACKET_THREADS").as_deref() {
        Ok("moving") => MOVING,
        Ok("waiting-engine") => {
            let engine = engine.map(|engine| PacketEngine { poll: Duration::ZERO, ..engine });
            PacketThreads { engine, second: None }
        }
        Ok("engine") => PacketThreads { engine, second: None },
        Ok("spill") => PacketThreads { engine, second: Some(at_once) },
        _ => PacketThreads::default(),
    }
}

/// Runs until the standard input ends; prints the statistics for each line.
pub(crate) fn run(end: &str) {
    rustix::thread::set_no_new_privs(true).unwrap();
    let variable = |name: &str| std::env::var(name).unwrap();
    let cipher = match variable("PACKET_CIPHER").as_str() {
        "gcm" => Cipher::Aes256Gcm,
        "chacha" => Cipher::ChaCha20Poly1305,
        _ => Cipher::Aes128Cbc(IntegrityHash::Sha256),
    };
    let (mut child, inner) = match end {
        "near" => (keys::near(cipher, 1), 1),
        _ => (keys::far(cipher, 1), 2),
    };
    // tshark 4.0 does not know extended sequence numbers.
    child.has_extended_sequence = cipher != Cipher::Aes256Gcm;
    let tun = Tun::open("tacit0").unwrap();
    ip("link set tacit0 up mtu 1400");
    ip(&format!("address add 10.{inner}.0.1/24 dev tacit0"));
    ip(&format!("address add fd0{inner}::1/64 dev tacit0 nodad"));
    ip(&format!("route add 10.{}.0.0/24 dev tacit0", 3 - inner));
    ip(&format!("route add fd0{}::/64 dev tacit0", 3 - inner));
    let addresses: Vec<_> =
        variable("PACKET_LOCAL").split(' ').map(|address| address.parse().unwrap()).collect();
    let (sender, events) = sync_channel::<PacketEvent>(16);
    let underlay = Underlay::bind(&addresses).unwrap();
    let worker = PacketWorker::start(underlay, sender, threads()).unwrap();
    confine(&worker);
    let tun = worker.add_tun(tun).unwrap();
    let spi = child.inbound.spi;
    let flows = child.local.iter().zip(&child.remote).flat_map(|(local, remote)| {
        [FlowOpener::Local, FlowOpener::Remote].map(|opened_by| TunnelFlow {
            local: *local,
            remote: *remote,
            opened_by,
        })
    });
    let tunnel = Tunnel {
        tun,
        flows: flows.collect(),
        child,
        peer: variable("PACKET_PEER").parse().unwrap(),
        peer_address: PeerAddress::Fixed,
        lifetime: DataLifetime::UNLIMITED,
        accounts: TunnelAccounts::default(),
        filter: Arc::default(),
    };
    worker.install(tunnel).unwrap();
    worker.activate(spi).unwrap();
    println!("\nready");
    for line in std::io::stdin().lock().lines() {
        line.unwrap();
        println!("{:?}", worker.statistics());
    }
    drop(events);
}

/// Takes the rights of the thread that it does not need, as the agent does.
pub(crate) fn confine(worker: &PacketWorker) {
    let sockets = WorkerSockets::Internet;
    let rights = WorkerRights { capabilities: CapabilitySet::empty(), sockets };
    let result = worker.confine(rights);
    assert!(result.is_ok() || !has_call_filters(), "{result:?}");
}
