//! Defines the fields of a packet that filter rules check. Reads these fields from text, or from
//! the bytes of a packet. Examples of texts:
//!
//! ```text
//! in eth0 tcp 192.0.2.7:40000 > 10.0.0.1:22 syn
//! out eth0 icmp 10.0.0.1 > 192.0.2.7 type 8 code 0
//! routed eth0 eth1 udp 10.0.0.9:5000 > 10.1.0.9:53
//! in eth0 47 192.0.2.7 > 10.0.0.1 fragment
//! from-tunnel branch tcp 10.2.0.1:40000 > 10.1.0.1:8080 syn
//! to-tunnel branch udp 10.1.0.1:5000 > 10.2.0.1:53
//! ```
//! In the fourth example, 47 is the number of an IP protocol. In the last two examples, `branch` is
//! the name of an IPsec tunnel.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{ICMP, ICMPV6, TCP, WITH_PORTS};

/// A packet as filter rules see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterPacket {
    /// The way of the packet.
    pub path: PacketPath,
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The number of the transport protocol.
    pub protocol: u8,
    /// What the transport header contains.
    pub header: TransportHeader,
    /// Whether it is a fragment of a packet.
    pub is_fragment: bool,
}

/// The way of a packet through the host, with the names of interfaces, or through a tunnel of a
/// run, with the name of its peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketPath {
    /// To this host.
    In(String),
    /// From this host.
    Out(String),
    /// From another host to another host.
    Routed {
        /// The interface that receives it.
        received: String,
        /// The interface that sends it.
        sent: String,
    },
    /// From the peer of a tunnel to a run.
    FromTunnel(String),
    /// From a run to the peer of a tunnel.
    ToTunnel(String),
}

impl PacketPath {
    /// The name of the peer, for a packet inside a tunnel.
    #[must_use]
    pub fn tunnel(&self) -> Option<&str> {
        match self {
            Self::FromTunnel(ike) | Self::ToTunnel(ike) => Some(ike),
            Self::In(_) | Self::Out(_) | Self::Routed { .. } => None,
        }
    }
}

/// The part of a transport header that filter rules compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportHeader {
    /// Of a protocol with ports.
    Ports {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
        /// Whether it is a TCP segment that opens a connection.
        opens: bool,
    },
    /// Of ICMP or ICMPv6.
    Icmp {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
    },
    /// Another one, or none.
    Other,
}

impl TransportHeader {
    /// Whether it is that of a TCP segment that opens a connection.
    #[must_use]
    pub fn opens(self) -> bool {
        matches!(self, Self::Ports { opens: true, .. })
    }
}

/// Names of transport protocols; the first of several is shown.
const PROTOCOLS: [(&str, u8); 19] = [
    ("icmp", ICMP),
    ("igmp", 2),
    ("ipip", 4),
    ("tcp", TCP),
    ("udp", 17),
    ("dccp", 33),
    ("ipv6", 41),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", ICMPV6),
    ("ipv6-icmp", ICMPV6),
    ("eigrp", 88),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", 132),
    ("udplite", 136),
];

/// The names of transport protocols that rules may contain.
pub(in crate::policy) fn protocol_names() -> impl Iterator<Item = &'static str> {
    PROTOCOLS.iter().map(|(name, _)| *name)
}

/// The number of a protocol, from its name or its number.
pub(in crate::policy) fn protocol_number(text: &str) -> Option<u8> {
    let named = PROTOCOLS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    named.map(|(_, number)| *number).or_else(|| text.parse().ok())
}

