//! Tests every kind of certificate at every verification level. The tests perform complete
//! handshakes in memory.

mod path;
mod pinned;
mod revocation;

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::aws_lc_rs;
use rustls::internal::msgs::codec::{Codec as _, Reader};
use rustls::server::VerifierBuilderError;
use rustls::server::danger::ClientCertVerifier as _;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, ServerConnection,
    SupportedProtocolVersion, version,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tacit_core::policy::{Absent, Invalid};

use super::*;
use crate::check::PeerCheck;
use crate::credentials::LoadedTrust;
use crate::facts::CertificateFacts;
use crate::failure::{FailedHandshake, HandshakeFailure, HandshakeRole, describe_error};
use crate::outcome::{
    Observed, StepOutcome, observe, report_check, report_hello, secrets_reporter,
};
use crate::test_certificates::{Ca, Leaf, LeafKind, NAME, openssl_v1, openssl_v3, self_signed};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS12, &version::TLS13];

fn trust(ca: &Ca) -> LoadedTrust {
    LoadedTrust::of_roots("corp", ca.roots())
}

fn required(trust: &LoadedTrust) -> Result<ClientCheck, VerifierBuilderError> {
    ClientCheck::made(trust, Absent::Deny, Invalid::Deny)
}

fn preferred(trust: &LoadedTrust) -> Result<ClientCheck, VerifierBuilderError> {
    ClientCheck::made(trust, Absent::Allow, Invalid::Log)
}

fn keyed(chain: Vec<CertificateDer<'static>>, key: &PrivateKeyDer<'_>) -> Arc<CertifiedKey> {
    let key = aws_lc_rs::sign::any_supported_type(key).unwrap();
    Arc::new(CertifiedKey::new(chain, key))
}

fn of(leaf: &Leaf) -> Arc<CertifiedKey> {
    keyed(leaf.chain.clone(), &leaf.key)
}

fn v1() -> Arc<CertifiedKey> {
    let old = openssl_v1(2048);
    keyed(old.chain, &PrivateKeyDer::from_pem_slice(old.key_pem.as_bytes()).unwrap())
}

/// The tested certificates, each with the kind of the failure and a part of the reason.
fn certificates(ca: &Ca) -> Vec<(&'static str, Arc<CertifiedKey>, &'static str, &'static str)> {
    let leaf = |kind| of(&ca.leaf(kind));
    let stranger = Ca::new("stranger CA").leaf(LeafKind::Valid);
    let impostor = Ca::new("corp CA").leaf(LeafKind::Valid);
    vec![
        ("valid", leaf(LeafKind::Valid), "", ""),
        (
            "expired",
            leaf(LeafKind::Expired),
            "certificate-expired",
            "expired at 2021-02-03 00:00 UTC",
        ),
        (
            "not yet valid",
            leaf(LeafKind::NotYetValid),
            "certificate-not-yet-valid",
            "not valid before 2080-04-05 00:00 UTC",
        ),
        (
            "usage",
            leaf(LeafKind::WrongUsage),
            "certificate-wrong-usage",
            "allows codeSigning, but not",
        ),
        ("unknown CA", of(&stranger), "certificate-unknown-ca", "issuer CN=stranger CA, but"),
        ("namesake CA", of(&impostor), "certificate-invalid", "was not signed by the CA"),
        (
            "self-signed",
            of(&self_signed()),
            "certificate-unknown-ca",
            "is self-signed, and [trust.corp]",
        ),
        ("v1", v1(), "certificate-invalid", "is X.509 v1"),
    ]
}

struct Handshaken {
    /// The result of the check on the tested side.
    check: Option<PeerCheck>,
    failure: Option<HandshakeFailure>,
    resumed: bool,
}

