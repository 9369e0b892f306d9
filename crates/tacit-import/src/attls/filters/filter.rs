//! Defines the types for z/OS IP filters, and for the flows that a filter matches.

use std::ops::RangeInclusive;

use crate::draft::Toml;
use crate::finding::Origin;
use tacit_core::flow::{Direction, Protocol};

/// One filter rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Filter {
    pub(crate) name: String,
    pub(crate) at: Origin,
    pub(crate) action: Action,
    pub(crate) log: bool,
    pub(crate) when: Option<Toml>,
    /// Its flows; none if it matches only traffic that tacit does not relay.
    pub(crate) flows: Vec<Flow>,
}

/// What happens to the flows of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Permit,
    Deny,
}

/// Flows of one kind; an empty list matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) direction: Direction,
    pub(crate) protocol: Protocol,
    pub(crate) local: Vec<String>,
    pub(crate) remote: Vec<String>,
    pub(crate) local_ports: Vec<RangeInclusive<u16>>,
    pub(crate) remote_ports: Vec<RangeInclusive<u16>>,
}
