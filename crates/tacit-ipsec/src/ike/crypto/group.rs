//! Implements key exchange: the groups, their key pairs and their shared secrets.

use aws_lc_rs::agreement::{self, Algorithm, ParsedPublicKey, PrivateKey, UnparsedPublicKey};

use super::failed::CryptoFailed;
use super::modp;
use super::random::RandomSource;
use crate::secret::SecretBytes;

/// A group for the key exchange. MODP groups of 1024 and 1536 bits have no variant (RFC 8247
/// section 2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeGroup {
    /// Curve25519 (RFC 8031).
    X25519,
    /// ECP-256, NIST P-256 (RFC 5903).
    P256,
    /// ECP-384, NIST P-384 (RFC 5903).
    P384,
    /// Integers modulo a prime of 2,048 bits (RFC 3526), which every implementation has (RFC 8247
    /// section 2.4). The curves are stronger and faster.
    Modp2048,
}

/// The secret of one key exchange.
#[derive(Debug)]
pub(crate) struct KeySecret {
    group: KeGroup,
    private: Private,
    public_value: Vec<u8>,
}

/// The private part of a secret.
#[derive(Debug)]
enum Private {
    Curve {
        key: PrivateKey,
        algorithm: &'static Algorithm,
    },
    /// [`modp::PRIVATE_BYTES`] bytes.
    Modp(SecretBytes),
}

impl KeGroup {
    /// Every group.
    pub const ALL: [Self; 4] = [Self::X25519, Self::P256, Self::P384, Self::Modp2048];

    /// Returns the number of the group (transform type 4).
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Modp2048 => 14,
            Self::P256 => 19,
            Self::P384 => 20,
            Self::X25519 => 31,
        }
    }

    /// Returns the group with a number, unless tacit does not have it.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.number() == number)
    }

    /// The algorithm of aws-lc-rs for a curve.
    fn curve(self) -> Option<&'static Algorithm> {
        match self {
            Self::X25519 => Some(&agreement::X25519),
            Self::P256 => Some(&agreement::ECDH_P256),
            Self::P384 => Some(&agreement::ECDH_P384),
            Self::Modp2048 => None,
        }
    }

    fn private_bytes(self) -> usize {
        match self {
            Self::X25519 | Self::P256 => 32,
            Self::P384 => 48,
            Self::Modp2048 => modp::PRIVATE_BYTES,
        }
    }

    /// Checks the public value of a peer: its length, that it is a point of the curve or an integer
    /// of the group, and that it is not in a small subgroup (RFC 6989, RFC 8031 section 5).
    pub(crate) fn check_value(self, value: &[u8]) -> Result<(), CryptoFailed> {
        let is_right = match self {
            Self::X25519 => value.first_chunk().is_some_and(|point: &[u8; 32]| {
                let mut point = *point;
                point[31] &= 0x7f;
                value.len() == point.len() && !SMALL_X25519.contains(&point)
            }),
            Self::P256 => value.len() == 64 && is_point(&agreement::ECDH_P256, value),
            Self::P384 => value.len() == 96 && is_point(&agreement::ECDH_P384, value),
            Self::Modp2048 => value.try_into().is_ok_and(modp::is_value),
        };
        is_right.then_some(()).ok_or(CryptoFailed::PublicValue)
    }

    /// Whether a point is written as its two coordinates. aws-lc-rs writes SEC 1, with a first byte
    /// that IKE leaves out (RFC 5903 section 7).
    fn has_coordinates(self) -> bool {
        matches!(self, Self::P256 | Self::P384)
    }
}

impl KeySecret {
    /// Creates a secret.
    pub(crate) fn generate(
        group: KeGroup,
        random: &mut dyn RandomSource,
    ) -> Result<Self, CryptoFailed> {
        let mut bytes = vec![0; group.private_bytes()];
        // A number of the right size is outside of the group's order with a probability below
        // 2^-31, so one more attempt is enough.
        for _ in 0..GENERATE_ATTEMPTS {
            random.fill(&mut bytes)?;
            if let Ok(secret) = Self::from_private(group, &bytes) {
                return Ok(secret);
            }
        }
        Err(CryptoFailed::Library)
    }

