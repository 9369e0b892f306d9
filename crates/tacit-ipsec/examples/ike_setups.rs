//! Measures how many IKE connections one CPU can set up in a second. Both peers run in one thread,
//! without a network.
//!
//! ```text
//! cargo run --release -p tacit-ipsec --example ike_setups
//! ```
//!
//! To set up a connection, the peers run the exchanges IKE_SA_INIT and IKE_AUTH with a shared key.
//! Then they have the keys of one tunnel.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a measurement stops at the first unexpected result"
)]

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_ipsec::ike::{
    ChildConfig, EspProposal, IkeConfig, IkeConnection, IkeEvent, IkeIdentity, IkePath,
    IkeProposal, IkeTransmit, InitialContact, InnerConfig, KeGroup, LocalAuth, Prf, RandomFailed,
    RandomSource, RemoteAuth,
};
use tacit_ipsec::{Cipher, SecretBytes, TrafficSelector};

/// How long each group is measured.
const DURATION: Duration = Duration::from_secs(2);

/// The addresses of both sides.
const ENDS: [SocketAddr; 2] = [end(1), end(2)];

const fn end(last: u8) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, last), 4500))
}

#[derive(Debug)]
struct SystemRandom;

impl RandomSource for SystemRandom {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomFailed> {
        aws_lc_rs::rand::fill(bytes).map_err(|_| RandomFailed)
    }
}

fn main() {
    println!("| group | set-ups/s | CPU of both sides, us |\n|---|---|---|");
    for group in [KeGroup::X25519, KeGroup::P256, KeGroup::P384, KeGroup::Modp2048] {
        let configs = [config(1, 2, group), config(2, 1, group)].map(Arc::new);
        let start = Instant::now();
        let mut count = 0_u32;
        while start.elapsed() < DURATION {
            set_up(&configs);
            count += 1;
        }
        let time = start.elapsed().as_secs_f64() / f64::from(count);
        println!("| {group:?} | {:.0} | {:.0} |", 1.0 / time, time * 1e6);
    }
}

/// Opens a connection, until both sides can use its tunnel.
fn set_up(configs: &[Arc<IkeConfig>; 2]) {
    let now = Instant::now();
    let random = || Box::new(SystemRandom);
    let [initiator, responder] = configs;
    let mut first = IkeConnection::initiate(Arc::clone(initiator), path(0, 1), random(), now);
    let request = message(&mut first).unwrap();
    let accepted =
        IkeConnection::accept(&[Arc::clone(responder)], path(1, 0), random(), now, &request);
    let mut sides = [first, accepted.map_err(|refusal| refusal.failure).unwrap()];
    while let Some((to, bytes)) = next_message(&mut sides) {
        sides[to].handle_datagram(now, ENDS[1 - to], &bytes);
    }
    for side in &mut sides {
        let is_active = |event: IkeEvent| matches!(event, IkeEvent::ChildActive(_));
        assert!(std::iter::from_fn(|| side.poll_event()).any(is_active), "no tunnel");
    }
}

fn next_message(sides: &mut [IkeConnection; 2]) -> Option<(usize, Vec<u8>)> {
    (0..2).find_map(|from| message(&mut sides[from]).map(|bytes| (1 - from, bytes)))
}

fn message(side: &mut IkeConnection) -> Option<Vec<u8>> {
    match side.poll_transmit()? {
        IkeTransmit::Message(bytes) => Some(bytes),
        IkeTransmit::Keepalive => None,
    }
}

fn path(local: usize, remote: usize) -> IkePath {
    IkePath { local: ENDS[local], remote: ENDS[remote] }
}

fn config(own: u8, other: u8, group: KeGroup) -> IkeConfig {
    let identity = |number| IkeIdentity::Fqdn(format!("side-{number}.example"));
    let network = |number| {
        let [first, last] = [[10, number, 0, 0], [10, number, 0, 255]];
        TrafficSelector::of_addresses(first.into(), last.into()).unwrap()
    };
    let key = SecretBytes::new(b"a shared key of both sides".to_vec());
    let cipher = Cipher::Aes256Gcm;
    IkeConfig {
        local: identity(own),
        remote: identity(other),
        local_auth: LocalAuth::SharedKey(key.clone()),
        remote_auth: RemoteAuth::SharedKey(key),
        proposals: vec![IkeProposal { cipher, prf: Prf::HmacSha384, group }],
        child: ChildConfig {
            proposals: vec![EspProposal { cipher, pfs: Some(group) }],
            local: vec![network(own)],
            remote: vec![network(other)],
            lifetime: Duration::from_secs(3600),
        },
        inner: InnerConfig::Static,
        initial_contact: InitialContact::Assert,
        lifetime: Duration::from_secs(4 * 3600),
        liveness: Duration::from_secs(30),
    }
}
