//! Defines identity maps. A map gives a client a name, based on the client's address and verified
//! certificate.
//!
//! ```text
//!   [[map.people]]  ─┐
//!   [[map.people]]  ─┼─ sorted, most specific first ──> the first entry that matches decides:
//!   [[map.people]]  ─┘                                      name, deny, or warn
//! ```
//!
//! The order of the entries in the file does not matter. To find the more specific of two entries,
//! this module compares their conditions. It compares the conditions in the order `uri`, `dns`,
//! `email`, `ip`, `subject`, `issuer`, `address`, until a condition differs. For this condition,
//! the more specific entry is
//!
//! * the only entry that has this condition;
//! * or else, the entry with more values in this condition;
//! * or else, the entry with more values without `*`;
//! * or else, the entry whose values have more characters, or longer network prefixes.
//!
//! If two equally specific entries match and have different outcomes, the client gets no name. If
//! the parser can detect such a conflict, it rejects the policy.
//!
//! Limit: [`ENTRIES_MAX`] entries. Other modules parse and verify the certificates.

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

use super::diagnostic::SourcePosition;
use super::selector::AddressSelector;
use distinguished::{DnAttribute, DnPattern};
use pattern::{Pattern, Weight};

pub mod distinguished;
pub mod pattern;

/// The largest number of entries in one map.
pub const ENTRIES_MAX: usize = 1024;

/// The conditions of an entry, most significant first.
pub const CONDITIONS: [&str; 7] = ["uri", "dns", "email", "ip", "subject", "issuer", "address"];

/// `[[map.NAME]]`: entries, the most specific first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityMap {
    entries: Vec<MapEntry>,
}

/// One `[[map.NAME]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// The conditions; all must hold.
    pub conditions: Conditions,
    /// The result for a certificate that matches.
    pub outcome: MapOutcome,
    /// Its position in the policy text.
    pub position: SourcePosition,
}

/// The result of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MapOutcome {
    /// The client gets this name.
    Name(String),
    /// The client is rejected.
    Deny,
    /// The client would be rejected. The agent only logs that, and the client gets no name.
    Warn,
}

/// Conditions on a certificate and its address; at least one is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// One of its URIs.
    pub uri: Option<Pattern>,
    /// One of its DNS names, in lower case.
    pub dns: Option<Pattern>,
    /// One of its e-mail addresses, the domain in lower case.
    pub email: Option<Pattern>,
    /// One of its IP addresses.
    pub ip: Option<AddressSelector>,
    /// Its subject.
    pub subject: Option<DnPattern>,
    /// Its issuer.
    pub issuer: Option<DnPattern>,
    /// The address of the client.
    pub address: Option<AddressSelector>,
}

/// The names in a client's certificate, and the client's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateSubject {
    uris: Vec<String>,
    dns: Vec<String>,
    emails: Vec<String>,
    ips: Vec<IpAddr>,
    subject: Vec<DnAttribute>,
    issuer: Vec<DnAttribute>,
    address: Option<IpAddr>,
}

/// One name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateName {
    /// A URI of the subjectAltName.
    Uri(String),
    /// A DNS name of the subjectAltName.
    Dns(String),
    /// An e-mail address of the subjectAltName.
    Email(String),
    /// An IP address of the subjectAltName.
    Ip(IpAddr),
    /// An attribute of the subject, in order.
    Subject(DnAttribute),
    /// An attribute of the issuer, in order.
    Issuer(DnAttribute),
}

/// The result of a look-up in a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped<'m> {
    /// The entry that decides.
    Entry(&'m MapEntry),
    /// Two matching entries are equally specific and have different outcomes.
    Ambiguous(&'m MapEntry, &'m MapEntry),
    /// No entry matches.
    NoMatch,
}

/// An entry that does not decide, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedEntry {
    /// Its line in the policy.
    pub line: usize,
    /// The reason.
    pub why: String,
}

