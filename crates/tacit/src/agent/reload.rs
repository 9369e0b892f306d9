//! Changes under a running agent: a policy is taken whole or not at all, a file only if it is good.
//!
//! Everything that can fail comes first. What a reload cannot change (`[agent]`,
//! `[engine]`, most of `[limits]`) stays as it is, in the displays too, until a successor starts.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tacit_core::flow::Address;
use tacit_core::policy::{Limits, Policy};

use super::inbound::reserve_missing;
use super::listeners::{self, Opened, Wanted};
use super::{Agent, file_name};
use crate::clock;
use crate::live::{
    BuildContext, Built, Changes, Checked, Installed, Refreshed, check_file, directory_of, rebuild,
    renew,
};
use crate::log::Event;

impl Agent {
    /// Installs the policy file as it is now, or changes nothing.
    pub(super) async fn reload(&mut self) -> Result<Value, String> {
        let file = file_name(&self.options);
        let checked = check_file(&self.options.policy).map_err(|findings| {
            let lines: Vec<_> = findings.iter().map(|finding| finding.render(&file)).collect();
            format!("nothing was installed:\n{}", lines.join("\n"))
        })?;
        let before = self.live.load_full();
        let Checked { mut policy, materials, warnings } = checked;
        let restart = keep_until_restart(&mut policy, &before.policy);
        let wanted = listeners::wanted(&policy);
        let context = BuildContext { materials: &materials, chains: self.chains.as_ref() };
        let installed = Installed { live: &before, materials: &self.materials };
        let Built { live, changes } = rebuild(policy, context, installed)
            .map_err(|refused| format!("nothing was installed: {refused}"))?;
        let opened = self
            .prepare_listeners(&wanted)
            .map_err(|error| format!("nothing was installed: {error}"))?;
        let control = self.congestion_control.as_deref();
        let reserved = match self.runs.is_empty() {
            true => Vec::new(),
            false => reserve_missing(&live.policy, self.runs.all(), control)
                .map_err(|error| format!("nothing was installed: {error}"))?,
        };
        live.mark_relays();
        self.live.store(Arc::new(live));
        self.follow_policy(reserved).await;
        self.materials = materials;
        self.material_errors.clear();
        for (key, new) in opened {
            self.listeners_made += 1;
            self.workers.serve(self.listeners_made, Arc::clone(&new.listener) as _).await;
            self.listeners.insert(key, (self.listeners_made, new));
        }
        let gone: Vec<_> =
            self.listeners.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect();
        for key in gone {
            if let Some((id, _closed)) = self.listeners.remove(&key) {
                self.workers.stop(id).await;
            }
        }
        let changes = shown(&changes);
        self.log.info(Event::new("reloaded").field("changes", &changes));
        let warnings: Vec<_> = warnings.iter().map(|warning| warning.render(&file)).collect();
        Ok(json!({ "generation": before.generation + 1, "changes": changes, "warnings": warnings,
                   "needs-restart": restart }))
    }

    /// Opens what is new, and gives socket files that stay their new mode and owner. After an
    /// error all is as it was.
    fn prepare_listeners(
        &mut self,
        wanted: &BTreeMap<String, (Address, Wanted)>,
    ) -> Result<Vec<(String, Opened)>, listeners::ListenError> {
        let mut opened = Vec::new();
        for (key, (address, wanted)) in wanted {
            if !self.listeners.contains_key(key) {
                let new = listeners::open(address, wanted, self.congestion_control.as_deref())?;
                opened.push((key.clone(), new));
            }
        }
        let mut changed = Vec::new();
        for (key, (_, opened)) in &mut self.listeners {
            let Some((_, wanted)) = wanted.get(key).filter(|(_, new)| new.unix != opened.unix)
            else {
                continue;
            };
            let before = opened.unix.clone();
            let result = opened.dress_file(&wanted.unix);
            changed.push((opened, before));
            if let Err(error) = result {
                for (opened, before) in changed {
                    // It was possible before.
                    let _ = opened.dress_file(&before);
                }
                return Err(error);
            }
        }
        Ok(opened)
    }

    /// Tells of certificates and lists that end soon; of each when it is new, and once a day.
    pub(super) fn tell_expiries(&mut self) {
        let due = self.expiries.due(&self.materials, clock::now_unix_s());
        due.into_iter().for_each(|event| self.log.warn(event));
    }

    /// Takes certificate, key and trust files that changed on disk; bad ones keep the old.
    pub(super) fn refresh_materials(&mut self) {
        let before = self.live.load_full();
        let base = directory_of(&self.options.policy);
        let Refreshed { materials: fresh, errors } =
            self.materials.refreshed(&before.policy, &base);
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        if errors != self.material_errors {
            for error in &errors {
                self.log.error(
                    Event::new("file-refused")
                        .field("reason", error)
                        .field("next", "the old one stays in use until the file is right"),
                );
            }
            self.material_errors = errors;
        }
        if fresh.same(&self.materials) {
            return;
        }
        let context = BuildContext { materials: &fresh, chains: self.chains.as_ref() };
        let installed = Installed { live: &before, materials: &self.materials };
        match renew(context, installed) {
            Ok(Built { live, changes }) => {
                if !changes.is_empty() {
                    self.live.store(Arc::new(live));
                    let changes = shown(&changes);
                    self.log.info(Event::new("files-reloaded").field("changes", &changes));
                }
                self.materials = fresh;
            }
            Err(refused) => self.log.error(
                Event::new("file-refused")
                    .field("rule", &refused.rule)
                    .field("reason", &refused.error),
            ),
        }
    }
}

/// Leaves what workers and gates were built with as it is; names the parts that would differ.
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

/// Rules that came, went or changed; null if none did.
fn shown(changes: &Changes) -> Value {
    if changes.is_empty() { Value::Null } else { json!(changes) }
}
