//! PROXY protocol, version 2: who the client of a proxied connection really is.
//!
//! A proxy that opens a connection for a client says so in a header before the first byte of the
//! client's own. The format is HAProxy's `proxy-protocol.txt`, section 2.2:
//!
//! ```text
//!  0          12        13          14      16
//!  +----------+---------+-----------+-------+-------------------+------+
//!  | magic    | version | family    | bytes | addresses:        | TLVs |
//!  | 12 bytes | command | transport | below | 0, 12, 36 or 216  |      |
//!  +----------+---------+-----------+-------+-------------------+------+
//! ```
//!
//! [`parse`] takes what has arrived so far and can be called again with more. It refuses at the
//! first byte that cannot belong to a header, so a client that speaks something else is never
//! waited for; all there is left to wait for is the rest of a header, which is bounded by
//! [`HEADER_BYTES_MAX`] and whose time is the caller's to bound.
//!
//! A header is a claim by whoever sent it. Only a rule that asks for one may believe it, and only
//! proxies should be able to reach such a rule.
//!
//! Not done here: version 1 (recognised, and refused by name); the meaning of TLVs (checked to lie
//! within the header, then skipped, the checksum too: the transport below is reliable).

use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::flow::Address;

/// Longest header accepted, addresses and TLVs included. Proxies send some hundred bytes; the one
/// long thing a TLV may carry is a client's certificate name or a token.
pub const HEADER_BYTES_MAX: usize = FIXED_BYTES + 4096;

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Header {
    /// The proxy speaks for itself, as in a health check: the connection's own addresses count.
    Local,
    /// The proxy speaks for a client.
    Proxy {
        /// The client.
        source: Address,
        /// Where the client connected to.
        destination: Address,
    },
}

/// Why a header was refused, or cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyError {
    /// The peer sent something else.
    NotProxy {
        /// Which byte told, from 0.
        offset: usize,
        /// That byte.
        byte: u8,
    },
    /// The peer sent a version 1 header, which is text.
    Version1,
    /// The peer sent a version other than 2.
    Version(u8),
    /// The peer sent a command other than LOCAL and PROXY.
    Command(u8),
    /// The peer sent a family and transport that are not defined.
    Family(u8),
    /// The peer sent PROXY without a client address.
    ClientUnknown,
    /// The peer announced more than [`HEADER_BYTES_MAX`].
    TooLong {
        /// Bytes of the whole header.
        announced: usize,
    },
    /// The peer announced fewer bytes than the addresses take.
    AddressesCut {
        /// Bytes announced after the fixed part.
        announced: usize,
        /// Bytes the family needs there.
        needed: usize,
    },
    /// The peer sent a TLV that reaches beyond the header.
    TlvCut {
        /// Where it starts, from 0.
        offset: usize,
    },
    /// The peer sent an abstract UNIX name that is not UTF-8.
    AbstractName,
    /// Ours to send: one address is a UNIX socket, the other is not.
    MixedFamilies,
    /// Ours to send: a UNIX name longer than a socket address holds.
    NameTooLong {
        /// Its bytes.
        bytes: usize,
    },
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotProxy { offset, byte } => write!(
                f,
                "peer sent no PROXY protocol header (byte {offset} is {byte:#04x}): let only \
                 proxies that send version 2 reach this rule, or do not ask for a header here"
            ),
            Self::Version1 => f.write_str(
                "peer sent a PROXY protocol version 1 header: have it send version 2 \
                 (HAProxy: `send-proxy-v2`)",
            ),
            Self::Version(version) => write!(
                f,
                "peer sent a PROXY protocol header of version {version}: have it send version 2"
            ),
            Self::Command(command) => write!(
                f,
                "peer sent PROXY protocol command {command}, which is not defined: only LOCAL (0) \
                 and PROXY (1) are"
            ),
            Self::Family(byte) => write!(
                f,
                "peer sent PROXY protocol family and transport {byte:#04x}, which is not defined"
            ),
            Self::ClientUnknown => f.write_str(
                "peer sent a PROXY protocol header without the client's address: have it name \
                 the client, or send LOCAL if it speaks for itself",
            ),
            Self::TooLong { announced } => write!(
                f,
                "peer announced a PROXY protocol header of {announced} bytes, the limit is \
                 {HEADER_BYTES_MAX}: have it send fewer or shorter TLVs"
            ),
            Self::AddressesCut { announced, needed } => write!(
                f,
                "peer announced a PROXY protocol header with {announced} bytes of addresses, its \
                 family needs {needed}"
            ),
            Self::TlvCut { offset } => write!(
                f,
                "peer sent a PROXY protocol header whose TLV at byte {offset} reaches beyond it"
            ),
            Self::AbstractName => f.write_str(
                "peer sent a PROXY protocol header with an abstract UNIX name that is not UTF-8",
            ),
            Self::MixedFamilies => f.write_str(
                "no PROXY protocol header can be sent: one end is a UNIX socket, the other is not",
            ),
            Self::NameTooLong { bytes } => write!(
                f,
                "no PROXY protocol header can be sent: a UNIX socket name of {bytes} bytes, the \
                 limit is {UNIX_BYTES}"
            ),
        }
    }
}

