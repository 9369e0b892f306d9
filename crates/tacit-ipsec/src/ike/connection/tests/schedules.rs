//! Tests two IKE connections with thousands of random schedules. In these schedules, some datagrams
//! are lost, duplicated or delayed.

use std::time::Duration;

use super::pair::{Network, Pair, config};
use crate::ike::*;

/// A command of a random side at a random time.
fn disturb(pair: &mut Pair) {
    let side = usize::from(pair.dice() % 2);
    let is_both = pair.dice() < 30;
    let kind = pair.dice() % 3;
    for side in if is_both { vec![0, 1] } else { vec![side] } {
        if pair.sides[side].connection.is_none() {
            continue;
        }
        match kind {
            0 => pair.command(side, IkeConnection::rekey),
            _ if pair.sides[side].active.is_some() => {
                let spi = pair.sides[side].active();
                pair.command(side, |connection, now| connection.rekey_child(now, spi));
            }
            _ => {}
        }
    }
}

/// Runs a schedule, and reports whether it ended in one IKE SA and one pair of child SAs. Otherwise
/// it ended in a named failure without a child SA.
fn succeeds(seed: u64) -> bool {
    let network = Network {
        lost: u8::try_from(seed % 4 * 10).unwrap(),
        repeated: u8::try_from(seed / 4 % 4 * 10).unwrap(),
        late: u8::try_from(seed / 16 % 4 * 15).unwrap(),
    };
    let a = config("a.example", "b.example", [1, 2]);
    let b = config("b.example", "a.example", [2, 1]);
    let mut pair = Pair::seeded(a, b, seed, network);
    for _ in 0..6 {
        let wait = Duration::from_millis(u64::from(pair.dice()) * 50);
        pair.run(wait);
        disturb(&mut pair);
    }
    pair.network = Network::default();
    pair.run(Duration::from_secs(300));
    if pair.sides.iter().all(|side| side.failure().is_none()) {
        pair.check();
        return true;
    }
    pair.run(Duration::from_secs(300));
    assert!(pair.sides.iter().all(|side| side.children.is_empty()), "{:?}", pair.sides);
    false
}

#[test]
fn schedules_end_in_one_ike_sa_and_one_child_pair_or_a_named_failure() {
    let wanted = std::env::var("IKE_SCHEDULES").ok().map(|number| number.parse().unwrap());
    let schedules = wanted.unwrap_or(SCHEDULES);
    let mut failed = 0;
    for seed in 0..schedules {
        match std::panic::catch_unwind(|| succeeds(seed)) {
            Ok(true) => {}
            Ok(false) => failed += 1,
            Err(_) => panic!("seed {seed}"),
        }
    }
    println!("{failed} of {schedules} schedules ended in a failure");
    assert!(failed < schedules.div_ceil(50), "{failed} failed");
}

/// The number of schedules, unless `IKE_SCHEDULES` has another one.
const SCHEDULES: u64 = 2000;
