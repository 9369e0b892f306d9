//! Parses and writes PROXY protocol headers, version 2. A proxy sends this header before the
//! client's data, to report the client's address.
//!
//! HAProxy's `proxy-protocol.txt`, section 2.2, defines the format:
//!
//! ```text
//! at byte   field
//!    0      a constant that marks the header (12 bytes)
//!   12      version and command
//!   13      address family and transport protocol
//!   14      number of bytes that follow (2 bytes)
//!   16      addresses (0, 12, 36 or 216 bytes), then TLVs (optional fields)
//! ```
//!
//! [`parse`] fails at the first byte that cannot belong to a header. So a client without a header
//! is rejected at once. A header has at most [`HEADER_BYTES_MAX`] bytes. The caller limits the time
//! until a header is complete.
//!
//! A header is not authenticated. Only rules with `accept-proxy` trust the header. So only proxies
//! should be able to connect to the listeners of these rules.
//!
//! Version 1 is rejected. The contents of TLVs are not read.

use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::flow::Address;

mod tls;

pub use tls::{ClientVerification, ProxyTls, VALUE_BYTES_MAX};

/// The longest accepted header, including addresses and TLVs. Most proxies send a few hundred
/// bytes; only a certificate name or a token in a TLV is long.
pub const HEADER_BYTES_MAX: usize = FIXED_BYTES + 4096;

/// The contents of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// LOCAL: the proxy itself has opened the connection, for example as a health check. Use the
    /// connection's own addresses.
    Local,
    /// PROXY: the connection is from a client of the proxy.
    Proxy {
        /// The client.
        source: Address,
        /// The address to which the client connected.
        destination: Address,
    },
}

/// The reason why a header was rejected or cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyError {
    /// The peer sent something that is not a PROXY header.
    NotProxy {
        /// The offset of the wrong byte, from 0.
        offset: usize,
        /// The byte.
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
        /// The length of the complete header.
        announced: usize,
    },
    /// The peer announced fewer bytes than the addresses need.
    AddressesCut {
        /// The number of bytes announced after the fixed part.
        announced: usize,
        /// The number of bytes that the family needs there.
        needed: usize,
    },
    /// The peer sent a TLV that extends beyond the header.
    TlvCut {
        /// The offset at which the TLV begins, from 0.
        offset: usize,
    },
    /// The peer sent the name of an abstract UNIX socket that is not UTF-8.
    AbstractName,
    /// For headers to send: one address is a UNIX socket, and the other is not.
    MixedFamilies,
    /// For headers to send: a UNIX name is longer than a socket address can hold.
    NameTooLong {
        /// The length of the name in bytes.
        bytes: usize,
    },
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotProxy { offset, byte } => write!(
                f,
                "the peer sent no PROXY protocol header (byte {offset} is {byte:#04x}): allow \
                 connections only from proxies that send version 2, or remove `accept-proxy`"
            ),
            Self::Version1 => f.write_str(
                "the peer sent a PROXY protocol version 1 header: configure the peer to send \
                 version 2 (HAProxy: `send-proxy-v2`)",
            ),
            Self::Version(version) => write!(
                f,
                "the peer sent a PROXY protocol header of version {version}: configure the peer to \
                 send version 2"
            ),
            Self::Command(command) => write!(
                f,
                "the peer sent a PROXY protocol header with the unknown command {command}: \
                 configure the peer to send LOCAL (0) or PROXY (1)"
            ),
            Self::Family(byte) => write!(
                f,
                "the peer sent a PROXY protocol header with the unknown value {byte:#04x} for \
                 the address family and the transport protocol: configure the peer to send the \
                 address of a TCP or UNIX client"
            ),
            Self::ClientUnknown => f.write_str(
                "the peer sent a PROXY protocol header without the client's address: configure the \
                 peer to send the address, or the command LOCAL if the peer itself is the client",
            ),
            Self::TooLong { announced } => write!(
                f,
                "the peer announced a PROXY protocol header of {announced} bytes; the limit is \
                 {HEADER_BYTES_MAX}: configure the peer to send fewer or shorter TLVs"
            ),
            Self::AddressesCut { announced, needed } => write!(
                f,
                "the peer announced a PROXY protocol header with {announced} bytes of addresses, \
                 but the address family needs {needed} bytes"
            ),
            Self::TlvCut { offset } => write!(
                f,
                "the peer sent an invalid PROXY protocol header: the TLV at byte {offset} is \
                 longer than the rest of the header"
            ),
            Self::AbstractName => f.write_str(
                "the peer sent a PROXY protocol header with an abstract UNIX socket address, and \
                 the name in this address is not UTF-8: tacit supports only UTF-8 names",
            ),
            Self::MixedFamilies => f.write_str(
                "cannot send a PROXY protocol header: the client's address and the address to \
                 which the client connected must both be IP addresses, or both be UNIX sockets",
            ),
            Self::NameTooLong { bytes } => write!(
                f,
                "cannot send a PROXY protocol header, because the path or name of the UNIX socket \
                 has {bytes} bytes, and the limit is {UNIX_BYTES}: use a shorter path or name"
            ),
        }
    }
}

impl std::error::Error for ProxyError {}

/// A header at the beginning of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedHeader {
    /// Its contents.
    pub header: ProxyHeader,
    /// Its length in bytes.
    pub consumed: usize,
}

