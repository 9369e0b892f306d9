//! Parses proposals: the algorithms for IKE and ESP. The algorithms have the same names as in
//! strongSwan.

use crate::message_id::MessageId;
use crate::policy::ike::{EspSuite, IkeGroup, IkeSuite, Sha2, TunnelCipher};
use crate::policy::text::{TomlValue, nearest_word};

/// Parses an entry of `proposals`.
pub(super) fn ike(value: &TomlValue<'_>) -> Option<IkeSuite> {
    let parts = Parts::read(value)?;
    let Parts { text, cipher, hash, prf, group } = parts;
    // As in strongSwan, the hash of an HMAC is also that of the PRF unless another is named.
    let Some(prf) = prf.or(hash) else {
        let message = format!(
            "`{text}` contains no PRF (pseudorandom function). {cipher} is an AEAD cipher, so \
             there is no integrity algorithm that tacit could use as the PRF"
        );
        value.error(message, format!("write `{cipher}-prfsha384-x25519`"));
        return None;
    };
    let Some(group) = group else {
        let message = format!("`{text}` contains no group for the key exchange");
        value.error(
            message,
            format!("write `{text}-x25519`, or use another of these groups: {}", groups()),
        );
        return None;
    };
    Some(IkeSuite { cipher, prf, group })
}

/// Parses an entry of `esp-proposals`.
pub(super) fn esp(value: &TomlValue<'_>) -> Option<EspSuite> {
    let Parts { text, cipher, prf, group, .. } = Parts::read(value)?;
    if prf.is_some() {
        let message =
            format!("`{text}` contains a PRF (pseudorandom function), but ESP uses no PRF");
        value.error(message, "remove the part that begins with `prf`");
        return None;
    }
    Some(EspSuite { cipher, group })
}

/// Parses a proposal of the defaults, which are complete.
pub(super) fn parsed(text: &str) -> Option<IkeSuite> {
    let (cipher, prf, group) = words(text);
    Some(IkeSuite { cipher: cipher?, prf: prf?, group: group? })
}

/// Parses an ESP proposal of the defaults.
pub(super) fn parsed_esp(text: &str) -> Option<EspSuite> {
    let (cipher, _, group) = words(text);
    Some(EspSuite { cipher: cipher?, group })
}

fn words(text: &str) -> (Option<TunnelCipher>, Option<Sha2>, Option<IkeGroup>) {
    let find = |word: &str| match part(word) {
        Some(Part::Aead(cipher)) => (Some(cipher), None, None),
        Some(Part::Prf(prf)) => (None, Some(prf), None),
        Some(Part::Group(group)) => (None, None, Some(group)),
        Some(Part::Cbc(_) | Part::Hash(_)) | None => (None, None, None),
    };
    text.split('-')
        .map(find)
        .fold((None, None, None), |all, one| (all.0.or(one.0), all.1.or(one.1), all.2.or(one.2)))
}

/// The algorithms that a proposal names.
struct Parts<'a> {
    text: &'a str,
    cipher: TunnelCipher,
    /// The hash of the HMAC of CBC.
    hash: Option<Sha2>,
    prf: Option<Sha2>,
    group: Option<IkeGroup>,
}

impl<'a> Parts<'a> {
    fn read(value: &TomlValue<'a>) -> Option<Self> {
        let text = value.string()?;
        let mut all = Vec::new();
        for word in text.split('-') {
            let plain = word.to_ascii_lowercase().replace('_', "");
            let Some(part) = part(&plain) else {
                refuse(value, word, &plain);
                return None;
            };
            if all.iter().any(|other: &Part| other.kind() == part.kind()) {
                let message =
                    format!("`{text}` contains two {kind} algorithms", kind = part.kind());
                let fix = "write a proposal for each of the two algorithms, as separate strings \
                           of a list";
                value.error(message, fix);
                return None;
            }
            all.push(part);
        }
        Self::of(value, text, &all)
    }

