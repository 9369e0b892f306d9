//! Identities and trusts: from the files a policy names to what a handshake uses.
//!
//! ```text
//!   cert.pem, key.pem -> load_identity -> IdentityMaterial   who we are
//!   ca.pem, ca.crl …  -> load_trust    -> TrustMaterial      whom we believe
//! ```
//!
//! What cannot work is an error here, before any connection is opened: a missing or exposed key, a
//! key of another certificate, an expired certificate. What will probably not work is a warning.
//! A private key is kept by rustls alone, and no message holds a byte of it.
//!
//! Reloading is the caller's: load again when a [`FileStamp`] of `sources` has changed, and keep
//! what there was if that fails. Not done here: asking for a passphrase, keys in hardware, fetching
//! lists of revoked certificates.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tacit_core::policy::Identity;

use super::facts::{CertificateFacts, utc};
use super::files::{self, Content, FileStamp, ReadError};

mod error;
mod lists;
mod trust;

pub use error::{MaterialError, MaterialFault};
#[cfg(feature = "fuzz")]
pub(super) use lists::list_facts;
pub use lists::{ListFacts, RevocationList, list_ends_soon};
pub use trust::{TrustGeneration, TrustMaterial, load_trust};

/// A certificate that ends sooner than this is warned about.
pub const EXPIRY_WARNING_DAYS: i64 = 30;

/// An identity, ready for handshakes.
#[derive(Clone, Debug)]
pub struct IdentityMaterial {
    /// Its name in the policy.
    pub name: String,
    /// Chain and key.
    pub certified_key: Arc<CertifiedKey>,
    /// What the leaf says.
    pub facts: CertificateFacts,
    /// The files it was read from.
    pub sources: Vec<FileStamp>,
    /// What will probably not work; one line each.
    pub warnings: Vec<String>,
}

impl IdentityMaterial {
    /// Whether it presents the same chain. The key fits the chain, so it is the same too.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        self.certified_key.cert == other.certified_key.cert
    }
}

/// Loads the certificate chain and key of `[identity.NAME]`; relative paths start at `base`.
///
/// # Errors
/// If the identity could not be used in a handshake; see [`MaterialFault`].
pub fn load_identity(
    name: &str,
    identity: &Identity,
    base: &Path,
) -> Result<IdentityMaterial, MaterialError> {
    let owner = format!("identity '{name}'");
    let cert_path = base.join(&identity.cert);
    let key_path = base.join(&identity.key);
    let at_cert = |fault| MaterialError { owner: owner.clone(), path: cert_path.clone(), fault };
    let at_key = |fault| MaterialError { owner: owner.clone(), path: key_path.clone(), fault };

    let certs = read(&cert_path).map_err(at_cert)?;
    let chain = certificates(&certs.bytes).map_err(at_cert)?;
    let (key, key_stamp) = load_key(&key_path).map_err(at_key)?;
    if key_stamp != certs.stamp && private_keys(&certs.bytes).next().is_some() {
        refuse_exposed(certs.mode).map_err(at_cert)?;
    }

    let facts = facts_of(&chain, 0).map_err(at_cert)?;
    let now = now_seconds();
    check_leaf(&facts, now).map_err(at_cert)?;
    let key = any_supported_type(&key).map_err(|_| at_key(MaterialFault::KeyUnusable))?;
    let certified_key = CertifiedKey::new(chain, key);
    certified_key.keys_match().map_err(|_| {
        let (subject, is_ca) = (facts.title().to_owned(), facts.is_ca);
        at_key(MaterialFault::KeyMismatch { subject, is_ca })
    })?;

    Ok(IdentityMaterial {
        name: name.to_owned(),
        warnings: identity_warnings(&owner, &facts, now),
        certified_key: Arc::new(certified_key),
        facts,
        sources: vec![certs.stamp, key_stamp],
    })
}

/// Reads a chain, the leaf first, without asking whether it is any good.
///
/// # Errors
/// If the file holds no certificates in PEM.
pub fn load_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, MaterialError> {
    let chain = read(path).and_then(|content| certificates(&content.bytes));
    let owner = "peer".to_owned();
    chain.map_err(|fault| MaterialError { owner, path: path.to_owned(), fault })
}

fn read(path: &Path) -> Result<Content, MaterialFault> {
    files::read(path).map_err(|error| match error {
        ReadError::Io(error) => MaterialFault::Unreadable(error),
        ReadError::NotRegular => MaterialFault::NotRegular,
        ReadError::TooLarge => MaterialFault::TooLarge,
    })
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, MaterialFault> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|error| MaterialFault::BadPem(error.to_string()))?;
    if chain.is_empty() {
        return Err(if is_der(pem) {
            MaterialFault::Der { convert: "openssl x509 -inform DER -in OLD -out NEW" }
        } else {
            MaterialFault::NoCertificate
        });
    }
    Ok(chain)
}

