//! Reads certificates from PEM files.

use std::path::Path;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::error::CredentialFault;
use crate::facts::CertificateFacts;
use crate::files::{self, FileContent, ReadError};

/// Reads a file of certificates, keys or CRLs.
pub(super) fn read(path: &Path) -> Result<FileContent, CredentialFault> {
    let mut content = files::read(path).map_err(|error| match error {
        ReadError::Io(error) => CredentialFault::Unreadable(error),
        ReadError::NotRegular => CredentialFault::NotRegular,
        ReadError::TooLarge => CredentialFault::TooLarge,
    })?;
    hide_byte_order_marks(&mut content.bytes);
    Ok(content)
}

/// Editors of Windows write a byte order mark at the beginning of a text, so a BEGIN line would not
/// be at the beginning of its line. Files that were joined can have such marks inside.
fn hide_byte_order_marks(bytes: &mut [u8]) {
    const MARK_AND_BEGIN: &[u8] = b"\xef\xbb\xbf-----BEGIN ";
    let mut rest = bytes;
    while let Some(at) = rest.windows(MARK_AND_BEGIN.len()).position(|it| it == MARK_AND_BEGIN) {
        rest = &mut rest[at..];
        if let [first, second, third, ..] = rest {
            // An empty line in place of the mark: the bytes of a key are not copied.
            (*first, *second, *third) = (b' ', b' ', b'\n');
        }
    }
}

/// Returns the certificates of a PEM file, in the order of the file; at least one.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CredentialFault> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|error| CredentialFault::BadPem(error.to_string()))?;
    if chain.is_empty() {
        return Err(if is_pkcs12(pem) {
            CredentialFault::Pkcs12 { convert: "openssl pkcs12 -in OLD -nokeys -out NEW" }
        } else if is_der(pem) {
            CredentialFault::Der { convert: "openssl x509 -inform DER -in OLD -out NEW" }
        } else {
            CredentialFault::NoCertificate
        });
    }
    Ok(chain)
}

/// Checks that all of these certificates are valid X.509. Peers get the whole chain.
pub(super) fn check_all(chain: &[CertificateDer<'_>]) -> Result<(), CredentialFault> {
    (0..chain.len()).try_for_each(|index| facts_of(chain, index).map(drop))
}

/// Returns the facts of one of these certificates.
pub(super) fn facts_of(
    chain: &[CertificateDer<'_>],
    index: usize,
) -> Result<CertificateFacts, CredentialFault> {
    let bad = CredentialFault::BadCertificate { number: index + 1 };
    let Some(der) = chain.get(index) else { return Err(bad) };
    CertificateFacts::from_der(der).map_err(|_| bad)
}

/// Whether a file is PKCS #12 (`.p12`, `.pfx`): a DER sequence that begins with version 3 (RFC 7292
/// section 4). Certificates and keys begin with other values.
pub(super) fn is_pkcs12(bytes: &[u8]) -> bool {
    let ([0x30, 0x81, _, content @ ..]
    | [0x30, 0x82, _, _, content @ ..]
    | [0x30, 0x83, _, _, _, content @ ..]) = bytes
    else {
        return false;
    };
    content.starts_with(&[0x02, 0x01, 0x03])
}

/// Whether a file is DER instead of PEM.
pub(super) fn is_der(bytes: &[u8]) -> bool {
    // A sequence of 128 bytes or more. A text cannot contain the second byte.
    matches!(bytes, [0x30, 0x81..=0x84, ..])
}
