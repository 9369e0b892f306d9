//! Tests that a worker drops each kind of invalid packet from a peer, and gives a separate reason
//! for each kind.

use std::net::TcpListener;

use tacit::packet::PacketEvent;
use tacit_core::icmp::{IcmpError, error_about};
use tacit_ipsec::esp::DropReason;
use tacit_sys::datagram_batch::{BatchSocket, DatagramBatch};

use super::peer::{EVENTS_MAX, Lab, PeerSas, WORKER, drops, fragments, program, syn, udp};
use super::{in_namespace, keys};

const QUESTION: (&str, &str) = ("10.1.0.1:4000", "10.2.0.1:53");

#[test]
fn each_fault_has_its_own_counter() {
    if !in_namespace("faults::each_fault_has_its_own_counter") {
        return;
    }
    let lab = Lab::open();
    let mut sas = lab.establish(lab.tunnel(1), 1);
    let program = program();
    let mut buffer = [0; 2_000];

    program.send_to(b"question", QUESTION.1).unwrap();
    let inner = lab.receive(&mut sas);
    assert_eq!(&inner[28..], b"question");
    let answer = sas.seal(&udp(QUESTION.1, QUESTION.0, b"answer"));
    lab.send(&answer);
    let (bytes, from) = program.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..bytes], from), (&b"answer"[..], QUESTION.1.parse().unwrap()));

    lab.send(&answer);
    lab.wait_for_drops(DropReason::Replayed, 1);

    let good = sas.seal(&udp(QUESTION.1, QUESTION.0, b"changed"));
    for at in [8, 20, good.len() - 1] {
        let mut changed = good.clone();
        changed[at] ^= 1;
        lab.send(&changed);
    }
    lab.send(&good[..good.len() - 4]);
    lab.wait_for_drops(DropReason::Integrity, 4);
    lab.send(&good[..20]);
    lab.send(&[0, 0, 0, 200, 7]);
    lab.send(&[]);
    lab.wait_for_drops(DropReason::Malformed, 3);
    let mut unknown = good.clone();
    unknown[..4].copy_from_slice(&[0, 0, 0x77, 0x77]);
    lab.send(&unknown);
    lab.wait_for_drops(DropReason::UnknownSpi, 1);
    // None of these has moved the replay window.
    lab.send(&good);
    let (bytes, _) = program.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], b"changed");

    lab.send(&sas.seal(&udp("10.3.0.1:53", QUESTION.0, b"another network")));
    lab.wait_for_drops(DropReason::Selectors, 1);
    lab.send(&sas.seal(&udp("10.2.0.1:54", QUESTION.0, b"another port")));
    lab.send(&sas.seal(&udp(QUESTION.1, "10.1.0.1:4001", b"without question")));
    lab.wait_for_drops(DropReason::Flow, 2);
    lab.send(&sas.seal(&[0x45, 0, 0, 99]));
    lab.wait_for_drops(DropReason::InnerPacket, 1);
    lab.send(&sas.seal_dummy(100));
    lab.wait("a dummy", |statistics| statistics.tunnels[0].inbound.dummies == 1);

    // Nothing of all this has reached the program.
    program.set_nonblocking(true).unwrap();
    assert!(program.recv_from(&mut buffer).is_err());
    let statistics = lab.worker.statistics();
    assert_eq!(statistics.tunnels[0].outbound.packets, 1);
    let total: u64 = statistics.drops.iter().map(|(_, count)| count).sum();
    assert_eq!(total, 13, "{statistics:?}");
    let of_tunnel = &statistics.tunnels[0].drops;
    assert!(of_tunnel.contains(&(DropReason::Replayed, 1)), "{statistics:?}");
    assert!(of_tunnel.contains(&(DropReason::Integrity, 4)), "{statistics:?}");
    let is_unknown = |(reason, _): &(DropReason, u64)| *reason == DropReason::UnknownSpi;
    assert!(!of_tunnel.iter().any(is_unknown), "no tunnel has this SPI: {statistics:?}");
}

