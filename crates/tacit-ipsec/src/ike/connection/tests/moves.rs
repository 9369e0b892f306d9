//! Tests a peer behind a NAT. During an IKE connection, the NAT gives the peer another address (RFC
//! 7296 section 2.23).

use std::net::SocketAddr;
use std::time::Duration;

use super::pair::Pair;
use crate::ike::*;

const SECOND: Duration = Duration::from_secs(1);

fn moved() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 77], 1024))
}

/// A connection in which the responder sees the initiator behind a NAT.
fn opened() -> Pair {
    let mut pair = Pair::new();
    pair.run(SECOND);
    pair.check();
    assert!(pair.sides[1].connection().peer_may_move());
    pair
}

fn count_moves(pair: &Pair, side: usize) -> usize {
    pair.sides[side].count(|event| *event == IkeEvent::PeerMoved(moved()))
}

#[test]
fn a_new_request_from_another_address_moves_the_peer() {
    let mut pair = opened();
    pair.addresses[0] = moved();
    let old = pair.sides[0].active;
    let spi = pair.sides[0].active();
    // The answer reaches only the new address.
    pair.command(0, |connection, now| connection.rekey_child(now, spi));
    pair.run(SECOND);
    assert_eq!((count_moves(&pair, 0), count_moves(&pair, 1)), (0, 1));
    assert_eq!(pair.sides[1].connection().remote(), moved());
    assert_ne!(pair.sides[0].active, old);
    pair.check();
    // Requests of the other side reach it too.
    pair.command(1, IkeConnection::rekey);
    pair.run(SECOND * 300);
    pair.check();
    assert_eq!(count_moves(&pair, 1), 1);
}

#[test]
fn an_answer_from_another_address_moves_the_peer() {
    let mut pair = opened();
    pair.command(1, IkeConnection::rekey);
    // The request has arrived at the old address, and the answer has the new one.
    pair.run(Duration::from_millis(11));
    let answers = pair.in_flight(1);
    pair.drop_flight();
    pair.addresses[0] = moved();
    for bytes in answers {
        pair.deliver(1, moved(), &bytes);
    }
    assert_eq!(count_moves(&pair, 1), 1);
    pair.run(SECOND * 60);
    pair.check();
}

#[test]
fn repeated_and_changed_messages_move_no_peer() {
    let mut pair = opened();
    let spi = pair.sides[0].active();
    pair.command(0, |connection, now| connection.rekey_child(now, spi));
    let requests = pair.in_flight(1);
    let mut changed = requests[0].clone();
    *changed.last_mut().unwrap() ^= 1;
    pair.deliver(1, moved(), &changed);
    // The true one arrives, and an attacker sends it again.
    pair.run(Duration::from_millis(11));
    for bytes in requests {
        pair.deliver(1, moved(), &bytes);
    }
    assert_eq!(count_moves(&pair, 1), 0);
    pair.run(SECOND * 60);
    pair.check();
}

#[test]
fn only_a_peer_behind_a_nat_moves_and_only_for_a_side_in_front_of_one() {
    for is_behind_nat in [true, false] {
        let mut pair = opened();
        let connection = pair.sides[1].connection();
        connection.is_behind_nat = is_behind_nat;
        connection.is_peer_behind_nat = is_behind_nat;
        assert!(!connection.peer_may_move());
        let before = connection.remote();
        connection.note_peer_address(moved());
        assert_eq!(connection.remote(), before);
        pair.addresses[0] = moved();
        pair.command(0, IkeConnection::rekey);
        pair.run(SECOND / 2);
        assert_eq!(count_moves(&pair, 1), 0);
        assert_eq!(pair.sides[1].connection().remote(), before);
    }
}

#[test]
fn a_packet_from_another_address_moves_the_peer() {
    let mut pair = opened();
    pair.addresses[0] = moved();
    pair.command(1, |connection, _| connection.note_peer_address(moved()));
    pair.command(1, |connection, _| connection.note_peer_address(moved()));
    assert_eq!(count_moves(&pair, 1), 1);
    // Requests are sent to it.
    pair.command(1, IkeConnection::rekey);
    pair.run(SECOND * 60);
    pair.check();
}

