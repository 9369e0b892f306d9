//! Tests how an IKE connection begins (up to the first child SA), and how the connection ends.

use std::time::Duration;

use super::pair::{Network, Pair, config};
use crate::cipher::{Cipher, IntegrityHash};
use crate::ike::connection::task::Wanted;
use crate::ike::*;
use crate::secret::SecretBytes;
use crate::selector::TrafficSelector;

const SECOND: Duration = Duration::from_secs(1);

fn configs() -> (IkeConfig, IkeConfig) {
    (config("a.example", "b.example", [1, 2]), config("b.example", "a.example", [2, 1]))
}

fn opened() -> Pair {
    let mut pair = Pair::new();
    pair.run(SECOND);
    pair.check();
    pair
}

/// Runs two sides that do not agree, and returns why the first one failed.
fn failure(initiator: IkeConfig, responder: IkeConfig) -> IkeFailure {
    let mut pair = Pair::with(initiator, responder);
    pair.run(SECOND * 200);
    assert!(pair.sides.iter().all(|side| side.children.is_empty()));
    pair.sides[0].failure().expect("a failure").clone()
}

#[test]
fn a_child_sa_that_the_peer_has_deleted_is_made_again_on_demand() {
    for side in [0, 1] {
        let mut pair = opened();
        let deleted = pair.sides[1 - side].active();
        pair.command(1 - side, |connection, now| {
            connection.want(Wanted::DeleteChild(deleted.number()));
            connection.send_wanted(now);
        });
        pair.run(SECOND);
        assert!(pair.sides.iter().all(|side| side.children.is_empty()));
        pair.command(side, IkeConnection::create_child);
        pair.command(side, IkeConnection::create_child);
        pair.run(SECOND);
        pair.check();
        let is_sa = |event: &IkeEvent| matches!(event, IkeEvent::Established { .. });
        assert_eq!(pair.sides[side].count(is_sa), 1);
    }
}

#[test]
fn a_peer_that_answers_nothing_is_reported_once_while_the_attempt_continues() {
    let (a, b) = configs();
    let network = Network { lost: 100, ..Network::default() };
    let mut pair = Pair::seeded(a, b, 1, network);
    let is_report = |event: &IkeEvent| *event == IkeEvent::Unanswered(UnansweredRequest::Init);
    let count = |pair: &Pair| pair.sides[0].count(is_report);
    pair.run(UNANSWERED - SECOND);
    assert_eq!(count(&pair), 0);
    pair.run(SECOND * 2);
    assert_eq!((count(&pair), pair.sides[0].failure()), (1, None));
    pair.run(SECOND * 150);
    assert_eq!(pair.sides[0].failure().unwrap().kind, "peer-does-not-answer");
    assert_eq!(count(&pair), 1);
}

/// Two sides. The first one has received the answer to its first request. Its IKE_AUTH is in
/// flight.
fn authenticating(a: IkeConfig, b: IkeConfig) -> Pair {
    let mut pair = Pair::with(a, b);
    while !pair.sides[0].connection().is_attempting() {
        pair.run(Duration::from_millis(1));
    }
    assert_eq!(pair.in_flight(1).len(), 1);
    pair
}

#[test]
fn a_peer_that_does_not_answer_auth_is_reported_once_while_the_attempt_continues() {
    let (a, b) = configs();
    let mut pair = authenticating(a, b);
    let auth_bytes = pair.in_flight(1)[0].len();
    pair.drop_flight();
    pair.network.lost = 100;
    let reports = |pair: &Pair| {
        let events = pair.sides[0].events.iter();
        let requests = events.filter_map(|event| match event {
            IkeEvent::Unanswered(request) => Some(*request),
            _ => None,
        });
        requests.collect::<Vec<_>>()
    };
    pair.run(UNANSWERED - SECOND);
    assert_eq!(reports(&pair), []);
    pair.run(SECOND * 2);
    let wanted = [UnansweredRequest::Auth { datagram_bytes_max: auth_bytes }];
    assert_eq!(reports(&pair), wanted);
    assert_eq!(pair.sides[0].failure(), None);
    pair.run(SECOND * 150);
    let failure = pair.sides[0].failure().unwrap();
    assert_eq!(failure.kind, "peer-does-not-answer");
    assert!(failure.message.contains("does not answer the second one (IKE_AUTH)"), "{failure}");
    assert_eq!(reports(&pair), wanted);
}

#[test]
fn a_peer_that_answers_a_repeated_request_is_not_reported() {
    let is_report = |event: &IkeEvent| matches!(event, IkeEvent::Unanswered(_));
    let (a, b) = configs();
    for mut pair in [Pair::new(), authenticating(a, b)] {
        pair.drop_flight();
        pair.run(SECOND * 20);
        pair.check();
        assert_eq!(pair.sides[0].count(is_report), 0);
    }
}