#[test]
fn packets_out_of_order_are_delivered_within_the_window_and_counted_beyond_it() {
    if !in_namespace(
        "faults::packets_out_of_order_are_delivered_within_the_window_and_counted_beyond_it",
    ) {
        return;
    }
    let lab = Lab::open();
    // With extended sequence numbers, an older number is that of a later packet (RFC 4303 appendix
    // A2), whose ICV is wrong.
    let mut tunnel = lab.tunnel(1);
    tunnel.child.has_extended_sequence = false;
    let mut sas = PeerSas::of(&keys::reversed(tunnel.child.clone()));
    lab.establish(tunnel, 1);
    let program = program();
    lab.ask(&program, &mut sas);
    let mut answer = |text: &[u8]| sas.seal(&udp(QUESTION.1, QUESTION.0, text));
    let oldest = answer(b"oldest");
    let reversed: Vec<_> = (0..100_u8).map(|number| answer(&[number])).rev().collect();
    for frame in &reversed {
        lab.send(frame);
    }
    for wanted in (0..100).rev() {
        let mut buffer = [0; 8];
        assert_eq!((program.recv(&mut buffer).unwrap(), buffer[0]), (1, wanted));
    }
    assert_eq!(lab.worker.statistics().drops, []);
    // The replay window has 8,192 numbers.
    let newest = (0..8_200).map(|_| answer(b"newest")).last().unwrap();
    lab.send(&newest);
    assert_eq!(program.recv(&mut [0; 8]).unwrap(), 6);
    lab.send(&oldest);
    lab.wait_for_drops(DropReason::TooOld, 1);
    assert_eq!(lab.worker.statistics().drops.len(), 1, "{:?}", lab.worker.statistics());
}

/// What a peer, or anyone else, sends in place of ESP never reaches a program.
#[test]
fn a_packet_in_clear_reaches_no_program() {
    if !in_namespace("faults::a_packet_in_clear_reaches_no_program") {
        return;
    }
    let lab = Lab::open();
    let mut sas = lab.establish(lab.tunnel(1), 1);
    let program = program();
    lab.ask(&program, &mut sas);
    let clear = udp(QUESTION.1, QUESTION.0, b"in clear");
    lab.send(&clear);
    lab.wait_for_drops(DropReason::UnknownSpi, 1);
    // The same behind the SPI of the tunnel and a sequence number, as ESP without encryption.
    let spi = &sas.seal(&clear)[..4];
    lab.send(&[spi, &[0, 0, 0, 9], &[0; 8], &clear, &[0; 16]].concat());
    lab.wait_for_drops(DropReason::Integrity, 1);
    lab.send(&sas.seal(&udp(QUESTION.1, QUESTION.0, b"sealed")));
    let mut buffer = [0; 100];
    let bytes = program.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], b"sealed");
}

#[test]
fn the_largest_datagrams_and_batches_fit_and_longer_ones_end_nothing() {
    if !in_namespace("faults::the_largest_datagrams_and_batches_fit_and_longer_ones_end_nothing") {
        return;
    }
    let lab = Lab::open();
    let mut sas = lab.establish(lab.tunnel(1), 1);
    let program = program();
    lab.ask(&program, &mut sas);
    let mut buffer = vec![0; 65_535];
    // The longest datagram of IPv4, whose inner packet is as long as it can be.
    let frame = sas.seal(&udp(QUESTION.1, QUESTION.0, &vec![7; 65_435]));
    assert!(frame.len() >= 65_500, "{}", frame.len());
    lab.send(&frame);
    assert_eq!(program.recv(&mut buffer).unwrap(), 65_435);
    // As long, and neither ESP nor IKE of this side.
    lab.send(&vec![0xee; 65_507]);
    lab.wait_for_drops(DropReason::UnknownSpi, 1);
    lab.send(&[&frame[..4], &vec![0xee; 65_503]].concat());
    lab.wait("a drop", |statistics| statistics.drops.len() == 2);
    // A batch that the kernel delivers in one piece of 64 datagrams, almost 64 KiB.
    let answer = vec![7; 955];
    let frames: Vec<_> = (0..64).map(|_| sas.seal(&udp(QUESTION.1, QUESTION.0, &answer))).collect();
    let datagram_bytes = frames[0].len();
    let sender = BatchSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let to = WORKER.parse().unwrap();
    let payloads = frames.concat();
    assert!((65_200..65_507).contains(&payloads.len()), "{}", payloads.len());
    let batch = DatagramBatch { payloads: &payloads, datagram_bytes, to, traffic_class: 0 };
    sender.send(&batch).unwrap();
    for _ in 0..64 {
        assert_eq!(program.recv(&mut buffer).unwrap(), 955);
    }
    assert_eq!(lab.worker.statistics().tunnels[0].inbound.packets, 65);
}

