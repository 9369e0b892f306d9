use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use super::*;
use crate::ip::{HEADER_V4_BYTES, HEADER_V6_BYTES, TCP, folded, pseudo_header, sum};

/// A block as a reader parses it.
struct Block {
    kind: u32,
    body: Vec<u8>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    (u64::from(u32_at(bytes, at)) << 32) | u64::from(u32_at(bytes, at + 4))
}

fn blocks(mut capture: &[u8]) -> Vec<Block> {
    let mut blocks = Vec::new();
    while !capture.is_empty() {
        let length = usize::try_from(u32_at(capture, 4)).unwrap();
        assert_eq!(length % 4, 0);
        let (block, rest) = capture.split_at(length);
        assert_eq!(u32_at(block, length - 4), u32_at(block, 4), "the lengths differ");
        blocks.push(Block { kind: u32_at(block, 0), body: block[8..length - 4].to_vec() });
        capture = rest;
    }
    blocks
}

fn options(mut bytes: &[u8]) -> BTreeMap<u16, Vec<u8>> {
    let mut options = BTreeMap::new();
    while !bytes.is_empty() {
        let code = u16_at(bytes, 0);
        let length = usize::from(u16_at(bytes, 2));
        if code == END {
            assert_eq!((length, bytes.len()), (0, 4), "options end at the end of the block");
            break;
        }
        options.insert(code, bytes[4..4 + length].to_vec());
        bytes = &bytes[4 + length.next_multiple_of(4)..];
    }
    options
}

/// A packet as a reader parses it.
#[derive(Debug)]
struct Seen {
    from: SocketAddr,
    to: SocketAddr,
    sequence: u32,
    acknowledges: u32,
    flags: u8,
    payload: Vec<u8>,
}