/// The name of a protocol, or its number.
pub(in crate::policy) fn protocol_name(number: u8) -> String {
    let named = PROTOCOLS.iter().find(|(_, known)| *known == number);
    named.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

/// Why a text is not the description of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketTextError(String);

impl fmt::Display for PacketTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PacketTextError {}

impl FilterPacket {
    /// Whether the kernel delivers the packet to the host that sends it: such packets pass, because
    /// the nftables rules leave out the interface `lo`. Other addresses of the host are not known.
    #[must_use]
    pub fn stays_on_host(&self) -> bool {
        match &self.path {
            PacketPath::In(interface) => interface == LOOPBACK_INTERFACE,
            // Whatever the interface is, the kernel sends a packet to an own address on `lo`.
            PacketPath::Out(interface) => {
                let to_own = self.destination.is_loopback() || self.destination == self.source;
                interface == LOOPBACK_INTERFACE || to_own
            }
            PacketPath::Routed { .. } | PacketPath::FromTunnel(_) | PacketPath::ToTunnel(_) => {
                false
            }
        }
    }

    /// The type and the code of a message of ICMP, or of ICMPv6 over IPv6.
    pub(super) fn icmp(&self) -> Option<(u8, u8)> {
        let own = if self.source.is_ipv4() { ICMP } else { ICMPV6 };
        match self.header {
            TransportHeader::Icmp { kind, code } if self.protocol == own => Some((kind, code)),
            _ => None,
        }
    }

    /// The source and the destination port.
    pub(super) fn ports(&self) -> Option<[u16; 2]> {
        match self.header {
            TransportHeader::Ports { source, destination, .. } => Some([source, destination]),
            TransportHeader::Icmp { .. } | TransportHeader::Other => None,
        }
    }

    /// Reads the description of a packet.
    ///
    /// # Errors
    /// The part that is missing or wrong.
    pub fn parse(text: &str) -> Result<Self, PacketTextError> {
        let mut words = text.split_whitespace();
        let mut next = |what: &str| words.next().ok_or_else(|| missing(what));
        let path = match next("the first word: in, out, routed, from-tunnel or to-tunnel")? {
            "from-tunnel" => PacketPath::FromTunnel(next("the name of the tunnel")?.to_owned()),
            "to-tunnel" => PacketPath::ToTunnel(next("the name of the tunnel")?.to_owned()),
            "in" => PacketPath::In(interface(next("the interface")?)?),
            "out" => PacketPath::Out(interface(next("the interface")?)?),
            "routed" => PacketPath::Routed {
                received: interface(next("the interface that receives the packet")?)?,
                sent: interface(next("the interface that sends the packet")?)?,
            },
            other => {
                let why = "the description of a packet must begin with `in`, `out`, `routed`, \
                           `from-tunnel` or `to-tunnel`";
                return Err(wrong(why, other));
            }
        };
        let name = next("the protocol")?;
        let protocol = protocol_number(name).ok_or_else(|| wrong("unknown protocol", name))?;
        let has_ports = WITH_PORTS.contains(&protocol);
        let (source, source_port) = end(next("the source")?, protocol)?;
        let arrow = next("`>`")?;
        if arrow != ">" {
            return Err(wrong("write `>` between source and destination", arrow));
        }
        let (destination, destination_port) = end(next("the destination")?, protocol)?;
        let mut packet = Self {
            path,
            source,
            destination,
            protocol,
            header: match (has_ports, protocol) {
                (true, _) => TransportHeader::Ports {
                    source: source_port,
                    destination: destination_port,
                    opens: false,
                },
                (false, ICMP | ICMPV6) => TransportHeader::Icmp { kind: 0, code: 0 },
                (false, _) => TransportHeader::Other,
            },
            is_fragment: false,
        };
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(wrong("source and destination have different IP versions", text));
        }
        packet.read_rest(words)?;
        Ok(packet)
    }

    fn read_rest<'t>(
        &mut self,
        mut words: impl Iterator<Item = &'t str>,
    ) -> Result<(), PacketTextError> {
        while let Some(word) = words.next() {
            let mut number = || {
                let text = words.next().ok_or_else(|| missing(word))?;
                text.parse()
                    .map_err(|_| wrong("an ICMP type or code is a number from 0 to 255", text))
            };
            match (word, &mut self.header) {
                ("syn", TransportHeader::Ports { opens, .. }) if self.protocol == TCP => {
                    *opens = true;
                }
                ("type", TransportHeader::Icmp { kind, .. }) => *kind = number()?,
                ("code", TransportHeader::Icmp { code, .. }) => *code = number()?,
                ("fragment", _) => self.is_fragment = true,
                _ => {
                    return Err(wrong(
                        "this word is unknown, or is not valid for the protocol of the packet",
                        word,
                    ));
                }
            }
        }
        Ok(())
    }

    /// Reads an IP packet. `None`: the bytes are no complete IP header.
    #[must_use]
    pub fn of_bytes(path: PacketPath, bytes: &[u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => Self::of_v4(path, bytes),
            6 => Self::of_v6(path, bytes),
            _ => None,
        }
    }

    fn of_v4(path: PacketPath, bytes: &[u8]) -> Option<Self> {
        let header_bytes = usize::from(bytes.first()? & 0x0f) * 4;
        let address = |at: usize| {
            let octets: [u8; 4] = *bytes.get(at..)?.first_chunk()?;
            Some(IpAddr::from(Ipv4Addr::from(octets)))
        };
        let fragment = u16::from_be_bytes(*bytes.get(6..)?.first_chunk()?);
        let protocol = *bytes.get(9)?;
        let rest = bytes.get(header_bytes.max(V4_HEADER_BYTES)..)?;
        let missing_flags = flags_when_missing(&path);
        let beginning = PacketBeginning::at_offset(fragment & V4_OFFSET);
        // Filters of tunnels compare the first fragment as a whole packet.
        let of_fragment = if path.tunnel().is_some() { V4_OFFSET } else { V4_OFFSET | V4_MORE };
        Some(Self {
            path,
            source: address(12)?,
            destination: address(16)?,
            protocol,
            header: header(protocol, rest, beginning, missing_flags),
            is_fragment: fragment & of_fragment != 0,
        })
    }

    fn of_v6(path: PacketPath, bytes: &[u8]) -> Option<Self> {
        let address = |at: usize| {
            let octets: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
            Some(IpAddr::from(Ipv6Addr::from(octets)))
        };
        let source = address(8)?;
        let destination = address(24)?;
        let mut protocol = *bytes.get(6)?;
        let mut rest = bytes.get(V6_HEADER_BYTES..)?;
        let mut is_fragment = false;
        let mut beginning = PacketBeginning::Present;
        let is_in_tunnel = path.tunnel().is_some();
        for _ in 0..EXTENSIONS_MAX {
            let header_bytes = match protocol {
                0 | 43 | 60 => usize::from(*rest.get(1)?) * 8 + 8,
                44 => {
                    let offset = u16::from_be_bytes(*rest.get(2..)?.first_chunk()?) & !7;
                    beginning = PacketBeginning::at_offset(offset);
                    is_fragment = !is_in_tunnel || beginning == PacketBeginning::Missing;
                    8
                }
                // The agent reads the next header (RFC 4302 section 2.2); nftables does not.
                AH if is_in_tunnel => (usize::from(*rest.get(1)?) + 2) * 4,
                _ => break,
            };
            protocol = *rest.first()?;
            rest = rest.get(header_bytes..)?;
            if beginning == PacketBeginning::Missing {
                break;
            }
        }
        let header = header(protocol, rest, beginning, flags_when_missing(&path));
        Some(Self { path, source, destination, protocol, header, is_fragment })
    }
}