#[test]
fn a_peer_opens_connections_only_where_a_rule_permits_it() {
    if !in_namespace("faults::a_peer_opens_connections_only_where_a_rule_permits_it") {
        return;
    }
    let lab = Lab::open();
    let mut sas = lab.establish(lab.tunnel(1), 1);
    let listeners = [8080, 9090].map(|port| TcpListener::bind(("10.1.0.1", port)).unwrap());
    let near = [10, 1, 0, 1];
    let far = [10, 2, 0, 1];
    // From the port of a rule for connections from inside, and to another listener.
    lab.send(&sas.seal(&syn(far, (80, 9090), near)));
    lab.send(&sas.seal(&syn(far, (5000, 9090), near)));
    lab.wait_for_drops(DropReason::Flow, 2);
    // The same from the port of a rule, with the flags in the second fragment.
    for fragment in fragments(&syn(far, (80, 9090), near), 8) {
        lab.send(&sas.seal(&fragment));
    }
    lab.wait_for_drops(DropReason::Flow, 3);
    // The first answer is that of the permitted port.
    lab.send(&sas.seal(&syn(far, (5000, 8080), near)));
    let answer = lab.receive(&mut sas);
    assert_eq!((answer[9], answer[33]), (6, 0x12), "SYN and ACK");
    assert_eq!(answer[20..22], 8080_u16.to_be_bytes(), "the permitted port");
    // A connection from the port inside that only accepts.
    drop(listeners);
    let flow = drops(&lab.worker.statistics(), DropReason::Flow);
    assert_eq!(flow, 3);
}

#[test]
fn icmp_errors_reach_the_program_that_caused_them() {
    if !in_namespace("faults::icmp_errors_reach_the_program_that_caused_them") {
        return;
    }
    let lab = Lab::open();
    let mut sas = lab.establish(lab.tunnel(1), 1);
    let program = program();
    program.connect(QUESTION.1).unwrap();
    program.send(b"question").unwrap();
    let inner = lab.receive(&mut sas);
    let [router, near] = ["10.2.0.9", "10.1.0.1"].map(|text| text.parse().unwrap());
    let error = error_about(IcmpError::PortUnreachable, &inner, router, near).unwrap();
    // The same error about a flow that no rule permits.
    let foreign = udp("10.1.0.1:4000", "10.2.0.1:99", b"x");
    let foreign = error_about(IcmpError::PortUnreachable, &foreign, router, near).unwrap();
    lab.send(&sas.seal(&foreign));
    lab.wait_for_drops(DropReason::Flow, 1);
    lab.send(&sas.seal(&error));
    let refused = program.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_peer_cannot_send_with_addresses_of_another() {
    if !in_namespace("faults::a_peer_cannot_send_with_addresses_of_another") {
        return;
    }
    let lab = Lab::open();
    let mut first = lab.establish(lab.tunnel(1), 1);
    let mut other = lab.tunnel(2);
    other.child.remote = vec![keys::selector(("10.4.0.0", "10.4.0.255"))];
    let mut second = lab.establish(other, 2);
    let program = program();
    lab.ask(&program, &mut first);
    let answer = udp(QUESTION.1, QUESTION.0, b"answer");
    lab.send(&second.seal(&answer));
    lab.wait_for_drops(DropReason::Selectors, 1);
    lab.send(&first.seal(&answer));
    assert_eq!(program.recv(&mut [0; 100]).unwrap(), 6);
}

/// Otherwise two hosts could send keepalives to each other without end.
#[test]
fn keepalives_are_not_answered() {
    if !in_namespace("faults::keepalives_are_not_answered") {
        return;
    }
    let lab = Lab::open();
    for _ in 0..3 {
        lab.send(&[0xff]);
    }
    lab.wait("keepalives", |statistics| statistics.keepalives == 3);
    lab.worker.send_ike(b"last", lab.socket.local_addr().unwrap()).unwrap();
    let mut buffer = [0; 100];
    let bytes = lab.socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], b"\0\0\0\0last", "the first datagram");
}

