//! Checks, without a handshake, whether a rule accepts the certificate of a peer.
//!
//! This module makes every check of a handshake except one. Only a handshake shows whether the peer
//! has the private key of the certificate.

use std::net::IpAddr;

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tacit_core::policy::{ClientCert, IdentityMap, Verify};

use super::check::PeerCheck;
use super::config::{NamedCheck, SettingsError, client_check, refused, server_check};
use super::credentials::LoadedTrust;
use super::diagnose::PeerRole;
use super::verify::{IdentityMapper, MappedIdentity, provable};

/// The result of a dry run.
#[derive(Debug)]
pub struct DryRun {
    /// The result of the check.
    pub check: PeerCheck,
    /// The identity of the peer, or why it is rejected.
    pub mapped: Result<MappedIdentity, String>,
}

/// The requirements of a rule for clients.
#[derive(Clone, Copy, Debug)]
pub struct ClientRequirements<'a> {
    /// The level of client certificates that the rule requires.
    pub level: &'a ClientCert,
    /// The trust that the rule names.
    pub trust: Option<&'a LoadedTrust>,
    /// The map that the rule names.
    pub map: Option<&'a IdentityMap>,
}

/// The client to check.
#[derive(Clone, Copy, Debug)]
pub struct ClientPeer<'a> {
    /// The chain that the client would send, the leaf first.
    pub chain: &'a [CertificateDer<'a>],
    /// Its address.
    pub address: Option<IpAddr>,
}

/// Checks a client against a rule that accepts TLS.
///
/// # Errors
/// The settings refer to a trust or map that does not exist.
pub fn client(
    requirements: ClientRequirements<'_>,
    client: ClientPeer<'_>,
    now: UnixTime,
) -> Result<DryRun, SettingsError> {
    let ClientRequirements { level, trust, map } = requirements;
    let ClientPeer { chain, address } = client;
    let identity_mapper = IdentityMapper::new(level, map)
        .ok_or_else(|| refused("the rule uses an identity map that the policy does not have"))?;
    let Some(settings) = client_check(level, trust)? else {
        return Ok(DryRun { check: PeerCheck::NotAsked, mapped: Ok(MappedIdentity::None) });
    };
    let check = settings.recheck(chain, now).check;
    if let Some(Err(reason)) = chain.first().map(|leaf| provable(PeerRole::Client, leaf)) {
        let check = PeerCheck::Invalid { reason: reason.clone() };
        return Ok(DryRun { check, mapped: Err(reason) });
    }
    let mapped = match chain.first() {
        _ if !settings.allows(&check) => Err(reason(&check)),
        Some(leaf) if check.is_trusted() => {
            identity_mapper.identify(leaf, address).map_err(|failure| failure.message)
        }
        _ => Ok(MappedIdentity::None),
    };
    Ok(DryRun { check, mapped })
}

/// Checks the chain of a server. `requested` are the names that a program uses if the rule sets no
/// name.
///
/// # Errors
/// The settings refer to a trust that does not exist, or a name is invalid.
pub fn server(
    verify: &Verify,
    trust: Option<&LoadedTrust>,
    chain: &[CertificateDer<'_>],
    requested: &[String],
    now: UnixTime,
) -> Result<DryRun, SettingsError> {
    let NamedCheck { check: settings, server_name } = server_check(verify, trust)?;
    let wanted = server_name.map_or_else(|| requested.to_vec(), |name| vec![name.clone()]);
    let parsed: Result<Vec<_>, _> = wanted.into_iter().map(ServerName::try_from).collect();
    let mut names = parsed.map_err(refused)?;
    if names.is_empty() && matches!(verify, Verify::Full { .. }) {
        return Err(refused(
            "the rule verifies the server name that the program uses: give this name with --name",
        ));
    }
    if names.is_empty() {
        let any = ServerName::from(IpAddr::from([0; 16]));
        names.push(any);
    }
    if let Some(Err(reason)) = chain.first().map(|leaf| provable(PeerRole::Server, leaf)) {
        let check = PeerCheck::Invalid { reason: reason.clone() };
        return Ok(DryRun { check, mapped: Err(reason) });
    }
    let check_name = |name| settings.recheck(chain, name, now).check;
    let checks: Vec<_> = names.iter().map(check_name).collect();
    let bad = checks.iter().find(|check| !settings.allows(check));
    let check = bad.or_else(|| checks.first()).cloned().unwrap_or(PeerCheck::Absent);
    let mapped = match settings.allows(&check) {
        true => Ok(MappedIdentity::Certificate),
        false => Err(reason(&check)),
    };
    Ok(DryRun { check, mapped })
}

fn reason(check: &PeerCheck) -> String {
    match check {
        PeerCheck::Invalid { reason } => reason.clone(),
        other => format!("the certificate is {}", other.word()),
    }
}