impl std::error::Error for ProxyError {}

/// Reads a header from the start of `bytes`, and how many bytes it takes there.
///
/// `None`: right so far, but not all of it has arrived.
///
/// # Errors
/// Where no continuation of `bytes` can make a header; the connection must then be closed.
pub fn parse(bytes: &[u8]) -> Result<Option<(Header, usize)>, ProxyError> {
    check_magic(bytes)?;
    let Some(command) = bytes.get(12).copied().map(Command::parse).transpose()? else {
        return Ok(None);
    };
    let Some(&family) = bytes.get(13) else { return Ok(None) };
    let layout = match command {
        Command::Local => None,
        Command::Proxy => Some(Layout::parse(family)?),
    };
    let Some(&[high, low]) = bytes.get(14..FIXED_BYTES) else { return Ok(None) };
    let announced = usize::from(u16::from_be_bytes([high, low]));
    let total = FIXED_BYTES + announced;
    if total > HEADER_BYTES_MAX {
        return Err(ProxyError::TooLong { announced: total });
    }
    // LOCAL: the format says to discard the rest unread, whatever family it names.
    let needed = layout.map_or(0, Layout::bytes);
    if announced < needed {
        return Err(ProxyError::AddressesCut { announced, needed });
    }
    let Some(body) = bytes.get(FIXED_BYTES..total) else { return Ok(None) };
    let Some(layout) = layout else { return Ok(Some((Header::Local, total))) };
    let (addresses, tlvs) = body.split_at(needed);
    check_tlvs(tlvs, FIXED_BYTES + needed)?;
    let (source, destination) = layout.addresses(addresses)?;
    Ok(Some((Header::Proxy { source, destination }, total)))
}

/// Appends a header to `out`.
///
/// IPv4-mapped addresses are written as IPv4; where one end is IPv4 and the other IPv6, the IPv4
/// one is written mapped. Scope and flow label of an IPv6 address have no place in the format.
///
/// # Errors
/// [`ProxyError::MixedFamilies`] and [`ProxyError::NameTooLong`]; `out` is then as it was.
pub fn encode(header: &Header, out: &mut Vec<u8>) -> Result<(), ProxyError> {
    let Header::Proxy { source, destination } = header else {
        put_fixed(out, COMMAND_LOCAL, FAMILY_UNSPEC, 0);
        return Ok(());
    };
    match (source, destination) {
        (Address::Inet(source), Address::Inet(destination)) => {
            put_inet(out, *source, *destination);
            Ok(())
        }
        (Address::Inet(_), _) | (_, Address::Inet(_)) => Err(ProxyError::MixedFamilies),
        (source, destination) => {
            let (source, destination) = (unix_bytes(source)?, unix_bytes(destination)?);
            put_fixed(out, COMMAND_PROXY, FAMILY_UNIX_STREAM, LAYOUT_UNIX_BYTES);
            out.extend_from_slice(&source);
            out.extend_from_slice(&destination);
            Ok(())
        }
    }
}

