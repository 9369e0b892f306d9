//! Converts the `tls` table of a rule to settings of the TLS library.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert,
    ServerSessionMemoryCache,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CipherSuite, ClientConfig, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
};
use tacit_core::policy::{
    ChainCheck, ClientCert, ClientCertPolicy, ClientTls, Group, IdentityMap, ServerTls, Suite,
    TlsCommon, TlsVersion, Verify,
};

use super::credentials::{LoadedIdentity, LoadedTrust, WrongUsage};
use super::failure::HandshakeRole;
use super::outcome::{self, report_hello};
use super::verify::{ChainCache, ClientCheck, IdentityMapper, ServerCheck};

/// The largest number of servers for which a client rule stores tickets.
const TICKETS_SERVERS_MAX: usize = 256;

/// The TLS settings of a rule in the server role.
#[derive(Debug)]
pub struct ServerSettings {
    pub(super) config: Arc<ServerConfig>,
    pub(super) client_check: Option<Arc<ClientCheck>>,
    /// The source of the identities of clients.
    pub(super) identity_mapper: IdentityMapper,
}

/// The TLS settings of a rule in the client role.
#[derive(Debug)]
pub struct ClientSettings {
    pub(super) config: Arc<ClientConfig>,
    pub(super) check: Arc<ServerCheck>,
    /// The server name in the rule. Rules for runs usually have none: they use the name from each
    /// flow.
    pub(super) server_name: Option<ServerName<'static>>,
    pub(super) sends_server_name: bool,
    /// Whether the client uses session tickets.
    pub(super) resumes: bool,
}

/// The largest number of sessions that a server stores for one connection and the connections that
/// belong to it.
const FAMILY_SESSIONS_MAX: usize = 8;
/// The largest number of servers whose sessions a client stores for one connection and the
/// connections that belong to it.
const FAMILY_SERVERS_MAX: usize = 1;

/// Settings that the policy allows and that cannot work: the library refuses them, or a certificate
/// does not allow its role.
#[derive(Debug)]
pub struct SettingsError(String);

impl std::fmt::Display for SettingsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingsError {}

pub(super) fn refused(error: impl std::fmt::Display) -> SettingsError {
    SettingsError(format!("tacit cannot use these TLS settings: {error}"))
}

impl From<WrongUsage> for SettingsError {
    fn from(why: WrongUsage) -> Self {
        Self(why.to_string())
    }
}

/// Rejects an identity whose certificate does not allow the role.
fn check_usage(identity: &LoadedIdentity, role: HandshakeRole) -> Result<(), SettingsError> {
    match identity.wrong_usage(role) {
        Some(wrong) => Err(wrong.into()),
        None => Ok(()),
    }
}

impl ServerSettings {
    /// Builds the settings of a server from its rule and the credentials that the rule names.
    /// `chains` is the cache of verified chains.
    ///
    /// # Errors
    /// The library refuses the settings, or the certificate of an identity is not for servers.
    pub fn new(
        rule: &ServerTls,
        identities: &[Arc<LoadedIdentity>],
        trust: Option<&LoadedTrust>,
        map: Option<&IdentityMap>,
        chains: Option<&Arc<ChainCache>>,
    ) -> Result<Self, SettingsError> {
        for identity in identities {
            check_usage(identity, HandshakeRole::Server)?;
        }
        let provider = provider(&rule.common);
        let identity_mapper = IdentityMapper::new(&rule.client_cert, map).ok_or_else(|| {
            refused(
                "`client-cert` refers to an identity map that the policy does not have: add a \
                 [[map.NAME]] table with this name",
            )
        })?;
        let client_check = client_check(&rule.client_cert, trust)?
            .map(|check| Arc::new(check.remembering(chains)));
        let builder = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions(&rule.common))
            .map_err(refused)?;
        let builder = match &client_check {
            None => builder.with_no_client_auth(),
            Some(check) => builder.with_client_cert_verifier(Arc::clone(check) as _),
        };
        let mut config =
            builder.with_cert_resolver(Arc::new(ByServerName::new(identities).map_err(refused)?));
        config.ignore_client_order = true;
        config.alpn_protocols = alpn(&rule.common);
        config.enable_secret_extraction = true;
        config.key_log = outcome::secrets_reporter();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        if rule.common.resumption {
            // Tickets are encrypted and not stored. So the workers do not need to share a table.
            config.ticketer = aws_lc_rs::Ticketer::new().map_err(refused)?;
        } else {
            config.send_tls13_tickets = 0;
        }
        Ok(Self { config: Arc::new(config), client_check, identity_mapper })
    }

    /// Returns the same settings for one connection and the connections that belong to it. Only a
    /// client that got its ticket from these settings can resume a session with them.
    ///
    /// # Errors
    /// The library has no source of randomness.
    pub fn for_family(&self) -> Result<Self, SettingsError> {
        let mut config = ServerConfig::clone(&self.config);
        if config.ticketer.enabled() {
            config.ticketer = aws_lc_rs::Ticketer::new().map_err(refused)?;
            // Some TLS 1.2 clients do not support tickets, and resume sessions by their ID.
            config.session_storage = ServerSessionMemoryCache::new(FAMILY_SESSIONS_MAX);
        }
        let client_check = self.client_check.clone();
        let identity_mapper = self.identity_mapper.clone();
        Ok(Self { config: Arc::new(config), client_check, identity_mapper })
    }

    /// Returns the same settings without tickets after the handshake, for clients that do not read.
    #[must_use]
    pub fn without_tickets(&self) -> Self {
        let mut config = ServerConfig::clone(&self.config);
        config.send_tls13_tickets = 0;
        let client_check = self.client_check.clone();
        let identity_mapper = self.identity_mapper.clone();
        Self { config: Arc::new(config), client_check, identity_mapper }
    }
}

