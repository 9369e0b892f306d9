//! Tests exchanges in which both sides change the same SA at the same time (RFC 7296 sections
//! 2.8.1, 2.8.2 and 2.25).

use std::time::{Duration, Instant};

use super::pair::Pair;
use crate::child::EspSpi;
use crate::ike::*;

const SECOND: Duration = Duration::from_secs(1);

fn opened() -> Pair {
    let mut pair = Pair::new();
    pair.run(SECOND);
    pair
}

fn rekey_child(spi: EspSpi) -> impl Fn(&mut IkeConnection, Instant) {
    move |connection, now| connection.rekey_child(now, spi)
}

/// Ends what is in progress, and checks that new keys came.
fn finish(mut pair: Pair, old: u32) {
    pair.run(SECOND * 60);
    pair.check();
    assert_ne!(pair.sides[0].active, Some(old));
}

#[test]
fn either_side_replaces_the_child() {
    for side in 0..2 {
        let mut pair = opened();
        let old = pair.sides[0].active.unwrap();
        let spi = pair.sides[side].active();
        pair.command(side, rekey_child(spi));
        finish(pair, old);
    }
}

#[test]
fn both_sides_replace_the_child_at_once() {
    for _ in 0..20 {
        let mut pair = opened();
        let old = pair.sides[0].active.unwrap();
        for side in 0..2 {
            let spi = pair.sides[side].active();
            pair.command(side, rekey_child(spi));
        }
        finish(pair, old);
    }
}

#[test]
fn either_side_replaces_the_ike_sa_and_the_child_remains() {
    for side in 0..2 {
        let mut pair = opened();
        let old = pair.sides[0].active;
        pair.command(side, IkeConnection::rekey);
        pair.run(SECOND * 60);
        pair.check();
        assert_eq!(pair.sides[0].active, old);
        for side in &pair.sides {
            assert_eq!(side.count(|event| *event == IkeEvent::Rekeyed), 1);
        }
    }
}

#[test]
fn both_sides_replace_the_ike_sa_at_once() {
    let mut pair = opened();
    for side in 0..2 {
        pair.command(side, IkeConnection::rekey);
    }
    pair.run(SECOND * 60);
    pair.check();
}

#[test]
fn one_side_replaces_the_child_and_the_other_the_ike_sa() {
    for side in 0..2 {
        let mut pair = opened();
        let old = pair.sides[0].active.unwrap();
        let spi = pair.sides[side].active();
        pair.command(side, rekey_child(spi));
        pair.command(1 - side, IkeConnection::rekey);
        finish(pair, old);
    }
}

#[test]
fn a_request_that_is_lost_while_the_peer_replaces_the_same_child_does_no_harm() {
    for side in 0..2 {
        let mut pair = opened();
        let old = pair.sides[0].active.unwrap();
        let spi = pair.sides[side].active();
        pair.command(side, rekey_child(spi));
        pair.drop_flight();
        let spi = pair.sides[1 - side].active();
        pair.command(1 - side, rekey_child(spi));
        finish(pair, old);
    }
}

#[test]
fn a_request_that_is_lost_while_the_peer_replaces_the_ike_sa_does_no_harm() {
    for side in 0..2 {
        let mut pair = opened();
        pair.command(side, IkeConnection::rekey);
        pair.drop_flight();
        pair.command(1 - side, IkeConnection::rekey);
        pair.run(SECOND * 60);
        pair.check();
    }
}

#[test]
fn one_side_closes_while_the_other_replaces() {
    let mut pair = opened();
    pair.command(0, IkeConnection::rekey);
    pair.command(1, IkeConnection::close);
    pair.run(SECOND * 60);
    for side in &pair.sides {
        assert!(side.children.is_empty());
        assert_eq!(side.events.last(), Some(&IkeEvent::Closed));
    }
}

#[test]
fn the_old_child_receives_until_the_peer_sends_with_the_new_one() {
    let mut pair = opened();
    let spi = pair.sides[0].active();
    pair.command(0, rekey_child(spi));
    // The request arrives: the responder can receive with the new keys, and sends with the old.
    pair.run(Duration::from_millis(11));
    let responder = &pair.sides[1];
    assert_eq!(responder.children.len(), 2);
    let active = &responder.children[&responder.active.unwrap()];
    assert_eq!(active.outbound.spi, spi);
    finish(pair, spi.number());
}
