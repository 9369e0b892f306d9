//! Defines [`IkeSaKeys`]: the keys of an IKE SA. A trace writes these keys to a key log. With this
//! log, Wireshark can decrypt the messages of the SA.

use super::IkeConnection;
use crate::cipher::Cipher;
use crate::secret::SecretBytes;

/// The keys of an IKE SA. They must only be written to a file that an operator names.
#[derive(Clone, Debug)]
pub struct IkeSaKeys {
    /// Its SPIs, that of the initiator first.
    pub spis: (u64, u64),
    /// Its cipher.
    pub cipher: Cipher,
    /// `SK_e` with the salt of an AEAD, and `SK_a`, of what the initiator sends and of what the
    /// responder sends.
    pub keys: [(SecretBytes, SecretBytes); 2],
}

impl IkeConnection {
    /// Returns the keys of the IKE SAs, for a trace.
    pub fn sa_keys(&self) -> impl Iterator<Item = IkeSaKeys> {
        self.sas.iter().map(|sa| IkeSaKeys {
            spis: (sa.spis.initiator, sa.spis.responder),
            cipher: sa.proposal.cipher,
            keys: sa.keys.traced.clone(),
        })
    }
}
