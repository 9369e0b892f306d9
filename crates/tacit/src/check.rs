//! `tacit check`: checks a policy, and prints the errors and warnings.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tacit_core::message_id::MessageId;
use tacit_core::policy::{
    Activation, Diagnostic, DiagnosticSeverity, FindingsShown, Policy, host_warnings,
};
use tacit_tls::signer::KeyProvider;

use crate::agent;
use crate::clock;
use crate::exit::{EXIT_OK, EXIT_POLICY, EXIT_USAGE, complain, fail, print, versioned};
use crate::host;
use crate::live::{check_file, check_standard_input};
use crate::policy_file;

/// The policy to check, and the form of the result.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit check policy.toml
  tacit check --json policy.toml
  tacit import stunnel stunnel.conf | tacit check -")]
pub struct CheckArgs {
    /// The policy file, or `-` for standard input: then file names in the policy are relative to
    /// the current directory [default: $TACIT_POLICY]
    file: Option<PathBuf>,
    /// Print diagnostics as JSON
    #[arg(long)]
    json: bool,
    /// Print the JSON schema of the policy language, for editors
    #[arg(long)]
    schema: bool,
}

/// The JSON schema of the policy language.
const POLICY_SCHEMA: &str = include_str!("../../../docs/schema/policy.json");

/// The result of a check.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct CheckReport {
    /// Whether the policy can be installed.
    ok: bool,
    /// The number of rules in the policy; `None` if the policy has errors.
    rules: Option<usize>,
    /// The files that the policy includes.
    included: Vec<String>,
    /// Errors and warnings.
    findings: Vec<Diagnostic>,
    /// The files that tacit hides one by one from programs under `tacit run`. When such a file is
    /// replaced, programs can read the new file for a moment.
    exposed_when_replaced: Vec<String>,
}

/// Runs the command.
#[must_use]
pub fn run(args: &CheckArgs) -> ExitCode {
    if args.schema {
        return print(POLICY_SCHEMA, EXIT_OK);
    }
    let Some(path) = policy_file::named(args.file.as_deref()) else {
        let next = "no policy was given\n    fix: use tacit check FILE, or set TACIT_POLICY";
        return fail(MessageId("no-policy"), next, EXIT_USAGE);
    };
    let report = CheckReport::of(&path);
    let code = if report.ok { EXIT_OK } else { EXIT_POLICY };
    if args.json {
        return print(versioned(&report), code);
    }
    let file = path.display().to_string();
    let lines = report.findings.iter().map(|finding| finding.render(&file));
    let text = lines.collect::<Vec<_>>().join("\n");
    if !text.is_empty() {
        complain(&text);
    }
    match report.rules {
        Some(rules) => print(report.text(rules), code),
        None => code.into(),
    }
}

impl CheckReport {
    fn of(path: &Path) -> Self {
        let keys = KeyProvider::local();
        let checked = match path.as_os_str() == "-" {
            true => check_standard_input(&keys),
            false => check_file(path, &keys, FindingsShown::All),
        };
        match checked {
            Ok(checked) => {
                let findings = with_host_findings(&checked.policy, checked.warnings);
                let is_error = |one: &Diagnostic| one.severity == DiagnosticSeverity::Error;
                let ok = !findings.iter().any(is_error);
                Self {
                    ok,
                    rules: ok.then(|| count_rules(&checked.policy)),
                    included: checked.policy.included.iter().map(ToString::to_string).collect(),
                    findings,
                    exposed_when_replaced: exposed(&checked.policy, path),
                }
            }
            Err(findings) => Self {
                ok: false,
                rules: None,
                included: Vec::new(),
                findings,
                exposed_when_replaced: Vec::new(),
            },
        }
    }

    /// Formats the report on a policy without errors as text. The text does not contain the other
    /// warnings (the field `findings`).
    fn text(&self, rules: usize) -> String {
        let mut text = format!("policy OK, {rules} rule{}\n", if rules == 1 { "" } else { "s" });
        for file in &self.included {
            text += &format!("includes {file}\n");
        }
        if !self.exposed_when_replaced.is_empty() {
            let id = MessageId("files-exposed");
            text += &format!(
                "warning[{id}]: `tacit run` hides files of the policy from the program. But if \
                 you replace one of these files while the program runs, the program can read the \
                 new file for some milliseconds: {files}\n    \
                 fix: to prevent this, move the files into a directory that contains nothing else, \
                 and run `chmod 700 DIRECTORY`: tacit then hides the whole directory\n",
                files = self.exposed_when_replaced.join(", ")
            );
        }
        text
    }
}

/// Counts all rules of the policy, including filter rules and rules of links.
const fn count_rules(policy: &Policy) -> usize {
    policy.rules.len() + policy.filters.len() + policy.link_rules.len()
}

/// Adds warnings about programs that run as the user of the agent. If the policy captures this
/// host, also adds errors and warnings about the host.
fn with_host_findings(policy: &Policy, mut findings: Vec<Diagnostic>) -> Vec<Diagnostic> {
    findings.extend(activation_warnings(policy));
    if policy.host.is_some() {
        findings.extend(host::check_units(policy));
        findings.extend(host_warnings(policy, &host::facts(), clock::now_unix_s()));
    }
    findings.sort_by_key(|finding| finding.position);
    findings
}

/// Warnings about programs that run as the user of the agent.
fn activation_warnings(policy: &Policy) -> Vec<Diagnostic> {
    let of_agent = policy.activations.iter().filter(|(_, activation)| activation.user.is_none());
    let warning = |(name, activation): (&String, &Activation)| {
        let message = format!(
            "the program of [activate.{name}] runs as the user of the agent, so it can read the \
             agent's keys and use its control socket"
        );
        let id = MessageId("program-of-agent-user");
        let warning = Diagnostic::warning(id, activation.position, message);
        warning.with_fix("set `user` to another user, and run the agent as root")
    };
    of_agent.map(warning).collect()
}

/// Lists the files that tacit hides one by one from programs under `tacit run`. When such a file is
/// replaced, programs can read the new file for a moment.
///
/// The list is empty if the policy has no rule for runs. In a policy that captures a host, only
/// rules with `run` are for runs. In other policies, all rules are for runs, except forwarding
/// rules.
fn exposed(policy: &Policy, file: &Path) -> Vec<String> {
    let has_runs = policy.rules.iter().any(|rule| match policy.host {
        Some(_) => !rule.selectors.run.is_empty(),
        None => rule.forward().is_none(),
    });
    if !has_runs {
        return Vec::new();
    }
    let files = agent::secrets::exposed(policy, file);
    files.into_iter().map(|file| file.display().to_string()).collect()
}
