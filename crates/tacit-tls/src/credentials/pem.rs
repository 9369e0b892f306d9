//! Certificates in PEM files, read whole.

use std::path::Path;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::error::CredentialFault;
use crate::facts::CertificateFacts;
use crate::files::{self, FileContent, ReadError};

/// Reads a file of certificates, keys or lists.
pub(super) fn read(path: &Path) -> Result<FileContent, CredentialFault> {
    files::read(path).map_err(|error| match error {
        ReadError::Io(error) => CredentialFault::Unreadable(error),
        ReadError::NotRegular => CredentialFault::NotRegular,
        ReadError::TooLarge => CredentialFault::TooLarge,
    })
}

/// The certificates of a PEM file, in its order; at least one.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CredentialFault> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|error| CredentialFault::BadPem(error.to_string()))?;
    if chain.is_empty() {
        return Err(if is_der(pem) {
            CredentialFault::Der { convert: "openssl x509 -inform DER -in OLD -out NEW" }
        } else {
            CredentialFault::NoCertificate
        });
    }
    Ok(chain)
}

/// What one of these certificates says.
pub(super) fn facts_of(
    chain: &[CertificateDer<'_>],
    index: usize,
) -> Result<CertificateFacts, CredentialFault> {
    let bad = CredentialFault::BadCertificate { number: index + 1 };
    let Some(der) = chain.get(index) else { return Err(bad) };
    CertificateFacts::from_der(der).map_err(|_| bad)
}

/// Whether a file is DER where PEM is expected.
pub(super) fn is_der(bytes: &[u8]) -> bool {
    // A sequence of 128 bytes or more: no text has the second byte.
    matches!(bytes, [0x30, 0x81..=0x84, ..])
}
