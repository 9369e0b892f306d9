//! Reads the content of a certificate (names, dates, key), for `tacit show` and for error messages.
//!
//! [`CertificateFacts`] parses untrusted DER and never panics. Long texts are truncated, and
//! control characters are escaped. Limits: [`TEXT_CHARS_MAX`] characters for a text, [`NAMES_MAX`]
//! names for a certificate.
//!
//! Do not use this module for decisions, because it does not verify signatures, validity or trust.

use std::fmt::Write as _;
use std::net::IpAddr;

use aws_lc_rs::digest;
use rustls_pki_types::CertificateDer;
use tacit_core::printable;
use x509_parser::prelude::{ASN1Time, FromDer, GeneralName, X509Certificate};
use x509_parser::public_key::{PublicKey, RSAPublicKey};
use x509_parser::x509::{SubjectPublicKeyInfo, X509Name};

/// The largest number of characters of a text. A truncated text ends in `…`.
pub const TEXT_CHARS_MAX: usize = 256;

/// The largest number of names of one certificate.
pub const NAMES_MAX: usize = 100;

/// The number of seconds in a day.
pub const DAY_SECONDS: i64 = 86_400;

/// The minimum size of RSA keys.
pub const RSA_BITS_MIN: usize = 2048;

/// The content of a certificate. It is a claim until the chain is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The subject, as `CN=…, O=…`; may be empty.
    pub subject: String,
    /// The first common name in the subject.
    pub common_name: Option<String>,
    /// The issuer, in the same format.
    pub issuer: String,
    /// The serial number, as hexadecimal pairs with colons.
    pub serial: String,
    /// The DNS names, IP addresses, URIs and e-mail addresses of the subjectAltName, in its order.
    pub sans: Vec<String>,
    /// The beginning of the validity, in unix seconds.
    pub not_before: i64,
    /// The end of the validity, in unix seconds.
    pub not_after: i64,
    /// The X.509 version: 1 or 3, rarely 2.
    pub version: u32,
    /// The kind and the size of the key: `ECDSA P-256`, `RSA 2048`, `Ed25519`.
    pub key: String,
    /// The size of the key in bits, if it is an RSA key.
    pub rsa_bits: Option<usize>,
    /// Whether issuer and subject are the same name.
    pub is_self_signed: bool,
    /// Whether the basic constraints declare a CA.
    pub is_ca: bool,
    /// Whether the basic constraints declare that it is not a CA; without basic constraints,
    /// whether its usages exclude a CA.
    pub denies_ca: bool,
    /// Whether the keyUsage allows the signature in a handshake; true without a keyUsage.
    pub may_sign: bool,
    /// The extended key usages; empty if there are none, which allows all usages.
    pub usages: Vec<String>,
    /// The SHA-256 hash of the DER, in hexadecimal.
    pub sha256: String,
}

/// The error for bytes that are not an X.509 certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotACertificate;

impl CertificateFacts {
    /// Parses the facts of one certificate.
    ///
    /// # Errors
    /// The bytes are not an X.509 certificate.
    pub fn from_der(der: &CertificateDer<'_>) -> Result<Self, NotACertificate> {
        let (rest, certificate) =
            X509Certificate::from_der(der.as_ref()).map_err(|_| NotACertificate)?;
        if !rest.is_empty() {
            return Err(NotACertificate);
        }
        let rsa_bits = rsa_bits(certificate.public_key());
        Ok(Self {
            subject: name(certificate.subject()),
            common_name: common_name(certificate.subject()),
            issuer: name(certificate.issuer()),
            serial: printable(&certificate.raw_serial_as_string()),
            sans: sans(&certificate),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            version: certificate.version().0.saturating_add(1),
            key: key(certificate.public_key(), rsa_bits),
            rsa_bits,
            is_self_signed: certificate.subject().as_raw() == certificate.issuer().as_raw(),
            is_ca: certificate.is_ca(),
            denies_ca: denies_ca(&certificate),
            may_sign: may_sign(&certificate),
            usages: usages(&certificate),
            sha256: hex(digest::digest(&digest::SHA256, der.as_ref()).as_ref()),
        })
    }

    /// Whether the RSA key is too small.
    #[must_use]
    pub fn has_weak_key(&self) -> bool {
        self.rsa_bits.is_some_and(|bits| bits < RSA_BITS_MIN)
    }

    /// Whether the extended key usages include this usage, or the certificate has none (RFC 5280
    /// section 4.2.1.12).
    #[must_use]
    pub fn is_for(&self, usage: &str) -> bool {
        self.usages.is_empty() || self.usages.iter().any(|known| known == usage || known == "any")
    }

