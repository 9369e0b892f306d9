//! Converts the TLS versions, cipher suites and key exchange groups of a stunnel service.

use super::ciphers::{self, Known};
use super::lines::Entry;
use super::service::StunnelService;
use super::tls_options::{self, VersionSwitch};
use crate::finding::Findings;
use tacit_core::policy::{Group, Suite, TlsVersion};

/// The keys of a rule's `tls` about versions, suites and groups; `None` if the key is not set.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) min_version: Option<TlsVersion>,
    pub(super) suites: Option<Vec<Suite>>,
    pub(super) groups: Option<Vec<Group>>,
}

/// The values of `sslVersion`, the oldest first.
const VERSIONS: [&str; 6] = ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"];
/// The index of TLS 1.2 in this list.
const V1_2: usize = 4;
const V1_3: usize = 5;

/// Reads all of it; `None` after an error was reported.
pub(super) fn read(service: &StunnelService<'_>, findings: &mut Findings) -> Option<Terms> {
    let allowed = versions(service, findings)?;
    let suites = suites(service, &allowed, findings);
    let groups = match service.in_order(&["curve", "curves"]).pop() {
        None => Some(None),
        Some(entry) => groups(entry, findings).map(Some),
    };
    security_level(service, findings)?;
    let min_version = (!allowed.v1_2).then_some(TlsVersion::V1_3);
    Some(Terms { min_version, suites: suites?, groups: groups? })
}

/// Which of tacit's versions are allowed; at least one is.
struct Allowed {
    v1_2: bool,
    v1_3: bool,
}

fn versions(service: &StunnelService<'_>, findings: &mut Findings) -> Option<Allowed> {
    let mut allowed = [false, true, true, true, true, true];
    let mut oldest = 0;
    let mut newest = V1_3;
    for entry in service.in_order(&["sslVersion", "sslVersionMin", "sslVersionMax"]) {
        let position = VERSIONS.iter().position(|word| word.eq_ignore_ascii_case(&entry.value));
        let all = entry.value.eq_ignore_ascii_case("all");
        let Some(version) = position.or_else(|| all.then_some(0)) else {
            let message = format!(
                "`{option} = {value}` is not a version of TLS",
                option = entry.name,
                value = entry.value
            );
            findings.error(&entry.at, message, "write TLSv1.2 or TLSv1.3");
            return None;
        };
        if !entry.name.eq_ignore_ascii_case("sslVersionMax") {
            oldest = version;
        }
        if !entry.name.eq_ignore_ascii_case("sslVersionMin") {
            newest = if all { V1_3 } else { version };
        }
        let is_floor = !entry.name.eq_ignore_ascii_case("sslVersionMax");
        if is_floor && version < V1_2 && newest >= V1_2 {
            let message = format!(
                "`{option} = {value}` allows versions before TLS 1.2; tacit rejects these versions",
                option = entry.name,
                value = entry.value
            );
            let fix = "update peers that support only versions before TLS 1.2";
            findings.changed(&entry.at, message, fix);
        }
    }
    apply_options(service, &mut allowed, findings)?;
    let is_allowed = |version: usize| {
        (oldest..=newest).contains(&version) && allowed.get(version).copied().unwrap_or_default()
    };
    let known = Allowed { v1_2: is_allowed(V1_2), v1_3: is_allowed(V1_3) };
    if !known.v1_2 && !known.v1_3 {
        let entries =
            service.in_order(&["sslVersion", "sslVersionMin", "sslVersionMax", "options"]);
        let at = entries.last().map_or(&service.section.at, |entry| &entry.at);
        let message = "the service allows neither TLS 1.2 nor 1.3, and tacit supports no other \
                       version";
        findings.error(at, message, "set sslVersionMin = TLSv1.2, and update the peers");
        return None;
    }
    Some(known)
}

/// Applies `options` to the versions that they forbid; `None` after an error was reported.
fn apply_options(
    service: &StunnelService<'_>,
    allowed: &mut [bool; VERSIONS.len()],
    findings: &mut Findings,
) -> Option<()> {
    let mut is_sound = true;
    for entry in service.all("options") {
        match tls_options::read(entry, findings) {
            None => is_sound = false,
            Some(VersionSwitch::Other) => {}
            Some(VersionSwitch::Versions { forbids }) => *allowed = [!forbids; VERSIONS.len()],
            Some(VersionSwitch::Version { version, forbids }) => {
                if let Some(slot) = allowed.get_mut(version) {
                    *slot = !forbids;
                }
                if version < V1_2 && !forbids {
                    let message = format!(
                        "`{value}` allows a version before TLS 1.2; tacit rejects this version",
                        value = entry.value
                    );
                    findings.changed(&entry.at, message, "remove the option");
                }
            }
        }
    }
    is_sound.then_some(())
}

