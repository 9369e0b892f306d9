//! Checks a policy file: parses the file, loads its credentials, and does all other checks that
//! depend on this host.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use tacit_core::message_id::MessageId;
use tacit_core::policy::{
    Diagnostic, DiagnosticSeverity, FindingsShown, LinkConnect, LinkRule, LinkTcp, Policy,
    PolicyText, Rule, parse_files,
};
use tacit_sys::input_file::open_input;
use tacit_tls::signer::KeyProvider;

use crate::address;
use crate::clock;
use crate::placement;

use super::credentials::{diagnostic, unsuitable_credentials};
use super::files::{STANDARD_INPUT, directory_of, read_policy, read_standard_input};
use super::{Credentials, local_ids, senders};

/// A policy that passed all checks, with its credentials.
#[derive(Debug)]
pub struct Checked {
    /// The policy.
    pub policy: Policy,
    /// Its credentials.
    pub credentials: Credentials,
    /// Warnings.
    pub warnings: Vec<Diagnostic>,
}

/// Reads and checks a policy file and the files that it names. `keys` loads private keys, unless
/// the policy has `signer = false`.
///
/// # Errors
/// All diagnostics, at least one of which is an error.
pub fn check_file(
    path: &Path,
    keys: &KeyProvider,
    shown: FindingsShown,
) -> Result<Checked, Vec<Diagnostic>> {
    let text = read_policy(path, open_input, |_, _| Ok(()))?;
    check_text(&text, &directory_of(path), keys, shown, |_| Ok(()))
}

/// Checks a policy from standard input like [`check_file`]. Paths in it are relative to the current
/// directory.
///
/// # Errors
/// As [`check_file`].
pub fn check_standard_input(keys: &KeyProvider) -> Result<Checked, Vec<Diagnostic>> {
    let text = read_standard_input()?;
    let base = directory_of(Path::new(STANDARD_INPUT));
    check_text(&text, &base, keys, FindingsShown::All, |_| Ok(()))
}

/// Checks the text of a policy like [`check_file`]. Paths in it are relative to `base`. `admit` can
/// reject the policy before its files are read.
///
/// # Errors
/// The same as [`check_file`].
pub fn check_text(
    text: &PolicyText,
    base: &Path,
    keys: &KeyProvider,
    shown: FindingsShown,
    admit: impl FnOnce(&Policy) -> Result<(), Diagnostic>,
) -> Result<Checked, Vec<Diagnostic>> {
    let checked = check_whole(text, base, keys, shown, admit);
    let quote = |mut findings: Vec<Diagnostic>| {
        text.quote(&mut findings);
        findings
    };
    match checked {
        Ok(Checked { policy, credentials, warnings }) => {
            Ok(Checked { policy, credentials, warnings: quote(warnings) })
        }
        Err(findings) => Err(quote(findings)),
    }
}

/// Loads the credentials of a policy that was checked before.
///
/// # Errors
/// All diagnostics, at least one of which is an error.
pub fn check_parsed(
    policy: Policy,
    base: &Path,
    keys: &KeyProvider,
) -> Result<Checked, Vec<Diagnostic>> {
    let mut findings = Vec::new();
    let credentials = Credentials::load(&policy, base, keys, &mut findings);
    if findings.iter().any(|finding| finding.severity == DiagnosticSeverity::Error) {
        return Err(findings);
    }
    Ok(Checked { policy, credentials, warnings: findings })
}

/// Reads and checks a policy file for nftables rules or links. The files of identities and trusts
/// are not read: nftables rules need none, and those of links are read with [`link_credentials`].
///
/// # Errors
/// All diagnostics, at least one of which is an error.
pub fn check_rules(path: &Path) -> Result<Policy, Vec<Diagnostic>> {
    check_rules_text(&read_policy(path, open_input, |_, _| Ok(()))?)
}

/// Checks the text of a policy like [`check_rules`].
///
/// # Errors
/// The same as [`check_rules`].
pub fn check_rules_text(text: &PolicyText) -> Result<Policy, Vec<Diagnostic>> {
    let parsed = parse_files(text, FindingsShown::Errors);
    let mut findings = parsed.diagnostics;
    let Some(mut policy) = parsed.policy else {
        text.quote(&mut findings);
        return Err(findings);
    };
    localize(&mut policy);
    Ok(policy)
}

