//! Builds ICMP errors for the sender of a datagram, as complete IP packets for a raw socket (RFC
//! 792, RFC 1191; ICMPv6: RFC 4443).
//!
//! ```text
//! IP header   from the reporting host, to the sender
//! ICMP        type, code, checksum, and the MTU in "packet too big"
//! quoted      the IP and UDP headers of the datagram, and as much of its data as fits
//! ```
//!
//! The quoted headers identify the socket that sent the datagram. From this socket, the program
//! gets the same error as without tacit: `ECONNREFUSED`, `EHOSTUNREACH`, `ENETUNREACH` or
//! `EMSGSIZE`.
//!
//! In the quoted headers, the IP identification, the checksums and the IP options differ from those
//! of the original datagram. Kernels ignore these fields.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::ip::{
    HEADER_V4_BYTES, HEADER_V6_BYTES, ICMP, ICMPV6, UDP, fill_checksum, header_v4, header_v6,
    length_field, pseudo_header,
};

/// Maximum packet size: the limit of RFC 1812 for ICMP, and below the minimum MTU of IPv6.
pub const PACKET_BYTES_MAX: usize = 576;

/// The reason why a datagram was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IcmpError {
    /// No process listens on this port: `ECONNREFUSED`.
    PortUnreachable,
    /// The host does not answer on its link, or did not answer in time: `EHOSTUNREACH`.
    HostUnreachable,
    /// There is no route: `ENETUNREACH`.
    NetUnreachable,
    /// A packet filter on the path rejects it: `EHOSTUNREACH`, over IPv6 `EACCES`.
    Prohibited,
    /// It exceeds the MTU of the path and must not be fragmented: `EMSGSIZE`.
    TooBig {
        /// The MTU of the path.
        mtu_bytes: u32,
    },
}

impl IcmpError {
    /// Converts an ICMP message to an error; `None` if it is not a delivery error.
    #[must_use]
    pub fn from_icmp(kind: u8, code: u8, info: u32) -> Option<Self> {
        match (kind, code) {
            (UNREACHABLE_V4, 0 | 6 | 8 | 11) => Some(Self::NetUnreachable),
            (UNREACHABLE_V4, 1 | 7 | 12) => Some(Self::HostUnreachable),
            (UNREACHABLE_V4, 2 | 3) => Some(Self::PortUnreachable),
            (UNREACHABLE_V4, FRAGMENTATION_NEEDED) => Some(Self::TooBig { mtu_bytes: info }),
            (UNREACHABLE_V4, 9 | 10 | 13..=15) => Some(Self::Prohibited),
            (TIME_EXCEEDED_V4, _) => Some(Self::HostUnreachable),
            _ => None,
        }
    }

    /// Converts an ICMPv6 message in the same way.
    #[must_use]
    pub fn from_icmpv6(kind: u8, code: u8, info: u32) -> Option<Self> {
        match (kind, code) {
            (UNREACHABLE_V6, 0) => Some(Self::NetUnreachable),
            (UNREACHABLE_V6, 1 | 5 | 6) => Some(Self::Prohibited),
            (UNREACHABLE_V6, 2 | 3) => Some(Self::HostUnreachable),
            (UNREACHABLE_V6, 4) => Some(Self::PortUnreachable),
            (TOO_BIG_V6, _) => Some(Self::TooBig { mtu_bytes: info }),
            (TIME_EXCEEDED_V6, _) => Some(Self::HostUnreachable),
            _ => None,
        }
    }

    fn icmp(self) -> IcmpHeader {
        match self {
            Self::PortUnreachable => IcmpHeader { kind: UNREACHABLE_V4, code: 3, info: 0 },
            Self::HostUnreachable => IcmpHeader { kind: UNREACHABLE_V4, code: 1, info: 0 },
            Self::NetUnreachable => IcmpHeader { kind: UNREACHABLE_V4, code: 0, info: 0 },
            Self::Prohibited => IcmpHeader { kind: UNREACHABLE_V4, code: 13, info: 0 },
            // RFC 1191, section 4: the upper half is unused.
            Self::TooBig { mtu_bytes } => IcmpHeader {
                kind: UNREACHABLE_V4,
                code: FRAGMENTATION_NEEDED,
                info: mtu_bytes.min(u16::MAX.into()),
            },
        }
    }

