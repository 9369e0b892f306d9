//! Defines [`PacketProtection`]: the protocol (ESP or AH) and the keys with which an IPsec SA
//! (security association) protects the packets of one direction.

use super::ah::AhKey;
use super::transform::Transform;
use crate::child::{ChildSa, SaKeys, SaProtocol, UnderlayEnds};
use crate::cipher::Cipher;
use crate::cipher_key::KeyLengthError;

/// How packets are protected.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a Box would cost CPU time for each packet; without a Box, each SA only wastes some \
              memory"
)]
pub(crate) enum PacketProtection {
    /// ESP; `None`: in UDP.
    Esp(Cipher, Transform, Option<UnderlayEnds>),
    /// AH.
    Ah(AhKey, UnderlayEnds),
}

impl PacketProtection {
    /// Prepares the keys of one direction.
    pub(crate) fn new(child: &ChildSa, keys: &SaKeys) -> Result<Self, KeyLengthError> {
        match child.protocol {
            SaProtocol::EspInUdp(cipher) => {
                Ok(Self::Esp(cipher, Transform::new(cipher, child, keys)?, None))
            }
            SaProtocol::Esp(cipher, ends) => {
                Ok(Self::Esp(cipher, Transform::new(cipher, child, keys)?, Some(ends)))
            }
            SaProtocol::Ah(hash, ends) => Ok(Self::Ah(AhKey::new(hash, keys)?, ends)),
        }
    }
}
