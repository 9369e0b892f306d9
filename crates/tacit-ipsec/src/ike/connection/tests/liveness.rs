//! Tests when a side asks whether its peer is alive (RFC 7296 section 2.4).

use std::time::Duration;

use super::pair::Pair;

const SECOND: Duration = Duration::from_secs(1);

fn opened() -> Pair {
    let mut pair = Pair::new();
    pair.run(SECOND);
    pair.check();
    pair
}

#[test]
fn packets_of_the_peer_replace_the_question_whether_it_is_alive() {
    let mut pair = opened();
    pair.network.lost = 100;
    for _ in 0..100 {
        pair.run(SECOND * 10);
        for side in 0..2 {
            pair.command(side, |connection, now| connection.note_packet(now));
        }
    }
    pair.network.lost = 0;
    pair.run(SECOND * 100);
    pair.check();
}

#[test]
fn a_side_asks_after_the_time_without_a_packet_of_the_peer() {
    let mut pair = opened();
    let liveness = pair.sides[0].config.liveness;
    // Often only one side asks: its question is a message of the peer for the other side.
    let before = pair.datagrams;
    pair.run(liveness - SECOND * 2);
    assert_eq!(pair.datagrams, before);
    pair.run(SECOND * 2);
    let asked = pair.datagrams;
    assert!((before + 2..=before + 4).contains(&asked), "{asked}");
    // Packets of the peer postpone it each time.
    for _ in 0..20 {
        pair.run(liveness / 2);
        for side in 0..2 {
            pair.command(side, |connection, now| connection.note_packet(now));
        }
    }
    assert_eq!(pair.datagrams, asked);
}

#[test]
fn a_peer_that_only_receives_is_asked_and_missed() {
    let mut pair = opened();
    pair.network.lost = 100;
    let liveness = pair.sides[0].config.liveness;
    // The first side sends packets all the time, of which it tells the connection nothing, because
    // none comes back.
    pair.run(liveness + SECOND);
    assert!(pair.datagrams > 4, "no question");
    assert_eq!(pair.sides[0].failure(), None);
    pair.run(SECOND * 130);
    assert_eq!(pair.sides[0].failure().unwrap().kind, "peer-does-not-answer");
    assert!(pair.sides[0].children.is_empty());
}