fn read(packet: &[u8]) -> Seen {
    assert!(packet.len() <= HEADER_V6_BYTES + usize::from(u16::MAX));
    let length = |at| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let (from, to, tcp): (IpAddr, IpAddr, _) = if packet[0] == 0x45 {
        assert_eq!(length(2), packet.len());
        assert_eq!(folded(sum(&packet[..HEADER_V4_BYTES])), 0xffff, "checksum of IPv4");
        assert_eq!(packet[9], TCP);
        let address = |at: usize| <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap().into();
        (address(12), address(16), &packet[HEADER_V4_BYTES..])
    } else {
        assert_eq!((packet[0], packet[6]), (0x60, TCP));
        assert_eq!(length(4), packet.len() - HEADER_V6_BYTES);
        let address = |at: usize| <[u8; 16]>::try_from(&packet[at..at + 16]).unwrap().into();
        (address(8), address(24), &packet[HEADER_V6_BYTES..])
    };
    assert_eq!(folded(sum(tcp) + pseudo_header(TCP, from, to, tcp.len())), 0xffff, "of TCP");
    let port = |at| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
    Seen {
        from: SocketAddr::new(from, port(0)),
        to: SocketAddr::new(to, port(2)),
        sequence: number(4),
        acknowledges: number(8),
        flags: tcp[13],
        payload: tcp[usize::from(tcp[12] >> 4) * 4..].to_vec(),
    }
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

const SYN: u8 = 2;
const ACK: u8 = 0x10;
const FIN_ACK: u8 = 0x11;
const RST_ACK: u8 = 0x14;

#[test]
fn a_capture_says_what_it_is_and_what_it_lacks() {
    let mut out = Vec::new();
    let long = "é".repeat(COMMENT_BYTES_MAX);
    begin(
        &mut out,
        CaptureHeader { application: "tacit 1", interface: "rule web", comment: &long },
    );
    packet(&mut out, 0x0102_0304_0506_0708, &[0x45, 1, 2], Some("rule web"));
    packet(&mut out, 1, &[0x45], None);
    let statistics = CaptureStatistics { started_ns: 1, ended_ns: 2, received: 7, dropped: 3 };
    end(&mut out, statistics);
    let blocks = blocks(&out);
    let kinds: Vec<_> = blocks.iter().map(|block| block.kind).collect();
    assert_eq!(kinds, [0x0a0d_0d0a, 1, 6, 6, 5]);
    assert_eq!(u32_at(&blocks[0].body, 0), 0x1a2b_3c4d);
    assert_eq!(options(&blocks[0].body[16..])[&APPLICATION], b"tacit 1");
    assert_eq!(u16_at(&blocks[1].body, 0), 101);
    let interface = options(&blocks[1].body[8..]);
    assert_eq!(interface[&INTERFACE_NAME], b"rule web");
    assert_eq!(interface[&COMMENT].len(), COMMENT_BYTES_MAX);
    assert_eq!(interface[&TIME_RESOLUTION], [9]);
    assert_eq!(u64_at(&blocks[2].body, 4), 0x0102_0304_0506_0708);
    assert_eq!((u32_at(&blocks[2].body, 12), u32_at(&blocks[2].body, 16)), (3, 3));
    assert_eq!(options(&blocks[2].body[24..])[&COMMENT], b"rule web");
    assert_eq!(blocks[3].body.len(), 24, "no options");
    let statistics = options(&blocks[4].body[12..]);
    assert_eq!(u64_at(&statistics[&END_TIME], 0), 2);
    assert_eq!(statistics[&RECEIVED], 7_u64.to_le_bytes());
    assert_eq!(statistics[&DROPPED], 3_u64.to_le_bytes());
}

#[test]
fn a_stream_opens_and_ends_as_tcp_does() {
    let [client, server] = ["192.0.2.1:40000", "198.51.100.7:443"].map(at);
    let mut stream = SyntheticStream::new(client, server, [5, 9], 3);
    let [first, second, third] = stream.open().map(|packet| read(&packet));
    assert_eq!((first.from, first.to, first.flags), (client, server, SYN));
    assert_eq!((second.from, second.to, second.flags), (server, client, SYN | ACK));
    assert_eq!(second.acknowledges, first.sequence.wrapping_add(1));
    assert_eq!((third.flags, third.acknowledges), (ACK, second.sequence.wrapping_add(1)));
    let data = read(&stream.data(Side::Client, 5, b"hello")[0]);
    assert_eq!(data.sequence, third.sequence);
    let reset = read(&stream.clone().end(StreamEnd::Reset(Side::Server), [10, 9])[0]);
    assert_eq!((reset.from, reset.flags), (server, RST_ACK));
    assert_eq!(reset.acknowledges, data.sequence.wrapping_add(5));
    let end = stream.end(StreamEnd::Orderly, [10, 9]);
    let [first, second, third] = [&end[0], &end[1], &end[2]].map(|packet| read(packet));
    assert_eq!([first.flags, second.flags, third.flags], [FIN_ACK, FIN_ACK, ACK]);
    assert_eq!(first.sequence, data.sequence.wrapping_add(5));
    assert_eq!(second.acknowledges, first.sequence.wrapping_add(1));
    assert_eq!(third.sequence, first.sequence.wrapping_add(1));
    assert_eq!(third.acknowledges, second.sequence.wrapping_add(1));
}

#[test]
fn streams_with_the_same_addresses_begin_with_other_numbers() {
    let [client, server] = ["[2001:db8::1]:1", "[2001:db8::2]:2"].map(at);
    let number = |of| read(&SyntheticStream::new(client, server, [0, 0], of).open()[0]).sequence;
    assert_ne!(number(1), number(2));
}

#[test]
fn addresses_of_two_families_become_one() {
    let [client, server] = ["192.0.2.1:1", "[2001:db8::2]:2"].map(at);
    let [first, ..] = SyntheticStream::new(client, server, [0, 0], 1).open();
    assert_eq!(read(&first).from, at("[::ffff:192.0.2.1]:1"));
    let mapped = at("[::ffff:192.0.2.7]:7");
    let [first, ..] = SyntheticStream::new(client, mapped, [0, 0], 1).open();
    assert_eq!(read(&first).to, at("192.0.2.7:7"));
}

fn address() -> impl Strategy<Value = SocketAddr> {
    any::<(bool, [u8; 16], u16)>().prop_map(|(is_v4, bytes, port)| {
        let v4: [u8; 4] = [bytes[0], bytes[1], bytes[2], bytes[3]];
        let ip: IpAddr = if is_v4 { v4.into() } else { bytes.into() };
        SocketAddr::new(ip, port)
    })
}

/// A piece of a stream: its side, its length, and whether it is omitted.
fn piece() -> impl Strategy<Value = (bool, usize, bool)> {
    let length = prop_oneof![0..200_usize, Just(PAYLOAD_BYTES_MAX), 65_000..140_000_usize];
    (any::<bool>(), length, prop::bool::weighted(0.1))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_byte_comes_out_at_its_place(
        ends in (address(), address()),
        begins in any::<[u32; 2]>(),
        number in any::<u32>(),
        pieces in prop::collection::vec(piece(), 0..8),
    ) {
        let begins = begins.map(u64::from);
        let mut stream = SyntheticStream::new(ends.0, ends.1, begins, number);
        let mut out = Vec::new();
        begin(&mut out, CaptureHeader { application: "", interface: "", comment: "" });
        let open = stream.open();
        open.iter().for_each(|one| packet(&mut out, 0, one, None));
        // The bytes that each side sent; `None` for omitted bytes.
        let mut sent: [Vec<Option<u8>>; 2] = [Vec::new(), Vec::new()];
        for (at, (is_server, length, is_lost)) in pieces.into_iter().enumerate() {
            let (index, side) = if is_server { (1, Side::Server) } else { (0, Side::Client) };
            let bytes: Vec<u8> = (0..length).map(|byte| (byte * 7 + at).to_le_bytes()[0]).collect();
            if !is_lost {
                let position = begins[index] + sent[index].len() as u64;
                let packets = stream.data(side, position, &bytes);
                prop_assert_eq!(packets.len(), segments(length));
                packets.iter().for_each(|one| packet(&mut out, 0, one, None));
            }
            sent[index].extend(bytes.iter().map(|byte| (!is_lost).then_some(*byte)));
        }
        let next = [0, 1].map(|index| begins[index] + sent[index].len() as u64);
        let end = stream.end(StreamEnd::Orderly, next);
        end.iter().for_each(|one| packet(&mut out, 0, one, None));
        let [client, server] = [0, 1].map(|index| read(&open[index]));
        prop_assume!(client.from != server.from);
        let first = [client.sequence, server.sequence].map(|initial| initial.wrapping_add(1));
        let mut read_back = [0, 1].map(|index: usize| vec![None; sent[index].len()]);
        let mut fins = Vec::new();
        for block in blocks(&out).iter().filter(|block| block.kind == ENHANCED_PACKET) {
            let length = usize::try_from(u32_at(&block.body, 12)).unwrap();
            let seen = read(&block.body[20..20 + length]);
            prop_assert!(seen.payload.len() <= PAYLOAD_BYTES_MAX);
            let index = usize::from(seen.from == server.from);
            let place = usize::try_from(seen.sequence.wrapping_sub(first[index])).unwrap();
            if seen.flags == FIN_ACK {
                fins.push(place);
            }
            if !seen.payload.is_empty() {
                let room = &mut read_back[index][place..place + seen.payload.len()];
                room.iter_mut().zip(&seen.payload).for_each(|(room, byte)| *room = Some(*byte));
            }
        }
        prop_assert_eq!(fins, sent.each_ref().map(Vec::len));
        prop_assert!(read_back == sent);
    }
}
