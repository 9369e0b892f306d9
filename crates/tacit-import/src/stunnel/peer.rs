//! Converts stunnel options about peer verification to settings of a tacit rule.
//!
//! By default, stunnel does not verify its peer. With `verifyChain`, stunnel verifies the chain,
//! but not the peer's name. A tacit rule verifies the chain and the name. The import reports each
//! of these differences, and names the option of `tacit import` that keeps stunnel's behaviour.
//!
//! With `verifyPeer`, stunnel accepts the certificates in its files, and other certificates with
//! the same name and key. tacit accepts only the certificates in the files.

use super::endpoint::Endpoint;
use super::lines::Entry;
use super::options::StunnelOptions;
use super::service::{Keys, StunnelService, Switch};
use super::tables::{Contents, Tables};
use crate::draft::Toml;
use crate::finding::Findings;
use tacit_core::policy::SYSTEM_TRUST;

/// What the service requires of the peer, after all options in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PeerRequirements {
    /// The peer must send a certificate.
    require: bool,
    /// The chain of the certificate is verified.
    chain: bool,
    /// The certificate must be one of those in the files.
    peer: bool,
}

/// The requirements, and the last option that changed them.
struct RequirementsOfService<'s> {
    required: PeerRequirements,
    last: Option<&'s Entry>,
}

fn requirements<'s>(
    service: &StunnelService<'s>,
    findings: &mut Findings,
) -> Option<RequirementsOfService<'s>> {
    let mut required = PeerRequirements::default();
    let mut last = None;
    let names = ["verify", "verifyChain", "verifyPeer", "requireCert"];
    for entry in service.in_order(&names) {
        last = Some(entry);
        if entry.name.eq_ignore_ascii_case("verify") {
            required = match entry.value.as_str() {
                "0" => PeerRequirements::default(),
                "1" => PeerRequirements { chain: true, ..PeerRequirements::default() },
                "2" => PeerRequirements { require: true, chain: true, peer: false },
                "3" => PeerRequirements { require: true, chain: true, peer: true },
                "4" => PeerRequirements { require: true, chain: false, peer: true },
                _ => {
                    let message =
                        format!("stunnel has no level `verify = {value}`", value = entry.value);
                    findings.error(&entry.at, message, "set verifyChain = yes");
                    return None;
                }
            };
            continue;
        }
        let is_on = Switch::read(entry, findings)? == Switch::Yes;
        match entry.name.to_ascii_lowercase().as_str() {
            "verifychain" => required.chain = is_on,
            "verifypeer" => required.peer = is_on,
            _ => required.require = is_on,
        }
        required.require |= is_on;
    }
    Some(RequirementsOfService { required, last })
}

impl PeerRequirements {
    /// How a service uses its files of certificates.
    fn files(self) -> Contents {
        match (self.chain, self.peer) {
            (_, false) => Contents::Cas,
            (false, true) => Contents::Peers,
            (true, true) => Contents::Both,
        }
    }
}

/// Rejects pinning without certificates, and reports how tacit's pinning differs.
fn report_pinned(
    service: &StunnelService<'_>,
    requirements: &RequirementsOfService<'_>,
    trust: Option<&str>,
    findings: &mut Findings,
) -> Option<()> {
    let RequirementsOfService {
        required: PeerRequirements { peer: true, chain, .. },
        last: Some(entry),
    } = requirements
    else {
        return Some(());
    };
    let section = &service.section.name;
    if trust.is_none() {
        let message = format!("service `{section}` has no file with the certificates of its peers");
        findings.error(
            &entry.at,
            message,
            "set CAfile = FILE, a file with the certificates of the peers",
        );
        return None;
    }
    let message = format!(
        "service `{section}` accepts only certificates that are byte-for-byte equal to a \
         certificate in its files; stunnel also accepted another certificate with the same name \
         and key"
    );
    let fix = match chain {
        true => {
            "before a peer changes to another certificate, add that certificate to CAfile. If a \
             peer uses a self-signed CA certificate, set verify = 4 instead of 3: then tacit \
             accepts this certificate without a chain"
        }
        false => "before a peer changes to another certificate, add that certificate to CAfile",
    };
    findings.changed(&entry.at, message, fix);
    Some(())
}

