//! Parses the copies of packets that show connections, names of servers, and TLS.

use std::net::{IpAddr, SocketAddr};

use crate::dns;
use crate::held::FlowEnds;
use crate::ip::{IpHeader, TCP, UDP, field16};

/// What the copy of a packet shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeenPacket {
    /// A server accepts a TCP connection.
    Accepted(FlowEnds),
    /// A DNS server has answered: the name that was asked for, and its addresses.
    Answer {
        /// The name in the question.
        name: String,
        /// The addresses, after all CNAME records.
        addresses: Vec<IpAddr>,
    },
    /// A server begins TLS.
    ServerHello {
        /// The address of the server.
        server: SocketAddr,
        /// The address of the client.
        client: SocketAddr,
    },
}

impl SeenPacket {
    /// Parses a packet that begins with its IP header; `None` if it shows nothing of these.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        if let Some(ip) = IpHeader::parse(packet, UDP) {
            return answer(packet.get(ip.header_bytes..)?);
        }
        let ip = IpHeader::parse(packet, TCP)?;
        let tcp = packet.get(ip.header_bytes..)?;
        let server = SocketAddr::new(ip.source, field16(tcp, 0)?);
        let client = SocketAddr::new(ip.destination, field16(tcp, 2)?);
        if tcp.get(13)? & (SYN | ACK | RST) == SYN | ACK {
            return Some(Self::Accepted(FlowEnds { program: client, destination: server }));
        }
        let data = tcp.get(usize::from(tcp.get(12)? >> 4) * 4..)?;
        begins_tls(data).then_some(Self::ServerHello { server, client })
    }
}

/// Reads a UDP datagram from a DNS server.
fn answer(udp: &[u8]) -> Option<SeenPacket> {
    if field16(udp, 0)? != DNS_PORT {
        return None;
    }
    let response = udp.get(UDP_HEADER_BYTES..)?;
    let question = dns::response_question(response).ok()?;
    let found = dns::answers(response, &question).ok()?;
    let addresses: Vec<_> = found.into_iter().map(|one| one.address).collect();
    (!addresses.is_empty()).then(|| SeenPacket::Answer { name: question.name, addresses })
}

/// Whether data of a server begin with the record of a ServerHello (RFC 8446, section 5.1).
fn begins_tls(data: &[u8]) -> bool {
    matches!(data, [HANDSHAKE, MAJOR_VERSION, _, _, _, SERVER_HELLO, ..])
}

const DNS_PORT: u16 = 53;
const UDP_HEADER_BYTES: usize = 8;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// The type of a handshake record, the first byte of all its versions, and the type of the message.
const HANDSHAKE: u8 = 22;
const MAJOR_VERSION: u8 = 3;
const SERVER_HELLO: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::{header_v4, header_v6};
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 3);

    fn tcp(ports: [u16; 2], flags: u8, data: &[u8]) -> Vec<u8> {
        let mut segment: Vec<u8> = ports.into_iter().flat_map(u16::to_be_bytes).collect();
        segment.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 2, 0x60, flags, 1, 0, 0, 0, 0, 0]);
        // An option, so that the offset of the data counts.
        segment.extend_from_slice(&[2, 4, 5, 0xb4]);
        segment.extend_from_slice(data);
        segment
    }

    fn over_v4(protocol: u8, from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
        [header_v4(protocol, payload.len(), from, to), payload.to_vec()].concat()
    }

    #[test]
    fn the_answer_to_a_syn_is_read() {
        let packet = over_v4(TCP, SERVER, CLIENT, &tcp([5432, 40_000], SYN | ACK, b""));
        let ends = FlowEnds {
            program: SocketAddr::from((CLIENT, 40_000)),
            destination: SocketAddr::from((SERVER, 5432)),
        };
        assert_eq!(SeenPacket::parse(&packet), Some(SeenPacket::Accepted(ends)));
        for flags in [SYN, ACK, RST | ACK] {
            let packet = over_v4(TCP, SERVER, CLIENT, &tcp([5432, 40_000], flags, b""));
            assert_eq!(SeenPacket::parse(&packet), None);
        }
    }

    #[test]
    fn a_server_that_begins_tls_is_recognised_over_both_ip_versions() {
        let hello = [22, 3, 3, 0, 90, 2, 0, 0, 86];
        let segment = tcp([443, 40_000], 0x18, &hello);
        let seen = SeenPacket::parse(&over_v4(TCP, SERVER, CLIENT, &segment));
        let server = SocketAddr::from((SERVER, 443));
        let client = SocketAddr::from((CLIENT, 40_000));
        assert_eq!(seen, Some(SeenPacket::ServerHello { server, client }));
        let [from, to] = [Ipv6Addr::LOCALHOST; 2];
        let packet = [header_v6(TCP, segment.len(), from, to), segment].concat();
        let seen = SeenPacket::parse(&packet);
        assert!(matches!(seen, Some(SeenPacket::ServerHello { .. })), "{seen:?}");
        let client_hello = tcp([40_000, 443], 0x18, &[22, 3, 1, 0, 90, 1, 0, 0, 86]);
        assert_eq!(SeenPacket::parse(&over_v4(TCP, CLIENT, SERVER, &client_hello)), None);
    }

    #[test]
    fn the_name_of_an_answer_is_the_one_that_was_asked_for() {
        // The question `db.example`, and a CNAME record to `x.example` with the address 10.7.0.3.
        let mut response = vec![0, 7, 0x81, 0x80, 0, 1, 0, 2, 0, 0, 0, 0];
        response.extend_from_slice(b"\x02db\x07example\0\0\x01\0\x01");
        response.extend_from_slice(b"\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x04\x01x\xc0\x0f");
        response.extend_from_slice(b"\xc0\x28\0\x01\0\x01\0\0\0\x3c\0\x04\x0a\x07\0\x03");
        let length = u16::try_from(8 + response.len()).unwrap();
        let mut udp = vec![0, 53, 0x9c, 0x40];
        udp.extend_from_slice(&length.to_be_bytes());
        udp.extend_from_slice(&[0, 0]);
        udp.extend_from_slice(&response);
        let seen = SeenPacket::parse(&over_v4(UDP, SERVER, CLIENT, &udp));
        let addresses = vec![SERVER.into()];
        assert_eq!(seen, Some(SeenPacket::Answer { name: "db.example".to_owned(), addresses }));
        udp[1] = 54;
        assert_eq!(SeenPacket::parse(&over_v4(UDP, SERVER, CLIENT, &udp)), None);
    }

    proptest! {
        #[test]
        fn no_packet_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = SeenPacket::parse(&bytes);
            for protocol in [TCP, UDP] {
                let _ = SeenPacket::parse(&over_v4(protocol, CLIENT, SERVER, &bytes));
            }
        }
    }
}
