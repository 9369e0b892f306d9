//! Tests records and messages that a correct peer never sends. The tests check the error and the
//! alert. They also check that the session keeps the data received before the error.

use tacit_core::record::{
    EMPTY_RECORDS_MAX, HEADER_BYTES, PROTECTED_BYTES_MAX, Seal as _, TAG_BYTES,
};

use super::*;

/// Creates a record with any inner content; TLS 1.3 only.
fn sealed_raw(session: &mut Session, inside: &[u8]) -> Vec<u8> {
    let sealer = &session.sealer;
    let iv = sealer.first_nonce();
    let sequence = sealer.sequence();
    let mut nonce = iv;
    for (byte, mask) in nonce[4..].iter_mut().zip(sequence.to_be_bytes()) {
        *byte ^= mask;
    }
    let length = u16::try_from(inside.len() + TAG_BYTES).unwrap().to_be_bytes();
    let mut wire = vec![23, 3, 3, length[0], length[1]];
    let mut data = inside.to_vec();
    let mut key = session.seal_key.seal(sealer).unwrap();
    let tag = key.seal(nonce, &wire, &mut data).unwrap();
    wire.extend(data);
    wire.extend(tag);
    session.sealer = RecordSealer::new(session.protection(), iv, sequence + 1);
    wire
}

fn sealed(session: &mut Session, content: ContentType, message: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    session.seal_message(content, message, &mut wire).unwrap();
    wire
}

fn handshake(session: &mut Session, message: &[u8]) -> Vec<u8> {
    sealed(session, ContentType::Handshake, message)
}

fn alert(session: &mut Session, message: &[u8]) -> Vec<u8> {
    sealed(session, ContentType::Alert, message)
}

fn many(count: u32, mut one: impl FnMut() -> Vec<u8>) -> Vec<u8> {
    (0..count).flat_map(|_| one()).collect()
}

/// Sends valid data, then what `make` creates with the client's session. Checks the error and the
/// alert.
fn expect(suite: Suite, make: impl Fn(&mut Session) -> Vec<u8>, error: SessionError, code: u8) {
    let (mut client, mut server) = pair(suite, NO_REKEY);
    client.write(b"good");
    let mut wire = client.take();
    wire.extend(make(client.session()));
    let name = format!("{suite:?}: {error}");
    assert_eq!(server.give(&wire), Err(error), "{name}");
    assert_eq!(server.received(), b"good", "{name}");
    let told = error.alert().unwrap();
    assert_eq!(told, AlertDescription(code), "{name}");
    let mut out = Vec::new();
    server.session().seal_alert(told, &mut out).unwrap();
    assert_eq!(client.give(&out), Err(SessionError::PeerAlert(told)), "{name}");
}

fn misbehaved(suite: Suite, make: impl Fn(&mut Session) -> Vec<u8>, what: &'static str, code: u8) {
    expect(suite, make, SessionError::PeerMisbehaved(what, AlertDescription(code)), code);
}

const UNEXPECTED: u8 = 10;
const BAD_MAC: u8 = 20;
const OVERFLOW: u8 = 22;
const ILLEGAL: u8 = 47;
const DECODE: u8 = 50;
const VERSION: u8 = 70;

#[test]
fn records_of_every_illegal_shape_are_refused_after_the_good_ones() {
    use RecordError as E;
    for suite in [TLS12, TLS13] {
        let refused = |make: &dyn Fn(&mut Session) -> Vec<u8>, error: E, code| {
            expect(suite, make, SessionError::Record(error), code);
        };
        let header = |bytes: [u8; HEADER_BYTES]| move |_: &mut Session| bytes.to_vec();
        refused(&header([99, 3, 3, 0, 40]), E::PeerSentContentType(99), UNEXPECTED);
        // A change_cipher_spec record, which is valid only during the handshake.
        refused(&header([20, 3, 3, 0, 1]), E::PeerSentContentType(20), UNEXPECTED);
        refused(&header([23, 2, 0, 0, 40]), E::PeerSentVersion(0x0200), VERSION);
        refused(&header([23, 3, 3, 0, 3]), E::PeerSentTooShort, BAD_MAC);
        let [high, low] = u16::try_from(PROTECTED_BYTES_MAX + 1).unwrap().to_be_bytes();
        refused(&header([23, 3, 3, high, low]), E::PeerSentTooLong, OVERFLOW);
        let forged = |session: &mut Session| {
            let mut wire = session.seal(b"changed on its way").unwrap();
            *wire.last_mut().unwrap() ^= 1;
            wire
        };
        refused(&forged, E::PeerSentForged, BAD_MAC);
        let repeated = |session: &mut Session| {
            let old = session.sealer.clone();
            let _ = session.seal(b"once").unwrap();
            session.sealer =
                RecordSealer::new(old.protection(), old.first_nonce(), old.sequence() - 1);
            session.seal(b"twice").unwrap()
        };
        refused(&repeated, E::PeerSentForged, BAD_MAC);
        let empty = |session: &mut Session| {
            many(EMPTY_RECORDS_MAX, || sealed(session, ContentType::ApplicationData, b""))
        };
        refused(&empty, E::PeerSentEmptyRecords, UNEXPECTED);
    }
}

