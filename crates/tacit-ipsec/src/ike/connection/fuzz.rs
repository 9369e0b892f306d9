//! Fuzzes two IKE connections, an initiator and a responder. The fuzzer's input is a list of steps:
//! datagrams of unknown senders, messages of a malicious peer, commands, and waiting times.
//!
//! ```text
//!   step: kind 1 │ option 1 │ length 1 │ bytes of this length
//! ```
//!
//! The messages of the malicious peer contain arbitrary payloads. The fuzzer has the keys of the
//! connections, so these messages pass the integrity check.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    CHILDREN_MAX, EVENTS_MAX, IkeConnection, IkeEvent, IkePath, IkeTransmit, SAS_MAX, TRANSMITS_MAX,
};
use crate::child::EspSpi;
use crate::cipher::Cipher;
use crate::ike::codec::{ExchangeType, Fragment, IkeHeader};
use crate::ike::config::{
    ChildConfig, IkeConfig, InitialContact, InnerAddresses, InnerConfig, LocalAuth, RemoteAuth,
};
use crate::ike::crypto::{KeGroup, Prf, TestRandom};
use crate::ike::identity::IkeIdentity;
use crate::ike::limiter::{FirstRequestDecision, IkeLimiter};
use crate::ike::proposal::{EspProposal, IkeProposal};
use crate::secret::SecretBytes;
use crate::selector::TrafficSelector;

/// Runs the script.
///
/// # Panics
///
/// If a limit is exceeded, or the events contradict each other.
pub fn exchange(script: &[u8]) {
    let mut scene = Scene::new();
    let mut rest = script;
    for _ in 0..STEPS_MAX {
        let Some((&[kind, option, length], after)) = rest.split_first_chunk::<3>() else { break };
        let (bytes, after) = after.split_at(usize::from(length).min(after.len()));
        scene.step(kind, option, bytes);
        rest = after;
    }
    scene.finish();
}

/// Both sides; the first is the initiator.
struct Scene {
    sides: [Side; 2],
    limiter: IkeLimiter,
    now: Instant,
}

struct Side {
    config: Arc<IkeConfig>,
    connection: Option<IkeConnection>,
    installed: Vec<EspSpi>,
    /// What the side has sent, and the other has not received.
    sent: Vec<Vec<u8>>,
}

impl Scene {
    fn new() -> Self {
        // The time is an argument everywhere, so the first instant does not matter.
        let now = Instant::now();
        let sides = [("a.example", "b.example", [1, 2]), ("b.example", "a.example", [2, 1])];
        let sides = sides.map(|(local, remote, ends)| Side {
            config: Arc::new(config(local, remote, ends)),
            connection: None,
            installed: Vec::new(),
            sent: Vec::new(),
        });
        let limiter = IkeLimiter::new(&mut TestRandom(9), now);
        let Ok(limiter) = limiter else { unreachable!("creating random bytes does not fail") };
        let mut scene = Self { sides, limiter, now };
        let config = Arc::clone(&scene.sides[0].config);
        let random = Box::new(TestRandom(1));
        scene.sides[0].connection = Some(IkeConnection::initiate(config, path(0), random, now));
        scene.collect(0);
        scene
    }

    fn step(&mut self, kind: u8, option: u8, bytes: &[u8]) {
        let side = usize::from(option & 1);
        match kind % 8 {
            0 => self.deliver(side, bytes),
            1 => self.forward(side, usize::from(option >> 1)),
            2 | 3 => self.send_authentic(side, option, bytes),
            4 => self.command(side, option >> 1),
            5 => {
                self.now += Duration::from_secs(u64::from(option) * u64::from(option));
                for side in 0..2 {
                    let now = self.now;
                    self.on(side, |connection| connection.handle_timeout(now));
                }
            }
            // Everything arrives, so that scripts need not forward each datagram.
            6 => self.settle(),
            _ => self.damage(side, option, bytes),
        }
    }

    fn on(&mut self, side: usize, act: impl FnOnce(&mut IkeConnection)) {
        if let Some(connection) = &mut self.sides[side].connection {
            act(connection);
        }
        self.collect(side);
    }

