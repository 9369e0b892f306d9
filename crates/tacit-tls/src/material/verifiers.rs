//! The library's verifiers of one trust, built when first wanted and shared by all its rules: each
//! holds all lists of revoked certificates.

use std::sync::{Arc, OnceLock};

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls_pki_types::CertificateRevocationListDer;

use super::lists::RevocationList;

/// What is built of a trust so far.
#[derive(Clone, Debug, Default)]
pub struct Verifiers {
    clients: [OnceLock<Arc<dyn ClientCertVerifier>>; 2],
    servers: [OnceLock<Arc<WebPkiServerVerifier>>; 2],
}

/// What a verifier makes of certificates that no current list tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unlisted {
    Refused,
    Believed,
}

impl Verifiers {
    /// The one for clients.
    pub(super) fn client(
        &self,
        roots: &Arc<RootCertStore>,
        lists: &[RevocationList],
        unlisted: Unlisted,
    ) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
        shared(&self.clients[unlisted as usize], || {
            let builder =
                WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider());
            let builder = builder.with_crls(ders(lists));
            match unlisted {
                Unlisted::Refused => builder.enforce_revocation_expiration().build(),
                Unlisted::Believed => builder.allow_unknown_revocation_status().build(),
            }
        })
    }

    /// The one for servers.
    pub(super) fn server(
        &self,
        roots: &Arc<RootCertStore>,
        lists: &[RevocationList],
        unlisted: Unlisted,
    ) -> Result<Arc<WebPkiServerVerifier>, VerifierBuilderError> {
        shared(&self.servers[unlisted as usize], || {
            let builder =
                WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider());
            let builder = builder.with_crls(ders(lists));
            match unlisted {
                Unlisted::Refused => builder.enforce_revocation_expiration().build(),
                Unlisted::Believed => builder.allow_unknown_revocation_status().build(),
            }
        })
    }
}

fn shared<V: ?Sized>(
    slot: &OnceLock<Arc<V>>,
    build: impl FnOnce() -> Result<Arc<V>, VerifierBuilderError>,
) -> Result<Arc<V>, VerifierBuilderError> {
    match slot.get() {
        Some(built) => Ok(Arc::clone(built)),
        None => Ok(Arc::clone(slot.get_or_init({
            let built = build()?;
            || built
        }))),
    }
}

fn ders(lists: &[RevocationList]) -> Vec<CertificateRevocationListDer<'static>> {
    lists.iter().map(|list| list.der.clone()).collect()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