impl ClientSettings {
    /// Builds the settings of a client from its rule and the credentials that the rule names.
    /// `chains` is the cache of verified chains.
    ///
    /// # Errors
    /// The library refuses the settings, or the certificate of the identity is not for clients.
    pub fn new(
        rule: &ClientTls,
        identity: Option<&LoadedIdentity>,
        trust: Option<&LoadedTrust>,
        chains: Option<&Arc<ChainCache>>,
    ) -> Result<Self, SettingsError> {
        if let Some(identity) = identity {
            check_usage(identity, HandshakeRole::Client)?;
        }
        let NamedCheck { check, server_name } = server_check(&rule.verify, trust)?;
        let check = Arc::new(check.remembering(chains));
        let server_name =
            server_name.cloned().map(ServerName::try_from).transpose().map_err(refused)?;
        let builder = ClientConfig::builder_with_provider(Arc::new(provider(&rule.common)))
            .with_protocol_versions(versions(&rule.common))
            .map_err(refused)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&check) as _);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(
                Arc::clone(&identity.certified_key),
            ))),
        };
        let is_dns = |name: &ServerName<'_>| matches!(name, ServerName::DnsName(_));
        let sends_server_name = rule.sni && server_name.as_ref().is_none_or(is_dns);
        config.enable_sni = sends_server_name;
        config.alpn_protocols = alpn(&rule.common);
        config.enable_secret_extraction = true;
        config.key_log = outcome::secrets_reporter();
        config.resumption = if rule.common.resumption {
            Resumption::in_memory_sessions(TICKETS_SERVERS_MAX)
        } else {
            Resumption::disabled()
        };
        let resumes = rule.common.resumption;
        Ok(Self { config: Arc::new(config), check, server_name, sends_server_name, resumes })
    }

    /// Returns the same settings for one connection and the connections that belong to it. Those
    /// resume its session, because some servers recognise their client only by that. Each ticket is
    /// used once, as the library requires.
    #[must_use]
    pub fn for_family(&self) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        if self.resumes {
            config.resumption = Resumption::in_memory_sessions(FAMILY_SERVERS_MAX);
        }
        let Self { check, server_name, .. } = self;
        Self {
            config: Arc::new(config),
            check: Arc::clone(check),
            server_name: server_name.clone(),
            sends_server_name: self.sends_server_name,
            resumes: self.resumes,
        }
    }
}

/// Builds the check of clients' certificates; `None`: the rule requests no certificates.
pub(super) fn client_check(
    level: &ClientCert,
    trust: Option<&LoadedTrust>,
) -> Result<Option<ClientCheck>, SettingsError> {
    let Some(ClientCertPolicy { absent, chain, .. }) = level.requested() else { return Ok(None) };
    let check = match (chain, trust) {
        (ChainCheck::Waived, _) => ClientCheck::waived(*absent),
        (ChainCheck::Made { invalid, .. }, Some(trust)) => {
            ClientCheck::made(trust, *absent, *invalid).map_err(refused)?
        }
        (ChainCheck::Made { .. }, None) => {
            return Err(refused(
                "`client-cert` requests certificates, but the rule has no `trust`: set `trust`",
            ));
        }
    };
    Ok(Some(check))
}

/// The check of servers' certificates.
pub(super) struct NamedCheck<'r> {
    pub(super) check: ServerCheck,
    /// The server name in the rule.
    pub(super) server_name: Option<&'r String>,
}