    fn of(value: &TomlValue<'a>, text: &'a str, all: &[Part]) -> Option<Self> {
        let hash = all.iter().find_map(|part| match part {
            Part::Hash(hash) => Some(*hash),
            _ => None,
        });
        let prf = all.iter().find_map(|part| match part {
            Part::Prf(prf) => Some(*prf),
            _ => None,
        });
        let group = all.iter().find_map(|part| match part {
            Part::Group(group) => Some(*group),
            _ => None,
        });
        let cipher = all.iter().find_map(|part| match part {
            Part::Aead(cipher) => Some((*cipher, None)),
            Part::Cbc(bits) => Some((TunnelCipher::Aes256Gcm16, Some(*bits))),
            _ => None,
        });
        let Some((aead, cbc_bits)) = cipher else {
            let message = format!("`{text}` contains no cipher");
            value.error(message, "begin the proposal with a cipher: `aes256gcm16`");
            return None;
        };
        let cipher = match (cbc_bits, hash) {
            (None, None) => aead,
            (Some(128), Some(hash)) => TunnelCipher::Aes128Cbc(hash),
            (Some(_), Some(hash)) => TunnelCipher::Aes256Cbc(hash),
            (Some(bits), None) => {
                let message = format!(
                    "`{text}`: AES-CBC needs an integrity algorithm, which the proposal lacks"
                );
                value.error(message, format!("write `aes{bits}-sha256`, or use `aes{bits}gcm16`"));
                return None;
            }
            (None, Some(hash)) => {
                let hash = hash.word();
                let message = format!(
                    "`{text}`: {aead} is an AEAD cipher, so the proposal must not contain an \
                     integrity algorithm"
                );
                let fix = format!(
                    "remove `{hash}`; or, if you want this hash for the PRF, replace `{hash}` with \
                     `prf{hash}`"
                );
                value.error(message, fix);
                return None;
            }
        };
        Some(Self { text, cipher, hash, prf, group })
    }
}

/// One word of a proposal.
#[derive(Clone, Copy)]
enum Part {
    Aead(TunnelCipher),
    /// AES-CBC with keys of so many bits.
    Cbc(u16),
    Hash(Sha2),
    Prf(Sha2),
    Group(IkeGroup),
}

impl Part {
    fn kind(self) -> &'static str {
        match self {
            Self::Aead(_) | Self::Cbc(_) => "cipher",
            Self::Hash(_) => "integrity",
            Self::Prf(_) => "PRF",
            Self::Group(_) => "key exchange",
        }
    }
}

/// Parses a word in lower case and without `_`.
fn part(word: &str) -> Option<Part> {
    let hash = |word: &str| Sha2::ALL.into_iter().find(|hash| hash.word() == word);
    let group = |group: &IkeGroup| group.word() == word;
    Some(match word {
        "aes128gcm16" | "aes128gcm128" => Part::Aead(TunnelCipher::Aes128Gcm16),
        "aes256gcm16" | "aes256gcm128" => Part::Aead(TunnelCipher::Aes256Gcm16),
        "chacha20poly1305" => Part::Aead(TunnelCipher::ChaCha20Poly1305),
        "aes128" | "aes" => Part::Cbc(128),
        "aes256" => Part::Cbc(256),
        "curve25519" => Part::Group(IkeGroup::X25519),
        "p256" => Part::Group(IkeGroup::P256),
        "p384" => Part::Group(IkeGroup::P384),
        _ => match word.strip_prefix("prf") {
            Some(prf) => Part::Prf(hash(prf)?),
            None => match IkeGroup::ALL.into_iter().find(group) {
                Some(group) => Part::Group(group),
                None => Part::Hash(hash(word).or_else(|| hash(&word.replacen("sha2", "sha", 1)))?),
            },
        },
    })
}

