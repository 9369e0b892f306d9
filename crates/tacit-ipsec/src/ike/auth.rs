//! Computes the AUTH payload of IKE. The payload proves the identity of a peer, and proves that
//! this peer sent the first messages (RFC 7296 section 2.15).

use super::codec::IdPayload;
use super::crypto::Prf;
use crate::secret::SecretBytes;

/// What one side signs: its first message, the nonce of the other side, and
/// prf(SK_p, its identity).
pub(crate) struct SignedOctets(Vec<u8>);

impl SignedOctets {
    /// `message` is the first message of the signer, `nonce` that of the other side, and `key`
    /// SK_pi or SK_pr of the signer.
    pub(crate) fn new(
        prf: Prf,
        message: &[u8],
        nonce: &[u8],
        key: &SecretBytes,
        id: &IdPayload,
    ) -> Self {
        let mut id_bytes = Vec::new();
        id.encode(&mut id_bytes);
        let maced_id = prf.compute(key.as_bytes(), &[&id_bytes]);
        Self([message, nonce, maced_id.as_bytes()].concat())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// AUTH with a shared key: prf(prf(Shared Secret, "Key Pad for IKEv2"), octets).
    pub(crate) fn with_shared_key(&self, prf: Prf, key: &SecretBytes) -> SecretBytes {
        let padded = prf.compute(key.as_bytes(), &[KEY_PAD]);
        prf.compute(padded.as_bytes(), &[&self.0])
    }
}

const KEY_PAD: &[u8] = b"Key Pad for IKEv2";
