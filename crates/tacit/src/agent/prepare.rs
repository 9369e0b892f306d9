//! Reads and checks a new policy before the agent installs it. Also reads the certificates and
//! keys of the installed policy again, when their files have changed. A separate thread does this
//! work, because it can take long.
//!
//! A reload cannot change `[agent]`, `[engine]`, `mark` of `[host]` and most of `[limits]`. The old
//! values remain until `tacit restart` starts another agent.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tacit_core::message_id::MessageId;
use tacit_core::policy::{
    Activation, AgentSettings, Diagnostic, FindingsShown, HostSettings, IncludePattern, Limits,
    Policy,
};
use tacit_sys::input_file::open_regular;
use tacit_tls::signer::KeyProvider;
use tacit_tls::verify::ChainCache;

use super::listeners::{self, RequiredListeners};
use super::sandbox::{RESTART, Sandbox};
use super::tunnels::check_raw;
use crate::live::{
    BuildContext, Built, Changes, Checked, Credentials, Installed, Live, Refreshed, RuleRefused,
    check_parsed, check_text, directory_of, read_policy, rebuild, renew,
};
use crate::packet::RawUnderlay;

/// The input of a preparation.
#[derive(Debug)]
pub(super) struct Inputs {
    /// The policy file, for messages, and for the directory of the files that the policy names.
    pub(super) file: PathBuf,
    /// The installed policy.
    pub(super) live: Arc<Live>,
    /// Its credentials.
    pub(super) credentials: Credentials,
    /// Loads private keys and signs with them: the signer, or this process.
    pub(super) keys: KeyProvider,
    /// The cache of verified chains.
    pub(super) chains: Option<Arc<ChainCache>>,
    /// The sandbox of the agent.
    pub(super) sandbox: Option<Arc<Sandbox>>,
    /// Whether the agent stores the text of the policy.
    pub(super) stores_text: bool,
    /// The sockets of manual SAs without UDP.
    pub(super) raw: Arc<RawUnderlay>,
}

/// Where a policy comes from.
#[derive(Debug)]
pub(super) enum PolicySource {
    /// The file, which is read.
    File(PathBuf),
    /// An earlier policy, which returns.
    Parsed(Arc<Policy>),
}

/// A change that only has to be installed.
#[derive(Debug)]
pub(super) enum Prepared {
    /// A new policy, or its errors.
    Policy(Result<Box<NewPolicy>, String>),
    /// The installed policy with changed files.
    Files(Box<NewFiles>),
}

/// A policy that passed every check.
#[derive(Debug)]
pub(super) struct NewPolicy {
    /// The policy, ready to serve.
    pub(super) live: Live,
    /// Its credentials.
    pub(super) credentials: Credentials,
    /// How it differs from the installed one.
    pub(super) changes: Changes,
    /// The tables whose files have other contents than before.
    pub(super) new_contents: Vec<String>,
    /// Its listening addresses.
    pub(super) listeners: RequiredListeners,
    /// Warnings, as they are printed.
    pub(super) warnings: Vec<String>,
    /// The tables of the file that take effect only when the agent is restarted.
    pub(super) needs_restart: Vec<&'static str>,
    /// Its text, if the agent stores it.
    pub(super) text: Option<String>,
}

/// Files of the installed policy that were loaded again.
#[derive(Debug)]
pub(super) struct NewFiles {
    /// All credentials; those that cannot be loaded are unchanged.
    pub(super) credentials: Credentials,
    /// The tables whose files have other contents than before.
    pub(super) new_contents: Vec<String>,
    /// The errors of files that cannot be loaded.
    pub(super) errors: Vec<String>,
    /// The policy with the new credentials; `None` if none could be loaded.
    pub(super) built: Option<Result<Built, RuleRefused>>,
}

impl Inputs {
    /// Reads and checks a policy, and builds its rules.
    ///
    /// # Errors
    /// The errors of the policy, as they are printed.
    pub(super) fn policy(self, source: PolicySource) -> Result<Box<NewPolicy>, String> {
        let file = self.file.display().to_string();
        let refused = |findings: Vec<Diagnostic>| {
            let lines: Vec<_> = findings.iter().map(|finding| finding.render(&file)).collect();
            format!("the policy was not installed:\n{}", lines.join("\n"))
        };
        let mut text = None;
        let checked = self.checked(source, &mut text).map_err(refused)?;
        let Checked { mut policy, credentials, warnings } = checked;
        // The policy in force would have the old [host], which is not in this text.
        if self.stores_text && policy.host.is_none() {
            return Err(NO_HOST.to_owned());
        }
        let needs_restart = keep_until_restart(&mut policy, &self.live.policy);
        let listeners = listeners::wanted(&policy);
        let context = BuildContext { credentials: &credentials, chains: self.chains.as_ref() };
        let installed = Installed { live: &self.live, credentials: &self.credentials };
        let Built { live, changes } = rebuild(policy, context, installed)
            .map_err(|refused| format!("the policy was not installed: {refused}"))?;
        let new_contents = credentials.tables_with_new_contents(&self.credentials);
        let warnings = warnings.iter().map(|warning| warning.render(&file)).collect();
        Ok(Box::new(NewPolicy {
            live,
            credentials,
            changes,
            new_contents,
            listeners,
            warnings,
            needs_restart,
            text,
        }))
    }

