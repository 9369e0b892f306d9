//! Sorts the areas of filter rules into layers, and divides each layer into groups. An area is a
//! set of packets whose fields are in certain ranges. The areas of one layer never overlap. The
//! areas of one group restrict the same fields, so the kernel can search a group with one lookup.
//!
//! Two areas overlap if their ranges overlap in each field that both areas restrict. The areas are
//! added in the order of their rules. If an area overlaps areas that were added before, it is put
//! into a layer after theirs. The kernel searches the layers in order. So the first match belongs
//! to the first matching rule.
//!
//! If all ranges are single values, a hash table finds the areas that overlap with a new area.
//! Otherwise, a [`RangeIndex`] finds them.

use std::collections::{BTreeMap, HashMap};

use super::areas::{ALL_FIELDS, Area, FIELDS, Fields};
use super::range_index::RangeIndex;
use super::{
    FILTER_ELEMENTS_MAX, FilterElement, FilterGate, FilterGroup, GroupKey, PacketClasses,
    PacketViews, value_bytes,
};
use crate::policy::selector::Family;

/// The groups of all areas, in the order in which they have to be looked up.
pub(super) fn groups(areas: Vec<Area>) -> Vec<FilterGroup> {
    let mut found = Layers::default();
    // The limit is reported by the caller.
    let areas: Vec<_> = areas.into_iter().take(FILTER_ELEMENTS_MAX + 1).collect();
    let mut groups: BTreeMap<(u32, Kind), Vec<&Area>> = BTreeMap::new();
    for area in &areas {
        let Some(layer) = found.layer_of(area) else { continue };
        groups.entry((layer, Kind::of(area))).or_default().push(area);
        found.add(area, layer);
    }
    groups.into_iter().map(|((_, kind), areas)| kind.group(&areas)).collect()
}

/// What the areas of a group have in common. Groups of exact values come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Kind {
    is_range: bool,
    family: Family,
    classes: PacketClasses,
    views: PacketViews,
    is_past_opening: bool,
    gate: Option<FilterGate>,
    /// A bit for each field that is compared.
    fields: u8,
}

impl Kind {
    fn of(area: &Area) -> Self {
        let is_range = |(first, last): &(u128, u128)| first != last;
        Self {
            is_range: area.fields.iter().flatten().any(is_range),
            family: area.family,
            classes: area.classes,
            views: area.views,
            is_past_opening: area.is_past_opening,
            gate: area.gate,
            fields: compared(&area.fields),
        }
    }

    fn group(self, areas: &[&Area]) -> FilterGroup {
        let ipv6 = self.family == Family::V6;
        let fields: Vec<_> = (0..FIELDS)
            .filter(|place| self.fields & 1 << place != 0)
            .map(|place| (place, ALL_FIELDS[place]))
            .collect();
        let key = |area: &Area, end: fn((u128, u128)) -> u128| {
            let bytes = fields.iter().filter_map(|(place, field)| {
                Some(value_bytes(end(area.fields[*place]?), field.bytes(self.family)))
            });
            GroupKey(bytes.flatten().collect())
        };
        let elements = areas.iter().map(|area| FilterElement {
            first: key(area, |range| range.0),
            last: if self.is_range { key(area, |range| range.1) } else { GroupKey::default() },
            outcome: area.outcome,
            rule: area.rule,
        });
        FilterGroup {
            ipv6,
            classes: self.classes,
            views: self.views,
            past_opening: self.is_past_opening,
            gate: self.gate,
            exact: !self.is_range,
            elements: elements.collect(),
            fields: fields.into_iter().map(|(_, field)| field).collect(),
        }
    }
}

fn compared(fields: &Fields) -> u8 {
    let bits = fields.iter().enumerate().filter(|(_, field)| field.is_some());
    bits.fold(0, |bits, (place, _)| bits | 1 << place)
}

/// The areas so far, with their layers.
#[derive(Default)]
struct Layers<'a>(HashMap<Kind, Areas<'a>>);

/// The areas of one kind.
#[derive(Default)]
struct Areas<'a> {
    areas: Vec<(&'a Area, u32)>,
    /// The highest layer.
    highest: Option<u32>,
    /// If the fields have one value each: for some of the fields, the highest layer of the areas
    /// with these values.
    by_fields: HashMap<u8, HashMap<Fields, u32>>,
    /// The areas by the ranges of their fields; `None`: not needed so far.
    index: Option<RangeIndex>,
}

impl<'a> Layers<'a> {
    /// The first layer in which an area overlaps with none; `None` if an earlier one has all of
    /// its packets.
    fn layer_of(&mut self, area: &Area) -> Option<u32> {
        let mirrored = mirrored(area);
        let mut highest = None;
        for of in [Some(area), mirrored.as_ref()].into_iter().flatten() {
            let is_mirrored = !std::ptr::eq(of, area);
            for (kind, areas) in self.0.iter_mut().filter(|(kind, _)| kind.meets(of)) {
                let found = areas.overlaps(*kind, of);
                highest = highest.max(found.highest);
                if !is_mirrored && found.is_covered {
                    return None;
                }
            }
        }
        Some(highest.map_or(0, |layer| layer + 1))
    }