#[test]
fn what_padding_may_hide_is_refused() {
    use RecordError as E;
    let refused = |inside: &[u8], error: E, code| {
        let make = |session: &mut Session| sealed_raw(session, inside);
        expect(TLS13, make, SessionError::Record(error), code);
    };
    refused(&[0; 64], E::PeerSentNoContentType, UNEXPECTED);
    refused(b"data\x63", E::PeerSentContentType(0x63), UNEXPECTED);
    refused(b"\x01\x14", E::PeerSentContentType(20), UNEXPECTED);
    refused(&[22], E::PeerSentContentType(22), UNEXPECTED);
    refused(&[21, 0, 0], E::PeerSentContentType(21), UNEXPECTED);
    let mut long = vec![1; PAYLOAD_BYTES_MAX + 1];
    long.push(23);
    refused(&long, E::PeerSentTooLong, OVERFLOW);
}

#[test]
fn alerts_of_every_illegal_shape_are_refused() {
    const UNREADABLE: &str = "the peer sent a malformed alert";
    for suite in [TLS12, TLS13] {
        for message in [&[2][..], &[1, 0, 0], &[0; 100]] {
            misbehaved(suite, |session| alert(session, message), UNREADABLE, DECODE);
        }
        let endless = |session: &mut Session| many(33, || alert(session, &[1, 90]));
        let what = "the peer sent too many KeyUpdates, renegotiation requests or warnings in a row";
        misbehaved(suite, endless, what, UNEXPECTED);
    }
}

#[test]
fn a_fatal_or_unknown_alert_ends_the_session_and_is_not_answered() {
    for suite in [TLS12, TLS13] {
        for code in [10, 40, 80, 113, 254] {
            let (mut client, mut server) = pair(suite, NO_REKEY);
            client.write(b"good");
            let mut wire = client.take();
            wire.extend(alert(client.session(), &[2, code]));
            let gave_up = SessionError::PeerAlert(AlertDescription(code));
            assert_eq!(server.give(&wire), Err(gave_up));
            assert_eq!((server.received(), gave_up.alert()), (&b"good"[..], None));
        }
    }
}

#[test]
fn nothing_comes_after_a_close() {
    for suite in [TLS12, TLS13] {
        let (mut client, mut server) = pair(suite, NO_REKEY);
        client.write(b"good");
        client.close();
        client.write(b"ignored");
        let mut wire = client.take();
        wire.extend([99; 20]);
        assert_eq!(server.give(&wire), Ok(()));
        assert!(server.is_closed());
        assert_eq!(server.received(), b"good");
    }
}

const KEY_UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];

#[test]
fn key_updates_of_every_illegal_shape_are_refused() {
    let refused = |message: &[u8], what, code| {
        misbehaved(TLS13, |session| handshake(session, message), what, code);
    };
    const UNREADABLE: &str = "the peer sent a malformed KeyUpdate";
    refused(&[24, 0, 0, 1, 2], UNREADABLE, ILLEGAL);
    refused(&[24, 0, 0, 0], UNREADABLE, ILLEGAL);
    refused(&[24, 0, 0, 2, 0, 0], UNREADABLE, ILLEGAL);
    refused(
        &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0],
        "the peer sent a KeyUpdate and another message in the same record",
        UNEXPECTED,
    );
    refused(
        &[24, 0, 0, 1, 0, 24, 0],
        "the peer changed its traffic key in the middle of a handshake message",
        UNEXPECTED,
    );
    let flood = |session: &mut Session| {
        many(u32::from(IDLE_MESSAGES_MAX) + 1, || {
            let mut wire = Vec::new();
            session.update_sending_key(KeyUpdateRequest::Requested, &mut wire).unwrap();
            wire
        })
    };
    let what = "the peer sent too many KeyUpdates, renegotiation requests or warnings in a row";
    misbehaved(TLS13, flood, what, UNEXPECTED);
}