/// The keys of a client rule that describe its server; `None` after an error was reported.
pub(super) fn server(
    service: &StunnelService<'_>,
    connect: &Endpoint,
    options: &StunnelOptions,
    tables: &mut Tables<'_>,
    findings: &mut Findings,
) -> Option<Keys> {
    let of_service = requirements(service, findings)?;
    let required = of_service.required;
    let Checked { name, sends_name, is_checked } =
        server_name(service, connect, required, findings)?;
    let trust = tables.trust(service, required.files(), findings)?;
    report_pinned(service, &of_service, trust.as_deref(), findings)?;
    let at = &service.section.at;
    let section = &service.section.name;
    let mut keys = Keys::new();
    if !required.chain && !required.peer && options.keep_no_verification {
        keys.push(("verify", "none".into()));
        let message = format!("as in stunnel, service `{section}` does not verify its server");
        let fix = "set verifyChain = yes, CAfile and checkHost, and run the import without \
                   --keep-no-verification";
        findings.changed(at, message, fix);
    } else {
        let trusted = trust.unwrap_or_else(|| SYSTEM_TRUST.to_owned());
        keys.push(("trust", trusted.clone().into()));
        if required.peer {
            // The pinned certificate itself identifies the server.
            keys.extend((!is_checked).then(|| ("verify", "chain".into())));
        } else if !required.chain {
            let message = format!(
                "service `{section}` now requires a server certificate for {host} from a \
                 trusted CA (trust = \"{trusted}\"); stunnel did not verify the server",
                host = name.as_deref().unwrap_or("its server")
            );
            let fix = "if the issuer of the certificate is not a trusted CA, set verifyChain = \
                       yes, and set CAfile to the certificate of the issuer. To accept any \
                       certificate, run the import with --keep-no-verification";
            findings.changed(at, message, fix);
        } else if !is_checked && options.keep_no_name_check {
            keys.push(("verify", "chain".into()));
            let message = format!(
                "as in stunnel, service `{section}` accepts any name in a certificate from its CAs"
            );
            findings.changed(
                at,
                message,
                "to check the name, set checkHost = NAME, and run the import without \
                 --keep-no-name-check",
            );
        } else if !is_checked {
            let message = format!(
                "service `{section}` now requires a server certificate for {host}; stunnel \
                 accepted any certificate from its CAs",
                host = name.as_deref().unwrap_or("its server")
            );
            let fix = "set checkHost = NAME if the certificate contains a different name; to \
                       accept any name as stunnel does, run the import with --keep-no-name-check";
            findings.changed(at, message, fix);
        }
    }
    let Some(name) = name else {
        if required.peer {
            return Some(keys);
        }
        let message = format!(
            "the import cannot determine which name the server certificate of service `{section}` \
             must contain"
        );
        findings.error(at, message, "set the name: checkHost = NAME");
        return None;
    };
    if connect.host() != Some(name.as_str()) {
        keys.push(("server-name", name.into()));
    }
    if !sends_name {
        keys.push(("sni", false.into()));
    }
    Some(keys)
}

/// Rejects checks of names in certificates that are not verified.
fn needs_check(
    checks: &[&Entry],
    required: PeerRequirements,
    findings: &mut Findings,
) -> Option<()> {
    let Some(check) = checks.first().filter(|_| !required.chain && !required.peer) else {
        return Some(());
    };
    let message =
        format!("`{option}` has no effect without verifyChain or verifyPeer", option = check.name);
    findings.error(&check.at, message, "set verifyChain = yes and CAfile");
    None
}

/// The name that the server's certificate must contain.
struct Checked {
    /// `None`: the name is not known.
    name: Option<String>,
    /// Whether the client sends the name.
    sends_name: bool,
    /// Whether stunnel checked the name.
    is_checked: bool,
}

