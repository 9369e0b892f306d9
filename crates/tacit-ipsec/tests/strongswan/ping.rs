//! Sends an echo request through a tunnel, to show that both sides have the same keys. The tunnel
//! must have an AEAD cipher.

use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use tacit_ipsec::{ChildSa, Cipher, SaKeys};

/// Builds an ESP packet with an echo request from 10.1.0.1 to 10.2.0.1.
pub(crate) fn request(child: &ChildSa, sequence: u32) -> Vec<u8> {
    let mut inner = vec![
        0x45, 0, 0, 28, 0, 1, 0, 0, 64, 1, 0, 0, 10, 1, 0, 1, 10, 2, 0, 1, 8, 0, 0, 0, 0, 7, 0, 1,
    ];
    let header = checksum(&inner[..20]);
    inner[10..12].copy_from_slice(&header);
    let message = checksum(&inner[20..]);
    inner[22..24].copy_from_slice(&message);
    // Padding to a multiple of four bytes, its length, and the protocol IPv4.
    inner.extend([1, 2, 2, 4]);
    let front = [child.outbound.spi.number().to_be_bytes(), sequence.to_be_bytes()].concat();
    let iv = u64::from(sequence).to_be_bytes();
    let (key, nonce) = key(child.cipher, &child.outbound, &iv);
    key.seal_in_place_append_tag(nonce, Aad::from(&front), &mut inner).unwrap();
    [&front[..], &iv, &inner].concat()
}

/// Reports whether a datagram is an ESP packet of the child SA with an echo reply.
pub(crate) fn is_reply(child: &ChildSa, datagram: &[u8]) -> bool {
    let Some((front, rest)) = datagram.split_at_checked(8) else { return false };
    if front[..4] != child.inbound.spi.number().to_be_bytes() {
        return false;
    }
    let (iv, sealed) = rest.split_at(8);
    let (key, nonce) = key(child.cipher, &child.inbound, iv);
    let mut sealed = sealed.to_vec();
    let opened = key.open_in_place(nonce, Aad::from(front), &mut sealed);
    opened.is_ok_and(|inner| inner[12..20] == [10, 2, 0, 1, 10, 1, 0, 1] && inner[20] == 0)
}

fn key(cipher: Cipher, keys: &SaKeys, iv: &[u8]) -> (LessSafeKey, Nonce) {
    let algorithm = match cipher {
        Cipher::Aes256Gcm => &AES_256_GCM,
        _ => &CHACHA20_POLY1305,
    };
    let (key, salt) = keys.encryption.as_bytes().split_at(cipher.key_bytes());
    let key = LessSafeKey::new(UnboundKey::new(algorithm, key).unwrap());
    (key, Nonce::try_assume_unique_for_key(&[salt, iv].concat()).unwrap())
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    u16::try_from(0xffff ^ folded).unwrap().to_be_bytes()
}
