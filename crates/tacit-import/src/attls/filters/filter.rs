//! Filters and the flows that they are about.

use std::ops::RangeInclusive;

use crate::draft::Toml;
use crate::finding::Origin;
use tacit_core::flow::{Direction, Protocol};

/// One rule, or one that a group led to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Filter {
    pub(crate) name: String,
    pub(crate) at: Origin,
    pub(crate) action: Action,
    pub(crate) log: bool,
    pub(crate) when: Option<Toml>,
    /// Which flows; none if it is about nothing that we carry.
    pub(crate) flows: Vec<Flow>,
}

/// What happens to the flows of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Permit,
    Deny,
}

/// Flows of one kind; empty lists are no condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) direction: Direction,
    pub(crate) protocol: Protocol,
    pub(crate) local: Vec<String>,
    pub(crate) remote: Vec<String>,
    pub(crate) local_ports: Vec<RangeInclusive<u16>>,
    pub(crate) remote_ports: Vec<RangeInclusive<u16>>,
}
