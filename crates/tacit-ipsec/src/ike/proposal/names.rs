//! Writes the names of the algorithms that a peer offers, for messages to operators.

use crate::ike::codec::{Proposal, Transform, TransformKind};

/// Describes what a peer offers, with what tacit refuses by name.
pub(crate) fn describe(offered: &[Proposal]) -> String {
    let shown = offered.iter().take(SHOWN_MAX).map(|proposal| {
        let names: Vec<String> = proposal.transforms.iter().filter_map(name).collect();
        names.join("-")
    });
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if offered.len() > SHOWN_MAX {
        text.push_str(", ...");
    }
    let mut transforms = offered.iter().flat_map(|proposal| &proposal.transforms);
    if let Some(why) = transforms.find_map(refusal) {
        text.push_str("; ");
        text.push_str(why);
    }
    text
}

/// Why tacit refuses an algorithm, whatever the policy says (RFC 8221, RFC 8247).
fn refusal(transform: &Transform) -> Option<&'static str> {
    match (transform.kind, transform.id) {
        (TransformKind::Encryption, 1 | 2) => Some("DES is refused: use AES-GCM"),
        (TransformKind::Encryption, 3) => Some("3DES is refused: use AES-GCM"),
        (TransformKind::Prf, 1) | (TransformKind::Integrity, 1) => {
            Some("MD5 is refused: use SHA-256 or a longer hash")
        }
        (TransformKind::Prf, 2) | (TransformKind::Integrity, 2) => {
            Some("SHA-1 is refused: use SHA-256 or a longer hash")
        }
        (TransformKind::KeyExchange, 1 | 2 | 5 | 22) => {
            Some("key exchange groups below 2048 bits are refused: use X25519 or ECP-256")
        }
        _ => None,
    }
}

fn name(transform: &Transform) -> Option<String> {
    let name = match (transform.kind, transform.id) {
        (TransformKind::Encryption, 1 | 2) => "DES",
        (TransformKind::Encryption, 3) => "3DES",
        (TransformKind::Encryption, 12) => "AES-CBC",
        (TransformKind::Encryption, 13) => "AES-CTR",
        (TransformKind::Encryption, 14..=16) => "AES-CCM",
        (TransformKind::Encryption, 18 | 19) => "AES-GCM with a short tag",
        (TransformKind::Encryption, 20) => "AES-GCM",
        (TransformKind::Encryption, 28) => "ChaCha20-Poly1305",
        (TransformKind::Prf, 1) => "PRF-MD5",
        (TransformKind::Prf, 2) => "PRF-SHA1",
        (TransformKind::Prf, 5) => "PRF-SHA256",
        (TransformKind::Prf, 6) => "PRF-SHA384",
        (TransformKind::Prf, 7) => "PRF-SHA512",
        (TransformKind::Integrity, 1) => "HMAC-MD5",
        (TransformKind::Integrity, 2) => "HMAC-SHA1",
        (TransformKind::Integrity, 12) => "HMAC-SHA256",
        (TransformKind::Integrity, 13) => "HMAC-SHA384",
        (TransformKind::Integrity, 14) => "HMAC-SHA512",
        (TransformKind::KeyExchange, 1) => "MODP-768",
        (TransformKind::KeyExchange, 2) => "MODP-1024",
        (TransformKind::KeyExchange, 5) => "MODP-1536",
        (TransformKind::KeyExchange, 14) => "MODP-2048",
        (TransformKind::KeyExchange, 15) => "MODP-3072",
        (TransformKind::KeyExchange, 16) => "MODP-4096",
        (TransformKind::KeyExchange, 19) => "ECP-256",
        (TransformKind::KeyExchange, 20) => "ECP-384",
        (TransformKind::KeyExchange, 21) => "ECP-521",
        (TransformKind::KeyExchange, 31) => "X25519",
        (TransformKind::KeyExchange, 0)
        | (TransformKind::Integrity, 0)
        | (TransformKind::ExtendedSequence, 0) => return None,
        (TransformKind::ExtendedSequence, _) => "ESN",
        (kind, id) => return Some(format!("{kind:?}({id})")),
    };
    Some(transform.key_bits.map_or_else(|| name.to_owned(), |bits| format!("{name}-{bits}")))
}

/// The most proposals in a message.
const SHOWN_MAX: usize = 4;