/// What a command asks for.
#[derive(Clone, Copy)]
enum Command {
    Local,
    Proxy,
}

impl Command {
    fn parse(byte: u8) -> Result<Self, ProxyError> {
        match (byte >> 4, byte & 0x0f) {
            (2, COMMAND_LOCAL) => Ok(Self::Local),
            (2, COMMAND_PROXY) => Ok(Self::Proxy),
            (2, command) => Err(ProxyError::Command(command)),
            (version, _) => Err(ProxyError::Version(version)),
        }
    }
}

/// How the addresses lie in the header.
#[derive(Clone, Copy)]
enum Layout {
    Inet,
    Inet6,
    Unix,
}

impl Layout {
    /// Datagram transports are right too: the client may have come to the proxy over QUIC, and
    /// only its address matters.
    fn parse(byte: u8) -> Result<Self, ProxyError> {
        match (byte >> 4, byte & 0x0f) {
            (0, 0) => Err(ProxyError::ClientUnknown),
            (1, 1 | 2) => Ok(Self::Inet),
            (2, 1 | 2) => Ok(Self::Inet6),
            (3, 1 | 2) => Ok(Self::Unix),
            _ => Err(ProxyError::Family(byte)),
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Inet => usize::from(LAYOUT_INET_BYTES),
            Self::Inet6 => usize::from(LAYOUT_INET6_BYTES),
            Self::Unix => usize::from(LAYOUT_UNIX_BYTES),
        }
    }

    /// Reads source and destination from [`Self::bytes`] bytes.
    fn addresses(self, bytes: &[u8]) -> Result<(Address, Address), ProxyError> {
        let mut input = Input(bytes);
        Ok(match self {
            Self::Inet => {
                let ips = (Ipv4Addr::from(input.take::<4>()?), Ipv4Addr::from(input.take::<4>()?));
                (input.with_port(ips.0.into())?, input.with_port(ips.1.into())?)
            }
            Self::Inet6 => {
                let ips =
                    (Ipv6Addr::from(input.take::<16>()?), Ipv6Addr::from(input.take::<16>()?));
                (input.with_port(ips.0.into())?, input.with_port(ips.1.into())?)
            }
            Self::Unix => (unix_address(&input.take()?)?, unix_address(&input.take()?)?),
        })
    }
}

/// The address block, read from its front.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], ProxyError> {
        let cut = ProxyError::AddressesCut { announced: self.0.len(), needed: N };
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(cut)?;
        self.0 = rest;
        Ok(*first)
    }

    /// `ip`, in its one canonical form, with the port that comes next.
    fn with_port(&mut self, ip: IpAddr) -> Result<Address, ProxyError> {
        let port = u16::from_be_bytes(self.take()?);
        Ok(Address::Inet(SocketAddr::new(ip.to_canonical(), port)))
    }
}

fn check_magic(bytes: &[u8]) -> Result<(), ProxyError> {
    if bytes.starts_with(MAGIC_VERSION_1) {
        return Err(ProxyError::Version1);
    }
    let mut pairs = bytes.iter().zip(MAGIC).enumerate();
    match pairs.find(|(_, (byte, magic))| byte != magic) {
        Some((offset, (&byte, _))) => Err(ProxyError::NotProxy { offset, byte }),
        None => Ok(()),
    }
}

/// Walks the TLVs (type, two bytes of length, value); they must fill `rest` exactly.
fn check_tlvs(mut rest: &[u8], mut offset: usize) -> Result<(), ProxyError> {
    while !rest.is_empty() {
        let cut = ProxyError::TlvCut { offset };
        let Some((&[_, high, low], after)) = rest.split_first_chunk::<3>() else {
            return Err(cut);
        };
        let bytes = usize::from(u16::from_be_bytes([high, low]));
        rest = after.get(bytes..).ok_or(cut)?;
        offset += 3 + bytes;
    }
    Ok(())
}

