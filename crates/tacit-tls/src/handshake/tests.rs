//! Tests handshakes between two ends in memory: server names, alerts after errors, key logs, and
//! early data.

use std::io::Write as _;

use ::aws_lc_rs::aead::AES_128_GCM;
use rustls::crypto::aws_lc_rs;
use rustls::server::ServerSessionMemoryCache;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use tacit_core::record::RecordProtection;

use super::*;
use crate::keys::HotKeys;
use crate::secrets::{NextKey, Secret};
use crate::session::SessionError;
use crate::settings_pair::{ServerAsks, SettingsPair, settings};
use crate::test_certificates::{Ca, LeafKind, NAME};
use crate::verify::ServerCheck;

const TLS12: Suite = Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
const TLS13: Suite = Suite::TLS_AES_128_GCM_SHA256;
/// A fatal decode_error alert in clear.
const DECODE_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 50];

fn pair(suite: Suite) -> SettingsPair {
    settings(suite, &[Group::X25519], ServerAsks::Nothing).unwrap()
}

/// Passes bytes to one end. Returns its answer, and whether it continues.
fn give(end: &mut Handshake, wire: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
    let mut incoming = wire.to_vec();
    let mut outgoing = Vec::new();
    match end.advance(&mut incoming, &mut outgoing) {
        Ok(_) => Ok(outgoing),
        Err(_) => Err(outgoing),
    }
}

fn server() -> Handshake {
    Handshake::server(&pair(TLS13).server).unwrap()
}

fn record(kind: ContentType, payload: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(payload.len()).unwrap().to_be_bytes();
    [&[kind as u8, 3, 3, high, low], payload].concat()
}

fn in_handshake(payload: &[u8]) -> Vec<u8> {
    record(ContentType::Handshake, payload)
}

#[test]
fn a_name_that_no_certificate_can_hold_is_not_passed_over() {
    let covered = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        to_be_covered(&names).len()
    };
    assert_eq!(covered(&["db.example", "db_2.example"]), 2);
    assert_eq!(covered(&["db.example", "db\\046two.example"]), 0);
}

#[test]
fn a_hello_that_is_too_long_or_interrupted_is_answered_by_an_alert() {
    // A message of 64 KiB is one byte too long.
    assert_eq!(give(&mut server(), &in_handshake(&[1, 1, 0, 0])), Err(DECODE_ERROR.into()));
    let part = in_handshake(&[1, 0, 1, 0, 3, 3]);
    let alert = record(ContentType::Alert, &[1, 0]);
    assert_eq!(give(&mut server(), &[&part[..], &alert].concat()), Err(DECODE_ERROR.into()));
    let mut interrupted = server();
    assert_eq!(give(&mut interrupted, &in_handshake(&[1, 0, 1])), Ok(Vec::new()));
    let flood = in_handshake(&[]).repeat(64);
    assert_eq!(give(&mut server(), &flood), Err(DECODE_ERROR.into()));
}

#[test]
fn a_hello_in_too_many_records_is_answered_by_an_alert() {
    let mut server = server();
    let mut incoming = Vec::new();
    let mut outgoing = Vec::new();
    let hello = [&[1, 0, 0xf0, 0][..], &[0; 0xf000]].concat();
    for byte in hello {
        incoming.extend(in_handshake(&[byte]));
        if incoming.len() > INCOMING_BYTES_MAX {
            break;
        }
        if incoming.len() % 4096 < 6 {
            assert_eq!(
                server.advance(&mut incoming, &mut outgoing).unwrap(),
                HandshakeProgress::Blocked
            );
        }
    }
    assert!(incoming.len() > INCOMING_BYTES_MAX);
    let failure = server.too_long(&mut incoming, &mut outgoing);
    assert_eq!((failure.kind.0, outgoing), ("bad-record", DECODE_ERROR.into()));
}

#[test]
fn a_handshake_without_the_required_application_protocol_ends_with_an_alert() {
    for suite in [TLS12, TLS13] {
        for (wanted, is_met) in [("pair", true), ("postgresql", false)] {
            let SettingsPair { client, server } = pair(suite);
            let mut client = Handshake::client(&client, &[]).unwrap();
            let mut server = Handshake::server(&server).unwrap().with_required_alpn(Some(wanted));
            let mut to_server = give(&mut client, &[]).unwrap();
            for _ in 0..2 {
                let to_client = give(&mut server, &to_server).unwrap();
                to_server = give(&mut client, &to_client).unwrap();
            }
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1));
            let finished = server.finish(Rekey::default(), Instant::now(), now);
            let Err(FinishError { failure, mut alert }) = finished else {
                assert!(is_met, "{suite:?}");
                continue;
            };
            assert_eq!((failure.kind.0, is_met), ("no-common-alpn", false));
            let client = client.finish(Rekey::default(), Instant::now(), now).unwrap();
            let mut session = client.session;
            let opened = session.open_batch(&mut HotKeys::default(), &mut alert, &mut Vec::new());
            let sent = AlertDescription::NO_APPLICATION_PROTOCOL;
            assert!(matches!(opened, Err(SessionError::PeerAlert(seen)) if seen == sent));
        }
    }
}

