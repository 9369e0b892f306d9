//! Who we are: the certificate chain and the private key of an identity.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tacit_core::policy::Identity;

use super::error::{MaterialError, MaterialFault};
use super::expiry::{expiry_warning, now_seconds};
use super::pem::{certificates, facts_of, is_der, read};
use crate::facts::CertificateFacts;
use crate::failure::Role;
use crate::files::FileStamp;

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

    /// Why peers refuse its certificate where tacit has that role: the extended key usage is for
    /// something else (RFC 5280 section 4.2.1.12).
    #[must_use]
    pub fn wrong_usage(&self, role: Role) -> Option<WrongUsage> {
        let needed = match role {
            Role::Server => "serverAuth",
            Role::Client => "clientAuth",
        };
        let usages = &self.facts.usages;
        let fits =
            usages.is_empty() || usages.iter().any(|usage| usage == needed || usage == "any");
        (!fits).then(|| WrongUsage {
            role,
            identity: self.name.clone(),
            subject: self.facts.title().to_owned(),
            usages: usages.join(", "),
            needed,
        })
    }
}

/// The certificate of an identity is not for the role that a rule gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongUsage {
    role: Role,
    identity: String,
    subject: String,
    usages: String,
    needed: &'static str,
}

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, identity, subject, usages, needed } = self;
        write!(
            f,
            "identity '{identity}': the certificate of {subject} is for {usages}, not for \
             {needed}, so that every {} refuses it: reissue it with extendedKeyUsage = {needed}, \
             or name another identity",
            role.peer()
        )
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
    let LoadedKey { key, stamp: key_stamp } = load_key(&key_path).map_err(at_key)?;
    if key_stamp != certs.stamp && private_keys(&certs.bytes).next().is_some() {
        refuse_exposed(certs.mode).map_err(at_cert)?;
    }

    let facts = facts_of(&chain, 0).map_err(at_cert)?;
    let now = now_seconds();
    check_leaf(&facts, now).map_err(at_cert)?;
    let key = any_supported_type(&key).map_err(|_| at_key(MaterialFault::KeyUnusable))?;
    let certified_key = CertifiedKey::new(chain, key);
    certified_key.keys_match().map_err(|_| {
        let subject = facts.title().to_owned();
        let is_ca = facts.is_ca;
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

/// A private key, and the file that it was read from.
struct LoadedKey {
    key: PrivateKeyDer<'static>,
    stamp: FileStamp,
}

fn load_key(path: &Path) -> Result<LoadedKey, MaterialFault> {
    let content = read(path)?;
    refuse_exposed(content.mode)?;
    Ok(LoadedKey { key: one_key(&content.bytes)?, stamp: content.stamp })
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
