//! Converts cipher suites and key exchange groups from AT-TLS names and codes to tacit names.

use super::effective::Effective;
use super::objects::Field;
use crate::finding::{Findings, Origin};
use tacit_core::policy::text::nearest_word;
use tacit_core::policy::{Group, Suite, TlsVersion, suite_refusal};

/// The side of the handshake that a rule has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Server,
    Client,
}

/// The newest version that the suites of a rule allow.
pub(super) fn newest(suites: Option<&[Suite]>) -> TlsVersion {
    let Some(suites) = suites else { return TlsVersion::V1_3 };
    suites.iter().map(|suite| suite.version()).max().unwrap_or(TlsVersion::V1_2)
}

/// The supported suites of a rule; `None` if it names no suites.
///
/// Suites that tacit does not support are reported. If no suite is left, that is an error.
pub(super) fn suites(
    rule: &Effective<'_>,
    oldest: TlsVersion,
    findings: &mut Findings,
) -> Option<Vec<Suite>> {
    if let Some(profile) = rule.field("SuiteBProfile").filter(|profile| profile.value != "Off") {
        return Some(suite_b(profile, rule, findings));
    }
    let mut kept = Vec::new();
    let mut last: Option<&Origin> = None;
    for field in rule.all("V2CipherSuites") {
        let fix = "remove the line";
        findings.changed(
            &field.at,
            "SSL 2 cipher suites are dropped: tacit does not support SSL 2",
            fix,
        );
    }
    let long = rule.all("V3CipherSuites4Char").into_iter().map(|field| (field, 4));
    let short = rule.all("V3CipherSuites").into_iter().map(|field| (field, 2));
    for (field, digits) in short.chain(long) {
        last = Some(&field.at);
        for suite in of_field(field, digits, findings) {
            if suite.version() < oldest {
                let message = format!(
                    "{name} is dropped: this suite belongs to TLS 1.2, which is off",
                    name = suite.name()
                );
                findings.info(&field.at, message);
            } else if !kept.contains(&suite) {
                kept.push(suite);
            }
        }
    }
    let at = last?;
    if kept.is_empty() {
        let fix = "add a supported suite: TLS_AES_128_GCM_SHA256 for TLS 1.3, or \
                   TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 for TLS 1.2";
        findings.error(at, "tacit supports none of the cipher suites of the rule", fix);
    }
    Some(kept)
}

/// The suites of a Suite B profile (RFC 6460), which replaces cipher parameters.
fn suite_b(profile: &Field, rule: &Effective<'_>, findings: &mut Findings) -> Vec<Suite> {
    for word in ["V3CipherSuites", "V3CipherSuites4Char"] {
        for field in rule.all(word) {
            let message = format!("`{word}` is ignored, because SuiteBProfile sets the suites");
            findings.info(&field.at, message);
        }
    }
    let aes_128 = Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
    let aes_256 = Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384;
    let message = "tacit imports the suites of the Suite B profile, but does not check the \
                   profile's requirements for certificates";
    findings.changed(
        &profile.at,
        message,
        "make sure that all certificates have P-256 or P-384 keys",
    );
    match profile.value.as_str() {
        "128" => vec![aes_128],
        "192" | "192Min" => vec![aes_256],
        _ => vec![aes_128, aes_256],
    }
}

/// The suites of one line: one name, or a sequence of codes with this number of digits.
fn of_field(field: &Field, digits: usize, findings: &mut Findings) -> Vec<Suite> {
    let text = field.value.as_str();
    let word = field.attribute.word;
    let begins = |prefix: &str| text.get(..4).is_some_and(|head| head.eq_ignore_ascii_case(prefix));
    if begins("TLS_") || begins("SSL_") {
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        if !rest.is_empty() {
            let message = format!(
                "the import ignores `{text}` after the name of the cipher suite",
                text = rest.trim()
            );
            findings.changed(
                &field.at,
                message,
                "remove the text, or write each cipher suite on its own line",
            );
        }
        return by_name(name, field, findings).into_iter().collect();
    }
    let is_code = text.len().is_multiple_of(digits) && text.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_code {
        let fix = format!(
            "write a name such as TLS_AES_128_GCM_SHA256, or codes of {digits} digits each"
        );
        findings.error(&field.at, format!("`{word}` cannot be `{text}`"), fix);
        return Vec::new();
    }
    let mut suites = Vec::new();
    for at in (0..text.len()).step_by(digits) {
        let code = text.get(at..at + digits).unwrap_or_default();
        let whole = format!("{:0>4}", code.to_ascii_uppercase());
        suites.extend(by_code(&whole, field, findings));
    }
    suites
}

fn by_name(text: &str, field: &Field, findings: &mut Findings) -> Option<Suite> {
    let name = text.to_ascii_uppercase();
    if let Some(suite) = Suite::DEFAULT.into_iter().find(|suite| suite.name() == name) {
        return Some(suite);
    }
    let fixed = name.starts_with("TLS_ECDH_").then_some("static ECDH has no forward secrecy");
    if let Some(why) = fixed.or_else(|| suite_refusal(&name)) {
        report_dropped(&name, why, field, findings);
        return None;
    }
    let fix = match nearest_word(&name, &Suite::DEFAULT.map(Suite::name)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "look up the spelling in IANA's registry of TLS cipher suites".to_owned(),
    };
    findings.error(&field.at, format!("unknown cipher suite `{text}`"), fix);
    None
}

