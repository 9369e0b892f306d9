//! Stores the text of the policy in force, for a guard (`host/stored.rs`). A policy that waits for
//! a confirmation is stored when it is confirmed.

use super::Agent;
use crate::host::store_policy;
use crate::ledger::on_own_thread;
use crate::log::Event;

/// The text of the installed policy, until it is stored.
#[derive(Debug)]
pub(super) struct LastPolicy(Option<String>);

impl LastPolicy {
    /// `None`: the agent stores no policy.
    pub(super) fn new(text: Option<String>) -> Self {
        Self(text)
    }

    /// A policy with this text was installed. `None`: the stored policy is the one in force, or the
    /// agent stores none.
    pub(super) fn note(&mut self, text: Option<String>) {
        self.0 = text;
    }
}

impl Agent {
    /// Stores the text of the installed policy, unless the policy waits for a confirmation.
    pub(super) async fn store_policy(&mut self) {
        if self.confirmation.is_waiting() {
            return;
        }
        let Some(path) = self.options.last_policy.clone() else { return };
        let Some(text) = self.last_policy.0.take() else { return };
        let stored = match on_own_thread("store", move || store_policy(&path, &text)) {
            // The thread has panicked: there is no other reason.
            Ok(result) => result.await.unwrap_or_else(|error| Err(std::io::Error::other(error))),
            Err(error) => Err(error),
        };
        if let Err(error) = stored {
            let event = Event::new("policy-not-stored").field("error", &error);
            let next = "if the policy file has an error at the next boot, the guard uses an older \
                        policy or closes the host: make the directory of --last-policy writable, \
                        and run `tacit reload`";
            self.shared.log.error(event.field("next", &next));
        }
    }
}
