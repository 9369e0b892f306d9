//! Provides two connections, a network between them and a virtual clock, for tests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::child::ChildSa;
use crate::cipher::Cipher;
use crate::ike::connection::sa::SaState;
use crate::ike::crypto::{RandomSource, TestRandom};
use crate::ike::*;
use crate::secret::SecretBytes;
use crate::selector::TrafficSelector;

/// How the network treats datagrams, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Network {
    pub(super) lost: u8,
    pub(super) repeated: u8,
    /// Datagrams that are late by up to three seconds, so that others overtake them.
    pub(super) late: u8,
}

/// One side.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) config: Arc<IkeConfig>,
    /// Other peers that a responder accepts.
    pub(super) others: Vec<Arc<IkeConfig>>,
    pub(super) connection: Option<IkeConnection>,
    pub(super) events: Vec<IkeEvent>,
    /// The child SAs that are installed, by inbound SPI.
    pub(super) children: BTreeMap<u32, ChildSa>,
    pub(super) active: Option<u32>,
    pub(super) refusals: Vec<IkeFailure>,
}

/// A datagram to a side.
struct Datagram {
    to: usize,
    from: SocketAddr,
    bytes: Vec<u8>,
}

/// Two sides. The first is the initiator.
pub(super) struct Pair {
    pub(super) sides: [Side; 2],
    pub(super) network: Network,
    pub(super) now: Instant,
    pub(super) random: TestRandom,
    /// The addresses of the sides, as the other side sees them. A datagram to another one is lost.
    pub(super) addresses: [SocketAddr; 2],
    /// The longest datagram that was sent, and how many there were.
    pub(super) longest: usize,
    pub(super) datagrams: usize,
    /// Datagrams in flight, by the time when they arrive and a number that keeps the order.
    flight: BTreeMap<(Instant, u64), Datagram>,
    sent: u64,
}

pub(in crate::ike) fn config(local: &str, remote: &str, ends: [u8; 2]) -> IkeConfig {
    let net = |third: u8| {
        TrafficSelector::of_addresses([10, third, 0, 0].into(), [10, third, 0, 255].into()).unwrap()
    };
    let key = SecretBytes::new(b"a shared key".to_vec());
    IkeConfig {
        local: IkeIdentity::Fqdn(local.to_owned()),
        remote: IkeIdentity::Fqdn(remote.to_owned()),
        local_auth: LocalAuth::SharedKey(key.clone()),
        remote_auth: RemoteAuth::SharedKey(key),
        proposals: vec![IkeProposal {
            cipher: Cipher::Aes256Gcm,
            prf: Prf::HmacSha256,
            group: KeGroup::X25519,
        }],
        child: ChildConfig {
            proposals: vec![EspProposal { cipher: Cipher::Aes128Gcm, pfs: Some(KeGroup::X25519) }],
            local: vec![net(ends[0])],
            remote: vec![net(ends[1])],
            lifetime: Duration::from_secs(3600),
        },
        inner: InnerConfig::Static,
        initial_contact: InitialContact::Assert,
        lifetime: Duration::from_secs(4 * 3600),
        liveness: Duration::from_secs(60),
    }
}

impl Side {
    fn new(config: IkeConfig) -> Self {
        Self {
            config: Arc::new(config),
            others: Vec::new(),
            connection: None,
            events: Vec::new(),
            children: BTreeMap::new(),
            active: None,
            refusals: Vec::new(),
        }
    }

    pub(super) fn connection(&mut self) -> &mut IkeConnection {
        self.connection.as_mut().unwrap()
    }

    pub(super) fn failure(&self) -> Option<&IkeFailure> {
        self.events.iter().find_map(|event| match event {
            IkeEvent::Failed(failure) => Some(failure),
            _ => None,
        })
    }

    pub(super) fn count(&self, wanted: impl Fn(&IkeEvent) -> bool) -> usize {
        self.events.iter().filter(|event| wanted(event)).count()
    }

