//! Tests a worker whose two threads take turns to receive packets. The packets must keep their
//! order when the other thread takes over. Tunnels must be able to begin and end while the threads
//! take turns.

use std::time::Duration;

use tacit::packet::{PacketStatistics, PacketThreads};
use tacit_ipsec::esp::DropReason;

use super::driver::MOVING;
use super::in_namespace;
use super::peer::{Lab, PeerSas, drops, program, udp};

const QUESTION: (&str, &str) = ("10.1.0.1:4000", "10.2.0.1:53");
/// Fewer than the buffer of the program's socket holds.
const PACKETS_PER_ROUND: u32 = 64;
/// What a peer sends through a tunnel that ends.
const LATE: &[u8] = b"late";

#[test]
fn datagrams_keep_their_order_while_receiving_moves_between_threads() {
    if !in_namespace("moving::datagrams_keep_their_order_while_receiving_moves_between_threads") {
        return;
    }
    let lab = Lab::open_with(MOVING);
    let program = program();
    let mut sas = lab.establish(lab.tunnel(1), 1);
    lab.ask(&program, &mut sas);
    let mut expected = 0;
    for round in 0..400 {
        for number in 0..PACKETS_PER_ROUND {
            let payload = (round * PACKETS_PER_ROUND + number).to_be_bytes();
            lab.send(&sas.seal(&udp(QUESTION.1, QUESTION.0, &payload)));
        }
        for _ in 0..PACKETS_PER_ROUND {
            let mut payload = [0; 4];
            program.recv(&mut payload).unwrap();
            assert_eq!(u32::from_be_bytes(payload), expected);
            expected += 1;
        }
    }
    let statistics = lab.worker.statistics();
    assert!(statistics.moves >= 400, "{statistics:?}");
    assert_eq!(statistics.drops, []);
    let received = [statistics.received, statistics.received_second].map(|one| one.v4.packets);
    assert_eq!(received.iter().sum::<u64>(), u64::from(expected));
    assert!(received.iter().all(|packets| *packets > 1_000), "{statistics:?}");
}

#[test]
fn tunnels_begin_and_end_while_receiving_moves_between_threads() {
    if !in_namespace("moving::tunnels_begin_and_end_while_receiving_moves_between_threads") {
        return;
    }
    let lab = Lab::open_with(MOVING);
    let program = program();
    let mut moves = 0;
    for number in 1..=40 {
        let mut sas = lab.establish(lab.tunnel(number), number);
        lab.ask(&program, &mut sas);
        answer(&lab, &mut sas, &program);
        lab.worker.remove(sas.near_spi).unwrap();
        let unknown = || drops(&lab.worker.statistics(), DropReason::UnknownSpi);
        let before = unknown();
        // The other thread may receive packets before the tunnel is removed.
        for _ in 0..1_000 {
            lab.send(&sas.seal(&udp(QUESTION.1, QUESTION.0, LATE)));
            std::thread::sleep(Duration::from_millis(10));
            if unknown() > before {
                break;
            }
        }
        assert!(unknown() > before, "{:?}", lab.worker.statistics());
        moves = lab.worker.statistics().moves;
    }
    assert!(moves >= 40, "{moves}");
}

#[test]
fn without_an_engine_one_thread_does_everything() {
    if !in_namespace("moving::without_an_engine_one_thread_does_everything") {
        return;
    }
    let lab = Lab::open_with(PacketThreads::default());
    let program = program();
    let mut sas = lab.establish(lab.tunnel(1), 1);
    for _ in 0..100 {
        lab.ask(&program, &mut sas);
        answer(&lab, &mut sas, &program);
    }
    let PacketStatistics { moves, received, received_second, sent, .. } = lab.worker.statistics();
    assert_eq!((moves, received_second.v4.packets), (0, 0));
    assert_eq!((received.v4.packets, sent.v4.packets), (100, 100));
    assert_eq!((received.v4.bytes, sent.v4.bytes), (100 * 34, 100 * 36), "headers and payload");
    assert_eq!((received.v6, sent.v6), Default::default());
}

fn answer(lab: &Lab, sas: &mut PeerSas, program: &std::net::UdpSocket) {
    lab.send(&sas.seal(&udp(QUESTION.1, QUESTION.0, b"answer")));
    let mut payload = [0; 16];
    loop {
        let bytes = program.recv(&mut payload).unwrap();
        if &payload[..bytes] != LATE {
            return assert_eq!(&payload[..bytes], b"answer");
        }
    }
}