/// Whether the bytes contain the transport header: only the first fragment of a packet does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PacketBeginning {
    Present,
    Missing,
}

impl PacketBeginning {
    fn at_offset(offset: u16) -> Self {
        if offset == 0 { Self::Present } else { Self::Missing }
    }
}

/// The flags to assume for a TCP segment that ends before its flags. In a tunnel, the agent assumes
/// that the segment opens a connection: the flags may be in the next fragment, which has no ports.
fn flags_when_missing(path: &PacketPath) -> u8 {
    if path.tunnel().is_some() { SYN } else { 0 }
}

fn header(protocol: u8, bytes: &[u8], part: PacketBeginning, missing_flags: u8) -> TransportHeader {
    let word = |at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    let found = match protocol {
        _ if part == PacketBeginning::Missing => None,
        protocol if WITH_PORTS.contains(&protocol) => {
            let flags = bytes.get(13).copied().unwrap_or(missing_flags);
            let opens = protocol == TCP && flags & (SYN | ACK) == SYN;
            word(0).zip(word(2)).map(|(source, destination)| TransportHeader::Ports {
                source,
                destination,
                opens,
            })
        }
        ICMP | ICMPV6 => bytes
            .first_chunk()
            .map(|[kind, code]: &[u8; 2]| TransportHeader::Icmp { kind: *kind, code: *code }),
        _ => None,
    };
    found.unwrap_or(TransportHeader::Other)
}

