//! Tests that forged answers to the first request do not prevent a connection (RFC 7296 section
//! 2.21.1).

use std::time::Duration;

use super::pair::{Pair, config};
use crate::ike::codec::{
    ExchangeType, IkeHeader, IkePayload, KePayload, NotifyPayload, encode_message, notify,
};
use crate::ike::*;

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