#[test]
fn a_peer_that_refuses_auth_is_not_reported_as_silent() {
    let (a, mut b) = configs();
    b.remote_auth = RemoteAuth::SharedKey(SecretBytes::new(b"another key".to_vec()));
    let mut pair = authenticating(a, b);
    // Another answer to the first request may follow for two seconds.
    pair.run(SECOND);
    let opening = pair.sides[0].connection().opening.as_ref().unwrap();
    assert_eq!(opening.silence.next_at(), None);
    pair.run(SECOND * 20);
    assert!(pair.sides[0].failure().is_some());
    assert_eq!(pair.sides[0].count(|event| matches!(event, IkeEvent::Unanswered(_))), 0);
}

#[test]
fn both_sides_end_in_one_ike_sa_and_one_child_pair() {
    let mut pair = opened();
    for side in &mut pair.sides {
        assert!(side.is_established());
        assert!(side.children.values().all(|child| child.has_extended_sequence));
    }
    pair.run(SECOND * 1000);
    pair.check();
}

#[test]
fn every_cipher_and_group_opens_a_connection() {
    let ciphers = [
        Cipher::Aes128Gcm,
        Cipher::ChaCha20Poly1305,
        Cipher::Aes128Cbc(IntegrityHash::Sha256),
        Cipher::Aes256Cbc(IntegrityHash::Sha512),
    ];
    for (cipher, group) in ciphers.into_iter().zip(KeGroup::ALL.into_iter().cycle()) {
        let (mut a, mut b) = configs();
        for config in [&mut a, &mut b] {
            config.proposals = vec![IkeProposal { cipher, prf: Prf::HmacSha384, group }];
            config.child.proposals = vec![EspProposal { cipher, pfs: Some(group) }];
        }
        let mut pair = Pair::with(a, b);
        pair.run(SECOND);
        pair.check();
    }
}

#[test]
fn another_group_of_the_responder_is_taken_in_a_second_request() {
    let (mut a, b) = configs();
    let first = IkeProposal { group: KeGroup::P256, ..a.proposals[0] };
    a.proposals.insert(0, first);
    let mut pair = Pair::with(a, b);
    pair.run(SECOND);
    pair.check();
}

#[test]
fn responder_refuses_unknown_algorithms_and_names_the_offer() {
    let (a, mut b) = configs();
    b.proposals[0].cipher = Cipher::ChaCha20Poly1305;
    let mut pair = Pair::with(a, b);
    pair.run(SECOND);
    // The refusal may be forged, so it is reported and does not yet end the attempt.
    let refused = |event: &IkeEvent| match event {
        IkeEvent::ExchangeFailed(failure) => failure.kind == "peer-refused",
        _ => false,
    };
    assert_eq!((pair.sides[0].count(refused), pair.sides[0].failure()), (1, None));
    pair.run(SECOND * 14);
    assert_eq!(pair.sides[0].failure().unwrap().kind, "peer-refused");
    assert_eq!(pair.sides[0].count(refused), 1);
    let refusal = &pair.sides[1].refusals[0];
    assert_eq!(refusal.kind, "no-common-proposal");
    assert!(refusal.message.contains("AES-GCM-256-PRF-SHA256-X25519"), "{refusal}");
}

#[test]
fn a_wrong_key_or_identity_is_named_on_both_sides() {
    let (a, mut b) = configs();
    b.remote_auth = RemoteAuth::SharedKey(SecretBytes::new(b"another".to_vec()));
    let mut pair = Pair::with(a.clone(), b);
    pair.run(SECOND * 3);
    assert!(pair.sides[0].failure().unwrap().message.contains("AUTHENTICATION_FAILED"));
    assert_eq!(pair.sides[1].failure().unwrap().kind, "wrong-shared-key");

    let (_, mut b) = configs();
    b.local_auth = LocalAuth::SharedKey(SecretBytes::new(b"another".to_vec()));
    let mut pair = Pair::with(a.clone(), b);
    pair.run(SECOND * 3);
    assert_eq!(pair.sides[0].failure().unwrap().kind, "wrong-shared-key");
    assert_eq!(pair.sides[1].failure().unwrap().kind, "peer-refused");
    assert!(pair.sides.iter().all(|side| side.children.is_empty()));

    let (_, mut b) = configs();
    b.remote = IkeIdentity::Fqdn("c.example".to_owned());
    let mut pair = Pair::with(a, b);
    pair.run(SECOND);
    assert_eq!(pair.sides[1].failure().unwrap().kind, "wrong-identity");
}

#[test]
fn selectors_are_narrowed_to_what_both_sides_allow() {
    let (a, mut b) = configs();
    let half = TrafficSelector::of_addresses([10, 2, 0, 0].into(), [10, 2, 0, 127].into()).unwrap();
    b.child.local = vec![half];
    let mut pair = Pair::with(a, b);
    pair.run(SECOND);
    pair.check();
    let child = pair.sides[0].children.values().next().unwrap();
    assert_eq!(child.remote, [half]);
}

