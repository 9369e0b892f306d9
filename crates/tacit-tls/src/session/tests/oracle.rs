//! Tests that a session returns the same bytes as a connection of the TLS library.

use proptest::prelude::*;

use super::*;

/// Returns bytes that depend on the number and on the position.
fn pattern(number: u8, length: usize) -> Vec<u8> {
    (0..=250).cycle().map(|byte: u8| byte ^ number).take(length).collect()
}

/// Does a handshake, lets each side write and close, and compares the received bytes.
fn run_exchange(ours: &mut Ours, plain: &mut Plain) {
    settle(ours, plain);
    let mut expected = (ours.received.clone(), plain.received.clone());
    for (round, length) in (1..).zip([1, 16_383, 16_384, 16_385, 100_000]) {
        let payload = pattern(round, length);
        ours.write(&payload);
        plain.write(&payload);
        settle(ours, plain);
        expected.0.extend_from_slice(&payload);
        expected.1.extend_from_slice(&payload);
    }
    assert!(ours.received == expected.0 && plain.received == expected.1);
    ours.close();
    settle(ours, plain);
    assert!(plain.is_closed() && !ours.is_closed());
    // RFC 8446 section 6.1: the two directions end independently.
    plain.write(b"the last word");
    settle(ours, plain);
    assert!(ours.received.ends_with(b"the last word") && !ours.is_closed());
    plain.close();
    settle(ours, plain);
    assert!(ours.is_closed());
}

#[test]
fn every_suite_relays_both_ways_in_both_roles_and_resumes() {
    for suite in Suite::DEFAULT {
        let settings = settings(suite);
        for resumed in [false, true] {
            let mut ours = Ours::client(&settings, NO_REKEY);
            run_exchange(&mut ours, &mut Plain::server(&settings));
            let negotiated = ours.negotiated.unwrap();
            assert_eq!((negotiated.resumed, negotiated.suite), (resumed, suite.name()));
        }
        // The client has the tickets that the sessions above have received.
        for _ in 0..2 {
            let mut ours = Ours::server(&settings, NO_REKEY);
            run_exchange(&mut ours, &mut Plain::client(&settings));
            let negotiated = ours.negotiated.unwrap();
            assert_eq!((negotiated.resumed, negotiated.suite), (true, suite.name()));
        }
    }
}

/// Delivers `wire` in two pieces, then continues and compares the results.
fn deliver_cut(ours: &mut Ours, plain: &mut Plain, wire: &[u8], cut: usize) {
    ours.give(&wire[..cut]).unwrap();
    ours.give(&wire[cut..]).unwrap();
    settle(ours, plain);
}

#[test]
fn a_client_takes_the_servers_wire_cut_anywhere() {
    for suite in [TLS12, TLS13] {
        let settings = settings(suite);
        let mut cut = 0;
        loop {
            let mut ours = Ours::client(&settings, NO_REKEY);
            let mut plain = Plain::server(&settings);
            plain.give(&ours.take()).unwrap();
            // In TLS 1.3 the server may send data with its first flight; the tickets follow the
            // client's Finished message.
            if suite == TLS13 {
                plain.write(b"welcome ");
            }
            ours.give(&plain.take()).unwrap();
            plain.give(&ours.take()).unwrap();
            plain.write(b"hello ");
            if suite == TLS13 {
                plain.refresh();
            }
            plain.write(b"world");
            plain.close();
            let wire = plain.take();
            if cut > wire.len() {
                break;
            }
            deliver_cut(&mut ours, &mut plain, &wire, cut);
            let expected: &[u8] =
                if suite == TLS13 { b"welcome hello world" } else { b"hello world" };
            assert_eq!(ours.received(), expected, "{suite:?} cut at {cut}");
            assert!(ours.is_closed());
            cut += 1;
        }
    }
}