    /// Sets `stored` to the text, if the policy has one and the agent stores it.
    fn checked(
        &self,
        source: PolicySource,
        stored: &mut Option<String>,
    ) -> Result<Checked, Vec<Diagnostic>> {
        let base = directory_of(&self.file);
        match source {
            PolicySource::File(file) => {
                let in_reach =
                    |pattern: &IncludePattern, path: &Path| self.check_include(pattern, path);
                let text = read_policy(&file, open_regular, in_reach)?;
                let admit = |policy: &Policy| {
                    self.check_sandbox(policy)
                        .and_then(|()| check_raw(&self.raw, policy))
                        .and_then(|()| self.check_activations(policy))
                };
                let checked = check_text(&text, &base, &self.keys, FindingsShown::All, admit);
                *stored = self.stores_text.then(|| text.into_text());
                checked
            }
            PolicySource::Parsed(policy) => check_parsed((*policy).clone(), &base, &self.keys),
        }
    }

    /// Rejects a policy that the sandbox does not allow. Without this check, a file that the
    /// sandbox hides would be reported as one that the user may not read.
    fn check_sandbox(&self, policy: &Policy) -> Result<(), Diagnostic> {
        self.sandbox.as_ref().map_or(Ok(()), |sandbox| sandbox.check(policy, &self.file))
    }

    /// Rejects activations that the starter does not know. It gets its programs once, so that only
    /// the policy of the agent's start decides what it may start.
    fn check_activations(&self, policy: &Policy) -> Result<(), Diagnostic> {
        let known = &self.live.policy.activations;
        let is_new = |(name, one): &(&String, &Activation)| {
            !known.get(*name).is_some_and(|known| known.same(one))
        };
        let Some((name, activation)) = policy.activations.iter().find(is_new) else {
            return Ok(());
        };
        let message = format!("a reload cannot add or change [activate.{name}]");
        let id = MessageId("needs-restart");
        Err(Diagnostic::error(id, activation.position, message).with_fix(RESTART))
    }

    /// Rejects a pattern of files to include whose directory the sandbox does not allow.
    fn check_include(&self, pattern: &IncludePattern, path: &Path) -> Result<(), Diagnostic> {
        let check = |sandbox: &Arc<Sandbox>| sandbox.check_file(pattern.position, path);
        self.sandbox.as_ref().map_or(Ok(()), check)
    }

    /// Loads credentials whose files have changed, and builds the rules that use them.
    pub(super) fn files(self) -> Box<NewFiles> {
        let base = directory_of(&self.file);
        let Refreshed { credentials, errors } =
            self.credentials.refreshed(&self.live.policy, &base, &self.keys);
        let built = (!credentials.same(&self.credentials)).then(|| {
            let context = BuildContext { credentials: &credentials, chains: self.chains.as_ref() };
            renew(context, Installed { live: &self.live, credentials: &self.credentials })
        });
        let new_contents = credentials.tables_with_new_contents(&self.credentials);
        Box::new(NewFiles { credentials, new_contents, errors, built })
    }
}

const NO_HOST: &str = "the policy was not installed: it has no [host]. At the next boot, \
                       the guard (tacit-host-guard.service) may need the last installed \
                       policy (--last-policy), but cannot use a policy without [host]\n    \
                       fix: add [host]. If you do not want to capture the host any more, end the \
                       agent and run `tacit agent --host --remove`";

/// Replaces the settings that take effect only at a start by those in force; returns the names of
/// the tables that differed.
fn keep_until_restart(policy: &mut Policy, before: &Policy) -> Vec<&'static str> {
    let limits = Limits { drain: policy.limits.drain, ..before.limits.clone() };
    // `trace` takes effect at a reload, so that an operator can forbid traces at once.
    let agent = AgentSettings { trace: policy.agent.trace, ..before.agent.clone() };
    let mut parts = Vec::new();
    if policy.agent != agent {
        parts.push("[agent]");
    }
    let same_engine = match (&policy.engine, &before.engine) {
        (Some(new), Some(old)) => new.same(old),
        (new, old) => new.is_none() && old.is_none(),
    };
    if !same_engine {
        parts.push("[engine]");
    }
    if policy.limits != limits {
        parts.push("[limits]");
    }
    let host = match (&policy.host, &before.host) {
        (Some(new), Some(old)) => Some(HostSettings { mark: old.mark, ..new.clone() }),
        (_, old) => old.clone(),
    };
    if policy.host != host {
        parts.push("[host]");
    }
    policy.host = host;
    policy.agent = agent;
    policy.engine.clone_from(&before.engine);
    policy.limits = limits;
    parts
}