#[test]
fn without_common_packets_there_is_an_ike_sa_and_no_child() {
    let (a, mut b) = configs();
    b.child.local = b.child.remote.clone();
    let mut pair = Pair::with(a, b);
    pair.run(SECOND);
    for side in &pair.sides {
        assert!(side.is_established());
        assert!(side.children.is_empty());
        assert_eq!(side.count(|event| matches!(event, IkeEvent::ExchangeFailed(_))), 1);
    }
}

#[test]
fn a_silent_peer_is_named_after_the_repetitions() {
    let (a, b) = configs();
    let network = Network { lost: 100, ..Network::default() };
    let mut pair = Pair::seeded(a, b, 1, network);
    pair.run(SECOND * 100);
    assert_eq!(pair.sides[0].failure(), None);
    pair.run(SECOND * 100);
    assert_eq!(pair.sides[0].failure().unwrap().kind, "peer-does-not-answer");
}

#[test]
fn a_peer_that_disappears_is_noticed() {
    let mut pair = opened();
    pair.network.lost = 100;
    pair.run(SECOND * 300);
    for side in &pair.sides {
        assert_eq!(side.failure().unwrap().kind, "peer-does-not-answer");
        assert!(side.children.is_empty());
    }
}

#[test]
fn deletion_ends_both_sides() {
    for side in 0..2 {
        let mut pair = opened();
        pair.command(side, IkeConnection::close);
        pair.run(SECOND);
        for side in &mut pair.sides {
            assert_eq!(side.events.last(), Some(&IkeEvent::Closed));
            assert!(side.children.is_empty());
            assert!(side.connection().has_ended());
        }
    }
}

#[test]
fn a_deletion_without_an_answer_ends_soon_and_is_no_failure() {
    for side in 0..2 {
        let mut pair = opened();
        pair.command(side, IkeConnection::close);
        pair.run(Duration::from_millis(15));
        assert_eq!(pair.sides[1 - side].events.last(), Some(&IkeEvent::Closed));
        // The answer is lost, and the peer has forgotten the IKE SA.
        pair.drop_flight();
        pair.network.lost = 100;
        pair.run(SECOND * 14);
        assert_eq!(pair.sides[side].count(|event| *event == IkeEvent::Closed), 0);
        pair.run(SECOND);
        assert_eq!(pair.sides[side].events.last(), Some(&IkeEvent::Closed));
        assert_eq!(pair.sides[side].failure(), None);
        assert_eq!(pair.sides[side].connection().poll_timeout(), None);
    }
}

#[test]
fn an_end_does_not_wait_for_the_answer_to_another_request() {
    let mut pair = opened();
    pair.network.lost = 100;
    pair.command(0, IkeConnection::rekey);
    pair.run(SECOND / 2);
    pair.command(0, IkeConnection::close);
    assert!(pair.sides[0].children.is_empty());
    pair.run(SECOND * 15);
    assert_eq!(pair.sides[0].events.last(), Some(&IkeEvent::Closed));
    assert_eq!(pair.sides[0].failure(), None);
}

#[test]
fn keys_of_ike_and_child_are_replaced_before_they_expire() {
    let mut pair = opened();
    pair.run(SECOND * 24 * 3600);
    pair.check();
    for side in &pair.sides {
        assert!(side.count(|event| matches!(event, IkeEvent::Rekeyed)) >= 6);
        assert!(side.count(|event| matches!(event, IkeEvent::ChildInstalled(_))) >= 24);
        assert_eq!(side.count(|event| matches!(event, IkeEvent::ExchangeFailed(_))), 0);
    }
}

#[test]
fn initiator_without_a_proposal_fails_at_once() {
    let (mut a, b) = configs();
    a.proposals.clear();
    assert_eq!(failure(a, b).kind, "no-proposal");
}

#[test]
fn responder_assigns_the_addresses_that_the_initiator_requests() {
    let (mut a, mut b) = configs();
    let inner = InnerAddresses {
        addresses: vec![[10, 1, 0, 7].into(), "fd01::7".parse().unwrap()],
        resolvers: vec![[10, 2, 0, 53].into(), "fd02::53".parse().unwrap()],
    };
    let own = TrafficSelector::of_addresses(inner.addresses[0], inner.addresses[0]).unwrap();
    a.inner = InnerConfig::Request;
    b.inner = InnerConfig::Assign(inner.clone());
    b.child.remote = vec![own];
    let mut pair = Pair::with(a, b);
    pair.run(SECOND);
    pair.check();
    let assigned = IkeEvent::AddressesAssigned(inner);
    assert_eq!(pair.sides[0].count(|event| *event == assigned), 1);
    assert_eq!(pair.sides[0].children.values().next().unwrap().local, [own]);
}
