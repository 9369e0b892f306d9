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
pub fn check_file(path: &Path, keys: &KeyProvider) -> Result<Checked, Vec<Diagnostic>> {
    check_text(&read_policy(path)?, &directory_of(path), keys, |_| Ok(()))
}

/// Reads a policy file. It may be a pipe, so it is read only once.
///
/// # Errors
/// The file cannot be read.
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

/// The directory to which paths in a policy are relative.
#[must_use]
pub fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Checks the text of a policy like [`check_file`]. Paths in it are relative to `base`. `admit` can
/// reject the policy before its files are read.
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

/// Adapts a policy to this host; returns a warning if the local time zone cannot be determined.
///
/// Flows have users by name, so a user number in a rule is replaced by the name, if there is one.
/// Time windows in local time get the local time zone.
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
