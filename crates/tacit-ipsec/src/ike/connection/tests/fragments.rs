//! Tests that the sender splits long messages into fragments, and that the receiver joins the
//! fragments again (RFC 7383).

use std::sync::Arc;
use std::time::Duration;

use super::pair::{Network, Pair};
use super::signatures::{Key, Trusted, configs};
use crate::ike::*;

const SECOND: Duration = Duration::from_secs(1);

/// A key whose certificate has intermediates of 2,000 bytes.
#[derive(Debug)]
struct LongChain(Key);

impl AuthSigner for LongChain {
    fn certificates(&self) -> Vec<Vec<u8>> {
        let intermediate = |byte| vec![byte; 2000];
        [self.0.certificates(), vec![intermediate(1), intermediate(2), intermediate(3)]].concat()
    }

    fn schemes(&self) -> Vec<AuthScheme> {
        self.0.schemes()
    }

    fn sign(&self, scheme: AuthScheme, message: &[u8]) -> Result<Vec<u8>, IkeFailure> {
        self.0.sign(scheme, message)
    }
}

fn long_configs() -> (IkeConfig, IkeConfig) {
    let first = Key::ed25519();
    let second = Key::p384();
    let (mut a, mut b) = configs(Key::ed25519(), Key::p384());
    a.remote_auth = RemoteAuth::Signature(Arc::new(Trusted(second.public())));
    b.remote_auth = RemoteAuth::Signature(Arc::new(Trusted(first.public())));
    a.local_auth = LocalAuth::Signature(Arc::new(LongChain(first)));
    b.local_auth = LocalAuth::Signature(Arc::new(LongChain(second)));
    (a, b)
}

#[test]
fn no_datagram_of_a_long_message_exceeds_a_packet_of_1280_bytes() {
    let (a, b) = long_configs();
    let mut pair = Pair::with(a, b);
    pair.run(SECOND);
    pair.check();
    assert!(pair.longest > 1200, "{}", pair.longest);
    assert!(pair.longest <= 1228, "{}", pair.longest);
    // IKE_SA_INIT, and AUTH of 6 fragments in each direction.
    assert_eq!(pair.datagrams, 2 + 12);
}

#[test]
fn fragments_are_lost_repeated_and_late_and_the_connection_opens() {
    for seed in 0..20 {
        let (a, b) = long_configs();
        let network = Network { lost: 15, repeated: 20, late: 30 };
        let mut pair = Pair::seeded(a, b, seed, network);
        pair.run(SECOND * 120);
        pair.network = Network::default();
        pair.run(SECOND * 120);
        pair.check();
    }
}

#[test]
fn a_repeated_request_repeats_its_response_once() {
    let (a, b) = long_configs();
    let network = Network { repeated: 100, ..Network::default() };
    let mut pair = Pair::seeded(a, b, 1, network);
    pair.run(SECOND);
    pair.check();
    // Each datagram arrives twice. The second first fragment repeats the six of the response, the
    // five others repeat nothing. So does the second IKE_SA_INIT, until AUTH has arrived.
    assert!(pair.datagrams <= 2 + 1 + 12 + 6, "{}", pair.datagrams);
}

#[test]
fn a_new_ike_sa_also_joins_fragments() {
    let (a, b) = long_configs();
    let mut pair = Pair::with(a, b);
    pair.run(SECOND);
    pair.command(0, IkeConnection::rekey);
    pair.run(SECOND);
    pair.check();
    let has_fragments = |side: usize, pair: &mut Pair| {
        let connection = pair.sides[side].connection();
        connection.sa(connection.current).unwrap().has_fragments
    };
    assert!(has_fragments(0, &mut pair) && has_fragments(1, &mut pair));
}
