//! Classifies the datagrams that arrive at a UDP port for ESP (RFC 3948). The classes are ESP
//! packets, IKE messages (which begin with four zero bytes), and keepalives.
//!
//! The kernel may return several datagrams of one sender in one buffer. Each datagram is classified
//! separately.

use crate::child::EspSpi;

/// The marker before an IKE message (RFC 3948 section 2.2): no SPI is zero.
pub const NON_ESP_MARKER: [u8; 4] = [0; 4];
/// The payload of a keepalive (RFC 3948 section 2.3).
pub const KEEPALIVE: [u8; 1] = [0xff];

/// The content of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpContent<'a> {
    /// An ESP packet: the whole datagram.
    Esp(EspSpi),
    /// An IKE message, without the marker.
    Ike(&'a [u8]),
    /// A keepalive, which gets no answer.
    Keepalive,
    /// Nothing of these: too short, or a reserved SPI.
    Invalid,
}

impl<'a> UdpContent<'a> {
    /// Examines one datagram.
    #[must_use]
    pub fn of(datagram: &'a [u8]) -> Self {
        if datagram == KEEPALIVE {
            return Self::Keepalive;
        }
        let Some((first, rest)) = datagram.split_first_chunk::<4>() else { return Self::Invalid };
        if *first == NON_ESP_MARKER {
            return Self::Ike(rest);
        }
        EspSpi::new(u32::from_be_bytes(*first)).map_or(Self::Invalid, Self::Esp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_decide() {
        let spi = EspSpi::new(0x1234_5678).unwrap();
        assert_eq!(UdpContent::of(&[0xff]), UdpContent::Keepalive);
        assert_eq!(UdpContent::of(&[0, 0, 0, 0, 7]), UdpContent::Ike(&[7]));
        assert_eq!(UdpContent::of(&[0x12, 0x34, 0x56, 0x78, 7]), UdpContent::Esp(spi));
        assert_eq!(UdpContent::of(&[0, 0, 0, 255, 7]), UdpContent::Invalid);
        assert_eq!(UdpContent::of(&[0xff, 0xff]), UdpContent::Invalid);
        assert_eq!(UdpContent::of(&[]), UdpContent::Invalid);
    }
}
