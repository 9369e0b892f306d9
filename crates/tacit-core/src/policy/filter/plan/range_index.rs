//! Finds the areas that may overlap with a given area. An area is a set of packets whose fields are
//! in certain ranges. A policy can have many areas, so comparing all pairs would be slow.
//!
//! There is one table for each field and each power of two. For example, the table for 8 contains
//! the areas whose range in the field has 5 to 8 values, sorted by the first value. A search in
//! this table reads only ranges that begin inside the given range, or at most 7 values earlier. No
//! other range of the table can overlap with the given range.

use std::collections::{BTreeMap, BTreeSet};

use super::areas::{Area, FIELDS, Fields};

/// Areas by the ranges of their fields.
#[derive(Default)]
pub(super) struct RangeIndex {
    fields: [FieldIndex; FIELDS],
}

/// The first value and the position of areas, by the number of bits of the length of their range.
#[derive(Default)]
struct FieldIndex(BTreeMap<u32, BTreeSet<(u128, usize)>>);

impl RangeIndex {
    pub(super) fn of(areas: &[(&Area, u32)]) -> Self {
        let mut index = Self::default();
        for (at, (area, _)) in areas.iter().enumerate() {
            index.add(at, area);
        }
        index
    }

    pub(super) fn add(&mut self, at: usize, area: &Area) {
        for (index, range) in self.fields.iter_mut().zip(&area.fields) {
            if let Some((first, last)) = range {
                let bits = u128::BITS - (last - first).leading_zeros();
                index.0.entry(bits).or_default().insert((*first, at));
            }
        }
    }

    /// The positions of areas that can overlap with these ranges. Each area has all of these
    /// fields.
    pub(super) fn candidates(&self, fields: &Fields) -> Vec<usize> {
        let ranges = || {
            let both = self.fields.iter().zip(fields);
            both.filter_map(|(index, range)| Some((index, (*range)?)))
        };
        let mut most = CANDIDATES_FIRST;
        loop {
            for (index, range) in ranges() {
                let found: Vec<_> = index.near(range).take(most).collect();
                if found.len() < most {
                    return found;
                }
            }
            most = most.saturating_mul(CANDIDATES_FACTOR);
        }
    }
}

impl FieldIndex {
    /// The positions of areas whose range can overlap with this one.
    fn near(&self, (first, last): (u128, u128)) -> impl Iterator<Item = usize> {
        self.0.iter().flat_map(move |(bits, areas)| {
            let length_max = 1_u128.checked_shl(*bits).map_or(u128::MAX, |above| above - 1);
            let from = first.saturating_sub(length_max);
            areas.range((from, 0)..=(last, usize::MAX)).map(|(_, at)| *at)
        })
    }
}

/// A field is used if it has fewer candidates.
const CANDIDATES_FIRST: usize = 32;
/// If all fields have more, the limit is raised by this factor.
const CANDIDATES_FACTOR: usize = 8;
