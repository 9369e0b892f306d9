//! Parses the SYN packet of a program, and writes the packets that answer this SYN.

use std::net::{IpAddr, SocketAddr};

use super::flows::FlowEnds;
use crate::icmp::{IcmpError, error_about};
use crate::ip::{
    HEADER_V6_BYTES, IpHeader, TCP, UDP, field16, fill_checksum, header_v4, header_v6,
    length_field, pseudo_header,
};

/// The largest length of the IPv4 and TCP headers with all their options; IPv6 and TCP headers are
/// shorter.
pub const HEADERS_BYTES_MAX: usize = 120;

/// The first segment of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syn {
    /// The two ends of the connection.
    pub key: FlowEnds,
    /// Its sequence number.
    pub sequence: u32,
    /// The IP and TCP headers with their options, without data.
    headers: Vec<u8>,
    /// The offset of the TCP header.
    tcp_at: usize,
}

impl Syn {
    /// Parses a packet, of which at least the first [`HEADERS_BYTES_MAX`] bytes must be present;
    /// `None` if it is not a SYN.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let ip = IpHeader::parse(packet, TCP)?;
        let tcp = packet.get(ip.header_bytes..)?;
        let [source_port, destination_port] = [field16(tcp, 0)?, field16(tcp, 2)?];
        let sequence = u32::from_be_bytes(*tcp.get(4..)?.first_chunk()?);
        let tcp_bytes = usize::from(tcp.get(12)? >> 4) * 4;
        let flags = *tcp.get(13)?;
        if tcp_bytes < TCP_HEADER_BYTES || flags & (SYN | ACK | RST | FIN) != SYN {
            return None;
        }
        let headers = packet.get(..ip.header_bytes + tcp_bytes)?.to_vec();
        let program = SocketAddr::new(ip.source, source_port);
        let destination = SocketAddr::new(ip.destination, destination_port);
        let key = FlowEnds { program, destination };
        Some(Self { key, sequence, headers, tcp_at: ip.header_bytes })
    }

    /// Builds the SYN that is sent again. It has a checksum, which a copy taken on the same host
    /// lacks. It has no data: the program retransmits the data.
    #[must_use]
    pub fn released(&self) -> Vec<u8> {
        let mut packet = self.headers.clone();
        let tcp_bytes = packet.len() - self.tcp_at;
        let is_v4 = self.key.destination.is_ipv4();
        let whole = if is_v4 { packet.len() } else { packet.len() - HEADER_V6_BYTES };
        let length_at = if is_v4 { LENGTH_V4_AT } else { LENGTH_V6_AT };
        packet[length_at..length_at + 2].copy_from_slice(&length_field(whole));
        if is_v4 {
            packet[CHECKSUM_V4_AT..CHECKSUM_V4_AT + 2].fill(0);
            fill_checksum(&mut packet[..self.tcp_at], CHECKSUM_V4_AT, 0);
        }
        let FlowEnds { program, destination } = self.key;
        let pseudo = pseudo_header(TCP, program.ip(), destination.ip(), tcp_bytes);
        let tcp = &mut packet[self.tcp_at..];
        tcp[TCP_CHECKSUM_AT..TCP_CHECKSUM_AT + 2].fill(0);
        fill_checksum(tcp, TCP_CHECKSUM_AT, pseudo);
        packet
    }

    /// Announces that the program receives the largest segments that `lo` transports. Its SYN
    /// announces those of the interface that leads to the destination, but the kernel sends the
    /// packets of a captured connection over `lo`.
    pub fn announce_segments_of_lo(&mut self) {
        let largest = if self.key.destination.is_ipv4() { MSS_OF_LO_V4 } else { MSS_OF_LO_V6 };
        let options = self.headers.get_mut(self.tcp_at + TCP_HEADER_BYTES..).unwrap_or_default();
        if let Some(mss) = mss_of(options) {
            let announced = u16::from_be_bytes(*mss).max(largest);
            *mss = announced.to_be_bytes();
        }
    }

    /// Builds the packet that refuses the connection: an RST from the destination (RFC 9293,
    /// section 3.5.2).
    #[must_use]
    pub fn reset(&self) -> Vec<u8> {
        let FlowEnds { program, destination } = self.key;
        let mut tcp = Vec::with_capacity(TCP_HEADER_BYTES);
        tcp.extend_from_slice(&destination.port().to_be_bytes());
        tcp.extend_from_slice(&program.port().to_be_bytes());
        tcp.extend_from_slice(&[0; 4]);
        tcp.extend_from_slice(&self.sequence.wrapping_add(1).to_be_bytes());
        tcp.extend_from_slice(&[0x50, RST | ACK, 0, 0, 0, 0, 0, 0]);
        let pseudo = pseudo_header(TCP, destination.ip(), program.ip(), tcp.len());
        fill_checksum(&mut tcp, TCP_CHECKSUM_AT, pseudo);
        let mut packet = match (destination.ip(), program.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => header_v4(TCP, tcp.len(), from, to),
            (IpAddr::V6(from), IpAddr::V6(to)) => header_v6(TCP, tcp.len(), from, to),
            // Both addresses of a packet have the same family.
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => Vec::new(),
        };
        packet.extend_from_slice(&tcp);
        packet
    }

    /// Builds the packet that reports why the destination cannot be reached: an ICMP error from the
    /// destination.
    #[must_use]
    pub fn unreachable(&self, cause: IcmpError) -> Option<Vec<u8>> {
        let FlowEnds { program, destination } = self.key;
        error_about(cause, &self.headers, destination.ip(), program.ip())
    }
}

