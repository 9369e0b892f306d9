//! Defines the content of `tacit show identities`: the certificates, `[trust]` tables and CRLs of
//! the policy. The output contains no part of a private key.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tacit_tls::credentials::{CrlFacts, LoadedTrust, Pinned};
use tacit_tls::facts::CertificateFacts;

use crate::clock::{self, Rfc3339};
use crate::live::{CredentialNames, Credentials, Live};

use super::VERSION;
use super::connections::CertificateState;

/// The credentials of the installed policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct IdentitiesDisplay {
    /// The version of this format.
    pub version: u32,
    /// The identities, by name.
    pub identities: Vec<IdentityDisplay>,
    /// The trusts, by name.
    pub trusts: Vec<TrustDisplay>,
}

/// One identity: a certificate with its key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct IdentityDisplay {
    /// Its name in the policy.
    pub name: String,
    /// Always `identity`.
    pub kind: String,
    /// Its certificate.
    pub certificate: CertificateState,
    /// Days until the certificate expires; negative if it has expired.
    pub days_left: i64,
    /// The files that it was read from.
    pub files: Vec<PathBuf>,
    /// The rules that use it.
    pub rules: Vec<String>,
}

/// One trust: the CAs and pinned certificates with which certificates of peers are checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TrustDisplay {
    /// Its name in the policy.
    pub name: String,
    /// Always `trust`.
    pub kind: String,
    /// The number of trust anchors.
    pub anchors: usize,
    /// The certificates of the anchors that the policy names.
    pub certificates: Vec<CertificateState>,
    /// When the first anchor or pinned certificate expires.
    pub expires: Option<Rfc3339>,
    /// Days until then; negative if it has expired.
    pub days_left: Option<i64>,
    /// The pinned certificates of peers.
    pub pinned: Vec<CertificateState>,
    /// `off`, `soft` or `hard`.
    pub revocation: String,
    /// Its CRLs.
    pub crls: Vec<CrlState>,
    /// When the first CRL is out of date.
    pub crl_until: Option<Rfc3339>,
    /// The files that it was read from.
    pub files: Vec<PathBuf>,
    /// The rules that use it.
    pub rules: Vec<String>,
}

/// One CRL.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CrlState {
    /// The CA that issued it.
    pub issuer: String,
    /// When it was issued.
    pub this_update: Rfc3339,
    /// When the CA issues the next one.
    pub next_update: Rfc3339,
    /// The number of revoked certificates.
    pub revoked: usize,
    /// The file that it was read from.
    pub file: PathBuf,
}

/// The credentials in use.
#[must_use]
pub fn identities(credentials: &Credentials, live: &Live) -> IdentitiesDisplay {
    let now = clock::now_unix_s();
    let users = Users::of(live);
    let identities = credentials.identities.iter().map(|(name, loaded)| IdentityDisplay {
        name: name.clone(),
        kind: "identity".to_owned(),
        certificate: CertificateState::of(&loaded.facts),
        days_left: loaded.facts.days_left(now),
        files: loaded.sources.iter().map(|file| file.path.clone()).collect(),
        rules: names(users.identities.get(name.as_str())),
    });
    let trusts = credentials.trusts.iter().map(|(name, loaded)| TrustDisplay {
        name: name.clone(),
        kind: "trust".to_owned(),
        anchors: loaded.anchors,
        certificates: states(&loaded.facts),
        expires: first_end(loaded).map(Rfc3339::of_unix_s),
        days_left: certificates(loaded).map(|facts| facts.days_left(now)).min(),
        pinned: states(loaded.pinned.as_ref().map_or(&[][..], Pinned::facts)),
        revocation: loaded.revocation.word().to_owned(),
        crls: loaded.crls.iter().map(|list| CrlState::of(&list.facts)).collect(),
        crl_until: crl_until(loaded).map(Rfc3339::of_unix_s),
        files: loaded.sources.iter().map(|file| file.path.clone()).collect(),
        rules: names(users.trusts.get(name.as_str())),
    });
    IdentitiesDisplay {
        version: VERSION,
        identities: identities.collect(),
        trusts: trusts.collect(),
    }
}

impl CrlState {
    fn of(facts: &CrlFacts) -> Self {
        Self {
            issuer: facts.issuer.clone(),
            this_update: Rfc3339::of_unix_s(facts.this_update),
            next_update: Rfc3339::of_unix_s(facts.next_update),
            revoked: facts.revoked,
            file: facts.file.clone(),
        }
    }
}

fn states(facts: &[CertificateFacts]) -> Vec<CertificateState> {
    facts.iter().map(CertificateState::of).collect()
}

/// The anchors and pinned certificates of a trust.
fn certificates(trust: &LoadedTrust) -> impl Iterator<Item = &CertificateFacts> {
    trust.facts.iter().chain(trust.pinned.iter().flat_map(Pinned::facts))
}

/// When the first anchor or pinned certificate of a trust expires, in unix seconds.
fn first_end(trust: &LoadedTrust) -> Option<i64> {
    certificates(trust).map(|facts| facts.not_after).min()
}

/// When the first CRL of a trust is out of date, in unix seconds.
fn crl_until(trust: &LoadedTrust) -> Option<i64> {
    trust.crls.iter().map(|list| list.facts.next_update).min()
}

fn names(rules: Option<&Vec<&str>>) -> Vec<String> {
    rules.into_iter().flatten().map(|name| (*name).to_owned()).collect()
}

/// The rules that use each credential, by its name.
#[derive(Default)]
struct Users<'a> {
    identities: HashMap<&'a str, Vec<&'a str>>,
    trusts: HashMap<&'a str, Vec<&'a str>>,
}

impl<'a> Users<'a> {
    fn of(live: &'a Live) -> Self {
        let mut users = Self::default();
        for rule in &live.rules {
            let names = CredentialNames::of(&rule.rule);
            for name in names.identities {
                users.identities.entry(name).or_default().push(rule.name());
            }
            if let Some(name) = names.trust {
                users.trusts.entry(name).or_default().push(rule.name());
            }
        }
        users
    }
}
