//! Converts the values of stunnel's option `options`: flags of OpenSSL, such as `NO_TLSv1_2`.
//!
//! A value that forbids a TLS version changes the TLS versions of the imported rule. All other
//! values are ignored, because tacit has no corresponding settings.

use super::lines::Entry;
use crate::finding::Findings;
use tacit_core::policy::text::nearest_word;

/// The options that each forbid one TLS version, ordered from the oldest version to the newest.
const FORBIDDING: [&str; 6] =
    ["NO_SSLv2", "NO_SSLv3", "NO_TLSv1", "NO_TLSv1_1", "NO_TLSv1_2", "NO_TLSv1_3"];

/// The option that forbids all TLS versions.
const FORBIDDING_ALL: &str = "NO_SSL_MASK";

/// Options without an effect in tacit: the other options that `stunnel -options` prints, and
/// options of newer OpenSSL versions.
const OTHERS: [&str; 50] = [
    "ALL",
    "ALLOW_CLIENT_RENEGOTIATION",
    "ALLOW_NO_DHE_KEX",
    "ALLOW_UNSAFE_LEGACY_RENEGOTIATION",
    "CIPHER_SERVER_PREFERENCE",
    "CISCO_ANYCONNECT",
    "CLEANSE_PLAINTEXT",
    "COOKIE_EXCHANGE",
    "CRYPTOPRO_TLSEXT_BUG",
    "DISABLE_TLSEXT_CA_NAMES",
    "DONT_INSERT_EMPTY_FRAGMENTS",
    "ENABLE_KTLS",
    "ENABLE_KTLS_TX_ZEROCOPY_SENDFILE",
    "ENABLE_MIDDLEBOX_COMPAT",
    "EPHEMERAL_RSA",
    "IGNORE_UNEXPECTED_EOF",
    "LEGACY_SERVER_CONNECT",
    "MICROSOFT_BIG_SSLV3_BUFFER",
    "MICROSOFT_SESS_ID_BUG",
    "MSIE_SSLV2_RSA_PADDING",
    "NETSCAPE_CA_DN_BUG",
    "NETSCAPE_CHALLENGE_BUG",
    "NETSCAPE_DEMO_CIPHER_CHANGE_BUG",
    "NETSCAPE_REUSE_CIPHER_CHANGE_BUG",
    "NO_ANTI_REPLAY",
    "NO_COMPRESSION",
    "NO_DTLS_MASK",
    "NO_DTLSv1",
    "NO_DTLSv1_2",
    "NO_ENCRYPT_THEN_MAC",
    "NO_EXTENDED_MASTER_SECRET",
    "NO_QUERY_MTU",
    "NO_RENEGOTIATION",
    "NO_RX_CERTIFICATE_COMPRESSION",
    "NO_SESSION_RESUMPTION_ON_RENEGOTIATION",
    "NO_TICKET",
    "NO_TX_CERTIFICATE_COMPRESSION",
    "PKCS1_CHECK_1",
    "PKCS1_CHECK_2",
    "PREFER_NO_DHE_KEX",
    "PRIORITIZE_CHACHA",
    "SAFARI_ECDHE_ECDSA_BUG",
    "SINGLE_DH_USE",
    "SINGLE_ECDH_USE",
    "SSLEAY_080_CLIENT_DH_BUG",
    "SSLREF2_REUSE_CERT_TYPE_BUG",
    "TLSEXT_PADDING",
    "TLS_BLOCK_PADDING_BUG",
    "TLS_D5_BUG",
    "TLS_ROLLBACK_BUG",
];

/// The effect of one `options` line on the allowed TLS versions.
pub(super) enum VersionSwitch {
    /// The line forbids one TLS version. If the value begins with a dash, the line allows the
    /// version again. `version` is an index into `FORBIDDING`.
    Version { version: usize, forbids: bool },
    /// The line forbids or allows all TLS versions.
    Versions { forbids: bool },
    /// The line does not affect TLS versions.
    Other,
}

/// Reads one `options` line, and ignores the case of letters, as stunnel does. Returns `None` after
/// it reported an error.
pub(super) fn read(entry: &Entry, findings: &mut Findings) -> Option<VersionSwitch> {
    let name = entry.value.strip_prefix('-').unwrap_or(&entry.value);
    let forbids = name.len() == entry.value.len();
    if let Some(version) = FORBIDDING.iter().position(|word| word.eq_ignore_ascii_case(name)) {
        return Some(VersionSwitch::Version { version, forbids });
    }
    if FORBIDDING_ALL.eq_ignore_ascii_case(name) {
        return Some(VersionSwitch::Versions { forbids });
    }
    if OTHERS.iter().any(|word| word.eq_ignore_ascii_case(name)) {
        findings.info(
            &entry.at,
            format!("`{name}` has no effect, because tacit has no equivalent setting"),
        );
        return Some(VersionSwitch::Other);
    }
    let known: Vec<&str> =
        [FORBIDDING_ALL].iter().chain(&FORBIDDING).chain(&OTHERS).copied().collect();
    let fix = match nearest_word(name, &known) {
        Some(word) => format!("did you mean `{word}`?"),
        None => "remove the option; `stunnel -options` lists the known options".to_owned(),
    };
    findings.error(&entry.at, format!("`options`: OpenSSL has no option `{name}`"), fix);
    None
}
