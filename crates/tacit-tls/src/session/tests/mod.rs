//! Tests TLS sessions. The peer is a connection of the TLS library.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls::{ClientConnection, Connection, ServerConnection};
use rustls_pki_types::UnixTime;
use tacit_core::policy::{
    ClientCert, ClientTls, ConnectAfter, Group, RecheckAction, RelayOn, ServerTls, Start, Suite,
    TlsCommon, TlsVersion, Verify,
};

use super::*;
use crate::config::{ClientSettings, ServerSettings};
use crate::credentials::{LoadedIdentity, LoadedTrust};
use crate::facts::CertificateFacts;
use crate::handshake::{CompletedHandshake, Handshake, NegotiatedParameters};
use crate::machine::HandshakeProgress;
use crate::test_certificates::{Ca, Leaf, LeafKind, NAME};

mod illegal;
mod keys;
mod oracle;
mod size;

const TLS12: Suite = Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
const TLS13: Suite = Suite::TLS_AES_128_GCM_SHA256;
const NO_REKEY: Rekey = Rekey { bytes: None, after: None };

struct Certificates {
    trust: LoadedTrust,
    identities: Vec<Arc<LoadedIdentity>>,
}

static CERTIFICATES: LazyLock<Certificates> = LazyLock::new(|| {
    let ca = Ca::new("corp CA");
    let identity = |leaf: &Leaf| {
        let key = any_supported_type(&leaf.key).unwrap();
        Arc::new(LoadedIdentity {
            name: "web".into(),
            certified_key: Arc::new(CertifiedKey::new(leaf.chain.clone(), key)),
            facts: CertificateFacts::from_der(&leaf.chain[0]).unwrap(),
            sources: Vec::new(),
            warnings: Vec::new(),
        })
    };
    let trust = LoadedTrust::of_roots("corp", ca.roots());
    Certificates {
        trust,
        identities: vec![identity(&ca.leaf(LeafKind::Valid)), identity(&ca.rsa_leaf())],
    }
});

/// The settings of both sides for one suite.
struct Settings {
    client: Arc<ClientSettings>,
    server: Arc<ServerSettings>,
}

fn settings(suite: Suite) -> Settings {
    let common = TlsCommon {
        start: Start::Immediate,
        min_version: TlsVersion::V1_2,
        suites: vec![suite],
        groups: vec![Group::X25519],
        alpn: Vec::new(),
        resumption: true,
        handshake_timeout: Duration::from_secs(10),
        rekey: NO_REKEY,
        relay: RelayOn::Worker,
        recheck: RecheckAction::Log,
        max_age: None,
    };
    let verify = Verify::Full { trust: "corp".into(), server_name: Some(NAME.into()) };
    let client = ClientTls {
        identity: None,
        verify,
        sni: true,
        connect: ConnectAfter::Answered,
        own_tls: None,
        common: common.clone(),
    };
    let server = ServerTls {
        identities: vec!["web".into()],
        client_cert: ClientCert::None,
        clear_clients: None,
        common,
    };
    let Certificates { trust, identities } = &*CERTIFICATES;
    Settings {
        client: Arc::new(ClientSettings::new(&client, None, Some(trust), None).unwrap()),
        server: Arc::new(ServerSettings::new(&server, identities, None, None, None).unwrap()),
    }
}

/// One end of a connection in memory.
trait Side {
    /// Passes bytes from the peer to this end.
    fn give(&mut self, wire: &[u8]) -> Result<(), SessionError>;
    /// Returns the bytes to send to the peer.
    fn take(&mut self) -> Vec<u8>;
    fn write(&mut self, payload: &[u8]);
    fn close(&mut self);
    /// Returns the payload received so far.
    fn received(&self) -> &[u8];
    fn is_closed(&self) -> bool;
}

/// An end with tacit's code: a handshake, then its session, driven as the relay does.
struct Ours {
    handshake: Option<Handshake>,
    session: Option<Session>,
    negotiated: Option<NegotiatedParameters>,
    hot: HotKeys,
    rekey: Rekey,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    received: Vec<u8>,
    closed: bool,
}

impl Ours {
    fn new(handshake: Handshake, rekey: Rekey) -> Self {
        Self {
            handshake: Some(handshake),
            session: None,
            negotiated: None,
            hot: HotKeys::default(),
            rekey,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            received: Vec::new(),
            closed: false,
        }
    }

    fn client(settings: &Settings, rekey: Rekey) -> Self {
        Self::new(Handshake::client(&settings.client, &[]).unwrap(), rekey)
    }

    fn server(settings: &Settings, rekey: Rekey) -> Self {
        Self::new(Handshake::server(&settings.server).unwrap(), rekey)
    }

    fn session(&mut self) -> &mut Session {
        self.session.as_mut().unwrap()
    }

