//! Which peers are trusted: what stunnel verifies of its peer, and what a rule does instead.
//!
//! stunnel checks nothing unless told so, and with `verifyChain` alone accepts any certificate of
//! the CAs it is given. A rule of ours checks chain and name. Each time that makes a difference, it
//! is told, and how to keep what was.
//!
//! With `verifyPeer` stunnel accepts the certificates in its files, and any other with the name and
//! the key of one of them. A trust of ours pins the certificates themselves.

use super::endpoint::Endpoint;
use super::lines::Entry;
use super::options::StunnelOptions;
use super::service::{Keys, StunnelService, Switch};
use super::tables::{Contents, Tables};
use crate::draft::Toml;
use crate::finding::Findings;

/// What is asked of the peer, after all options in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Asked {
    /// It must show one.
    require: bool,
    /// The chain is checked.
    chain: bool,
    /// The certificate itself must be known.
    peer: bool,
}

/// What is asked of the peer, and the option that said so last.
struct Said<'s> {
    asked: Asked,
    last: Option<&'s Entry>,
}

fn asked<'s>(service: &StunnelService<'s>, findings: &mut Findings) -> Option<Said<'s>> {
    let mut asked = Asked::default();
    let mut last = None;
    let names = ["verify", "verifyChain", "verifyPeer", "requireCert"];
    for entry in service.in_order(&names) {
        last = Some(entry);
        if entry.name.eq_ignore_ascii_case("verify") {
            asked = match entry.value.as_str() {
                "0" => Asked::default(),
                "1" => Asked { chain: true, ..Asked::default() },
                "2" => Asked { require: true, chain: true, peer: false },
                "3" => Asked { require: true, chain: true, peer: true },
                "4" => Asked { require: true, chain: false, peer: true },
                _ => {
                    let message = format!("`verify = {}` is no level", entry.value);
                    findings.error(&entry.at, message, "say verifyChain = yes");
                    return None;
                }
            };
            continue;
        }
        let said = Switch::read(entry, findings)? == Switch::Yes;
        match entry.name.to_ascii_lowercase().as_str() {
            "verifychain" => asked.chain = said,
            "verifypeer" => asked.peer = said,
            _ => asked.require = said,
        }
        asked.require |= said;
    }
    Some(Said { asked, last })
}

impl Asked {
    /// What the files of a service are to it.
    fn files(self) -> Contents {
        match (self.chain, self.peer) {
            (_, false) => Contents::Cas,
            (false, true) => Contents::Peers,
            (true, true) => Contents::Both,
        }
    }
}

/// Refuses pinning without certificates, and tells how it differs.
fn report_pinned(
    service: &StunnelService<'_>,
    said: &Said<'_>,
    trust: Option<&str>,
    findings: &mut Findings,
) -> Option<()> {
    let Said { asked: Asked { peer: true, chain, .. }, last: Some(entry) } = said else {
        return Some(());
    };
    let of = &service.section.name;
    if trust.is_none() {
        let message = format!("service `{of}` does not say which certificates its peers have");
        findings.error(&entry.at, message, "say CAfile = FILE, with the certificates of the peers");
        return None;
    }
    let message = format!(
        "service `{of}` accepted any certificate with the name and the key of one in its files: \
         it must be one of them now, byte for byte"
    );
    let fix = match chain {
        true => {
            "add a peer's next certificate to the file before it is used; where a peer signed its \
             own CA certificate, say verify = 4 in place of 3, as no chain is built for one"
        }
        false => "add a peer's next certificate to the file before it is used",
    };
    findings.changed(&entry.at, message, fix);
    Some(())
}

