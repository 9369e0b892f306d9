//! Tests TLS streams that are truncated or modified on their way: the valid bytes are delivered,
//! then the connection is reset.

use std::io::Write;

use crate::harness::Agent;
use crate::lane::{Harm, Lane, Program, Turns, read_some, read_to_end, tap};

/// More than a handshake and two tickets take.
const HANDSHAKE_BYTES_MAX: usize = 8 * 1024;

/// The agent on the side of a sending program, and the one on the other side.
fn agents_of(lane: &Lane, sender: Program) -> [&Agent; 2] {
    match sender {
        Program::Client => [&lane.agents[0], &lane.agents[1]],
        Program::Server => [&lane.agents[1], &lane.agents[0]],
    }
}

#[test]
fn a_stream_cut_without_close_notify_ends_in_a_reset_behind_the_good_bytes() {
    // Between two records is where a cut looks most like an end; inside one is the other place.
    for program in Program::BOTH {
        let lane = Lane::tls_through(|far| tap(far, Harm::Cut, program, HANDSHAKE_BYTES_MAX));
        let Turns { first: mut sender, second: mut receiver } = lane.open().first(program);
        let [_, receiving] = agents_of(&lane, program);
        sender.write_all(&[1; 1000]).unwrap();
        assert_eq!(read_some(&mut receiver, 1000), [1; 1000]);
        // The records of these are whole up to some place, and then cut.
        let told = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            sender.write_all(&[2; 1000]).is_err()
        });
        let received = read_to_end(&mut receiver).expect_reset("cut or changed");
        assert!(!received.is_empty() && received.iter().all(|&byte| byte == 2));
        assert!(told, "the other end is reset too");
        receiving.wait_for_log("without close_notify");
    }
}

#[test]
fn a_changed_record_is_never_delivered_and_its_sender_receives_an_alert() {
    for program in Program::BOTH {
        let lane = Lane::tls_through(|far| tap(far, Harm::Flip, program, HANDSHAKE_BYTES_MAX));
        let Turns { first: mut sender, second: mut receiver } = lane.open().first(program);
        let [sending, receiving] = agents_of(&lane, program);
        let _ = sender.write_all(&[3; 30_000]);
        let received = read_to_end(&mut receiver).expect_reset("cut or changed");
        assert!(received.iter().all(|&byte| byte == 3));
        assert!(received.len() < 30_000);
        receiving.wait_for_log("failed authentication");
        sending.wait_for_log("BadRecordMac");
    }
}