    fn add(&mut self, area: &'a Area, layer: u32) {
        self.0.entry(Kind::of(area)).or_default().add(area, layer);
    }
}

impl Kind {
    /// Whether areas of this kind and another area can have packets in common.
    fn meets(self, area: &Area) -> bool {
        self.family == area.family && self.classes.meet(area.classes) && self.views.meet(area.views)
    }
}

/// What the areas of a kind have in common with another area.
struct Overlaps {
    /// The highest layer of those that overlap with it.
    highest: Option<u32>,
    /// Whether one of them has all of its packets.
    is_covered: bool,
}

impl<'a> Areas<'a> {
    fn overlaps(&mut self, kind: Kind, area: &Area) -> Overlaps {
        let common = kind.fields & compared(&area.fields);
        if common == 0 {
            // An area that compares other fields has packets that this one lacks.
            return Overlaps {
                highest: self.highest,
                is_covered: kind.fields == 0 && self.highest.is_some() && kind.has_all_of(area),
            };
        }
        let of_common = of_bits(&area.fields, common);
        let is_exact = of_common.iter().flatten().all(|(first, last)| first == last);
        if is_exact && !kind.is_range {
            let highest = self.by_fields(common).get(&of_common).copied();
            // The fields of the kind are all in common, so these areas are one.
            let is_covered = highest.is_some() && common == kind.fields && kind.has_all_of(area);
            return Overlaps { highest, is_covered };
        }
        let mut found = Overlaps { highest: None, is_covered: false };
        let areas = &self.areas;
        let index = self.index.get_or_insert_with(|| RangeIndex::of(areas));
        let candidates = index.candidates(&of_common).into_iter();
        for (other, layer) in candidates.filter_map(|at| areas.get(at)) {
            if overlap(&other.fields, &area.fields) {
                found.highest = found.highest.max(Some(*layer));
                found.is_covered |= covers(other, kind, area);
            }
        }
        found
    }

    fn by_fields(&mut self, common: u8) -> &HashMap<Fields, u32> {
        let areas = &self.areas;
        self.by_fields.entry(common).or_insert_with(|| {
            let mut highest = HashMap::new();
            for (other, layer) in areas {
                raise(&mut highest, of_bits(&other.fields, common), *layer);
            }
            highest
        })
    }

    fn add(&mut self, area: &'a Area, layer: u32) {
        for (bits, highest) in &mut self.by_fields {
            raise(highest, of_bits(&area.fields, *bits), layer);
        }
        if let Some(index) = &mut self.index {
            index.add(self.areas.len(), area);
        }
        self.highest = self.highest.max(Some(layer));
        self.areas.push((area, layer));
    }
}

impl Kind {
    /// Whether packets that an area matches match the conditions of this kind beside its fields.
    fn has_all_of(self, area: &Area) -> bool {
        self.gate.is_none()
            && self.family == area.family
            && self.classes.0 & area.classes.0 == area.classes.0
            && self.views.0 & area.views.0 == area.views.0
            && (!self.is_past_opening || area.is_past_opening)
    }
}

fn covers(whole: &Area, kind: Kind, part: &Area) -> bool {
    let mut pairs = whole.fields.iter().zip(&part.fields);
    let contains_all = pairs.all(|pair| match pair {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(whole), Some(part)) => whole.0 <= part.0 && part.1 <= whole.1,
    });
    kind.has_all_of(part) && contains_all
}

fn raise(highest: &mut HashMap<Fields, u32>, fields: Fields, layer: u32) {
    let known = highest.entry(fields).or_insert(layer);
    *known = layer.max(*known);
}

fn of_bits(fields: &Fields, bits: u8) -> Fields {
    let mut kept = *fields;
    for (place, field) in kept.iter_mut().enumerate() {
        if bits & 1 << place == 0 {
            *field = None;
        }
    }
    kept
}

fn overlap(fields: &Fields, others: &Fields) -> bool {
    fields.iter().zip(others).all(|pair| match pair {
        (Some((first, last)), Some((other_first, other_last))) => {
            first <= other_last && other_first <= last
        }
        (None, _) | (_, None) => true,
    })
}

/// The same area as packets that are forwarded have it in the other view: both ends are exchanged.
/// The interface may be any, because each view has one of its own.
fn mirrored(area: &Area) -> Option<Area> {
    let PacketViews(views) = area.views;
    let exchanged =
        |one: PacketViews, other: PacketViews| if views & one.0 != 0 { other.0 } else { 0 };
    let views = exchanged(PacketViews::ROUTED_IN, PacketViews::ROUTED_OUT)
        | exchanged(PacketViews::ROUTED_OUT, PacketViews::ROUTED_IN);
    if views == 0 {
        return None;
    }
    let [local, remote, local_port, remote_port, kind, code, protocol, _] = area.fields;
    let fields = [remote, local, remote_port, local_port, kind, code, protocol, None];
    Some(Area { views: PacketViews(views), fields, ..area.clone() })
}