pub(super) fn server_check<'r>(
    verify: &'r Verify,
    trust: Option<&LoadedTrust>,
) -> Result<NamedCheck<'r>, SettingsError> {
    let (check, server_name) = match (verify, trust) {
        (Verify::Full { server_name, .. }, Some(trust)) => (ServerCheck::full(trust), server_name),
        (Verify::Chain { server_name, .. }, Some(trust)) => {
            (ServerCheck::chain(trust), server_name)
        }
        (Verify::Full { .. } | Verify::Chain { .. }, None) => {
            return Err(refused(
                "the rule verifies server certificates, but has no CA certificates: set `trust`",
            ));
        }
        (Verify::None { server_name }, _) => (Ok(ServerCheck::none()), server_name),
    };
    Ok(NamedCheck { check: check.map_err(refused)?, server_name: server_name.as_ref() })
}

/// The cipher suites and groups of the rule, in the order of the rule.
fn provider(common: &TlsCommon) -> CryptoProvider {
    CryptoProvider {
        cipher_suites: common.suites.iter().copied().map(suite).collect(),
        kx_groups: common
            .groups
            .iter()
            .map(|group| match group {
                Group::X25519MLKEM768 => aws_lc_rs::kx_group::X25519MLKEM768,
                Group::X25519 => aws_lc_rs::kx_group::X25519,
                Group::Secp256r1 => aws_lc_rs::kx_group::SECP256R1,
                Group::Secp384r1 => aws_lc_rs::kx_group::SECP384R1,
            })
            .collect(),
        ..aws_lc_rs::default_provider()
    }
}

/// The versions that the rule allows and for which it has a cipher suite.
fn versions(common: &TlsCommon) -> &'static [&'static SupportedProtocolVersion] {
    static BOTH: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];
    let has = |version| common.suites.iter().any(|suite| suite.version() == version);
    if common.min_version == TlsVersion::V1_3 || !has(TlsVersion::V1_2) {
        return &BOTH[..1];
    }
    if !has(TlsVersion::V1_3) {
        return &BOTH[1..];
    }
    BOTH
}

fn alpn(common: &TlsCommon) -> Vec<Vec<u8>> {
    common.alpn.iter().map(|protocol| protocol.clone().into_bytes()).collect()
}

fn suite(suite: Suite) -> SupportedCipherSuite {
    use aws_lc_rs::cipher_suite as known;
    match suite {
        Suite::TLS_AES_128_GCM_SHA256 => known::TLS13_AES_128_GCM_SHA256,
        Suite::TLS_AES_256_GCM_SHA384 => known::TLS13_AES_256_GCM_SHA384,
        Suite::TLS_CHACHA20_POLY1305_SHA256 => known::TLS13_CHACHA20_POLY1305_SHA256,
        Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => {
            known::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        }
        Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => {
            known::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
        }
        Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => {
            known::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        }
        Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => {
            known::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        }
        Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => {
            known::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
        }
        Suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => {
            known::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
        }
    }
}

/// Selects an identity by the server name that the client requests and by the signature schemes
/// that it supports. If no name matches, the first identity is used.
#[derive(Debug)]
struct ByServerName {
    keys: Vec<Arc<CertifiedKey>>,
}

impl ByServerName {
    fn new(identities: &[Arc<LoadedIdentity>]) -> Result<Self, &'static str> {
        if identities.is_empty() {
            return Err("a rule with role = \"server\" needs a certificate: set `identity`");
        }
        Ok(Self { keys: identities.iter().map(|one| Arc::clone(&one.certified_key)).collect() })
    }
}

impl ResolvesServerCert for ByServerName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // The library passes the ClientHello only to this resolver.
        let has_ecdhe = |suite: &CipherSuite| {
            suite.as_str().is_some_and(|name| name.contains("ECDHE") || name.starts_with("TLS13_"))
        };
        report_hello(hello.server_name(), !hello.cipher_suites().iter().any(has_ecdhe));
        let [only] = self.keys.as_slice() else {
            let schemes = hello.signature_schemes();
            let usable = || self.keys.iter().filter(|key| key.key.choose_scheme(schemes).is_some());
            let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
            let named = name.and_then(|name| {
                usable().find(|key| key.cert.first().is_some_and(|leaf| covers(leaf, &name)))
            });
            return named.or_else(|| usable().next()).map(Arc::clone);
        };
        Some(Arc::clone(only))
    }
}

fn covers(leaf: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    ParsedCertificate::try_from(leaf)
        .is_ok_and(|leaf| rustls::client::verify_server_name(&leaf, name).is_ok())
}
