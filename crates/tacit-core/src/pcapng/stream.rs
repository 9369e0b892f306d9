//! Creates TCP segments for the decrypted bytes of a stream, so that Wireshark can show these
//! bytes.
//!
//! ```text
//!   new ── SYN, SYN-ACK, ACK      data ── segments      end ── FIN, FIN, ACK, or RST
//! ```
//!
//! The sequence number of a segment is computed from the position of its bytes in the stream. If
//! the caller omits bytes, Wireshark reports a gap. A capture can begin in the middle of a stream.
//! Headers are complete, with their checksums (RFC 791, RFC 8200, RFC 9293).
//!
//! Limit: [`PAYLOAD_BYTES_MAX`] bytes of payload in a segment.

use std::net::{IpAddr, SocketAddr};

use crate::ip::{HEADER_V4_BYTES, TCP, fill_checksum, header_v4, header_v6, pseudo_header};

/// The largest payload of a segment: the length field of IPv4 allows no more.
pub const PAYLOAD_BYTES_MAX: usize = u16::MAX as usize - HEADER_V4_BYTES - TCP_HEADER_BYTES;

/// The length of a TCP header without options.
const TCP_HEADER_BYTES: usize = 20;
const CHECKSUM_AT: usize = 16;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// The options of a SYN: the largest maximum segment size, and windows in units of 16 KiB (RFC
/// 7323). The window must hold all bytes of one side, because there are no acknowledgements without
/// data.
const SYN_OPTIONS: [u8; 8] = [2, 4, 0xff, 0xff, 1, 3, 3, 14];
/// The window of every segment.
const WINDOW: [u8; 2] = [0xff, 0xff];

/// The two sides of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that connected.
    Client,
    /// The side that accepted.
    Server,
}

impl Side {
    /// Returns the other side.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// Both sides ended with a FIN.
    Orderly,
    /// This side reset the connection.
    Reset(Side),
}

/// A stream in the form of a TCP connection.
#[derive(Clone, Debug)]
pub struct SyntheticStream {
    client: Direction,
    server: Direction,
}

/// The bytes that one side sends.
#[derive(Clone, Debug)]
struct Direction {
    from: SocketAddr,
    /// The sequence number of the SYN.
    initial: u32,
    /// The position of the first byte after the SYN.
    first: u64,
    /// The position after the last byte so far.
    next: u64,
}

impl Direction {
    fn sequence(&self, position: u64) -> u32 {
        let sent = position.saturating_sub(self.first) & u64::from(u32::MAX);
        let sent = u32::try_from(sent).unwrap_or_default();
        self.initial.wrapping_add(1).wrapping_add(sent)
    }
}

/// The fields that differ between segments.
#[derive(Clone, Copy)]
struct Segment<'a> {
    from: Side,
    sequence: u32,
    acknowledges: u32,
    flags: u8,
    options: &'a [u8],
    payload: &'a [u8],
}

impl SyntheticStream {
    /// Creates a stream between two addresses. It begins at these positions, first that of the
    /// client. `number` distinguishes streams with the same addresses.
    #[must_use]
    pub fn new(client: SocketAddr, server: SocketAddr, begins: [u64; 2], number: u32) -> Self {
        let [client, server] = one_family(client, server);
        let direction = |from, first, initial| Direction { from, initial, first, next: first };
        Self {
            client: direction(client, begins[0], number.wrapping_mul(INITIAL_STEP)),
            server: direction(server, begins[1], number.wrapping_mul(INITIAL_STEP) ^ INITIAL_OTHER),
        }
    }

    /// Returns the packets that open the connection.
    #[must_use]
    pub fn open(&self) -> [Vec<u8>; 3] {
        let [client, server] = [self.client.initial, self.server.initial];
        let syn = |from, sequence, acknowledges, flags| Segment {
            from,
            sequence,
            acknowledges,
            flags,
            options: &SYN_OPTIONS,
            payload: &[],
        };
        [
            self.packet(syn(Side::Client, client, 0, SYN)),
            self.packet(syn(Side::Server, server, client.wrapping_add(1), SYN | ACK)),
            self.packet(Segment {
                options: &[],
                ..syn(Side::Client, client.wrapping_add(1), server.wrapping_add(1), ACK)
            }),
        ]
    }

