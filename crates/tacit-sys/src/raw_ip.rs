//! Sends and receives ESP and AH directly in IP packets, without UDP, through raw sockets.
//!
//! ```text
//!            sent: bytes for the kernel         received: bytes for the caller
//! ESP        the ESP packet                     the IP packet
//! AH, IPv4   the IP packet                      the IP packet
//! AH, IPv6   the IP packet without its header   the IP packet
//! ```
//!
//! With IPv6, the kernel passes a received packet to this module without the IP header. So this
//! module writes the IP header, from what the kernel reports.
//!
//! To open a raw socket, a process needs `CAP_NET_RAW` in the network namespace. To use the open
//! socket, a process needs no capability. A socket receives all packets of its protocol for this
//! host. If a packet was fragmented, the kernel reassembles it first.
//!
//! Limits: the receive buffer of a socket has `RECEIVE_BUFFER_BYTES`. The IPv6 extension headers
//! before ESP or AH may have at most [`EXTENSION_BYTES_MAX`] bytes. A packet with longer headers is
//! reported as truncated.

use std::io;
use std::net::IpAddr;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{SocketFlags, SocketType, ipproto, sockopt};

use crate::datagram::enlarge_buffers;
use crate::datagram_batch::{Fragmentation, ReceiveQueue, path_mtu, set_fragmentation};
use crate::ip_version::IpVersion;
use crate::mark;
use crate::message::{self, ControlItem};
use crate::option::{self, OptionName, set_option};

/// The room that a received packet needs.
pub const ROOM_BYTES: usize = HEADROOM_BYTES + 65_535;
/// The longest IPv6 extension headers before ESP or AH.
pub const EXTENSION_BYTES_MAX: usize = 256;
/// The room for the IPv6 headers, which the kernel does not pass with the packet.
const HEADROOM_BYTES: usize = V6_HEADER_BYTES + EXTENSION_BYTES_MAX;
/// The room for packets that arrive in a burst, if the kernel allows it.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Room for the control messages of IPv6: address, traffic class and extension headers.
const CONTROL_BYTES: usize = 512;

/// The protocol of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RawProtocol {
    /// ESP: protocol 50.
    Esp,
    /// AH: protocol 51.
    Ah,
}

/// A non-blocking raw socket.
#[derive(Debug)]
pub struct RawSocket {
    socket: OwnedFd,
    protocol: RawProtocol,
    version: IpVersion,
}

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub struct RawPacket<'a> {
    /// The ESP packet, or the whole IP packet with AH.
    pub bytes: &'a [u8],
    /// The address of this host that sends it.
    pub from: IpAddr,
    /// The receiver.
    pub to: IpAddr,
    /// DSCP and ECN of the IP header.
    pub traffic_class: u8,
}

/// A received packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedRaw {
    /// Where the IP packet stands in the buffer.
    pub place: Range<usize>,
    /// Whether a part of it is missing.
    pub is_cut: bool,
}

impl RawSocket {
    /// Opens a socket for a protocol and the IP version of an address.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_RAW`, or another error of a system call.
    pub fn open(protocol: RawProtocol, address: IpAddr) -> io::Result<Self> {
        let version = IpVersion::of(address);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let number = match protocol {
            RawProtocol::Esp => ipproto::ESP,
            RawProtocol::Ah => ipproto::AH,
        };
        let family = version.address_family();
        let socket = rustix::net::socket_with(family, SocketType::RAW, flags, Some(number))?;
        mark::apply(socket.as_fd())?;
        enlarge_buffers(socket.as_fd())?;
        // Only a process with CAP_NET_ADMIN may exceed net.core.rmem_max.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES);
        let options: &[OptionName] = match (version, protocol) {
            (IpVersion::V4, RawProtocol::Esp) => &[],
            (IpVersion::V4, RawProtocol::Ah) => &[HEADER_INCLUDED],
            (IpVersion::V6, _) => &RECEIVE_V6,
        };
        options.iter().try_for_each(|option| set_option(socket.as_fd(), *option, 1))?;
        set_fragmentation(socket.as_fd(), version, Fragmentation::Forbidden)?;
        Ok(Self { socket, protocol, version })
    }

    /// Reports whether the socket is for a protocol and the IP version of an address.
    #[must_use]
    pub fn is_for(&self, protocol: RawProtocol, address: IpAddr) -> bool {
        self.protocol == protocol && self.version == IpVersion::of(address)
    }

