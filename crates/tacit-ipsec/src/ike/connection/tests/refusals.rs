//! Tests that tacit rejects unsupported IKE requests. Each error must name the cause, and each IKE
//! exchange must end.

use std::time::Duration;

use super::pair::{Pair, config};
use crate::ike::codec::{
    DeletePayload, ExchangeType, IkePayload, NotifyPayload, ProtocolId, notify,
};
use crate::ike::connection::sa::SaState;
use crate::ike::connection::task::Task;
use crate::ike::*;
use crate::selector::TrafficSelector;

const SECOND: Duration = Duration::from_secs(1);

fn opened() -> Pair {
    let mut pair = Pair::new();
    pair.run(SECOND);
    pair.check();
    pair
}

/// Sends a request of the test from a side.
fn request(pair: &mut Pair, side: usize, exchange: ExchangeType, payloads: &[IkePayload]) {
    pair.command(side, |connection, now| {
        let spi = connection.current;
        connection.request(now, spi, exchange, payloads, Task::Liveness);
    });
    pair.run(SECOND);
}

#[test]
fn an_unknown_exchange_ends_the_ike_sa_on_both_sides_at_once() {
    for exchange in [ExchangeType::Other(43), ExchangeType::Auth] {
        for side in 0..2 {
            let mut pair = opened();
            request(&mut pair, side, exchange, &[]);
            let refused = pair.sides[side].failure().unwrap();
            assert!(refused.message.contains("INVALID_SYNTAX"), "{refused}");
            let other = pair.sides[1 - side].failure().unwrap();
            assert_eq!(other.kind, "peer-protocol-error");
            assert!(pair.sides.iter().all(|side| side.children.is_empty()));
        }
    }
}

#[test]
fn an_initiator_handles_no_request_before_its_own_auth_is_answered() {
    for exchange in [ExchangeType::Auth, ExchangeType::Informational, ExchangeType::CreateChildSa] {
        let mut pair = Pair::new();
        pair.run(Duration::from_millis(25));
        // The AUTH request of the initiator is lost.
        pair.drop_flight();
        let before = pair.datagrams;
        pair.command(1, |connection, now| {
            let id = connection.config.local.to_payload();
            let auth = connection.own_auth(&id).unwrap();
            let payloads = [IkePayload::IdResponder(id), auth];
            let spi = connection.current;
            connection.request(now, spi, exchange, &payloads, Task::Liveness);
        });
        pair.run(SECOND / 2);
        assert_eq!(pair.datagrams, before + 1, "{exchange:?} was answered");
        assert!(pair.sides[0].events.is_empty(), "{:?}", pair.sides[0].events);
        let sa = &pair.sides[0].connection().sas[0];
        assert_eq!(sa.state, SaState::Opening);
    }
}

#[test]
fn a_responder_refuses_other_exchanges_before_auth() {
    for exchange in [ExchangeType::Informational, ExchangeType::CreateChildSa] {
        let mut pair = Pair::new();
        pair.run(Duration::from_millis(25));
        pair.drop_flight();
        pair.command(0, |connection, now| {
            let spi = connection.current;
            // In place of AUTH, with its message ID.
            let sa = connection.sa_mut(spi).unwrap();
            sa.outstanding = None;
            sa.set_next_request(1);
            connection.request(now, spi, exchange, &[], Task::Liveness);
        });
        pair.run(SECOND);
        assert_eq!(pair.sides[1].failure().unwrap().kind, "peer-protocol-error");
        assert!(pair.sides.iter().all(|side| side.children.is_empty()));
        assert!(!pair.sides[1].is_established());
    }
}

#[test]
fn messages_with_a_wrong_message_id_change_nothing() {
    for message_id in [0, 1, 3, 7] {
        let mut pair = opened();
        let before = pair.datagrams;
        let expected = 2;
        pair.command(0, |connection, now| {
            let spi = connection.current;
            connection.sa_mut(spi).unwrap().set_next_request(message_id);
            let deletion = [IkePayload::Delete(DeletePayload::IkeSa)];
            let exchange = ExchangeType::Informational;
            connection.request(now, spi, exchange, &deletion, Task::Liveness);
        });
        pair.run(SECOND / 2);
        // The last request is answered again as it was, and no other is answered.
        let repeated = usize::from(message_id + 1 == expected);
        assert_eq!(pair.datagrams, before + 1 + repeated, "{message_id}");
        assert!(pair.sides[1].failure().is_none() && pair.sides[1].children.len() == 1);
    }
}

