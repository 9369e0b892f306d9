//! Joins the fragments of an IKE message (RFC 7383 section 2.6).
//!
//! A fragment is stored only after its integrity has been verified. There is no timer for missing
//! fragments, because the peer repeats its request until it gets a response.
//!
//! Limits: 64 fragments and [`MESSAGE_BYTES_MAX`] bytes for a message. At any time, an IKE SA joins
//! the fragments of at most one request, and of at most one response.

use crate::ike::codec::{Fragment, MESSAGE_BYTES_MAX};

/// The fragments of one message that have arrived.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    message_id: u32,
    /// The type of the first payload, which only the first fragment contains.
    first_payload: u8,
    /// The contents by the number of the fragment; empty while there is no message.
    parts: Vec<Option<Vec<u8>>>,
    bytes: usize,
}

/// The payloads of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Payloads {
    pub(super) first: u8,
    pub(super) bytes: Vec<u8>,
}

impl Reassembly {
    /// Reports whether a fragment is new. A sender that divides the message again, into more
    /// fragments, replaces the earlier ones; fewer are those of an earlier attempt.
    pub(super) fn needs(&self, message_id: u32, fragment: Fragment) -> bool {
        if self.message_id != message_id || self.parts.is_empty() {
            return true;
        }
        let number = usize::from(fragment.number);
        let total = usize::from(fragment.total);
        match total.cmp(&self.parts.len()) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => self.parts.get(number - 1).is_some_and(Option::is_none),
        }
    }

    /// Adds the content of an authentic fragment. Returns the payloads of the message if it is
    /// complete.
    pub(super) fn add(
        &mut self,
        message_id: u32,
        fragment: Fragment,
        content: Payloads,
    ) -> Option<Payloads> {
        let total = usize::from(fragment.total);
        if self.message_id != message_id || self.parts.len() != total {
            *self = Self { message_id, parts: vec![None; total], ..Self::default() };
        }
        self.bytes += content.bytes.len();
        if self.bytes > MESSAGE_BYTES_MAX {
            self.clear();
            return None;
        }
        if fragment.number == 1 {
            self.first_payload = content.first;
        }
        *self.parts.get_mut(usize::from(fragment.number) - 1)? = Some(content.bytes);
        if self.parts.iter().any(Option::is_none) {
            return None;
        }
        let joined = std::mem::take(self);
        let bytes = joined.parts.into_iter().flatten().flatten().collect();
        Some(Payloads { first: joined.first_payload, bytes })
    }

    /// Drops what has arrived.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(first: u8, bytes: &[u8]) -> Payloads {
        Payloads { first, bytes: bytes.to_vec() }
    }

    #[test]
    fn fragments_are_joined_in_any_order() {
        for order in [[1, 2, 3], [3, 1, 2], [2, 3, 1]] {
            let mut reassembly = Reassembly::default();
            for (at, number) in order.into_iter().enumerate() {
                let fragment = Fragment { number, total: 3 };
                assert!(reassembly.needs(7, fragment));
                let first = if number == 1 { 35 } else { 0 };
                let byte = u8::try_from(number).unwrap();
                let joined = reassembly.add(7, fragment, content(first, &[byte]));
                let whole = (at == 2).then(|| content(35, &[1, 2, 3]));
                assert_eq!(joined, whole);
                assert!(at == 2 || !reassembly.needs(7, fragment), "a duplicate is not opened");
            }
        }
    }

    #[test]
    fn smaller_fragments_replace_larger_ones_and_not_the_reverse() {
        let mut reassembly = Reassembly::default();
        let large = Fragment { number: 1, total: 2 };
        assert_eq!(reassembly.add(7, large, content(35, b"ab")), None);
        let small = |number| Fragment { number, total: 3 };
        assert_eq!(reassembly.add(7, small(3), content(0, b"c")), None);
        assert!(!reassembly.needs(7, Fragment { number: 2, total: 2 }));
        assert_eq!(reassembly.add(7, small(2), content(0, b"b")), None);
        assert_eq!(reassembly.add(7, small(1), content(35, b"a")), Some(content(35, b"abc")));
        // Another message begins again.
        assert_eq!(reassembly.add(7, large, content(35, b"ab")), None);
        assert!(reassembly.needs(8, large));
    }

    #[test]
    fn a_message_has_a_limit_of_bytes() {
        let mut reassembly = Reassembly::default();
        let half = vec![0; MESSAGE_BYTES_MAX / 2];
        let mut add = |number, bytes: &[u8]| {
            let fragment = Fragment { number, total: 3 };
            reassembly.add(7, fragment, content(0, bytes));
            reassembly.bytes
        };
        assert_eq!(add(1, &half), MESSAGE_BYTES_MAX / 2);
        assert_eq!(add(2, &half), MESSAGE_BYTES_MAX);
        assert_eq!(add(3, &[0]), 0);
    }
}
