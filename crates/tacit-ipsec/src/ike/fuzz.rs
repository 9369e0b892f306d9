//! Provides entry points for fuzzing IKE.

use super::codec::{IkeMessage, IkePayload, Proposal, encode_message};
pub use super::connection::fuzz::exchange;

/// Reads a message, writes what was read, and reads that again.
///
/// # Panics
///
/// If both readings differ.
pub fn codec(bytes: &[u8]) {
    let Ok(message) = IkeMessage::parse(bytes) else { return };
    let is_complete = message.encrypted.is_none() && message.payloads.iter().all(is_kept);
    if !is_complete {
        return;
    }
    let again = IkeMessage::parse(&encode_message(&message.header, &message.payloads));
    assert_eq!(again.as_ref(), Ok(&message));
}

/// Whether writing a payload loses nothing that reading has kept.
fn is_kept(payload: &IkePayload) -> bool {
    let has_known_attributes = |proposal: &Proposal| {
        proposal.transforms.iter().all(|transform| !transform.has_unknown_attribute)
    };
    match payload {
        IkePayload::SecurityAssociation(proposals) => proposals.iter().all(has_known_attributes),
        IkePayload::TsInitiator(ts) | IkePayload::TsResponder(ts) => !ts.selectors.is_empty(),
        IkePayload::Delete(delete) => *delete != super::codec::DeletePayload::Ah,
        _ => true,
    }
}