/// Does one handshake; `role` is the tested side.
fn handshake(
    role: HandshakeRole,
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
) -> Handshaken {
    let name = ServerName::try_from(NAME).unwrap();
    let mut client = ClientConnection::new(client.clone(), name).unwrap();
    let mut server = ServerConnection::new(server.clone()).unwrap();
    let mut check = None;
    let mut error = None;
    let mut wire = Vec::new();
    // Both sides must read what the other has sent last: the verdict and the tickets of a TLS 1.3
    // server.
    for _ in 0..6 {
        wire.clear();
        let _ = client.write_tls(&mut wire);
        let mut left = wire.as_slice();
        while !left.is_empty() && server.read_tls(&mut left).is_ok() {
            let Observed { result, outcome } = observe(|| server.process_new_packets());
            if role == HandshakeRole::Server {
                check = outcome.checked.map(|checked| checked.check).or(check);
                error = error.or_else(|| result.err());
            }
        }
        wire.clear();
        let _ = server.write_tls(&mut wire);
        let mut left = wire.as_slice();
        while !left.is_empty() && client.read_tls(&mut left).is_ok() {
            let Observed { result, outcome } = observe(|| client.process_new_packets());
            if role == HandshakeRole::Client {
                check = outcome.checked.map(|checked| checked.check).or(check);
                error = error.or_else(|| result.err());
            }
        }
    }
    let failed =
        FailedHandshake { role, first_bytes: &[], lacks_ecdhe: false, check: check.as_ref() };
    let failure = error.map(|error| describe_error(&failed, &error));
    let handshaking = client.is_handshaking() || server.is_handshaking();
    assert_eq!(failure.is_none(), !handshaking, "{failure:?}");
    let resumed = server.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
    Handshaken { check, failure, resumed }
}

fn server_config(
    version: &'static SupportedProtocolVersion,
    check: Option<ClientCheck>,
    key: Arc<CertifiedKey>,
) -> Arc<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap();
    let builder = match check {
        Some(check) => builder.with_client_cert_verifier(Arc::new(check)),
        None => builder.with_no_client_auth(),
    };
    Arc::new(builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(key))))
}

fn client_config(
    version: &'static SupportedProtocolVersion,
    check: ServerCheck,
    key: Option<Arc<CertifiedKey>>,
) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(check));
    Arc::new(match key {
        Some(key) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key))),
        None => builder.with_no_client_auth(),
    })
}

fn reason(check: Option<&PeerCheck>) -> &str {
    match check {
        Some(PeerCheck::Invalid { reason }) => reason,
        _ => "",
    }
}

#[test]
fn required_and_preferred_meet_every_client_certificate() {
    let ca = Ca::new("corp CA");
    let serving = of(&ca.leaf(LeafKind::Valid));
    let levels: [fn(&LoadedTrust) -> Result<ClientCheck, _>; 2] = [required, preferred];
    for (name, key, kind, expected) in certificates(&ca) {
        for (version, level) in VERSIONS.into_iter().flat_map(|v| levels.map(|level| (v, level))) {
            let check = level(&trust(&ca)).unwrap();
            let required = check.client_auth_mandatory();
            let case = format!("{name}, required {required}, {version:?}");
            let server = server_config(version, Some(check), serving.clone());
            let client = client_config(version, ServerCheck::none(), Some(key.clone()));
            let handshaken = handshake(HandshakeRole::Server, &client, &server);

            let said = reason(handshaken.check.as_ref());
            assert!(said.contains(expected), "{case}: {said}");
            assert!(!said.contains('\n'), "{case}: {said}");
            // A v1 certificate allows no verification of the proof of possession, so the check
            // cannot be waived.
            match &handshaken.failure {
                None => assert!(name == "valid" || (!required && name != "v1"), "{case}"),
                Some(failure) => {
                    assert!(name == "v1" || (required && name != "valid"), "{case}: {failure}");
                    assert_eq!((failure.kind.0, failure.message.as_str()), (kind, said), "{case}");
                }
            }
            assert_eq!(handshaken.check == Some(PeerCheck::Valid), name == "valid", "{case}");
        }
    }
}

#[test]
fn required_refuses_a_client_without_certificate_and_preferred_allows_it() {
    let ca = Ca::new("corp CA");
    let serving = of(&ca.leaf(LeafKind::Valid));
    for version in VERSIONS {
        let client = client_config(version, ServerCheck::none(), None);
        let check = required(&trust(&ca)).unwrap();
        assert!(!check.allows(&check.recheck(&[], UnixTime::now()).check));
        let server = server_config(version, Some(check), serving.clone());
        let handshaken = handshake(HandshakeRole::Server, &client, &server);
        assert_eq!(handshaken.failure.unwrap().kind, "client-certificate-absent");

        let check = preferred(&trust(&ca)).unwrap();
        assert_eq!(check.recheck(&[], UnixTime::now()).check, PeerCheck::Absent);
        assert!(check.allows(&PeerCheck::Absent));
        let server = server_config(version, Some(check), serving.clone());
        let handshaken = handshake(HandshakeRole::Server, &client, &server);
        assert!(handshaken.failure.is_none() && handshaken.check.is_none());
    }
}