    pub(super) fn is_established(&self) -> bool {
        self.events.iter().any(|event| matches!(event, IkeEvent::Established { .. }))
    }

    /// The inbound SPI of the active child SA.
    pub(super) fn active(&self) -> crate::child::EspSpi {
        crate::child::EspSpi::new(self.active.unwrap()).unwrap()
    }

    fn note(&mut self, event: IkeEvent) {
        match &event {
            IkeEvent::ChildInstalled(child) => {
                self.children.insert(child.inbound.spi.number(), (**child).clone());
            }
            IkeEvent::ChildActive(spi) => {
                assert!(self.children.contains_key(&spi.number()), "active before installed");
                self.active = Some(spi.number());
            }
            IkeEvent::ChildRemoved(spi) => {
                assert!(self.children.remove(&spi.number()).is_some(), "removed twice");
                self.active = self.active.filter(|active| *active != spi.number());
            }
            _ => {}
        }
        self.events.push(event);
    }
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::with(
            config("a.example", "b.example", [1, 2]),
            config("b.example", "a.example", [2, 1]),
        )
    }

    pub(super) fn with(initiator: IkeConfig, responder: IkeConfig) -> Self {
        Self::seeded(initiator, responder, 1, Network::default())
    }

    pub(super) fn seeded(
        initiator: IkeConfig,
        responder: IkeConfig,
        seed: u64,
        network: Network,
    ) -> Self {
        let mut pair = Self {
            sides: [Side::new(initiator), Side::new(responder)],
            network,
            now: Instant::now(),
            random: TestRandom(seed),
            addresses: [path(1).remote, path(0).remote],
            longest: 0,
            datagrams: 0,
            flight: BTreeMap::new(),
            sent: 0,
        };
        let random = pair.fork();
        let connection =
            IkeConnection::initiate(pair.sides[0].config.clone(), path(0), random, pair.now);
        pair.sides[0].connection = Some(connection);
        pair.collect(0);
        pair
    }

    /// Both sides forget their connections, and the first opens another one.
    pub(super) fn open_again(&mut self) {
        let random = self.fork();
        let config = self.sides[0].config.clone();
        let connection = IkeConnection::initiate(config, path(0), random, self.now);
        self.sides[0].connection = Some(connection);
        self.sides[1].connection = None;
        self.collect(0);
    }

    fn fork(&mut self) -> Box<TestRandom> {
        let mut seed = [0; 8];
        self.random.fill(&mut seed).unwrap();
        Box::new(TestRandom(u64::from_be_bytes(seed)))
    }

    pub(super) fn dice(&mut self) -> u8 {
        let mut byte = [0];
        self.random.fill(&mut byte).unwrap();
        byte[0] % 100
    }

    /// Takes datagrams and events of a side.
    pub(super) fn collect(&mut self, side: usize) {
        let Some(connection) = self.sides[side].connection.as_mut() else { return };
        let mut messages = Vec::new();
        let mut events = Vec::new();
        while let Some(transmit) = connection.poll_transmit() {
            if let IkeTransmit::Message(bytes) = transmit {
                messages.push(bytes);
            }
        }
        while let Some(event) = connection.poll_event() {
            events.push(event);
        }
        let remote = connection.remote();
        events.into_iter().for_each(|event| self.sides[side].note(event));
        for bytes in messages {
            if remote == self.addresses[1 - side] {
                self.send(1 - side, bytes);
            }
        }
    }

    fn send(&mut self, to: usize, bytes: Vec<u8>) {
        self.longest = self.longest.max(bytes.len());
        self.datagrams += 1;
        if self.dice() < self.network.repeated {
            self.post(to, bytes.clone());
        }
        if self.dice() >= self.network.lost {
            self.post(to, bytes);
        }
    }

    fn post(&mut self, to: usize, bytes: Vec<u8>) {
        let mut delay = Duration::from_millis(10);
        if self.dice() < self.network.late {
            delay += Duration::from_millis(30 * u64::from(self.dice()));
        }
        self.sent += 1;
        let from = self.addresses[1 - to];
        self.flight.insert((self.now + delay, self.sent), Datagram { to, from, bytes });
    }

    pub(super) fn deliver(&mut self, to: usize, from: SocketAddr, bytes: &[u8]) {
        let now = self.now;
        let is_first = bytes[8..16] == [0; 8];
        let side = &self.sides[to];
        let is_known = side.connection.as_ref().is_some_and(|one| one.owns_datagram(bytes));
        if is_first && to == 1 && !is_known && side.connection.is_none() {
            let random = self.fork();
            let Side { config, others, .. } = &self.sides[to];
            let peers: Vec<_> = std::iter::once(config).chain(others).cloned().collect();
            match IkeConnection::accept(&peers, path(1), random, now, bytes) {
                Ok(connection) => self.sides[to].connection = Some(connection),
                Err(refusal) => {
                    self.sides[to].refusals.push(refusal.failure);
                    if let Some(response) = refusal.response {
                        self.send(1 - to, response);
                    }
                }
            }
        } else if let Some(connection) = &mut self.sides[to].connection {
            connection.handle_datagram(now, from, bytes);
        }
        self.collect(to);
    }

    /// Lets time pass, and everything happen that is due.
    pub(super) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        for _ in 0..STEPS_MAX {
            let arrival = self.flight.keys().next().map(|(at, _)| *at);
            let timeouts =
                self.sides.iter().filter_map(|side| side.connection.as_ref()?.poll_timeout());
            let Some(next) = arrival.into_iter().chain(timeouts).min().filter(|next| *next <= end)
            else {
                self.now = end;
                return;
            };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, Datagram { to, from, bytes }) = self.flight.pop_first().unwrap();
                self.deliver(to, from, &bytes);
                continue;
            }
            for side in 0..2 {
                if let Some(connection) = &mut self.sides[side].connection {
                    connection.handle_timeout(self.now);
                }
                self.collect(side);
            }
        }
        panic!("time does not pass");
    }

    /// Gives a command to a side.
    pub(super) fn command(&mut self, side: usize, command: impl Fn(&mut IkeConnection, Instant)) {
        let now = self.now;
        if let Some(connection) = &mut self.sides[side].connection {
            command(connection, now);
        }
        self.collect(side);
    }

    /// The datagrams in flight to a side.
    pub(super) fn in_flight(&self, side: usize) -> Vec<Vec<u8>> {
        let to_side = self.flight.values().filter(|one| one.to == side);
        to_side.map(|one| one.bytes.clone()).collect()
    }

    /// Drops everything in flight.
    pub(super) fn drop_flight(&mut self) {
        self.flight.clear();
    }

    /// Checks that there is one IKE SA, and one pair of child SAs with the same keys.
    pub(super) fn check(&mut self) {
        let established = |side: &mut Side| {
            let sas = side.connection().sas.iter().filter(|sa| sa.state == SaState::Established);
            sas.map(|sa| sa.spis).collect::<Vec<_>>()
        };
        let [first, second] = &mut self.sides;
        let sas = established(first);
        assert_eq!(sas.len(), 1, "IKE SAs");
        assert_eq!(sas, established(second));
        assert_eq!((first.children.len(), second.children.len()), (1, 1), "child SAs");
        let mine = &first.children[&first.active.expect("an active child")];
        let its = &second.children[&second.active.expect("an active child")];
        assert_eq!(mine.inbound, its.outbound);
        assert_eq!(mine.outbound, its.inbound);
        assert_eq!((&mine.local, &mine.remote), (&its.remote, &its.local));
        assert_eq!(mine.has_extended_sequence, its.has_extended_sequence);
    }
}

pub(super) fn path(side: usize) -> IkePath {
    let addresses = ["192.0.2.1:4500", "192.0.2.2:4500"];
    IkePath {
        local: addresses[side].parse().unwrap(),
        remote: addresses[1 - side].parse().unwrap(),
    }
}

const STEPS_MAX: usize = 100_000;