/// Parses a header at the beginning of `bytes`.
///
/// `None`: the bytes are valid so far, but incomplete.
///
/// # Errors
/// The bytes cannot be the beginning of a header. The caller must close the connection.
pub fn parse(bytes: &[u8]) -> Result<Option<ParsedHeader>, ProxyError> {
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
    // LOCAL: the specification requires readers to ignore the rest, whatever the family is.
    let needed = layout.map_or(0, Layout::bytes);
    if announced < needed {
        return Err(ProxyError::AddressesCut { announced, needed });
    }
    let Some(body) = bytes.get(FIXED_BYTES..total) else { return Ok(None) };
    let Some(layout) = layout else {
        return Ok(Some(ParsedHeader { header: ProxyHeader::Local, consumed: total }));
    };
    let (addresses, tlvs) = body.split_at(needed);
    check_tlvs(tlvs, FIXED_BYTES + needed)?;
    Ok(Some(ParsedHeader { header: layout.header(addresses)?, consumed: total }))
}

/// Appends a header to `out`.
///
/// IPv4-mapped addresses are written as IPv4. If one end is IPv4 and the other IPv6, the IPv4
/// address is written in mapped form. The format does not contain the scope and flow label of an
/// IPv6 address.
///
/// # Errors
/// [`ProxyError::MixedFamilies`] and [`ProxyError::NameTooLong`]. Then `out` is unchanged.
pub fn encode(header: &ProxyHeader, out: &mut Vec<u8>) -> Result<(), ProxyError> {
    let ProxyHeader::Proxy { source, destination } = header else {
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
            let source = unix_bytes(source)?;
            let destination = unix_bytes(destination)?;
            put_fixed(out, COMMAND_PROXY, FAMILY_UNIX_STREAM, LAYOUT_UNIX_BYTES);
            out.extend_from_slice(&source);
            out.extend_from_slice(&destination);
            Ok(())
        }
    }
}

/// Appends a header with the client's TLS parameters.
///
/// # Errors
/// The same as [`encode`].
pub fn encode_with_tls(
    header: &ProxyHeader,
    tls: &ProxyTls,
    out: &mut Vec<u8>,
) -> Result<(), ProxyError> {
    let mut whole = Vec::new();
    encode(header, &mut whole)?;
    tls.put(&mut whole);
    let announced = whole.len() - FIXED_BYTES;
    // INVARIANT: addresses and five bounded texts are far from the limit.
    let announced = u16::try_from(announced).unwrap_or(u16::MAX);
    if let Some(place) = whole.get_mut(FIXED_BYTES - 2..FIXED_BYTES) {
        place.copy_from_slice(&announced.to_be_bytes());
    }
    out.append(&mut whole);
    Ok(())
}

/// The command.
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

/// The format of the addresses in the header.
#[derive(Clone, Copy)]
enum Layout {
    Inet,
    Inet6,
    Unix,
}

impl Layout {
    /// Datagram transports are valid too: the client may use QUIC to the proxy, and only the
    /// client's address is used.
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

    /// Parses source and destination from [`Self::bytes`] bytes.
    fn header(self, bytes: &[u8]) -> Result<ProxyHeader, ProxyError> {
        let mut input = Input(bytes);
        match self {
            Self::Inet => {
                let source_ip = Ipv4Addr::from(input.take::<4>()?);
                let destination_ip = Ipv4Addr::from(input.take::<4>()?);
                input.with_ports(source_ip.into(), destination_ip.into())
            }
            Self::Inet6 => {
                let source_ip = Ipv6Addr::from(input.take::<16>()?);
                let destination_ip = Ipv6Addr::from(input.take::<16>()?);
                input.with_ports(source_ip.into(), destination_ip.into())
            }
            Self::Unix => {
                let source = unix_address(&input.take()?)?;
                let destination = unix_address(&input.take()?)?;
                Ok(ProxyHeader::Proxy { source, destination })
            }
        }
    }
}

/// The address block, which is parsed from its beginning.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], ProxyError> {
        let cut = ProxyError::AddressesCut { announced: self.0.len(), needed: N };
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(cut)?;
        self.0 = rest;
        Ok(*first)
    }

    /// Combines both ends with the two ports that follow.
    fn with_ports(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
    ) -> Result<ProxyHeader, ProxyError> {
        let source = self.with_port(source)?;
        let destination = self.with_port(destination)?;
        Ok(ProxyHeader::Proxy { source, destination })
    }

    /// Combines `ip`, in its canonical form, with the port that follows.
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

/// Checks the TLVs (type, two bytes of length, value). They must fill `rest` exactly.
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

/// Parses a socket name in the format of the kernel's `sun_path`: a path up to a NUL, or a NUL and
/// an abstract name. The format contains no length, so NULs at the end of an abstract name count as
/// padding.
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

/// The reverse of [`unix_address`]. Callers never pass an IP address, which has no such format.
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

/// The authors of the format chose these bytes because they are invalid in other protocols.
const MAGIC: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const MAGIC_VERSION_1: &[u8] = b"PROXY";
const VERSION_2: u8 = 0x20;
const COMMAND_LOCAL: u8 = 0;
const COMMAND_PROXY: u8 = 1;
const FAMILY_UNSPEC: u8 = 0x00;
const FAMILY_INET_STREAM: u8 = 0x11;
const FAMILY_INET6_STREAM: u8 = 0x21;
const FAMILY_UNIX_STREAM: u8 = 0x31;
/// The number of bytes before the addresses.
const FIXED_BYTES: usize = 16;
/// The size of a UNIX socket name in the format, which is the size on Linux.
const UNIX_BYTES: usize = 108;
const LAYOUT_INET_BYTES: u16 = 12;
const LAYOUT_INET6_BYTES: u16 = 36;
const LAYOUT_UNIX_BYTES: u16 = 216;

#[cfg(test)]
mod tests;
