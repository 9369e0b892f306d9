//! Parses the copies of packets that show connections, names of servers, and TLS.

use std::net::{IpAddr, SocketAddr};

use crate::dns;
use crate::held::FlowEnds;
use crate::ip::{IpHeader, TCP, UDP, field16};

/// What the copy of a packet shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeenPacket {
    /// A program opens a TCP connection.
    Opened(FlowEnds),
    /// A server accepts a TCP connection.
    Accepted(FlowEnds),
    /// A server begins TLS in this connection.
    ServerHello(FlowEnds),
    /// A program asks a DNS server.
    Question(DnsExchange),
    /// A DNS server answers.
    Answer {
        /// What is answered.
        exchange: DnsExchange,
        /// The addresses that the name has, after all CNAME records.
        addresses: Vec<IpAddr>,
    },
}

/// A question to a DNS server, by which its answer is recognised.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DnsExchange {
    /// The program and the server.
    pub ends: FlowEnds,
    /// The number of the message.
    pub id: u16,
    /// The name, in lower case.
    pub name: String,
}

impl SeenPacket {
    /// Parses a packet that begins with its IP header; `None` if it shows nothing of these.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        if let Some(ip) = IpHeader::parse(packet, UDP) {
            return dns_message(&ip, packet.get(ip.header_bytes..)?);
        }
        let ip = IpHeader::parse(packet, TCP)?;
        let tcp = packet.get(ip.header_bytes..)?;
        let from = SocketAddr::new(ip.source, port(tcp, 0)?);
        let to = SocketAddr::new(ip.destination, port(tcp, 2)?);
        let of_server = FlowEnds { program: to, destination: from };
        match tcp.get(13)? & (SYN | ACK | RST) {
            SYN => return Some(Self::Opened(FlowEnds { program: from, destination: to })),
            BOTH => return Some(Self::Accepted(of_server)),
            _ => {}
        }
        let data = tcp.get(usize::from(tcp.get(12)? >> 4) * 4..)?;
        begins_tls(data).then_some(Self::ServerHello(of_server))
    }
}

/// Reads a UDP datagram to or from a DNS server.
fn dns_message(ip: &IpHeader, udp: &[u8]) -> Option<SeenPacket> {
    let from = SocketAddr::new(ip.source, port(udp, 0)?);
    let to = SocketAddr::new(ip.destination, port(udp, 2)?);
    let message = udp.get(UDP_HEADER_BYTES..)?;
    let id = field16(message, 0)?;
    let exchange = |ends, name: &str| DnsExchange { ends, id, name: name.to_ascii_lowercase() };
    if to.port() == DNS_PORT {
        let question = dns::question(message).ok()?;
        let ends = FlowEnds { program: from, destination: to };
        return Some(SeenPacket::Question(exchange(ends, &question.name)));
    }
    if from.port() != DNS_PORT {
        return None;
    }
    let question = dns::response_question(message).ok()?;
    let found = dns::answers(message, &question).ok()?;
    Some(SeenPacket::Answer {
        exchange: exchange(FlowEnds { program: to, destination: from }, &question.name),
        addresses: found.into_iter().map(|one| one.address).collect(),
    })
}

/// Reads a port; 0 is none.
fn port(header: &[u8], at: usize) -> Option<u16> {
    field16(header, at).filter(|port| *port != 0)
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
const BOTH: u8 = SYN | ACK;
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

    fn ends(port: u16) -> FlowEnds {
        FlowEnds {
            program: SocketAddr::from((CLIENT, 40_000)),
            destination: SocketAddr::from((SERVER, port)),
        }
    }

    #[test]
    fn a_syn_and_its_answer_are_read() {
        let syn = over_v4(TCP, CLIENT, SERVER, &tcp([40_000, 5432], SYN, b""));
        assert_eq!(SeenPacket::parse(&syn), Some(SeenPacket::Opened(ends(5432))));
        let answer = over_v4(TCP, SERVER, CLIENT, &tcp([5432, 40_000], SYN | ACK, b""));
        assert_eq!(SeenPacket::parse(&answer), Some(SeenPacket::Accepted(ends(5432))));
        for (ports, flags) in [([5432, 40_000], ACK), ([5432, 1], RST | ACK), ([0, 1], SYN)] {
            let packet = over_v4(TCP, SERVER, CLIENT, &tcp(ports, flags, b""));
            assert_eq!(SeenPacket::parse(&packet), None);
        }
    }

    #[test]
    fn a_server_that_begins_tls_is_recognised_over_both_ip_versions() {
        let hello = [22, 3, 3, 0, 90, 2, 0, 0, 86];
        let segment = tcp([443, 40_000], 0x18, &hello);
        let seen = SeenPacket::parse(&over_v4(TCP, SERVER, CLIENT, &segment));
        assert_eq!(seen, Some(SeenPacket::ServerHello(ends(443))));
        let [from, to] = [Ipv6Addr::LOCALHOST; 2];
        let packet = [header_v6(TCP, segment.len(), from, to), segment].concat();
        let seen = SeenPacket::parse(&packet);
        assert!(matches!(seen, Some(SeenPacket::ServerHello(_))), "{seen:?}");
        let client_hello = tcp([40_000, 443], 0x18, &[22, 3, 1, 0, 90, 1, 0, 0, 86]);
        assert_eq!(SeenPacket::parse(&over_v4(TCP, CLIENT, SERVER, &client_hello)), None);
    }

    fn udp(ports: [u16; 2], message: &[u8]) -> Vec<u8> {
        let length = u16::try_from(8 + message.len()).unwrap();
        let fields = [ports[0], ports[1], length, 0];
        let header: Vec<u8> = fields.into_iter().flat_map(u16::to_be_bytes).collect();
        [header, message.to_vec()].concat()
    }

    #[test]
    fn an_answer_is_that_to_the_question_with_its_number_and_name() {
        let question = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x02Db\x07example\0\0\x01\0\x01";
        let packet = over_v4(UDP, CLIENT, SERVER, &udp([40_000, 53], question));
        let exchange = DnsExchange { ends: ends(53), id: 7, name: "db.example".to_owned() };
        assert_eq!(SeenPacket::parse(&packet), Some(SeenPacket::Question(exchange.clone())));
        // A CNAME record to `x.example` with the address 10.7.0.3.
        let mut response = question.to_vec();
        response[2..8].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 2]);
        response.extend_from_slice(b"\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x04\x01x\xc0\x0f");
        response.extend_from_slice(b"\xc0\x28\0\x01\0\x01\0\0\0\x3c\0\x04\x0a\x07\0\x03");
        let packet = over_v4(UDP, SERVER, CLIENT, &udp([53, 40_000], &response));
        let addresses = vec![SERVER.into()];
        assert_eq!(SeenPacket::parse(&packet), Some(SeenPacket::Answer { exchange, addresses }));
        let packet = over_v4(UDP, SERVER, CLIENT, &udp([54, 40_000], &response));
        assert_eq!(SeenPacket::parse(&packet), None);
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