    fn icmpv6(self) -> IcmpHeader {
        match self {
            Self::PortUnreachable => IcmpHeader { kind: UNREACHABLE_V6, code: 4, info: 0 },
            Self::HostUnreachable => IcmpHeader { kind: UNREACHABLE_V6, code: 3, info: 0 },
            Self::NetUnreachable => IcmpHeader { kind: UNREACHABLE_V6, code: 0, info: 0 },
            Self::Prohibited => IcmpHeader { kind: UNREACHABLE_V6, code: 1, info: 0 },
            Self::TooBig { mtu_bytes } => IcmpHeader { kind: TOO_BIG_V6, code: 0, info: mtu_bytes },
        }
    }
}

/// The ICMP header without its checksum.
#[derive(Clone, Copy)]
struct IcmpHeader {
    /// The type.
    kind: u8,
    code: u8,
    /// The four bytes after the checksum.
    info: u32,
}

/// A datagram as its sender has sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentDatagram<'a> {
    /// The socket it was sent from.
    pub source: SocketAddr,
    /// Where it was sent to.
    pub destination: SocketAddr,
    /// Its payload, or as much of it as is known.
    pub payload: &'a [u8],
}

/// Builds the packet for the sender; `None` if the addresses have different families.
///
/// `reporter` is the reporting host. If its family differs, the destination is used instead.
#[must_use]
pub fn error(cause: IcmpError, sent: SentDatagram<'_>, reporter: IpAddr) -> Option<Vec<u8>> {
    let source = sent.source.ip();
    let quoted = match (source, sent.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => quoted_v4(sent, source, destination),
        (IpAddr::V6(source), IpAddr::V6(destination)) => quoted_v6(sent, source, destination),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    };
    let is_same_family = reporter.is_ipv4() == source.is_ipv4();
    let reporter = if is_same_family { reporter } else { sent.destination.ip() };
    error_about(cause, &quoted, reporter, source)
}

