//! Lists the TLS versions, cipher suites and key exchange groups that tacit supports. Also lists
//! unsupported names, each with the reason why tacit rejects it.

use serde::Serialize;

/// A supported TLS version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum TlsVersion {
    /// RFC 5246.
    #[serde(rename = "1.2")]
    V1_2,
    /// RFC 8446.
    #[serde(rename = "1.3")]
    V1_3,
}

impl TlsVersion {
    /// Returns the name in policies.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::V1_2 => "1.2",
            Self::V1_3 => "1.3",
        }
    }
}

/// A supported cipher suite, with its IANA name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
pub enum Suite {
    TLS_AES_128_GCM_SHA256,
    TLS_AES_256_GCM_SHA384,
    TLS_CHACHA20_POLY1305_SHA256,
    TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

impl Suite {
    /// Every suite, in the default order: AES-128-GCM first, because SHA-256 is the cheaper hash.
    pub const DEFAULT: [Self; 9] = [
        Self::TLS_AES_128_GCM_SHA256,
        Self::TLS_AES_256_GCM_SHA384,
        Self::TLS_CHACHA20_POLY1305_SHA256,
        Self::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        Self::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        Self::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        Self::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        Self::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        Self::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ];

    /// The IANA name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TLS_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
            Self::TLS_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
            Self::TLS_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
            Self::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => {
                "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
            }
            Self::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => {
                "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
            }
            Self::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => {
                "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
            }
            Self::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            Self::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            Self::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => {
                "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"
            }
        }
    }

    /// Returns the version to which the suite belongs.
    #[must_use]
    pub fn version(self) -> TlsVersion {
        match self {
            Self::TLS_AES_128_GCM_SHA256
            | Self::TLS_AES_256_GCM_SHA384
            | Self::TLS_CHACHA20_POLY1305_SHA256 => TlsVersion::V1_3,
            _ => TlsVersion::V1_2,
        }
    }
}

/// A supported key exchange group. IANA names are compared case-insensitively.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Group {
    X25519MLKEM768,
    X25519,
    Secp256r1,
    Secp384r1,
}

impl Group {
    /// Every group, in the default order: the hybrid post-quantum group first.
    pub const DEFAULT: [Self; 4] =
        [Self::X25519MLKEM768, Self::X25519, Self::Secp256r1, Self::Secp384r1];

    /// The IANA name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::X25519MLKEM768 => "X25519MLKEM768",
            Self::X25519 => "x25519",
            Self::Secp256r1 => "secp256r1",
            Self::Secp384r1 => "secp384r1",
        }
    }
}

/// Returns the reason why a suite is rejected, by the words in its name (in upper case, with `_`
/// between words); the most severe reason first.
#[must_use]
pub fn suite_refusal(plain: &str) -> Option<&'static str> {
    const WEAK: [(&[&str], &str); 11] = [
        (&["NULL"], "NULL suites do not encrypt"),
        (&["EXPORT", "EXP", "EXPORT40", "EXPORT1024"], "EXPORT suites have deliberately weak keys"),
        (&["ANON", "ADH", "AECDH"], "anonymous suites do not authenticate the peer"),
        (&["RC4", "RC2", "ARCFOUR"], "RC4 and RC2 are broken (RFC 7465)"),
        (
            &["DES", "3DES", "DES40", "CBC3", "IDEA"],
            "ciphers with 64-bit blocks leak data after hours of traffic (Sweet32)",
        ),
        (&["MD5"], "MD5 is broken"),
        (&["PSK", "SRP", "KRB5"], "pre-shared keys are not supported"),
        (&["DHE", "EDH", "DH"], "finite-field DHE is slow, and its groups are often weak"),
        (
            &["CCM", "CCM8", "CAMELLIA", "ARIA", "SEED"],
            "tacit supports only AES-GCM and ChaCha20-Poly1305",
        ),
        (&["CBC"], "CBC suites allow padding attacks; tacit supports only AEAD suites"),
        (&["RSA"], "static RSA has no forward secrecy"),
    ];
    let words: Vec<&str> = plain.split('_').collect();
    let ephemeral = words.contains(&"ECDHE");
    let aead = words.contains(&"GCM") || words.contains(&"POLY1305");
    // OpenSSL's names omit static RSA key exchange and CBC.
    let static_rsa = words.contains(&"RSA") || words[0].starts_with("AES");
    WEAK.iter()
        .find(|(weak, _)| match *weak {
            ["RSA"] => static_rsa && !ephemeral,
            ["CBC"] => words.contains(&"CBC") || (!aead && plain.contains("AES")),
            _ => weak.iter().any(|word| words.contains(word)),
        })
        .map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_suites_are_refused_for_the_gravest_reason() {
        for (name, why) in [
            ("TLS_RSA_WITH_NULL_SHA256", "NULL"),
            ("TLS_RSA_EXPORT_WITH_RC4_40_MD5", "EXPORT"),
            ("EXP-RC4-MD5", "EXPORT"),
            ("TLS_DH_anon_WITH_AES_128_CBC_SHA", "anonymous"),
            ("TLS_RSA_WITH_RC4_128_SHA", "RC4"),
            ("RC4-SHA", "RC4"),
            ("TLS_RSA_WITH_3DES_EDE_CBC_SHA", "64-bit"),
            ("DES-CBC3-SHA", "64-bit"),
            ("TLS_DHE_RSA_WITH_AES_128_GCM_SHA256", "finite-field"),
            ("DHE-RSA-AES256-GCM-SHA384", "finite-field"),
            ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "CBC"),
            ("ECDHE-RSA-AES128-SHA256", "CBC"),
            ("TLS_RSA_WITH_AES_128_CBC_SHA", "CBC"),
            ("AES128-SHA", "CBC"),
            ("TLS_RSA_WITH_AES_128_GCM_SHA256", "static RSA"),
            ("AES256-GCM-SHA384", "static RSA"),
            ("TLS_AES_128_CCM_SHA256", "tacit supports only AES-GCM"),
        ] {
            let plain = name.to_ascii_uppercase().replace('-', "_");
            let refused = suite_refusal(&plain).unwrap_or("accepted");
            assert!(refused.contains(why), "{name}: {refused}");
        }
        for suite in Suite::DEFAULT {
            assert_eq!(suite_refusal(suite.name()), None, "{}", suite.name());
        }
    }
}
