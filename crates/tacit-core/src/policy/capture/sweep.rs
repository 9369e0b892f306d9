//! Splits overlapping areas into areas that do not overlap, because the elements of an nftables set
//! must not overlap. An *area* is a range of addresses and a range of ports.
//!
//! The algorithm is a sweep line over the addresses. At each address, the areas cover a set of
//! ports. A strip is a range of addresses with the same set of covered ports. Where this set
//! changes, one strip ends and the next strip begins:
//!
//! ```text
//! port   |  +-----+              |  :     :
//!        |  |  +--+---+          |  +--+--+--+
//!        |  +--|--+   |    =>    |  |1 |2 |3 |
//!        |     +------+          |  +--+--+--+
//!        +------------- address
//! ```
//!
//! A tree ([`Ports`]) counts the areas that cover each port.

use std::ops::RangeInclusive;

/// The largest number of ranges. They need about ten megabytes, here and in the kernel. Traffic to
/// further ranges is rejected. A policy whose rules alone need more ranges is invalid.
pub const CAPTURE_RANGES_MAX: usize = 65_536;

/// Addresses of one family and protocol with one range of ports, as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) first: u128,
    pub(super) last: u128,
    pub(super) ports: RangeInclusive<u16>,
}

impl Area {
    /// Whether both have an address and a port in common.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let apart = other.last < self.first || self.last < other.first;
        !apart && self.ports.start() <= other.ports.end() && other.ports.start() <= self.ports.end()
    }

    /// The parts outside the hole.
    pub(super) fn without(self, hole: &Self) -> Vec<Self> {
        if !self.overlaps(hole) {
            return vec![self];
        }
        let low = *self.ports.start();
        let high = *self.ports.end();
        let hole_low = *hole.ports.start();
        let hole_high = *hole.ports.end();
        let first = self.first.max(hole.first);
        let last = self.last.min(hole.last);
        let mut left = Vec::new();
        if self.first < first {
            left.push(Self { last: first - 1, ..self.clone() });
        }
        if last < self.last {
            left.push(Self { first: last + 1, ..self });
        }
        if low < hole_low {
            left.push(Self { first, last, ports: low..=hole_low - 1 });
        }
        if hole_high < high {
            left.push(Self { first, last, ports: hole_high + 1..=high });
        }
        left
    }
}

/// Returns the same addresses and ports as disjoint ranges in order, at most
/// [`CAPTURE_RANGES_MAX`]. Neighbouring addresses with the same ports are one range, and so are
/// neighbouring ports.
pub(super) fn cut(mut areas: Vec<Area>) -> Vec<Area> {
    areas.sort_unstable_by_key(|area| (area.first, area.last));
    let mut ranges = Vec::new();
    let mut rest = areas.as_slice();
    while let Some((group, others)) = first_group(rest) {
        // Most areas have no address in common with another one.
        match group {
            [alone] => append(&mut ranges, std::slice::from_ref(alone)),
            _ => append(&mut ranges, &cut_group(group)),
        }
        if ranges.len() >= CAPTURE_RANGES_MAX {
            ranges.truncate(CAPTURE_RANGES_MAX);
            break;
        }
        rest = others;
    }
    ranges
}

/// Splits sorted areas: the first ones, which no later one has an address in common with, and the
/// others; `None`: there are no areas.
fn first_group(areas: &[Area]) -> Option<(&[Area], &[Area])> {
    let mut last = areas.first()?.last;
    let mut length = 1;
    for area in &areas[1..] {
        if last < area.first {
            break;
        }
        last = last.max(area.last);
        length += 1;
    }
    areas.split_at_checked(length)
}