#[test]
fn a_side_with_another_address_sends_a_request_from_it_at_once() {
    let mut pair = opened();
    let before = pair.datagrams;
    assert_eq!(pair.sides[0].connection().keepalive_at(), None);
    for _ in 0..2 {
        // The second time, it is the same address.
        pair.addresses[0] = moved();
        pair.command(0, |connection, now| connection.note_local_address(now, moved()));
        pair.run(SECOND / 2);
        assert_eq!(pair.datagrams, before + 2, "a request and its response");
    }
    assert_eq!(count_moves(&pair, 1), 1);
    assert_eq!(pair.sides[1].connection().remote(), moved());
    assert_eq!(pair.sides[0].connection().local(), moved());
    // A NAT may be in front of the new address.
    assert!(pair.sides[0].connection().keepalive_at().is_some());
    pair.check();
}

#[test]
fn a_side_with_another_address_repeats_its_request_from_it_at_once() {
    let mut pair = opened();
    pair.network.lost = 100;
    pair.command(0, IkeConnection::rekey);
    // The delay until the next repetition is 16 seconds now.
    pair.run(SECOND * 40);
    pair.network.lost = 0;
    pair.addresses[0] = moved();
    pair.command(0, |connection, now| connection.note_local_address(now, moved()));
    pair.run(SECOND / 2);
    assert_eq!(count_moves(&pair, 1), 1);
    assert_eq!(pair.sides[0].count(|event| *event == IkeEvent::Rekeyed), 1);
    pair.check();
}

#[test]
fn a_connection_to_a_silent_peer_fails_whenever_this_side_moves() {
    let mut pair = opened();
    pair.network.lost = 100;
    pair.command(0, IkeConnection::rekey);
    // Each address is used for longer than the repetitions on a new path take.
    for last in 0..10 {
        pair.run(SECOND * 20);
        let address = SocketAddr::from(([192, 0, 2, 100 + last], 4500));
        pair.command(0, |connection, now| connection.note_local_address(now, address));
    }
    let is_silent = |failure: &IkeFailure| failure.kind == "peer-does-not-answer";
    let failed = pair.sides[0]
        .count(|event| matches!(event, IkeEvent::Failed(failure) if is_silent(failure)));
    assert_eq!(failed, 1);
}

#[test]
fn another_address_does_not_delay_the_end_of_a_connection() {
    let mut pair = opened();
    pair.network.lost = 100;
    pair.command(0, IkeConnection::close);
    for last in 0..10 {
        pair.run(SECOND * 2);
        let address = SocketAddr::from(([192, 0, 2, 100 + last], 4500));
        pair.command(0, |connection, now| connection.note_local_address(now, address));
    }
    assert_eq!(pair.sides[0].count(|event| *event == IkeEvent::Closed), 1);
}

#[test]
fn a_peer_with_the_hash_of_its_address_is_behind_no_nat() {
    let mut pair = opened();
    let spis = pair.sides[1].connection().sas[0].spis;
    let random = &mut crypto::TestRandom(1);
    let address = pair.addresses[0];
    let [random_source, right] = nat::payloads(spis, address, random).unwrap();
    let source = |payload: &codec::IkePayload| {
        let codec::IkePayload::Notify(one) = payload else { panic!() };
        let kind = codec::notify::NAT_DETECTION_SOURCE_IP;
        codec::IkePayload::Notify(codec::NotifyPayload::new(kind, one.data.clone()))
    };
    let is_behind = |payloads: &[codec::IkePayload], from: SocketAddr| {
        nat::is_peer_translated(payloads, spis, from)
    };
    assert!(!is_behind(&[], address));
    assert!(!is_behind(&[source(&right)], address));
    assert!(!is_behind(&[source(&random_source), source(&right)], address));
    assert!(is_behind(&[source(&right)], moved()));
    assert!(is_behind(&[source(&random_source)], address));
}
