//! Tests forged answers to the first request of an IKE connection. These answers must not prevent
//! the connection (RFC 7296 section 2.21.1).

use std::sync::Arc;
use std::time::Duration;

use super::pair::{Pair, config, path};
use crate::ike::codec::{
    ExchangeType, IkeHeader, IkeMessage, IkePayload, KePayload, NotifyPayload, encode_message,
    notify,
};
use crate::ike::connection::answers::{NEW_ATTEMPTS_MAX, WAITING_MAX};
use crate::ike::connection::attempts::ATTEMPTS_MAX;
use crate::ike::crypto::TestRandom;
use crate::ike::*;
use crate::secret::SecretBytes;

const SECOND: Duration = Duration::from_secs(1);

/// Two sides whose policies have two groups.
fn pair() -> Pair {
    let mut configs =
        [config("a.example", "b.example", [1, 2]), config("b.example", "a.example", [2, 1])];
    for config in &mut configs {
        let second = IkeProposal { group: KeGroup::P256, ..config.proposals[0] };
        config.proposals.push(second);
    }
    let [a, b] = configs;
    Pair::with(a, b)
}

/// An answer to the first request of the first side.
fn answer(pair: &mut Pair, responder_spi: u64, payloads: &[IkePayload]) -> Vec<u8> {
    let header = IkeHeader {
        initiator_spi: pair.sides[0].connection().opening.as_ref().unwrap().spi(),
        responder_spi,
        exchange: ExchangeType::SaInit,
        from_initiator: false,
        is_response: true,
        message_id: 0,
    };
    encode_message(&header, payloads)
}

/// Answers that anyone can forge who has seen the request.
fn forged(pair: &mut Pair) -> Vec<Vec<u8>> {
    let notified =
        |kind, data: &[u8]| vec![IkePayload::Notify(NotifyPayload::new(kind, data.to_vec()))];
    let mut proposals = pair.sides[0].config.proposals.clone();
    let right = proposal::answer_ike(&proposals[0], 1, None);
    proposals[0].group = KeGroup::Modp2048;
    let other = proposal::answer_ike(&proposals[0], 1, None);
    let value = |number, length| {
        IkePayload::KeyExchange(KePayload { group: number, public_value: vec![0; length] })
    };
    let nonce = || IkePayload::Nonce(vec![7; 32]);
    let offer = IkePayload::SecurityAssociation;
    let group = |number: u16| notified(notify::INVALID_KE_PAYLOAD, &number.to_be_bytes());
    let answers = [
        (0, notified(notify::NO_PROPOSAL_CHOSEN, &[])),
        (0, notified(notify::AUTHENTICATION_FAILED, &[])),
        (0, notified(notify::INVALID_SYNTAX, &[])),
        (0, notified(notify::INVALID_MAJOR_VERSION, &[])),
        (0, notified(notify::COOKIE, &[1; 20])),
        (0, notified(notify::COOKIE, &[1; 65])),
        (0, notified(notify::COOKIE, &[])),
        (0, group(14)),
        (0, group(19)),
        (0, group(2)),
        (0, notified(notify::INVALID_KE_PAYLOAD, &[])),
        (5, vec![offer(right.clone()), value(31, 32), nonce()]),
        (5, vec![offer(right.clone()), value(31, 31), nonce()]),
        (5, vec![offer(right.clone()), value(19, 64), nonce()]),
        (5, vec![offer(other), value(14, 256), nonce()]),
        (5, vec![offer(right), nonce()]),
        (5, Vec::new()),
    ];
    answers.map(|(spi, payloads)| answer(pair, spi, &payloads)).to_vec()
}

/// Someone who has seen the first request, and answers it with a valid key exchange.
struct Forger(IkeConnection);

impl Forger {
    /// Answers the first request, which is in flight.
    fn new(pair: &Pair, seed: u64, auth: ForgedAuth) -> Self {
        Self::answering(&pair.in_flight(1)[0], pair, seed, auth)
    }

    fn answering(request: &[u8], pair: &Pair, seed: u64, auth: ForgedAuth) -> Self {
        let mut config = config("b.example", "a.example", [2, 1]);
        let key = || SecretBytes::new(b"another key".to_vec());
        config.local_auth = LocalAuth::SharedKey(key());
        if auth == ForgedAuth::Refusal {
            config.remote_auth = RemoteAuth::SharedKey(key());
        }
        // It seems to be behind a NAT, so that its address may change.
        let path = IkePath { local: "192.0.2.9:4500".parse().unwrap(), ..path(1) };
        let random = Box::new(TestRandom(seed));
        let accepted = IkeConnection::accept(&[Arc::new(config)], path, random, pair.now, request);
        Self(accepted.unwrap())
    }

    fn message(&mut self) -> Vec<u8> {
        match self.0.poll_transmit() {
            Some(IkeTransmit::Message(bytes)) => bytes,
            other => panic!("{other:?}"),
        }
    }