/// A socket name as the kernel's `sun_path` has it: path up to a NUL, or NUL and abstract name.
/// The format carries no length, so NULs that end an abstract name are taken for padding.
fn unix_address(bytes: &[u8; UNIX_BYTES]) -> Result<Address, ProxyError> {
    if let Some(name) = bytes.strip_prefix(&[0]) {
        let end = name.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        return match name.get(..end) {
            None | Some([]) => Ok(Address::Unnamed),
            Some(name) => match std::str::from_utf8(name) {
                Ok(name) => Ok(Address::Abstract(name.to_owned())),
                Err(_) => Err(ProxyError::AbstractName),
            },
        };
    }
    let path = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(Address::Path(PathBuf::from(OsStr::from_bytes(path))))
}

/// The reverse of [`unix_address`]. An IP address has no such form and cannot get here.
fn unix_bytes(address: &Address) -> Result<[u8; UNIX_BYTES], ProxyError> {
    let (start, name) = match address {
        Address::Path(path) => (0, path.as_os_str().as_bytes()),
        Address::Abstract(name) => (1, name.as_bytes()),
        Address::Unnamed => (0, &[][..]),
        Address::Inet(_) => return Err(ProxyError::MixedFamilies),
    };
    let mut bytes = [0; UNIX_BYTES];
    bytes
        .get_mut(start..start + name.len())
        .ok_or(ProxyError::NameTooLong { bytes: start + name.len() })?
        .copy_from_slice(name);
    Ok(bytes)
}

