//! What the decisions about a rule look at, and what they leave behind.

use super::map::Map;
use super::names::Names;
use super::needs::Needs;
use super::request::AttlsOptions;
use super::ring_users::RingUsers;
use crate::finding::Findings;

/// What the decisions about a rule look at, and what they leave behind.
pub(super) struct Context<'a> {
    pub(super) map: &'a Map,
    pub(super) options: AttlsOptions,
    pub(super) ring_users: RingUsers,
    /// What was looked for in the map and not found.
    pub(super) needs: Needs,
    /// The identities and trusts that rules name.
    pub(super) names: Names,
    pub(super) findings: &'a mut Findings,
}
