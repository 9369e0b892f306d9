//! Recognises the messages that the signer may sign. These messages prove possession of a private
//! key in a TLS or IKE handshake.
//!
//! ```text
//! TLS 1.3  CertificateVerify   64 spaces, a context string, 0, the hash of the transcript
//! TLS 1.2  ServerKeyExchange   both randoms, a named curve and a point on it
//! TLS 1.2  CertificateVerify   every handshake message so far, ClientHello to ClientKeyExchange
//! IKEv2    AUTH                the first message, the nonce of the peer, the MAC of the identity
//! ```
//!
//! The signer refuses all other messages, such as certificates and certificate requests.

/// The beginning of a message that is signed in TLS 1.3 (RFC 8446 section 4.4.3).
const PADDING: [u8; 64] = [0x20; 64];
const SERVER_CONTEXT: &[u8] = b"TLS 1.3, server CertificateVerify\0";
const CLIENT_CONTEXT: &[u8] = b"TLS 1.3, client CertificateVerify\0";
/// The hash sizes of the cipher suites: SHA-256 and SHA-384.
const HASH_BYTES: [usize; 2] = [32, 48];
/// The size of `client_random` and `server_random` together.
const RANDOMS_BYTES: usize = 64;
/// The value of `ECCurveType` for a named curve.
const NAMED_CURVE: u8 = 3;
/// The number of a curve, and the size of a point on it: secp256r1, secp384r1, secp521r1, x25519.
const CURVES: [(u16, usize); 4] = [(23, 65), (24, 97), (25, 133), (29, 32)];
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const CLIENT_KEY_EXCHANGE: u8 = 16;
/// The size of an IKE header (RFC 7296 section 3.1).
const IKE_HEADER_BYTES: usize = 28;
/// Version 2.0 and `IKE_SA_INIT` in an IKE header.
const IKE_SA_INIT: [u8; 2] = [0x20, 34];
/// The sizes of a nonce, and of a MAC with SHA-256, SHA-384 or SHA-512 (RFC 7296 sections 2.15 and
/// 3.9).
const NONCE_BYTES: std::ops::RangeInclusive<usize> = 16..=256;
const MAC_BYTES: [usize; 3] = [32, 48, 64];

/// A message of a handshake that may be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signable {
    /// `CertificateVerify` of TLS 1.3.
    CertificateVerify13,
    /// `ServerKeyExchange` of TLS 1.2.
    ServerKeyExchange12,
    /// `CertificateVerify` of TLS 1.2.
    CertificateVerify12,
    /// `AUTH` of IKEv2.
    IkeAuth,
}

impl Signable {
    /// Determines which of these a message is; `None` if it is no such message, which must not be
    /// signed.
    #[must_use]
    pub fn of(message: &[u8]) -> Option<Self> {
        if is_verify_13(message) {
            Some(Self::CertificateVerify13)
        } else if is_key_exchange_12(message) {
            Some(Self::ServerKeyExchange12)
        } else if is_transcript_12(message) {
            Some(Self::CertificateVerify12)
        } else if is_ike_auth(message) {
            Some(Self::IkeAuth)
        } else {
            None
        }
    }
}

fn is_verify_13(message: &[u8]) -> bool {
    let Some(content) = message.strip_prefix(&PADDING) else { return false };
    let hash =
        content.strip_prefix(SERVER_CONTEXT).or_else(|| content.strip_prefix(CLIENT_CONTEXT));
    hash.is_some_and(|hash| HASH_BYTES.contains(&hash.len()))
}

fn is_key_exchange_12(message: &[u8]) -> bool {
    let Some([NAMED_CURVE, high, low, length, point @ ..]) = message.get(RANDOMS_BYTES..) else {
        return false;
    };
    let curve = u16::from_be_bytes([*high, *low]);
    point.len() == usize::from(*length) && CURVES.contains(&(curve, point.len()))
}

fn is_transcript_12(message: &[u8]) -> bool {
    let mut kinds = Vec::new();
    let mut rest = message;
    while let Some(([kind, a, b, c], behind)) = rest.split_first_chunk() {
        let bytes = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some(behind) = behind.get(bytes..) else { return false };
        kinds.push(*kind);
        rest = behind;
    }
    let is_in_order =
        kinds.starts_with(&[CLIENT_HELLO, SERVER_HELLO]) && kinds.ends_with(&[CLIENT_KEY_EXCHANGE]);
    rest.is_empty() && is_in_order
}

