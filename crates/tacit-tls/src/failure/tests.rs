//! Tests the descriptions of failed handshakes. Both ends of each handshake are in memory.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection,
    SupportedProtocolVersion, version,
};
use rustls_pki_types::ServerName;

use super::*;
use crate::test_certificates::{Ca, LeafKind, NAME};
use crate::verify::ServerCheck;

const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS12, &version::TLS13];

fn server(
    provider: CryptoProvider,
    versions: &[&'static SupportedProtocolVersion],
) -> ServerConfig {
    let leaf = Ca::new("CA").leaf(LeafKind::Valid);
    let key = aws_lc_rs::sign::any_supported_type(&leaf.key).unwrap();
    let key = SingleCertAndKey::from(CertifiedKey::new(leaf.chain, key));
    ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(key))
}

fn client(
    provider: CryptoProvider,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerCheck::none()))
        .with_no_client_auth()
}

fn described(role: HandshakeRole, sent: &[u8], error: &Error) -> HandshakeFailure {
    let first_bytes = &sent[..sent.len().min(FIRST_BYTES_MAX)];
    let failure = describe_error(
        &FailedHandshake { role, first_bytes, lacks_ecdhe: false, check: None },
        error,
    );
    assert!(!failure.message.contains('\n') && failure.message.contains(": "), "{failure}");
    failure
}

/// Returns the failure of a server that receives these bytes.
fn server_meets(config: ServerConfig, sent: &[u8]) -> HandshakeFailure {
    let mut connection = ServerConnection::new(Arc::new(config)).unwrap();
    connection.read_tls(&mut &*sent).unwrap();
    let error = connection.process_new_packets().unwrap_err();
    described(HandshakeRole::Server, sent, &error)
}

/// Returns the failure of a server with a client's hello, and the failure of the client with the
/// server's alert.
fn meet(server: ServerConfig, client: ClientConfig) -> [HandshakeFailure; 2] {
    let name = ServerName::try_from(NAME).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let mut hello = Vec::new();
    let mut alert = Vec::new();
    client.write_tls(&mut hello).unwrap();
    server.read_tls(&mut hello.as_slice()).unwrap();
    let at_server = server.process_new_packets().unwrap_err();
    server.write_tls(&mut alert).unwrap();
    client.read_tls(&mut alert.as_slice()).unwrap();
    let at_client = client.process_new_packets().unwrap_err();
    [
        described(HandshakeRole::Server, &hello, &at_server),
        described(HandshakeRole::Client, &alert, &at_client),
    ]
}

fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// A hello without extensions, in the format of old clients.
fn old_hello(minor: u8) -> Vec<u8> {
    let mut body = vec![3, minor];
    body.extend([7; 32]); // random
    body.extend([0, 0, 2, 0xc0, 0x13, 1, 0]); // no session; ECDHE_RSA_AES_128_CBC_SHA; null
    let length = u8::try_from(body.len()).unwrap();
    let mut record = vec![22, 3, minor.min(1), 0, length + 4, 1, 0, 0, length];
    record.extend(body);
    record
}

#[test]
fn plain_protocols_spoken_to_a_tls_rule_are_named() {
    let table: [(&[u8], &str, &str); 5] = [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "plain-http", "plain HTTP, not TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not-tls", "plain SSH"),
        (b"EHLO mail.example\r\n", "not-tls", "plain SMTP"),
        (b"\xff\xfd\x18\xff\xfd\x20", "not-tls", "plain Telnet"),
        (b"\x00\x01\x02\x03\x04\x05\x06\x07", "not-tls", "not a valid TLS handshake"),
    ];
    for (sent, kind, part) in table {
        let failure = server_meets(server(provider(), BOTH), sent);
        assert_eq!((failure.kind.0, failure.party), (kind, Party::Peer), "{failure}");
        assert!(failure.message.contains(part), "{failure}");
    }
    let name = ServerName::try_from(NAME).unwrap();
    let mut connection = ClientConnection::new(Arc::new(client(provider(), BOTH)), name).unwrap();
    let sent = b"HTTP/1.1 400 Bad Request\r\n\r\n";
    connection.read_tls(&mut sent.as_slice()).unwrap();
    let error = connection.process_new_packets().unwrap_err();
    let failure = described(HandshakeRole::Client, sent, &error);
    assert_eq!(failure.kind, "plain-http");
    assert!(
        failure.message.contains("connect to the port on which the server accepts TLS"),
        "{failure}"
    );
}

