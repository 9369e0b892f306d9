//! Lists the keys that the map file of an AT-TLS import may have.

use tacit_core::policy::text::{TableKeys, TableSchema};

/// The title of the top of the file.
pub(super) const TOP_TITLE: &str = "the top level of the map file";

const TOP_KEYS: &[&str] = &["job", "user", "keyring", "rule", "map", "dataset"];
const JOB_KEYS: &[&str] = &["program", "user", "run", "unit", "cgroup", "any"];
const KEYRING_KEYS: &[&str] = &["cert", "key", "ca", "crl", "label"];
const LABEL_KEYS: &[&str] = &["cert", "key"];
/// Keys of tacit rules that replace the conditions of the imported rule.
pub(super) const RULE_KEYS: &[&str] = &[
    "listen",
    "local-ports",
    "remote",
    "program",
    "user",
    "starttls",
    "start",
    "server-name",
    "certificate",
    "map",
];

/// The top of the file.
pub(super) const TOP: TableSchema = schema(TableKeys::Fixed(TOP_KEYS));
/// A table whose keys are names from z/OS.
pub(super) const NAMES: TableSchema = schema(TableKeys::Names);
/// The entry of a job.
pub(super) const JOB: TableSchema = schema(TableKeys::Fixed(JOB_KEYS));
/// `[keyring.NAME]`.
pub(super) const KEYRING: TableSchema = schema(TableKeys::Fixed(KEYRING_KEYS));
/// `[keyring.NAME.label.LABEL]`.
pub(super) const LABEL: TableSchema = schema(TableKeys::Fixed(LABEL_KEYS));
/// `[rule.NAME]`.
pub(super) const RULE: TableSchema = schema(TableKeys::Fixed(RULE_KEYS));

const fn schema(keys: TableKeys) -> TableSchema {
    TableSchema { keys, planned: &[], home }
}

/// The outermost table that has this key.
fn home(key: &str) -> Option<&'static str> {
    let tables = [
        (TOP_KEYS, TOP_TITLE),
        (RULE_KEYS, "[rule.NAME]"),
        (JOB_KEYS, "an entry of the table [job]"),
        (KEYRING_KEYS, "[keyring.NAME]"),
    ];
    tables.into_iter().find(|(keys, _)| keys.contains(&key)).map(|(_, title)| title)
}
