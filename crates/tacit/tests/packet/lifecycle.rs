//! Tests how tunnels begin, replace each other and end. Also tests how a worker handles a new path
//! MTU, and a new address of a peer.

use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use tacit::packet::{PacketEvent, PacketWorkerError, PeerAddress};
use tacit_ipsec::esp::{DataLifetime, DataVolume, DropReason, Opened};
use tacit_sys::datagram_batch::path_mtu;

use super::peer::{Lab, PeerSas, WORKER, drops, program, socket, udp};
use super::{in_namespace, ip};

const QUESTION: (&str, &str) = ("10.1.0.1:4000", "10.2.0.1:53");

#[test]
fn the_first_packet_waits_for_the_tunnel_that_it_demands() {
    if !in_namespace("lifecycle::the_first_packet_waits_for_the_tunnel_that_it_demands") {
        return;
    }
    let lab = Lab::open();
    let program = program();
    for _ in 0..3 {
        program.send_to(b"question", QUESTION.1).unwrap();
    }
    let PacketEvent::Demand { tun, packet } = lab.next_event() else { panic!("another event") };
    assert_eq!(tun, lab.tun);
    assert_eq!((packet.protocol, packet.ports), (17, Some((4000, 53))));
    assert_eq!(packet.destination, "10.2.0.1".parse::<std::net::IpAddr>().unwrap());
    lab.wait("all packets", |statistics| statistics.held >= 3);
    let mut sas = lab.establish(lab.tunnel(1), 1);
    for _ in 0..3 {
        assert_eq!(&lab.receive(&mut sas)[28..], b"question");
    }
    lab.wait("no packet", |statistics| statistics.held == 0);
    // A packet for another tunnel waits also while there is this one.
    program.send_to(b"question", "10.1.0.77:53").unwrap();
    lab.wait("the packet for another tunnel", |statistics| statistics.held == 1);
    // No rule permits this packet, so it does not wait.
    program.send_to(b"question", "10.2.0.1:54").unwrap();
    lab.wait_for_drops(DropReason::Flow, 1);
}

#[test]
fn a_packet_that_no_tunnel_takes_is_refused_with_an_error_and_reported() {
    if !in_namespace(
        "lifecycle::a_packet_that_no_tunnel_takes_is_refused_with_an_error_and_reported",
    ) {
        return;
    }
    let lab = Lab::open();
    let program = program();
    // More packets have no room to wait for a tunnel. The queue of the device takes half of them.
    for held in [256, 512] {
        for _ in 0..256 {
            program.send_to(b"question", QUESTION.1).unwrap();
        }
        lab.wait("all packets", |statistics| statistics.held == held);
    }
    let error = TcpStream::connect("10.2.0.1:80").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::HostUnreachable, "{error}");
    let refused = loop {
        if let PacketEvent::Refused { packet, count, .. } = lab.next_event() {
            break (packet.destination.to_string(), packet.ports.map(|(_, to)| to), count);
        }
    };
    assert_eq!(refused, ("10.2.0.1".to_owned(), Some(80), 1));
    lab.wait_for_drops(DropReason::NoSa, 1);
    // A tunnel takes those that still wait. The socket of the peer has no room for all.
    let mut sas = lab.establish(lab.tunnel(1), 1);
    for _ in 0..16 {
        assert_eq!(&lab.receive(&mut sas)[28..], b"question");
    }
    assert_eq!(drops(&lab.worker.statistics(), DropReason::NoSa), 1);
}

