//! Creates the certificate verifiers of a trust (a set of CA certificates). A verifier is created
//! when it is needed for the first time. All rules with this trust share its verifiers.
//!
//! Sharing saves memory, because each verifier holds all revocation lists (CRLs) of the trust.

use std::sync::{Arc, OnceLock};

use rustls::server::VerifierBuilderError;

use super::path::{PathCheck, UnknownRevocation};

/// The verifiers of a trust that have been created so far.
#[derive(Clone, Debug, Default)]
pub struct Verifiers {
    checks: [OnceLock<Arc<PathCheck>>; 2],
}

impl Verifiers {
    /// Returns the verifier with this setting for certificates that no current CRL covers.
    pub(super) fn get(
        &self,
        unknown_revocation: UnknownRevocation,
        build: impl FnOnce() -> Result<PathCheck, VerifierBuilderError>,
    ) -> Result<Arc<PathCheck>, VerifierBuilderError> {
        let slot = &self.checks[unknown_revocation as usize];
        match slot.get() {
            Some(built) => Ok(Arc::clone(built)),
            None => {
                let built = Arc::new(build()?);
                Ok(Arc::clone(slot.get_or_init(|| built)))
            }
        }
    }
}