fn facts_of(chain: &[CertificateDer<'_>], index: usize) -> Result<CertificateFacts, MaterialFault> {
    let bad = MaterialFault::BadCertificate { number: index + 1 };
    let Some(der) = chain.get(index) else { return Err(bad) };
    CertificateFacts::from_der(der).map_err(|_| bad)
}

fn load_key(path: &Path) -> Result<(PrivateKeyDer<'static>, FileStamp), MaterialFault> {
    let content = read(path)?;
    refuse_exposed(content.mode)?;
    Ok((one_key(&content.bytes)?, content.stamp))
}

fn one_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, MaterialFault> {
    let contains = |word: &[u8]| pem.windows(word.len()).any(|window| window == word);
    if contains(b"BEGIN ENCRYPTED PRIVATE KEY") || contains(b"Proc-Type: 4,ENCRYPTED") {
        return Err(MaterialFault::KeyEncrypted);
    }
    let mut keys = private_keys(pem);
    let Some(key) = keys.next() else {
        return Err(if is_der(pem) {
            MaterialFault::Der { convert: "openssl pkey -inform DER -in OLD -out NEW" }
        } else {
            MaterialFault::NoKey
        });
    };
    // An error of the reader names what it stumbled over, never key bytes.
    let key = key.map_err(|_| MaterialFault::BadPem("the private key is damaged".to_owned()))?;
    match keys.count() {
        0 => Ok(key),
        more => Err(MaterialFault::SeveralKeys(more + 1)),
    }
}

fn private_keys(
    pem: &[u8],
) -> impl Iterator<Item = Result<PrivateKeyDer<'static>, rustls_pki_types::pem::Error>> {
    PrivateKeyDer::pem_slice_iter(pem)
}

fn refuse_exposed(mode: u32) -> Result<(), MaterialFault> {
    if mode & 0o077 == 0 { Ok(()) } else { Err(MaterialFault::KeyExposed { mode }) }
}

fn check_leaf(facts: &CertificateFacts, now: i64) -> Result<(), MaterialFault> {
    let subject = || facts.title().to_owned();
    if facts.version < 3 {
        return Err(MaterialFault::OldVersion { subject: subject(), version: facts.version });
    }
    if facts.has_weak_key() {
        return Err(MaterialFault::WeakKey { subject: subject(), key: facts.key.clone() });
    }
    if now > facts.not_after {
        return Err(MaterialFault::Expired { subject: subject(), not_after: facts.not_after });
    }
    if now < facts.not_before {
        return Err(MaterialFault::NotYetValid {
            subject: subject(),
            not_before: facts.not_before,
        });
    }
    Ok(())
}

fn identity_warnings(owner: &str, facts: &CertificateFacts, now: i64) -> Vec<String> {
    let title = facts.title();
    let mut warnings = Vec::new();
    if let Some(warning) = expiry_warning(facts, now) {
        warnings.push(format!("{owner}: the certificate of {title} {warning}"));
    }
    let for_clients_only = facts.usages == ["clientAuth"];
    if facts.sans.is_empty() && !for_clients_only {
        warnings.push(format!(
            "{owner}: the certificate of {title} has no subjectAltName; clients that check names \
             refuse it, the common name does not count: reissue it with subjectAltName = DNS:…"
        ));
    }
    if facts.is_ca {
        warnings.push(format!(
            "{owner}: {title} is a CA certificate; peers may refuse it as a leaf: \
             issue a leaf from it"
        ));
    }
    warnings
}

fn expiry_warning(facts: &CertificateFacts, now: i64) -> Option<String> {
    let (days, at) = (facts.days_left(now), utc(facts.not_after));
    if days < 0 {
        return Some(format!("expired at {at}"));
    }
    ends_soon(facts, now).then(|| format!("expires in {days} days, at {at}: renew it"))
}

/// Whether a certificate ends within [`EXPIRY_WARNING_DAYS`], or has ended.
#[must_use]
pub fn ends_soon(facts: &CertificateFacts, now: i64) -> bool {
    facts.days_left(now) < EXPIRY_WARNING_DAYS
}

fn is_der(bytes: &[u8]) -> bool {
    // A sequence of 128 bytes or more: no text has the second byte.
    matches!(bytes, [0x30, 0x81..=0x84, ..])
}

fn now_seconds() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
