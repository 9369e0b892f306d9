//! Creates and finds the payloads that several exchanges use.

use crate::ike::codec::{CertRequestPayload, IkePayload, KePayload, NotifyPayload};
use crate::ike::config::{IkeConfig, RemoteAuth};
use crate::ike::crypto::KeySecret;

/// The notifications of a message.
pub(super) fn notifications(payloads: &[IkePayload]) -> impl Iterator<Item = &NotifyPayload> {
    payloads.iter().filter_map(|payload| match payload {
        IkePayload::Notify(payload) => Some(payload),
        _ => None,
    })
}

/// The key exchange payload with the public value of a secret.
pub(super) fn key_exchange(secret: &KeySecret) -> IkePayload {
    let public_value = secret.public_value().to_vec();
    IkePayload::KeyExchange(KePayload { group: secret.group().number(), public_value })
}

/// Asks a peer that must prove its identity with a signature for its certificate (RFC 7296 section
/// 3.7).
pub(super) fn certificate_request(config: &IkeConfig) -> Option<IkePayload> {
    let RemoteAuth::Signature(verifier) = &config.remote_auth else { return None };
    let mut authorities = verifier.authorities();
    authorities.truncate(AUTHORITIES_MAX);
    Some(IkePayload::CertRequest(CertRequestPayload::x509(&authorities)))
}

/// The most CAs that are named in a request for certificates.
const AUTHORITIES_MAX: usize = 32;