/// Appends the ranges of a group. If its lowest addresses follow the addresses before, with the
/// same ports, both are one strip.
fn append(ranges: &mut Vec<Area>, group: &[Area]) {
    let strip_of = |first: u128| move |range: &&Area| range.first == first;
    let (Some(before), Some(next)) = (ranges.last(), group.first()) else {
        return ranges.extend_from_slice(group);
    };
    let begin = before.first;
    let last = next.last;
    let is_next = before.last.checked_add(1) == Some(next.first);
    let count = group.iter().take_while(strip_of(next.first)).count();
    let strip_before = ranges.len() - ranges.iter().rev().take_while(strip_of(begin)).count();
    let ports_before = ranges[strip_before..].iter().map(|range| &range.ports);
    if is_next && ports_before.eq(group[..count].iter().map(|range| &range.ports)) {
        ranges[strip_before..].iter_mut().for_each(|range| range.last = last);
        ranges.extend_from_slice(&group[count..]);
    } else {
        ranges.extend_from_slice(group);
    }
}

/// The same as [`cut`] for areas that have addresses in common.
fn cut_group(areas: &[Area]) -> Vec<Area> {
    let mut edges: Vec<Edge> = areas.iter().flat_map(Edge::of).collect();
    // Ports are added before other ports are removed. So ports that continue in another area do not
    // change in between.
    edges.sort_unstable_by_key(|edge| (edge.at, edge.kind));
    let mut ports = Ports::new(areas);
    let mut ranges: Vec<Area> = Vec::new();
    let mut strip = Strip { first: 0, ports: Vec::new() };
    for same_place in edges.chunk_by(|a, b| a.at == b.at) {
        let changes = same_place.iter().filter(|edge| ports.change(edge)).count();
        if changes > 0 {
            let at = same_place[0].at;
            strip.end(at.checked_sub(1), &mut ranges);
            if ranges.len() >= CAPTURE_RANGES_MAX {
                break;
            }
            strip = Strip { first: at, ports: ports.covered() };
        }
    }
    // An area that ends at the very last address has no edge after it.
    strip.end(Some(u128::MAX), &mut ranges);
    ranges.truncate(CAPTURE_RANGES_MAX);
    ranges
}

/// The start or end of an area.
#[derive(Clone, Debug)]
struct Edge {
    at: u128,
    kind: EdgeKind,
    ports: RangeInclusive<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EdgeKind {
    Begin,
    End,
}

impl Edge {
    fn of(area: &Area) -> impl Iterator<Item = Self> {
        let ports = || area.ports.clone();
        let begin = Self { at: area.first, kind: EdgeKind::Begin, ports: ports() };
        let after = area.last.checked_add(1);
        let end = after.map(|at| Self { at, kind: EdgeKind::End, ports: ports() });
        [Some(begin), end].into_iter().flatten()
    }
}

/// Addresses with the same covered ports.
struct Strip {
    first: u128,
    ports: Vec<RangeInclusive<u16>>,
}

impl Strip {
    fn end(&self, last: Option<u128>, ranges: &mut Vec<Area>) {
        let Some(last) = last else { return };
        let first = self.first;
        ranges.extend(self.ports.iter().map(|ports| Area { first, last, ports: ports.clone() }));
    }
}

/// Counts how many ranges cover each port. The edges of all ranges split the ports into pieces; a
/// binary tree has the pieces as its leaves. A range is counted at the few nodes that together
/// cover exactly its pieces.
struct Ports {
    /// The first port of each piece; the last entry is one after the last piece.
    edges: Vec<u32>,
    /// The root is node 1; the children of node `n` are `2n` and `2n + 1`.
    nodes: Vec<Node>,
    /// The number of pieces for which the tree has room: a power of two.
    width: usize,
}

#[derive(Clone, Copy, Default)]
struct Node {
    /// The number of ranges counted at this node. Each covers all pieces below the node.
    count: u32,
    /// Whether all pieces below are covered.
    whole: bool,
    /// Whether a piece below is covered.
    some: bool,
}

impl Ports {
    fn new(areas: &[Area]) -> Self {
        let ends = |area: &Area| [(*area.ports.start()).into(), u32::from(*area.ports.end()) + 1];
        let mut edges: Vec<u32> = areas.iter().flat_map(ends).collect();
        edges.sort_unstable();
        edges.dedup();
        let width = edges.len().next_power_of_two();
        Self { edges, nodes: vec![Node::default(); 2 * width], width }
    }