    /// Delivers a datagram to a side. The responder begins with the first request that its limiter
    /// accepts.
    fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let now = self.now;
        if to == 1 && self.sides[1].connection.is_none() {
            let decision = self.limiter.check(now, path(1).remote, bytes, &mut TestRandom(8));
            match decision {
                Ok(FirstRequestDecision::Accept | FirstRequestDecision::Replace) => {}
                Ok(FirstRequestDecision::Respond(response)) => {
                    assert!(
                        response.len() <= bytes.len(),
                        "the response is longer than the request"
                    );
                    return;
                }
                Ok(FirstRequestDecision::Drop) | Err(_) => return,
            }
            let config = Arc::clone(&self.sides[1].config);
            let random = Box::new(TestRandom(2));
            match IkeConnection::accept(&[config], path(1), random, now, bytes) {
                Ok(connection) => self.sides[1].connection = Some(connection),
                Err(refusal) => assert!(!refusal.failure.to_string().is_empty()),
            }
        }
        let from = path(to).remote;
        self.on(to, |connection| connection.handle_datagram(now, from, bytes));
    }

    /// Delivers one of the datagrams that a side has sent.
    fn forward(&mut self, from: usize, index: usize) {
        let sent = &mut self.sides[from].sent;
        if !sent.is_empty() {
            let bytes = sent.remove(index % sent.len());
            self.deliver(1 - from, &bytes);
        }
    }

    fn settle(&mut self) {
        for _ in 0..SETTLE_MAX {
            let Some(from) = (0..2).find(|side| !self.sides[*side].sent.is_empty()) else { return };
            self.forward(from, 0);
        }
    }

    /// Delivers a datagram that a side has sent with some bytes changed.
    fn damage(&mut self, from: usize, option: u8, bytes: &[u8]) {
        let sent = &self.sides[from].sent;
        let Some(mut changed) = sent.get(usize::from(option >> 1) % sent.len().max(1)).cloned()
        else {
            return;
        };
        for pair in bytes.chunks_exact(2) {
            let at = usize::from(pair[0]) % changed.len();
            changed[at] ^= pair[1];
        }
        self.deliver(1 - from, &changed);
    }

    /// Seals payloads with the keys of a side, and delivers them to the other one. The first bytes
    /// are exchange type, message ID, type of the first payload, fragment number and total.
    fn send_authentic(&mut self, from: usize, option: u8, bytes: &[u8]) {
        let Some((&[exchange, message_id, first, number, total], payloads)) =
            bytes.split_first_chunk::<5>()
        else {
            return;
        };
        let Some(connection) = &mut self.sides[from].connection else { return };
        let index = usize::from(option >> 3) % connection.sas.len().max(1);
        let Some(sa) = connection.sas.get_mut(index) else { return };
        let header = IkeHeader {
            initiator_spi: sa.spis.initiator,
            responder_spi: sa.spis.responder,
            exchange: ExchangeType::from_number(exchange),
            from_initiator: sa.is_initiator,
            is_response: option & 2 != 0,
            message_id: message_id.into(),
        };
        let fragment =
            (option & 4 != 0).then_some(Fragment { number: number.into(), total: total.into() });
        let key = if sa.is_initiator { &mut sa.keys.initiator } else { &mut sa.keys.responder };
        if let Ok(sealed) = key.seal(&header, first, fragment, payloads, &mut TestRandom(7)) {
            self.deliver(1 - from, &sealed);
        }
    }

    fn command(&mut self, side: usize, command: u8) {
        let now = self.now;
        let spi = self.sides[side].installed.last().copied();
        self.on(side, |connection| match (command % 5, spi) {
            (0, _) => connection.rekey(now),
            (1, Some(spi)) => connection.rekey_child(now, spi),
            (2, _) => connection.close(now),
            (3, _) => connection.abandon(),
            _ => connection.note_packet(now),
        });
    }

    /// Takes what a side sends and reports, and checks its limits.
    fn collect(&mut self, side: usize) {
        let Side { connection, installed, sent, .. } = &mut self.sides[side];
        let Some(connection) = connection else { return };
        assert!(connection.transmits.len() <= TRANSMITS_MAX);
        assert!(connection.events.len() < EVENTS_MAX, "the connection has too many unread events");
        // Both sides may replace at once what the limit is checked for.
        assert!(connection.sas.len() <= SAS_MAX + 1, "{} IKE SAs", connection.sas.len());
        assert!(connection.tunnels.len() <= CHILDREN_MAX + 1);
        while let Some(transmit) = connection.poll_transmit() {
            if let IkeTransmit::Message(bytes) = transmit
                && sent.len() < SENT_MAX
            {
                sent.push(bytes);
            }
        }
        while let Some(event) = connection.poll_event() {
            match event {
                IkeEvent::ChildInstalled(child) => {
                    assert!(!installed.contains(&child.inbound.spi), "an SPI is used twice");
                    installed.push(child.inbound.spi);
                }
                IkeEvent::ChildActive(spi) => assert!(installed.contains(&spi)),
                IkeEvent::ChildRemoved(spi) => {
                    assert!(
                        installed.contains(&spi),
                        "a child SA was removed before it was installed"
                    );
                    installed.retain(|one| *one != spi);
                }
                IkeEvent::Failed(failure) | IkeEvent::ExchangeFailed(failure) => {
                    assert!(!failure.to_string().is_empty());
                }
                _ => {}
            }
        }
        assert!(
            !connection.has_ended || installed.is_empty(),
            "a child SA remains after the end of the connection"
        );
    }

    /// Closes both sides. Without a network they end, because requests are repeated for a limited
    /// time.
    fn finish(&mut self) {
        for side in 0..2 {
            let now = self.now;
            self.on(side, |connection| connection.close(now));
            self.sides[side].sent.clear();
            for _ in 0..TIMEOUTS_MAX {
                let next = self.sides[side].connection.as_ref().and_then(|one| one.poll_timeout());
                let Some(next) = next else { break };
                self.now = self.now.max(next);
                let now = self.now;
                self.on(side, |connection| connection.handle_timeout(now));
            }
            let connection = self.sides[side].connection.as_ref();
            assert!(
                connection.is_none_or(|one| one.poll_timeout().is_none()),
                "a closed connection still waits for a timeout"
            );
        }
    }
}

