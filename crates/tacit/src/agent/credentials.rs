//! Stores the certificates, keys and CRLs of the installed policy. Also reports files that cannot
//! be loaded, and certificates that expire soon.

use std::sync::Arc;

use tacit_tls::signer::KeyProvider;
use tacit_tls::verify::ChainCache;

use super::expiry::Expiries;
use crate::live::Credentials;
use crate::log::{Event, Log};

/// The credentials of the installed policy.
#[derive(Debug)]
pub(crate) struct CredentialStore {
    /// The credentials that were loaded from the files of the policy.
    pub(crate) loaded: Credentials,
    /// Loads private keys and signs with them: the signer, or this process.
    pub(crate) keys: KeyProvider,
    /// Chains of peers that were verified; `None`: every chain is verified again.
    pub(crate) chains: Option<Arc<ChainCache>>,
    /// Errors of changed files, which are therefore not in use.
    errors: Vec<String>,
    expiries: Expiries,
}

impl CredentialStore {
    /// These credentials, with nothing reported yet.
    pub(crate) fn new(
        credentials: Credentials,
        keys: KeyProvider,
        chains: Option<Arc<ChainCache>>,
    ) -> Self {
        Self {
            loaded: credentials,
            keys,
            chains,
            errors: Vec::new(),
            expiries: Expiries::default(),
        }
    }

    /// Whether a file has changed since it was loaded.
    pub(crate) fn have_changed(&mut self) -> bool {
        let have_changed = self.loaded.have_changed();
        if !have_changed {
            self.errors.clear();
        }
        have_changed
    }

    /// Replaces the credentials by those of another policy; returns the old ones.
    pub(crate) fn replace(&mut self, credentials: Credentials) -> Credentials {
        self.errors.clear();
        std::mem::replace(&mut self.loaded, credentials)
    }

    /// Logs files that cannot be loaded, once for each new error.
    pub(crate) fn report_errors(&mut self, errors: Vec<String>, log: &Log) {
        if errors == self.errors {
            return;
        }
        for error in &errors {
            log.error(Event::new("file-refused").field("reason", error).field(
                "next",
                "the agent continues to use the previous content of the file until you correct the \
                 file",
            ));
        }
        self.errors = errors;
    }

    /// Logs certificates and CRLs that expire soon: when they are loaded, and then once a day.
    pub(crate) fn report_expiries(&mut self, now_unix_s: i64, log: &Log) {
        let due = self.expiries.due(&self.loaded, now_unix_s);
        due.into_iter().for_each(|event| log.warn(event));
    }
}