#[test]
fn full_and_none_meet_every_server_certificate() {
    let ca = Ca::new("corp CA");
    let mut table = certificates(&ca);
    let names = [
        ("name", LeafKind::WrongName, "is for other.example, not for db.example"),
        ("CN only", LeafKind::CnOnly, "has no subjectAltName"),
    ];
    for (name, kind, expected) in names {
        table.push((name, of(&ca.leaf(kind)), "certificate-wrong-name", expected));
    }
    for (name, key, kind, expected) in table {
        for version in VERSIONS {
            let case = format!("{name}, {version:?}");
            let server = server_config(version, None, key.clone());
            let full = ServerCheck::full(&trust(&ca)).unwrap();
            let handshaken =
                handshake(HandshakeRole::Client, &client_config(version, full, None), &server);
            let said = reason(handshaken.check.as_ref());
            assert!(said.contains(expected), "{case}: {said}");
            match &handshaken.failure {
                None => assert_eq!(handshaken.check, Some(PeerCheck::Valid), "{case}"),
                Some(failure) => {
                    assert_eq!((failure.kind.0, failure.message.as_str()), (kind, said), "{case}");
                }
            }
            assert_eq!(handshaken.failure.is_none(), name == "valid", "{case}");

            let none = client_config(version, ServerCheck::none(), None);
            let handshaken = handshake(HandshakeRole::Client, &none, &server);
            if name == "v1" {
                assert!(reason(handshaken.check.as_ref()).contains("X.509 v1"), "{case}");
                assert!(handshaken.failure.is_some(), "{case}");
            } else {
                assert_eq!(handshaken.check, Some(PeerCheck::NotChecked), "{case}");
                assert!(handshaken.failure.is_none(), "{case}");
            }
        }
    }
}

#[test]
fn a_resumed_session_skips_the_check_and_is_checked_again() {
    let ca = Ca::new("corp CA");
    let leaf = ca.leaf(LeafKind::Valid);
    let now = UnixTime::now();
    let later = UnixTime::since_unix_epoch(std::time::Duration::from_secs(4_000_000_000));
    let name = ServerName::try_from(NAME).unwrap();
    for version in VERSIONS {
        let client_check = required(&trust(&ca)).unwrap();
        let server = server_config(version, Some(client_check), of(&leaf));
        let server_check = ServerCheck::full(&trust(&ca)).unwrap();
        let client = client_config(version, server_check, Some(of(&leaf)));
        let first = handshake(HandshakeRole::Server, &client, &server);
        assert!(!first.resumed && first.check == Some(PeerCheck::Valid));
        let second = handshake(HandshakeRole::Server, &client, &server);
        assert!(second.resumed && second.check.is_none(), "{version:?}");
    }
    let check = required(&trust(&ca)).unwrap();
    assert_eq!(check.recheck(&leaf.chain, now).check, PeerCheck::Valid);
    let outcome = check.recheck(&leaf.chain, later).check;
    assert!(reason(Some(&outcome)).contains("expired") && !check.allows(&outcome));

    let check = ServerCheck::full(&trust(&ca)).unwrap();
    assert_eq!(check.recheck(&leaf.chain, &name, now).check, PeerCheck::Valid);
    let other = ServerName::try_from("other.example").unwrap();
    let outcome = check.recheck(&leaf.chain, &other, now).check;
    assert!(reason(Some(&outcome)).contains("not for other.example") && !check.allows(&outcome));
    let none = ServerCheck::none();
    assert_eq!(none.recheck(&leaf.chain, &name, later).check, PeerCheck::NotChecked);
}

#[test]
fn a_known_chain_does_not_stand_for_its_key() {
    let ca = Ca::new("corp CA");
    let leaf = ca.leaf(LeafKind::Valid);
    let thief = ca.leaf(LeafKind::Valid);
    let stolen = keyed(leaf.chain.clone(), &thief.key);
    let chains = Some(Arc::default());
    for version in VERSIONS {
        let known = |key| {
            let check = ServerCheck::full(&trust(&ca)).unwrap().remembering(chains.as_ref());
            let server = server_config(version, None, of(&leaf));
            let client = client_config(version, check, None);
            assert!(handshake(HandshakeRole::Client, &client, &server).failure.is_none());
            handshake(HandshakeRole::Client, &client, &server_config(version, None, key)).failure
        };
        assert!(known(of(&leaf)).is_none());
        assert!(known(stolen.clone()).unwrap().message.contains("did not prove"), "{version:?}");
    }
}