    /// Returns the state of the receive queue.
    ///
    /// # Errors
    /// The error of `getsockopt`.
    pub fn receive_queue(&self) -> io::Result<ReceiveQueue> {
        Ok(ReceiveQueue::of(option::memory(self.as_fd())?))
    }

    /// Reports an error if a packet of this length exceeds the MTU of the path, and [`Self::send`]
    /// would not notice it.
    ///
    /// # Errors
    /// The packet is too long ([`is_too_big`](crate::datagram_batch::is_too_big)).
    pub fn check_path(&self, to: IpAddr, packet_bytes: usize) -> io::Result<()> {
        let is_unchecked = self.has_own_header() && packet_bytes > V4_PATH_BYTES_MIN;
        // Without a route, the error of `sendmsg` says more.
        if is_unchecked && path_mtu(to).is_ok_and(|mtu| packet_bytes > mtu) {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        Ok(())
    }

    /// Sends a packet. Waits for a short time if the socket's buffer is full.
    ///
    /// # Errors
    /// The packet exceeds the MTU of the path, or only that of the interface with AH and IPv4
    /// ([`is_too_big`](crate::datagram_batch::is_too_big)); or another error of `sendmsg`.
    pub fn send(&self, packet: &RawPacket<'_>) -> io::Result<()> {
        if self.has_own_header() {
            return self.send_call(packet, packet.bytes, &[]);
        }
        let payload = match self.protocol {
            RawProtocol::Esp => packet.bytes,
            RawProtocol::Ah => {
                packet.bytes.get(V6_HEADER_BYTES..).ok_or(io::ErrorKind::InvalidInput)?
            }
        };
        let class = libc::c_int::from(packet.traffic_class).to_ne_bytes();
        let (class_kind, source_kind) = match self.version {
            IpVersion::V4 => (CLASS_V4, SOURCE_V4),
            IpVersion::V6 => (CLASS_V6, SOURCE_V6),
        };
        let source = source_of(packet.from);
        let source = source.get(..source_bytes(packet.from)).unwrap_or_default();
        let items = [
            ControlItem { kind: class_kind, data: &class },
            ControlItem { kind: source_kind, data: source },
        ];
        self.send_call(packet, payload, &items)
    }

    /// Sends a packet that may exceed the MTU of the path, as fragments if it does.
    ///
    /// # Errors
    /// The error of `setsockopt` or `sendmsg`.
    pub fn send_fragmented(&self, packet: &RawPacket<'_>) -> io::Result<()> {
        if self.has_own_header() {
            let mtu = path_mtu(packet.to)?;
            let fragments = fragments_of(packet.bytes, mtu).ok_or(io::ErrorKind::InvalidInput)?;
            return fragments.iter().try_for_each(|one| self.send_call(packet, one, &[]));
        }
        set_fragmentation(self.as_fd(), self.version, Fragmentation::Allowed)?;
        let result = self.send(packet);
        set_fragmentation(self.as_fd(), self.version, Fragmentation::Forbidden)?;
        result
    }

    /// Receives a packet into a buffer of at least [`ROOM_BYTES`].
    ///
    /// # Errors
    /// `WouldBlock` if there is none, or another error of `recvmsg`.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<ReceivedRaw> {
        let too_short = || io::Error::from(io::ErrorKind::InvalidInput);
        if self.version == IpVersion::V4 {
            let received = message::receive(self.as_fd(), buffer, 0)?;
            let is_cut = received.flags & libc::MSG_TRUNC != 0;
            return Ok(ReceivedRaw { place: 0..received.bytes, is_cut });
        }
        let (headroom, rest) = buffer.split_at_mut_checked(HEADROOM_BYTES).ok_or_else(too_short)?;
        let received = message::receive_with::<CONTROL_BYTES>(self.as_fd(), rest, 0)?;
        let end = HEADROOM_BYTES + received.bytes;
        let is_cut = received.flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        let number = match self.protocol {
            RawProtocol::Esp => libc::IPPROTO_ESP,
            RawProtocol::Ah => libc::IPPROTO_AH,
        };
        let headers = V6Headers {
            source: received.source().map(|source| source.ip()),
            last: u8::try_from(number).unwrap_or(0),
            payload_bytes: received.bytes,
        };
        let start = headers.write(headroom, &received);
        Ok(ReceivedRaw {
            place: start.unwrap_or(HEADROOM_BYTES)..end,
            is_cut: is_cut || start.is_none(),
        })
    }