#[test]
fn a_request_without_its_payloads_ends_the_ike_sa_on_both_sides() {
    let mut pair = opened();
    let offer = proposal::offer_ike(&pair.sides[0].config.proposals, Some(1));
    let payloads = [IkePayload::SecurityAssociation(offer)];
    request(&mut pair, 0, ExchangeType::CreateChildSa, &payloads);
    assert!(pair.sides.iter().all(|side| side.failure().is_some()));
}

#[test]
fn a_second_child_is_refused_and_the_first_continues() {
    let mut pair = opened();
    let payloads = pair.sides[0].connection().selector_payloads();
    let mut offer = vec![IkePayload::SecurityAssociation(proposal::offer_esp(
        &pair.sides[0].config.child.proposals,
        proposal::ChildExchange::Create,
        0x1000,
    ))];
    offer.push(IkePayload::Nonce(vec![1; 32]));
    offer.extend(payloads);
    request(&mut pair, 0, ExchangeType::CreateChildSa, &offer);
    pair.run(SECOND * 200);
    pair.check();
}

#[test]
fn a_replacement_of_an_unknown_child_is_refused_and_the_first_continues() {
    let mut pair = opened();
    let spi = Some((ProtocolId::Esp, 0x9999));
    let rekeyed = NotifyPayload { spi, kind: notify::REKEY_SA, data: Vec::new() };
    request(&mut pair, 0, ExchangeType::CreateChildSa, &[IkePayload::Notify(rekeyed)]);
    pair.run(SECOND * 200);
    pair.check();
}

#[test]
fn unknown_notifications_are_answered_and_change_nothing() {
    let mut pair = opened();
    let kinds = [8192, 16384, 40960, notify::INVALID_SELECTORS];
    let payloads = kinds.map(|kind| IkePayload::Notify(NotifyPayload::new(kind, [])));
    request(&mut pair, 0, ExchangeType::Informational, &payloads);
    pair.run(SECOND * 200);
    pair.check();
}

#[test]
fn a_peer_that_claims_the_subnet_of_another_gets_no_tunnel() {
    let net = |third: u8, last: u8| {
        let first = [10, third, 0, 0].into();
        TrafficSelector::of_addresses(first, [10, third, 0, last].into()).unwrap()
    };
    let configs =
        || (config("a.example", "b.example", [1, 2]), config("b.example", "a.example", [2, 1]));
    // The initiator claims the subnet of a third one, which the policy of the responder does not
    // give it.
    let (mut a, b) = configs();
    a.child.local = vec![net(3, 255)];
    let mut pair = Pair::with(a, b);
    pair.run(SECOND);
    assert!(pair.sides.iter().all(|side| side.children.is_empty()));
    let is_refused = |event: &IkeEvent| {
        matches!(event, IkeEvent::ExchangeFailed(failure)
            if failure.message.contains("TS_UNACCEPTABLE"))
    };
    assert!(pair.sides.iter().all(|side| side.count(is_refused) == 1));
    // Beside its own, only its own remains.
    let (mut a, b) = configs();
    a.child.local = vec![net(3, 255), net(1, 255)];
    let mut pair = Pair::with(a, b);
    pair.run(SECOND);
    pair.check();
    assert_eq!(pair.sides[1].children.values().next().unwrap().remote, [net(1, 255)]);
}

#[test]
fn a_keepalive_of_the_peer_is_not_answered() {
    let mut pair = opened();
    for bytes in [&[0xff][..], &[], &[0xff; 28]] {
        let connection = pair.sides[0].connection();
        assert!(!connection.owns_datagram(bytes));
        let from = connection.remote();
        connection.handle_datagram(std::time::Instant::now(), from, bytes);
        assert_eq!(connection.poll_transmit(), None);
    }
}

#[test]
fn only_an_initiator_that_asserts_it_ends_older_connections() {
    for (contact, count) in [(InitialContact::Assert, 1), (InitialContact::Omit, 0)] {
        let mut a = config("a.example", "b.example", [1, 2]);
        a.initial_contact = contact;
        let mut pair = Pair::with(a, config("b.example", "a.example", [2, 1]));
        pair.run(SECOND);
        pair.check();
        assert_eq!(pair.sides[1].count(|event| *event == IkeEvent::InitialContact), count);
    }
}

#[test]
fn an_abandoned_connection_sends_nothing() {
    let mut pair = opened();
    pair.run(SECOND);
    let before = pair.datagrams;
    pair.command(1, |connection, _| connection.abandon());
    assert_eq!(pair.sides[1].events.last(), Some(&IkeEvent::Closed));
    assert!(pair.sides[1].children.is_empty());
    pair.run(SECOND * 10);
    assert_eq!(pair.datagrams, before);
}