    /// Adds or removes a range; returns whether the covered ports changed.
    fn change(&mut self, edge: &Edge) -> bool {
        let place = |port: u32| self.edges.partition_point(|start| *start < port);
        let first = place((*edge.ports.start()).into());
        let pieces = first..place(u32::from(*edge.ports.end()) + 1);
        match edge.kind {
            EdgeKind::Begin => {
                let is_news = !self.is_covered(1, 0..self.width, &pieces);
                self.count(1, 0..self.width, &pieces, edge.kind);
                is_news
            }
            EdgeKind::End => {
                self.count(1, 0..self.width, &pieces, edge.kind);
                !self.is_covered(1, 0..self.width, &pieces)
            }
        }
    }

    fn count(&mut self, node: usize, below: Pieces, pieces: &Pieces, kind: EdgeKind) {
        if below.end <= pieces.start || pieces.end <= below.start {
            return;
        }
        if pieces.start <= below.start && below.end <= pieces.end {
            let count = &mut self.nodes[node].count;
            *count = match kind {
                EdgeKind::Begin => *count + 1,
                EdgeKind::End => count.saturating_sub(1),
            };
        } else {
            let Halves { left, right } = halves(below);
            self.count(2 * node, left, pieces, kind);
            self.count(2 * node + 1, right, pieces, kind);
        }
        let children = self.nodes.get(2 * node..2 * node + 2).unwrap_or_default();
        let whole = !children.is_empty() && children.iter().all(|child| child.whole);
        let some = children.iter().any(|child| child.some);
        let node = &mut self.nodes[node];
        node.whole = node.count > 0 || whole;
        node.some = node.count > 0 || some;
    }

    fn is_covered(&self, node: usize, below: Pieces, pieces: &Pieces) -> bool {
        if below.end <= pieces.start || pieces.end <= below.start || self.nodes[node].whole {
            return true;
        }
        if !self.nodes[node].some || below.len() == 1 {
            return false;
        }
        let Halves { left, right } = halves(below);
        self.is_covered(2 * node, left, pieces) && self.is_covered(2 * node + 1, right, pieces)
    }

    /// The covered ranges in order, with adjacent ones merged.
    fn covered(&self) -> Vec<RangeInclusive<u16>> {
        let mut pieces = Vec::new();
        self.collect(1, 0..self.width, &mut pieces);
        let port = |piece: usize| self.edges.get(piece).copied().unwrap_or(1 << 16);
        // Ports had 16 bits before one was added to the last one.
        let narrow = |port: u32| u16::try_from(port).unwrap_or(u16::MAX);
        let range = |pieces: Pieces| narrow(port(pieces.start))..=narrow(port(pieces.end) - 1);
        pieces.into_iter().map(range).collect()
    }

    fn collect(&self, node: usize, below: Pieces, found: &mut Vec<Pieces>) {
        let Node { whole, some, .. } = self.nodes[node];
        if whole {
            match found.last_mut() {
                Some(last) if last.end == below.start => last.end = below.end,
                _ => found.push(below),
            }
        } else if some {
            let Halves { left, right } = halves(below);
            self.collect(2 * node, left, found);
            self.collect(2 * node + 1, right, found);
        }
    }
}

/// Pieces from and to, by number.
type Pieces = std::ops::Range<usize>;

/// The pieces of the two child nodes.
struct Halves {
    left: Pieces,
    right: Pieces,
}

fn halves(pieces: Pieces) -> Halves {
    let middle = pieces.start.midpoint(pieces.end);
    Halves { left: pieces.start..middle, right: middle..pieces.end }
}
