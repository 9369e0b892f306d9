//! Prepares a copy of IP headers, as input for the ICV (integrity check value) of AH. If routers
//! may change a field, this module sets the field to zero in the copy (RFC 4302 section 3.3.3.1).
//!
//! ```text
//! IPv4  TOS, flags, fragment offset, TTL, checksum; options, unless they are immutable
//! IPv6  traffic class, flow label, hop limit; data of options that may change on the way
//! ```
//!
//! This module does not zero IPv6 routing headers, because the sender can predict how these headers
//! arrive (RFC 4302 section 3.3.3.1.2.1). If a router changes a field that is neither zeroed nor
//! predictable, the ICV is wrong, and the receiver drops the packet.

use super::outer::{HOP_BY_HOP, OPTIONS};
use crate::packet::{V4_HEADER_BYTES, V6_HEADER_BYTES};

/// An option contradicts the length of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionError;

/// Zeroes the mutable fields of the headers before AH, with which the bytes end.
pub(crate) fn zero_mutable(headers: &mut [u8]) -> Result<(), OptionError> {
    if headers.first().is_some_and(|first| first >> 4 == 4) {
        zero_v4(headers)
    } else {
        zero_v6(headers)
    }
}

/// RFC 4302 section 3.3.3.1.1.
fn zero_v4(header: &mut [u8]) -> Result<(), OptionError> {
    let (fixed, options) = header.split_at_mut_checked(V4_HEADER_BYTES).ok_or(OptionError)?;
    // TOS; flags and fragment offset; TTL; checksum.
    for at in [1, 6, 7, 8, 10, 11] {
        fixed[at] = 0;
    }
    let mut rest = options;
    while let Some(&kind) = rest.first() {
        let length = match kind {
            END_OF_OPTIONS => return Ok(()),
            NO_OPERATION => 1,
            _ => usize::from(*rest.get(1).ok_or(OptionError)?),
        };
        if length == 0 || kind != NO_OPERATION && length < 2 {
            return Err(OptionError);
        }
        let (option, after) = rest.split_at_mut_checked(length).ok_or(OptionError)?;
        // RFC 4302 section 3.3.3.1.1.2: the whole option, also its type and length.
        if !IMMUTABLE_OPTIONS.contains(&kind) {
            option.fill(0);
        }
        rest = after;
    }
    Ok(())
}

/// RFC 4302 section 3.3.3.1.2.
fn zero_v6(headers: &mut [u8]) -> Result<(), OptionError> {
    let (fixed, mut rest) = headers.split_at_mut_checked(V6_HEADER_BYTES).ok_or(OptionError)?;
    fixed[0] = 0x60;
    fixed[1..4].fill(0);
    fixed[7] = 0;
    let mut kind = fixed[6];
    while let &mut [next, length, ..] = rest {
        let bytes = (usize::from(length) + 1) * 8;
        let (header, after) = rest.split_at_mut_checked(bytes).ok_or(OptionError)?;
        if matches!(kind, HOP_BY_HOP | OPTIONS) {
            zero_options(header.get_mut(2..).ok_or(OptionError)?)?;
        }
        kind = next;
        rest = after;
    }
    Ok(())
}

/// RFC 4302 section 3.3.3.1.2.2: type and length of an option stay, and its data is zeroed if it
/// may change on the way (RFC 8200 section 4.2).
fn zero_options(mut rest: &mut [u8]) -> Result<(), OptionError> {
    while let Some(&kind) = rest.first() {
        if kind == PAD_1 {
            rest = rest.get_mut(1..).ok_or(OptionError)?;
            continue;
        }
        let data_bytes = usize::from(*rest.get(1).ok_or(OptionError)?);
        let (option, after) = rest.split_at_mut_checked(2 + data_bytes).ok_or(OptionError)?;
        if kind & MAY_CHANGE != 0 {
            option[2..].fill(0);
        }
        rest = after;
    }
    Ok(())
}

const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
/// RFC 4302 appendix A1: no operation, the three security options, router alert, and sender
/// directed multi-destination delivery, each with its copied flag.
const IMMUTABLE_OPTIONS: [u8; 6] = [1, 130, 133, 134, 148, 149];
const PAD_1: u8 = 0;
/// The bit of an option type of IPv6 (RFC 8200 section 4.2).
const MAY_CHANGE: u8 = 0x20;

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(options: &[u8]) -> Vec<u8> {
        let mut header = [&[0xff; V4_HEADER_BYTES][..], options].concat();
        header[0] = 0x45;
        header
    }

    #[test]
    fn mutable_fields_and_options_of_ipv4_are_zeroed() {
        let router_alert = [148, 4, 0, 0];
        let timestamp = [68, 8, 5, 0, 1, 2, 3, 4];
        let mut headers = v4(&[&router_alert[..], &timestamp, &[1, 7, 3, 4, 0, 9, 9, 9]].concat());
        zero_mutable(&mut headers).unwrap();
        let fixed = [0x45, 0, 255, 255, 255, 255, 0, 0, 0, 255, 0, 0];
        assert_eq!(headers[..12], fixed);
        assert_eq!(headers[12..20], [255; 8], "the addresses");
        assert_eq!(headers[20..24], router_alert);
        assert_eq!(headers[24..32], [0; 8], "the timestamp");
        // No operation, the recorded route, and padding behind the end.
        assert_eq!(headers[32..], [1, 0, 0, 0, 0, 9, 9, 9]);
    }

    #[test]
    fn data_of_ipv6_options_is_zeroed_if_it_may_change() {
        let mut headers = vec![0xff; V6_HEADER_BYTES];
        headers[6] = HOP_BY_HOP;
        headers.extend([43, 0, 5, 2, 7, 7, 1, 0]);
        // A routing header with no segment left, then options that may change.
        headers.extend([60, 0, 4, 0, 9, 9, 9, 9]);
        headers.extend([51, 0, 0x3e, 2, 8, 8, 0, 0]);
        let before = headers.clone();
        zero_mutable(&mut headers).unwrap();
        assert_eq!(headers[..8], [0x60, 0, 0, 0, 255, 255, 0, 0]);
        assert_eq!(headers[8..56], before[8..56], "addresses, router alert and routing header");
        assert_eq!(headers[56..], [51, 0, 0x3e, 2, 0, 0, 0, 0]);
    }

    #[test]
    fn options_with_wrong_lengths_are_rejected() {
        for options in [&[7, 0, 0, 0][..], &[7, 1, 0, 0], &[7, 5, 0, 0], &[1, 1, 1, 7]] {
            assert_eq!(zero_mutable(&mut v4(options)), Err(OptionError), "{options:?}");
        }
        for options in [[5, 5, 0, 0, 0, 0], [1, 3, 0, 0, 0, 5]] {
            let mut headers = vec![0; V6_HEADER_BYTES];
            headers[0] = 0x60;
            headers.extend([51, 0]);
            headers.extend(options);
            assert_eq!(zero_mutable(&mut headers), Err(OptionError), "{options:?}");
        }
    }
}
