//! Computes Internet checksums (RFC 1071).
//!
//! Words are added in the byte order of the machine. The result is correct in either byte order
//! (RFC 1071 section 2 (B)).

/// Adds the bytes. The bytes of a packet that are summed in parts are split at an even offset.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let mut sum = WordSum::default();
    words.iter().for_each(|word| sum.add(*word));
    sum.finish(rest)
}

/// Copies bytes to a place of the same length, and adds them. This costs less than reading them
/// twice.
pub(crate) fn copy_and_sum(from: &[u8], to: &mut [u8]) -> u64 {
    let (words, rest) = from.as_chunks();
    let (places, rest_place) = to.as_chunks_mut();
    let mut sum = WordSum::default();
    for (word, place) in words.iter().zip(places) {
        *place = *word;
        sum.add(*word);
    }
    rest_place.copy_from_slice(rest);
    sum.finish(rest)
}

/// A sum of words of eight bytes. Their halves are added, because a sum of whole words would
/// overflow.
///
/// The lower halves are not separated: their sum is what remains of `all` without the upper halves,
/// modulo 2^64. This saves one of four operations.
#[derive(Default)]
struct WordSum {
    all: u64,
    upper: u64,
}

impl WordSum {
    fn add(&mut self, word: [u8; 8]) {
        let word = u64::from_ne_bytes(word);
        self.all = self.all.wrapping_add(word);
        self.upper += word >> 32;
    }

    /// Adds the last bytes, fewer than a word.
    fn finish(mut self, rest: &[u8]) -> u64 {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(last);
        self.all.wrapping_sub(self.upper << 32) + self.upper
    }
}

/// Adds the pseudo-header of TCP, UDP and ICMPv6 (RFC 9293 section 3.1, RFC 8200 section 8.1).
/// `addresses` are source and destination as they stand in the IP header.
pub(crate) fn pseudo_header(addresses: &[u8], protocol: u8, transport_bytes: usize) -> u64 {
    let length = u32::try_from(transport_bytes).unwrap_or(u32::MAX);
    sum(addresses) + sum(&[0, protocol]) + sum(&length.to_be_bytes())
}

/// Reduces a sum to 16 bits, in the byte order of the machine.
pub(crate) fn folded(mut sum: u64) -> u16 {
    while sum > u64::from(u16::MAX) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // The loop ends when the sum fits.
    u16::try_from(sum).unwrap_or(u16::MAX)
}

/// Returns the checksum of a sum, as its bytes in a header.
pub(crate) fn checksum(sum: u64) -> [u8; 2] {
    (!folded(sum)).to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071 section 4.1, byte by byte.
    fn reference(bytes: &[u8]) -> u16 {
        let mut total = 0_u32;
        for (at, byte) in bytes.iter().enumerate() {
            total += if at % 2 == 0 { u32::from(*byte) << 8 } else { u32::from(*byte) };
            total = (total & 0xffff) + (total >> 16);
        }
        !u16::try_from(total).unwrap()
    }

    #[test]
    fn the_example_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(sum(&bytes)), (!0xddf2_u16).to_be_bytes());
    }

    #[test]
    fn large_sums_do_not_overflow() {
        // 0xffff is zero in ones' complement.
        let bytes = vec![0xff; 65_536];
        assert_eq!(folded(sum(&bytes)), u16::MAX);
        assert_eq!(sum(&bytes), 16_384 * u64::from(u32::MAX));
    }

    proptest! {
        #[test]
        fn sums_agree_with_the_reference(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            half in 0_usize..100,
        ) {
            let wanted = reference(&bytes).to_be_bytes();
            prop_assert_eq!(checksum(sum(&bytes)), wanted);
            let (first, rest) = bytes.split_at((half * 2).min(bytes.len() / 2 * 2));
            prop_assert_eq!(checksum(sum(first) + sum(rest)), wanted);
            let mut copy = vec![0; bytes.len()];
            prop_assert_eq!(checksum(copy_and_sum(&bytes, &mut copy)), wanted);
            prop_assert_eq!(copy, bytes);
        }
    }
}
