//! Imports configurations of stunnel.
//!
//! ```text
//!   lines       parses files into sections of options
//!   words       lists every option; reports options that tacit does not have
//!   rule        converts a section (service) to a forwarding rule
//!     endpoint    addresses
//!     targets     several targets, and their order
//!     tls         TLS versions, cipher suites and key exchange groups
//!       ciphers, tls_options    the names and flags of OpenSSL for these settings
//!     peer        which peers are trusted
//!   tables      the identities and trusts in the forwarding rules
//! ```
//!
//! Each service becomes a forwarding rule. The import reports each difference from stunnel as a
//! change. The import rejects options that it cannot convert. Examples are options that start
//! programs, and options for OCSP, for pre-shared keys and for routing by server name.

use std::collections::BTreeSet;

use super::draft::{Draft, Item, Toml};
use crate::files::Files;
use crate::finding::{Findings, Origin};
use lines::Section;
use rule::StunnelRule;
use service::{ServiceRole, StunnelService};
use tables::Tables;
use words::OptionScope;

mod ciphers;
mod endpoint;
mod lines;
mod options;
mod peer;
mod rule;
mod service;
mod tables;
mod targets;
mod tls;
mod tls_options;
mod words;

pub use options::StunnelOptions;

#[cfg(test)]
mod tests;

/// Reads configurations, each with all that it includes, and writes one policy that does the same;
/// `None` if an error was found.
#[must_use]
pub fn import(
    paths: &[String],
    files: &dyn Files,
    options: &StunnelOptions,
    findings: &mut Findings,
) -> Option<String> {
    let mut tables = Tables::new(files);
    let mut rules = Vec::new();
    for path in paths {
        let read = lines::read(path, files, findings);
        let first = Origin { file: path.as_str().into(), line: 1 };
        words::check_words(&read.global, OptionScope::Global, options, findings);
        if read.sections.is_empty() {
            let message = "the file has no [service] section";
            let fix = "begin each service with [NAME] and set accept = ADDRESS:PORT; the import \
                       does not support the inetd mode of stunnel";
            findings.error(&first, message, fix);
        }
        rules.extend(of_file(&read.global, &read.sections, options, &mut tables, findings));
    }
    if findings.has_errors() {
        return None;
    }
    let mut draft = Draft::default();
    tables.write(&mut draft);
    let mut taken = BTreeSet::new();
    for rule in rules {
        let taken_by = taken.iter().map(String::as_str).collect();
        let name = tables::unique(&rule.name, &taken_by);
        draft.rules.push(item(rule, &name));
        taken.insert(name);
    }
    draft.finish(findings)
}

/// The rules of one file.
fn of_file(
    defaults: &[lines::Entry],
    sections: &[Section],
    options: &StunnelOptions,
    tables: &mut Tables<'_>,
    findings: &mut Findings,
) -> Vec<StunnelRule> {
    let mut rules: Vec<StunnelRule> = Vec::new();
    let mut by_name = Vec::new();
    for section in sections {
        words::check_words(&section.entries, OptionScope::StunnelService, options, findings);
        let service = StunnelService { section, defaults };
        let role = service.role(findings).unwrap_or(ServiceRole::Client);
        if role == ServiceRole::Server && service.last("sni").is_some() {
            by_name.push(service);
        } else {
            rules.extend(rule::read(&service, options, tables, findings));
        }
    }
    for service in by_name {
        fold(&service, sections, &mut rules, tables, findings);
    }
    rules
}

/// Adds a service for some server names to the rule of the service that it belongs to: its
/// certificate becomes another identity of that rule.
fn fold(
    service: &StunnelService<'_>,
    sections: &[Section],
    rules: &mut [StunnelRule],
    tables: &mut Tables<'_>,
    findings: &mut Findings,
) {
    for sni in service.all("sni") {
        let (primary, pattern) = sni.value.split_once(':').unwrap_or((&sni.value, ""));
        let Some(rule) =
            rules.iter_mut().find(|rule| rule.name == primary && rule.role == ServiceRole::Server)
        else {
            let message = format!(
                "`sni = {value}`: there is no service `{primary}` that is a TLS server",
                value = sni.value
            );
            findings.error(
                &sni.at,
                message,
                "write the name of a [service] that is a TLS server and comes before this service",
            );
            continue;
        };
        let own = |name: &str| {
            let named = |entry: &&lines::Entry| entry.name.eq_ignore_ascii_case(name);
            service.section.entries.iter().find(named)
        };
        let connect: Option<Vec<_>> = service
            .all("connect")
            .into_iter()
            .map(|entry| Some(endpoint::Endpoint::read(entry, findings)?.connect()))
            .collect();
        let elsewhere = connect.is_none_or(|own| !own.is_empty() && own != rule.connect);
        let other = differing(service, primary, sections);
        if elsewhere || other.is_some() {
            let why = other.map_or_else(String::new, |option| {
                format!(", because the service differs from service `{primary}` in `{option}`")
            });
            let message = format!("connections for `{pattern}` need a separate rule{why}");
            let fix = "set `accept` of the service to a separate address, and let clients connect \
                       to that address; in tacit the server name selects only the certificate";
            findings.error(&sni.at, message, fix);
            continue;
        }
        let (Some(cert), key) = (own("cert"), own("key")) else {
            let message = format!("`{pattern}` has no certificate of its own");
            findings.error(&sni.at, message, "remove the service, or set cert = FILE");
            continue;
        };
        let name = tables.identity(cert, key);
        if !rule.identities.contains(&name) {
            rule.identities.push(name);
        }
        let message = format!(
            "tacit selects a certificate by the names in the certificate; stunnel selected this \
             certificate for `{pattern}`"
        );
        findings.changed(
            &sni.at,
            message,
            "check that the certificate contains every name that clients request",
        );
    }
}

/// An option that is set differently for a service than for the service that listens for it.
fn differing(
    service: &StunnelService<'_>,
    primary: &str,
    sections: &[Section],
) -> Option<&'static str> {
    /// Options that may differ, because they choose the certificate or are checked separately.
    const OWN: [&str; 6] = ["sni", "cert", "key", "accept", "connect", "client"];
    let section = sections.iter().find(|section| section.name == primary)?;
    let primary = StunnelService { section, defaults: service.defaults };
    let values = |service: &StunnelService<'_>, name: &str| -> Vec<String> {
        service.all(name).into_iter().map(|entry| entry.value.clone()).collect()
    };
    let read = words::WORDS.iter().filter(|word| word.outcome == words::Outcome::Read);
    let mut names = read.map(|word| word.name).filter(|name| !OWN.contains(name));
    names.find(|name| values(service, name) != values(&primary, name))
}

/// The rule as it is written.
fn item(rule: StunnelRule, name: &str) -> Item {
    let mut item = Item::new("[[rule]]", &rule.at);
    item.set("name", name);
    rule.keys.into_iter().for_each(|(key, value)| item.set(key, value));
    let mut tls: Vec<(String, Toml)> =
        rule.tls.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    if !rule.identities.is_empty() {
        tls.insert(1, ("identity".to_owned(), rule.identities.into()));
    }
    item.set("tls", Toml::Table(tls));
    item
}