fn server_name(
    service: &StunnelService<'_>,
    connect: &Endpoint,
    required: PeerRequirements,
    findings: &mut Findings,
) -> Option<Checked> {
    let sni = service.last("sni");
    let sends_name = sni.is_none_or(|sni| !sni.value.is_empty());
    let sent = sni.map(|sni| sni.value.as_str()).filter(|sni| !sni.is_empty());
    let requested = sent.or_else(|| connect.host());
    if let Some(entry) = service.last("checkEmail") {
        let message = "tacit cannot check the e-mail address in a server's certificate, only the \
                       host name or IP address";
        findings.error(&entry.at, message, "set checkHost = NAME instead of checkEmail");
        return None;
    }
    let checks = service.in_order(&["checkHost", "checkIP"]);
    needs_check(&checks, required, findings)?;
    let same = |entry: &&&Entry| Some(entry.value.as_str()) == requested;
    let Some(check) = checks.iter().find(same).or_else(|| checks.first()) else {
        let name = requested.map(str::to_owned);
        return Some(Checked { name, sends_name, is_checked: false });
    };
    if checks.len() > 1 {
        let message = format!(
            "the server's certificate must now be for `{name}`; stunnel accepted any of several \
             names",
            name = check.value
        );
        findings.changed(
            &check.at,
            message,
            "keep only the `checkHost` line with the name that the certificate contains",
        );
    }
    if sent.is_some_and(|sent| sent != check.value) {
        let message = format!(
            "`sni` and `checkHost` differ: tacit can send only {name}, the name that the server's \
             certificate must contain",
            name = check.value
        );
        let fix = "set the same name in `sni` and `checkHost`";
        findings.error(&check.at, message, fix);
        return None;
    }
    if sni.is_none() && requested.is_some_and(|requested| requested != check.value) {
        let message = format!(
            "tacit sends the name `{name}` to the server, and checks that the certificate contains \
             this name",
            name = check.value
        );
        let fix = "check that the server still selects the right certificate; to send no server \
                   name, set `sni = ` (an empty value)";
        findings.changed(&check.at, message, fix);
    }
    Some(Checked { name: Some(check.value.clone()), sends_name, is_checked: true })
}

/// The keys of a server rule that describe its clients; `None` after an error was reported.
pub(super) fn client(
    service: &StunnelService<'_>,
    tables: &mut Tables<'_>,
    findings: &mut Findings,
) -> Option<Keys> {
    let of_service = requirements(service, findings)?;
    let RequirementsOfService { required, last } = of_service;
    let checks = service.in_order(&["checkHost", "checkIP", "checkEmail"]);
    needs_check(&checks, required, findings)?;
    let trust = tables.trust(service, required.files(), findings)?;
    report_pinned(service, &of_service, trust.as_deref(), findings)?;
    let none: Keys = vec![("client-cert", "none".into())];
    if !required.chain && !required.peer {
        let Some(entry) = last else { return Some(none) };
        if !required.require {
            if entry.name.eq_ignore_ascii_case("verify") {
                findings.info(
                    &entry.at,
                    "tacit requests no client certificate; stunnel requested a client certificate \
                     and ignored it",
                );
            }
            return Some(none);
        }
        let message = "stunnel accepted any client certificate; tacit accepts only valid client \
                       certificates from the CAs of the service";
        findings.changed(&entry.at, message, "set verifyChain = yes");
    }
    let level = if required.require { "required" } else { "at-full" };
    let Some(trust) = trust else {
        let message = format!(
            "service `{name}` has no CA for client certificates",
            name = service.section.name
        );
        findings.error(&service.section.at, message, "set CAfile = FILE");
        return None;
    };
    let Some(first) = checks.first() else {
        return Some(vec![("client-cert", level.into()), ("trust", trust.into())]);
    };
    let map = tables.map(&service.section.name, &checks);
    let message = format!("[[map.{map}]] in the policy lists the names of the accepted clients");
    findings.info(&first.at, message);
    let level = match required.require {
        true => "full".into(),
        false => {
            let table = [("absent", "allow"), ("invalid", "deny"), ("identity", "map")];
            Toml::Table(table.map(|(key, word)| (key.to_owned(), word.into())).to_vec())
        }
    };
    Some(vec![("client-cert", level), ("trust", trust.into()), ("map", map.into())])
}