#[test]
fn a_server_takes_the_clients_last_flight_and_its_data_cut_anywhere() {
    for suite in [TLS12, TLS13] {
        let settings = settings(suite);
        // The first connection stores tickets; later ones are faster because of them.
        let mut cut = 0;
        loop {
            let mut ours = Ours::server(&settings, NO_REKEY);
            let mut plain = Plain::client(&settings);
            ours.give(&plain.take()).unwrap();
            plain.give(&ours.take()).unwrap();
            if plain.connection.is_handshaking() {
                settle(&mut ours, &mut plain);
            }
            plain.write(b"hello ");
            if suite == TLS13 {
                plain.refresh();
            }
            plain.write(b"world");
            plain.close();
            let wire = plain.take();
            if cut > wire.len() {
                break;
            }
            deliver_cut(&mut ours, &mut plain, &wire, cut);
            assert_eq!(ours.received(), b"hello world", "{suite:?} cut at {cut}");
            assert!(ours.is_closed());
            ours.write(b"answer");
            settle(&mut ours, &mut plain);
            assert_eq!(plain.received(), b"answer");
            cut += 1;
        }
    }
}

/// A step of the test.
#[derive(Clone, Debug)]
enum Step {
    OursWrites(usize),
    PlainWrites(usize),
    /// The library changes its sending key.
    PlainRefreshes,
    /// The waiting bytes arrive, in pieces of this size.
    Arrives(usize),
    /// The same in the other direction.
    ArrivesThere,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..40_000_usize).prop_map(Step::OursWrites),
        (1..40_000_usize).prop_map(Step::PlainWrites),
        Just(Step::PlainRefreshes),
        (1..20_000_usize).prop_map(Step::Arrives),
        (1..4_usize).prop_map(Step::Arrives),
        Just(Step::ArrivesThere),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_conversation_agrees_with_the_library(
        suite in prop::sample::select(Suite::DEFAULT.to_vec()),
        we_are_client: bool,
        rekey_bytes in prop::option::of(1..50_000_u64),
        record_bytes in prop::option::of(64..PAYLOAD_BYTES_MAX),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let settings = settings(suite);
        let tls13 = suite.version() == TlsVersion::V1_3;
        let bytes = rekey_bytes.filter(|_| tls13).and_then(std::num::NonZeroU64::new);
        let rekey = Rekey { bytes, after: None };
        let (mut ours, mut plain) = if we_are_client {
            (Ours::client(&settings, rekey), Plain::server_with(&settings, record_bytes))
        } else {
            (Ours::server(&settings, rekey), Plain::client_with(&settings, record_bytes))
        };
        settle(&mut ours, &mut plain);
        let mut to_ours = Vec::new();
        let mut to_plain = Vec::new();
        let mut number = 0_u8;
        let mut next = |length| {
            number = number.wrapping_add(1);
            pattern(number, length)
        };
        let mut wire = Vec::new();
        for step in steps {
            match step {
                Step::OursWrites(length) => {
                    let payload = next(length);
                    ours.write(&payload);
                    to_plain.extend(payload);
                }
                Step::PlainWrites(length) => {
                    let payload = next(length);
                    plain.write(&payload);
                    to_ours.extend(payload);
                }
                Step::PlainRefreshes if tls13 => plain.refresh(),
                Step::PlainRefreshes => {}
                Step::Arrives(size) => {
                    wire.extend(plain.take());
                    let whole = wire.len() - wire.len() % size;
                    for piece in wire.drain(..whole).collect::<Vec<u8>>().chunks(size) {
                        ours.give(piece).unwrap();
                    }
                }
                Step::ArrivesThere => plain.give(&ours.take()).unwrap(),
            }
        }
        ours.give(&wire).unwrap();
        settle(&mut ours, &mut plain);
        prop_assert!(ours.received() == to_ours && plain.received() == to_plain);
        plain.close();
        ours.close();
        settle(&mut ours, &mut plain);
        prop_assert!(ours.is_closed() && plain.is_closed());
    }
}

#[test]
fn a_message_in_pieces_with_garbage_behind_fails_with_an_alert() {
    let settings = settings(TLS13);
    for handshake in [Handshake::client(&settings.client, &[]), Handshake::server(&settings.server)]
    {
        let mut handshake = handshake.unwrap();
        let mut incoming = b"\x16\x03\x03\x00\x01\x02".to_vec();
        let mut outgoing = Vec::new();
        assert_eq!(handshake.advance(&mut incoming, &mut outgoing), Ok(HandshakeProgress::Blocked));
        incoming.extend(b"garbage");
        outgoing.clear();
        assert!(handshake.advance(&mut incoming, &mut outgoing).is_err());
        assert_eq!(outgoing.first(), Some(&(ContentType::Alert as u8)));
    }
}
