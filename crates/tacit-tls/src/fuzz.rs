//! Provides entry points for fuzzing handshakes, sessions, certificates and CRLs with untrusted
//! bytes.
//!
//! Each function accepts any bytes and must not panic. Handshakes use random numbers, so the same
//! input may execute different code.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, UnixTime};
use tacit_core::policy::{Group, IdentityMap, Rekey, Revocation, Suite, parse};
use tacit_core::record::{AlertDescription, ContentType};

use super::credentials;
use super::facts::CertificateFacts;
use super::failure::HandshakeFailure;
use super::handshake::{Handshake, INCOMING_BYTES_MAX};
use super::keys::HotKeys;
use super::machine::HandshakeProgress;
use super::session::{OpenedBatch, Session};
use super::settings_pair::{self, ServerAsks, SettingsPair};
use super::signer::Signable;
use super::signer::wire::{SignRequest, parse_sign_response};
use super::subject::read_subject;

/// The largest number of input bytes that become records of a session, so that one run is short.
const SCRIPT_BYTES_MAX: usize = 4096;

/// Runs a handshake on `input`. The first byte selects the role and how the input is split; the
/// other bytes are what the peer sends. A pending alert is taken, as in the agent.
pub fn handshake(input: &[u8]) {
    let Some((&choice, wire)) = input.split_first() else { return };
    let Sides { client, server } =
        sides(if choice & 2 == 0 { Version::Tls13 } else { Version::Tls12 });
    let mut handshake = if choice & 1 == 0 { server } else { client };
    let piece = 1 + usize::from(choice >> 2) * 16;
    let mut incoming = Vec::new();
    let mut outgoing = Vec::new();
    for part in wire.chunks(piece) {
        incoming.extend_from_slice(part);
        outgoing.clear();
        match handshake.advance(&mut incoming, &mut outgoing) {
            Ok(HandshakeProgress::Blocked) if incoming.len() > INCOMING_BYTES_MAX => {
                let failure = handshake.too_long(&mut incoming, &mut outgoing);
                return check_answered(&failure, &outgoing);
            }
            Ok(HandshakeProgress::Blocked) => {}
            Ok(HandshakeProgress::Done) => {
                // `finish` decides whether the connection may be used. Both results are valid.
                let _ = handshake.finish(Rekey::default(), Instant::now(), UnixTime::now());
                return;
            }
            Err(failure) => return check_answered(&failure, &outgoing),
        }
    }
    check(&handshake.cut_off());
}

/// Parses `input` as a request and as an answer on a channel of a signer. A message that may be
/// signed must begin like a proof of a handshake.
pub fn signer(input: &[u8]) {
    if let Some(request) = SignRequest::parse(input) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        assert_eq!(bytes, input, "the encoded request differs from the input");
        if let Some(signable) = Signable::of(request.message) {
            let first = request.message.first();
            assert!(signable != Signable::CertificateVerify13 || first == Some(&b' '));
        }
    }
    let _ = parse_sign_response(input);
}

/// Checks that every failure causes an alert, except a failure by an alert of the peer.
fn check_answered(failure: &HandshakeFailure, outgoing: &[u8]) {
    check(failure);
    assert!(!outgoing.is_empty() || failure.message.contains("(alert "), "{failure}");
}

/// Checks that the message of a failure is one line, whatever the peer has sent.
fn check(failure: &HandshakeFailure) {
    let text = failure.to_string();
    assert!(!text.is_empty() && !text.contains(char::is_control), "{text:?}");
}

/// Parses `input` as a certificate and as a CRL, and checks the texts of the facts.
pub fn certificate(input: &[u8]) {
    let der = CertificateDer::from(input);
    let facts = CertificateFacts::from_der(&der);
    let texts = facts.iter().flat_map(|facts| facts.sans.iter().chain([&facts.subject]));
    assert!(texts.flat_map(|text| text.chars()).all(|c| !c.is_control()), "control characters");
    if let Ok(subject) = read_subject(&der, None) {
        let _ = MAP.find(&subject);
    }
    let _ = credentials::crl_facts(input);
}

/// A file of CRLs, in PEM or DER, and the warnings that are reported for it.
pub fn crl(input: &[u8]) {
    let path = Path::new("fuzz.crl");
    let now = 1_900_000_000;
    let crls = match credentials::parse_crls(path, input.to_vec(), &ROOTS) {
        Ok(crls) => crls,
        Err(fault) => {
            assert!(!fault.text(path).message.is_empty());
            return;
        }
    };
    let warnings = credentials::crl_warnings("[trust.fuzz]", Revocation::Hard, &crls, &[], now);
    let issuers = crls.iter().map(|crl| &crl.facts.issuer);
    for text in warnings.iter().chain(issuers) {
        assert!(!text.contains(char::is_control), "the text contains control characters: {text:?}");
    }
}

/// A trust with one CA, for the warnings about CRLs.
static ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    if let Ok((certificate, _)) = settings_pair::certificate("a.example") {
        let _ = roots.add(certificate);
    }
    assert!(!roots.is_empty(), "the fuzz target could not create its root certificate");
    Arc::new(roots)
});

