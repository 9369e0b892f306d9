//! Converts OpenSSL's cipher lists to the cipher suites of a tacit policy. Also converts OpenSSL's
//! names of cipher suites and key exchange groups to the names in a tacit policy.
//!
//! A cipher list is a small program: a word adds suites, `!word` forbids them, `-word` removes
//! them, and `+word` moves them to the end. [`run`] executes this program on the TLS 1.2 suites
//! that tacit supports. The function also returns the names of unsupported suites in the list.

use tacit_core::policy::{Group, Suite};

/// The TLS 1.2 suites by OpenSSL's names, in the order in which OpenSSL adds them.
const SUITES: [(&str, Suite); 6] = [
    ("ECDHE-ECDSA-AES256-GCM-SHA384", Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES256-GCM-SHA384", Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", Suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-AES128-GCM-SHA256", Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
];

/// Words that select all of them.
const ALL: &[&str] =
    &["ALL", "HIGH", "DEFAULT", "TLSv1.2", "ECDHE", "EECDH", "ECDH", "kECDHE", "kEECDH"];
/// Words that select none of them.
const NONE: &[&str] = &[
    "COMPLEMENTOFDEFAULT",
    "COMPLEMENTOFALL",
    "MEDIUM",
    "LOW",
    "EXP",
    "EXPORT",
    "EXPORT40",
    "EXPORT56",
    "eNULL",
    "NULL",
    "aNULL",
    "kRSA",
    "RSA",
    "kDHr",
    "kDHd",
    "kDH",
    "kDHE",
    "kEDH",
    "DH",
    "DHE",
    "EDH",
    "ADH",
    "AECDH",
    "kECDHr",
    "kECDHe",
    "kECDH",
    "aDSS",
    "DSS",
    "aDH",
    "aECDH",
    "AEAD",
    "TLSv1.0",
    "TLSv1",
    "SSLv3",
    "SSLv2",
    "AESCCM",
    "AESCCM8",
    "ARIA",
    "ARIA128",
    "ARIA256",
    "ARIAGCM",
    "CAMELLIA",
    "CAMELLIA128",
    "CAMELLIA256",
    "3DES",
    "DES",
    "RC4",
    "RC2",
    "IDEA",
    "SEED",
    "MD5",
    "SHA",
    "SHA1",
    "SHA256",
    "SHA384",
    "kGOST",
    "GOST",
    "PSK",
    "kPSK",
    "aPSK",
    "kECDHEPSK",
    "kDHEPSK",
    "kRSAPSK",
    "SRP",
    "kSRP",
    "aSRP",
    "CBC",
];

/// The result of a cipher list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ciphers {
    /// The suites of TLS 1.2, in order of preference.
    pub(super) suites: Vec<Suite>,
    /// Suites that the list names one by one and tacit does not support.
    pub(super) dropped: Vec<String>,
    /// Words for groups of suites of which tacit supports some or none.
    pub(super) wide: Vec<String>,
    /// The security level, if the list sets one.
    pub(super) level: Option<String>,
}

/// Runs a cipher list.
pub(super) fn run(list: &str) -> Ciphers {
    let mut done = Ciphers::default();
    let mut forbidden: Vec<Suite> = Vec::new();
    // A word that begins with `@` needs no separator before it: `DEFAULT@SECLEVEL=2`.
    let list = list.replace('@', ":@");
    for word in list.split([':', ',', ' ', ';']).filter(|word| !word.is_empty()) {
        if let Some(level) = word.strip_prefix("@SECLEVEL=") {
            done.level = Some(level.to_owned());
            continue;
        }
        if word == "@STRENGTH" {
            // 128 bits last; both ciphers of 256 bits keep their order.
            done.suites.sort_by_key(|suite| suite.name().contains("AES_128"));
            continue;
        }
        let (sign, name) = match word.as_bytes() {
            [sign @ (b'!' | b'-' | b'+'), ..] => (Some(*sign), &word[1..]),
            _ => (None, word),
        };
        let found = named(name);
        match sign {
            Some(b'!') => {
                done.suites.retain(|suite| !found.contains(suite));
                forbidden.extend(found);
            }
            Some(b'-') => done.suites.retain(|suite| !found.contains(suite)),
            Some(_) => {
                done.suites.sort_by_key(|suite| found.contains(suite));
            }
            None => {
                let new =
                    |suite: &Suite| !forbidden.contains(suite) && !done.suites.contains(suite);
                let new: Vec<Suite> = found.iter().copied().filter(new).collect();
                done.suites.extend(new);
                match name.contains('-') {
                    true if found.is_empty() => done.dropped.push(name.to_owned()),
                    true => {}
                    false => done.wide.push(name.to_owned()),
                }
            }
        }
    }
    done
}

/// The suites that a word selects; if `+` joins several words, all must match.
fn named(word: &str) -> Vec<Suite> {
    let holds = |suite: &(&str, Suite)| word.split('+').all(|part| is(part, suite.0));
    SUITES.iter().filter(|suite| holds(suite)).map(|(_, suite)| *suite).collect()
}

