//! Divides the ports into *cells*, so that the same rules apply to all ports of a cell. This is a
//! step in the conversion of `ipsec` rules to routes.
//!
//! A cell is a range of local ports with a range of remote ports. Each cell lists the IPsec peers
//! and the addresses behind each peer. For each peer, this module joins adjacent cells with the
//! same addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::ALL_PORTS;
use super::claims::Claims;
use crate::policy::capture;
use crate::policy::rule::Rule;
use crate::policy::selector::{Family, Span};

/// The cells of one direction and protocol: each range of local ports with each range of remote
/// ports.
pub(super) struct Grid<'r> {
    local: Vec<(u16, u16)>,
    remote: Vec<(u16, u16)>,
    /// The addresses behind each peer, by the places of both ranges.
    cells: BTreeMap<(usize, usize), BTreeMap<&'r str, Vec<Span>>>,
}

/// Ports, with the addresses behind one peer that all of them reach.
#[derive(Clone, Debug)]
pub(super) struct PortArea {
    pub(super) local: (u16, u16),
    pub(super) remote: (u16, u16),
    pub(super) spans: Vec<Span>,
}

/// The most cells. Rules that divide ports into more would need too many groups.
const CELLS_MAX: usize = 1024;

impl<'r> Grid<'r> {
    /// Divides the ports of these rules; `None` if there are more than [`CELLS_MAX`] cells.
    pub(super) fn new(rules: &[&'r Rule], own: &[IpAddr]) -> Option<Self> {
        let local = pieces(rules.iter().flat_map(|rule| &rule.selectors.local_ports));
        let remote = pieces(rules.iter().flat_map(|rule| &rule.selectors.remote_ports));
        if local.len() * remote.len() > CELLS_MAX {
            return None;
        }
        let spans: Vec<Vec<Span>> =
            rules.iter().map(|rule| capture::addresses(rule, own)).collect();
        let mut cells = BTreeMap::new();
        for (row, remote_piece) in remote.iter().enumerate() {
            for (column, local_piece) in local.iter().enumerate() {
                let mut claims = Claims::default();
                let mut of_peers: BTreeMap<&str, Claims> = BTreeMap::new();
                for (rule, spans) in rules.iter().zip(&spans) {
                    let selectors = &rule.selectors;
                    if !has(&selectors.local_ports, *local_piece)
                        || !has(&selectors.remote_ports, *remote_piece)
                    {
                        continue;
                    }
                    for new in spans.iter().flat_map(|span| claims.claim(*span)) {
                        if let Some(ipsec) = rule.ipsec() {
                            of_peers.entry(&ipsec.peer).or_default().claim(new);
                        }
                    }
                }
                let spans = |(peer, claims): (&'r str, Claims)| (peer, claims.spans().collect());
                cells.insert((row, column), of_peers.into_iter().map(spans).collect());
            }
        }
        Some(Self { local, remote, cells })
    }

    /// Returns the ports and addresses behind a peer. Neighbouring cells with the same addresses
    /// are one area. Addresses of one IP version divide no ports of the other: a program that binds
    /// no port gets only routes that do not depend on it.
    pub(super) fn areas_of(&self, peer: &str) -> Vec<PortArea> {
        let mut areas = self.areas_of_family(peer, Family::V4);
        for new in self.areas_of_family(peer, Family::V6) {
            let has_same_ports =
                |area: &&mut PortArea| area.local == new.local && area.remote == new.remote;
            match areas.iter_mut().find(has_same_ports) {
                Some(area) => area.spans.extend(new.spans),
                None => areas.push(new),
            }
        }
        areas
    }

    fn areas_of_family(&self, peer: &str, family: Family) -> Vec<PortArea> {
        let mut done: Vec<PortArea> = Vec::new();
        // Areas that the next row may extend.
        let mut open: Vec<PortArea> = Vec::new();
        for (row, remote) in self.remote.iter().enumerate() {
            let mut of_row = self.row(row, *remote, peer, family);
            let (extended, ended): (Vec<_>, Vec<_>) = open.into_iter().partition(|area| {
                of_row.iter().any(|new| new.local == area.local && new.spans == area.spans)
            });
            done.extend(ended);
            for area in extended {
                for new in of_row.iter_mut().filter(|new| new.local == area.local) {
                    new.remote.0 = area.remote.0;
                }
            }
            open = of_row;
        }
        done.extend(open);
        done
    }

    fn row(&self, row: usize, remote: (u16, u16), peer: &str, family: Family) -> Vec<PortArea> {
        let mut areas: Vec<PortArea> = Vec::new();
        for (column, local) in self.local.iter().enumerate() {
            let found = self.cells.get(&(row, column)).and_then(|cell| cell.get(peer));
            let of_family = |span: &&Span| span.family == family;
            let spans: Vec<Span> = found.into_iter().flatten().filter(of_family).copied().collect();
            if spans.is_empty() {
                continue;
            }
            match areas.last_mut() {
                Some(last)
                    if u32::from(last.local.1) + 1 == u32::from(local.0) && last.spans == spans =>
                {
                    last.local.1 = local.1;
                }
                _ => areas.push(PortArea { local: *local, remote, spans }),
            }
        }
        areas
    }
}

/// Divides all ports at the edges of ranges.
fn pieces<'a>(ranges: impl Iterator<Item = &'a RangeInclusive<u16>>) -> Vec<(u16, u16)> {
    let (first, last) = ALL_PORTS;
    let mut starts = BTreeSet::from([first]);
    for range in ranges {
        starts.extend([Some(*range.start()), range.end().checked_add(1)].into_iter().flatten());
    }
    let starts: Vec<u16> = starts.into_iter().filter(|start| *start >= first).collect();
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([last]);
    starts.iter().copied().zip(ends).collect()
}

/// Whether the ports of a rule contain a piece. Pieces are never partly within a range.
fn has(ranges: &[RangeInclusive<u16>], piece: (u16, u16)) -> bool {
    ranges.is_empty() || ranges.iter().any(|range| range.contains(&piece.0))
}