    /// Returns the number of days until it expires; negative if it has expired.
    #[must_use]
    pub fn days_left(&self, now: i64) -> i64 {
        days_until(self.not_after, now)
    }

    /// Returns the text that identifies the certificate in messages: its subject or, if that is
    /// empty, another name.
    #[must_use]
    pub fn title(&self) -> &str {
        match (self.subject.as_str(), self.sans.first()) {
            ("", Some(san)) => san,
            ("", None) => &self.sha256,
            (subject, _) => subject,
        }
    }
}

/// The number of days from `now` to `at`, in Unix time: rounded to the nearest day, so that a
/// certificate that was issued for 90 days has 90 days left. Negative if `at` has passed, also by a
/// part of a day.
#[must_use]
pub fn days_until(at: i64, now: i64) -> i64 {
    let seconds = at.saturating_sub(now);
    match seconds {
        0.. => seconds.saturating_add(DAY_SECONDS / 2).div_euclid(DAY_SECONDS),
        _ => seconds.div_euclid(DAY_SECONDS),
    }
}

/// Formats unix seconds as `2026-01-31 23:59 UTC`.
#[must_use]
pub fn utc(unix_seconds: i64) -> String {
    let Ok(time) = ASN1Time::from_timestamp(unix_seconds) else {
        return format!("{unix_seconds} (unix seconds)");
    };
    let time = time.to_datetime();
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02} UTC",
        time.year(),
        u8::from(time.month()),
        time.day(),
        time.hour(),
        time.minute()
    )
}

/// Truncates untrusted text, and escapes control characters and bidirectional characters.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == TEXT_CHARS_MAX {
            shown.push('…');
            break;
        }
        shown.push(character);
    }
    printable::printable(&shown).into_owned()
}

fn name(name: &X509Name<'_>) -> String {
    printable(&name.to_string())
}

fn common_name(subject: &X509Name<'_>) -> Option<String> {
    subject.iter_common_name().next()?.as_str().ok().map(printable)
}

/// Names of other kinds (directory names, other names) are not used in TLS and are omitted. An
/// extension that cannot be parsed is omitted too, because the verifier rejects it.
fn sans(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    extension.value.general_names.iter().filter_map(san).take(NAMES_MAX).collect()
}

