//! Tests that tacit rejects invalid public values in the key exchange, and derives no keys from
//! them (RFC 6989).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::pair::{Pair, config};
use crate::ike::codec::{
    ExchangeType, IkeHeader, IkePayload, KePayload, NotifyPayload, ProtocolId, encode_message,
    notify,
};
use crate::ike::connection::task::Task;
use crate::ike::crypto::{KeySecret, TestRandom, wrong_values};
use crate::ike::*;

const SECOND: Duration = Duration::from_secs(1);

/// Counts how many private keys and nonces are made: they have 32 bytes or more.
#[derive(Debug)]
struct CountingRandom {
    random: TestRandom,
    long: Arc<AtomicUsize>,
}

impl RandomSource for CountingRandom {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomFailed> {
        if bytes.len() >= 32 {
            self.long.fetch_add(1, Ordering::Relaxed);
        }
        self.random.fill(bytes)
    }
}

fn counting() -> (Box<CountingRandom>, Arc<AtomicUsize>) {
    let long = Arc::<AtomicUsize>::default();
    (Box::new(CountingRandom { random: TestRandom(5), long: Arc::clone(&long) }), long)
}

fn config_with(group: KeGroup, local: &str, remote: &str, ends: [u8; 2]) -> IkeConfig {
    let mut config = config(local, remote, ends);
    config.proposals[0].group = group;
    config.child.proposals[0].pfs = Some(group);
    config
}

fn wrong(group: KeGroup) -> Vec<Vec<u8>> {
    let secret = KeySecret::generate(group, &mut TestRandom(4)).unwrap();
    wrong_values(group, secret.public_value())
}

fn value(group: KeGroup, public_value: Vec<u8>) -> IkePayload {
    IkePayload::KeyExchange(KePayload { group: group.number(), public_value })
}

#[test]
fn a_first_request_with_a_wrong_value_is_dropped() {
    for group in KeGroup::ALL {
        let config = Arc::new(config_with(group, "b.example", "a.example", [2, 1]));
        let accept = |public_value: Vec<u8>| {
            let header = IkeHeader {
                initiator_spi: 1,
                responder_spi: 0,
                exchange: ExchangeType::SaInit,
                from_initiator: true,
                is_response: false,
                message_id: 0,
            };
            let offer = proposal::offer_ike(&config.proposals, None);
            let payloads = [
                IkePayload::SecurityAssociation(offer),
                value(group, public_value),
                IkePayload::Nonce(vec![1; 32]),
            ];
            let bytes = encode_message(&header, &payloads);
            let address = "192.0.2.1:4500".parse().unwrap();
            let path = IkePath { local: address, remote: address };
            let (random, made) = counting();
            let accepted =
                IkeConnection::accept(&[Arc::clone(&config)], path, random, Instant::now(), &bytes);
            (accepted.map(|_| ()), made.load(Ordering::Relaxed))
        };
        let right = KeySecret::generate(group, &mut TestRandom(6)).unwrap();
        let (accepted, made) = accept(right.public_value().to_vec());
        assert_eq!(accepted, Ok(()));
        assert!(made >= 2);
        for value in wrong(group) {
            let (accepted, made) = accept(value);
            let refusal = accepted.unwrap_err();
            assert_eq!(refusal.response, None);
            assert!(
                refusal.failure.message.contains("not valid in the key"),
                "{}",
                refusal.failure
            );
            assert_eq!(made, 0, "{group:?}");
        }
    }
}

/// Opens a connection, and sends a request for new keys from its first side. Returns how many keys
/// and nonces the second side made.
fn request(group: KeGroup, payloads: impl Fn(&mut Pair) -> Vec<IkePayload>) -> (Pair, usize) {
    let a = config_with(group, "a.example", "b.example", [1, 2]);
    let b = config_with(group, "b.example", "a.example", [2, 1]);
    let mut pair = Pair::with(a, b);
    pair.run(SECOND);
    pair.check();
    let (random, made) = counting();
    pair.sides[1].connection().random = random;
    let payloads = payloads(&mut pair);
    pair.command(0, |connection, now| {
        let spi = connection.current;
        connection.request(now, spi, ExchangeType::CreateChildSa, &payloads, Task::Liveness);
    });
    pair.run(SECOND);
    (pair, made.load(Ordering::Relaxed))
}

fn assert_ended(pair: &Pair, made: usize) {
    assert_eq!(made, 0);
    assert!(pair.sides[0].failure().unwrap().message.contains("INVALID_SYNTAX"));
    let failure = pair.sides[1].failure().unwrap();
    assert!(failure.message.contains("not valid in the key"), "{failure}");
    assert!(pair.sides.iter().all(|side| side.children.is_empty()));
}

#[test]
fn a_request_for_new_keys_of_ike_with_a_wrong_value_ends_the_ike_sa() {
    for group in KeGroup::ALL {
        for public_value in wrong(group) {
            let (pair, made) = request(group, |pair| {
                let offer = proposal::offer_ike(&pair.sides[0].config.proposals, Some(1));
                vec![
                    IkePayload::SecurityAssociation(offer),
                    IkePayload::Nonce(vec![1; 32]),
                    value(group, public_value.clone()),
                ]
            });
            assert_ended(&pair, made);
        }
    }
}

#[test]
fn a_request_for_new_keys_of_a_tunnel_with_a_wrong_value_ends_the_ike_sa() {
    for group in KeGroup::ALL {
        for public_value in wrong(group) {
            let (pair, made) = request(group, |pair| {
                let spi = Some((ProtocolId::Esp, pair.sides[0].active().number()));
                let rekeyed = NotifyPayload { spi, kind: notify::REKEY_SA, data: Vec::new() };
                let offer = proposal::offer_esp(
                    &pair.sides[0].config.child.proposals,
                    proposal::ChildExchange::Create,
                    0x1000,
                );
                let mut payloads = vec![
                    IkePayload::Notify(rekeyed),
                    IkePayload::SecurityAssociation(offer),
                    IkePayload::Nonce(vec![1; 32]),
                    value(group, public_value.clone()),
                ];
                payloads.extend(pair.sides[0].connection().selector_payloads());
                payloads
            });
            assert_ended(&pair, made);
        }
    }
}