    /// Its answer to AUTH, which is the last datagram in flight.
    fn answer_auth(&mut self, pair: &Pair) -> Vec<u8> {
        let request = pair.in_flight(1).pop().unwrap();
        self.0.handle_datagram(pair.now, path(1).remote, &request);
        self.message()
    }
}

/// How a forger answers AUTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForgedAuth {
    /// With AUTH that is made with another key.
    WrongKey,
    /// With a refusal.
    Refusal,
}

fn deliver(pair: &mut Pair, bytes: &[u8]) {
    pair.command(0, |connection, now| {
        let from = connection.remote();
        connection.handle_datagram(now, from, bytes);
    });
}

#[test]
fn a_forged_answer_before_the_true_one_does_no_harm() {
    let mut one = pair();
    for number in 0..forged(&mut one).len() {
        let mut pair = pair();
        let bytes = forged(&mut pair).remove(number);
        deliver(&mut pair, &bytes);
        pair.run(SECOND);
        pair.check();
    }
}

#[test]
fn many_forged_answers_cause_few_requests() {
    let mut pair = pair();
    for _ in 0..100 {
        for bytes in forged(&mut pair) {
            deliver(&mut pair, &bytes);
        }
    }
    // The first request, and those with the other group and the first again.
    assert!(pair.datagrams <= 5, "{}", pair.datagrams);
    let is_report = |event: &IkeEvent| matches!(event, IkeEvent::ExchangeFailed(_));
    assert_eq!(pair.sides[0].count(is_report), 1);
    pair.run(SECOND);
    pair.check();
}

#[test]
fn the_true_answer_is_awaited_while_the_first_ones_are_lost() {
    let mut pair = pair();
    pair.drop_flight();
    let refusal = forged(&mut pair).remove(0);
    deliver(&mut pair, &refusal);
    pair.network.lost = 100;
    pair.run(SECOND * 5);
    assert_eq!(pair.sides[0].failure(), None);
    pair.network.lost = 0;
    pair.run(SECOND * 3);
    pair.check();
}

#[test]
fn a_refusal_without_a_true_answer_is_the_failure() {
    let mut pair = pair();
    pair.network.lost = 100;
    pair.drop_flight();
    let refusal = forged(&mut pair).remove(0);
    deliver(&mut pair, &refusal);
    pair.run(SECOND * 16);
    let failure = pair.sides[0].failure().unwrap();
    assert!(failure.message.contains("NO_PROPOSAL_CHOSEN"), "{failure}");
}

#[test]
fn a_demand_for_another_group_that_arrives_twice_changes_the_request_once() {
    let mut pair = pair();
    let demand = forged(&mut pair).remove(8);
    let before = pair.datagrams;
    deliver(&mut pair, &demand);
    deliver(&mut pair, &demand);
    assert_eq!(pair.datagrams, before + 1);
    assert_eq!(pair.sides[0].count(|event| matches!(event, IkeEvent::ExchangeFailed(_))), 0);
}

#[test]
fn an_answer_with_the_flag_of_an_initiator_is_ignored() {
    let mut pair = pair();
    let mut bytes = forged(&mut pair).remove(0);
    bytes[19] |= 0x08;
    deliver(&mut pair, &bytes);
    assert!(pair.sides[0].events.is_empty());
    pair.run(SECOND);
    pair.check();
}

#[test]
fn a_valid_forged_answer_costs_no_time() {
    let mut pair = pair();
    let mut forger = Forger::new(&pair, 7, ForgedAuth::WrongKey);
    let answer = forger.message();
    deliver(&mut pair, &answer);
    deliver(&mut pair, &answer);
    pair.run(SECOND / 2);
    pair.check();
    let is_failure = |event: &IkeEvent| matches!(event, IkeEvent::ExchangeFailed(_));
    assert_eq!(pair.sides[0].count(is_failure), 0);
}

#[test]
fn a_forger_that_answers_auth_before_the_peer_does_no_harm() {
    for auth in [ForgedAuth::WrongKey, ForgedAuth::Refusal] {
        let mut pair = pair();
        let mut forger = Forger::new(&pair, 7, auth);
        let answer = forger.message();
        deliver(&mut pair, &answer);
        let answer = forger.answer_auth(&pair);
        pair.command(0, |connection, now| {
            connection.handle_datagram(now, "192.0.2.2:999".parse().unwrap(), &answer);
        });
        let is_failure = |event: &IkeEvent| matches!(event, IkeEvent::ExchangeFailed(_));
        assert_eq!(pair.sides[0].count(is_failure), 1, "{auth:?}");
        assert_eq!(pair.sides[0].connection().remote(), path(0).remote);
        pair.run(SECOND / 2);
        pair.check();
    }
}

#[test]
fn the_true_answer_is_repeated_while_a_forger_does_not_answer_auth() {
    let mut pair = pair();
    let mut forger = Forger::new(&pair, 7, ForgedAuth::WrongKey);
    let answer = forger.message();
    deliver(&mut pair, &answer);
    pair.network.lost = 100;
    pair.run(SECOND / 2);
    assert!(!pair.sides[0].is_established());
    pair.network.lost = 0;
    pair.run(SECOND);
    pair.check();
}

