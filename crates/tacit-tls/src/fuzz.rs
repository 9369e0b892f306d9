//! Entry points of the fuzzer: what a stranger can say to a handshake and to a session, and what
//! certificates and lists may hold.
//!
//! Each takes any bytes, must not panic, and returns a number that is the same for inputs that went
//! the same way, so far as that can be told cheaply. Handshakes draw random numbers of their own,
//! so the number may differ where the library's verdict hangs on one.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::LazyLock;
use std::time::Instant;

use rustls_pki_types::{CertificateDer, UnixTime};
use tacit_core::policy::map::Mapped;
use tacit_core::policy::{Group, Map, Rekey, Suite, parse};
use tacit_core::record::{AlertDescription, ContentType};

use super::facts::CertificateFacts;
use super::handshake::{Handshake, INCOMING_BYTES_MAX};
use super::holder::holder;
use super::keys::HotKeys;
use super::machine::Progress;
use super::material;
use super::pair::{self, Pair, ServerAsks};
use super::session::{Batch, Session};

/// Bytes of a session's input that become records, so that one run stays short.
const SCRIPT_BYTES_MAX: usize = 4096;

/// The first byte chooses the role and how the rest is cut into pieces; the rest is what the peer
/// says from the first byte on. An alert that is owed is taken, as the agent does.
#[must_use]
pub fn handshake(input: &[u8]) -> u64 {
    let Some((&choice, wire)) = input.split_first() else { return 0 };
    let (client, server) = sides(choice & 2 == 0);
    let mut handshake = if choice & 1 == 0 { server } else { client };
    let piece = 1 + usize::from(choice >> 2) * 16;
    let mut incoming = Vec::new();
    let mut outgoing = Vec::new();
    let mut flights = 0_u32;
    for part in wire.chunks(piece) {
        incoming.extend_from_slice(part);
        outgoing.clear();
        let progress = handshake.advance(&mut incoming, &mut outgoing);
        flights += u32::from(!outgoing.is_empty());
        match progress {
            Ok(Progress::Blocked) if incoming.len() > INCOMING_BYTES_MAX => {
                return outcome(&("too long", handshake.too_long().kind));
            }
            Ok(Progress::Blocked) => {}
            Ok(Progress::Done) => {
                let finished = handshake.finish(Rekey::default(), Instant::now(), UnixTime::now());
                return outcome(&("done", flights, finished.is_ok()));
            }
            Err(failure) => return outcome(&(flights, failure.kind, outgoing.get(6).copied())),
        }
    }
    outcome(&("more", flights, handshake.cut_off().kind))
}

/// A certificate, or a list of revoked ones: what it says is in order, whatever it is.
#[must_use]
pub fn certificate(input: &[u8]) -> u64 {
    let der = CertificateDer::from(input);
    let facts = CertificateFacts::from_der(&der);
    let said = facts.as_ref().map(|facts| (facts.sans.len(), facts.usages.len(), facts.version));
    let texts = facts.iter().flat_map(|facts| facts.sans.iter().chain([&facts.subject]));
    assert!(texts.flat_map(|text| text.chars()).all(|c| !c.is_control()), "control characters");
    let found = holder(&der, None).map(|holder| match MAP.find(&holder) {
        Mapped::Entry(entry) => entry.position.line,
        Mapped::Ambiguous(..) | Mapped::Nobody => 0,
    });
    let list = material::list_facts(input).map(|facts| facts.revoked);
    outcome(&(said.ok(), found.ok(), list))
}

/// Seeds for [`certificate`].
#[must_use]
pub fn certificate_seeds() -> Vec<Vec<u8>> {
    let made = pair::certificate("a.example").ok();
    made.map(|(certificate, _)| certificate.to_vec()).into_iter().collect()
}