fn by_code(code: &str, field: &Field, findings: &mut Findings) -> Option<Suite> {
    if let Some((_, suite)) = CODES.iter().find(|(known, _)| *known == code) {
        return Some(*suite);
    }
    let name = OLD_CODES.iter().find(|(known, _)| *known == code).map(|(_, name)| *name);
    match name {
        Some(name) => {
            let why = suite_refusal(name).unwrap_or("tacit does not support this suite");
            report_dropped(&format!("{code} ({name})"), why, field, findings);
        }
        None => report_dropped(code, "tacit does not know this suite", field, findings),
    }
    None
}

fn report_dropped(suite: &str, why: &str, field: &Field, findings: &mut Findings) {
    let message = format!("cipher suite {suite} is dropped: {why}");
    findings.changed(
        &field.at,
        message,
        "check that each peer supports one of the remaining cipher suites",
    );
}

const CODES: [(&str, Suite); 9] = [
    ("1301", Suite::TLS_AES_128_GCM_SHA256),
    ("1302", Suite::TLS_AES_256_GCM_SHA384),
    ("1303", Suite::TLS_CHACHA20_POLY1305_SHA256),
    ("C02B", Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("C02C", Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("C02F", Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("C030", Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("CCA8", Suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("CCA9", Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Frequent codes of unsupported suites (IANA, TLS Cipher Suites).
const OLD_CODES: [(&str, &str); 26] = [
    ("0001", "TLS_RSA_WITH_NULL_MD5"),
    ("0002", "TLS_RSA_WITH_NULL_SHA"),
    ("0004", "TLS_RSA_WITH_RC4_128_MD5"),
    ("0005", "TLS_RSA_WITH_RC4_128_SHA"),
    ("0009", "TLS_RSA_WITH_DES_CBC_SHA"),
    ("000A", "TLS_RSA_WITH_3DES_EDE_CBC_SHA"),
    ("0016", "TLS_DHE_RSA_WITH_3DES_EDE_CBC_SHA"),
    ("002F", "TLS_RSA_WITH_AES_128_CBC_SHA"),
    ("0033", "TLS_DHE_RSA_WITH_AES_128_CBC_SHA"),
    ("0035", "TLS_RSA_WITH_AES_256_CBC_SHA"),
    ("0039", "TLS_DHE_RSA_WITH_AES_256_CBC_SHA"),
    ("003C", "TLS_RSA_WITH_AES_128_CBC_SHA256"),
    ("003D", "TLS_RSA_WITH_AES_256_CBC_SHA256"),
    ("0067", "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256"),
    ("006B", "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256"),
    ("009C", "TLS_RSA_WITH_AES_128_GCM_SHA256"),
    ("009D", "TLS_RSA_WITH_AES_256_GCM_SHA384"),
    ("009E", "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256"),
    ("009F", "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384"),
    ("C009", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"),
    ("C00A", "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"),
    ("C013", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"),
    ("C014", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA"),
    ("C023", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256"),
    ("C027", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256"),
    ("C028", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384"),
];

/// The supported groups of a rule for a side, after the group that tacit prefers; `None` if it
/// names none.
pub(super) fn groups(
    rule: &Effective<'_>,
    side: Side,
    newest: TlsVersion,
    findings: &mut Findings,
) -> Option<Vec<Group>> {
    let words = match side {
        Side::Server => ["ServerKeyShareGroups", "ServerKexECurves"],
        Side::Client => ["ClientKeyShareGroups", "ClientECurves"],
    };
    let fields: Vec<&Field> = words.iter().flat_map(|word| rule.all(word)).collect();
    let last = fields.last()?;
    if fields.iter().any(|field| field.value.eq_ignore_ascii_case("Any")) {
        return None;
    }
    let mut kept = Vec::new();
    for field in &fields {
        for group in groups_of(field, findings) {
            if !kept.contains(&group) {
                kept.push(group);
            }
        }
    }
    if kept.is_empty() {
        let fix = "add 0029 (x25519), 0023 (secp256r1) or 0024 (secp384r1)";
        findings.error(&last.at, "tacit supports none of the key exchange groups of the rule", fix);
        return None;
    }
    if newest == TlsVersion::V1_3 {
        findings.info(
            &last.at,
            "the import adds X25519MLKEM768 before the key exchange groups of the rule",
        );
        kept.insert(0, Group::X25519MLKEM768);
    }
    Some(kept)
}

/// The groups of one line: decimal codes of four digits, with or without blanks.
fn groups_of(field: &Field, findings: &mut Findings) -> Vec<Group> {
    let digits: String = field.value.split_whitespace().collect();
    if !digits.len().is_multiple_of(4) || !digits.bytes().all(|b| b.is_ascii_digit()) {
        let message = format!("`{}` cannot be `{}`", field.attribute.word, field.value);
        findings.error(
            &field.at,
            message,
            "write Any, or four digits for each group, such as 00230024 for two groups",
        );
        return Vec::new();
    }
    let codes = (0..digits.len()).step_by(4).filter_map(|at| digits.get(at..at + 4));
    let group = |code: &str| match code {
        "0023" => Some(Group::Secp256r1),
        "0024" => Some(Group::Secp384r1),
        "0029" => Some(Group::X25519),
        _ => {
            let old = OLD_GROUPS.iter().find(|(known, _)| *known == code);
            let name = old.map(|(_, name)| format!(" ({name})")).unwrap_or_default();
            let message = format!(
                "key exchange group {code}{name} is dropped: tacit does not support this group"
            );
            findings.changed(
                &field.at,
                message,
                "check that each peer supports one of the remaining key exchange groups",
            );
            None
        }
    };
    codes.filter_map(group).collect()
}

const OLD_GROUPS: [(&str, &str); 4] =
    [("0019", "secp192r1"), ("0021", "secp224r1"), ("0025", "secp521r1"), ("0030", "x448")];