fn san(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(text) | GeneralName::URI(text) | GeneralName::RFC822Name(text) => {
            Some(printable(text))
        }
        GeneralName::IPAddress(bytes) => {
            let address = <[u8; 4]>::try_from(*bytes)
                .map(IpAddr::from)
                .or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

fn denies_ca(certificate: &X509Certificate<'_>) -> bool {
    if let Ok(Some(constraints)) = certificate.basic_constraints() {
        return !constraints.value.ca;
    }
    if let Ok(Some(usage)) = certificate.key_usage() {
        return !usage.value.key_cert_sign();
    }
    matches!(certificate.extended_key_usage(), Ok(Some(_)))
}

fn may_sign(certificate: &X509Certificate<'_>) -> bool {
    match certificate.key_usage() {
        Ok(None) => true,
        Ok(Some(usage)) => usage.value.digital_signature(),
        Err(_) => false,
    }
}

fn usages(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.extended_key_usage() else {
        return Vec::new();
    };
    let usage = extension.value;
    let known = [
        (usage.any, "any"),
        (usage.server_auth, "serverAuth"),
        (usage.client_auth, "clientAuth"),
        (usage.code_signing, "codeSigning"),
        (usage.email_protection, "emailProtection"),
        (usage.time_stamping, "timeStamping"),
        (usage.ocsp_signing, "OCSPSigning"),
    ];
    let words = known.iter().filter(|(set, _)| *set).map(|(_, word)| (*word).to_owned());
    words.chain(usage.other.iter().map(|oid| printable(&oid.to_string()))).take(NAMES_MAX).collect()
}

fn rsa_bits(key: &SubjectPublicKeyInfo<'_>) -> Option<usize> {
    let Ok(PublicKey::RSA(RSAPublicKey { modulus, .. })) = key.parsed() else {
        return None;
    };
    let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
    let first = modulus.get(zeros).map_or(0, |byte| byte.leading_zeros() as usize);
    Some((modulus.len() - zeros) * 8 - first)
}

fn key(key: &SubjectPublicKeyInfo<'_>, rsa_bits: Option<usize>) -> String {
    if let Some(bits) = rsa_bits {
        return format!("RSA {bits}");
    }
    let algorithm = key.algorithm.algorithm.to_id_string();
    match algorithm.as_str() {
        "1.2.840.10045.2.1" => format!("ECDSA {}", curve(key)),
        "1.3.101.112" => "Ed25519".to_owned(),
        "1.3.101.113" => "Ed448".to_owned(),
        "1.2.840.10040.4.1" => "DSA".to_owned(),
        "2.16.840.1.101.3.4.3.17" => "ML-DSA-44".to_owned(),
        "2.16.840.1.101.3.4.3.18" => "ML-DSA-65".to_owned(),
        "2.16.840.1.101.3.4.3.19" => "ML-DSA-87".to_owned(),
        other => printable(other),
    }
}

fn curve(key: &SubjectPublicKeyInfo<'_>) -> String {
    let curve = key.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
    match curve.map(|oid| oid.to_id_string()).as_deref() {
        Some("1.2.840.10045.3.1.7") => "P-256".to_owned(),
        Some("1.3.132.0.34") => "P-384".to_owned(),
        Some("1.3.132.0.35") => "P-521".to_owned(),
        Some(other) => printable(other),
        None => "(unknown curve)".to_owned(),
    }
}

/// Returns bytes as lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // INVARIANT: writing to a String never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_certificates::{Ca, LeafKind, damaged_leaf, openssl_v1};
    use proptest::prelude::*;

    #[test]
    fn facts_are_those_of_the_certificate() {
        let ca = Ca::new("facts CA");
        let leaf = ca.leaf(LeafKind::Valid);
        let facts = CertificateFacts::from_der(&leaf.chain[0]).unwrap();
        assert_eq!(facts.subject, "CN=leaf");
        assert_eq!(facts.issuer, "CN=facts CA");
        assert_eq!(facts.sans, ["db.example", "10.7.0.1", "::1", "spiffe://example/db"]);
        assert_eq!((facts.version, facts.key.as_str()), (3, "ECDSA P-256"));
        assert_eq!(facts.usages, ["serverAuth", "clientAuth"]);
        assert!(!facts.is_ca && !facts.is_self_signed && !facts.has_weak_key());
        assert_eq!(facts.sha256.len(), 64);
        assert_eq!(utc(facts.not_after), "2090-01-01 00:00 UTC");

        let facts = CertificateFacts::from_der(&ca.der()).unwrap();
        assert!(facts.is_ca && facts.is_self_signed);
    }

    #[test]
    fn days_are_rounded_to_the_nearest_until_the_expiry() {
        for (seconds, days) in [
            (90 * DAY_SECONDS, 90),
            (90 * DAY_SECONDS - 3, 90),
            (5 * DAY_SECONDS + 3600, 5),
            (DAY_SECONDS / 3, 0),
            (0, 0),
            (-1, -1),
            (-2 * DAY_SECONDS, -2),
        ] {
            assert_eq!(days_until(1_000_000 + seconds, 1_000_000), days, "{seconds}");
        }
    }

    #[test]
    fn knows_old_and_small_certificates() {
        let facts = CertificateFacts::from_der(&openssl_v1(1024).chain[0]).unwrap();
        assert_eq!((facts.version, facts.key.as_str()), (1, "RSA 1024"));
        assert!(facts.has_weak_key());
    }

    #[test]
    fn strangers_text_is_harmless() {
        assert_eq!(printable("a\u{1b}[2J\nb\u{202e}c ü"), "a\\u{1b}[2J\\nb\\u{202e}c ü");
        let long = printable(&"x".repeat(10_000));
        assert_eq!(long.chars().count(), TEXT_CHARS_MAX + 1);
    }

    #[test]
    fn every_truncation_is_refused_without_a_panic() {
        let leaf = Ca::new("cut CA").leaf(LeafKind::Valid);
        let der = leaf.chain[0].as_ref();
        for length in 0..der.len() {
            let cut = CertificateDer::from(&der[..length]);
            assert_eq!(CertificateFacts::from_der(&cut), Err(NotACertificate), "at {length}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            changes in prop::collection::vec((0usize..600, any::<u8>()), 1..8),
        ) {
            if let Ok(facts) = CertificateFacts::from_der(&damaged_leaf(&changes)) {
                let texts = [&facts.subject, &facts.issuer, &facts.serial, &facts.key];
                for text in texts.into_iter().chain(&facts.sans).chain(&facts.usages) {
                    prop_assert!(!text.chars().any(char::is_control));
                    prop_assert!(!utc(facts.not_after).is_empty());
                }
            }
        }
    }
}
