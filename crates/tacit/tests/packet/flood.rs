//! Tests a flood of datagrams that an engine cannot process in time. The engine is configured not
//! to spill, so no second thread receives datagrams. When the engine's queue is full, the kernel
//! drops datagrams. At the same time, another packet worker serves another tunnel. This tunnel must
//! lose no packet.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_setaffinity};
use tacit::packet::{FlowOpener, PacketEngine, PacketThreads, Tunnel, TunnelFlow};
use tacit_core::policy::EngineClass;
use tacit_ipsec::{ChildSa, Cipher};
use tacit_sys::schedule;
use tacit_sys::tun::Tun;

use super::peer::{Lab, PeerSas, WORKER, program};
use super::{in_namespace, ip, keys};

/// How many questions go through the other tunnel during the flood.
const QUESTIONS: usize = 50;
/// A datagram of the flood; the kernel counts more memory for it.
const DATAGRAM_BYTES: usize = 60_000;

/// A thread that sends datagrams, until it is told to end, on the CPU of the engine: the engine has
/// a lower priority and gets little of its time.
fn flood(cpu: usize, ends: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let datagram = vec![7; DATAGRAM_BYTES];
        while !ends.load(Ordering::Relaxed) {
            // A full queue is no error of the sender.
            socket.send_to(&datagram, WORKER).unwrap();
        }
    })
}

/// A tunnel of another worker, between 10.3.0.0/24 and 10.4.0.0/24.
fn other(lab: &Lab) -> (Tunnel, PeerSas) {
    let [near, far] = [("10.3.0.0", "10.3.0.255"), ("10.4.0.0", "10.4.0.255")].map(keys::selector);
    let child =
        ChildSa { local: vec![near], remote: vec![far], ..keys::near(Cipher::Aes256Gcm, 2) };
    let flows = vec![TunnelFlow { local: near, remote: far, opened_by: FlowOpener::Local }];
    let sas = PeerSas::of(&keys::reversed(child.clone()));
    (Tunnel { child, flows, ..lab.tunnel(2) }, sas)
}

#[test]
fn a_flood_fills_only_the_queue_of_an_engine_that_must_not_spill() {
    if !in_namespace("flood::a_flood_fills_only_the_queue_of_an_engine_that_must_not_spill") {
        return;
    }
    let cpu = *schedule::allowed_cpus().unwrap().last().unwrap();
    let poll = PacketEngine::POLL_TIME;
    let engine = Some(PacketEngine { cpu, class: EngineClass::Normal, nice: 19, poll });
    let lab = Lab::open_with(PacketThreads { engine, second: None });
    let inside = program();
    let mut sas = lab.establish(lab.tunnel(1), 1);
    lab.ask(&inside, &mut sas);

    let tun = Tun::open("tacit1").unwrap();
    ip("link set tacit1 up mtu 1400");
    ip("address add 10.3.0.1/24 dev tacit1");
    ip("route add 10.4.0.0/24 dev tacit1");
    let beside = Lab::with(tun, "127.0.0.1:4501", PacketThreads::default());
    let (tunnel, mut beside_sas) = other(&beside);
    let spi = tunnel.child.inbound.spi;
    beside.worker.install(tunnel).unwrap();
    beside.worker.activate(spi).unwrap();
    let beside_program = UdpSocket::bind("10.3.0.1:4000").unwrap();

    let ends = Arc::new(AtomicBool::new(false));
    let flooding = flood(cpu, Arc::clone(&ends));
    lab.wait("drops of the queue", |statistics| statistics.queue.drops > 0);
    for number in 0..QUESTIONS {
        let question = format!("question {number}");
        beside_program.send_to(question.as_bytes(), "10.4.0.1:53").unwrap();
        assert_eq!(&beside.receive(&mut beside_sas)[28..], question.as_bytes());
    }
    let during = lab.worker.statistics();
    ends.store(true, Ordering::Relaxed);
    flooding.join().unwrap();
    // The last datagram may exceed the limit.
    let most = during.queue.bytes_max + 2 * u64::try_from(DATAGRAM_BYTES).unwrap();
    assert!(during.queue.bytes <= most, "{:?}", during.queue);
    assert_eq!((during.moves, during.threads.len()), (0, 1));
    let statistics = beside.worker.statistics();
    assert_eq!((statistics.queue.drops, statistics.drops), (0, vec![]));
    // The engine catches up, and its tunnel is as before.
    lab.wait("an empty queue", |statistics| statistics.queue.bytes == 0);
    lab.ask(&inside, &mut sas);
}
