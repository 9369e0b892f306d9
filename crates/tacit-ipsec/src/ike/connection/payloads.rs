//! Payloads that several exchanges use.

use crate::ike::codec::{IkePayload, KePayload, NotifyPayload};
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