#[test]
fn a_small_rsa_key_proves_nothing_at_any_level() {
    let chain = openssl_v3(1024).chain;
    let leaf = &chain[0];
    let mut signature = vec![0x08, 0x04, 0, 128]; // rsa_pss_rsae_sha256
    signature.resize(4 + 128, 7);
    let signed = DigitallySignedStruct::read(&mut Reader::init(&signature)).unwrap();
    let ca = Ca::new("corp CA");

    let preferred = preferred(&trust(&ca)).unwrap();
    let none = ServerCheck::none();
    for Observed { result, outcome } in [
        observe(|| preferred.verify_tls13_signature(b"transcript", leaf, &signed)),
        observe(|| preferred.verify_tls12_signature(b"transcript", leaf, &signed)),
        observe(|| none.verify_tls13_signature(b"transcript", leaf, &signed)),
        observe(|| none.verify_tls12_signature(b"transcript", leaf, &signed)),
    ] {
        assert!(result.is_err());
        let said = reason(outcome.checked.as_ref().map(|checked| &checked.check));
        assert!(said.contains("has a key that is too weak (RSA 1024)"), "{said}");
    }
    let name = ServerName::try_from(NAME).unwrap();
    let full = ServerCheck::full(&trust(&ca)).unwrap();
    let outcome = full.recheck(&chain, &name, UnixTime::now()).check;
    assert!(reason(Some(&outcome)).contains("RSA 1024"), "{outcome:?}");
}

/// The return value of a step may borrow from the connection.
#[test]
fn a_step_of_an_unbuffered_handshake_can_be_observed() {
    let ca = Ca::new("corp CA");
    let config = server_config(&version::TLS13, None, of(&ca.leaf(LeafKind::Valid)));
    let mut connection = rustls::server::UnbufferedServerConnection::new(config).unwrap();
    let mut buffer = [];
    let Observed { result, outcome } = observe(|| connection.process_tls_records(&mut buffer));
    assert!(result.state.is_ok() && outcome.checked.is_none());
}

#[test]
fn an_outcome_never_reaches_another_connection() {
    let is_empty = |outcome: &StepOutcome| {
        outcome.checked.is_none() && outcome.server_name.is_none() && outcome.secrets.is_empty()
    };
    let report_all = || {
        report_check(PeerCheck::NotChecked);
        report_hello(Some(NAME), false);
        secrets_reporter().log("CLIENT_TRAFFIC_SECRET_0", &[], &[7; 32]);
    };
    report_all();
    let Observed { outcome, .. } = observe(|| {});
    assert!(is_empty(&outcome), "left over from an unobserved step: {outcome:?}");
    let Observed { outcome, .. } = observe(report_all);
    assert_eq!(outcome.checked, Some(PeerCheck::NotChecked.into()));
    assert_eq!(outcome.server_name.as_deref(), Some(NAME));
    assert!(!outcome.secrets.is_empty());
    let Observed { outcome, .. } = observe(|| {});
    assert!(is_empty(&outcome), "left over from an observed step: {outcome:?}");
}

#[test]
fn a_waived_chain_has_no_identity() {
    let facts = CertificateFacts::from_der(&self_signed().chain[0]).unwrap();
    let waived = PeerCheck::Invalid { reason: String::new() };
    for check in [waived, PeerCheck::NotChecked] {
        let who = identity(&check, &MappedIdentity::Certificate, Some(&facts));
        assert_eq!((who.identity, who.claimed_subject.as_deref()), (None, Some("CN=leaf")));
    }
    let who = identity(&PeerCheck::Valid, &MappedIdentity::Certificate, Some(&facts));
    assert_eq!((who.identity.as_deref(), who.claimed_subject), (Some(NAME), None));
    let mapped = MappedIdentity::Mapped("alice".into());
    let who = identity(&PeerCheck::Valid, &mapped, Some(&facts));
    assert_eq!((who.identity.as_deref(), who.claimed_subject), (Some("alice"), None));
    let who = identity(&PeerCheck::NotChecked, &mapped, Some(&facts));
    assert_eq!(who.identity, None, "a name given by mistake is not shown either");
    let who = identity(&PeerCheck::Valid, &MappedIdentity::None, Some(&facts));
    assert_eq!(who, PeerIdentity::default());
    assert_eq!(
        identity(&PeerCheck::Absent, &MappedIdentity::Certificate, None),
        PeerIdentity::default()
    );
}

#[test]
fn outcomes_are_serialized_in_words() {
    let invalid = PeerCheck::Invalid { reason: "why".to_owned() };
    let value = serde_json::to_value(&invalid).unwrap();
    assert_eq!(value, serde_json::json!({"result": "invalid", "reason": "why"}));
    assert_eq!(serde_json::to_value(PeerCheck::NotAsked).unwrap()["result"], "not-asked");
}
