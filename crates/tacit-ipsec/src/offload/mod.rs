//! Divides large TCP packets that come from a TUN device, and joins small TCP packets that go to
//! the device. This saves CPU time, because the kernel processes fewer packets. Without a tunnel, a
//! network card can do this work for the kernel.
//!
//! ```text
//! kernel ── one packet of up to 64 KiB + virtio-net header ──> Segments ──> packets of MTU size
//! kernel <── one packet of up to 64 KiB + virtio-net header ── coalesce <── packets of MTU size
//! ```
//!
//! A TUN device with `IFF_VNET_HDR` puts a header of [`VNET_HEADER_BYTES`] before each packet. The
//! header shows whether a checksum is still missing, and whether the packet must be divided.
//! [`Offload`] is the content of this header.

mod coalesce;
mod segment;

pub use coalesce::{COALESCED_MAX, Coalesced, OpenedPacket, coalesce};
pub use segment::{Segments, fill_checksum};

/// The length of a `virtio_net_hdr`, which precedes each packet of a TUN device.
pub const VNET_HEADER_BYTES: usize = 10;

/// What is left to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Nothing: the packet is complete.
    Complete,
    /// The checksum over the bytes from `start` belongs at `start + offset`. The field contains the
    /// sum of the pseudo-header.
    Checksum {
        /// Where the sum starts.
        start: usize,
        /// Where the checksum is stored, counted from `start`.
        offset: usize,
    },
    /// TCP packets with payloads of this many bytes, joined to one packet. Its checksum is that of
    /// [`Offload::Checksum`].
    TcpSegments {
        /// The payload of each packet; the last one may have less.
        segment_bytes: usize,
    },
}

/// A header of the kernel asks for work that was not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownOffload;

impl Offload {
    /// Parses the header that the kernel puts before a packet.
    ///
    /// # Errors
    /// The header asks for segments of another protocol than TCP.
    pub fn parse(header: [u8; VNET_HEADER_BYTES]) -> Result<Self, UnknownOffload> {
        let [flags, kind, _, _, size_low, size_high, start_a, start_b, at_a, at_b] = header;
        // TUN uses the byte order of the machine (`legacy` virtio).
        let number = |a, b| usize::from(u16::from_ne_bytes([a, b]));
        match kind & !GSO_ECN {
            GSO_NONE if flags & NEEDS_CHECKSUM == 0 => Ok(Self::Complete),
            GSO_NONE => {
                Ok(Self::Checksum { start: number(start_a, start_b), offset: number(at_a, at_b) })
            }
            GSO_TCP_V4 | GSO_TCP_V6 => {
                Ok(Self::TcpSegments { segment_bytes: number(size_low, size_high) })
            }
            _ => Err(UnknownOffload),
        }
    }
}

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_*`.
const GSO_NONE: u8 = 0;
const GSO_TCP_V4: u8 = 1;
const GSO_TCP_V6: u8 = 4;
/// A flag that may accompany the type.
const GSO_ECN: u8 = 0x80;

#[cfg(test)]
mod tests;
