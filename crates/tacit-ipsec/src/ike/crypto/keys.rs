//! Derives the keys of IKE SAs and of child SAs (RFC 7296 sections 2.14, 2.17 and 2.18).

use super::failed::CryptoFailed;
use super::prf::Prf;
use super::seal::SealKey;
use crate::cipher::Cipher;
use crate::secret::SecretBytes;

/// The keys of an IKE SA.
#[derive(Debug)]
pub(crate) struct IkeKeys {
    pub(crate) prf: Prf,
    /// SK_d: the key from which further keys are derived.
    pub(crate) derive: SecretBytes,
    /// SK_ei and SK_ai: messages of the original initiator.
    pub(crate) initiator: SealKey,
    /// SK_er and SK_ar: messages of the original responder.
    pub(crate) responder: SealKey,
    /// SK_ei and SK_ai, then SK_er and SK_ar, as a trace writes them.
    pub(crate) traced: [DirectionKeys; 2],
    /// SK_pi: the AUTH payload of the initiator.
    pub(crate) initiator_auth: SecretBytes,
    /// SK_pr: the AUTH payload of the responder.
    pub(crate) responder_auth: SecretBytes,
}

/// The SPIs of an IKE SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IkeSpis {
    pub(crate) initiator: u64,
    pub(crate) responder: u64,
}

/// The nonces of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nonces {
    pub(crate) initiator: Vec<u8>,
    pub(crate) responder: Vec<u8>,
}

/// SKEYSEED of a first IKE SA: prf(Ni | Nr, g^ir) (RFC 7296 section 2.14).
pub(crate) fn seed(prf: Prf, nonces: &Nonces, shared: &SecretBytes) -> SecretBytes {
    let key = [&nonces.initiator[..], &nonces.responder].concat();
    prf.compute(&key, &[shared.as_bytes()])
}

/// SKEYSEED of an IKE SA that replaces another: prf(SK_d (old), g^ir (new) | Ni | Nr), with the PRF
/// of the old IKE SA (RFC 7296 section 2.18).
pub(crate) fn rekeyed_seed(
    old: Prf,
    derive: &SecretBytes,
    nonces: &Nonces,
    shared: &SecretBytes,
) -> SecretBytes {
    let parts = [shared.as_bytes(), &nonces.initiator, &nonces.responder];
    old.compute(derive.as_bytes(), &parts)
}

impl IkeKeys {
    /// Derives the keys: {SK_d | SK_ai | SK_ar | SK_ei | SK_er | SK_pi | SK_pr} = prf+(SKEYSEED, Ni
    /// | Nr | SPIi | SPIr) (RFC 7296 section 2.14).
    pub(crate) fn derive(
        (cipher, prf): (Cipher, Prf),
        seed: &SecretBytes,
        nonces: &Nonces,
        spis: IkeSpis,
    ) -> Result<Self, CryptoFailed> {
        let integrity = cipher.integrity_key_bytes();
        let encryption = cipher.key_bytes() + cipher.salt_bytes();
        let output = prf.output_bytes();
        let spis = [spis.initiator.to_be_bytes(), spis.responder.to_be_bytes()].concat();
        let parts = [&nonces.initiator[..], &nonces.responder, &spis];
        let length = 3 * output + 2 * integrity + 2 * encryption;
        let material = prf.expand(seed.as_bytes(), &parts, length)?;
        let mut rest = material.as_bytes();
        let mut take = |count: usize| -> Result<SecretBytes, CryptoFailed> {
            let (taken, others) = rest.split_at_checked(count).ok_or(CryptoFailed::Library)?;
            rest = others;
            Ok(SecretBytes::new(taken.to_vec()))
        };
        let derive = take(output)?;
        let integrity_i = take(integrity)?;
        let integrity_r = take(integrity)?;
        let encryption_i = take(encryption)?;
        let encryption_r = take(encryption)?;
        Ok(Self {
            prf,
            derive,
            initiator: SealKey::new(cipher, encryption_i.as_bytes(), integrity_i.as_bytes())?,
            responder: SealKey::new(cipher, encryption_r.as_bytes(), integrity_r.as_bytes())?,
            initiator_auth: take(output)?,
            responder_auth: take(output)?,
            traced: [(encryption_i, integrity_i), (encryption_r, integrity_r)],
        })
    }
}