#[test]
fn the_newest_active_tunnel_sends_and_both_receive() {
    if !in_namespace("lifecycle::the_newest_active_tunnel_sends_and_both_receive") {
        return;
    }
    let lab = Lab::open();
    let program = program();
    let mut first = lab.establish(lab.tunnel(1), 1);
    lab.worker.install(lab.tunnel(2)).unwrap();
    let mut second = PeerSas::new(2);
    program.send_to(b"installed", QUESTION.1).unwrap();
    lab.receive(&mut first);
    for sas in [&mut first, &mut second] {
        lab.send(&sas.seal(&udp(QUESTION.1, QUESTION.0, b"answer")));
        program.recv(&mut [0; 8]).unwrap();
    }
    lab.worker.activate(second.near_spi).unwrap();
    program.send_to(b"active", QUESTION.1).unwrap();
    lab.receive(&mut second);
    lab.worker.remove(first.near_spi).unwrap();
    lab.send(&first.seal(&udp(QUESTION.1, QUESTION.0, b"late")));
    lab.wait_for_drops(DropReason::UnknownSpi, 1);
    lab.worker.remove(second.near_spi).unwrap();
    program.send_to(b"held", QUESTION.1).unwrap();
    lab.wait("a held packet", |statistics| statistics.held == 1);
    assert_eq!(lab.worker.statistics().tunnels, []);
    let mut third = lab.establish(lab.tunnel(3), 3);
    assert_eq!(&lab.receive(&mut third)[28..], b"held");
    lab.worker.remove_tun(lab.tun).unwrap();
    lab.wait("no device", |_| UdpSocket::bind("10.1.0.1:4001").is_err());
}

#[test]
fn no_tunnel_takes_the_inbound_spi_of_another() {
    if !in_namespace("lifecycle::no_tunnel_takes_the_inbound_spi_of_another") {
        return;
    }
    let lab = Lab::open();
    let program = program();
    let mut first = lab.establish(lab.tunnel(1), 1);
    let second = lab.worker.install(lab.tunnel(1));
    assert_eq!(second, Err(PacketWorkerError::SpiInUse(first.near_spi)));
    lab.ask(&program, &mut first);
    lab.worker.remove(first.near_spi).unwrap();
    let mut again = lab.establish(lab.tunnel(1), 1);
    lab.ask(&program, &mut again);
}

