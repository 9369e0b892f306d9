//! Creates the payloads that several IKE exchanges use, and finds them in received messages.

use std::sync::Arc;

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
/// 3.7). The peer may be any of these.
pub(super) fn certificate_request<'a>(
    peers: impl Iterator<Item = &'a Arc<IkeConfig>>,
) -> Option<IkePayload> {
    let verifiers = peers.filter_map(|peer| match &peer.remote_auth {
        RemoteAuth::Signature(verifier) => Some(verifier),
        RemoteAuth::SharedKey(_) => None,
    });
    let lists: Vec<Vec<[u8; 20]>> = verifiers.map(|verifier| verifier.authorities()).collect();
    if lists.is_empty() {
        return None;
    }
    let mut authorities: Vec<[u8; 20]> = Vec::new();
    for authority in lists.into_iter().flatten() {
        if authorities.len() < AUTHORITIES_MAX && !authorities.contains(&authority) {
            authorities.push(authority);
        }
    }
    Some(IkePayload::CertRequest(CertRequestPayload::x509(&authorities)))
}

/// The most CAs that are named in a request for certificates.
const AUTHORITIES_MAX: usize = 32;