/// Returns the labels of a key log, and its lines in sorted order.
fn key_log(end: &mut Handshake) -> (Vec<String>, Vec<String>) {
    let mut lines: Vec<_> = end.take_key_log().iter().map(|line| line.text().to_owned()).collect();
    lines.sort();
    let label = |line: &String| line.split(' ').next().unwrap().to_owned();
    (lines.iter().map(label).collect(), lines)
}

#[test]
fn both_ends_write_the_same_key_log_and_only_if_they_should() {
    let tls13 = [
        "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
        "CLIENT_TRAFFIC_SECRET_0",
        "EXPORTER_SECRET",
        "SERVER_HANDSHAKE_TRAFFIC_SECRET",
        "SERVER_TRAFFIC_SECRET_0",
    ];
    for (suite, labels) in [(TLS12, &["CLIENT_RANDOM"][..]), (TLS13, &tls13)] {
        for is_logged in [false, true] {
            let SettingsPair { client, server } = pair(suite);
            let mut client = Handshake::client(&client, &[]).unwrap().with_key_log();
            let mut server = Handshake::server(&server).unwrap();
            if is_logged {
                server = server.with_key_log();
            }
            let mut to_server = give(&mut client, &[]).unwrap();
            for _ in 0..2 {
                let to_client = give(&mut server, &to_server).unwrap();
                to_server = give(&mut client, &to_client).unwrap();
            }
            let of_client = key_log(&mut client);
            let of_server = key_log(&mut server);
            assert_eq!(of_client.0, labels);
            let expected = if is_logged { of_client } else { Default::default() };
            assert_eq!(of_server, expected);
            assert_eq!(key_log(&mut client).1, Vec::<String>::new(), "each line once");
        }
    }
}

/// Returns the client's session, the server, and the secret that protects the client's Finished
/// message, at the point where only this message is missing.
fn until_the_clients_finished() -> (Session, Handshake, Secret) {
    let SettingsPair { client, server } = pair(TLS13);
    let mut client = Handshake::client(&client, &[]).unwrap();
    let mut server = Handshake::server(&server).unwrap();
    let hello = give(&mut client, &[]).unwrap();
    let flight = give(&mut server, &hello).unwrap();
    give(&mut client, &flight).unwrap();
    let secret = client.outcome.secrets.client_handshake.take().unwrap();
    let done = client.finish(Rekey::default(), Instant::now(), UnixTime::now());
    (done.unwrap().session, server, secret)
}

#[test]
fn a_protected_message_that_is_interrupted_is_answered_by_a_protected_alert() {
    let (mut client, mut server, secret) = until_the_clients_finished();
    let NextKey { key, iv } = secret.key(&AES_128_GCM).unwrap();
    let mut sealer = RecordSealer::new(RecordProtection::Tls13Gcm, iv, 0);
    let mut key = key.seal(&sealer).unwrap();
    let mut wire = Vec::new();
    for (content, message) in [
        (ContentType::Handshake, &[20, 0, 0, 32, 1, 2, 3][..]),
        (ContentType::ApplicationData, b"data"),
    ] {
        sealer.seal_message(&mut key, content, message, &mut wire).unwrap();
    }
    let mut alert = give(&mut server, &wire).unwrap_err();
    let read = client.open_batch(&mut HotKeys::default(), &mut alert, &mut Vec::new());
    assert_eq!(read, Err(SessionError::PeerAlert(AlertDescription::DECODE_ERROR)));
}

/// Whether the last record that an end sent is an alert, which may be encrypted.
fn ends_in_alert(mut sent: &[u8]) -> bool {
    while let Some(length) = first_record_bytes(sent).filter(|length| *length < sent.len()) {
        sent = &sent[length..];
    }
    matches!(sent, [21, 3, 3, 0, 2, 2, _] | [23, 3, 3, 0, 19, ..])
}