/// Loads the credentials that the links of a policy use.
///
/// # Errors
/// All diagnostics, at least one of which is an error.
pub fn link_credentials(
    policy: &Policy,
    base: &Path,
    keys: &KeyProvider,
) -> Result<Credentials, Vec<Diagnostic>> {
    let mut identities = BTreeSet::new();
    let mut trusts = BTreeSet::new();
    for link in policy.links.values() {
        if let Some(LinkTcp { tls, .. }) = &link.tcp {
            identities.extend(&tls.identities);
            trusts.extend(tls.client_cert.trust());
        }
        if let Some(LinkConnect::Tcp { tls, .. }) = &link.connect {
            identities.extend(&tls.identity);
            trusts.extend(tls.verify.trust());
        }
    }
    let mut used = Policy { ikes: BTreeMap::new(), sas: BTreeMap::new(), ..policy.clone() };
    used.identities.retain(|name, _| identities.contains(name));
    used.trusts.retain(|name, _| trusts.contains(name.as_str()));
    let mut findings = Vec::new();
    let credentials = Credentials::load(&used, base, keys, &mut findings);
    if findings.iter().any(|finding| finding.severity == DiagnosticSeverity::Error) {
        return Err(findings);
    }
    Ok(credentials)
}

fn check_whole(
    text: &PolicyText,
    base: &Path,
    keys: &KeyProvider,
    shown: FindingsShown,
    admit: impl FnOnce(&Policy) -> Result<(), Diagnostic>,
) -> Result<Checked, Vec<Diagnostic>> {
    let parsed = parse_files(text, shown);
    let mut findings = parsed.diagnostics;
    let Some(mut policy) = parsed.policy else { return Err(findings) };
    admit(&policy).map_err(|finding| vec![finding])?;
    findings.extend(placement::check(&policy));
    findings.extend(senders::check(&policy));
    findings.extend(localize(&mut policy));
    findings.extend(text.warnings());
    let credentials = Credentials::load(&policy, base, keys, &mut findings);
    let unsuitable = unsuitable_credentials(&policy, &credentials);
    findings.extend(unsuitable.iter().map(|one| {
        diagnostic(MessageId("wrong-certificate-usage"), one.rule.position, one.text())
    }));
    findings.extend(local_ids::check(&policy, &credentials));
    findings.sort_by_key(|finding| finding.position);
    if findings.iter().any(|finding| finding.severity == DiagnosticSeverity::Error) {
        return Err(findings);
    }
    Ok(Checked { policy, credentials, warnings: findings })
}

/// Adapts a policy to this host; returns a warning if the local time zone cannot be determined.
///
/// Flows have users and groups by their first name, so a number or another name in a rule is
/// replaced by that, if there is one.
/// Time windows in local time get the local time zone.
pub fn localize(policy: &mut Policy) -> Option<Diagnostic> {
    let has_owner =
        |rule: &Rule| !rule.selectors.user.is_empty() || !rule.selectors.group.is_empty();
    for rule in policy.rules.iter_mut().filter(|rule| has_owner(rule)) {
        let selectors = &mut Arc::make_mut(rule).selectors;
        for user in &mut selectors.user {
            *user = address::user_word(user);
        }
        for group in &mut selectors.group {
            *group = address::group_word(group);
        }
    }
    let is_local = |rule: &Rule| rule.selectors.when.as_ref().is_some_and(|w| w.zone.is_local());
    let is_local_of_link =
        |rule: &&LinkRule| rule.selectors.when.as_ref().is_some_and(|when| when.zone.is_local());
    let of_flows = policy.rules.iter().find(|rule| is_local(rule)).map(|rule| rule.position);
    let of_links = || policy.link_rules.iter().find(is_local_of_link).map(|rule| rule.position);
    let position = of_flows.or_else(of_links)?;
    match clock::local_zone() {
        Ok(zone) => {
            policy.set_local_zone(&zone);
            None
        }
        Err(error) => {
            let message =
                format!("cannot determine the time zone of this host: {error}; tacit uses UTC");
            let fix = "either set `zone` in `when` (for example zone = \"Europe/Berlin\"), or make \
                       /etc/localtime a symbolic link to the file of the time zone in \
                       /usr/share/zoneinfo";
            Some(
                Diagnostic::warning(MessageId("time-zone-unknown"), position, message)
                    .with_fix(fix),
            )
        }
    }
}
