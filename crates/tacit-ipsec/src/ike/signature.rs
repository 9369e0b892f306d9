//! Encodes the signature and the signature algorithm in an AUTH payload (RFC 7427), and defines the
//! traits for signing and verifying.
//!
//! The caller of this crate holds the private keys and certificates, and implements [`AuthSigner`]
//! and [`AuthVerifier`].

use std::fmt;

use super::failure::IkeFailure;
use super::identity::IkeIdentity;

/// How a signature is made. SHA-1 and RSA with PKCS #1 v1.5 have no variant (RFC 8247 section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuthScheme {
    /// Ed25519 (RFC 8420).
    Ed25519,
    /// ECDSA with P-256 and SHA-256; the signature is in DER.
    EcdsaP256,
    /// ECDSA with P-384 and SHA-384; the signature is in DER.
    EcdsaP384,
    /// RSASSA-PSS with SHA-256, and a salt of the same length.
    RsaPssSha256,
    /// RSASSA-PSS with SHA-384, and a salt of the same length.
    RsaPssSha384,
    /// RSASSA-PSS with SHA-512, and a salt of the same length.
    RsaPssSha512,
}

/// Signs for this side.
pub trait AuthSigner: fmt::Debug + Send + Sync {
    /// Returns the certificates in DER: that of the key first, then its intermediates. At most
    /// [`CERTIFICATES_MAX`] are sent.
    fn certificates(&self) -> Vec<Vec<u8>>;

    /// Returns the schemes that the key supports, the preferred first.
    fn schemes(&self) -> Vec<AuthScheme>;

    /// Signs a message.
    ///
    /// # Errors
    ///
    /// If the key cannot be used, with the reason.
    fn sign(&self, scheme: AuthScheme, message: &[u8]) -> Result<Vec<u8>, IkeFailure>;
}

/// Checks what the peer has signed.
pub trait AuthVerifier: fmt::Debug + Send + Sync {
    /// Returns the SHA-1 hashes of the `SubjectPublicKeyInfo` of the CAs that are trusted, by which
    /// the peer chooses its certificate (RFC 7296 section 3.7). Without any, the peer sends the
    /// certificate that it prefers. At most 32 are sent.
    fn authorities(&self) -> Vec<[u8; 20]> {
        Vec::new()
    }

    /// Checks the chain of certificates, that the first is one of the identity, and the signature.
    ///
    /// # Errors
    ///
    /// If one of them is wrong, with the reason.
    fn verify(&self, signed: &SignedByPeer<'_>) -> Result<(), IkeFailure>;
}

/// A signature of the peer.
#[derive(Clone, Copy, Debug)]
pub struct SignedByPeer<'a> {
    /// The certificates in DER as the peer sent them: its own first.
    pub certificates: &'a [&'a [u8]],
    /// The identity that the peer claims, which is that of the policy.
    pub identity: &'a IkeIdentity,
    /// How the peer signed.
    pub scheme: AuthScheme,
    /// What it signed.
    pub message: &'a [u8],
    /// The signature.
    pub signature: &'a [u8],
}

impl AuthScheme {
    /// Every scheme.
    pub const ALL: [Self; 6] = [
        Self::Ed25519,
        Self::EcdsaP256,
        Self::EcdsaP384,
        Self::RsaPssSha256,
        Self::RsaPssSha384,
        Self::RsaPssSha512,
    ];

    /// The `AlgorithmIdentifier` in DER (RFC 7427 appendix A, RFC 8420 section 3).
    fn identifier(self) -> &'static [u8] {
        match self {
            Self::Ed25519 => &[0x30, 5, 6, 3, 0x2b, 0x65, 0x70],
            Self::EcdsaP256 => &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2],
            Self::EcdsaP384 => &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3],
            Self::RsaPssSha256 => &RSA_PSS_SHA256,
            Self::RsaPssSha384 => &RSA_PSS_SHA384,
            Self::RsaPssSha512 => &RSA_PSS_SHA512,
        }
    }

    /// The number of the hash in `SIGNATURE_HASH_ALGORITHMS` (RFC 7427 section 7, RFC 8420).
    fn hash(self) -> u16 {
        match self {
            Self::EcdsaP256 | Self::RsaPssSha256 => 2,
            Self::EcdsaP384 | Self::RsaPssSha384 => 3,
            Self::RsaPssSha512 => 4,
            Self::Ed25519 => 5,
        }
    }
}

