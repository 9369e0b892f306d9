//! Lists the user IDs that use each key ring. A policy of z/OS can name a key ring without a user
//! ID. Then each user ID uses its own key ring of this name. So the map file may contain a key ring
//! for each of these user IDs.

use std::collections::{BTreeMap, BTreeSet};

use super::effective::Effective;
use super::words::Kind;

/// The user IDs of the TLS rules that use a key ring without a user ID, by ring.
#[derive(Debug, Default)]
pub(super) struct RingUsers(BTreeMap<String, BTreeSet<String>>);

/// Stands for the user ID of a rule that has none.
const ANY_USER: &str = "*";

impl RingUsers {
    /// Collects the user IDs of all rules.
    pub(super) fn of(rules: &[Effective<'_>]) -> Self {
        let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for rule in rules.iter().filter(|rule| is_tls(rule)) {
            let Some(ring) = rule.field("Keyring").filter(|ring| !ring.value.contains('/')) else {
                continue;
            };
            let user = rule.rule.field("Userid").map_or(ANY_USER, |field| field.value.as_str());
            users.entry(ring.value.clone()).or_default().insert(user.to_ascii_uppercase());
        }
        Self(users)
    }

    /// Whether several users use the ring.
    pub(super) fn are_several(&self, ring: &str, user: &str) -> bool {
        user.contains('*') || self.0.get(ring).is_some_and(|users| users.len() > 1)
    }
}

fn is_tls(rule: &Effective<'_>) -> bool {
    let enabled = rule.action(Kind::Group).and_then(|group| group.field("TTLSEnabled"));
    enabled.is_some_and(|enabled| enabled.value == "On")
}
