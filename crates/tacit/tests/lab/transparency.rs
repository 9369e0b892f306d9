//! Tests that the relay is transparent: it relays each close, each reset and all urgent data
//! unchanged, and keeps the order of the bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;

use tacit_sys::socket::unacknowledged_bytes;

use crate::harness::{PATIENCE, wait_for};
use crate::lane::{Ends, Lane, Program, Received, Turns, fill, read_some, read_to_end, reset};

#[test]
fn each_direction_ends_alone() {
    Lane::each(|lane| {
        for program in Program::BOTH {
            let Turns { mut first, mut second } = lane.open().first(program);
            first.write_all(b"all I have").unwrap();
            first.shutdown(Shutdown::Write).unwrap();
            assert_eq!(read_to_end(&mut second), Received::Ended(b"all I have".to_vec()));
            for round in 0..3 {
                second.write_all(&[round; 1000]).unwrap();
                assert_eq!(read_some(&mut first, 1000), [round; 1000], "{}", lane.name);
            }
            second.shutdown(Shutdown::Write).unwrap();
            assert_eq!(read_to_end(&mut first), Received::Ended(Vec::new()));
        }
    });
}

#[test]
fn the_reset_of_either_end_resets_the_other() {
    Lane::each(|lane| {
        for program in Program::BOTH {
            let Turns { first, mut second } = lane.open().first(program);
            reset(first);
            assert_eq!(read_to_end(&mut second), Received::Reset(Vec::new()), "{}", lane.name);
        }
    });
}

#[test]
fn bytes_before_a_reset_arrive_before_it() {
    Lane::each(|lane| {
        for program in Program::BOTH {
            let Turns { mut first, mut second } = lane.open().first(program);
            let sent = vec![5; 100_000];
            first.write_all(&sent).unwrap();
            // A direct connection delivers what the other kernel has.
            wait_for("the acknowledgement", || unacknowledged_bytes(first.as_fd()).unwrap() == 0);
            reset(first);
            let received = read_to_end(&mut second).expect_reset(lane.name);
            assert!(received == sent, "{}: {}", lane.name, received.len());
        }
    });
}

#[test]
fn a_reset_after_a_half_close_still_arrives() {
    Lane::each(|lane| {
        for program in Program::BOTH {
            let Turns { first, mut second } = lane.open().first(program);
            first.shutdown(Shutdown::Write).unwrap();
            assert_eq!(second.read(&mut [0]).unwrap(), 0);
            reset(first);
            wait_for_error(&second, lane.name);
        }
    });
}

/// Waits until a socket that is not read holds an error.
fn wait_for_error(stream: &TcpStream, name: &str) {
    let mut polled = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::empty())];
    let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    assert_eq!(poll(&mut polled, Some(&patience)).unwrap(), 1, "{name}: no reset arrives");
    assert!(polled[0].revents().contains(PollFlags::ERR), "{name}: {:?}", polled[0].revents());
}

#[test]
fn a_reset_reaches_a_peer_that_does_not_read() {
    Lane::each(|lane| {
        let Ends { client, server } = lane.open();
        assert!(fill(&client) > 0);
        reset(client);
        wait_for_error(&server, lane.name);
    });
}

#[test]
fn a_stream_whose_sender_was_reset_never_looks_whole() {
    Lane::each(|lane| {
        let Ends { mut client, server } = lane.open();
        let filled = fill(&server);
        reset(server);
        // What goes the other way meets the reset first.
        for _ in 0..20 {
            if let Err(error) = client.write_all(b"still there?") {
                // The kernel reports a reset once, here to the writer.
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{}", lane.name);
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        read_to_end(&mut client).expect_reset(&format!("{}, of {filled} bytes", lane.name));
    });
}

#[test]
fn an_operator_who_closes_a_connection_resets_both_ends() {
    Lane::each(|lane| {
        let Ends { mut client, mut server } = lane.open();
        client.write_all(b"carried").unwrap();
        assert_eq!(read_some(&mut server, 7), b"carried");
        let id = lane.agents[0].show("connections")[0]["id"].to_string();
        lane.agents[0].ok(&["close", &id]);
        assert_eq!(read_to_end(&mut client), Received::Reset(Vec::new()), "{}", lane.name);
        assert_eq!(read_to_end(&mut server), Received::Reset(Vec::new()), "{}", lane.name);
    });
}

#[test]
fn a_server_may_speak_first() {
    Lane::each(|lane| {
        let Ends { mut client, mut server } = lane.open();
        server.write_all(b"220 ready").unwrap();
        assert_eq!(read_some(&mut client, 9), b"220 ready");
    });
}

#[test]
fn single_bytes_keep_their_order_and_are_not_delayed() {
    Lane::each(|lane| {
        let Ends { mut client, mut server } = lane.open();
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        for byte in 0..=255 {
            client.write_all(&[byte]).unwrap();
            assert_eq!(read_some(&mut server, 1), [byte]);
            server.write_all(&[!byte]).unwrap();
            assert_eq!(read_some(&mut client, 1), [!byte]);
        }
        let writer = std::thread::spawn(move || {
            for number in 0..5000_u32 {
                client.write_all(&number.to_le_bytes()).unwrap();
            }
            client
        });
        for number in 0..5000_u32 {
            assert_eq!(read_some(&mut server, 4), number.to_le_bytes());
        }
        drop(writer.join().unwrap());
    });
}

#[test]
fn urgent_bytes_stay_in_the_stream_and_hold_nothing_up() {
    Lane::each(|lane| {
        for program in Program::BOTH {
            let Turns { mut first, mut second } = lane.open().first(program);
            for round in 0..50_u8 {
                first.write_all(b"before ").unwrap();
                rustix::net::send(&first, &[round], SendFlags::OOB).unwrap();
                first.write_all(b" behind").unwrap();
                let mut expected = b"before ".to_vec();
                expected.push(round);
                expected.extend(b" behind");
                assert_eq!(read_some(&mut second, expected.len()), expected, "{}", lane.name);
            }
        }
    });
}