#[test]
fn what_was_changed_on_its_way_is_answered_by_an_alert() {
    for suite in [TLS12, TLS13] {
        let pair = pair(suite);
        let mut client = Handshake::client(&pair.client, &[]).unwrap();
        let hello = give(&mut client, &[]).unwrap();
        let mut server = Handshake::server(&pair.server).unwrap();
        let flight = give(&mut server, &hello).unwrap();
        for at in 0..hello.len() {
            let mut changed = hello.clone();
            changed[at] ^= 0x81;
            let answer = give(&mut Handshake::server(&pair.server).unwrap(), &changed);
            assert!(answer.as_ref().err().is_none_or(|sent| ends_in_alert(sent)), "{answer:?}");
        }
        for at in 0..flight.len().min(400) {
            let mut changed = flight.clone();
            changed[at] ^= 0x81;
            let mut client = Handshake::client(&pair.client, &[]).unwrap();
            give(&mut client, &[]).unwrap();
            let answer = give(&mut client, &changed);
            assert!(answer.as_ref().err().is_none_or(|sent| ends_in_alert(sent)), "{answer:?}");
        }
    }
}

/// A client of the library that has a ticket for early data from another server.
fn client_with_early_data() -> Arc<ClientConfig> {
    let ca = Ca::new("corp CA");
    let leaf = ca.leaf(LeafKind::Valid);
    let provider = || Arc::new(aws_lc_rs::default_provider());
    let versions = &[&rustls::version::TLS13];
    let mut client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerCheck::none()))
        .with_no_client_auth();
    client.enable_early_data = true;
    client.alpn_protocols = vec![b"pair".to_vec()];
    client.max_fragment_size = Some(1000);
    let client = Arc::new(client);
    let mut server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(leaf.chain, leaf.key)
        .unwrap();
    server.session_storage = ServerSessionMemoryCache::new(4);
    server.max_early_data_size = 16_384;
    server.alpn_protocols = vec![b"pair".to_vec()];
    let name = ServerName::try_from(NAME).unwrap();
    let mut first = ClientConnection::new(Arc::clone(&client), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let mut wire = Vec::new();
    for _ in 0..4 {
        first.write_tls(&mut wire).unwrap();
        server.read_tls(&mut wire.as_slice()).unwrap();
        server.process_new_packets().unwrap();
        wire.clear();
        server.write_tls(&mut wire).unwrap();
        let mut left = wire.as_slice();
        while !left.is_empty() {
            first.read_tls(&mut left).unwrap();
        }
        first.process_new_packets().unwrap();
        wire.clear();
    }
    client
}

#[test]
fn early_data_that_was_never_offered_is_skipped() {
    for (bytes, is_skipped) in [(6_000, true), (15_000, true), (16_384, false)] {
        let name = ServerName::try_from(NAME).unwrap();
        let mut client = ClientConnection::new(client_with_early_data(), name).unwrap();
        let mut early = client.early_data().unwrap();
        early.write_all(&vec![7; bytes]).unwrap();
        let mut server = server();
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        assert!(wire.len() > bytes);
        let mut flight = Vec::new();
        let mut incoming = Vec::new();
        // In pieces that end within records.
        let mut pieces = wire.chunks(777);
        let skipped = pieces.all(|piece| {
            incoming.extend_from_slice(piece);
            server.advance(&mut incoming, &mut flight).is_ok()
        });
        assert_eq!(skipped, is_skipped, "{bytes}");
        if !skipped {
            continue;
        }
        client.read_tls(&mut flight.as_slice()).unwrap();
        client.process_new_packets().unwrap();
        wire.clear();
        client.write_tls(&mut wire).unwrap();
        incoming.extend_from_slice(&wire);
        assert_eq!(server.advance(&mut incoming, &mut flight).unwrap(), HandshakeProgress::Done);
        assert!(!client.is_early_data_accepted());
    }
}

#[test]
fn a_client_without_ecdhe_suites_is_distinguished_from_one_without_groups() {
    let settings = settings(
        Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        &[Group::X25519],
        ServerAsks::Nothing,
    );
    let server = settings.unwrap().server;
    // The suites: TLS_RSA_WITH_AES_128_CBC_SHA alone, and together with the ECDHE suite of the
    // rule.
    for (suites, kind) in
        [(&[0, 0x2f][..], "no-common-suite"), (&[0xc0, 0x2b, 0, 0x2f], "no-common-group")]
    {
        // signature_algorithms: ecdsa_secp256r1_sha256.
        let extensions = [0, 13, 0, 4, 0, 2, 4, 3];
        let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, length(suites)]);
        body.extend(suites);
        body.extend([1, 0, 0, length(&extensions)]);
        body.extend(extensions);
        let mut hello = vec![22, 3, 1, 0, length(&body) + 4, 1, 0, 0, length(&body)];
        hello.extend(body);
        let mut handshake = Handshake::server(&server).unwrap();
        let failure = handshake.advance(&mut hello, &mut Vec::new()).unwrap_err();
        assert_eq!(failure.kind, kind, "{failure}");
    }
}
