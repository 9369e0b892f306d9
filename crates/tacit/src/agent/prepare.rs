//! The part of a change that takes long: reading, checking and building, on a thread of its own.
//!
//! It changes nothing that is installed. What a reload cannot change (`[agent]`, `[engine]`, most
//! of `[limits]`) stays as it is, in the displays too, until a successor starts.

use std::path::PathBuf;
use std::sync::Arc;

use tacit_core::policy::{Diagnostic, Limits, Policy};
use tacit_tls::signer::KeyProvider;
use tacit_tls::verify::ChainCache;

use super::listeners::{self, WantedListeners};
use super::sandbox::Sandbox;
use crate::live::{
    BuildContext, Built, Changes, Checked, Installed, Live, Materials, Refreshed, RuleRefused,
    check_text, directory_of, read_policy, rebuild, renew,
};

/// What a change is prepared from.
#[derive(Debug)]
pub(super) struct Inputs {
    /// The policy file.
    pub(super) file: PathBuf,
    /// The installed policy.
    pub(super) live: Arc<Live>,
    /// Its credentials.
    pub(super) materials: Materials,
    /// Where private keys are.
    pub(super) keys: KeyProvider,
    /// Where chains of peers are remembered.
    pub(super) chains: Option<Arc<ChainCache>>,
    /// What the agent has given up.
    pub(super) sandbox: Option<Arc<Sandbox>>,
}

/// A change that only has to be installed.
#[derive(Debug)]
pub(super) enum Prepared {
    /// Another policy, or why it cannot be one.
    Policy(Result<Box<NewPolicy>, String>),
    /// The same policy with files that changed.
    Files(Box<NewFiles>),
}

/// A policy that passed every check.
#[derive(Debug)]
pub(super) struct NewPolicy {
    /// The policy, ready to serve.
    pub(super) live: Live,
    /// Its credentials.
    pub(super) materials: Materials,
    /// How it differs from the installed one.
    pub(super) changes: Changes,
    /// Every listening address of it.
    pub(super) listeners: WantedListeners,
    /// Warnings, as they are printed.
    pub(super) warnings: Vec<String>,
    /// The parts of the file that take effect with the next start only.
    pub(super) needs_restart: Vec<&'static str>,
}

/// Files of the installed policy that were loaded again.
#[derive(Debug)]
pub(super) struct NewFiles {
    /// All credentials; what cannot be loaded is as it was.
    pub(super) materials: Materials,
    /// Why files cannot be loaded.
    pub(super) errors: Vec<String>,
    /// The policy with them; `None`: none could be loaded.
    pub(super) built: Option<Result<Built, RuleRefused>>,
}

impl Inputs {
    /// Reads the policy file and builds what it says.
    ///
    /// # Errors
    /// What is wrong with it, as it is printed.
    pub(super) fn policy(self) -> Result<Box<NewPolicy>, String> {
        let file = self.file.display().to_string();
        let refused = |findings: Vec<Diagnostic>| {
            let lines: Vec<_> = findings.iter().map(|finding| finding.render(&file)).collect();
            format!("nothing was installed:\n{}", lines.join("\n"))
        };
        let text = read_policy(&self.file).map_err(refused)?;
        let base = directory_of(&self.file);
        let in_reach = |policy: &Policy| self.check_sandbox(policy);
        let checked = check_text(&text, &base, &self.keys, in_reach).map_err(refused)?;
        let Checked { mut policy, materials, warnings } = checked;
        let needs_restart = keep_until_restart(&mut policy, &self.live.policy);
        let listeners = listeners::wanted(&policy);
        let context = BuildContext { materials: &materials, chains: self.chains.as_ref() };
        let installed = Installed { live: &self.live, materials: &self.materials };
        let Built { live, changes } = rebuild(policy, context, installed)
            .map_err(|refused| format!("nothing was installed: {refused}"))?;
        let warnings = warnings.iter().map(|warning| warning.render(&file)).collect();
        let new = NewPolicy { live, materials, changes, listeners, warnings, needs_restart };
        Ok(Box::new(new))
    }

    /// Rejects what the agent has given up. A file out of its reach would look like one that this
    /// user may not read.
    fn check_sandbox(&self, policy: &Policy) -> Result<(), Diagnostic> {
        self.sandbox.as_ref().map_or(Ok(()), |sandbox| sandbox.check(policy, &self.file))
    }

    /// Loads the credentials of which files changed, and builds the rules that use them.
    pub(super) fn files(self) -> Box<NewFiles> {
        let base = directory_of(&self.file);
        let Refreshed { materials, errors } =
            self.materials.refreshed(&self.live.policy, &base, &self.keys);
        let built = (!materials.same(&self.materials)).then(|| {
            let context = BuildContext { materials: &materials, chains: self.chains.as_ref() };
            renew(context, Installed { live: &self.live, materials: &self.materials })
        });
        Box::new(NewFiles { materials, errors, built })
    }
}

/// Leaves what workers and handshake limiters were built with as it is; names the parts that would
/// differ.
fn keep_until_restart(policy: &mut Policy, before: &Policy) -> Vec<&'static str> {
    let limits = Limits { drain: policy.limits.drain, ..before.limits.clone() };
    let mut parts = Vec::new();
    if policy.agent != before.agent {
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
    policy.agent = before.agent.clone();
    policy.engine.clone_from(&before.engine);
    policy.limits = limits;
    parts
}