    fn from_private(group: KeGroup, bytes: &[u8]) -> Result<Self, CryptoFailed> {
        let Some(algorithm) = group.curve() else {
            let exponent = bytes.try_into().map_err(|_| CryptoFailed::Library)?;
            let public_value = modp::public_value(exponent).to_vec();
            let private = Private::Modp(SecretBytes::new(bytes.to_vec()));
            return Ok(Self { group, private, public_value });
        };
        let key = PrivateKey::from_private_key(algorithm, bytes);
        let key = key.map_err(|_| CryptoFailed::Library)?;
        let public = key.compute_public_key().map_err(|_| CryptoFailed::Library)?;
        let public = public.as_ref();
        let skipped = usize::from(group.has_coordinates());
        let public_value = public.get(skipped..).unwrap_or_default().to_vec();
        Ok(Self { group, private: Private::Curve { key, algorithm }, public_value })
    }

    pub(crate) fn group(&self) -> KeGroup {
        self.group
    }

    pub(crate) fn public_value(&self) -> &[u8] {
        &self.public_value
    }

    /// Computes the shared secret. The library also checks that the result is not zero (RFC 8031
    /// section 5).
    pub(crate) fn agree(&self, peer_value: &[u8]) -> Result<SecretBytes, CryptoFailed> {
        self.group.check_value(peer_value)?;
        match &self.private {
            Private::Curve { key, algorithm } => {
                let sec1: &[u8] = if self.group.has_coordinates() { &[UNCOMPRESSED] } else { &[] };
                let peer = UnparsedPublicKey::new(algorithm, [sec1, peer_value].concat());
                agreement::agree(key, peer, CryptoFailed::PublicValue, |secret| {
                    Ok(SecretBytes::new(secret.to_vec()))
                })
            }
            Private::Modp(exponent) => {
                let exponent = exponent.as_bytes().try_into();
                let value = peer_value.try_into().map_err(|_| CryptoFailed::PublicValue)?;
                modp::agree(exponent.map_err(|_| CryptoFailed::Library)?, value)
            }
        }
    }
}

/// Whether these are the coordinates of a point of a curve.
fn is_point(curve: &'static Algorithm, coordinates: &[u8]) -> bool {
    let point = [&[UNCOMPRESSED], coordinates].concat();
    ParsedPublicKey::try_from(UnparsedPublicKey::new(curve, point)).is_ok()
}

/// SEC 1: both coordinates follow.
const UNCOMPRESSED: u8 = 4;
/// The points of Curve25519 whose order is 1, 2, 4 or 8, without the bit that is ignored (RFC 7748
/// sections 5 and 6.1): 0, 1, the two of order 8, p - 1, p and p + 1.
const SMALL_X25519: [[u8; 32]; 7] = [
    [0; 32],
    [
        1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0,
    ],
    [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4,
        0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49,
        0xb8, 0x00,
    ],
    [
        0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef,
        0x5b, 0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f,
        0x11, 0x57,
    ],
    near_the_prime(0xec),
    near_the_prime(0xed),
    near_the_prime(0xee),
];

/// A number near p = 2^255 - 19, by its lowest byte.
const fn near_the_prime(lowest: u8) -> [u8; 32] {
    let mut bytes = [0xff; 32];
    bytes[0] = lowest;
    bytes[31] = 0x7f;
    bytes
}

const GENERATE_ATTEMPTS: usize = 8;

