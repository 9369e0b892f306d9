//! Writes the keys of IPsec tunnels in the format of Wireshark's tables `esp_sa` and
//! `ikev2_decryption_table`. The option `-o` of tshark accepts the rows that this module writes.
//!
//! Limits: Wireshark 4.0 cannot decrypt packets with extended sequence numbers. This module writes
//! no rows for ChaCha20-Poly1305, because Wireshark 4.0 does not support this cipher.

use tacit_ipsec::ike::{IkePath, IkeSaKeys};
use tacit_ipsec::{ChildSa, Cipher, IntegrityHash, SaKeys, SecretBytes};
use tacit_tls::KeyLogLine;
use tacit_tls::facts::hex;

/// The row of an IKE SA.
pub(super) fn ike_row(sa: &IkeSaKeys) -> Option<KeyLogLine> {
    let encryption = match sa.cipher {
        Cipher::Aes128Gcm => "AES-GCM-128 with 16 octet ICV [RFC5282]",
        Cipher::Aes256Gcm => "AES-GCM-256 with 16 octet ICV [RFC5282]",
        Cipher::Aes128Cbc(_) => "AES-CBC-128 [RFC3602]",
        Cipher::Aes256Cbc(_) => "AES-CBC-256 [RFC3602]",
        Cipher::ChaCha20Poly1305 => return None,
    };
    let integrity = match sa.cipher.integrity() {
        None => "NONE [RFC4306]",
        Some(IntegrityHash::Sha256) => "HMAC_SHA2_256_128 [RFC4868]",
        Some(IntegrityHash::Sha384) => "HMAC_SHA2_384_192 [RFC4868]",
        Some(IntegrityHash::Sha512) => "HMAC_SHA2_512_256 [RFC4868]",
    };
    let [(initiator, initiator_auth), (responder, responder_auth)] = &sa.keys;
    let (first, second) = sa.spis;
    Some(KeyLogLine::of_text(format!(
        "uat:ikev2_decryption_table:{first:016x},{second:016x},{},{},\"{encryption}\",{},{},\
         \"{integrity}\"",
        hex(initiator.as_bytes()),
        hex(responder.as_bytes()),
        hex(initiator_auth.as_bytes()),
        hex(responder_auth.as_bytes()),
    )))
}

/// The rows of a child SA, one for each direction.
pub(super) fn esp_rows(child: &ChildSa, path: &IkePath) -> Vec<KeyLogLine> {
    let [local, remote] = [path.local, path.remote].map(|end| end.ip());
    let Some(cipher) = child.protocol.cipher() else { return Vec::new() };
    let encryption = match cipher {
        Cipher::Aes128Gcm | Cipher::Aes256Gcm => "AES-GCM with 16 octet ICV [RFC4106]",
        Cipher::Aes128Cbc(_) | Cipher::Aes256Cbc(_) => "AES-CBC [RFC3602]",
        Cipher::ChaCha20Poly1305 => return Vec::new(),
    };
    let integrity = match cipher.integrity() {
        None => "NULL",
        Some(IntegrityHash::Sha256) => "HMAC-SHA-256-128 [RFC4868]",
        Some(IntegrityHash::Sha384) => "HMAC-SHA-384-192 [RFC4868]",
        Some(IntegrityHash::Sha512) => "HMAC-SHA-512-256 [RFC4868]",
    };
    let family = if local.is_ipv4() { "IPv4" } else { "IPv6" };
    let row = |keys: &SaKeys, source, destination| {
        let key = |bytes: &SecretBytes| match bytes.as_bytes() {
            [] => String::new(),
            bytes => format!("0x{}", hex(bytes)),
        };
        KeyLogLine::of_text(format!(
            "uat:esp_sa:\"{family}\",\"{source}\",\"{destination}\",\"0x{:08x}\",\
             \"{encryption}\",\"{}\",\"{integrity}\",\"{}\"",
            keys.spi.number(),
            key(&keys.encryption),
            key(&keys.integrity),
        ))
    };
    vec![row(&child.outbound, local, remote), row(&child.inbound, remote, local)]
}
