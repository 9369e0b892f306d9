//! Tests TUN devices and path MTUs in a network namespace of the test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at the first unexpected result"
)]

use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tacit_sys::datagram_batch::{BatchSocket, DatagramBatch, is_too_big, path_mtu};
use tacit_sys::descriptor;
use tacit_sys::tun::Tun;

const VNET_HEADER_BYTES: usize = 10;
const CHILD: &str = "TUN_TEST_CHILD";

/// Runs a test of this binary again, with rights over new namespaces.
fn in_namespace(name: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut command = Command::new("timeout");
    command.args(["60", "unshare", "-rn"]).arg(std::env::current_exe().unwrap());
    let output = command.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    false
}

fn ip(command: &str) {
    let status = Command::new("ip").args(command.split(' ')).status().unwrap();
    assert!(status.success(), "ip {command}");
}

fn open(name: &str) -> Tun {
    let tun = Tun::open(name).unwrap();
    ip("link set lo up");
    ip(&format!("link set {name} up mtu 1400"));
    ip(&format!("address add 10.1.0.1/24 dev {name}"));
    tun
}

/// Reads packets until one has this protocol.
fn read(tun: &Tun, protocol: u8) -> ([u8; VNET_HEADER_BYTES], Vec<u8>) {
    loop {
        let mut header = [0; VNET_HEADER_BYTES];
        let mut packet = vec![0; 65_535];
        match tun.read(&mut header, &mut packet) {
            Ok(bytes) if packet[0] == 0x45 && packet[9] == protocol => {
                packet.truncate(bytes);
                return (header, packet);
            }
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Reads the packets that are left.
fn read_all(tun: &Tun) {
    while tun.read(&mut [0; VNET_HEADER_BYTES], &mut [0; 65_535]).is_ok() {}
}

#[test]
fn packets_are_exchanged_through_a_descriptor_that_was_passed() {
    if !in_namespace("packets_are_exchanged_through_a_descriptor_that_was_passed") {
        return;
    }
    let opened = open("tacit0");
    let (near, far) = UnixStream::pair().unwrap();
    descriptor::send(&near, b"x", &[opened.as_fd()]).unwrap();
    let received = descriptor::receive(&far, &mut [0; 8]).unwrap().descriptors.remove(0);
    drop(opened);
    let tun = Tun::from_descriptor(received).unwrap();
    let socket = UdpSocket::bind("10.1.0.1:4000").unwrap();
    socket.send_to(b"question", "10.1.0.2:53").unwrap();
    let (_, packet) = read(&tun, 17);
    assert_eq!((packet.len(), &packet[28..]), (36, &b"question"[..]));
    // The answer: ports and addresses exchanged, which keeps the checksums.
    let mut answer = packet.clone();
    answer[12..16].copy_from_slice(&packet[16..20]);
    answer[16..20].copy_from_slice(&packet[12..16]);
    answer[20..22].copy_from_slice(&packet[22..24]);
    answer[22..24].copy_from_slice(&packet[20..22]);
    answer[26..28].fill(0);
    let parts = [&[0; VNET_HEADER_BYTES][..], &answer[..28], &answer[28..]];
    tun.write(&parts.map(IoSlice::new)).unwrap();
    let mut buffer = [0; 64];
    let (bytes, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], b"question");
    assert_eq!(from, "10.1.0.2:53".parse().unwrap());
}

#[test]
fn only_descriptors_of_such_devices_are_accepted() {
    if !in_namespace("only_descriptors_of_such_devices_are_accepted") {
        return;
    }
    let (socket, _) = UnixStream::pair().unwrap();
    assert!(Tun::from_descriptor(OwnedFd::from(socket)).is_err());
    let unattached = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    assert!(Tun::from_descriptor(unattached.unwrap().into()).is_err());
    for name in ["", "a-name-that-is-too-long"] {
        assert!(Tun::open(name).is_err(), "{name:?}");
    }
    let first = Tun::open("tacit0").unwrap();
    assert!(Tun::open("tacit0").is_err(), "the name is in use");
    drop(first);
    Tun::open("tacit0").unwrap();
}

/// A segment of TCP that is larger than the MTU leaves the device in one piece.
#[test]
fn large_segments_are_read_in_one_piece() {
    if !in_namespace("large_segments_are_read_in_one_piece") {
        return;
    }
    let tun = open("tacit0");
    ip("route add 10.9.0.0/24 dev tacit0");
    let longest = Arc::new(AtomicUsize::new(0));
    let length = Arc::clone(&longest);
    let listener = TcpListener::bind("10.1.0.1:8080").unwrap();
    let client = std::thread::spawn(|| {
        let mut stream = TcpStream::connect("10.9.0.1:8080").unwrap();
        stream.write_all(&[7; 200_000]).unwrap();
    });
    // Exchanging the addresses makes the client at 10.1.0.1 a client at 10.9.0.1 of the listener,
    // and keeps the checksums.
    std::thread::spawn(move || {
        let mut most = 0;
        loop {
            let (header, mut packet) = read(&tun, 6);
            most = most.max(packet.len());
            let gso = header[1] & 0x7f;
            assert_eq!(gso == 1, packet.len() > 1_400, "{header:?}");
            length.store(most, Ordering::Relaxed);
            packet.swap(13, 17);
            tun.write(&[IoSlice::new(&header), IoSlice::new(&packet)]).unwrap();
        }
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert_eq!(received, [7; 200_000]);
    client.join().unwrap();
    assert!(longest.load(Ordering::Relaxed) > 20_000);
}

#[test]
fn the_mtu_of_the_path_is_known_and_exceeding_it_is_an_error() {
    if !in_namespace("the_mtu_of_the_path_is_known_and_exceeding_it_is_an_error") {
        return;
    }
    let tun = open("tacit0");
    let to = "10.1.0.2:4500".parse().unwrap();
    let socket = BatchSocket::bind("10.1.0.1:4500".parse().unwrap()).unwrap();
    assert_eq!(path_mtu("10.1.0.2".parse().unwrap()).unwrap(), 1_400);
    for (payload_bytes, datagram_bytes) in [(1_373, 1_373), (2_746, 1_373)] {
        let payloads = vec![7; payload_bytes];
        let batch = DatagramBatch { payloads: &payloads, datagram_bytes, to, traffic_class: 0 };
        let error = socket.send(&batch).unwrap_err();
        assert!(is_too_big(&error), "{error}");
        let fitting = DatagramBatch { datagram_bytes: 1_372, ..batch };
        socket.send(&fitting).unwrap();
        assert_eq!(read(&tun, 17).1.len(), 1_400);
        socket.send_fragmented(&batch).unwrap();
        let mut packets = std::iter::repeat_with(|| read(&tun, 17).1);
        let fragment = packets.find(|packet| packet[6] & MORE_FRAGMENTS != 0);
        assert_eq!(fragment.map(|packet| packet[6] & DONT_FRAGMENT), Some(0));
        read_all(&tun);
    }
}

/// Flags of an IPv4 packet.
const DONT_FRAGMENT: u8 = 0x40;
const MORE_FRAGMENTS: u8 = 0x20;