/// The data of `SIGNATURE_HASH_ALGORITHMS`: SHA-256, SHA-384, SHA-512 and "identity".
pub(super) fn hashes() -> Vec<u8> {
    [2u16, 3, 4, 5].iter().flat_map(|hash| hash.to_be_bytes()).collect()
}

/// Chooses the first scheme of the key whose hash the peer supports.
pub(super) fn choose(schemes: &[AuthScheme], hashes_of_peer: &[u8]) -> Option<AuthScheme> {
    let is_supported = |scheme: &&AuthScheme| {
        hashes_of_peer.chunks_exact(2).any(|hash| hash == scheme.hash().to_be_bytes())
    };
    schemes.iter().find(is_supported).copied()
}

/// Writes the data of the AUTH payload: the length of the identifier, the identifier, the signature
/// (RFC 7427 section 3).
pub(super) fn encode(scheme: AuthScheme, signature: &[u8]) -> Vec<u8> {
    let identifier = scheme.identifier();
    let length = u8::try_from(identifier.len()).unwrap_or_default();
    [&[length], identifier, signature].concat()
}

/// Reads the data of the AUTH payload. Returns `None` if the scheme is unknown.
pub(super) fn decode(data: &[u8]) -> Option<(AuthScheme, &[u8])> {
    let (length, rest) = data.split_first()?;
    let (identifier, signature) = rest.split_at_checked(usize::from(*length))?;
    let scheme = AuthScheme::ALL.into_iter().find(|one| one.identifier() == identifier)?;
    Some((scheme, signature))
}

const RSA_PSS_SHA256: [u8; 67] = rsa_pss(1, 32);
const RSA_PSS_SHA384: [u8; 67] = rsa_pss(2, 48);
const RSA_PSS_SHA512: [u8; 67] = rsa_pss(3, 64);

/// RSASSA-PSS with a hash, MGF1 with the same hash, and the length of the salt.
const fn rsa_pss(hash: u8, salt: u8) -> [u8; 67] {
    [
        0x30, 0x41, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10, 0x30, 0x34, 0xa0, 0x0f,
        0x30, 0x0d, 6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, hash, 5, 0, 0xa1, 0x1c, 0x30, 0x1a,
        6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 8, 0x30, 0x0d, 6, 9, 0x60, 0x86, 0x48, 1,
        0x65, 3, 4, 2, hash, 5, 0, 0xa2, 3, 2, 1, salt,
    ]
}

/// The most certificates of a side.
pub const CERTIFICATES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_survive_the_wire() {
        for scheme in AuthScheme::ALL {
            let data = encode(scheme, b"signature");
            assert_eq!(decode(&data), Some((scheme, &b"signature"[..])));
            let length = usize::from(data[0]);
            for cut in 0..=length {
                assert_eq!(decode(&data[..cut]), None, "{scheme:?}");
            }
        }
        // RSA with PKCS #1 v1.5 and SHA-256.
        let identifier = [0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11, 5, 0];
        assert_eq!(decode(&[&[15], &identifier[..], b"signature"].concat()), None);
    }

    #[test]
    fn the_first_scheme_with_a_hash_of_the_peer_is_chosen() {
        let schemes = [AuthScheme::RsaPssSha512, AuthScheme::RsaPssSha256];
        assert_eq!(choose(&schemes, &[0, 2, 0, 3]), Some(AuthScheme::RsaPssSha256));
        assert_eq!(choose(&schemes, &hashes()), Some(AuthScheme::RsaPssSha512));
        assert_eq!(choose(&schemes, &[0, 1]), None);
        assert_eq!(choose(&schemes, &[]), None);
    }
}