/// The kernel joins datagrams of one length, whatever they contain.
#[test]
fn ike_esp_and_keepalives_in_one_buffer_are_distinguished() {
    if !in_namespace("faults::ike_esp_and_keepalives_in_one_buffer_are_distinguished") {
        return;
    }
    let lab = Lab::open();
    let mut sas = lab.establish(lab.tunnel(1), 1);
    let program = program();
    lab.ask(&program, &mut sas);
    let esp: Vec<_> = (0..2).map(|_| sas.seal(&udp(QUESTION.1, QUESTION.0, b"answer"))).collect();
    let ike = [vec![0; 4], vec![7; esp[0].len() - 4]].concat();
    let payloads = [&esp[0][..], &ike, &esp[1], &[0xff]].concat();
    let sender = BatchSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let to = WORKER.parse().unwrap();
    let batch =
        DatagramBatch { payloads: &payloads, datagram_bytes: esp[0].len(), to, traffic_class: 0 };
    sender.send(&batch).unwrap();
    for _ in 0..2 {
        let mut buffer = [0; 100];
        assert_eq!(program.recv(&mut buffer).unwrap(), 6);
    }
    let PacketEvent::Ike(received) = lab.next_event() else { panic!("another event") };
    assert_eq!(received.from, sender.local_address().unwrap());
    assert_eq!(received.message, &ike[4..]);
    lab.wait("a keepalive", |statistics| statistics.keepalives == 1);
    assert_eq!(lab.worker.statistics().drops, []);
}

#[test]
fn ike_messages_beyond_the_queue_are_dropped_and_counted() {
    if !in_namespace("faults::ike_messages_beyond_the_queue_are_dropped_and_counted") {
        return;
    }
    let lab = Lab::open();
    let messages = u64::try_from(EVENTS_MAX).unwrap() + 20;
    for _ in 0..messages {
        lab.send(&[0, 0, 0, 0, 1, 2, 3]);
    }
    lab.wait("all messages", |statistics| statistics.ike_messages == messages);
    lab.wait_for_drops(DropReason::Queue, 20);
}

#[test]
fn congestion_that_a_router_marks_reaches_the_program() {
    if !in_namespace("faults::congestion_that_a_router_marks_reaches_the_program") {
        return;
    }
    let lab = Lab::open();
    let mut sas = lab.establish(lab.tunnel(1), 1);
    let program = program();
    lab.ask(&program, &mut sas);
    let program = BatchSocket::from_socket(program.into()).unwrap();
    let sender = BatchSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let to = WORKER.parse().unwrap();
    // The inner packet supports ECN: its class is 2, the outer one 3.
    let mut inner = udp(QUESTION.1, QUESTION.0, b"marked");
    inner[1] = 2;
    let sum = u16::from_be_bytes([inner[10], inner[11]]) - 2;
    inner[10..12].copy_from_slice(&sum.to_be_bytes());
    for (packet, class) in [(inner, 3), (udp(QUESTION.1, QUESTION.0, b"without"), 3)] {
        let frame = sas.seal(&packet);
        let datagram_bytes = frame.len();
        let batch = DatagramBatch { payloads: &frame, datagram_bytes, to, traffic_class: class };
        sender.send(&batch).unwrap();
    }
    lab.wait_for_drops(DropReason::Congestion, 1);
    let received = program.receive(&mut [0; 64]).unwrap();
    assert_eq!((received.bytes, received.traffic_class), (6, 3));
    // The other direction: the outer class is the inner one.
    let batch = DatagramBatch {
        payloads: b"x",
        datagram_bytes: 1,
        to: QUESTION.1.parse().unwrap(),
        traffic_class: 0xba,
    };
    let peer = BatchSocket::from_socket(lab.socket.try_clone().unwrap().into()).unwrap();
    program.send(&batch).unwrap();
    lab.wait("a packet", |statistics| statistics.tunnels[0].outbound.packets == 2);
    let received = std::iter::repeat_with(|| peer.receive(&mut [0; 200])).find_map(Result::ok);
    assert_eq!(received.unwrap().traffic_class, 0xba);
}
