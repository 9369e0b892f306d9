//! Tests IPsec tunnels after the machine was suspended: the clock jumps by hours, and tacit has
//! handled no event during these hours.

use std::time::Duration;

use super::pair::Pair;
use crate::ike::*;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn opened() -> Pair {
    let mut pair = Pair::new();
    pair.run(SECOND);
    pair.check();
    pair
}

/// Handles what is due when a side wakes. Only messages that end something may follow.
fn wake(pair: &mut Pair, side: usize) {
    let before = pair.datagrams;
    pair.command(side, IkeConnection::handle_timeout);
    assert!(pair.sides[side].children.is_empty() && pair.sides[side].active.is_none());
    assert_eq!(pair.sides[side].failure().unwrap().kind, "keys-expired");
    assert!(pair.datagrams <= before + 1, "more than a deletion");
    assert!(pair.sides[side].connection().has_ended());
}

#[test]
fn keys_have_expired_after_a_sleep_and_a_new_ike_sa_follows() {
    // After the lifetime of child SAs, and after that of the IKE SA.
    for hours in [2, 5] {
        let mut pair = opened();
        let sleeping = pair.sides[0].connection.take();
        pair.run(HOUR * hours);
        pair.sides[0].connection = sleeping;
        assert_eq!(pair.sides[1].failure().unwrap().kind, "peer-does-not-answer");
        wake(&mut pair, 0);
        pair.open_again();
        pair.run(SECOND);
        pair.check();
    }
}

#[test]
fn both_sides_may_sleep() {
    for hours in [2, 5] {
        let mut pair = opened();
        pair.now += HOUR * hours;
        (0..2).for_each(|side| wake(&mut pair, side));
        pair.run(SECOND);
        pair.open_again();
        pair.run(SECOND);
        pair.check();
    }
}

#[test]
fn a_short_sleep_ends_nothing() {
    let mut pair = opened();
    pair.now += HOUR / 2;
    pair.run(SECOND * 200);
    pair.check();
    assert!(pair.sides.iter().all(|side| side.failure().is_none()));
}