/// Returns the two ends of a UDP datagram; `None` for any other packet.
#[must_use]
pub fn datagram_ends(packet: &[u8]) -> Option<FlowEnds> {
    let ip = IpHeader::parse(packet, UDP)?;
    let udp = packet.get(ip.header_bytes..)?;
    let program = SocketAddr::new(ip.source, field16(udp, 0)?);
    let destination = SocketAddr::new(ip.destination, field16(udp, 2)?);
    Some(FlowEnds { program, destination })
}

/// The value of the option "maximum segment size" (RFC 9293, section 3.2).
fn mss_of(mut options: &mut [u8]) -> Option<&mut [u8; 2]> {
    loop {
        let (kind, rest) = options.split_first_mut()?;
        match *kind {
            END_OF_OPTIONS => return None,
            NO_OPERATION => options = rest,
            kind => {
                let (length, rest) = rest.split_first_mut()?;
                let value_bytes = usize::from(*length).checked_sub(2)?;
                let (value, next) = rest.split_at_mut_checked(value_bytes)?;
                if kind == MSS {
                    return value.try_into().ok();
                }
                options = next;
            }
        }
    }
}

const TCP_HEADER_BYTES: usize = 20;
const TCP_CHECKSUM_AT: usize = 16;
/// The largest packet of `lo` has 65,536 bytes, and that of IPv4 one byte less.
const MSS_OF_LO_V4: u16 = 65_495;
const MSS_OF_LO_V6: u16 = 65_476;
/// Kinds of TCP options.
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
const MSS: u8 = 2;
const LENGTH_V4_AT: usize = 2;
const LENGTH_V6_AT: usize = 4;
const CHECKSUM_V4_AT: usize = 10;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::{HEADER_V4_BYTES, folded, sum};
    use proptest::prelude::*;

    /// Builds the SYN of a connection with `options` in its TCP header, followed by `data`, as a
    /// capture on `lo` contains it: the checksum covers only the pseudo-header.
    fn packet(program: &str, destination: &str, options: &[u8], data: &[u8]) -> Vec<u8> {
        let program: SocketAddr = program.parse().unwrap();
        let destination: SocketAddr = destination.parse().unwrap();
        let tcp_bytes = TCP_HEADER_BYTES + options.len();
        let mut tcp = Vec::new();
        tcp.extend_from_slice(&program.port().to_be_bytes());
        tcp.extend_from_slice(&destination.port().to_be_bytes());
        tcp.extend_from_slice(&0xffff_ffff_u32.to_be_bytes());
        tcp.extend_from_slice(&[0; 4]);
        let words = u8::try_from(tcp_bytes / 4).unwrap();
        tcp.extend_from_slice(&[words << 4, SYN, 0xfa, 0xf0, 0x12, 0x34, 0, 0]);
        tcp.extend_from_slice(options);
        tcp.extend_from_slice(data);
        let mut packet = match (program.ip(), destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => header_v4(TCP, tcp.len(), from, to),
            (IpAddr::V6(from), IpAddr::V6(to)) => header_v6(TCP, tcp.len(), from, to),
            _ => unreachable!(),
        };
        packet.extend_from_slice(&tcp);
        packet
    }

    const ENDS: [[&str; 2]; 2] =
        [["10.0.2.15:40000", "192.0.2.7:80"], ["[100::15]:40000", "[2001:db8::7]:80"]];

    fn has_right_checksum(packet: &[u8], header_bytes: usize) {
        let syn = IpHeader::parse(packet, TCP).unwrap();
        let tcp = &packet[header_bytes..];
        let pseudo = pseudo_header(TCP, syn.source, syn.destination, tcp.len());
        assert_eq!(folded(sum(tcp) + pseudo), 0xffff);
        if header_bytes < HEADER_V6_BYTES {
            assert_eq!(folded(sum(&packet[..header_bytes])), 0xffff);
        }
    }

    #[test]
    fn a_released_syn_has_its_checksum_and_none_of_its_data() {
        for [program, destination] in ENDS {
            let options = [2, 4, 5, 0xb4, 1, 1, 4, 2];
            let bare = packet(program, destination, &options, b"");
            let with_data = packet(program, destination, &options, b"GET / HTTP/1.0");
            let syn = Syn::parse(&with_data).unwrap();
            assert_eq!(syn.key.program, program.parse().unwrap());
            assert_eq!(syn.key.destination, destination.parse().unwrap());
            let released = syn.released();
            assert_eq!(released.len(), bare.len());
            assert_eq!(Syn::parse(&released).unwrap().key, syn.key);
            assert_eq!(released[..8], bare[..8], "the length is that of what is sent");
            has_right_checksum(&released, syn.tcp_at);
        }
    }

    #[test]
    fn a_syn_announces_the_segments_of_lo_in_place_of_smaller_ones() {
        for [program, destination] in ENDS {
            let largest = if program.starts_with('[') { MSS_OF_LO_V6 } else { MSS_OF_LO_V4 };
            let [high, low] = largest.to_be_bytes();
            for (options, wanted) in [
                ([2, 4, 5, 0xb4, 1, 1, 4, 2], [2, 4, high, low, 1, 1, 4, 2]),
                ([1, 1, 4, 2, 2, 4, 5, 0xb4], [1, 1, 4, 2, 2, 4, high, low]),
                ([2, 4, 0xff, 0xff, 1, 1, 1, 0], [2, 4, 0xff, 0xff, 1, 1, 1, 0]),
                // No such option, one behind the end, and one of a wrong length.
                ([1, 1, 1, 1, 1, 1, 4, 2], [1, 1, 1, 1, 1, 1, 4, 2]),
                ([1, 1, 1, 0, 2, 4, 5, 0xb4], [1, 1, 1, 0, 2, 4, 5, 0xb4]),
                ([2, 3, 5, 1, 1, 1, 1, 1], [2, 3, 5, 1, 1, 1, 1, 1]),
                ([1, 1, 1, 1, 1, 1, 1, 2], [1, 1, 1, 1, 1, 1, 1, 2]),
            ] {
                let mut syn = Syn::parse(&packet(program, destination, &options, b"")).unwrap();
                syn.announce_segments_of_lo();
                let released = syn.released();
                assert_eq!(released[syn.tcp_at + TCP_HEADER_BYTES..], wanted);
                has_right_checksum(&released, syn.tcp_at);
            }
        }
    }

    #[test]
    fn a_reset_acknowledges_the_syn_and_comes_from_the_destination() {
        for [program, destination] in ENDS {
            let syn = Syn::parse(&packet(program, destination, &[], b"")).unwrap();
            let reset = syn.reset();
            let ip = IpHeader::parse(&reset, TCP).unwrap();
            assert_eq!(ip.source, syn.key.destination.ip());
            assert_eq!(ip.destination, syn.key.program.ip());
            let tcp = &reset[ip.header_bytes..];
            assert_eq!(tcp[..4], [0, 80, 0x9c, 0x40]);
            assert_eq!(tcp[8..12], [0; 4], "the number after 0xffffffff");
            assert_eq!(tcp[13], RST | ACK);
            has_right_checksum(&reset, ip.header_bytes);
            assert_eq!(Syn::parse(&reset), None);
        }
    }

    #[test]
    fn an_icmp_error_quotes_the_syn() {
        for [program, destination] in ENDS {
            let syn = Syn::parse(&packet(program, destination, &[], b"")).unwrap();
            let error = syn.unreachable(IcmpError::Prohibited).unwrap();
            let at = if syn.key.program.is_ipv4() { HEADER_V4_BYTES } else { HEADER_V6_BYTES };
            let kinds = if syn.key.program.is_ipv4() { [3, 13] } else { [1, 1] };
            assert_eq!(error[at..at + 2], kinds);
            assert_eq!(error[at + 8..], syn.headers);
        }
    }

    #[test]
    fn what_opens_no_connection_is_not_read() {
        let good = packet("10.0.2.15:1", "192.0.2.7:2", &[], b"");
        assert!(Syn::parse(&good).is_some());
        for (at, value) in [(0, 0x44), (0, 0x55), (6, 0x20), (7, 1), (9, UDP), (32, 0x40)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(Syn::parse(&bad), None, "byte {at}");
        }
        for flags in [ACK, SYN | ACK, SYN | RST, SYN | FIN, 0] {
            let mut bad = good.clone();
            bad[33] = flags;
            assert_eq!(Syn::parse(&bad), None, "flags {flags}");
        }
        assert_eq!(Syn::parse(&good[..good.len() - 1]), None, "cut short");
    }

    #[test]
    fn the_ends_of_a_datagram_are_read() {
        for [program, destination] in ENDS {
            let mut datagram = packet(program, destination, &[], b"");
            assert_eq!(datagram_ends(&datagram), None, "it is a segment");
            let protocol_at = if destination.starts_with('[') { 6 } else { 9 };
            datagram[protocol_at] = UDP;
            let key = datagram_ends(&datagram).unwrap();
            assert_eq!(key.program, program.parse().unwrap());
            assert_eq!(key.destination, destination.parse().unwrap());
            assert_eq!(Syn::parse(&datagram), None);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_packets_never_panic(
            head in prop_oneof![Just(0x45_u8), Just(0x4f), Just(0x60), any::<u8>()],
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut packet = vec![head];
            packet.extend_from_slice(&bytes);
            let _ = datagram_ends(&packet);
            if let Some(mut syn) = Syn::parse(&packet) {
                syn.announce_segments_of_lo();
                let released = syn.released();
                prop_assert_eq!(Syn::parse(&released).map(|again| again.key), Some(syn.key));
                prop_assert!(syn.headers.len() <= HEADERS_BYTES_MAX);
                has_right_checksum(&released, syn.tcp_at);
                prop_assert!(!syn.reset().is_empty());
                prop_assert!(syn.unreachable(IcmpError::HostUnreachable).is_some());
            }
        }
    }
}
