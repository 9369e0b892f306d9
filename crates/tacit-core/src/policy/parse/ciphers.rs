//! Parses the names of TLS versions, cipher suites and key exchange groups, and rejects unsupported
//! ones.

use crate::policy::suite::{Group, Suite, TlsVersion, suite_refusal};
use crate::policy::text::{TomlData, TomlValue, nearest_word, word_list};

/// Parses the value of `min-version`.
pub(super) fn version(value: &TomlValue<'_>) -> Option<TlsVersion> {
    if matches!(value.value, TomlData::Float) {
        value.wrong_type("a version in quotes: \"1.2\" or \"1.3\"");
        return None;
    }
    let text = value.string()?;
    match text {
        "1.2" => return Some(TlsVersion::V1_2),
        "1.3" => return Some(TlsVersion::V1_3),
        _ => {}
    }
    let plain = text.to_ascii_lowercase().replace(['v', '_', ' '], "");
    match plain.as_str() {
        "1.0" | "1.1" | "tls1" | "tls1.0" | "tls1.1" => value.error(
            format!("TLS version `{text}` is refused: RFC 8996 forbids this version"),
            "if every peer supports TLS 1.3, write \"1.3\"; otherwise write \"1.2\"",
        ),
        "tls1.2" => {
            value.error(format!("`{key}` cannot be `{text}`", key = value.name), "write \"1.2\"")
        }
        "tls1.3" => {
            value.error(format!("`{key}` cannot be `{text}`", key = value.name), "write \"1.3\"")
        }
        ssl if ssl.starts_with("ssl") => value.error(
            format!("`{text}` is refused: SSL is broken, and RFC 7568 forbids its use"),
            "if every peer supports TLS 1.3, write \"1.3\"; otherwise write \"1.2\"",
        ),
        _ => value.unknown_word(text, &["1.2", "1.3"]),
    }
    None
}

/// Parses an entry of `suites`.
pub(super) fn suite(value: &TomlValue<'_>) -> Option<Suite> {
    let text = value.string()?;
    if let Some(suite) = Suite::DEFAULT.into_iter().find(|suite| suite.name() == text) {
        return Some(suite);
    }
    let plain = text.to_ascii_uppercase().replace(['-', ' '], "_");
    let same = Suite::DEFAULT.into_iter().find(|suite| suite.name() == plain);
    let openssl = OPENSSL_SUITES.iter().find(|(name, _)| *name == plain).map(|(_, suite)| *suite);
    if let Some(suite) = same.or(openssl) {
        let message = format!("`{text}` is not the IANA name of a cipher suite");
        value.error(message, format!("write `{}`", suite.name()));
    } else if let Some(why) = suite_refusal(&plain) {
        let instead = replacement(&plain).name();
        value.error(format!("`{text}` is refused: {why}"), format!("use `{instead}`"));
    } else {
        value.unknown_word(text, &Suite::DEFAULT.map(Suite::name));
    }
    None
}

/// Parses an entry of `groups`.
pub(super) fn group(value: &TomlValue<'_>) -> Option<Group> {
    let text = value.string()?;
    let same = |group: &Group| group.name().eq_ignore_ascii_case(text);
    if let Some(group) = Group::DEFAULT.into_iter().find(same) {
        return Some(group);
    }
    let plain = text.to_ascii_lowercase().replace(['-', '_'], "");
    let other_name = match plain.as_str() {
        "p256" | "prime256v1" => Some(Group::Secp256r1),
        "p384" => Some(Group::Secp384r1),
        "x25519kyber768draft00" => Some(Group::X25519MLKEM768),
        _ => None,
    };
    if let Some(group) = other_name {
        let message = format!("`{text}` is not the IANA name of a key exchange group");
        value.error(message, format!("write `{}`", group.name()));
    } else if plain.starts_with("ffdhe") {
        let message = format!("`{text}` is refused: finite-field groups are slow");
        value.error(message, "use `x25519`");
    } else {
        let known = Group::DEFAULT.map(Group::name);
        let nearest = nearest_word(text, &known).map(|word| format!("did you mean `{word}`?"));
        let fix = nearest.unwrap_or_else(|| format!("write one of {}", word_list(&known)));
        value.error(format!("unknown group `{text}`"), fix);
    }
    None
}

/// The names that OpenSSL uses, which most examples contain.
const OPENSSL_SUITES: [(&str, Suite); 6] = [
    ("ECDHE_ECDSA_AES128_GCM_SHA256", Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE_ECDSA_AES256_GCM_SHA384", Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE_ECDSA_CHACHA20_POLY1305", Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE_RSA_AES128_GCM_SHA256", Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE_RSA_AES256_GCM_SHA384", Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE_RSA_CHACHA20_POLY1305", Suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Returns the suite to use instead of a rejected one.
fn replacement(plain: &str) -> Suite {
    let is_ecdsa = plain.contains("ECDSA") || plain.contains("DSS");
    let is_256_bit = plain.contains("256_");
    match (is_ecdsa, is_256_bit) {
        (true, false) => Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        (true, true) => Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        (false, false) => Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        (false, true) => Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacements_keep_key_type_and_strength() {
        let name = |plain| replacement(plain).name();
        assert_eq!(name("TLS_RSA_WITH_AES_128_CBC_SHA"), "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256");
        assert_eq!(
            name("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384"),
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
        );
    }
}