fn path(side: usize) -> IkePath {
    let addresses = [SocketAddr::from(([192, 0, 2, 1], 4500)), ([192, 0, 2, 2], 4500).into()];
    IkePath { local: addresses[side], remote: addresses[1 - side] }
}

fn config(local: &str, remote: &str, ends: [u8; 2]) -> IkeConfig {
    let key = SecretBytes::new(b"a shared key".to_vec());
    let net = |third: u8| {
        let last = [10, third, 0, 255].into();
        TrafficSelector::of_addresses([10, third, 0, 0].into(), last).into_iter().collect()
    };
    let inner = match ends {
        [1, _] => InnerConfig::Request,
        _ => InnerConfig::Assign(InnerAddresses {
            addresses: vec![[10, 1, 0, 7].into()],
            resolvers: vec![[10, 2, 0, 53].into()],
        }),
    };
    IkeConfig {
        local: IkeIdentity::Fqdn(local.to_owned()),
        remote: IkeIdentity::Fqdn(remote.to_owned()),
        local_auth: LocalAuth::SharedKey(key.clone()),
        remote_auth: RemoteAuth::SharedKey(key),
        proposals: vec![
            IkeProposal { cipher: Cipher::Aes256Gcm, prf: Prf::HmacSha256, group: KeGroup::X25519 },
            IkeProposal { cipher: Cipher::Aes128Gcm, prf: Prf::HmacSha256, group: KeGroup::P256 },
        ],
        child: ChildConfig {
            proposals: vec![EspProposal { cipher: Cipher::Aes128Gcm, pfs: Some(KeGroup::X25519) }],
            local: net(ends[0]),
            remote: net(ends[1]),
            lifetime: Duration::from_secs(3600),
        },
        inner,
        initial_contact: InitialContact::Assert,
        lifetime: Duration::from_secs(4 * 3600),
        liveness: Duration::from_secs(60),
    }
}

/// The most steps of a script, so that one run is short.
const STEPS_MAX: usize = 64;
/// The most datagrams that are delivered in one step.
const SETTLE_MAX: usize = 64;
/// The most datagrams of a side that wait.
const SENT_MAX: usize = 64;
/// The most calls until a closed connection has nothing to do.
const TIMEOUTS_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_script_opens_and_replaces_and_closes() {
        let mut scene = Scene::new();
        scene.step(6, 0, &[]);
        assert!(scene.sides.iter().all(|side| side.installed.len() == 1));
        for command in [0, 1] {
            scene.step(4, command << 1, &[]);
            scene.step(6, 0, &[]);
        }
        assert!(scene.sides.iter().all(|side| side.installed.len() == 1));
        scene.step(4, 2 << 1, &[]);
        scene.step(6, 0, &[]);
        assert!(scene.sides.iter().all(|side| side.installed.is_empty()));
        scene.finish();
    }

    #[test]
    fn a_response_that_arrives_after_the_end_installs_nothing() {
        for command in [0, 1] {
            let mut scene = Scene::new();
            scene.step(6, 0, &[]);
            scene.step(4, command << 1, &[]);
            // The request arrives, the keys expire, and then the response arrives.
            scene.forward(0, 0);
            scene.step(5, 255, &[]);
            assert!(scene.sides.iter().all(|side| side.installed.is_empty()));
            scene.step(6, 0, &[]);
            assert!(scene.sides.iter().all(|side| side.installed.is_empty()));
            scene.finish();
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn arbitrary_scripts_do_no_harm(
            steps in vec((0u8..8, any::<u8>(), vec(any::<u8>(), 0..40)), 0..20),
        ) {
            let script: Vec<u8> = std::iter::once(vec![6, 0, 0])
                .chain(steps.into_iter().map(|(kind, option, bytes)| {
                    let length = u8::try_from(bytes.len()).unwrap_or(0);
                    [&[kind, option, length], &bytes[..]].concat()
                }))
                .collect::<Vec<_>>()
                .concat();
            exchange(&script);
        }
    }
}