impl IdentityMap {
    /// Creates a map from entries in any order.
    #[must_use]
    pub fn new(mut entries: Vec<MapEntry>) -> Self {
        // The sort is stable; the order of equal entries does not matter.
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.conditions.weights()));
        Self { entries }
    }

    /// Its entries, the most specific first.
    #[must_use]
    pub fn entries(&self) -> &[MapEntry] {
        &self.entries
    }

    /// Whether both maps have the same entries, apart from their positions in the text.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        self.entries.len() == other.entries.len()
            && self.entries.iter().zip(&other.entries).all(|(one, another)| {
                one.conditions == another.conditions && one.outcome == another.outcome
            })
    }

    /// Looks up a certificate.
    #[must_use]
    pub fn find(&self, certificate: &CertificateSubject) -> Mapped<'_> {
        let mut matching = self.entries.iter().filter(|entry| entry.matches(certificate).is_ok());
        let Some(first) = matching.next() else { return Mapped::NoMatch };
        let weights = first.conditions.weights();
        let rival = matching
            .take_while(|entry| entry.conditions.weights() == weights)
            .find(|entry| entry.outcome != first.outcome);
        rival.map_or(Mapped::Entry(first), |rival| Mapped::Ambiguous(first, rival))
    }

    /// Returns the entries that do not decide, in the order of the text, with the reasons.
    #[must_use]
    pub fn passed(&self, certificate: &CertificateSubject) -> Vec<SkippedEntry> {
        let decide = match self.find(certificate) {
            Mapped::Entry(entry) => vec![entry],
            Mapped::Ambiguous(one, another) => vec![one, another],
            Mapped::NoMatch => Vec::new(),
        };
        let weights = decide.first().map(|entry| entry.conditions.weights());
        let why = |entry: &MapEntry| match entry.matches(certificate) {
            Err(condition) => format!("`{condition}` does not match"),
            Ok(()) if weights == Some(entry.conditions.weights()) => {
                "this entry also matches, and gives the same result as the chosen entry".to_owned()
            }
            Ok(()) => {
                "this entry also matches, but is less specific than the chosen entry".to_owned()
            }
        };
        let decides = |entry: &MapEntry| decide.iter().any(|other| std::ptr::eq(entry, *other));
        let others = self.entries.iter().filter(|entry| !decides(entry));
        let mut passed: Vec<_> = others
            .map(|entry| SkippedEntry { line: entry.position.line, why: why(entry) })
            .collect();
        passed.sort_by_key(|passed| passed.line);
        passed
    }

    /// Returns each entry that conflicts with another entry, with the first such entry.
    #[must_use]
    pub fn conflicts(&self) -> Vec<Conflict<'_>> {
        let groups = self.entries.chunk_by(|a, b| a.conditions.weights() == b.conditions.weights());
        let mut conflicts = Vec::new();
        for equals in groups {
            for (at, entry) in equals.iter().enumerate() {
                let before = equals.iter().take(at);
                let rival = before.into_iter().find(|rival| {
                    rival.outcome != entry.outcome && rival.conditions.overlaps(&entry.conditions)
                });
                conflicts.extend(rival.map(|earlier| Conflict { earlier, later: entry }));
            }
        }
        conflicts
    }
}

/// Two equally specific entries with different outcomes that can match the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict<'m> {
    /// The earlier one.
    pub earlier: &'m MapEntry,
    /// The later one.
    pub later: &'m MapEntry,
}

impl MapEntry {
    /// Whether the entry matches; if not, the first condition that does not hold.
    ///
    /// # Errors
    /// That condition, one of [`CONDITIONS`].
    pub fn matches(&self, certificate: &CertificateSubject) -> Result<(), &'static str> {
        let Conditions { uri, dns, email, ip, subject, issuer, address } = &self.conditions;
        let any = |pattern: &Option<Pattern>, names: &[String]| {
            pattern.as_ref().is_none_or(|it| names.iter().any(|name| it.matches(name)))
        };
        let holds = [
            any(uri, &certificate.uris),
            any(dns, &certificate.dns),
            any(email, &certificate.emails),
            ip.as_ref()
                .is_none_or(|it| certificate.ips.iter().any(|ip| it.matches(Some(*ip), &[]))),
            subject.as_ref().is_none_or(|it| it.matches(&certificate.subject)),
            issuer.as_ref().is_none_or(|it| it.matches(&certificate.issuer)),
            address.as_ref().is_none_or(|it| it.matches(certificate.address, &[])),
        ];
        let failed = CONDITIONS.into_iter().zip(holds).find(|(_, holds)| !holds);
        failed.map_or(Ok(()), |(condition, _)| Err(condition))
    }
}