/// Encryption and integrity key of one direction.
pub(crate) type DirectionKeys = (SecretBytes, SecretBytes);

/// Derives the keys of a child SA: KEYMAT = prf+(SK_d, [g^ir (new) |] Ni | Nr), first the keys of
/// what the initiator of the exchange sends (RFC 7296 section 2.17).
pub(crate) fn child_keys(
    keys: &IkeKeys,
    cipher: Cipher,
    shared: Option<&SecretBytes>,
    nonces: &Nonces,
) -> Result<(DirectionKeys, DirectionKeys), CryptoFailed> {
    let integrity = cipher.integrity_key_bytes();
    let encryption = cipher.key_bytes() + cipher.salt_bytes();
    let shared = shared.map(SecretBytes::as_bytes).unwrap_or_default();
    let parts = [shared, &nonces.initiator, &nonces.responder];
    let direction = encryption + integrity;
    let material = keys.prf.expand(keys.derive.as_bytes(), &parts, 2 * direction)?;
    let split = |bytes: &[u8]| {
        let (encryption, integrity) = bytes.split_at(encryption.min(bytes.len()));
        (SecretBytes::new(encryption.to_vec()), SecretBytes::new(integrity.to_vec()))
    };
    let (first, second) = material.as_bytes().split_at(direction);
    Ok((split(first), split(second)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cipher::IntegrityHash;

    fn nonces() -> Nonces {
        Nonces { initiator: vec![1; 32], responder: vec![2; 32] }
    }

    fn keys(cipher: Cipher) -> IkeKeys {
        let prf = Prf::HmacSha256;
        let seed = seed(prf, &nonces(), &SecretBytes::new(vec![3; 32]));
        let spis = IkeSpis { initiator: 4, responder: 5 };
        IkeKeys::derive((cipher, prf), &seed, &nonces(), spis).unwrap()
    }

    #[test]
    fn key_material_is_cut_in_the_order_of_the_rfc() {
        let prf = Prf::HmacSha256;
        let seed = seed(prf, &nonces(), &SecretBytes::new(vec![3; 32]));
        let spis = [4u64.to_be_bytes(), 5u64.to_be_bytes()].concat();
        let parts = [&[1; 32][..], &[2; 32], &spis];
        // SK_d, then with AES-256-GCM no SK_a, two SK_e of 36 bytes, SK_pi and SK_pr.
        let material = prf.expand(seed.as_bytes(), &parts, 3 * 32 + 2 * 36).unwrap();
        let keys = keys(Cipher::Aes256Gcm);
        assert_eq!(keys.derive.as_bytes(), &material.as_bytes()[..32]);
        assert_eq!(keys.initiator_auth.as_bytes(), &material.as_bytes()[104..136]);
        assert_eq!(keys.responder_auth.as_bytes(), &material.as_bytes()[136..]);
    }

    #[test]
    fn child_keys_have_the_lengths_of_the_cipher() {
        let cipher = Cipher::Aes128Cbc(IntegrityHash::Sha384);
        let keys = keys(Cipher::Aes128Gcm);
        let (first, second) = child_keys(&keys, cipher, None, &nonces()).unwrap();
        assert_eq!((first.0.as_bytes().len(), first.1.as_bytes().len()), (16, 48));
        assert_ne!(first, second);
        let shared = SecretBytes::new(vec![9; 32]);
        let with_pfs = child_keys(&keys, cipher, Some(&shared), &nonces()).unwrap();
        assert_ne!(with_pfs.0, first);
    }
}
