//! Verifies the handshake signature of a peer. The signature proves that the peer holds the private
//! key of its certificate.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::{CertificateError, Error};
use rustls_pki_types::CertificateDer;
use webpki::EndEntityCert;
use x509_parser::prelude::{FromDer as _, SubjectPublicKeyInfo};

use crate::check::PeerCheck;
use crate::credentials::error_of;
use crate::diagnose::{PeerRole, diagnose_proof, diagnose_unprovable};
use crate::facts::CertificateFacts;
use crate::outcome::report_check;

/// The signature algorithms that are accepted.
pub(crate) fn algorithms() -> WebPkiSupportedAlgorithms {
    aws_lc_rs::default_provider().signature_verification_algorithms
}

/// Replaces the result of the chain by the reason for a failed proof of possession. If no peer
/// could prove that it holds this key, the certificate is at fault, and the alert reports that.
pub(super) fn proved(
    result: Result<HandshakeSignatureValid, Error>,
    peer: PeerRole,
    leaf: &CertificateDer<'_>,
) -> Result<HandshakeSignatureValid, Error> {
    result.map_err(|error| match provable(peer, leaf) {
        Ok(()) => {
            report_check(PeerCheck::Invalid { reason: diagnose_proof(&error, peer, leaf) });
            error
        }
        Err(reason) => {
            report_check(PeerCheck::Invalid { reason });
            CertificateError::BadEncoding.into()
        }
    })
}

/// Whether a handshake with this leaf can succeed at all, even if the check is waived: the
/// signatures of its key must be verifiable.
///
/// # Errors
/// The reason, in one line with the fix.
pub(crate) fn provable(peer: PeerRole, leaf: &CertificateDer<'_>) -> Result<(), String> {
    let unprovable = |error: Option<&Error>| Err(diagnose_unprovable(error, peer, leaf));
    let read = match EndEntityCert::try_from(leaf) {
        Ok(read) => read,
        Err(error) => return unprovable(Some(&error_of(error))),
    };
    let key = read.subject_public_key_info();
    let Ok((_, key)) = SubjectPublicKeyInfo::from_der(&key) else { return unprovable(None) };
    let algorithm = algorithm_bytes(&key);
    let is_known = algorithms().all.iter().any(|known| *known.public_key_alg_id() == *algorithm);
    let is_small = CertificateFacts::from_der(leaf).is_ok_and(|facts| facts.has_weak_key());
    if is_known && !is_small { Ok(()) } else { unprovable(None) }
}

/// Returns the AlgorithmIdentifier of a key without its outer header, which is the format of the
/// algorithms' own identifiers.
fn algorithm_bytes(key: &SubjectPublicKeyInfo<'_>) -> Vec<u8> {
    use x509_parser::der_parser::asn1_rs::{Any, ToDer as _};
    let algorithm = &key.algorithm;
    let mut bytes = algorithm.algorithm.to_der_vec().unwrap_or_default();
    if let Some(parameters) = &algorithm.parameters {
        let parameters: &Any<'_> = parameters;
        bytes.extend(parameters.to_der_vec().unwrap_or_default());
    }
    bytes
}