#[test]
fn much_data_demands_new_keys_and_too_much_is_dropped() {
    if !in_namespace("lifecycle::much_data_demands_new_keys_and_too_much_is_dropped") {
        return;
    }
    let lab = Lab::open();
    let program = program();
    let volume = |packets| DataVolume { packets, bytes: u64::MAX };
    let lifetime = DataLifetime { soft: volume(2), hard: volume(4) };
    let mut sas = lab.establish(tacit::packet::Tunnel { lifetime, ..lab.tunnel(1) }, 1);
    for _ in 0..6 {
        program.send_to(b"question", QUESTION.1).unwrap();
    }
    for _ in 0..4 {
        lab.receive(&mut sas);
    }
    lab.wait_for_drops(DropReason::Expired, 2);
    let mut rekeys = 0;
    let mut refused = 0;
    while rekeys < 2 || refused < 2 {
        match lab.next_event() {
            PacketEvent::RekeyDue(spi) if spi == sas.near_spi => rekeys += 1,
            PacketEvent::Refused { packet, count, .. } if packet.ports == Some((4000, 53)) => {
                refused += count;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refused, 2);
}

#[test]
fn only_the_newest_authentic_packet_moves_a_peer() {
    if !in_namespace("lifecycle::only_the_newest_authentic_packet_moves_a_peer") {
        return;
    }
    let lab = Lab::open();
    let program = program();
    let tunnel = tacit::packet::Tunnel { peer_address: PeerAddress::Roaming, ..lab.tunnel(1) };
    let mut sas = lab.establish(tunnel, 1);
    lab.ask(&program, &mut sas);
    let mut frames: Vec<_> =
        (0..3).map(|_| sas.seal(&udp(QUESTION.1, QUESTION.0, b"answer"))).collect();
    lab.send(&frames[1]);
    program.recv(&mut [0; 8]).unwrap();
    let elsewhere = socket();
    // Replayed, changed, and older than the newest.
    elsewhere.send_to(&frames[1], WORKER).unwrap();
    lab.wait_for_drops(DropReason::Replayed, 1);
    frames[2][20] ^= 1;
    elsewhere.send_to(&frames[2], WORKER).unwrap();
    lab.wait_for_drops(DropReason::Integrity, 1);
    elsewhere.send_to(&frames[0], WORKER).unwrap();
    program.recv(&mut [0; 8]).unwrap();
    program.send_to(b"question", QUESTION.1).unwrap();
    lab.receive(&mut sas);
    frames[2][20] ^= 1;
    elsewhere.send_to(&frames[2], WORKER).unwrap();
    let to = elsewhere.local_addr().unwrap();
    assert_eq!(lab.next_event(), PacketEvent::PeerMoved { spi: sas.near_spi, to });
    program.send_to(b"question", QUESTION.1).unwrap();
    let mut buffer = [0; 200];
    let bytes = elsewhere.recv(&mut buffer).unwrap();
    assert!(matches!(sas.inbound.open(&mut buffer[..bytes], 0), Ok(Opened::Packet(..))));
}

#[test]
fn packets_follow_a_peer_that_ike_has_seen_elsewhere() {
    if !in_namespace("lifecycle::packets_follow_a_peer_that_ike_has_seen_elsewhere") {
        return;
    }
    let lab = Lab::open();
    let program = program();
    let elsewhere = socket();
    let to = elsewhere.local_addr().unwrap();
    for (number, peer_address) in [(1, PeerAddress::Fixed), (2, PeerAddress::Roaming)] {
        let tunnel = tacit::packet::Tunnel { peer_address, ..lab.tunnel(number) };
        let mut sas = lab.establish(tunnel, number);
        assert_eq!(lab.worker.received_packets(sas.near_spi), 0);
        lab.worker.move_peer(sas.near_spi, to).unwrap();
        program.send_to(b"question", QUESTION.1).unwrap();
        if peer_address == PeerAddress::Fixed {
            assert_eq!(&lab.receive(&mut sas)[28..], b"question");
        } else {
            let mut buffer = [0; 200];
            let bytes = elsewhere.recv(&mut buffer).unwrap();
            assert!(matches!(sas.inbound.open(&mut buffer[..bytes], 0), Ok(Opened::Packet(..))));
        }
        lab.send(&sas.seal(&udp(QUESTION.1, QUESTION.0, b"answer")));
        program.recv(&mut [0; 8]).unwrap();
        assert_eq!(lab.worker.received_packets(sas.near_spi), 1);
    }
}

#[test]
fn packets_that_exceed_the_path_are_answered_or_fragmented() {
    if !in_namespace("lifecycle::packets_that_exceed_the_path_are_answered_or_fragmented") {
        return;
    }
    let lab = Lab::open();
    ip("link set lo mtu 1300");
    let mut sas = lab.establish(lab.tunnel(1), 1);
    let program = program();
    // Linux by default sets DF on datagrams that fit the MTU of the interface.
    program.send_to(&[7; 1_300], QUESTION.1).unwrap();
    lab.wait_for_drops(DropReason::TooBig, 1);
    let mtu = path_mtu("10.2.0.1".parse().unwrap()).unwrap();
    assert!((1_200..1_300).contains(&mtu), "{mtu}");
    // Now the kernel divides the datagram into inner fragments.
    program.send_to(&[7; 1_300], QUESTION.1).unwrap();
    let packets = [lab.receive(&mut sas), lab.receive(&mut sas)];
    assert!(packets.iter().all(|packet| packet.len() <= mtu));
    // Without DF the ESP packet is fragmented.
    ip("route flush cache");
    std::fs::write("/proc/sys/net/ipv4/ip_no_pmtu_disc", "1").unwrap();
    let free = UdpSocket::bind("10.1.0.1:0").unwrap();
    free.send_to(&[7; 1_300], QUESTION.1).unwrap();
    assert_eq!(lab.receive(&mut sas).len(), 1_328);
}

#[test]
fn a_path_that_becomes_narrower_is_learnt() {
    if !in_namespace("lifecycle::a_path_that_becomes_narrower_is_learnt") {
        return;
    }
    let lab = Lab::open();
    let mut sas = lab.establish(lab.tunnel(1), 1);
    let program = program();
    program.send_to(&[7; 1_300], QUESTION.1).unwrap();
    assert_eq!(lab.receive(&mut sas).len(), 1_328);
    ip("link set lo mtu 1300");
    // The first is lost, the second is answered, the third is divided.
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(50));
        program.send_to(&[7; 1_300], QUESTION.1).unwrap();
    }
    lab.wait_for_drops(DropReason::TooBig, 2);
    program.send_to(&[7; 1_300], QUESTION.1).unwrap();
    assert!(lab.receive(&mut sas).len() < 1_300);
    // The path of the new tunnel, and the narrower one.
    let [wide, narrow] = [lab.next_path(), lab.next_path()];
    assert!(wide > 1_400 && (1_200..1_300).contains(&narrow), "{wide} {narrow}");
}
