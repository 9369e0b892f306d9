//! Reads the packets of a capture file in the format of libpcap.
//!
//! Limit: [`PACKETS_MAX`] packets. Reading ends at a truncated packet.

use std::fmt;

use super::packet::{FilterPacket, PacketPath};

/// The maximum number of packets that are read.
pub const PACKETS_MAX: usize = 100_000;

/// Why a file is not a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureFileError {
    /// It does not begin as a file of libpcap.
    Format,
    /// Its packets begin with headers of this link type, which is not known.
    LinkType(u32),
}

impl fmt::Display for CaptureFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format => f.write_str(
                "the file is not a packet capture in the pcap format. `tcpdump -w` writes this \
                 format; `editcap -F pcap` converts pcapng files",
            ),
            Self::LinkType(number) => {
                write!(f, "the packet capture has link type {number}, which tacit does not support")
            }
        }
    }
}

impl std::error::Error for CaptureFileError {}

/// Returns the IP packets of a capture file, all with the same way through the host. Frames
/// without an IP packet are omitted.
///
/// # Errors
/// The file is not a capture, or has an unknown link type.
pub fn captured_packets(
    file: &[u8],
    path: &PacketPath,
) -> Result<Vec<FilterPacket>, CaptureFileError> {
    let magic: [u8; 4] = file.first_chunk().copied().ok_or(CaptureFileError::Format)?;
    let number: fn([u8; 4]) -> u32 = match magic {
        [0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d] => u32::from_be_bytes,
        [0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1] => u32::from_le_bytes,
        _ => return Err(CaptureFileError::Format),
    };
    let word = |at: usize| file.get(at..)?.first_chunk().copied().map(number);
    let link_type = word(20).ok_or(CaptureFileError::Format)? & 0xffff;
    let mut at = FILE_HEADER_BYTES;
    let mut packets = Vec::new();
    while let Some(len) = word(at + 8).and_then(|len| usize::try_from(len).ok()) {
        let begin = at + PACKET_HEADER_BYTES;
        let Some(frame) = begin.checked_add(len).and_then(|end| file.get(begin..end)) else {
            break;
        };
        let bytes = ip_bytes(link_type, frame)?;
        packets.extend(bytes.and_then(|bytes| FilterPacket::of_bytes(path.clone(), bytes)));
        at = begin + len;
        if packets.len() >= PACKETS_MAX {
            break;
        }
    }
    Ok(packets)
}

/// The IP packet of a frame; `None`: it has none.
fn ip_bytes(link_type: u32, frame: &[u8]) -> Result<Option<&[u8]>, CaptureFileError> {
    let (kind_at, len) = match link_type {
        LINK_ETHERNET => (12, 14),
        LINK_SLL => (14, 16),
        LINK_SLL2 => (0, 20),
        LINK_RAW | LINK_RAW_OLD | LINK_IPV4 | LINK_IPV6 => return Ok(Some(frame)),
        LINK_NULL => return Ok(frame.get(4..)),
        other => return Err(CaptureFileError::LinkType(other)),
    };
    let kind = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let (kind, len) = match kind(kind_at) {
        Some(ETHERTYPE_VLAN) => (kind(kind_at + 4), len + 4),
        kind => (kind, len),
    };
    let is_ip = [Some(ETHERTYPE_V4), Some(ETHERTYPE_V6)].contains(&kind);
    Ok(frame.get(len..).filter(|_| is_ip))
}

const FILE_HEADER_BYTES: usize = 24;
const PACKET_HEADER_BYTES: usize = 16;
const LINK_NULL: u32 = 0;
const LINK_ETHERNET: u32 = 1;
const LINK_RAW_OLD: u32 = 12;
const LINK_RAW: u32 = 101;
const LINK_SLL: u32 = 113;
const LINK_IPV4: u32 = 228;
const LINK_IPV6: u32 = 229;
const LINK_SLL2: u32 = 276;
const ETHERTYPE_V4: u16 = 0x0800;
const ETHERTYPE_V6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path() -> PacketPath {
        PacketPath::In("a".to_owned())
    }

    /// A capture with one frame.
    fn capture(link_type: u32, frame: &[u8]) -> Vec<u8> {
        let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        file.extend(link_type.to_le_bytes());
        file.extend([0; 8]);
        let len = u32::try_from(frame.len()).unwrap().to_le_bytes();
        file.extend([len, len].concat());
        file.extend(frame);
        file
    }

    fn packet() -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend([0, 1, 0, 53, 0, 8, 0, 0]);
        packet
    }

    #[test]
    fn packets_are_found_behind_each_link_header() {
        let with = |header: &[u8]| [header, &packet()].concat();
        let ethernet = [&[0; 12][..], &[0x08, 0x00]].concat();
        let vlan = [&[0; 12][..], &[0x81, 0x00, 0, 7, 0x08, 0x00]].concat();
        let sll = [&[0; 14][..], &[0x08, 0x00]].concat();
        let sll2 = [&[0x08, 0x00][..], &[0; 18]].concat();
        for (link_type, frame) in [
            (1, with(&ethernet)),
            (1, with(&vlan)),
            (113, with(&sll)),
            (276, with(&sll2)),
            (101, packet()),
            (0, with(&[2, 0, 0, 0])),
        ] {
            let found = captured_packets(&capture(link_type, &frame), &path()).unwrap();
            let shown: Vec<_> = found.iter().map(ToString::to_string).collect();
            assert_eq!(shown, ["in a udp 10.0.0.1:1 > 10.0.0.2:53"], "{link_type}");
        }
        let arp = [&[0; 12][..], &[0x08, 0x06], &packet()].concat();
        assert_eq!(captured_packets(&capture(1, &arp), &path()), Ok(Vec::new()));
    }

    #[test]
    fn what_is_no_capture_is_rejected_by_name() {
        for (file, wanted) in [
            (&b""[..], CaptureFileError::Format),
            (b"\x0a\x0d\x0d\x0a", CaptureFileError::Format),
            (b"\xd4\xc3\xb2\xa1\x02\x00", CaptureFileError::Format),
            (&capture(147, b"x"), CaptureFileError::LinkType(147)),
        ] {
            assert_eq!(captured_packets(file, &path()), Err(wanted));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            link in 0_u32..300,
        ) {
            let _ = captured_packets(&bytes, &path());
            let _ = captured_packets(&capture(link, &bytes), &path());
            let mut cut = capture(1, &bytes);
            cut.truncate(bytes.len());
            let _ = captured_packets(&cut, &path());
        }
    }
}