    fn handshake(&mut self) {
        let mut handshake = self.handshake.take().unwrap();
        let progress = handshake.advance(&mut self.incoming, &mut self.outgoing).unwrap();
        if progress == HandshakeProgress::Blocked {
            self.handshake = Some(handshake);
            return;
        }
        let established = handshake.finish(self.rekey, Instant::now(), UnixTime::now());
        let CompletedHandshake { session, negotiated, .. } =
            established.map_err(|refused| refused.failure).unwrap();
        self.session = Some(session);
        self.negotiated = Some(negotiated);
    }

    fn open(&mut self) -> Result<(), SessionError> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let mut payloads = Vec::new();
        let opened = session.open_batch(&mut self.hot, &mut self.incoming, &mut payloads);
        for range in payloads {
            self.received.extend_from_slice(&self.incoming[range]);
        }
        let OpenedBatch { consumed, closed } = opened?;
        self.incoming.drain(..consumed);
        self.closed |= closed;
        session.seal_due(Instant::now, &mut self.outgoing).map(|_| ())
    }
}

impl Side for Ours {
    fn give(&mut self, wire: &[u8]) -> Result<(), SessionError> {
        self.incoming.extend_from_slice(wire);
        if self.handshake.is_some() {
            self.handshake();
        }
        if self.closed { Ok(()) } else { self.open() }
    }

    fn take(&mut self) -> Vec<u8> {
        if self.handshake.is_some() {
            self.handshake();
        }
        std::mem::take(&mut self.outgoing)
    }

    fn write(&mut self, payload: &[u8]) {
        let session = self.session.as_mut().unwrap();
        session.seal_due(Instant::now, &mut self.outgoing).unwrap();
        let protection = session.protection();
        let parts = payload.chunks(PAYLOAD_BYTES_MAX);
        let mut buffer = vec![0; parts.len() * protection.slot_bytes()];
        for (slot, part) in buffer.chunks_exact_mut(protection.slot_bytes()).zip(parts) {
            slot[protection.prefix_bytes()..][..part.len()].copy_from_slice(part);
        }
        let sealed = session.seal_slots(&mut self.hot, &mut buffer, payload.len()).unwrap();
        self.outgoing.extend_from_slice(&buffer[..sealed]);
    }

    fn close(&mut self) {
        self.session.as_mut().unwrap().seal_close(&mut self.outgoing).unwrap();
    }

    fn received(&self) -> &[u8] {
        &self.received
    }

    fn is_closed(&self) -> bool {
        self.closed
    }
}

/// An end with the library's own connection.
struct Plain {
    connection: Connection,
    received: Vec<u8>,
    closed: bool,
}

impl Plain {
    fn client(settings: &Settings) -> Self {
        Self::client_with(settings, None)
    }

    /// Creates a client with records of at most this size, including the header.
    fn client_with(settings: &Settings, record_bytes: Option<usize>) -> Self {
        let name = settings.client.server_name.clone().unwrap();
        let mut config = (*settings.client.config).clone();
        config.max_fragment_size = record_bytes;
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        Self { connection: connection.into(), received: Vec::new(), closed: false }
    }

    fn server(settings: &Settings) -> Self {
        Self::server_with(settings, None)
    }

    fn server_with(settings: &Settings, record_bytes: Option<usize>) -> Self {
        let mut config = (*settings.server.config).clone();
        config.max_fragment_size = record_bytes;
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        Self { connection: connection.into(), received: Vec::new(), closed: false }
    }

    fn refresh(&mut self) {
        self.connection.refresh_traffic_keys().unwrap();
    }
}

impl Side for Plain {
    fn give(&mut self, mut wire: &[u8]) -> Result<(), SessionError> {
        while !wire.is_empty() {
            self.connection.read_tls(&mut wire).unwrap();
            let state = self.connection.process_new_packets().unwrap();
            let start = self.received.len();
            self.received.resize(start + state.plaintext_bytes_to_read(), 0);
            let mut reader = self.connection.reader();
            std::io::Read::read_exact(&mut reader, &mut self.received[start..]).unwrap();
            self.closed |= state.peer_has_closed();
        }
        Ok(())
    }

    fn take(&mut self) -> Vec<u8> {
        let mut wire = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut wire).unwrap();
        }
        wire
    }

    fn write(&mut self, payload: &[u8]) {
        self.connection.set_buffer_limit(None);
        std::io::Write::write_all(&mut self.connection.writer(), payload).unwrap();
    }

    fn close(&mut self) {
        self.connection.send_close_notify();
    }

    fn received(&self) -> &[u8] {
        &self.received
    }

    fn is_closed(&self) -> bool {
        self.closed
    }
}

/// Moves bytes in both directions until neither side sends more.
fn settle(one: &mut impl Side, other: &mut impl Side) {
    loop {
        let there = one.take();
        let back = other.take();
        if there.is_empty() && back.is_empty() {
            return;
        }
        other.give(&there).unwrap();
        one.give(&back).unwrap();
    }
}

/// Creates a client and a server of tacit that trust each other.
fn pair(suite: Suite, rekey: Rekey) -> (Ours, Ours) {
    let settings = settings(suite);
    let mut client = Ours::client(&settings, rekey);
    let mut server = Ours::server(&settings, NO_REKEY);
    settle(&mut client, &mut server);
    (client, server)
}
