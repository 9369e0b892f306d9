//! Stores the text of the installed policy in a file. At boot, the command `tacit agent --host
//! --guard` (the guard) can use this file to capture the host's traffic (`host/stored.rs`). If a
//! policy must be confirmed, the agent stores the policy only after the confirmation.
//!
//! If the agent cannot store a policy, the agent removes the older stored policy. Otherwise the
//! guard would install the older policy, which may protect less. The agent tries again until it has
//! stored the policy.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::Agent;
use crate::host::{StoreError, store_policy};
use crate::ledger::on_own_thread;
use crate::log::Event;

/// The texts of policies, until they are stored.
#[derive(Debug)]
pub(super) struct LastPolicy {
    /// The installed policy, which may have to be confirmed first.
    installed: Option<Arc<str>>,
    /// The last policy that needed no confirmation, or was confirmed.
    due: Option<Arc<str>>,
    /// Whether it could not be stored, and the log says so.
    has_failed: bool,
}

impl LastPolicy {
    /// `None`: the agent stores no policy.
    pub(super) fn new(text: Option<String>) -> Self {
        Self { installed: text.map(Arc::from), due: None, has_failed: false }
    }

    /// A policy with this text was installed. `None`: the policy that was stored, or is due, is in
    /// force again, or the agent stores none.
    pub(super) fn note(&mut self, text: Option<String>) {
        self.installed = text.map(Arc::from);
    }

    /// Whether a policy could not be stored.
    pub(super) fn is_late(&self) -> bool {
        self.due.is_some()
    }
}

impl Agent {
    /// Stores the text of the installed policy, unless the policy waits for a confirmation. If a
    /// policy cannot be stored, returns a warning.
    pub(super) async fn store_policy(&mut self) -> Option<String> {
        let path = self.options.last_policy.clone()?;
        // The successor stores its policy in the same file.
        if self.draining.is_some() {
            return None;
        }
        let last = &mut self.last_policy;
        if !self.confirmation.is_waiting()
            && let Some(text) = last.installed.take()
        {
            last.due = Some(text);
        }
        let text = Arc::clone(last.due.as_ref()?);
        let stored = store_aside(path, text).await;
        let Err(error) = stored else {
            last.due = None;
            if std::mem::take(&mut last.has_failed) {
                self.shared.log.info(Event::new("policy-stored"));
            }
            return None;
        };
        let StoreError { error, left } = error;
        let next = match left {
            None => NEXT_CLOSED.to_owned(),
            Some(left) => {
                format!("the agent could not remove the older stored policy: {left}; {NEXT_OLDER}")
            }
        };
        if !std::mem::replace(&mut last.has_failed, true) {
            let event = Event::new("policy-not-stored").field("error", &error);
            self.shared.log.error(event.field("next", &next));
        }
        Some(format!("warning[policy-not-stored]: the policy was not stored: {error}; {next}"))
    }
}

const NEXT_CLOSED: &str = "make the directory of --last-policy writable. If the disk of this \
                           directory is full, delete other files. Every few seconds, the agent \
                           tries to store the policy again. Without a stored policy, the guard \
                           (tacit-host-guard.service) permits only DHCP and SSH if the policy \
                           file has an error at the next boot";
const NEXT_OLDER: &str = "make the directory of --last-policy writable. Every few seconds, the \
                          agent tries to store the policy again. Until then, the guard \
                          (tacit-host-guard.service) uses the older stored policy if the policy \
                          file has an error at boot";

async fn store_aside(path: PathBuf, text: Arc<str>) -> Result<(), StoreError> {
    let no_thread = |error| StoreError { error, left: Some(io::ErrorKind::Interrupted.into()) };
    match on_own_thread("store", move || store_policy(&path, &text)) {
        // The thread has panicked: there is no other reason.
        Ok(result) => result.await.unwrap_or_else(|error| Err(no_thread(io::Error::other(error)))),
        Err(error) => Err(no_thread(error)),
    }
}
