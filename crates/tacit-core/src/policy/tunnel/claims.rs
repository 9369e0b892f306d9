//! Finds the addresses for which a rule is the first match. This is a step in the conversion of
//! `ipsec` rules to routes.
//!
//! This module records the address ranges of earlier rules. For a new rule, this module removes the
//! addresses that earlier rules match, and returns the rest.

use std::collections::BTreeMap;

use super::TunnelPrefix;
use crate::policy::capture;
use crate::policy::selector::{Family, Span};

/// Addresses that are claimed, as disjoint ranges that do not touch.
#[derive(Clone, Debug, Default)]
pub(in crate::policy) struct Claims {
    /// The last address by the first.
    v4: BTreeMap<u128, u128>,
    v6: BTreeMap<u128, u128>,
}

impl Claims {
    /// Claims a range. Returns the parts that were not claimed before.
    pub(in crate::policy) fn claim(&mut self, span: Span) -> Vec<Span> {
        let Span { family, first, last } = span;
        let map = match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        };
        let mut new = Vec::new();
        let mut whole = (first, last);
        let mut at = first;
        let mut is_open = true;
        // Those that overlap or touch; the one before may reach into the range.
        let before = map.range(..first).next_back().map(|(start, end)| (*start, *end));
        let before = before.filter(|(_, end)| end.saturating_add(1) >= first);
        let within = map.range(first..=last.saturating_add(1)).map(|(start, end)| (*start, *end));
        let merged: Vec<(u128, u128)> = before.into_iter().chain(within).collect();
        for (start, end) in &merged {
            if *start > at && *start <= last {
                new.push(Span { family, first: at, last: start - 1 });
            }
            if *start <= last && *end >= at {
                match end.checked_add(1) {
                    Some(next) => at = next,
                    None => is_open = false,
                }
            }
            whole = (whole.0.min(*start), whole.1.max(*end));
        }
        if is_open && at <= last {
            // A range that begins after the last address only touches.
            new.push(Span { family, first: at, last });
        }
        for (start, _) in merged {
            map.remove(&start);
        }
        map.insert(whole.0, whole.1);
        new
    }

    /// Whether a range has a claimed address.
    pub(in crate::policy) fn overlaps(&self, span: &Span) -> bool {
        let map = match span.family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        map.range(..=span.last).next_back().is_some_and(|(_, end)| *end >= span.first)
    }

    /// Returns the ranges in order.
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> {
        let span = |family| {
            move |(first, last): (&u128, &u128)| Span { family, first: *first, last: *last }
        };
        let v6 = self.v6.iter().map(span(Family::V6));
        self.v4.iter().map(span(Family::V4)).chain(v6)
    }
}

/// Divides a range into prefixes, in order.
pub(super) fn prefixes(span: Span) -> Vec<TunnelPrefix> {
    let Span { family, mut first, last } = span;
    let width = family.width();
    let mut all = Vec::new();
    loop {
        // The largest block that begins here and does not end after the range.
        let aligned = first.trailing_zeros().min(width);
        let block = |bits: u32| 1_u128.checked_shl(bits).map_or(u128::MAX, |size| size - 1);
        let fits = |bits: &u32| block(*bits) <= last - first;
        let bits = (0..=aligned).rev().find(fits).unwrap_or(0);
        let length = u8::try_from(width - bits).unwrap_or(u8::MAX);
        all.push(TunnelPrefix { network: capture::address(first, family), length });
        match first.checked_add(block(bits)).and_then(|end| end.checked_add(1)) {
            Some(next) if next <= last => first = next,
            _ => return all,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn span(first: u128, last: u128) -> Span {
        Span { family: Family::V4, first, last }
    }

    #[test]
    fn a_range_becomes_the_fewest_prefixes() {
        let shown = |first: [u8; 4], last: [u8; 4]| {
            let [first, last] = [first, last].map(|ip| u32::from_be_bytes(ip).into());
            let all = prefixes(span(first, last));
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown([10, 0, 0, 0], [10, 255, 255, 255]), "10.0.0.0/8");
        assert_eq!(shown([10, 0, 0, 1], [10, 0, 0, 4]), "10.0.0.1/32 10.0.0.2/31 10.0.0.4/32");
        assert_eq!(shown([0; 4], [255; 4]), "0.0.0.0/0");
        assert_eq!(shown([255; 4], [255; 4]), "255.255.255.255/32");
        let all = Span { family: Family::V6, first: 0, last: u128::MAX };
        assert_eq!(prefixes(all).len(), 1);
        let most = Span { family: Family::V6, first: 1, last: u128::MAX };
        assert_eq!(prefixes(most).len(), 128);
    }

    proptest! {
        #[test]
        fn the_first_claim_gets_an_address(
            claimed in prop::collection::vec((0..40_u128, 0..12_u128), 0..12),
        ) {
            let mut claims = Claims::default();
            let mut owners = [None; 64];
            for (number, (first, length)) in claimed.iter().enumerate() {
                let new = claims.claim(span(*first, first + length));
                let mut got: Vec<u128> = new.iter().flat_map(|one| one.first..=one.last).collect();
                let is_free = |at: &u128| owners[usize::try_from(*at).unwrap()].is_none();
                let wanted: Vec<u128> = (*first..=first + length).filter(is_free).collect();
                got.sort_unstable();
                prop_assert_eq!(&got, &wanted);
                for at in wanted {
                    owners[usize::try_from(at).unwrap()] = Some(number);
                }
            }
            for (at, owner) in (0..).zip(owners) {
                prop_assert_eq!(claims.overlaps(&span(at, at)), owner.is_some());
            }
            let spans: Vec<Span> = claims.spans().collect();
            prop_assert!(spans.windows(2).all(|two| two[0].last + 1 < two[1].first));
        }

        #[test]
        fn prefixes_cover_exactly_the_range(first in 0..300_u128, length in 0..300_u128) {
            let mut next = first;
            for prefix in prefixes(span(first, first + length)) {
                let IpAddr::V4(network) = prefix.network else { panic!() };
                prop_assert_eq!(u128::from(network.to_bits()), next);
                next += 1 << (32 - prefix.length);
            }
            prop_assert_eq!(next, first + length + 1);
        }
    }
}