fn end(text: &str, protocol: u8) -> Result<(IpAddr, u16), PacketTextError> {
    if !WITH_PORTS.contains(&protocol) {
        let address =
            text.parse().map_err(|_| wrong("source and destination must be IP addresses", text))?;
        return Ok((address, 0));
    }
    let end: SocketAddr = text.parse().map_err(|_| {
        let why = "source and destination must be addresses with ports, such as 192.0.2.1:80 or \
                   [2001:db8::1]:80";
        wrong(why, text)
    })?;
    Ok((end.ip(), end.port()))
}

fn interface(name: &str) -> Result<String, PacketTextError> {
    if is_interface_name(name) {
        return Ok(name.to_owned());
    }
    Err(wrong("a network interface cannot have this name", name))
}

/// Whether an interface of Linux can have this name.
pub(in crate::policy) fn is_interface_name(name: &str) -> bool {
    name.len() <= INTERFACE_NAME_BYTES_MAX
        && !name.contains(|letter: char| matches!(letter, '/' | '\0') || letter.is_whitespace())
}

/// The interface of packets that stay on the host.
const LOOPBACK_INTERFACE: &str = "lo";
/// `IFNAMSIZ`, without the zero at the end.
const INTERFACE_NAME_BYTES_MAX: usize = 15;

fn missing(missing_part: &str) -> PacketTextError {
    PacketTextError(format!("the description of the packet ends before {missing_part}"))
}

fn wrong(why: &str, text: &str) -> PacketTextError {
    PacketTextError(format!("`{}`: {why}", text.escape_debug()))
}

impl fmt::Display for PacketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::In(interface) => write!(f, "in {interface}"),
            Self::Out(interface) => write!(f, "out {interface}"),
            Self::Routed { received, sent } => write!(f, "routed {received} {sent}"),
            Self::FromTunnel(ike) => write!(f, "from-tunnel {ike}"),
            Self::ToTunnel(ike) => write!(f, "to-tunnel {ike}"),
        }
    }
}

impl fmt::Display for FilterPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The log knows no interfaces.
        let path = self.path.to_string();
        write!(f, "{} ", path.trim_end())?;
        f.write_str(&protocol_name(self.protocol))?;
        let Self { source, destination, .. } = self;
        match self.header {
            TransportHeader::Ports { source: from, destination: to, opens } => {
                let [from, to] =
                    [SocketAddr::new(*source, from), SocketAddr::new(*destination, to)];
                write!(f, " {from} > {to}{}", if opens { " syn" } else { "" })?;
            }
            TransportHeader::Icmp { kind, code } => {
                write!(f, " {source} > {destination} type {kind} code {code}")?;
            }
            TransportHeader::Other => write!(f, " {source} > {destination}")?,
        }
        f.write_str(if self.is_fragment { " fragment" } else { "" })
    }
}

/// The protocol number of the authentication header, an extension header of IPv6.
const AH: u8 = 51;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const V4_HEADER_BYTES: usize = 20;
const V6_HEADER_BYTES: usize = 40;
/// The bits of the fragment offset of IPv4, and the bit "more fragments".
const V4_OFFSET: u16 = 0x1fff;
const V4_MORE: u16 = 0x2000;
/// The maximum number of extension headers of IPv6 that are read.
const EXTENSIONS_MAX: usize = 8;
