//! Tests how a responder recognises a peer if several peers have the same address: by identity, key
//! and traffic selectors.

use std::sync::Arc;
use std::time::Duration;

use super::pair::{Pair, config};
use crate::SecretBytes;
use crate::ike::{IkeConfig, KeGroup, LocalAuth, RemoteAuth};

const SECOND: Duration = Duration::from_secs(1);

/// A peer with another shared key than that of the other peers.
fn with_key(key: &str, config: IkeConfig) -> IkeConfig {
    let key = SecretBytes::new(key.as_bytes().to_vec());
    let local_auth = LocalAuth::SharedKey(key.clone());
    IkeConfig { local_auth, remote_auth: RemoteAuth::SharedKey(key), ..config }
}

/// Lets an initiator connect to `b.example`, which knows these peers.
fn connect(initiator: IkeConfig, peers: Vec<IkeConfig>) -> Pair {
    let mut peers = peers.into_iter();
    let mut pair = Pair::with(initiator, peers.next().unwrap());
    pair.sides[1].others = peers.map(Arc::new).collect();
    pair.run(SECOND);
    pair
}

/// Two peers with one identity and different networks, one with another identity, and one with
/// another key.
fn peers() -> Vec<IkeConfig> {
    vec![
        config("b.example", "a.example", [2, 1]),
        config("b.example", "c.example", [2, 1]),
        config("b.example", "a.example", [3, 1]),
        with_key("another key", config("b.example", "a.example", [2, 1])),
    ]
}

#[test]
fn the_identity_the_key_and_the_selectors_of_the_initiator_decide_which_peer_it_is() {
    let initiators = [
        config("a.example", "b.example", [1, 2]),
        config("c.example", "b.example", [1, 2]),
        config("a.example", "b.example", [1, 3]),
        with_key("another key", config("a.example", "b.example", [1, 2])),
    ];
    for (number, initiator) in initiators.into_iter().enumerate() {
        let mut pair = connect(initiator.clone(), peers());
        pair.check();
        let side = &mut pair.sides[1];
        let chosen = Arc::clone(side.connection().config());
        let all: Vec<_> = std::iter::once(&side.config).chain(&side.others).collect();
        assert!(Arc::ptr_eq(&chosen, all[number]), "{number}");
        assert_eq!(chosen.child.local, initiator.child.remote, "{number}");
    }
}

#[test]
fn an_initiator_that_is_none_of_the_peers_is_refused() {
    let stranger = config("d.example", "b.example", [1, 2]);
    let wrong_key = with_key("a third key", config("c.example", "b.example", [1, 2]));
    let no_key = with_key("a third key", config("a.example", "b.example", [1, 2]));
    let for_another = config("a.example", "e.example", [1, 2]);
    for (initiator, kind) in [
        (stranger, "wrong-identity"),
        (wrong_key, "wrong-shared-key"),
        (no_key, "wrong-shared-key"),
        (for_another, "wrong-identity"),
    ] {
        let pair = connect(initiator, peers());
        assert_eq!(pair.sides[1].failure().unwrap().kind, kind);
        assert!(!pair.sides[1].is_established() && pair.sides[1].children.is_empty());
    }
}

#[test]
fn the_algorithms_of_the_ike_sa_must_be_those_of_the_peer() {
    let with_group = |group, mut config: IkeConfig| {
        config.proposals[0].group = group;
        config
    };
    let peers = || {
        vec![
            config("b.example", "a.example", [2, 1]),
            with_group(KeGroup::P256, config("b.example", "c.example", [2, 1])),
        ]
    };
    let own = with_group(KeGroup::P256, config("c.example", "b.example", [1, 2]));
    connect(own, peers()).check();
    let of_another = with_group(KeGroup::P256, config("a.example", "b.example", [1, 2]));
    let pair = connect(of_another, peers());
    assert!(!pair.sides[1].is_established() && pair.sides[1].children.is_empty());
}