/// The suites of the allowed versions, if an option limits them.
fn suites(
    service: &StunnelService<'_>,
    allowed: &Allowed,
    findings: &mut Findings,
) -> Option<Option<Vec<Suite>>> {
    let of = |version: TlsVersion| {
        Suite::DEFAULT.into_iter().filter(move |suite| suite.version() == version)
    };
    let modern = match service.last("ciphersuites").filter(|_| allowed.v1_3) {
        Some(entry) => {
            let suites = ciphers::modern(&entry.value);
            Some(kept(entry, suites, findings)?)
        }
        None => None,
    };
    let classic = match service.last("ciphers").filter(|_| allowed.v1_2) {
        Some(entry) => Some(classic(entry, findings)?),
        None => None,
    };
    if modern.is_none() && classic.is_none() && allowed.v1_3 {
        return Some(None);
    }
    let mut suites = Vec::new();
    if allowed.v1_3 {
        suites.extend(modern.unwrap_or_else(|| of(TlsVersion::V1_3).collect()));
    }
    if allowed.v1_2 {
        suites.extend(classic.unwrap_or_else(|| of(TlsVersion::V1_2).collect()));
    }
    Some(Some(suites))
}

fn classic(entry: &Entry, findings: &mut Findings) -> Option<Vec<Suite>> {
    let done = ciphers::run(&entry.value);
    let named = Known { kept: done.suites, dropped: done.dropped };
    let suites = kept(entry, named, findings)?;
    if !done.wide.is_empty() {
        let message = format!(
            "`{words}` selects many suites; tacit supports only the suites with ECDHE that encrypt \
             with AES-GCM or ChaCha20",
            words = done.wide.join(":")
        );
        findings.info(&entry.at, message);
    }
    Some(suites)
}

/// The supported suites of a list; reports the others. `None` if none is supported.
fn kept(entry: &Entry, suites: Known<Suite>, findings: &mut Findings) -> Option<Vec<Suite>> {
    let Known { kept, dropped } = suites;
    let name = &entry.name;
    if kept.is_empty() {
        let message = format!("tacit supports none of the suites in `{name}`");
        let fix = "add a suite with ECDHE that encrypts with AES-GCM or ChaCha20, such as \
                   ECDHE-RSA-AES128-GCM-SHA256";
        findings.error(&entry.at, message, fix);
        return None;
    }
    if !dropped.is_empty() {
        let message = format!(
            "tacit does not support these suites in `{name}`, and drops them: {suites}",
            suites = dropped.join(" ")
        );
        let fix = "update peers that support none of the suites in the imported policy";
        findings.changed(&entry.at, message, fix);
    }
    Some(kept)
}

fn groups(entry: &Entry, findings: &mut Findings) -> Option<Vec<Group>> {
    let Known { kept: mut groups, dropped } = ciphers::groups(&entry.value);
    if groups.is_empty() {
        let message =
            format!("tacit supports none of the groups in `{option}`", option = entry.name);
        findings.error(&entry.at, message, "add X25519, P-256 or P-384");
        return None;
    }
    if !dropped.is_empty() {
        let message = format!(
            "tacit does not support these groups in `{option}`, and drops them: {groups}",
            option = entry.name,
            groups = dropped.join(" ")
        );
        let fix = "update peers that support none of the groups in the imported policy";
        findings.changed(&entry.at, message, fix);
    }
    if !groups.contains(&Group::X25519MLKEM768) {
        groups.insert(0, Group::X25519MLKEM768);
        findings.info(
            &entry.at,
            "the import adds X25519MLKEM768 as the first group, for peers that support \
             post-quantum key exchange",
        );
    }
    Some(groups)
}

/// Reports a security level other than 112 bits, stunnel's default, which is what tacit requires.
fn security_level(service: &StunnelService<'_>, findings: &mut Findings) -> Option<()> {
    let mut is_sound = true;
    if let Some(entry) = service.last("securityLevel") {
        is_sound &= level(entry, "securityLevel = ", &entry.value, findings).is_some();
    }
    if let Some(entry) = service.last("ciphers")
        && let Some(number) = ciphers::run(&entry.value).level
    {
        is_sound &= level(entry, "@SECLEVEL=", &number, findings).is_some();
    }
    is_sound.then_some(())
}

/// The security level and the option that sets it; `None` after an error was reported.
fn level(entry: &Entry, setting: &str, level: &str, findings: &mut Findings) -> Option<()> {
    match level.parse::<u8>() {
        Ok(0 | 1) => {
            let message = format!(
                "`{setting}{level}`: tacit rejects keys with less than 112 bits of security"
            );
            findings.changed(&entry.at, message, "issue certificates with larger keys");
        }
        Ok(2) => {}
        Ok(3..=5) => {
            let message = format!("`{setting}{level}`: tacit has no security level above 2");
            let fix = format!(
                "if RSA keys of 2048 bits suffice, set security level 2 (`{setting}2`), and use \
                 the option `ciphers` to choose suites"
            );
            findings.error(&entry.at, message, fix);
            return None;
        }
        _ => {
            let message = format!("`{setting}{level}` is not a security level");
            findings.error(&entry.at, message, "write a number from 0 to 5");
            return None;
        }
    }
    Some(())
}