    /// Whether packets are sent with an IP header of the caller (`IP_HDRINCL`): the ICV of AH
    /// covers the identification in it, which the kernel would choose otherwise (raw(7)).
    fn has_own_header(&self) -> bool {
        self.version == IpVersion::V4 && self.protocol == RawProtocol::Ah
    }

    fn send_call(
        &self,
        packet: &RawPacket<'_>,
        payload: &[u8],
        items: &[ControlItem<'_>],
    ) -> io::Result<()> {
        message::send_waiting(self.as_fd(), payload, SocketAddr::new(packet.to, 0), items)
    }
}

impl AsFd for RawSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What the headers of a received IPv6 packet contain, besides control messages.
struct V6Headers {
    source: Option<IpAddr>,
    /// The protocol of the socket.
    last: u8,
    payload_bytes: usize,
}

impl V6Headers {
    /// Writes the headers to the end of the room before the payload. Returns where they begin;
    /// `None`: the kernel has not reported all of them. The flow label and the hop limit, which
    /// routers may change, are not known.
    fn write(
        &self,
        headroom: &mut [u8],
        received: &message::ReceivedMessage<CONTROL_BYTES>,
    ) -> Option<usize> {
        let mut destination = None;
        let mut class = [0; 4];
        let mut extensions = Vec::new();
        let mut first = None;
        for (kind, data) in received.items() {
            match kind {
                SOURCE_V6 => destination = data.first_chunk::<16>().copied(),
                CLASS_V6 => class = *data.first_chunk::<4>()?,
                // In the order of the packet. The first header is named only by its kind.
                HOP_BY_HOP | ROUTING | OPTIONS => {
                    first.get_or_insert(match kind {
                        HOP_BY_HOP => 0,
                        ROUTING => 43,
                        _ => 60,
                    });
                    extensions.extend_from_slice(data);
                }
                _ => {}
            }
        }
        let IpAddr::V6(source) = self.source? else { return None };
        let class = u8::try_from(i32::from_ne_bytes(class)).ok()?;
        let length = u16::try_from(extensions.len() + self.payload_bytes).ok()?.to_be_bytes();
        let start = headroom.len().checked_sub(V6_HEADER_BYTES + extensions.len())?;
        let room = headroom.get_mut(start..)?;
        let (header, rest) = room.split_at_mut_checked(V6_HEADER_BYTES)?;
        header[..4].copy_from_slice(&[0x60 | class >> 4, class << 4, 0, 0]);
        header[4..8].copy_from_slice(&[length[0], length[1], first.unwrap_or(self.last), HOPS]);
        header[8..24].copy_from_slice(&source.octets());
        header[24..].copy_from_slice(&destination?);
        rest.copy_from_slice(&extensions);
        Some(start)
    }
}

/// Divides an IPv4 packet without options into fragments (RFC 791 section 3.2); `None`: it cannot
/// be divided. The kernel writes lengths and checksums.
fn fragments_of(packet: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
    let (header, content) = packet.split_first_chunk::<V4_HEADER_BYTES>()?;
    let part_bytes = mtu.checked_sub(V4_HEADER_BYTES)? / 8 * 8;
    if part_bytes == 0 {
        return None;
    }
    let mut fragments = Vec::new();
    for (number, part) in content.chunks(part_bytes).enumerate() {
        let offset = u16::try_from(number * part_bytes / 8).ok()?;
        let is_last = (number + 1) * part_bytes >= content.len();
        let flags = if is_last { 0 } else { MORE_FRAGMENTS };
        let mut fragment = [&header[..], part].concat();
        fragment[6..8].copy_from_slice(&(flags | offset).to_be_bytes());
        fragments.push(fragment);
    }
    Some(fragments)
}

/// An `in_pktinfo` or `in6_pktinfo` that chooses the source of a packet.
fn source_of(address: IpAddr) -> [u8; 20] {
    let mut info = [0; 20];
    match address {
        // The index of the interface, the source, and the destination, which the kernel ignores.
        IpAddr::V4(address) => info[4..8].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => info[..16].copy_from_slice(&address.octets()),
    }
    info
}

fn source_bytes(address: IpAddr) -> usize {
    if address.is_ipv4() { 12 } else { 20 }
}

const fn v4(name: libc::c_int) -> OptionName {
    OptionName { level: libc::IPPROTO_IP, name }
}

const fn v6(name: libc::c_int) -> OptionName {
    OptionName { level: libc::IPPROTO_IPV6, name }
}

const HEADER_INCLUDED: OptionName = v4(libc::IP_HDRINCL);
const SOURCE_V4: OptionName = v4(libc::IP_PKTINFO);
const CLASS_V4: OptionName = v4(libc::IP_TOS);
/// For sent packets the source, for received ones the destination.
const SOURCE_V6: OptionName = v6(libc::IPV6_PKTINFO);
const CLASS_V6: OptionName = v6(libc::IPV6_TCLASS);
const HOP_BY_HOP: OptionName = v6(libc::IPV6_HOPOPTS);
const ROUTING: OptionName = v6(libc::IPV6_RTHDR);
const OPTIONS: OptionName = v6(libc::IPV6_DSTOPTS);
const RECEIVE_V6: [OptionName; 5] = [
    v6(libc::IPV6_RECVPKTINFO),
    v6(libc::IPV6_RECVTCLASS),
    v6(libc::IPV6_RECVHOPOPTS),
    v6(libc::IPV6_RECVRTHDR),
    v6(libc::IPV6_RECVDSTOPTS),
];
const V4_HEADER_BYTES: usize = 20;
const V6_HEADER_BYTES: usize = 40;
/// The smallest MTU of a path that the kernel learns by default (`net.ipv4.route.min_pmtu`).
const V4_PATH_BYTES_MIN: usize = 552;
/// The hop limit of received packets, whose real one is not known.
const HOPS: u8 = 64;
const MORE_FRAGMENTS: u16 = 0x2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_divided_at_multiples_of_eight_bytes() {
        let mut packet = vec![0x45; 20];
        packet[6] = 0x40;
        packet.extend((0..100).collect::<Vec<u8>>());
        let fragments = fragments_of(&packet, 64).unwrap();
        let offsets: Vec<_> =
            fragments.iter().map(|one| u16::from_be_bytes([one[6], one[7]])).collect();
        assert_eq!(offsets, [0x2000, 0x2000 | 5, 10]);
        let content: Vec<u8> = fragments.iter().flat_map(|one| one[20..].to_vec()).collect();
        assert_eq!(content, (0..100).collect::<Vec<u8>>());
        assert!(fragments.iter().all(|one| one.len() <= 64));
        assert_eq!(fragments_of(&packet, 27), None);
    }

