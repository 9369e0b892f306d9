//! Defines the common data of all functions that convert AT-TLS rules: the map file, the options,
//! and the errors and changes to report.

use super::map::Map;
use super::names::Names;
use super::needs::Needs;
use super::request::AttlsOptions;
use super::ring_users::RingUsers;
use crate::finding::Findings;

/// The data that the functions which convert rules share.
pub(super) struct Context<'a> {
    pub(super) map: &'a Map,
    pub(super) options: AttlsOptions,
    pub(super) ring_users: RingUsers,
    /// Entries that the map file lacks.
    pub(super) needs: Needs,
    /// The identities and trusts that rules name.
    pub(super) names: Names,
    pub(super) findings: &'a mut Findings,
}