#[test]
fn a_key_update_in_fragments_is_one_message() {
    let (mut client, mut server) = pair(TLS13, NO_REKEY);
    // Does the same as update_sending_key, with the message in five records.
    let old = client.session().sealer.sequence();
    let mut whole = Vec::new();
    let (iv, protection) = {
        let session = client.session();
        (session.sealer.first_nonce(), session.protection())
    };
    for byte in KEY_UPDATE_REQUESTED {
        whole.extend(handshake(client.session(), &[byte]));
    }
    server.give(&whole).unwrap();
    client.session().sealer = RecordSealer::new(protection, iv, old);
    client.session().update_sending_key(KeyUpdateRequest::Requested, &mut Vec::new()).unwrap();
    client.write(b"with the new key");
    settle(&mut client, &mut server);
    assert_eq!(server.received(), b"with the new key");
    server.write(b"and back");
    settle(&mut client, &mut server);
    assert_eq!(client.received(), b"and back");
}

#[test]
fn nothing_comes_between_the_records_of_one_message() {
    const INSIDE: &str = "the peer sent a record of another type in the middle of a handshake \
                          message";
    let between = |content, message: &'static [u8]| {
        move |session: &mut Session| {
            let mut wire = handshake(session, &KEY_UPDATE_REQUESTED[..3]);
            wire.extend(sealed(session, content, message));
            wire
        }
    };
    misbehaved(TLS13, between(ContentType::ApplicationData, b"data"), INSIDE, UNEXPECTED);
    misbehaved(TLS13, between(ContentType::ApplicationData, b""), INSIDE, UNEXPECTED);
    misbehaved(TLS13, between(ContentType::Alert, &[1, 0]), INSIDE, UNEXPECTED);
}

#[test]
fn messages_of_the_handshake_are_not_legal_after_it() {
    const NOT_LEGAL: &str =
        "the peer sent a handshake message that is not legal after the handshake";
    let ticket = [4, 0, 0, 5, 0, 0, 0, 0, 0];
    for suite in [TLS12, TLS13] {
        // The client of the pair sends a ticket to a server.
        misbehaved(suite, |session| handshake(session, &ticket), NOT_LEGAL, UNEXPECTED);
        // A certificate request, and a message of an unknown type.
        misbehaved(suite, |session| handshake(session, &[13, 0, 0, 0]), NOT_LEGAL, UNEXPECTED);
        misbehaved(suite, |session| handshake(session, &[99, 0, 0, 0]), NOT_LEGAL, UNEXPECTED);
    }
    for kind in [HELLO_REQUEST, CLIENT_HELLO] {
        let hello = [kind, 0, 0, 0];
        misbehaved(TLS13, |session| handshake(session, &hello), NOT_LEGAL, UNEXPECTED);
    }
    misbehaved(TLS12, |session| handshake(session, &KEY_UPDATE_REQUESTED), NOT_LEGAL, UNEXPECTED);
}

#[test]
fn a_ticket_that_cannot_be_read_is_refused() {
    let (mut client, mut server) = pair(TLS13, NO_REKEY);
    let wire = handshake(server.session(), &[4, 0, 0, 3, 1, 2, 3]);
    let what = "the peer sent a malformed session ticket";
    let error = SessionError::PeerMisbehaved(what, AlertDescription::DECODE_ERROR);
    assert_eq!(client.give(&wire), Err(error));
}

#[test]
fn messages_without_end_are_refused() {
    for suite in [TLS12, TLS13] {
        let long = |session: &mut Session| {
            let mut message = vec![0; MESSAGE_BYTES_MAX + 1];
            message[..4].copy_from_slice(&[1, 0xff, 0xff, 0xff]);
            message.chunks(PAYLOAD_BYTES_MAX).flat_map(|part| handshake(session, part)).collect()
        };
        misbehaved(suite, long, "the peer sent a handshake message that is too long", DECODE);
    }
}

#[test]
fn renegotiation_is_declined_and_the_session_goes_on() {
    let (mut client, mut server) = pair(TLS12, NO_REKEY);
    for (kind, client_asks) in [(CLIENT_HELLO, true), (HELLO_REQUEST, false)] {
        let (asks, declines) =
            if client_asks { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let wire = handshake(asks.session(), &[kind, 0, 0, 0]);
        declines.give(&wire).unwrap();
        let answer = declines.take();
        assert!(!answer.is_empty());
        asks.give(&answer).unwrap();
    }
    client.write(b"still");
    settle(&mut client, &mut server);
    assert_eq!(server.received(), b"still");
    let endless = |session: &mut Session| many(33, || handshake(session, &[CLIENT_HELLO, 0, 0, 0]));
    let what = "the peer sent too many KeyUpdates, renegotiation requests or warnings in a row";
    misbehaved(TLS12, endless, what, UNEXPECTED);
}
