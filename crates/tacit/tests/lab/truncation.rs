//! A TLS stream that ends without being closed, or is changed on its way: what was good arrives,
//! then a reset.

use std::io::Write;

use crate::lane::{Harm, Lane, read_some, read_to_reset, tap};

/// More than a handshake and two tickets take.
const HANDSHAKE_BYTES_MAX: usize = 8 * 1024;

#[test]
fn a_stream_cut_without_close_notify_ends_in_a_reset_behind_the_good_bytes() {
    // Between two records is where a cut looks most like an end; inside one is the other place.
    for from_client in [true, false] {
        let lane = Lane::tls_through(|far| tap(far, Harm::Cut, from_client, HANDSHAKE_BYTES_MAX));
        let (client, server) = lane.open();
        let (mut sender, mut receiver) =
            if from_client { (client, server) } else { (server, client) };
        sender.write_all(&[1; 1000]).unwrap();
        assert_eq!(read_some(&mut receiver, 1000), [1; 1000]);
        // The records of these are whole up to some place, and then cut.
        let told = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            sender.write_all(&[2; 1000]).is_err()
        });
        let (received, was_reset) = read_to_reset(&mut receiver);
        assert!(was_reset, "a clean end after {} bytes", received.len());
        assert!(!received.is_empty() && received.iter().all(|&byte| byte == 2));
        assert!(told, "the other end learns it too");
        lane.agents[usize::from(from_client)].wait_for_log("without close_notify");
    }
}

#[test]
fn a_changed_record_is_never_delivered_and_its_sender_is_told() {
    for from_client in [true, false] {
        let lane = Lane::tls_through(|far| tap(far, Harm::Flip, from_client, HANDSHAKE_BYTES_MAX));
        let (client, server) = lane.open();
        let (mut sender, mut receiver) =
            if from_client { (client, server) } else { (server, client) };
        let _ = sender.write_all(&[3; 30_000]);
        let (received, was_reset) = read_to_reset(&mut receiver);
        assert!(was_reset && received.iter().all(|&byte| byte == 3));
        assert!(received.len() < 30_000);
        lane.agents[usize::from(from_client)].wait_for_log("does not authenticate");
        lane.agents[usize::from(!from_client)].wait_for_log("BadRecordMac");
    }
}
