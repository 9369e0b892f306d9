//! Creates matching TLS settings for a client and a server, without files or a network.
//! Measurements and fuzzing use these settings.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use tacit_core::policy::{
    Absent, ChainCheck, ClientCert, ClientCertPolicy, ClientTls, ConnectAfter, Group, Invalid,
    PeerName, Preset, RecheckAction, Rekey, RelayOn, ServerTls, Start, Suite, TlsCommon,
    TlsVersion, Verify,
};

use super::config::{ClientSettings, ServerSettings};
use super::credentials::{LoadedIdentity, LoadedTrust};
use super::facts::CertificateFacts;

/// The settings of a client and a server that trust each other.
pub(super) struct SettingsPair {
    pub(super) client: Arc<ClientSettings>,
    pub(super) server: Arc<ServerSettings>,
}

/// The certificate that a server requests from its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerAsks {
    /// None.
    Nothing,
    /// A certificate, which is optional.
    #[cfg_attr(
        not(feature = "fuzz"),
        expect(dead_code, reason = "only the fuzz targets request a client certificate")
    )]
    Certificate,
}

/// Returns the settings of a client and a server with a self-signed certificate (P-256), without
/// resumption, with one suite and these groups. The server may request a certificate that the
/// client does not have.
pub(super) fn settings(
    suite: Suite,
    groups: &[Group],
    server_asks: ServerAsks,
) -> Result<SettingsPair, Box<dyn Error>> {
    let name = "pair.example".to_owned();
    let (certificate, key) = certificate(&name)?;
    let private = PrivateKeyDer::try_from(key.serialize_der())?;
    let chain = vec![certificate.clone()];
    let identity = LoadedIdentity {
        name: name.clone(),
        facts: CertificateFacts::from_der(&certificate).map_err(|_| "no certificate")?,
        certified_key: Arc::new(CertifiedKey::new(chain, any_supported_type(&private)?)),
        sources: Vec::new(),
        warnings: Vec::new(),
    };
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let trust = LoadedTrust::of_roots(&name, Arc::new(roots));
    let common = TlsCommon {
        start: Start::Immediate,
        min_version: TlsVersion::V1_2,
        suites: vec![suite],
        groups: groups.to_vec(),
        alpn: vec!["pair".into()],
        resumption: false,
        handshake_timeout: Duration::from_secs(10),
        rekey: Rekey::default(),
        relay: RelayOn::Worker,
        recheck: RecheckAction::Log,
        max_age: None,
    };
    let verify = Verify::None { server_name: Some(name.clone()) };
    let client = ClientTls {
        identity: None,
        verify,
        sni: true,
        connect: ConnectAfter::Answered,
        own_tls: None,
        common: common.clone(),
    };
    let client_cert = match server_asks {
        ServerAsks::Certificate => ClientCert::Requested(ClientCertPolicy {
            preset: Some(Preset::Preferred),
            absent: Absent::Allow,
            chain: ChainCheck::Made {
                trust: name.clone(),
                invalid: Invalid::Log,
                name: PeerName::Certificate,
            },
        }),
        ServerAsks::Nothing => ClientCert::None,
    };
    let server = ServerTls { identities: vec![name], client_cert, clear_clients: None, common };
    let identities = [Arc::new(identity)];
    Ok(SettingsPair {
        client: Arc::new(ClientSettings::new(&client, None, None, None)?),
        server: Arc::new(ServerSettings::new(&server, &identities, Some(&trust), None, None)?),
    })
}

/// Creates a self-signed certificate (P-256) and its key.
pub(super) fn certificate(name: &str) -> Result<(CertificateDer<'static>, KeyPair), rcgen::Error> {
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec![name.to_owned()])?.self_signed(&key)?;
    Ok((certificate.der().clone(), key))
}