/// Delivers this number of valid forged answers.
fn deliver_forged(pair: &mut Pair, count: usize) {
    let forgers = (1..).take(count).map(|seed| Forger::new(pair, seed, ForgedAuth::Refusal));
    let answers: Vec<Vec<u8>> = forgers.map(|mut forger| forger.message()).collect();
    for answer in answers {
        deliver(pair, &answer);
        let connection = pair.sides[0].connection();
        assert!(connection.other_attempts.len() <= ATTEMPTS_MAX);
    }
}

#[test]
fn few_of_many_valid_forged_answers_are_tried_and_the_attempt_ends() {
    let mut pair = pair();
    let before = pair.datagrams;
    deliver_forged(&mut pair, 3 * WAITING_MAX);
    assert_eq!(pair.datagrams - before, NEW_ATTEMPTS_MAX, "AUTH requests");
    pair.drop_flight();
    pair.network.lost = 100;
    pair.run(SECOND * 300);
    assert_eq!(pair.sides[0].failure().unwrap().kind, "peer-does-not-answer");
    assert!(pair.sides[0].children.is_empty());
}

#[test]
fn valid_forged_answers_do_not_displace_the_true_one_however_many_arrive_before_it() {
    for count in [7, 8, 9, 63, 200] {
        let mut pair = pair();
        deliver_forged(&mut pair, count);
        pair.run(SECOND * 5);
        pair.check();
    }
}

#[test]
fn forged_answers_that_are_refused_make_room_and_are_recognized() {
    let mut pair = pair();
    let request = pair.in_flight(1).remove(0);
    for seed in 1..=40 {
        let mut forger = Forger::answering(&request, &pair, seed, ForgedAuth::WrongKey);
        let first = forger.message();
        deliver(&mut pair, &first);
        if seed % u64::try_from(NEW_ATTEMPTS_MAX).unwrap() == 0 {
            pair.now += SECOND / 2;
        }
        let refusal = forger.answer_auth(&pair);
        deliver(&mut pair, &refusal);
        let before = pair.datagrams;
        deliver(&mut pair, &first);
        assert_eq!(pair.datagrams, before, "AUTH for a repetition of a refused answer");
        assert!(pair.sides[0].connection().other_attempts.is_empty());
    }
    assert_eq!(pair.sides[0].failure(), None);
    pair.run(SECOND * 3);
    pair.check();
}

#[test]
fn a_forged_answer_with_the_spi_of_the_true_one_does_no_harm() {
    let mut pair = pair();
    while pair.in_flight(0).is_empty() {
        pair.run(SECOND / 1000);
    }
    let mut forged = IkeMessage::parse(&pair.in_flight(0)[0]).unwrap();
    for payload in &mut forged.payloads {
        if let IkePayload::Nonce(nonce) = payload {
            nonce[0] ^= 1;
        }
    }
    let forged = encode_message(&forged.header, &forged.payloads);
    deliver(&mut pair, &forged);
    pair.run(SECOND / 2);
    pair.check();
    assert_eq!(pair.sides[0].failure(), None);
}

#[test]
fn a_forged_first_request_with_the_spi_of_the_peer_is_no_repetition_of_its_request() {
    let pair = pair();
    let request = pair.in_flight(1).remove(0);
    let mut forged = IkeMessage::parse(&request).unwrap();
    for payload in &mut forged.payloads {
        if let IkePayload::Nonce(nonce) = payload {
            nonce[0] ^= 1;
        }
    }
    let forged = encode_message(&forged.header, &forged.payloads);
    let config = pair.sides[1].config.clone();
    let random = Box::new(TestRandom(5));
    let of_forger = IkeConnection::accept(&[config], path(1), random, pair.now, &forged).unwrap();
    assert!(of_forger.owns_datagram(&forged) && !of_forger.owns_datagram(&request));
}

#[test]
fn the_true_answer_is_found_while_forged_answers_arrive_without_end() {
    let mut pair = pair();
    let request = pair.in_flight(1).remove(0);
    pair.drop_flight();
    let mut forged = 0;
    while !pair.sides[0].is_established() {
        forged += 1;
        assert!(forged < 10_000, "a forger of 250 answers in a second prevents the connection");
        let mut forger = Forger::answering(&request, &pair, forged, ForgedAuth::Refusal);
        let answer = forger.message();
        deliver(&mut pair, &answer);
        pair.run(SECOND / 250);
    }
    assert!(forged > 100, "the first answer of the peer was lost");
    pair.run(SECOND / 2);
    pair.check();
}

#[test]
fn a_connection_with_a_forged_answer_can_be_closed() {
    let mut pair = pair();
    let mut forger = Forger::new(&pair, 7, ForgedAuth::WrongKey);
    let answer = forger.message();
    deliver(&mut pair, &answer);
    pair.command(0, IkeConnection::close);
    pair.run(SECOND * 20);
    assert_eq!(pair.sides[0].events, [IkeEvent::Closed]);
}
