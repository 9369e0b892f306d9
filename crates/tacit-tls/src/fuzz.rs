//! The entry points for fuzzing handshakes, sessions, certificates and CRLs with bytes from an
//! untrusted peer or file.
//!
//! Each function accepts any bytes and must not panic. Handshakes use random numbers, so the same
//! input may take different paths.

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
use super::holder::holder;
use super::keys::HotKeys;
use super::machine::HandshakeProgress;
use super::session::{OpenedBatch, Session};
use super::settings_pair::{self, ServerAsks, SettingsPair};
use super::signer::Signable;
use super::signer::wire::{SignRequest, parse_sign_response};

/// Bytes of a session's input that become records, so that one run stays short.
const SCRIPT_BYTES_MAX: usize = 4096;

/// The first byte chooses the role and how the rest is cut into pieces; the rest is what the peer
/// sends from the first byte on. A pending alert is taken, as the agent does.
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
                // Whether it may be used is decided here, and either is right.
                let _ = handshake.finish(Rekey::default(), Instant::now(), UnixTime::now());
                return;
            }
            Err(failure) => return check_answered(&failure, &outgoing),
        }
    }
    check(&handshake.cut_off());
}

/// What comes over a channel of a signer, read as a request and as an answer. What may be signed
/// begins as a proof of a handshake does.
pub fn signer(input: &[u8]) {
    if let Some(request) = SignRequest::parse(input) {
        assert_eq!(request.encode(), input, "a request is its bytes");
        if let Some(signable) = Signable::of(request.message) {
            let first = request.message.first();
            assert!(signable != Signable::CertificateVerify13 || first == Some(&b' '));
        }
    }
    let _ = parse_sign_response(input);
}

/// Whatever the peer sends that ends the handshake is answered by an alert, but for its own alerts.
fn check_answered(failure: &HandshakeFailure, outgoing: &[u8]) {
    check(failure);
    assert!(!outgoing.is_empty() || failure.message.contains("(alert "), "{failure}");
}

/// A failure is one line for an operator, whatever the peer put in it.
fn check(failure: &HandshakeFailure) {
    let text = failure.to_string();
    assert!(!text.is_empty() && !text.contains(char::is_control), "{text:?}");
}

/// A certificate, or a list of revoked ones: what it says is in order, whatever it is.
pub fn certificate(input: &[u8]) {
    let der = CertificateDer::from(input);
    let facts = CertificateFacts::from_der(&der);
    let texts = facts.iter().flat_map(|facts| facts.sans.iter().chain([&facts.subject]));
    assert!(texts.flat_map(|text| text.chars()).all(|c| !c.is_control()), "control characters");
    if let Ok(holder) = holder(&der, None) {
        let _ = MAP.find(&holder);
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
            assert!(!fault.to_string().is_empty());
            return;
        }
    };
    let told = credentials::crl_warnings("trust 'fuzz'", Revocation::Hard, &crls, &[], now);
    let issuers = crls.iter().map(|crl| &crl.facts.issuer);
    for text in told.iter().chain(issuers) {
        assert!(!text.contains(char::is_control), "control characters: {text:?}");
    }
}

/// A trust of one CA: lists are looked at beside it.
static ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    if let Ok((certificate, _)) = settings_pair::certificate("a.example") {
        let _ = roots.add(certificate);
    }
    assert!(!roots.is_empty(), "the fuzzer's own set-up: no root");
    Arc::new(roots)
});

/// A map that asks about everything that a certificate says.
static MAP: LazyLock<IdentityMap> = LazyLock::new(|| {
    let text = "version = 1\n[[map.m]]\nsubject = \"CN=*a*, O=*\"\nname = \"a\"\n\
                [[map.m]]\ndns = \"*.example\"\nissuer = \"CN=*\"\nname = \"b\"\n\
                [[map.m]]\nuri = \"*\"\nname = \"c\"\n[[map.m]]\nip = \"0.0.0.0/0\"\nname = \"d\"";
    let mut maps = parse(text).policy.map(|policy| policy.maps).unwrap_or_default();
    maps.remove("m").unwrap_or_else(|| IdentityMap::new(Vec::new()))
});

/// The first byte chooses version and role; the rest is a script of what an authenticated peer
/// sends: `kind length payload`, where the kind's low bits choose the content and one bit spoils
/// the record. Payload before an error is kept, and nothing is kept without limit.
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
    // A key that is used up seals nothing more.
    let _ = ours.seal_due(Instant::now, &mut due);
    assert!(due.len() < 256, "one answer at most: {}", due.len());
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

/// One thing an authenticated peer says.
fn say(peer: &mut Session, kind: u8, payload: &[u8], wire: &mut Vec<u8>) {
    let content = match kind & 3 {
        0 => ContentType::ApplicationData,
        1 => ContentType::Handshake,
        2 => ContentType::Alert,
        _ if kind & 4 == 0 => ContentType::ChangeCipherSpec,
        _ => {
            // Not a record at all.
            wire.extend_from_slice(payload);
            return;
        }
    };
    // A key that is used up says nothing more; a script is too short for it.
    let _ = match (content, payload) {
        // A real change of keys, where it can be one.
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

/// A client and a server that could talk to each other.
struct Sides {
    client: Handshake,
    server: Handshake,
}

fn sides(version: Version) -> Sides {
    static BOTH: LazyLock<[SettingsPair; 2]> = LazyLock::new(|| {
        [Suite::TLS_AES_128_GCM_SHA256, Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256].map(
            // Asked for and not required: a certificate of the peer's is input too.
            |suite| {
                settings_pair::settings(suite, &[Group::X25519], ServerAsks::Certificate)
                    .unwrap_or_else(|error| panic!("the fuzzer's own set-up: {error}"))
            },
        )
    });
    let SettingsPair { client, server } = &BOTH[version as usize];
    match (Handshake::client(client, &[]), Handshake::server(server)) {
        (Ok(client), Ok(server)) => Sides { client, server },
        _ => panic!("the fuzzer's own configuration starts no handshake"),
    }
}

/// Runs both handshakes to their end.
fn establish(mut client: Handshake, mut server: Handshake) -> (Session, Session) {
    let mut to_server = Vec::new();
    let mut to_client = Vec::new();
    let done = (0..4).any(|_| {
        let client = client.advance(&mut to_client, &mut to_server);
        let server = server.advance(&mut to_server, &mut to_client);
        (client, server) == (Ok(HandshakeProgress::Done), Ok(HandshakeProgress::Done))
            && to_client.is_empty()
    });
    assert!(done, "the fuzzer's own set-up: two sides of ours do not agree");
    let finish = |handshake: Handshake| {
        handshake.finish(Rekey::default(), Instant::now(), UnixTime::now()).map(|done| done.session)
    };
    match (finish(client), finish(server)) {
        (Ok(client), Ok(server)) => (client, server),
        _ => panic!("the fuzzer's own set-up: a handshake gives no session"),
    }
}
