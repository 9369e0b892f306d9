//! Combines the ECN fields of inner and outer headers (RFC 6040), and copies the traffic class.
//!
//! The sender copies the inner field to the outer header (section 4.1, normal mode). The receiver
//! combines both fields (section 4.2). So if a router marks congestion in the outer header, the
//! inner packet gets this mark.

use super::checksum;

/// The mask of the ECN field in the traffic class.
pub(crate) const ECN_MASK: u8 = 0b11;
const NOT_ECT: u8 = 0b00;
const ECT_1: u8 = 0b01;
const CE: u8 = 0b11;

/// Returns the traffic class of a packet: the DSCP in the upper six bits, ECN in the lower two.
#[must_use]
pub fn traffic_class(packet: &[u8]) -> u8 {
    let [first, second] = packet.first_chunk::<2>().copied().unwrap_or_default();
    if first >> 4 == 6 { first << 4 | second >> 4 } else { second }
}

/// Returns the ECN field for the inner header, or `None` if the packet must be dropped: the outer
/// header reports congestion, and the inner sender would not understand it (RFC 6040 section 4.2,
/// figure 4).
pub(crate) fn decapsulated(inner: u8, outer: u8) -> Option<u8> {
    match (inner & ECN_MASK, outer & ECN_MASK) {
        (NOT_ECT, CE) => None,
        (NOT_ECT, _) => Some(NOT_ECT),
        (CE, _) | (_, CE) => Some(CE),
        (_, ECT_1) => Some(ECT_1),
        (inner, _) => Some(inner),
    }
}

/// Writes the ECN field of a packet, and updates the checksum of an IPv4 header.
pub(crate) fn set(packet: &mut [u8], ecn: u8) {
    match packet {
        [first, second, ..] if *first >> 4 == 6 => {
            *second = *second & !(ECN_MASK << 4) | ecn << 4;
        }
        [version, class, ..] => {
            *class = *class & !ECN_MASK | ecn;
            let header_bytes = usize::from(*version & 0xf) * 4;
            fill_v4_checksum(packet, header_bytes);
        }
        _ => {}
    }
}

/// Computes the checksum of an IPv4 header (RFC 791 section 3.1).
pub(crate) fn fill_v4_checksum(packet: &mut [u8], header_bytes: usize) {
    let Some(header) = packet.get_mut(..header_bytes) else { return };
    let Some(field) = header.get_mut(10..12) else { return };
    field.fill(0);
    let value = checksum::checksum(checksum::sum(header));
    header[10..12].copy_from_slice(&value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::testing;

    #[test]
    fn the_table_of_rfc_6040() {
        // Rows: inner Not-ECT, ECT(0), ECT(1), CE. Columns: outer Not-ECT, ECT(0), ECT(1), CE.
        let order = [0b00, 0b10, 0b01, 0b11];
        let wanted = [
            [Some(0b00), Some(0b00), Some(0b00), None],
            [Some(0b10), Some(0b10), Some(0b01), Some(0b11)],
            [Some(0b01), Some(0b01), Some(0b01), Some(0b11)],
            [Some(0b11), Some(0b11), Some(0b11), Some(0b11)],
        ];
        for (row, inner) in order.into_iter().enumerate() {
            for (column, outer) in order.into_iter().enumerate() {
                let found = decapsulated(inner, 0b1010_1000 | outer);
                assert_eq!(found, wanted[row][column], "inner {inner:02b} outer {outer:02b}");
            }
        }
    }

    #[test]
    fn the_field_is_written_and_the_rest_of_the_class_stays() {
        for mut packet in [testing::udp_v4(b"x"), testing::udp_v6(b"x")] {
            let class = |packet: &[u8]| traffic_class(packet);
            let before = class(&packet);
            set(&mut packet, 0b11);
            assert_eq!(class(&packet), before & !ECN_MASK | 0b11);
            if packet[0] >> 4 == 4 {
                assert_eq!(checksum::folded(checksum::sum(&packet[..20])), u16::MAX);
            }
        }
    }
}