fn is(word: &str, suite: &str) -> bool {
    match word {
        word if ALL.contains(&word) => true,
        word if NONE.contains(&word) => false,
        "ECDSA" | "aECDSA" => suite.contains("-ECDSA-"),
        "aRSA" => suite.contains("-RSA-"),
        "AES" | "AESGCM" | "FIPS" => suite.contains("-AES"),
        "AES128" => suite.contains("-AES128"),
        "AES256" => suite.contains("-AES256"),
        "CHACHA20" => suite.contains("-CHACHA20"),
        word => word == suite,
    }
}

/// The supported entries of a list, and the names of the unsupported ones.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Known<T> {
    pub(super) kept: Vec<T>,
    pub(super) dropped: Vec<String>,
}

/// Suites of TLS 1.3 by name.
pub(super) fn modern(list: &str) -> Known<Suite> {
    let mut kept = Vec::new();
    let mut dropped = Vec::new();
    for name in list.split(':').map(str::trim).filter(|name| !name.is_empty()) {
        match Suite::DEFAULT.into_iter().find(|suite| suite.name() == name) {
            Some(suite) if !kept.contains(&suite) => kept.push(suite),
            Some(_) => {}
            None => dropped.push(name.to_owned()),
        }
    }
    Known { kept, dropped }
}

/// Groups by the names of OpenSSL.
pub(super) fn groups(list: &str) -> Known<Group> {
    let mut kept = Vec::new();
    let mut dropped = Vec::new();
    for name in list.split(':').map(str::trim).filter(|name| !name.is_empty()) {
        let group = match name.to_ascii_lowercase().as_str() {
            "x25519" => Some(Group::X25519),
            "p-256" | "prime256v1" | "secp256r1" => Some(Group::Secp256r1),
            "p-384" | "secp384r1" => Some(Group::Secp384r1),
            "x25519mlkem768" => Some(Group::X25519MLKEM768),
            _ => None,
        };
        match group {
            Some(group) if !kept.contains(&group) => kept.push(group),
            Some(_) => {}
            None => dropped.push(name.to_owned()),
        }
    }
    Known { kept, dropped }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_short(list: &str) -> String {
        let short = |suite: &Suite| SUITES.iter().find(|(_, known)| known == suite).unwrap().0;
        let names: Vec<&str> = run(list).suites.iter().map(short).collect();
        names.join(":")
    }

    /// What `openssl ciphers -s -tls1_2 LIST` prints, less what tacit does not have.
    #[test]
    fn lists_come_to_what_openssl_makes_of_them() {
        let [e256, r256, ecc, rcc, e128, r128] = SUITES.map(|(name, _)| name);
        for (list, wanted) in [
            ("HIGH:!aNULL:!SSLv2:!DH:!kDHEPSK", vec![e256, r256, ecc, rcc, e128, r128]),
            ("DEFAULT", vec![e256, r256, ecc, rcc, e128, r128]),
            ("ECDHE+AESGCM:!AES128", vec![e256, r256]),
            ("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384", vec![r128, r256]),
            ("AES128+aRSA:HIGH:!CHACHA20", vec![r128, e256, r256, e128]),
            ("HIGH:+AES256:-aECDSA", vec![rcc, r128, r256]),
            ("AES128:CHACHA20:@STRENGTH", vec![ecc, rcc, e128, r128]),
            ("!AES128:ALL:AES128", vec![e256, r256, ecc, rcc]),
            ("DEFAULT@SECLEVEL=2", vec![e256, r256, ecc, rcc, e128, r128]),
            ("ECDHE+AESGCM@SECLEVEL=1:!AES128", vec![e256, r256]),
            ("RC4-SHA:DES-CBC3-SHA", vec![]),
            ("DHE:kRSA:SHA256", vec![]),
        ] {
            assert_eq!(run_short(list), wanted.join(":"), "{list}");
        }
    }

    #[test]
    fn unsupported_suites_are_reported_by_name() {
        let done = run("ECDHE-RSA-AES128-SHA256:AES128-SHA:HIGH:!aNULL:@SECLEVEL=1");
        assert_eq!(done.dropped, ["ECDHE-RSA-AES128-SHA256", "AES128-SHA"]);
        assert_eq!((done.wide, done.level.as_deref()), (vec!["HIGH".to_owned()], Some("1")));
        let done = run("DEFAULT@SECLEVEL=2");
        assert_eq!((done.wide, done.level.as_deref()), (vec!["DEFAULT".to_owned()], Some("2")));
        let suites = modern("TLS_AES_128_CCM_SHA256:TLS_AES_256_GCM_SHA384");
        assert_eq!(suites.kept, [Suite::TLS_AES_256_GCM_SHA384]);
        assert_eq!(suites.dropped, ["TLS_AES_128_CCM_SHA256"]);
        let groups = groups("X25519:P-256:X448:prime256v1:secp384r1");
        assert_eq!(groups.kept, [Group::X25519, Group::Secp256r1, Group::Secp384r1]);
        assert_eq!(groups.dropped, ["X448"]);
    }
}