impl Conditions {
    /// Returns how specific each condition is, in the order of [`CONDITIONS`]; `None` if there is
    /// no such condition.
    fn weights(&self) -> [Option<Weight>; 7] {
        let text = |pattern: &Option<Pattern>| pattern.as_ref().map(Pattern::weight);
        let name = |pattern: &Option<DnPattern>| pattern.as_ref().map(DnPattern::weight);
        let address = |it: &Option<AddressSelector>| it.as_ref().map(address_weight);
        [
            text(&self.uri),
            text(&self.dns),
            text(&self.email),
            address(&self.ip),
            name(&self.subject),
            name(&self.issuer),
            address(&self.address),
        ]
    }

    /// Whether a certificate with one name of each kind can match both entries, which are equally
    /// specific.
    fn overlaps(&self, other: &Self) -> bool {
        fn both<T>(a: &Option<T>, b: &Option<T>, overlap: impl Fn(&T, &T) -> bool) -> bool {
            a.as_ref().zip(b.as_ref()).is_none_or(|(a, b)| overlap(a, b))
        }
        both(&self.uri, &other.uri, Pattern::overlaps)
            && both(&self.dns, &other.dns, Pattern::overlaps)
            && both(&self.email, &other.email, Pattern::overlaps)
            // Two prefixes of the same length are equal or disjoint.
            && both(&self.ip, &other.ip, PartialEq::eq)
            && both(&self.subject, &other.subject, DnPattern::overlaps)
            && both(&self.issuer, &other.issuer, DnPattern::overlaps)
            && both(&self.address, &other.address, PartialEq::eq)
    }
}

fn address_weight(address: &AddressSelector) -> Weight {
    let letters = match address {
        AddressSelector::Prefix { length, .. } => usize::from(*length),
        _ => 0,
    };
    Weight { values: 1, whole: 0, letters }
}

impl CertificateSubject {
    /// A certificate subject with these names and this client address; `None`: the client has no IP
    /// address.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = CertificateName>, address: Option<IpAddr>) -> Self {
        let address = address.map(|ip| ip.to_canonical());
        let mut certificate = Self { address, ..Self::default() };
        let folded = |it: DnAttribute| DnAttribute { value: it.value.to_ascii_lowercase(), ..it };
        for name in names {
            match name {
                CertificateName::Uri(uri) => certificate.uris.push(uri),
                CertificateName::Dns(name) => certificate.dns.push(name.to_ascii_lowercase()),
                CertificateName::Email(email) => certificate.emails.push(fold_email(&email)),
                CertificateName::Ip(ip) => certificate.ips.push(ip.to_canonical()),
                CertificateName::Subject(attribute) => certificate.subject.push(folded(attribute)),
                CertificateName::Issuer(attribute) => certificate.issuer.push(folded(attribute)),
            }
        }
        certificate
    }
}

/// Converts the domain to lower case. The local part stays unchanged (RFC 5280 section 7.5).
pub(super) fn fold_email(email: &str) -> String {
    match email.rsplit_once('@') {
        Some((local, domain)) => format!("{local}@{}", domain.to_ascii_lowercase()),
        None => email.to_owned(),
    }
}

impl fmt::Display for MapOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "name {name}"),
            Self::Deny => f.write_str("deny"),
            Self::Warn => f.write_str("warn (the client is logged, but not denied)"),
        }
    }
}

#[cfg(test)]
mod tests;