/// What a rule of the role client says about its server; `None` after an error was reported.
pub(super) fn server(
    service: &StunnelService<'_>,
    connect: &Endpoint,
    options: &StunnelOptions,
    tables: &mut Tables<'_>,
    findings: &mut Findings,
) -> Option<Keys> {
    let said = asked(service, findings)?;
    let asked = said.asked;
    let Checked { name, sends_name, is_said } = server_name(service, connect, asked, findings)?;
    let trust = tables.trust(service, asked.files(), findings)?;
    report_pinned(service, &said, trust.as_deref(), findings)?;
    let at = &service.section.at;
    let of = &service.section.name;
    let mut keys = Keys::new();
    if !asked.chain && !asked.peer && options.keep_no_verification {
        keys.push(("verify", "none".into()));
        let message = format!("service `{of}` trusts any server that answers, as before");
        let fix = "say verifyChain = yes, CAfile and checkHost; import without the flag";
        findings.changed(at, message, fix);
    } else {
        let trusted = trust.unwrap_or_else(|| "system".to_owned());
        keys.push(("trust", trusted.clone().into()));
        if asked.peer {
            // The certificate itself says who the server is.
            keys.extend((!is_said).then(|| ("verify", "chain".into())));
        } else if !asked.chain {
            let message = format!(
                "service `{of}` trusted any server that answers: it now requires a certificate \
                 from trust `{trusted}` for {}",
                name.as_deref().unwrap_or("its server")
            );
            let fix = "say verifyChain = yes and CAfile, if another CA issues it; \
                       --keep-no-verification checks nothing, as before";
            findings.changed(at, message, fix);
        } else if !is_said && options.keep_no_name_check {
            keys.push(("verify", "chain".into()));
            let message = format!("service `{of}` accepts any certificate of its CAs, as before");
            findings.changed(at, message, "say checkHost = NAME; import without the flag");
        } else if !is_said {
            let message = format!(
                "service `{of}` accepted any certificate of its CAs: it must be for {} now",
                name.as_deref().unwrap_or("its server")
            );
            let fix = "say checkHost = NAME, if it is for another; --keep-no-name-check accepts \
                       any, as before";
            findings.changed(at, message, fix);
        }
    }
    let Some(name) = name else {
        if asked.peer {
            return Some(keys);
        }
        let message = format!("service `{of}` does not say what its server is called");
        let fix = "say what its certificate must be for: checkHost = NAME";
        findings.error(at, message, fix);
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

/// Refuses names that are checked of certificates which are not.
fn needs_check(checks: &[&Entry], asked: Asked, findings: &mut Findings) -> Option<()> {
    let Some(check) = checks.first().filter(|_| !asked.chain && !asked.peer) else {
        return Some(());
    };
    let message = format!("`{}` needs verifyChain or verifyPeer", check.name);
    findings.error(&check.at, message, "say verifyChain = yes and CAfile");
    None
}

/// The name that a server's certificate must be for.
struct Checked {
    /// `None`: nothing tells it.
    name: Option<String>,
    /// Whether the name is sent.
    sends_name: bool,
    /// Whether it was checked before.
    is_said: bool,
}

fn server_name(
    service: &StunnelService<'_>,
    connect: &Endpoint,
    asked: Asked,
    findings: &mut Findings,
) -> Option<Checked> {
    let sni = service.last("sni");
    let sends_name = sni.is_none_or(|sni| !sni.value.is_empty());
    let sent = sni.map(|sni| sni.value.as_str()).filter(|sni| !sni.is_empty());
    let asked_for = sent.or_else(|| connect.host());
    if let Some(entry) = service.last("checkEmail") {
        let message = "a server is checked by host name or address, not by e-mail";
        findings.error(&entry.at, message, "say checkHost = NAME in place of checkEmail");
        return None;
    }
    let checks = service.in_order(&["checkHost", "checkIP"]);
    needs_check(&checks, asked, findings)?;
    let same = |entry: &&&Entry| Some(entry.value.as_str()) == asked_for;
    let Some(check) = checks.iter().find(same).or_else(|| checks.first()) else {
        let name = asked_for.map(str::to_owned);
        return Some(Checked { name, sends_name, is_said: false });
    };
    if checks.len() > 1 {
        let message =
            format!("of several names, the certificate must be for `{}` now", check.value);
        findings.changed(&check.at, message, "keep the `checkHost` that the certificate has");
    }
    if sent.is_some_and(|sent| sent != check.value) {
        let message = format!("the name sent and the name checked differ: {}", check.value);
        let fix = "tacit sends the name that it checks: say the same in sni and checkHost";
        findings.error(&check.at, message, fix);
        return None;
    }
    if sni.is_none() && asked_for.is_some_and(|asked_for| asked_for != check.value) {
        let message = format!("the name `{}` is sent, as the one that is checked", check.value);
        let fix = "the server may choose its certificate by it; `sni = ` sends none";
        findings.changed(&check.at, message, fix);
    }
    Some(Checked { name: Some(check.value.clone()), sends_name, is_said: true })
}

/// What a rule of the role server says about its clients; `None` after an error was reported.
pub(super) fn client(
    service: &StunnelService<'_>,
    tables: &mut Tables<'_>,
    findings: &mut Findings,
) -> Option<Keys> {
    let said = asked(service, findings)?;
    let Said { asked, last } = said;
    let checks = service.in_order(&["checkHost", "checkIP", "checkEmail"]);
    needs_check(&checks, asked, findings)?;
    let trust = tables.trust(service, asked.files(), findings)?;
    report_pinned(service, &said, trust.as_deref(), findings)?;
    let none: Keys = vec![("client-cert", "none".into())];
    if !asked.chain && !asked.peer {
        let Some(entry) = last else { return Some(none) };
        if !asked.require {
            if entry.name.eq_ignore_ascii_case("verify") {
                findings.info(&entry.at, "no certificate is asked for: it was not looked at");
            }
            return Some(none);
        }
        let message = "any certificate was accepted: it must be valid now";
        findings.changed(&entry.at, message, "say verifyChain = yes");
    }
    let level = if asked.require { "required" } else { "at-full" };
    let Some(trust) = trust else {
        let message = format!("service `{}` names no CA to trust", service.section.name);
        findings.error(&service.section.at, message, "say CAfile = FILE");
        return None;
    };
    let Some(first) = checks.first() else {
        return Some(vec![("client-cert", level.into()), ("trust", trust.into())]);
    };
    let message = "who is let in is known by the name that was checked: `[[map]]` says which";
    findings.info(&first.at, message);
    let map = tables.map(&service.section.name, &checks);
    let level = match asked.require {
        true => "full".into(),
        false => {
            let table = [("absent", "allow"), ("invalid", "deny"), ("identity", "map")];
            Toml::Table(table.map(|(key, word)| (key.to_owned(), word.into())).to_vec())
        }
    };
    Some(vec![("client-cert", level), ("trust", trust.into()), ("map", map.into())])
}
