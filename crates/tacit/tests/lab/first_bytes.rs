//! What a program says at once is not held up, and costs no send of its own.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::harness::connect;
use crate::lane::{Lane, read_some};

const FIRST_BYTES: usize = 1000;
/// RFC 8446 section 5.2: a header, the type of what is inside, and the tag.
const RECORD_BYTES: usize = 5 + FIRST_BYTES + 1 + 16;

/// A lane whose TLS legs the test holds: the client agent's and the server agent's.
fn held() -> (Lane, TcpListener, impl Fn() -> TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (near, mut far) = (listener.local_addr().unwrap(), None);
    let lane = Lane::tls_through(|address| {
        far = Some(address);
        near
    });
    let far = far.unwrap();
    (lane, listener, move || connect(far))
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
fn first_bytes_leave_in_one_send_with_finished_and_go_on_without_another() {
    let (lane, listener, dial_far) = held();
    let mut program = lane.dial();
    program.write_all(&[5; FIRST_BYTES]).unwrap();
    let (mut near, _) = listener.accept().unwrap();
    let mut far = dial_far();
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
fn a_program_that_says_nothing_holds_nothing_up() {
    let (lane, listener, dial_far) = held();
    let mut program = lane.dial();
    let (mut near, _) = listener.accept().unwrap();
    let mut far = dial_far();
    far.write_all(&read_once(&mut near)).unwrap();
    near.write_all(&read_once(&mut far)).unwrap();
    let last_flight = read_once(&mut near);
    assert!(!records(&last_flight).contains(&RECORD_BYTES));
    far.write_all(&last_flight).unwrap();

    let mut server = lane.accept();
    let (mut there, mut back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut back, &mut there));
    server.write_all(b"who speaks first").unwrap();
    assert_eq!(read_some(&mut program, 16), b"who speaks first");
    program.write_all(&[6; FIRST_BYTES]).unwrap();
    assert_eq!(records(&read_once(&mut near)), [RECORD_BYTES]);
}
