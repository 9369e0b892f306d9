//! The certificates, keys and CRLs of the installed policy, and what is remembered about them.

use std::sync::Arc;

use tacit_tls::signer::KeyProvider;
use tacit_tls::verify::ChainCache;

use super::expiry::Expiries;
use crate::live::Materials;
use crate::log::{Event, Log};

/// The credentials of the installed policy.
#[derive(Debug)]
pub(super) struct Credentials {
    /// What was loaded from the files that the policy names.
    pub(super) materials: Materials,
    /// Where private keys are.
    pub(super) keys: KeyProvider,
    /// ChainCache of peers that were verified; `None`: each is verified again.
    pub(super) chains: Option<Arc<ChainCache>>,
    /// Why files that changed are not in use.
    errors: Vec<String>,
    expiries: Expiries,
}

impl Credentials {
    /// What was loaded, with nothing reported yet.
    pub(super) fn new(
        materials: Materials,
        keys: KeyProvider,
        chains: Option<Arc<ChainCache>>,
    ) -> Self {
        Self { materials, keys, chains, errors: Vec::new(), expiries: Expiries::default() }
    }

    /// Whether a file has changed since it was loaded.
    pub(super) fn have_changed(&mut self) -> bool {
        let have_changed = self.materials.have_changed();
        if !have_changed {
            self.errors.clear();
        }
        have_changed
    }

    /// Puts those of another policy in place; returns the old ones.
    pub(super) fn replace(&mut self, materials: Materials) -> Materials {
        self.errors.clear();
        std::mem::replace(&mut self.materials, materials)
    }

    /// Reports files that cannot be used as they are now; each state of them once.
    pub(super) fn report_errors(&mut self, errors: Vec<String>, log: &Log) {
        if errors == self.errors {
            return;
        }
        for error in &errors {
            log.error(
                Event::new("file-refused")
                    .field("reason", error)
                    .field("next", "the old one stays in use until the file is right"),
            );
        }
        self.errors = errors;
    }

    /// Reports certificates and CRLs that end soon; each when it is new, and once a day.
    pub(super) fn report_expiries(&mut self, now_unix_s: i64, log: &Log) {
        let due = self.expiries.due(&self.materials, now_unix_s);
        due.into_iter().for_each(|event| log.warn(event));
    }
}
