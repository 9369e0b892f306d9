//! The proof that a peer holds the key of its certificate.

use rustls::Error;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls_pki_types::CertificateDer;

use crate::check::PeerCheck;
use crate::diagnose::{Peer, diagnose_proof};
use crate::outcome::report_check;

/// The signatures that count.
pub(super) fn algorithms() -> WebPkiSupportedAlgorithms {
    aws_lc_rs::default_provider().signature_verification_algorithms
}

/// Puts the reason for a failed proof of possession in the place of what the chain gave.
pub(super) fn proved(
    result: Result<HandshakeSignatureValid, Error>,
    peer: Peer,
    leaf: &CertificateDer<'_>,
) -> Result<HandshakeSignatureValid, Error> {
    result.inspect_err(|error| {
        report_check(PeerCheck::Invalid { reason: diagnose_proof(error, peer, leaf) });
    })
}