/// Reports a word that is no algorithm of tacit.
fn refuse(value: &TomlValue<'_>, word: &str, plain: &str) {
    let named = |(names, _, _): &&(&[&str], &str, &str)| names.contains(&plain);
    if let Some((_, why, instead)) = REFUSED.iter().find(named) {
        let message = format!("`{word}` is refused: {why}");
        value.error_of(MessageId("weak-algorithm"), message, format!("use {instead}"));
        return;
    }
    if let Some((_, why, instead)) = NOT_SUPPORTED.iter().find(named) {
        value.error(format!("`{word}` is not supported: {why}"), format!("use {instead}"));
        return;
    }
    let message = format!("unknown algorithm `{}`", word.escape_debug());
    let nearest = nearest_word(plain, &KNOWN).map(|word| format!("did you mean `{word}`?"));
    let fix = nearest.unwrap_or_else(|| {
        "write a proposal such as `aes256gcm16-prfsha384-x25519`, or `aes256-sha256-ecp256`"
            .to_owned()
    });
    value.error(message, fix);
}

fn groups() -> String {
    IkeGroup::ALL.map(|group| format!("`{}`", group.word())).join(", ")
}

const KNOWN: [&str; 15] = [
    "aes128gcm16",
    "aes256gcm16",
    "chacha20poly1305",
    "aes128",
    "aes256",
    "sha256",
    "sha384",
    "sha512",
    "prfsha256",
    "prfsha384",
    "prfsha512",
    "x25519",
    "ecp256",
    "ecp384",
    "modp2048",
];

/// Algorithms that RFC 8221 and RFC 8247 forbid or advise against: names, reason, replacement.
const REFUSED: [(&[&str], &str, &str); 10] = [
    (&["des", "desiv64", "desiv32"], "keys of 56 bits are too short", CIPHERS),
    (
        &["3des", "3desede", "des3"],
        "ciphers with 64-bit blocks leak data after hours of traffic (Sweet32)",
        CIPHERS,
    ),
    (
        &["blowfish", "blowfish128", "cast", "cast128", "idea", "rc5"],
        "ciphers with 64-bit blocks leak data after hours of traffic (Sweet32)",
        CIPHERS,
    ),
    (&["null", "nullgcm", "aes128gmac", "aes256gmac"], "this algorithm does not encrypt", CIPHERS),
    (&["md5", "md5128", "hmacmd5"], "MD5 is broken", "`sha256`"),
    (&["prfmd5"], "MD5 is broken", "`prfsha256`"),
    (&["sha", "sha1", "sha1160", "hmacsha1"], "SHA-1 is broken", "`sha256`"),
    (&["prfsha", "prfsha1"], "SHA-1 is broken", "`prfsha256`"),
    (
        &["modp768", "modp1024", "modp1536", "modp1024s160"],
        "groups with less than 2048 bits are too weak",
        "`x25519` or `ecp256`",
    ),
    (
        &["modp2048s224", "modp2048s256"],
        "the authors of this group never published its random seeds (RFC 8247 section 2.4)",
        "`x25519` or `ecp256`",
    ),
];

const CIPHERS: &str = "`aes256gcm16` or `aes256-sha256`";

/// Sound or harmless algorithms that tacit does not have.
const NOT_SUPPORTED: [(&[&str], &str, &str); 6] = [
    (
        &["modp3072", "modp4096", "modp6144", "modp8192"],
        "elliptic-curve groups are faster",
        "`x25519`, `ecp384` or `modp2048`",
    ),
    (
        &["ecp192", "ecp224", "ecp521", "x448", "curve448", "ecp256bp", "ecp384bp", "ecp512bp"],
        "tacit does not implement this curve",
        "`x25519`, `ecp256` or `ecp384`",
    ),
    (
        &["aes192", "aes192gcm16"],
        "tacit supports only keys of 128 and 256 bits",
        "`aes256gcm16` or `aes256-sha256`",
    ),
    (
        &["aes128gcm8", "aes128gcm12", "aes256gcm8", "aes256gcm12", "aes128gcm64", "aes256gcm64"],
        "short authentication tags are easier to forge",
        "`aes256gcm16`",
    ),
    (
        &["aes128ctr", "aes256ctr", "aes128ccm16", "aes256ccm16", "camellia128", "camellia256"],
        "tacit supports only AES-GCM, ChaCha20-Poly1305 and AES-CBC",
        "`aes256gcm16`",
    ),
    (
        &["aesxcbc", "prfaesxcbc", "aescmac", "prfaescmac"],
        "tacit supports only HMAC with SHA-2",
        "`sha256`",
    ),
];