    /// Returns the packets with bytes of one side, which begin at this position.
    pub fn data(&mut self, from: Side, position: u64, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut packets = Vec::with_capacity(segments(bytes.len()));
        let mut at = position;
        for payload in bytes.chunks(PAYLOAD_BYTES_MAX) {
            packets.push(self.packet(self.segment(from, at, PSH | ACK, payload)));
            at += payload.len() as u64;
        }
        let direction = self.direction_mut(from);
        direction.next = direction.next.max(at);
        packets
    }

    /// Returns the packets that end the connection; `sent` are the positions after the last byte,
    /// first that of the client.
    #[must_use]
    pub fn end(mut self, end: StreamEnd, sent: [u64; 2]) -> Vec<Vec<u8>> {
        self.client.next = self.client.next.max(sent[0]);
        self.server.next = self.server.next.max(sent[1]);
        let [client, server] = [self.client.next, self.server.next];
        match end {
            StreamEnd::Orderly => {
                let first = self.packet(self.segment(Side::Client, client, FIN | ACK, &[]));
                // A FIN occupies a sequence number, like a byte.
                self.client.next += 1;
                let second = self.packet(self.segment(Side::Server, server, FIN | ACK, &[]));
                self.server.next += 1;
                let last = self.packet(self.segment(Side::Client, client + 1, ACK, &[]));
                vec![first, second, last]
            }
            StreamEnd::Reset(side) => {
                let position = self.direction(side).next;
                vec![self.packet(self.segment(side, position, RST | ACK, &[]))]
            }
        }
    }

    fn segment<'a>(&self, from: Side, position: u64, flags: u8, payload: &'a [u8]) -> Segment<'a> {
        let other = self.direction(from.other());
        Segment {
            from,
            sequence: self.direction(from).sequence(position),
            acknowledges: other.sequence(other.next),
            flags,
            options: &[],
            payload,
        }
    }

    fn packet(&self, segment: Segment<'_>) -> Vec<u8> {
        let from = self.direction(segment.from).from;
        let to = self.direction(segment.from.other()).from;
        let header_bytes = TCP_HEADER_BYTES + segment.options.len();
        let mut tcp = Vec::with_capacity(header_bytes + segment.payload.len());
        tcp.extend_from_slice(&from.port().to_be_bytes());
        tcp.extend_from_slice(&to.port().to_be_bytes());
        tcp.extend_from_slice(&segment.sequence.to_be_bytes());
        tcp.extend_from_slice(&segment.acknowledges.to_be_bytes());
        let words = u8::try_from(header_bytes / 4).unwrap_or_default();
        tcp.extend_from_slice(&[words << 4, segment.flags]);
        tcp.extend_from_slice(&WINDOW);
        tcp.extend_from_slice(&[0; 4]);
        tcp.extend_from_slice(segment.options);
        tcp.extend_from_slice(segment.payload);
        let pseudo = pseudo_header(TCP, from.ip(), to.ip(), tcp.len());
        fill_checksum(&mut tcp, CHECKSUM_AT, pseudo);
        let mut packet = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => header_v4(TCP, tcp.len(), from, to),
            (IpAddr::V6(from), IpAddr::V6(to)) => header_v6(TCP, tcp.len(), from, to),
            // `one_family` never returns such a pair.
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => Vec::new(),
        };
        packet.append(&mut tcp);
        packet
    }

    fn direction(&self, of: Side) -> &Direction {
        match of {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    fn direction_mut(&mut self, of: Side) -> &mut Direction {
        match of {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }
}

/// Spreads the initial sequence numbers of streams. A reader would take a SYN with the same number
/// as an earlier one for a repetition.
const INITIAL_STEP: u32 = 0x9e37_79b1;
/// Makes the server's initial number differ from the client's.
const INITIAL_OTHER: u32 = 0x5bd1_e995;

/// Returns the number of segments for this number of bytes.
#[must_use]
pub fn segments(bytes: usize) -> usize {
    bytes.div_ceil(PAYLOAD_BYTES_MAX)
}

/// Returns both addresses in one family, because a packet has only one.
fn one_family(client: SocketAddr, server: SocketAddr) -> [SocketAddr; 2] {
    let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
    let both = [client, server].map(canonical);
    if both[0].is_ipv4() == both[1].is_ipv4() {
        return both;
    }
    both.map(|at| match at.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), at.port()),
        IpAddr::V6(_) => at,
    })
}
