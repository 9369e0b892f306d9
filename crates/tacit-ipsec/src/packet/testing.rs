//! Builds packets for tests.

use super::checksum::{checksum, pseudo_header, sum};
use super::{TCP, UDP, ecn, tcp};

/// An IPv4 header in front of a payload, from 10.1.0.1 to 10.2.0.1, with DSCP 10.
pub(crate) fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x45, 0x28, total[0], total[1], 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0];
    packet.extend_from_slice(&[10, 1, 0, 1, 10, 2, 0, 1]);
    ecn::fill_v4_checksum(&mut packet, 20);
    packet.extend_from_slice(payload);
    packet
}

/// An IPv6 header in front of a payload, from fd01::1 to fd02::1, with DSCP 10.
pub(crate) fn v6(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x62, 0x80, 0, 0, length[0], length[1], protocol, 64];
    for network in [1, 2] {
        packet.extend_from_slice(&[0xfd, network, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }
    packet.extend_from_slice(payload);
    packet
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap().to_be_bytes();
    let mut datagram = vec![0x0f, 0xa0, 0, 53, length[0], length[1], 0, 0];
    datagram.extend_from_slice(payload);
    datagram
}

/// A UDP datagram from port 4000 to port 53, without checksum.
pub(crate) fn udp_v4(payload: &[u8]) -> Vec<u8> {
    v4(UDP, &udp(payload))
}

/// The same for IPv6.
pub(crate) fn udp_v6(payload: &[u8]) -> Vec<u8> {
    v6(UDP, &udp(payload))
}

/// A TCP segment from port 4000 to port 80, with valid checksums.
#[derive(Clone, Debug)]
pub(crate) struct TcpSegment {
    pub(crate) is_v4: bool,
    pub(crate) sequence: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    /// A multiple of four bytes.
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl TcpSegment {
    pub(crate) fn packet(&self) -> Vec<u8> {
        let mut bytes = vec![0x0f, 0xa0, 0, 80];
        bytes.extend_from_slice(&self.sequence.to_be_bytes());
        bytes.extend_from_slice(&[0, 0, 0, 7]);
        let words = u8::try_from(5 + self.options.len() / 4).unwrap();
        bytes.extend_from_slice(&[words << 4, self.flags]);
        bytes.extend_from_slice(&self.window.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.options);
        bytes.extend_from_slice(&self.payload);
        let mut packet = if self.is_v4 { v4(TCP, &bytes) } else { v6(TCP, &bytes) };
        fill_tcp_checksum(&mut packet);
        packet
    }
}

/// Computes the checksum of a TCP packet without options of IP.
pub(crate) fn fill_tcp_checksum(packet: &mut [u8]) {
    let (addresses, at) = if packet[0] >> 4 == 4 { (12..20, 20) } else { (8..40, 40) };
    let field = at + tcp::CHECKSUM_AT..at + tcp::CHECKSUM_AT + 2;
    packet[field.clone()].fill(0);
    let length = packet.len() - at;
    let total = pseudo_header(&packet[addresses], TCP, length) + sum(&packet[at..]);
    packet[field].copy_from_slice(&checksum(total));
}
