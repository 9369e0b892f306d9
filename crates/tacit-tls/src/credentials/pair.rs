//! Loads a certificate chain and its private key. [`KeyProvider`] selects which process holds the
//! key: this process, or the signer (a process that only signs).

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::SigningKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::error::CredentialFault;
use super::expiry::now_seconds;
use super::pem::{certificates, check_all, facts_of, is_der, is_pkcs12, read};
use crate::facts::CertificateFacts;
use crate::files::{FileStamp, is_exposed};
use crate::signer::{KeyProvider, PairFile, RemoteKey, signing_key};

/// A certificate chain, and its key for signatures.
pub(crate) struct ChainAndKey {
    /// The certificates, the leaf first.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: Arc<dyn SigningKey>,
    pub(crate) cert: FileStamp,
    pub(crate) key_file: FileStamp,
}

/// A fault in one of the two files.
#[derive(Debug)]
pub(crate) struct PairFault {
    pub(crate) at: PairFile,
    pub(crate) fault: CredentialFault,
}

pub(super) fn load_pair(
    keys: &KeyProvider,
    cert: &Path,
    key: &Path,
) -> Result<ChainAndKey, PairFault> {
    let Some(signer_client) = keys.signer_client() else { return read_pair(cert, key) };
    let generation = signer_client.next_generation();
    let pair = signer_client.load(generation, cert, key).map_err(|refused| PairFault {
        at: refused.at,
        fault: CredentialFault::AtSigner(refused.fault),
    })?;
    let key = signing_key(RemoteKey::new(generation, &pair, signer_client));
    let chain = pair.chain.into_iter().map(CertificateDer::from).collect();
    Ok(ChainAndKey { chain, key, cert: pair.cert, key_file: pair.key })
}

/// Reads both files in this process and checks the leaf certificate. The caller checks that the key
/// matches.
pub(crate) fn read_pair(cert: &Path, key: &Path) -> Result<ChainAndKey, PairFault> {
    let at_cert = |fault| PairFault { at: PairFile::Cert, fault };
    let at_key = |fault| PairFault { at: PairFile::Key, fault };
    let certs = read(cert).map_err(at_cert)?;
    let chain = certificates(&certs.bytes).map_err(at_cert)?;
    let content = read(key).map_err(at_key)?;
    refuse_exposed(content.mode).map_err(at_key)?;
    let private = one_key(&content.bytes).map_err(at_key)?;
    if content.stamp != certs.stamp && private_keys(&certs.bytes).next().is_some() {
        refuse_exposed(certs.mode).map_err(at_cert)?;
    }
    check_all(&chain).map_err(at_cert)?;
    let facts = facts_of(&chain, 0).map_err(at_cert)?;
    check_leaf(&facts, now_seconds()).map_err(at_cert)?;
    let key = any_supported_type(&private).map_err(|_| at_key(CredentialFault::KeyUnusable))?;
    Ok(ChainAndKey { chain, key, cert: certs.stamp, key_file: content.stamp })
}

fn one_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, CredentialFault> {
    let contains = |word: &[u8]| pem.windows(word.len()).any(|window| window == word);
    if contains(b"BEGIN ENCRYPTED PRIVATE KEY") || contains(b"Proc-Type: 4,ENCRYPTED") {
        return Err(CredentialFault::KeyEncrypted);
    }
    let mut keys = private_keys(pem);
    let Some(key) = keys.next() else {
        return Err(if is_pkcs12(pem) {
            CredentialFault::Pkcs12 {
                convert: "(umask 077; openssl pkcs12 -in OLD -nocerts -nodes -out NEW)",
            }
        } else if is_der(pem) {
            CredentialFault::Der { convert: "openssl pkey -inform DER -in OLD -out NEW" }
        } else {
            CredentialFault::NoKey
        });
    };
    // The error text must not contain bytes of the key.
    let key = key.map_err(|_| CredentialFault::BadPem("the private key is damaged".to_owned()))?;
    match keys.count() {
        0 => Ok(key),
        more => Err(CredentialFault::SeveralKeys(more + 1)),
    }
}

fn private_keys(
    pem: &[u8],
) -> impl Iterator<Item = Result<PrivateKeyDer<'static>, rustls_pki_types::pem::Error>> {
    PrivateKeyDer::pem_slice_iter(pem)
}

fn refuse_exposed(mode: u32) -> Result<(), CredentialFault> {
    if is_exposed(mode) { Err(CredentialFault::KeyExposed { mode }) } else { Ok(()) }
}

fn check_leaf(facts: &CertificateFacts, now: i64) -> Result<(), CredentialFault> {
    let subject = || facts.title().to_owned();
    if facts.version < 3 {
        return Err(CredentialFault::OldVersion { subject: subject(), version: facts.version });
    }
    if facts.has_weak_key() {
        return Err(CredentialFault::WeakKey { subject: subject(), key: facts.key.clone() });
    }
    if now > facts.not_after {
        return Err(CredentialFault::Expired { subject: subject(), not_after: facts.not_after });
    }
    if now < facts.not_before {
        return Err(CredentialFault::NotYetValid {
            subject: subject(),
            not_before: facts.not_before,
        });
    }
    Ok(())
}