/// The signed octets of RFC 7296 section 2.15: a whole `IKE_SA_INIT` message, a nonce, and a MAC.
fn is_ike_auth(message: &[u8]) -> bool {
    let Some(header) = message.first_chunk::<IKE_HEADER_BYTES>() else { return false };
    let [message_id @ .., a, b, c, d] = &header[20..] else { return false };
    let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
    let Some(rest) = message.len().checked_sub(length) else { return false };
    let has_end = MAC_BYTES
        .iter()
        .any(|mac| rest.checked_sub(*mac).is_some_and(|nonce| NONCE_BYTES.contains(&nonce)));
    header[17..19] == IKE_SA_INIT && message_id == [0; 4] && length > IKE_HEADER_BYTES && has_end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verify_13(context: &[u8], hash_bytes: usize) -> Vec<u8> {
        [&PADDING[..], context, &vec![7; hash_bytes]].concat()
    }

    fn key_exchange_12(curve: u16, point_bytes: u8) -> Vec<u8> {
        let [high, low] = curve.to_be_bytes();
        let head = [NAMED_CURVE, high, low, point_bytes];
        [&[9; RANDOMS_BYTES][..], &head, &vec![4; point_bytes.into()]].concat()
    }

    fn transcript(kinds: &[u8]) -> Vec<u8> {
        kinds.iter().flat_map(|kind| [*kind, 0, 0, 2, 1, 2]).collect()
    }

    #[test]
    fn what_handshakes_sign_is_known() {
        for context in [SERVER_CONTEXT, CLIENT_CONTEXT] {
            for hash_bytes in HASH_BYTES {
                let message = verify_13(context, hash_bytes);
                assert_eq!(Signable::of(&message), Some(Signable::CertificateVerify13));
            }
        }
        for message in [key_exchange_12(23, 65), key_exchange_12(29, 32)] {
            assert_eq!(Signable::of(&message), Some(Signable::ServerKeyExchange12));
        }
        let message = transcript(&[1, 2, 11, 12, 13, 14, 11, 16]);
        assert_eq!(Signable::of(&message), Some(Signable::CertificateVerify12));
    }

    fn ike_auth(length: u8, rest: usize) -> Vec<u8> {
        let mut header = [1; IKE_HEADER_BYTES];
        header[17..19].copy_from_slice(&IKE_SA_INIT);
        header[20..].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, length]);
        [&header[..], &[5; 100][..usize::from(length) - IKE_HEADER_BYTES], &vec![6; rest]].concat()
    }

    #[test]
    fn the_octets_of_ike_are_signed() {
        for rest in [32 + 16, 64 + 256, 48 + 32] {
            assert_eq!(Signable::of(&ike_auth(100, rest)), Some(Signable::IkeAuth));
        }
        let mut other_exchange = ike_auth(100, 64);
        other_exchange[18] = 35;
        let mut later = ike_auth(100, 64);
        later[23] = 1;
        for message in
            [ike_auth(100, 47), ike_auth(100, 321), ike_auth(28, 64), other_exchange, later]
        {
            assert_eq!(Signable::of(&message), None);
        }
    }

    #[test]
    fn nothing_else_is_signed() {
        let cut = |mut message: Vec<u8>| {
            message.pop();
            message
        };
        let refused = [
            Vec::new(),
            vec![0x30, 0x82, 1, 0],
            PADDING.to_vec(),
            verify_13(b"TLS 1.3, server CertificateVerifz\0", 32),
            verify_13(SERVER_CONTEXT, 33),
            verify_13(&SERVER_CONTEXT[..33], 32),
            key_exchange_12(23, 64),
            key_exchange_12(22, 65),
            cut(key_exchange_12(29, 32)),
            cut(transcript(&[1, 2, 16])),
            transcript(&[1, 2, 11]),
            transcript(&[2, 16]),
            transcript(&[16]),
        ];
        for message in refused {
            assert_eq!(Signable::of(&message), None, "{message:?}");
        }
    }
}
