//! Tests that the agent sends the first bytes of a program without delay, together with the end of
//! the TLS handshake.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use tacit_sys::socket::{self, OnClose};

use crate::harness::connect;
use crate::lane::{Lane, engine_table, read_some};
use crate::programs::pattern;

const FIRST_BYTES: usize = 1000;
/// RFC 8446 section 5.2: a header, the type of what is inside, and the tag.
const RECORD_BYTES: usize = 5 + FIRST_BYTES + 1 + 16;

/// A lane in which the test itself moves the bytes between the client agent and the server agent.
struct OpenLane {
    lane: Lane,
    /// Where the client agent connects to.
    listener: TcpListener,
    /// Where the server agent listens.
    far: SocketAddr,
}

fn open_lane() -> OpenLane {
    open_lane_with("")
}

/// The same with more tables in the policies.
fn open_lane_with(tables: &str) -> OpenLane {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = listener.local_addr().unwrap();
    let mut far = None;
    let lane = Lane::tls_on(tables, "", |address| {
        far = Some(address);
        near
    });
    OpenLane { lane, listener, far: far.unwrap() }
}

/// What comes with one read; a flight is no longer than the buffer.
fn read_once(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; 64 << 10];
    let count = stream.read(&mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

/// The lengths of the records, headers and all; nothing may be left over.
fn records(mut bytes: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    while let Some((header, _)) = bytes.split_first_chunk::<5>() {
        let length = 5 + usize::from(u16::from_be_bytes([header[3], header[4]]));
        lengths.push(length);
        bytes = &bytes[length..];
    }
    assert!(bytes.is_empty());
    lengths
}

#[test]
fn first_bytes_are_sent_together_with_finished() {
    let OpenLane { lane, listener, far } = open_lane();
    let mut program = lane.dial();
    program.write_all(&[5; FIRST_BYTES]).unwrap();
    let (mut near, _) = listener.accept().unwrap();
    let mut far = connect(far);
    far.write_all(&read_once(&mut near)).unwrap();
    near.write_all(&read_once(&mut far)).unwrap();

    let last_flight = read_once(&mut near);
    let lengths = records(&last_flight);
    assert!(lengths.len() > 1 && lengths.last() == Some(&RECORD_BYTES), "{lengths:?}");
    // The server agent has everything with this one write, and nothing follows.
    far.write_all(&last_flight).unwrap();
    let mut server = lane.accept();
    assert_eq!(read_some(&mut server, FIRST_BYTES), [5; FIRST_BYTES]);
}

#[test]
fn a_silent_program_delays_nothing() {
    let OpenLane { lane, listener, far } = open_lane();
    let mut program = lane.dial();
    let (mut near, _) = listener.accept().unwrap();
    let mut far = connect(far);
    far.write_all(&read_once(&mut near)).unwrap();
    near.write_all(&read_once(&mut far)).unwrap();
    let last_flight = read_once(&mut near);
    assert!(!records(&last_flight).contains(&RECORD_BYTES));
    far.write_all(&last_flight).unwrap();

    let mut server = lane.accept();
    let mut there = near.try_clone().unwrap();
    let mut back = far.try_clone().unwrap();
    std::thread::spawn(move || std::io::copy(&mut back, &mut there));
    server.write_all(b"who speaks first").unwrap();
    assert_eq!(read_some(&mut program, 16), b"who speaks first");
    program.write_all(&[6; FIRST_BYTES]).unwrap();
    assert_eq!(records(&read_once(&mut near)), [RECORD_BYTES]);
}

/// Runs a test on an open lane without engines, and on one with engines.
fn each_lane(test: impl Fn(&Lane, &TcpListener, &dyn Fn() -> TcpStream)) {
    for tables in [Some(String::new()), engine_table("")].into_iter().flatten() {
        let OpenLane { lane, listener, far } = open_lane_with(&tables);
        test(&lane, &listener, &|| connect(far));
    }
}

/// Passes the handshake on from both sides, and then everything.
fn let_go(mut near: TcpStream, mut far: TcpStream) {
    far.write_all(&read_once(&mut near)).unwrap();
    near.write_all(&read_once(&mut far)).unwrap();
    let mut there = near.try_clone().unwrap();
    let mut back = far.try_clone().unwrap();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut back, &mut there);
        let _ = there.shutdown(Shutdown::Write);
    });
    std::thread::spawn(move || {
        // A reset of one side is one of the other.
        if std::io::copy(&mut near, &mut far).is_err() {
            socket::set_on_close(far.as_fd(), OnClose::Reset).unwrap();
        }
        let _ = far.shutdown(Shutdown::Write);
    });
}

#[test]
fn data_and_close_before_finished_arrive_once_and_in_order() {
    let bytes = pattern(300_000);
    each_lane(|lane, listener, dial_far| {
        let mut program = lane.dial();
        let (near, _) = listener.accept().unwrap();
        let mut writer = program.try_clone().unwrap();
        let sent = bytes.clone();
        let writing = std::thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        writing.join().unwrap();
        let_go(near, dial_far());
        let mut server = lane.accept();
        let mut got = Vec::new();
        server.read_to_end(&mut got).unwrap();
        assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
        server.write_all(b"bye").unwrap();
        drop(server);
        let mut answer = Vec::new();
        program.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"bye");
    });
}

#[test]
fn a_reset_before_finished_does_not_look_like_a_close() {
    each_lane(|lane, listener, dial_far| {
        let mut program = lane.dial();
        let (near, _) = listener.accept().unwrap();
        program.write_all(&[5; FIRST_BYTES]).unwrap();
        socket::set_on_close(program.as_fd(), OnClose::Reset).unwrap();
        drop(program);
        let_go(near, dial_far());
        let mut server = lane.accept();
        let mut got = Vec::new();
        let end = server.read_to_end(&mut got);
        assert!(end.is_err(), "{} bytes and an end in order", got.len());
    });
}
