//! Checks a policy file: parses it, loads the credentials that it names, and makes all other checks
//! that need this host.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, DiagnosticSeverity, Policy, Rule, SourcePosition, parse};
use tacit_tls::signer::KeyProvider;

use crate::address;
use crate::clock;
use crate::placement;

use super::Credentials;
use super::credentials::unsuitable_credentials;

/// A policy that passed every check, with what it names.
#[derive(Debug)]
pub struct Checked {
    /// The policy.
    pub policy: Policy,
    /// What it names.
    pub credentials: Credentials,
    /// Warnings.
    pub warnings: Vec<Diagnostic>,
}

/// Reads and checks a policy file with everything it names; private keys stay where `keys` says,
/// unless the policy has them in this process.
///
/// # Errors
/// All findings, at least one of them an error.
pub fn check_file(path: &Path, keys: &KeyProvider) -> Result<Checked, Vec<Diagnostic>> {
    check_text(&read_policy(path)?, &directory_of(path), keys, |_| Ok(()))
}

/// Reads a policy file, which may be a pipe: once.
///
/// # Errors
/// It cannot be read.
pub fn read_policy(path: &Path) -> Result<String, Vec<Diagnostic>> {
    std::fs::read_to_string(path).map_err(|error| {
        vec![
            Diagnostic::error(
                MessageId("unreadable-policy"),
                SourcePosition { line: 1, column: 1 },
                format!("cannot read the policy file: {error}"),
            )
            .with_fix("name a policy file that this user can read"),
        ]
    })
}

/// The directory that paths in a policy are relative to.
#[must_use]
pub fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Checks the text of a policy as [`check_file`]; paths in it are relative to `base`. `admit`
/// may reject the policy before its files are read.
///
/// # Errors
/// As [`check_file`].
pub fn check_text(
    text: &str,
    base: &Path,
    keys: &KeyProvider,
    admit: impl FnOnce(&Policy) -> Result<(), Diagnostic>,
) -> Result<Checked, Vec<Diagnostic>> {
    let checked = check_whole(text, base, keys, admit);
    let quote = |mut findings: Vec<Diagnostic>| {
        Diagnostic::quote(&mut findings, text);
        findings
    };
    match checked {
        Ok(Checked { policy, credentials, warnings }) => {
            Ok(Checked { policy, credentials, warnings: quote(warnings) })
        }
        Err(findings) => Err(quote(findings)),
    }
}

fn check_whole(
    text: &str,
    base: &Path,
    keys: &KeyProvider,
    admit: impl FnOnce(&Policy) -> Result<(), Diagnostic>,
) -> Result<Checked, Vec<Diagnostic>> {
    let parsed = parse(text);
    let mut findings = parsed.diagnostics;
    let Some(mut policy) = parsed.policy else { return Err(findings) };
    admit(&policy).map_err(|finding| vec![finding])?;
    findings.extend(placement::check(&policy));
    findings.extend(localize(&mut policy));
    let credentials = Credentials::load(&policy, base, keys, &mut findings);
    let unsuitable = unsuitable_credentials(&policy, &credentials);
    let errors = unsuitable.iter().map(|one| {
        Diagnostic::error(MessageId("wrong-certificate-usage"), one.rule.position, one.to_string())
    });
    findings.extend(errors);
    findings.sort_by_key(|finding| finding.position);
    if findings.iter().any(|finding| finding.severity == DiagnosticSeverity::Error) {
        return Err(findings);
    }
    Ok(Checked { policy, credentials, warnings: findings })
}

/// Says what a policy means on this host; what could not be found out comes back as a warning.
///
/// Flows carry users by name, so rules that give a number get the name, if the number has one.
/// Windows in local time get the local zone.
pub fn localize(policy: &mut Policy) -> Option<Diagnostic> {
    for rule in policy.rules.iter_mut().filter(|rule| !rule.selectors.user.is_empty()) {
        for user in &mut Arc::make_mut(rule).selectors.user {
            *user = address::user_word(user);
        }
    }
    let is_local = |rule: &Rule| rule.selectors.when.as_ref().is_some_and(|w| w.zone.is_local());
    let position = policy.rules.iter().find(|rule| is_local(rule))?.position;
    match clock::local_zone() {
        Ok(zone) => {
            policy.set_local_zone(&zone);
            None
        }
        Err(error) => {
            let message =
                format!("cannot determine the time zone of this host, so UTC is used: {error}");
            let fix = "set `zone` in `when`, such as zone = \"Europe/Berlin\", or make \
                       /etc/localtime a link to the time zone of this host";
            Some(
                Diagnostic::warning(MessageId("time-zone-unknown"), position, message)
                    .with_fix(fix),
            )
        }
    }
}