#[test]
fn old_versions_are_refused_by_name() {
    let ssl2 = [0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10, 1, 0, 0x80, 2, 0, 0x80];
    let mut ssl2_asking_tls1 = ssl2;
    ssl2_asking_tls1[3..5].copy_from_slice(&[3, 1]);
    let table = [
        (old_hello(0), "SSL 3.0"),
        (old_hello(1), "TLS 1.0"),
        (old_hello(2), "TLS 1.1"),
        (ssl2.to_vec(), "SSL 2.0"),
        (ssl2_asking_tls1.to_vec(), "TLS 1.0"),
    ];
    for (sent, version) in table {
        let failure = server_meets(server(provider(), BOTH), &sent);
        assert_eq!(failure.kind, "no-common-version", "{version}: {failure}");
        let line =
            format!("the client uses {version}, which tacit rejects: update the client to TLS 1.2");
        assert!(failure.message.starts_with(&line), "{failure}");
    }
}

#[test]
fn what_both_lack_in_common_is_named_on_both_sides() {
    let [failure, alert] =
        meet(server(provider(), &[&version::TLS13]), client(provider(), &[&version::TLS12]));
    assert_eq!((failure.kind.0, alert.kind.0), ("no-common-version", "no-common-version"));
    assert!(failure.message.contains("supports only TLS 1.2 and older versions, but"));

    let mut chacha = provider();
    chacha.cipher_suites = vec![aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256];
    let mut aes = provider();
    aes.cipher_suites = vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256];
    let [failure, alert] =
        meet(server(chacha, &[&version::TLS13]), client(aes, &[&version::TLS13]));
    assert_eq!((failure.kind.0, alert.kind.0), ("no-common-suite", "peer-sent-alert"));

    let mut x25519 = provider();
    let mut p256 = provider();
    x25519.kx_groups = vec![aws_lc_rs::kx_group::X25519];
    p256.kx_groups = vec![aws_lc_rs::kx_group::SECP256R1];
    let [failure, _] = meet(server(x25519, BOTH), client(p256, BOTH));
    assert_eq!(failure.kind, "no-common-group", "{failure}");

    let mut offering = client(provider(), BOTH);
    offering.alpn_protocols = vec![b"h2".to_vec()];
    let mut speaking = server(provider(), BOTH);
    speaking.alpn_protocols = vec![b"postgresql".to_vec()];
    let [failure, alert] = meet(speaking, offering);
    assert_eq!((failure.kind.0, alert.kind.0), ("no-common-alpn", "no-common-alpn"));
    assert_eq!((failure.party, alert.party), (Party::Policy, Party::Policy));
}

#[test]
fn every_alert_has_a_line_with_a_next_step() {
    for number in 0..=u8::MAX {
        for role in [HandshakeRole::Server, HandshakeRole::Client] {
            let failure = describe_alert_number(role, number);
            assert!(failure.message.starts_with(&format!("the {} ", role.peer())), "{failure}");
            assert!(!failure.message.contains("{peer}"), "{failure}");
        }
    }
    let failure = describe_alert_number(HandshakeRole::Client, 116);
    assert_eq!((failure.kind.0, failure.party), ("peer-requires-certificate", Party::Policy));
    let failure = describe_alert_number(HandshakeRole::Server, 48);
    assert_eq!((failure.kind.0, failure.party), ("peer-refused-certificate", Party::Peer));
}

#[test]
fn damaged_handshakes_are_distinguished_from_other_protocols() {
    let mut hello = old_hello(3);
    hello[5] = 99; // no such handshake message
    assert_eq!(server_meets(server(provider(), BOTH), &hello).kind, "bad-message");
    let shorter = FIRST_BYTES_MAX.min(hello.len());
    for length in 0..shorter {
        assert_eq!(looks_like_plaintext(&hello[..length]), None);
        let _ = offered_version(&hello[..length]);
    }
}
