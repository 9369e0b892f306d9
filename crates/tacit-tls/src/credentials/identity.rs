//! Loads and checks an identity: a certificate chain with its private key.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;
use tacit_core::policy::Identity;

use super::error::{CredentialError, CredentialFault};
use super::expiry::{expiry_warning, now_seconds};
use super::pair::load_pair;
use super::pem::{certificates, facts_of, read};
use crate::facts::CertificateFacts;
use crate::failure::HandshakeRole;
use crate::fault::FaultText;
use crate::files::FileStamp;
use crate::signer::{KeyProvider, PairFile};

/// An identity that is ready for handshakes.
#[derive(Clone, Debug)]
pub struct LoadedIdentity {
    /// Its name in the policy.
    pub name: String,
    /// The chain and the key.
    pub certified_key: Arc<CertifiedKey>,
    /// The facts of the leaf.
    pub facts: CertificateFacts,
    /// The files from which it was read.
    pub sources: Vec<FileStamp>,
    /// Problems that do not prevent its use, in one line each.
    pub warnings: Vec<String>,
}

impl LoadedIdentity {
    /// Whether both have the same chain. The key matches the chain, so the keys are the same too.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        self.certified_key.cert == other.certified_key.cert
    }

    /// Whether peers reject its certificate when tacit has this role, because the extended key
    /// usage is for another purpose (RFC 5280 section 4.2.1.12).
    #[must_use]
    pub fn wrong_usage(&self, role: HandshakeRole) -> Option<WrongUsage> {
        (!self.facts.is_for(role.usage())).then(|| WrongUsage {
            role,
            identity: self.name.clone(),
            subject: self.facts.title().to_owned(),
            usages: self.facts.usages.join(", "),
            needed: role.usage(),
        })
    }
}

/// The extended key usage of an identity does not allow the role that a rule gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongUsage {
    role: HandshakeRole,
    identity: String,
    subject: String,
    usages: String,
    needed: &'static str,
}

impl WrongUsage {
    /// What is wrong, and what to do.
    #[must_use]
    pub fn text(&self) -> FaultText {
        let Self { role, identity, subject, usages, needed } = self;
        let peer = role.peer();
        FaultText {
            message: format!(
                "[identity.{identity}]: the extendedKeyUsage of the certificate of {subject} \
                 allows {usages}, but not {needed}, so every {peer} rejects the certificate"
            ),
            fix: Some(format!(
                "reissue the certificate with extendedKeyUsage = {needed}, or use another identity"
            )),
        }
    }
}

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text())
    }
}

/// Loads the certificate chain and key of `[identity.NAME]`. Paths are relative to `base`.
///
/// # Errors
/// The identity could not be used in a handshake; see [`CredentialFault`].
pub fn load_identity(
    name: &str,
    identity: &Identity,
    base: &Path,
    keys: &KeyProvider,
) -> Result<LoadedIdentity, CredentialError> {
    let owner = format!("[identity.{name}]");
    let cert_path = base.join(&identity.cert);
    let key_path = base.join(&identity.key);
    let at_cert = |fault| CredentialError { owner: owner.clone(), path: cert_path.clone(), fault };
    let at_key = |fault| CredentialError { owner: owner.clone(), path: key_path.clone(), fault };

    let pair = load_pair(keys, &cert_path, &key_path).map_err(|refused| match refused.at {
        PairFile::Cert => at_cert(refused.fault),
        PairFile::Key => at_key(refused.fault),
    })?;
    let facts = facts_of(&pair.chain, 0).map_err(at_cert)?;
    let now = now_seconds();
    let certified_key = CertifiedKey::new(pair.chain, pair.key);
    certified_key.keys_match().map_err(|_| {
        let subject = facts.title().to_owned();
        let is_ca = facts.is_ca;
        at_key(CredentialFault::KeyMismatch { subject, is_ca })
    })?;

    Ok(LoadedIdentity {
        name: name.to_owned(),
        warnings: identity_warnings(&owner, &facts, now),
        certified_key: Arc::new(certified_key),
        facts,
        sources: vec![pair.cert, pair.key_file],
    })
}

/// Reads a chain, the leaf first, and does not check it.
///
/// # Errors
/// The file contains no certificates in PEM.
pub fn load_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    let chain = read(path).and_then(|content| certificates(&content.bytes));
    let owner = "peer".to_owned();
    chain.map_err(|fault| CredentialError { owner, path: path.to_owned(), fault })
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
            "{owner}: the certificate of {title} has no subjectAltName. Clients that verify the \
             server's name reject this certificate, because they ignore the common name: reissue \
             the certificate with subjectAltName = DNS:…"
        ));
    }
    if facts.is_ca {
        warnings.push(format!(
            "{owner}: {title} is a CA certificate, and peers may reject it because they expect a \
             leaf certificate: issue a leaf certificate from this CA"
        ));
    }
    warnings
}