    #[test]
    fn esp_and_ah_arrive_with_their_ip_headers() {
        for (address, protocol) in [
            ("127.0.0.1", RawProtocol::Esp),
            ("127.0.0.1", RawProtocol::Ah),
            ("::1", RawProtocol::Esp),
            ("::1", RawProtocol::Ah),
        ] {
            let address: IpAddr = address.parse().unwrap();
            let socket = match RawSocket::open(protocol, address) {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    println!("skipped: raw sockets need CAP_NET_RAW");
                    return;
                }
                Err(error) => panic!("{error}"),
            };
            let header = if address.is_ipv4() { V4_HEADER_BYTES } else { V6_HEADER_BYTES };
            let content: Vec<u8> = (1..=40).collect();
            let mut whole = vec![0; header];
            if let IpAddr::V4(address) = address {
                whole[0] = 0x45;
                whole[8..10].copy_from_slice(&[9, 51]);
                whole[12..16].copy_from_slice(&address.octets());
                whole[16..].copy_from_slice(&address.octets());
            }
            whole.extend_from_slice(&content);
            let bytes = if protocol == RawProtocol::Ah { &whole } else { &content };
            let packet = RawPacket { bytes, from: address, to: address, traffic_class: 0x28 };
            socket.send(&packet).unwrap();
            let mut buffer = vec![0; ROOM_BYTES];
            let received = loop {
                match socket.receive(&mut buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    received => break received.unwrap(),
                }
            };
            assert!(!received.is_cut);
            let packet = &buffer[received.place];
            assert_eq!(packet[header..], content, "{address} {protocol:?}");
            let number = if protocol == RawProtocol::Ah { 51 } else { 50 };
            assert_eq!(packet[if address.is_ipv4() { 9 } else { 6 }], number);
        }
    }
}