/// A map with conditions on every kind of name in a certificate.
static MAP: LazyLock<IdentityMap> = LazyLock::new(|| {
    let text = "version = 1\n[[map.m]]\nsubject = \"CN=*a*, O=*\"\nname = \"a\"\n\
                [[map.m]]\ndns = \"*.example\"\nissuer = \"CN=*\"\nname = \"b\"\n\
                [[map.m]]\nuri = \"*\"\nname = \"c\"\n[[map.m]]\nip = \"0.0.0.0/0\"\nname = \"d\"";
    let mut maps = parse(text).policy.map(|policy| policy.maps).unwrap_or_default();
    maps.remove("m").unwrap_or_else(|| IdentityMap::new(Vec::new()))
});

/// Runs a session on `input`. The first byte selects version and role. The other bytes are a script
/// of what an authenticated peer sends: `kind length payload`. The low bits of the kind select the
/// content, and one bit corrupts the record. Checks that payload before an error is kept, and that
/// memory is limited.
pub fn session(input: &[u8]) {
    let Some((&choice, mut script)) = input.split_first() else { return };
    let sides = sides(if choice & 1 == 0 { Version::Tls13 } else { Version::Tls12 });
    let (mut peer, mut ours) = establish(sides.client, sides.server);
    if choice & 2 != 0 {
        std::mem::swap(&mut peer, &mut ours);
    }
    let mut wire = Vec::new();
    while let Some((&[kind, length], rest)) = script.split_first_chunk::<2>()
        && wire.len() < SCRIPT_BYTES_MAX
    {
        let (payload, after) = rest.split_at(usize::from(length).min(rest.len()));
        script = after;
        let start = wire.len();
        say(&mut peer, kind, payload, &mut wire);
        if kind & 0x80 != 0
            && let Some(byte) = wire.get_mut(start + usize::from(length))
        {
            *byte ^= 1 << (kind >> 4 & 7);
        }
    }
    let mut payloads: Vec<Range<usize>> = Vec::new();
    let opened = ours.open_batch(&mut HotKeys::default(), &mut wire, &mut payloads);
    let mut end = 0;
    for range in &payloads {
        assert!(range.start >= end && range.end <= wire.len());
        end = range.end;
    }
    let mut due = Vec::new();
    // A used-up key seals no more records.
    let _ = ours.seal_due(Instant::now, &mut due);
    assert!(
        due.len() < 256,
        "tacit's answer to one record must have less than 256 bytes, but has {} bytes",
        due.len()
    );
    match opened {
        Ok(OpenedBatch { consumed, .. }) => assert!(consumed <= wire.len()),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            if let Some(alert) = error.alert() {
                assert!(ours.seal_alert(alert, &mut due).is_ok());
            }
        }
    }
}

/// Sends one message of an authenticated peer.
fn say(peer: &mut Session, kind: u8, payload: &[u8], wire: &mut Vec<u8>) {
    let content = match kind & 3 {
        0 => ContentType::ApplicationData,
        1 => ContentType::Handshake,
        2 => ContentType::Alert,
        _ if kind & 4 == 0 => ContentType::ChangeCipherSpec,
        _ => {
            // These bytes are not a record.
            wire.extend_from_slice(payload);
            return;
        }
    };
    // A used-up key would seal nothing, but a script is too short to use up a key.
    let _ = match (content, payload) {
        // A real change of keys, if the protocol has one.
        (ContentType::Handshake, [24, 0, 0, 1, 1]) if kind & 8 == 0 => peer.change_keys(wire),
        (ContentType::Alert, [0]) => peer.seal_alert(AlertDescription::CLOSE_NOTIFY, wire),
        _ => peer.seal_content(content, payload, wire),
    };
}

#[derive(Clone, Copy)]
enum Version {
    Tls13,
    Tls12,
}

/// A client and a server with matching settings.
struct Sides {
    client: Handshake,
    server: Handshake,
}

fn sides(version: Version) -> Sides {
    static BOTH: LazyLock<[SettingsPair; 2]> = LazyLock::new(|| {
        [Suite::TLS_AES_128_GCM_SHA256, Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256].map(
            // Requested and not required, because a certificate of the peer is also input.
            |suite| {
                settings_pair::settings(suite, &[Group::X25519], ServerAsks::Certificate)
                    .unwrap_or_else(|error| {
                        panic!("the fuzz target could not create its TLS settings: {error}")
                    })
            },
        )
    });
    let SettingsPair { client, server } = &BOTH[version as usize];
    match (Handshake::client(client, &[]), Handshake::server(server)) {
        (Ok(client), Ok(server)) => Sides { client, server },
        _ => panic!("the fuzz target could not start a handshake"),
    }
}

/// Runs both handshakes until both are complete.
fn establish(mut client: Handshake, mut server: Handshake) -> (Session, Session) {
    let mut to_server = Vec::new();
    let mut to_client = Vec::new();
    let done = (0..4).any(|_| {
        let client = client.advance(&mut to_client, &mut to_server);
        let server = server.advance(&mut to_server, &mut to_client);
        (client, server) == (Ok(HandshakeProgress::Done), Ok(HandshakeProgress::Done))
            && to_client.is_empty()
    });
    assert!(done, "the fuzz target could not complete a handshake between its two sides");
    let finish = |handshake: Handshake| {
        handshake.finish(Rekey::default(), Instant::now(), UnixTime::now()).map(|done| done.session)
    };
    match (finish(client), finish(server)) {
        (Ok(client), Ok(server)) => (client, server),
        _ => panic!("the fuzz target completed a handshake but got no session"),
    }
}
