//! What a rule would make of a peer's certificate, asked without a handshake.
//!
//! The checks are those of a handshake, but for the proof that the peer holds the key: only whether
//! its key can be used for that.

use std::net::IpAddr;

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tacit_core::policy::{ClientCert, IdentityMap, Verify};

use super::check::PeerCheck;
use super::config::{NamedCheck, SettingsRefused, client_check, refused, server_check};
use super::diagnose::Peer;
use super::material::TrustMaterial;
use super::verify::{Named, Naming, provable};

/// What came of it.
#[derive(Debug)]
pub struct DryRun {
    /// What came of the check.
    pub check: PeerCheck,
    /// The name that the peer would have, or why it would be refused.
    pub named: Result<Named, String>,
}

/// What a rule demands of clients.
#[derive(Clone, Copy, Debug)]
pub struct ClientDemand<'a> {
    /// Its level of client certificates.
    pub level: &'a ClientCert,
    /// The trust that the level names.
    pub trust: Option<&'a TrustMaterial>,
    /// The map that the level names.
    pub map: Option<&'a IdentityMap>,
}

/// Who a client would be.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// The chain that it would send, the leaf first.
    pub chain: &'a [CertificateDer<'a>],
    /// Where it would come from.
    pub address: Option<IpAddr>,
}

/// A client at a rule that accepts TLS.
///
/// # Errors
/// The settings make no sense without what they name.
pub fn client(
    demand: ClientDemand<'_>,
    client: Client<'_>,
    now: UnixTime,
) -> Result<DryRun, SettingsRefused> {
    let ClientDemand { level, trust, map } = demand;
    let Client { chain, address } = client;
    let naming = Naming::of(level, map).ok_or_else(|| refused("a map that is not there"))?;
    let Some(settings) = client_check(level, trust)? else {
        return Ok(DryRun { check: PeerCheck::NotAsked, named: Ok(Named::Nobody) });
    };
    let check = settings.recheck(chain, now).check;
    if let Some(Err(reason)) = chain.first().map(|leaf| provable(Peer::Client, leaf)) {
        let check = PeerCheck::Invalid { reason: reason.clone() };
        return Ok(DryRun { check, named: Err(reason) });
    }
    let named = match chain.first() {
        _ if !settings.allows(&check) => Err(reason(&check)),
        Some(leaf) if check.is_believed() => {
            naming.name(leaf, address).map_err(|failure| failure.message)
        }
        _ => Ok(Named::Nobody),
    };
    Ok(DryRun { check, named })
}

/// A server's chain; `asked` are the names that a program would ask for where the rule names none.
///
/// # Errors
/// The settings make no sense without what they name, or a name is none.
pub fn server(
    verify: &Verify,
    trust: Option<&TrustMaterial>,
    chain: &[CertificateDer<'_>],
    asked: &[String],
    now: UnixTime,
) -> Result<DryRun, SettingsRefused> {
    let NamedCheck { check: settings, server_name } = server_check(verify, trust)?;
    let wanted = server_name.map_or_else(|| asked.to_vec(), |name| vec![name.clone()]);
    let parsed: Result<Vec<_>, _> = wanted.into_iter().map(ServerName::try_from).collect();
    let mut names = parsed.map_err(refused)?;
    if names.is_empty() && matches!(verify, Verify::Full { .. }) {
        return Err(refused("the rule takes the name from the program: say one with --name"));
    }
    if names.is_empty() {
        let any = ServerName::from(IpAddr::from([0; 16]));
        names.push(any);
    }
    if let Some(Err(reason)) = chain.first().map(|leaf| provable(Peer::Server, leaf)) {
        let check = PeerCheck::Invalid { reason: reason.clone() };
        return Ok(DryRun { check, named: Err(reason) });
    }
    let check_name = |name| settings.recheck(chain, name, now).check;
    let checks: Vec<_> = names.iter().map(check_name).collect();
    let bad = checks.iter().find(|check| !settings.allows(check));
    let check = bad.or_else(|| checks.first()).cloned().unwrap_or(PeerCheck::Absent);
    let named = match settings.allows(&check) {
        true => Ok(Named::Certificate),
        false => Err(reason(&check)),
    };
    Ok(DryRun { check, named })
}

fn reason(check: &PeerCheck) -> String {
    match check {
        PeerCheck::Invalid { reason } => reason.clone(),
        other => format!("the certificate is {}", other.word()),
    }
}