/// A map that asks about everything that a certificate says.
static MAP: LazyLock<Map> = LazyLock::new(|| {
    let text = "version = 1\n[[map.m]]\nsubject = \"CN=*a*, O=*\"\nname = \"a\"\n\
                [[map.m]]\ndns = \"*.example\"\nissuer = \"CN=*\"\nname = \"b\"\n\
                [[map.m]]\nuri = \"*\"\nname = \"c\"\n[[map.m]]\nip = \"0.0.0.0/0\"\nname = \"d\"";
    let mut maps = parse(text).policy.map(|policy| policy.maps).unwrap_or_default();
    maps.remove("m").unwrap_or_else(|| Map::new(Vec::new()))
});

/// What a client says first: seeds for [`handshake`], for both versions.
#[must_use]
pub fn handshake_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for tls13 in [true, false] {
        let (mut client, mut server) = sides(tls13);
        let choice = if tls13 { 0 } else { 2 };
        let mut hello = Vec::new();
        let mut answer = Vec::new();
        // A side that fails leaves its alert, which is a seed too.
        let _ = client.advance(&mut Vec::new(), &mut hello);
        let _ = server.advance(&mut hello.clone(), &mut answer);
        for (role, wire) in [(0, hello), (1, answer)] {
            let mut seed = vec![choice | role | 0xfc];
            seed.extend(wire);
            seeds.push(seed);
        }
    }
    seeds
}

/// The first byte chooses version and role; the rest is a script of what an authenticated peer
/// sends: `kind length payload`, where the kind's low bits choose the content and one bit spoils
/// the record. Payload before an error is kept, and nothing is kept without limit.
#[must_use]
pub fn session(input: &[u8]) -> u64 {
    let Some((&choice, mut script)) = input.split_first() else { return 0 };
    let (client, server) = sides(choice & 1 == 0);
    let (mut peer, mut ours) = establish(client, server);
    if choice & 2 != 0 {
        (peer, ours) = (ours, peer);
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
    let sealed = ours.seal_due(Instant::now, &mut due).is_ok();
    assert!(due.len() < 256, "one answer at most: {}", due.len());
    let said = match opened {
        Ok(Batch { consumed, closed }) => {
            assert!(consumed <= wire.len());
            format!("{closed}")
        }
        Err(error) => {
            if let Some(alert) = error.alert() {
                assert!(ours.seal_alert(alert, &mut due).is_ok());
            }
            error.to_string()
        }
    };
    outcome(&(said, payloads.len().min(4), sealed))
}

/// For each version: data, a KeyUpdate or a renegotiation, a close.
#[must_use]
pub fn session_seeds() -> Vec<Vec<u8>> {
    let script = [&[0, 4][..], b"data", &[1, 5, 24, 0, 0, 1, 1, 0, 1, 7, 2, 2, 1, 0]].concat();
    let declined = [&[1, 4, 1, 0, 0, 0, 0, 4][..], b"more", &[2, 2, 1, 100]].concat();
    (0..4)
        .flat_map(|choice| [&script, &declined].map(|script| [&[choice][..], script].concat()))
        .collect()
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

fn outcome(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A client and a server that could talk to each other.
fn sides(tls13: bool) -> (Handshake, Handshake) {
    static BOTH: LazyLock<[Pair; 2]> = LazyLock::new(|| {
        [Suite::TLS_AES_128_GCM_SHA256, Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256].map(
            // Asked for and not required: a certificate of the peer's is input too.
            |suite| {
                pair::settings(suite, &[Group::X25519], ServerAsks::Certificate)
                    .unwrap_or_else(|error| panic!("the fuzzer's own set-up: {error}"))
            },
        )
    });
    let Pair { client, server } = &BOTH[usize::from(!tls13)];
    match (Handshake::client(client, &[]), Handshake::server(server)) {
        (Ok(client), Ok(server)) => (client, server),
        _ => panic!("the fuzzer's own set-up: no handshake begins"),
    }
}

/// Runs both handshakes to their end.
fn establish(mut client: Handshake, mut server: Handshake) -> (Session, Session) {
    let mut to_server = Vec::new();
    let mut to_client = Vec::new();
    let done = (0..4).any(|_| {
        let client = client.advance(&mut to_client, &mut to_server);
        let server = server.advance(&mut to_server, &mut to_client);
        (client, server) == (Ok(Progress::Done), Ok(Progress::Done)) && to_client.is_empty()
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