fn put_inet(out: &mut Vec<u8>, source: SocketAddr, destination: SocketAddr) {
    match (source.ip().to_canonical(), destination.ip().to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            put_fixed(out, COMMAND_PROXY, FAMILY_INET_STREAM, LAYOUT_INET_BYTES);
            out.extend_from_slice(&source.octets());
            out.extend_from_slice(&destination.octets());
        }
        (source, destination) => {
            put_fixed(out, COMMAND_PROXY, FAMILY_INET6_STREAM, LAYOUT_INET6_BYTES);
            out.extend_from_slice(&mapped(source).octets());
            out.extend_from_slice(&mapped(destination).octets());
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

fn put_fixed(out: &mut Vec<u8>, command: u8, family: u8, bytes: u16) {
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[VERSION_2 | command, family]);
    out.extend_from_slice(&bytes.to_be_bytes());
}

/// Chosen by its authors to be invalid in every other protocol they knew.
const MAGIC: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const MAGIC_VERSION_1: &[u8] = b"PROXY";
const VERSION_2: u8 = 0x20;
const COMMAND_LOCAL: u8 = 0;
const COMMAND_PROXY: u8 = 1;
const FAMILY_UNSPEC: u8 = 0x00;
const FAMILY_INET_STREAM: u8 = 0x11;
const FAMILY_INET6_STREAM: u8 = 0x21;
const FAMILY_UNIX_STREAM: u8 = 0x31;
/// Bytes before the addresses.
const FIXED_BYTES: usize = 16;
/// Bytes of a UNIX socket name in the format, as on Linux.
const UNIX_BYTES: usize = 108;
const LAYOUT_INET_BYTES: u16 = 12;
const LAYOUT_INET6_BYTES: u16 = 36;
const LAYOUT_UNIX_BYTES: u16 = 216;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(header: &Header) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(header, &mut bytes).unwrap();
        bytes
    }

    fn proxy(source: &str, destination: &str) -> Header {
        Header::Proxy { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
    }

    /// A header with `family`, `body` and the length that `body` has.
    fn raw(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_fixed(&mut bytes, command, family, u16::try_from(body.len()).unwrap());
        bytes.extend_from_slice(body);
        bytes
    }

    /// Bytes written out by hand from the format's text, so that `parse` and `encode` cannot
    /// agree on the same mistake.
    #[test]
    fn ipv4_header_has_the_bytes_of_the_format() {
        let bytes = [
            0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a, 0x21, 0x11, 0,
            12, 192, 0, 2, 1, 198, 51, 100, 7, 0xc0, 0x01, 0x01, 0xbb,
        ];
        let header = proxy("192.0.2.1:49153", "198.51.100.7:443");
        assert_eq!(encoded(&header), bytes);
        assert_eq!(parse(&bytes), Ok(Some((header, 28))));
    }

    #[test]
    fn local_ignores_what_follows_and_consumes_it() {
        for family in [0x00, 0x11, 0xff] {
            let mut bytes = raw(COMMAND_LOCAL, family, &[0xee; 30]);
            bytes.extend_from_slice(b"client data");
            assert_eq!(parse(&bytes), Ok(Some((Header::Local, 46))));
        }
    }

    #[test]
    fn mixed_families_travel_mapped_and_arrive_as_they_were() {
        let header = proxy("192.0.2.1:1000", "[2001:db8::2]:443");
        let bytes = encoded(&header);
        assert_eq!(bytes[13], FAMILY_INET6_STREAM);
        assert_eq!(
            bytes[16..32],
            "192.0.2.1".parse::<Ipv4Addr>().unwrap().to_ipv6_mapped().octets()
        );
        assert_eq!(parse(&bytes).unwrap().unwrap().0, header);
        let both_mapped = proxy("[::ffff:192.0.2.1]:1000", "[::ffff:192.0.2.2]:443");
        assert_eq!(encoded(&both_mapped)[13], FAMILY_INET_STREAM);
    }

    #[test]
    fn what_cannot_be_expressed_is_refused_and_nothing_written() {
        let mut out = b"before".to_vec();
        let mixed = proxy("unix:/run/x.sock", "192.0.2.1:1");
        assert_eq!(encode(&mixed, &mut out), Err(ProxyError::MixedFamilies));
        let long = proxy("unix:", &format!("unix:/{}", "x".repeat(108)));
        assert_eq!(encode(&long, &mut out), Err(ProxyError::NameTooLong { bytes: 109 }));
        let long = proxy("unix:", &format!("unix:@{}", "x".repeat(108)));
        assert_eq!(encode(&long, &mut out), Err(ProxyError::NameTooLong { bytes: 109 }));
        assert_eq!(out, b"before");
    }

    #[test]
    fn other_protocols_are_refused_at_their_first_byte() {
        for (spoken, byte) in
            [(&b"GET / HTTP/1.1"[..], b'G'), (b"\x16\x03\x01", 0x16), (b"P", b'P')]
        {
            assert_eq!(parse(spoken), Err(ProxyError::NotProxy { offset: 0, byte }));
        }
        assert_eq!(parse(b"\r\n\r\nHELO"), Err(ProxyError::NotProxy { offset: 4, byte: b'H' }));
        assert_eq!(parse(b"PROXY TCP4 192.0.2.1"), Err(ProxyError::Version1));
    }

    #[test]
    fn illegal_headers_are_refused_by_their_own_name() {
        let mut version_3 = raw(0, 0, &[]);
        version_3[12] = 0x30;
        assert_eq!(parse(&version_3), Err(ProxyError::Version(3)));
        assert_eq!(parse(&raw(2, 0x11, &[0; 12])), Err(ProxyError::Command(2)));
        assert_eq!(parse(&raw(1, 0x00, &[])), Err(ProxyError::ClientUnknown));
        for family in [0x10, 0x13, 0x01, 0x41, 0xff] {
            assert_eq!(parse(&raw(1, family, &[0; 216])), Err(ProxyError::Family(family)));
        }
        for (family, needed) in [(0x11, 12), (0x22, 36), (0x31, 216)] {
            let announced = needed - 1;
            assert_eq!(
                parse(&raw(1, family, &vec![0; announced])[..16]),
                Err(ProxyError::AddressesCut { announced, needed }),
                "refused before the addresses arrive"
            );
        }
    }

    #[test]
    fn length_limit_is_exact_and_applies_before_the_bytes_arrive() {
        let longest = raw(0, 0, &[0; HEADER_BYTES_MAX - FIXED_BYTES]);
        assert_eq!(parse(&longest), Ok(Some((Header::Local, HEADER_BYTES_MAX))));
        let announced = HEADER_BYTES_MAX + 1;
        let longer = raw(0, 0, &[0; HEADER_BYTES_MAX - FIXED_BYTES + 1]);
        assert_eq!(parse(&longer[..16]), Err(ProxyError::TooLong { announced }));
    }

    #[test]
    fn tlvs_are_skipped_and_must_end_with_the_header() {
        let header = proxy("192.0.2.1:1", "192.0.2.2:2");
        let addresses = &encoded(&header)[16..];
        let with = |tlvs: &[u8]| parse(&raw(1, 0x11, &[addresses, tlvs].concat()));
        assert_eq!(with(&[4, 0, 1, 0, 0x20, 0, 0]), Ok(Some((header, 35))));
        for cut in [&[4][..], &[4, 0], &[4, 0, 1], &[4, 0xff, 0xff, 0]] {
            assert_eq!(with(cut), Err(ProxyError::TlvCut { offset: 28 }));
        }
        assert_eq!(with(&[4, 0, 0, 9]), Err(ProxyError::TlvCut { offset: 31 }));
    }

    #[test]
    fn unix_names_of_full_length_and_of_no_text() {
        let full = format!("unix:/{}", "x".repeat(107));
        let header = proxy(&full, "unix:");
        assert_eq!(parse(&encoded(&header)), Ok(Some((header, 232))));
        let mut body = [0; 216];
        body[1] = 0xff;
        assert_eq!(parse(&raw(1, 0x31, &body)), Err(ProxyError::AbstractName));
    }

    fn ip() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<[u8; 4]>().prop_map(IpAddr::from),
            any::<[u8; 16]>().prop_map(|octets| IpAddr::from(octets).to_canonical()),
        ]
    }

    fn inet() -> impl Strategy<Value = Address> {
        (ip(), any::<u16>()).prop_map(|(ip, port)| Address::Inet(SocketAddr::new(ip, port)))
    }

    fn unix() -> impl Strategy<Value = Address> {
        prop_oneof![
            Just(Address::Unnamed),
            "/[^\\x00]{0,26}".prop_map(|path| Address::Path(path.into())),
            "[^\\x00]{1,26}".prop_map(Address::Abstract),
        ]
    }

    fn header() -> impl Strategy<Value = Header> {
        let proxied = |(source, destination)| Header::Proxy { source, destination };
        prop_oneof![
            Just(Header::Local),
            (inet(), inet()).prop_map(proxied),
            (unix(), unix()).prop_map(proxied),
        ]
    }

    proptest! {
        #[test]
        fn round_trip_at_every_split(header in header(), after in any::<[u8; 3]>()) {
            let mut bytes = encoded(&header);
            let length = bytes.len();
            bytes.extend_from_slice(&after);
            for end in 0..length {
                prop_assert_eq!(parse(&bytes[..end]), Ok(None));
            }
            for end in length..=bytes.len() {
                prop_assert_eq!(parse(&bytes[..end]), Ok(Some((header.clone(), length))));
            }
        }

        /// Whatever arrives: no panic, a verdict never changes as more arrives, and no more than
        /// the limit is ever waited for.
        #[test]
        fn arbitrary_bytes_get_one_lasting_verdict(
            magic in 0..=MAGIC.len(),
            tail in proptest::collection::vec(any::<u8>(), 0..300),
            plausible in any::<bool>(),
        ) {
            let mut bytes = MAGIC[..magic].to_vec();
            bytes.extend_from_slice(&tail);
            if plausible && bytes.len() > 15 {
                bytes[12] = 0x20 | (bytes[12] & 1);
                bytes[13] = ((bytes[13] % 3 + 1) << 4) | 1;
                bytes[14] = 0;
            }
            let mut settled = None;
            for end in 0..=bytes.len() {
                match (&settled, parse(&bytes[..end])) {
                    (Some(before), now) => prop_assert_eq!(before, &now),
                    (_, Ok(None)) => prop_assert!(end < HEADER_BYTES_MAX),
                    (_, now) => settled = Some(now),
                }
            }
        }
    }
}
