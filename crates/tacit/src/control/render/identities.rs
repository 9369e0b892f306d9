//! Formats the output of `tacit show identities`: the certificates, `[trust]` tables and CRLs of
//! the policy. The output consists of two tables.

use super::Table;
use super::table::{ABSENT, Column, list, optional, table};
use super::width::TextWidth;
use crate::clock::Rfc3339;
use crate::control::display::identities::{IdentitiesDisplay, IdentityDisplay, TrustDisplay};

const IDENTITIES: [Column<IdentityDisplay>; 7] = [
    ("IDENTITY", |one| one.name.clone()),
    ("SUBJECT", |one| one.certificate.subject.clone()),
    ("NAMES", |one| list(&one.certificate.sans)),
    ("KEY", |one| one.certificate.key.clone()),
    ("EXPIRES", |one| minute(Some(one.certificate.not_after))),
    ("DAYS", |one| one.days_left.to_string()),
    ("RULES", |one| list(&one.rules)),
];

const TRUSTS: [Column<TrustDisplay>; 9] = [
    ("TRUST", |one| one.name.clone()),
    ("ANCHORS", |one| one.anchors.to_string()),
    ("PINNED", |one| one.pinned.len().to_string()),
    ("SUBJECT", |one| {
        let first = one.certificates.first().or_else(|| one.pinned.first());
        optional(first.map(|certificate| &certificate.subject))
    }),
    ("EXPIRES", |one| minute(one.expires)),
    ("DAYS", |one| optional(one.days_left)),
    ("REVOCATION", |one| one.revocation.clone()),
    ("CRL-UNTIL", |one| minute(one.crl_until)),
    ("RULES", |one| list(&one.rules)),
];

impl Table for IdentitiesDisplay {
    fn text(&self, width: TextWidth) -> String {
        let optional = &["KEY", "EXPIRES", "NAMES"];
        let identities = table(&self.identities, &IDENTITIES, width.without(optional));
        let optional = &["CRL-UNTIL", "PINNED", "ANCHORS", "EXPIRES"];
        format!("{identities}\n{}", table(&self.trusts, &TRUSTS, width.without(optional)))
    }
}

/// The date and minute of a time.
fn minute(time: Option<Rfc3339>) -> String {
    let text = time.map(|time| time.to_string());
    let parts = text.as_ref().and_then(|text| text.get(..16)?.split_once('T'));
    parts.map_or_else(|| ABSENT.to_owned(), |(day, minute)| format!("{day} {minute} UTC"))
}
