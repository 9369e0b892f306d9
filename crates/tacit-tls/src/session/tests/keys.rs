//! Tests when a session changes its keys: after a number of bytes, after a time, and at the limit
//! of a key.

use std::cell::Cell;
use std::num::NonZeroU64;

use super::*;
use crate::keys::{ExpandedKeyCache, HOT_CONNECTIONS_MAX};

thread_local! {
    static START: Instant = Instant::now();
    static PASSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// A clock that stands still until a test advances it.
fn clock() -> Instant {
    START.with(|start| *start) + PASSED.get()
}

fn by_bytes(bytes: u64) -> Rekey {
    Rekey { bytes: NonZeroU64::new(bytes), after: None }
}

#[test]
fn bytes_of_both_directions_together_bring_new_keys() {
    let (mut client, mut server) = pair(TLS13, by_bytes(1000));
    client.write(&[1; 600]);
    settle(&mut client, &mut server);
    assert_eq!(client.session().rekeys(), 0);
    server.write(&[2; 400]);
    settle(&mut client, &mut server);
    assert_eq!(client.session().rekeys(), 1);
    assert_eq!(server.session().rekeys(), 1, "the other direction follows");
    client.write(&[3; 10]);
    server.write(&[4; 10]);
    settle(&mut client, &mut server);
    assert!(server.received().ends_with(&[3; 10]) && client.received().ends_with(&[4; 10]));
    assert_eq!(client.session().rekeys(), 1);
}

#[test]
fn an_upload_that_is_never_answered_may_change_keys_without_limit() {
    let (mut client, mut server) = pair(TLS13, by_bytes(1000));
    for round in 1..=100 {
        client.write(&[1; 1000]);
        settle(&mut client, &mut server);
        // The change itself is sent with the next write.
        assert!(client.session().rekeys() >= round - 1);
    }
    assert_eq!(server.received().len(), 100_000);
}

#[test]
fn time_brings_new_keys_with_the_next_bytes() {
    let after = Duration::from_secs(3600);
    let (mut client, _) = pair(TLS13, Rekey { bytes: None, after: Some(after) });
    client.session().rekey.as_mut().unwrap().last = clock();
    let mut out = Vec::new();
    PASSED.set(after - Duration::from_secs(1));
    assert_eq!(client.session().seal_due(clock, &mut out), Ok(false));
    PASSED.set(after);
    assert_eq!(client.session().seal_due(clock, &mut out), Ok(true));
    assert_eq!(client.session().seal_due(clock, &mut out), Ok(false), "the time starts again");
    PASSED.set(after * 2);
    assert_eq!(client.session().seal_due(clock, &mut out), Ok(true));
    assert_eq!(client.session().rekeys(), 2);
}

#[test]
fn new_keys_that_are_asked_for_change_both_directions_and_not_too_often() {
    let (mut client, mut server) = pair(TLS13, NO_REKEY);
    let ask = |side: &mut Ours| {
        let mut out = Vec::new();
        let asked = side.session().rekey(clock(), &mut out);
        side.outgoing.append(&mut out);
        asked
    };
    for round in 1..=u32::from(UPDATES_WITHOUT_DATA_MAX) {
        assert_eq!(ask(&mut client), Ok(()));
        settle(&mut client, &mut server);
        assert_eq!((client.session().rekeys(), server.session().rekeys()), (round, round));
    }
    assert_eq!(ask(&mut client), Err(NoRekey::TooOften));
    client.write(&[1; 10]);
    settle(&mut client, &mut server);
    assert_eq!(ask(&mut client), Ok(()));
    settle(&mut client, &mut server);
    server.close();
    settle(&mut client, &mut server);
    assert_eq!(ask(&mut client), Err(NoRekey::Closed));
    assert_eq!(ask(&mut server), Err(NoRekey::Closed));
    let (mut client, _) = pair(TLS12, NO_REKEY);
    assert_eq!(ask(&mut client), Err(NoRekey::OldVersion));
}

#[test]
fn what_follows_a_close_is_left_where_it_is() {
    let (mut client, mut server) = pair(TLS13, NO_REKEY);
    server.write(b"last");
    server.close();
    let mut wire = server.take();
    wire.extend_from_slice(b"in clear");
    client.give(&wire).unwrap();
    assert!(client.is_closed());
    assert_eq!((client.received(), client.incoming.as_slice()), (&b"last"[..], &b"in clear"[..]));
}

/// Sets both ends to the state after sealing `records` with the key.
fn age(sender: &mut Ours, receiver: &mut Ours, records: u64) {
    let sealer = &mut sender.session().sealer;
    *sealer = RecordSealer::new(sealer.protection(), sealer.first_nonce(), records);
    let protection = sealer.protection();
    let iv = sealer.first_nonce();
    receiver.session().opener = RecordOpener::new(protection, iv, records);
}

#[test]
fn a_key_near_its_limit_is_replaced() {
    let (mut client, mut server) = pair(TLS13, NO_REKEY);
    let limit = client.session().protection().records_max();
    age(&mut client, &mut server, limit - RECORDS_LEFT_MIN);
    client.write(b"the old key");
    assert_eq!(client.session().rekeys(), 0);
    client.write(b", the new key");
    assert_eq!(client.session().rekeys(), 1);
    settle(&mut client, &mut server);
    assert_eq!(server.received(), b"the old key, the new key");
}

#[test]
fn without_key_updates_the_use_of_a_key_is_known_before_its_limit() {
    let (mut client, mut server) = pair(TLS12, NO_REKEY);
    let limit = client.session().protection().records_max();
    let uses = [
        (0, KeyUse::Low),
        (limit / 10 * 9, KeyUse::Low),
        (limit / 10 * 9 + 10, KeyUse::High),
        (limit - RECORDS_LEFT_MIN + 1, KeyUse::Last),
        (limit - LAST_RECORDS_MIN + 1, KeyUse::Full),
    ];
    for (records, key_use) in uses {
        age(&mut client, &mut server, records);
        assert_eq!(client.session().key_use(), key_use, "after {records} records");
    }
    // The session must still be able to send the alert that ends it.
    client.write(b"the last batch");
    client.close();
    settle(&mut client, &mut server);
    assert!(server.is_closed());
    assert_eq!(server.received(), b"the last batch");
    let (mut client, mut server) = pair(TLS13, NO_REKEY);
    let limit = client.session().protection().records_max();
    age(&mut client, &mut server, limit - 1);
    assert_eq!(client.session().key_use(), KeyUse::Low, "a KeyUpdate follows");
}

#[test]
fn small_records_do_not_end_a_session_that_has_no_key_updates() {
    let (mut client, _) = pair(TLS12, NO_REKEY);
    let records = client.session().sealer.records_left();
    for _ in 0..2000 {
        client.session().seal(b"a small record of 31 bytes long").unwrap();
    }
    let used = records - client.session().sealer.records_left();
    assert!(used < 10, "{used} of a full size were counted for 2000 of 31 bytes");
}

#[test]
fn without_key_updates_a_key_near_its_limit_ends_the_session_aloud() {
    let (mut client, mut server) = pair(TLS12, NO_REKEY);
    let limit = client.session().protection().records_max();
    age(&mut client, &mut server, limit - RECORDS_RESERVED - 1);
    client.write(b"the last record");
    let used_up = SessionError::Record(RecordError::KeyUsedUp);
    let mut buffer = vec![0; client.session().protection().slot_bytes()];
    assert_eq!(client.session().seal_slots(&mut HotKeys::default(), &mut buffer, 1), Err(used_up));
    let mut alert = Vec::new();
    client.session().seal_alert(used_up.alert().unwrap(), &mut alert).unwrap();
    client.outgoing.extend(alert);
    let wire = client.take();
    let told = SessionError::PeerAlert(AlertDescription::INTERNAL_ERROR);
    assert_eq!(server.give(&wire), Err(told));
    assert_eq!(server.received(), b"the last record");
}

#[test]
fn a_peer_that_asks_for_keys_and_does_not_read_costs_no_memory() {
    let (mut client, mut server) = pair(TLS13, NO_REKEY);
    for _ in 0..1000 {
        let mut wire = Vec::new();
        client.session().update_sending_key(KeyUpdateRequest::Requested, &mut wire).unwrap();
        wire.extend(client.session().seal(b"x").unwrap());
        let mut payloads = Vec::new();
        server.session().open_batch(&mut HotKeys::default(), &mut wire, &mut payloads).unwrap();
    }
    let mut out = Vec::new();
    assert_eq!(server.session().seal_due(Instant::now, &mut out), Ok(true));
    assert!(out.len() < 100, "one answer to all: {} bytes", out.len());
    assert_eq!(server.session().seal_due(Instant::now, &mut out), Ok(false));
    client.give(&out).unwrap();
    server.write(b"done");
    settle(&mut client, &mut server);
    assert_eq!(client.received(), b"done");
}

#[test]
fn a_peer_that_has_closed_is_not_asked_for_new_keys() {
    for closes in [false, true] {
        let (mut client, mut server) = pair(TLS13, by_bytes(1));
        server.write(b"the last bytes");
        if closes {
            server.close();
        }
        client.give(&server.take()).unwrap();
        client.write(b"and the answer");
        assert_eq!(client.session().rekeys(), 1);
        server.give(&client.take()).unwrap();
        assert_eq!(server.received(), b"and the answer");
        // The reply to a request that cannot be answered would stay pending.
        assert_eq!(server.session().rekeys(), u32::from(!closes));
        assert!(server.session().pending_reply.is_none());
    }
}

#[test]
fn nothing_is_answered_after_our_close() {
    for suite in [TLS12, TLS13] {
        let rekey = if suite == TLS13 { by_bytes(1) } else { NO_REKEY };
        let (mut client, mut server) = pair(suite, rekey);
        client.close();
        settle(&mut client, &mut server);
        server.write(b"data");
        let mut wire = server.take();
        match suite {
            TLS12 => server.session().seal_message(ContentType::Handshake, &[0; 4], &mut wire),
            _ => server.session().update_sending_key(KeyUpdateRequest::Requested, &mut wire),
        }
        .unwrap();
        client.give(&wire).unwrap();
        assert!(client.take().is_empty());
        assert_eq!(client.received(), b"data");
    }
}

/// Seals with the key of one end and opens with the key of the other end, through the cache; each
/// end has a number.
fn carry(
    ring: &mut ExpandedKeyCache,
    from: (u64, &mut Ours),
    to: (u64, &mut Ours),
    payload: &[u8],
) {
    let from_id = from.0;
    let from = from.1.session();
    let mut wire = Vec::new();
    from.seal_due(Instant::now, &mut wire).unwrap();
    let protection = from.protection();
    let mut slot = vec![0; protection.slot_bytes()];
    slot[protection.prefix_bytes()..][..payload.len()].copy_from_slice(payload);
    let sealed = from.seal_slots(ring.of(from_id), &mut slot, payload.len()).unwrap();
    wire.extend_from_slice(&slot[..sealed]);
    let mut payloads = Vec::new();
    to.1.session().open_batch(ring.of(to.0), &mut wire, &mut payloads).unwrap();
    let opened: Vec<u8> = payloads.into_iter().flat_map(|range| wire[range].to_vec()).collect();
    assert_eq!(opened, payload);
}

#[test]
fn connections_that_share_a_slot_of_the_keyring_keep_their_own_keys() {
    for suite in Suite::DEFAULT {
        let bytes = if suite.version() == TlsVersion::V1_3 { 30 } else { u64::MAX };
        let mut pairs = [pair(suite, by_bytes(bytes)), pair(suite, by_bytes(bytes))];
        let mut ring = ExpandedKeyCache::default();
        for round in 0..20 {
            // Every other time, one connection is skipped, so that its keys are still in the cache.
            for (at, (client, server)) in pairs.iter_mut().enumerate().skip(round % 2) {
                let one = (at * HOT_CONNECTIONS_MAX) as u64;
                let other = (at * HOT_CONNECTIONS_MAX + 1) as u64;
                carry(&mut ring, (one, client), (other, server), b"there");
                carry(&mut ring, (other, server), (one, client), b"and back");
            }
            if round == 10 {
                ring.forget(1);
            }
        }
        if suite.version() == TlsVersion::V1_3 {
            assert!(pairs[0].0.session().rekeys() > 1);
        }
    }
}