/// Public values that are refused, made from one that is right.
#[cfg(test)]
pub(crate) fn wrong_values(group: KeGroup, right: &[u8]) -> Vec<Vec<u8>> {
    let mut values = vec![
        vec![0; right.len()],
        right[1..].to_vec(),
        [right, &[0]].concat(),
        right[..right.len() / 2].to_vec(),
    ];
    match group {
        KeGroup::X25519 => {
            let with_top_bit = |mut point: [u8; 32]| {
                point[31] |= 0x80;
                point
            };
            values.extend(SMALL_X25519.map(Vec::from));
            values.extend(SMALL_X25519.map(with_top_bit).map(Vec::from));
        }
        // The point is no longer on the curve.
        KeGroup::P256 | KeGroup::P384 => {
            let mut other = right.to_vec();
            other[right.len() - 1] ^= 1;
            values.extend([other, vec![0xff; right.len()]]);
        }
        KeGroup::Modp2048 => values.extend(modp::outside_values().map(Vec::from)),
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ike::crypto::TestRandom;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text
            .bytes()
            .filter(u8::is_ascii_hexdigit)
            .map(|digit| digit.to_ascii_lowercase())
            .collect();
        let value = |digit: u8| if digit < b'a' { digit - b'0' } else { digit - b'a' + 10 };
        digits.chunks(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
    }

    #[test]
    fn p256_gives_the_values_of_rfc_5903_section_8_1() {
        let private =
            hex("C88F01F5 10D9AC3F 70A292DA A2316DE5 44E9AAB8 AFE84049 C62A9C57 862D1433");
        let public = "DAD0B653 94221CF9 B051E1FE CA5787D0 98DFE637 FC90B9EF 945D0C37 72581180
                      5271A046 1CDB8252 D61F1C45 6FA3E59A B1F45B33 ACCF5F58 389E0577 B8990BB3";
        let peer = "D12DFB52 89C8D4F8 1208B702 70398C34 2296970A 0BCCB74C 736FC755 4494BF63
                    56FBF3CA 366CC23E 8157854C 13C58D6A AC23F046 ADA30F83 53E74F33 039872AB";
        let shared = "D6840F6B 42F6EDAF D13116E0 E1256520 2FEF8E9E CE7DCE03 812464D0 4B9442DE";
        let secret = KeySecret::from_private(KeGroup::P256, &private).unwrap();
        assert_eq!(secret.public_value(), hex(public));
        assert_eq!(secret.agree(&hex(peer)).unwrap().as_bytes(), hex(shared));
    }

    #[test]
    fn x25519_gives_the_values_of_rfc_7748_section_6_1() {
        let private = hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
        let public = hex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
        let peer = hex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
        let shared = hex("4a5d9d5ba4ce2de1728e3bf480350f25 e07e21c947d19e3376f09b3c1e161742");
        let secret = KeySecret::from_private(KeGroup::X25519, &private).unwrap();
        assert_eq!(secret.public_value(), public);
        assert_eq!(secret.agree(&peer).unwrap().as_bytes(), shared);
    }

    #[test]
    fn both_sides_compute_the_same_secret_in_every_group() {
        let mut random = TestRandom(1);
        for group in KeGroup::ALL {
            let a = KeySecret::generate(group, &mut random).unwrap();
            let b = KeySecret::generate(group, &mut random).unwrap();
            assert_eq!(a.agree(b.public_value()), b.agree(a.public_value()), "{group:?}");
            assert!(a.agree(b.public_value()).is_ok());
        }
    }

    #[test]
    fn values_outside_of_the_group_are_refused() {
        let mut random = TestRandom(2);
        for group in KeGroup::ALL {
            let secret = KeySecret::generate(group, &mut random).unwrap();
            let value = secret.public_value().to_vec();
            assert_eq!(group.check_value(&value), Ok(()), "{group:?}");
            for wrong in wrong_values(group, &value) {
                let refused = Err(CryptoFailed::PublicValue);
                assert_eq!(group.check_value(&wrong), refused, "{group:?} {wrong:?}");
                assert_eq!(secret.agree(&wrong), Err(CryptoFailed::PublicValue), "{group:?}");
            }
        }
    }

    #[test]
    fn the_points_of_small_order_are_those_that_the_library_refuses() {
        let secret = KeySecret::generate(KeGroup::X25519, &mut TestRandom(3)).unwrap();
        let Private::Curve { key, algorithm } = &secret.private else { panic!() };
        for point in SMALL_X25519 {
            let peer = UnparsedPublicKey::new(algorithm, point);
            assert!(agreement::agree(key, peer, (), |_| Ok(())).is_err(), "{point:?}");
        }
    }
}
