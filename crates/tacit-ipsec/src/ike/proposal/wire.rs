//! Converts proposals (lists of algorithms) to the transforms in IKE messages.

use super::{EspProposal, IkeProposal};
use crate::cipher::{Cipher, IntegrityHash};
use crate::ike::codec::{Transform, TransformKind};
use crate::ike::crypto::Prf;

/// The length of sequence numbers of ESP (transform type 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequence {
    Short,
    Extended,
}

impl Sequence {
    pub(super) fn transform(self) -> Transform {
        let id = match self {
            Self::Short => 0,
            Self::Extended => 1,
        };
        transform(TransformKind::ExtendedSequence, id, None)
    }
}

pub(super) fn ike(proposal: &IkeProposal) -> Vec<Transform> {
    let prf = match proposal.prf {
        Prf::HmacSha256 => 5,
        Prf::HmacSha384 => 6,
        Prf::HmacSha512 => 7,
    };
    let mut transforms = cipher(proposal.cipher);
    transforms.push(transform(TransformKind::Prf, prf, None));
    transforms.push(transform(TransformKind::KeyExchange, proposal.group.number(), None));
    transforms
}

pub(super) fn esp(proposal: &EspProposal, sequence: Sequence) -> Vec<Transform> {
    let mut transforms = cipher(proposal.cipher);
    let group =
        proposal.pfs.map(|group| transform(TransformKind::KeyExchange, group.number(), None));
    transforms.extend(group);
    transforms.push(sequence.transform());
    transforms
}

/// The encryption of a cipher, and its integrity unless it is an AEAD (RFC 7296 section 3.3).
fn cipher(cipher: Cipher) -> Vec<Transform> {
    let (id, bits) = match cipher {
        Cipher::Aes128Cbc(_) => (12, Some(128)),
        Cipher::Aes256Cbc(_) => (12, Some(256)),
        Cipher::Aes128Gcm => (20, Some(128)),
        Cipher::Aes256Gcm => (20, Some(256)),
        // The key length is fixed, so there is no attribute (RFC 7634 section 4).
        Cipher::ChaCha20Poly1305 => (28, None),
    };
    let integrity = cipher.integrity().map(|hash| match hash {
        IntegrityHash::Sha256 => 12,
        IntegrityHash::Sha384 => 13,
        IntegrityHash::Sha512 => 14,
    });
    let integrity = integrity.map(|id| transform(TransformKind::Integrity, id, None));
    [transform(TransformKind::Encryption, id, bits)].into_iter().chain(integrity).collect()
}

fn transform(kind: TransformKind, id: u16, key_bits: Option<u16>) -> Transform {
    Transform { kind, id, key_bits, has_unknown_attribute: false }
}

/// Reports whether an offer leaves the choice of exactly `wanted`: of each kind in the offer one
/// transform is wanted, or NONE is possible, and nothing is wanted that is not offered (RFC 7296
/// section 3.3.6).
pub(super) fn contains(offered: &[Transform], wanted: &[Transform]) -> bool {
    let is_offered = |transform: &Transform| offered.contains(transform);
    let is_answered = |transform: &Transform| {
        let is_wanted = wanted.iter().any(|wanted| wanted.kind == transform.kind);
        let none_is_offered =
            || offered.iter().any(|other| other.kind == transform.kind && other.id == NONE);
        let may_be_none =
            matches!(transform.kind, TransformKind::Integrity | TransformKind::KeyExchange);
        is_wanted || (may_be_none && none_is_offered())
    };
    wanted.iter().all(is_offered) && offered.iter().all(is_answered)
}

/// The integrity algorithm and the group that stand for none.
const NONE: u16 = 0;