/// Builds the error about any packet; `quoted` is its IP header and at least eight more bytes;
/// `None` if the addresses have different families.
#[must_use]
pub fn error_about(
    cause: IcmpError,
    quoted: &[u8],
    reporter: IpAddr,
    to: IpAddr,
) -> Option<Vec<u8>> {
    match (reporter, to) {
        (IpAddr::V4(from), IpAddr::V4(receiver)) => {
            let room = PACKET_BYTES_MAX - HEADER_V4_BYTES - ICMP_HEADER_BYTES;
            let mut message = message(cause.icmp(), quoted.get(..room).unwrap_or(quoted));
            fill_checksum(&mut message, CHECKSUM_AT, 0);
            let mut packet = header_v4(ICMP, message.len(), from, receiver);
            packet.extend_from_slice(&message);
            Some(packet)
        }
        (IpAddr::V6(from), IpAddr::V6(receiver)) => {
            let room = PACKET_BYTES_MAX - HEADER_V6_BYTES - ICMP_HEADER_BYTES;
            let mut message = message(cause.icmpv6(), quoted.get(..room).unwrap_or(quoted));
            let pseudo = pseudo_header(ICMPV6, reporter, to, message.len());
            fill_checksum(&mut message, CHECKSUM_AT, pseudo);
            let mut packet = header_v6(ICMPV6, message.len(), from, receiver);
            packet.extend_from_slice(&message);
            Some(packet)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    }
}

fn message(header: IcmpHeader, quoted: &[u8]) -> Vec<u8> {
    let IcmpHeader { kind, code, info } = header;
    let mut message = vec![kind, code, 0, 0];
    message.extend_from_slice(&info.to_be_bytes());
    message.extend_from_slice(quoted);
    message
}

fn quoted_v4(sent: SentDatagram<'_>, source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
    let length = UDP_HEADER_BYTES + sent.payload.len();
    let mut quoted = header_v4(UDP, length, source, destination);
    push_datagram(&mut quoted, sent, PACKET_BYTES_MAX - HEADER_V4_BYTES - ICMP_HEADER_BYTES);
    quoted
}

fn quoted_v6(sent: SentDatagram<'_>, source: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
    let length = UDP_HEADER_BYTES + sent.payload.len();
    let mut quoted = header_v6(UDP, length, source, destination);
    push_datagram(&mut quoted, sent, PACKET_BYTES_MAX - HEADER_V6_BYTES - ICMP_HEADER_BYTES);
    quoted
}

/// Appends the UDP header and the beginning of the payload, until `quoted` has `bytes_max`.
fn push_datagram(quoted: &mut Vec<u8>, sent: SentDatagram<'_>, bytes_max: usize) {
    quoted.extend_from_slice(&sent.source.port().to_be_bytes());
    quoted.extend_from_slice(&sent.destination.port().to_be_bytes());
    quoted.extend_from_slice(&length_field(UDP_HEADER_BYTES + sent.payload.len()));
    quoted.extend_from_slice(&[0, 0]);
    quoted.extend_from_slice(sent.payload);
    quoted.truncate(bytes_max);
}

/// Whether a message of ICMP or ICMPv6 with this type is an error.
#[must_use]
pub fn is_error(protocol: u8, kind: u8) -> bool {
    match protocol {
        // RFC 792: unreachable, source quench, redirect, time exceeded, parameter problem.
        ICMP => matches!(kind, 3 | 4 | 5 | 11 | 12),
        // RFC 4443 section 2.1.
        ICMPV6 => kind < 128,
        _ => false,
    }
}

const ICMP_HEADER_BYTES: usize = 8;
const UDP_HEADER_BYTES: usize = 8;
const CHECKSUM_AT: usize = 2;
const UNREACHABLE_V4: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;
const TIME_EXCEEDED_V4: u8 = 11;
const UNREACHABLE_V6: u8 = 1;
const TOO_BIG_V6: u8 = 2;
const TIME_EXCEEDED_V6: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::{folded, sum};
    use proptest::prelude::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let hex: String = hex.chars().filter(char::is_ascii_hexdigit).collect();
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect()
    }

    fn sent<'a>(source: &str, destination: &str, payload: &'a [u8]) -> SentDatagram<'a> {
        let source = source.parse().unwrap();
        let destination = destination.parse().unwrap();
        SentDatagram { source, destination, payload }
    }

    #[test]
    fn port_unreachable_byte_by_byte() {
        let sent = sent("10.0.2.15:40000", "10.9.8.7:5000", b"ping!");
        let packet = error(IcmpError::PortUnreachable, sent, "10.9.8.7".parse().unwrap()).unwrap();
        // The three checksums were computed separately.
        let wanted = "4500 003d 0000 4000 40 01 1ca2 0a090807 0a00020f \
                      03 03 4d56 00000000 \
                      4500 0021 0000 4000 40 11 1cae 0a00020f 0a090807 \
                      9c40 1388 000d 0000 70696e6721";
        assert_eq!(packet, bytes(wanted), "{packet:02x?}");
    }

    #[test]
    fn what_does_not_fit_says_what_does() {
        let reporter = "192.0.2.1".parse().unwrap();
        let cause = IcmpError::TooBig { mtu_bytes: 1280 };
        let long = [7; 2000];
        let packet = error(cause, sent("10.0.2.15:1", "10.9.8.7:2", &long), reporter).unwrap();
        assert_eq!(packet.len(), PACKET_BYTES_MAX);
        assert_eq!(packet[12..16], [192, 0, 2, 1]);
        assert_eq!(packet[20..22], [3, 4]);
        assert_eq!(packet[24..28], [0, 0, 5, 0]);
        assert_eq!(packet[30..32], 2028_u16.to_be_bytes(), "quoted as long as it was");
        let six = sent("[fd00:7ac1::15]:1", "[2001:db8::7]:2", &long);
        let packet = error(cause, six, reporter).unwrap();
        assert_eq!(packet.len(), PACKET_BYTES_MAX);
        assert_eq!(packet[8..24], packet[48 + 24..48 + 40], "an IPv4 router reports no IPv6");
        assert_eq!(packet[40..42], [2, 0]);
        assert_eq!(packet[44..48], [0, 0, 5, 0]);
    }

    #[test]
    fn addresses_of_two_families_make_no_packet() {
        let mixed = sent("10.0.2.15:1", "[2001:db8::7]:2", b"");
        assert_eq!(error(IcmpError::PortUnreachable, mixed, "::1".parse().unwrap()), None);
    }

    fn cause() -> impl Strategy<Value = IcmpError> {
        prop_oneof![
            Just(IcmpError::PortUnreachable),
            Just(IcmpError::HostUnreachable),
            Just(IcmpError::NetUnreachable),
            Just(IcmpError::Prohibited),
            (68_u32..65_536).prop_map(|mtu_bytes| IcmpError::TooBig { mtu_bytes }),
        ]
    }

    proptest! {
        #[test]
        fn the_checksums_are_right_and_the_message_reads_back(
            cause in cause(),
            v6 in any::<bool>(),
            ports in any::<(u16, u16)>(),
            payload in prop::collection::vec(any::<u8>(), 0..900),
        ) {
            let (program, server) = if v6 {
                ("fd00:7ac1::15", "2001:db8::7")
            } else {
                ("10.0.2.15", "10.9.8.7")
            };
            let program: IpAddr = program.parse().unwrap();
            let server: IpAddr = server.parse().unwrap();
            let sent = SentDatagram {
                source: SocketAddr::new(program, ports.0),
                destination: SocketAddr::new(server, ports.1),
                payload: &payload,
            };
            let packet = error(cause, sent, server).unwrap();
            prop_assert!(packet.len() <= PACKET_BYTES_MAX);
            let (header, message) = packet.split_at(if v6 { 40 } else { 20 });
            let info = u32::from_be_bytes(message[4..8].try_into().unwrap());
            let (read, more) = match (program, server) {
                (IpAddr::V6(to), IpAddr::V6(from)) => (
                    IcmpError::from_icmpv6(message[0], message[1], info),
                    pseudo_header(ICMPV6, IpAddr::V6(from), IpAddr::V6(to), message.len()),
                ),
                _ => (IcmpError::from_icmp(message[0], message[1], info), 0),
            };
            prop_assert_eq!(read, Some(cause));
            // A correct checksum makes the sum of everything all ones.
            prop_assert_eq!(folded(sum(message) + more), 0xffff);
            let quoted = &message[8..];
            if !v6 {
                prop_assert_eq!(folded(sum(header)), 0xffff);
                prop_assert_eq!(folded(sum(&quoted[..20])), 0xffff);
            }
            let udp = &quoted[if v6 { 40 } else { 20 }..];
            prop_assert_eq!(&udp[..2], &ports.0.to_be_bytes());
            prop_assert_eq!(&udp[2..4], &ports.1.to_be_bytes());
            prop_assert!(payload.starts_with(&udp[8..]));
        }

        #[test]
        fn any_type_and_code_is_read(
            kind in any::<u8>(),
            code in any::<u8>(),
            info in any::<u32>(),
        ) {
            let _ = IcmpError::from_icmp(kind, code, info);
            let _ = IcmpError::from_icmpv6(kind, code, info);
        }
    }
}
