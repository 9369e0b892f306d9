//! Accepts IKE connections that peers open to this host, as the responder.
//!
//! Several peers of the policy may have the same address, for example a gateway with two tunnels.
//! When the other side of a connection has proved its identity, this module assigns the connection
//! to the peer with this identity. Until then, the connection counts as a connection of a
//! *stranger*.
//!
//! Strangers at the address of a peer, for example behind the same NAT, must not prevent the peer
//! from connecting. So connections from the IKE port of the peer have a limit of their own. When a
//! limit is reached, a new connection replaces the oldest connection of a stranger that counts for
//! this limit. If this oldest connection is younger than [`HELD_AT_LEAST`], tacit ignores the new
//! connection.
//!
//! Limits for each address: [`STRANGERS_MAX`] connections of strangers from IKE ports of peers,
//! [`STRANGERS_MAX`] connections of strangers from other ports, and [`ACCEPTED_CONFIGS_MAX`] peers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_core::flow::Direction;
use tacit_core::policy::InnerAddressSource;
use tacit_core::refusal::RunLabel;
use tacit_ipsec::ike::{
    ACCEPTED_CONFIGS_MAX, FirstRequestDecision, HALF_OPEN_OF_ADDRESS_MAX, IkeConfig, IkeConnection,
    IkePath, IkeRefusal, network,
};

use super::PORT;
use super::connection::{Candidate, Pair, PeerConnection, Stranger};
use super::kernel::{KernelRandom, local};
use super::thread::IkeThread;
use crate::clock::boottime;
use crate::log::{Event, EventCause};

/// The largest number of connections that strangers at one address have opened from IKE ports of
/// peers; also the largest number from other ports. This limit is higher than the number of first
/// requests that tacit accepts without a cookie. Such requests can have a forged address, and must
/// leave room for the peer.
const STRANGERS_MAX: usize = HALF_OPEN_OF_ADDRESS_MAX / 2;
/// The age at which another connection may replace the connection of a stranger. A peer sends AUTH
/// earlier than this.
const HELD_AT_LEAST: Duration = Duration::from_millis(250);

impl IkeThread {
    /// Handles the first message of a peer that opens a connection itself.
    pub(super) fn answer_first(&mut self, from: SocketAddr, message: &[u8]) {
        let now = boottime();
        match self.limiter.check(now, from, message, &mut KernelRandom) {
            Ok(FirstRequestDecision::Accept | FirstRequestDecision::Replace) => {}
            Ok(FirstRequestDecision::Respond(response)) => return self.send(&response, from),
            Ok(FirstRequestDecision::Drop) | Err(_) => return,
        }
        let pairs = self.pairs_at(from);
        let candidates: Vec<Candidate> =
            pairs.iter().filter_map(|pair| self.candidate(pair)).collect();
        let Some(first) = candidates.first() else { return };
        let pair = first.pair.clone();
        let is_its = |one: &Candidate| self.policy.addresses(&one.pair.ike).contains(&from);
        let is_peer_address = candidates.iter().any(is_its);
        let stranger = Stranger { from, since: now, is_peer_address };
        if !self.make_room(&stranger, now) {
            return;
        }
        let configs: Vec<Arc<IkeConfig>> =
            candidates.iter().map(|one| Arc::clone(&one.settings.config)).collect();
        let path = IkePath { local: local(&self.context.locals, from), remote: from };
        match IkeConnection::accept(&configs, path, Box::new(KernelRandom), now, message) {
            Ok(connection) => self.add_stranger(stranger, connection, candidates),
            Err(refusal) => self.refuse(&pair, from, &refusal),
        }
    }

    /// Makes room for the connection of a stranger, for which another one may have to end. Returns
    /// `false` if there is none.
    fn make_room(&mut self, wanted: &Stranger, now: Instant) -> bool {
        let address = network(wanted.from.ip());
        let is_beside = |one: &Stranger| {
            network(one.from.ip()) == address && one.is_peer_address == wanted.is_peer_address
        };
        let strangers = self.connections.iter().enumerate().filter_map(|(at, one)| {
            let stranger = one.stranger.filter(|_| one.open.is_some())?;
            is_beside(&stranger).then_some((stranger.since, at))
        });
        let strangers: Vec<(Instant, usize)> = strangers.collect();
        if strangers.len() < STRANGERS_MAX {
            return true;
        }
        let oldest = strangers.into_iter().min();
        let Some((_, at)) = oldest.filter(|(since, _)| now >= *since + HELD_AT_LEAST) else {
            return false;
        };
        self.close_one(at, now);
        true
    }

    /// Adds the connection of a stranger, which may be any of these.
    fn add_stranger(
        &mut self,
        stranger: Stranger,
        connection: IkeConnection,
        candidates: Vec<Candidate>,
    ) {
        let is_it = |one: &&Candidate| Arc::ptr_eq(&one.settings.config, connection.config());
        let Some(candidate) = candidates.iter().find(is_it).cloned() else { return };
        let mut one = PeerConnection::new(candidate);
        one.remote = stranger.from;
        one.stranger = Some(stranger);
        one.candidates = candidates;
        one.begin(connection);
        self.limiter.note_opened(stranger.from.ip());
        self.connections.push(one);
        self.drain(self.connections.len() - 1);
    }

    /// Reports the peers that cannot open the tunnels of a run, because another program has the
    /// port of IKE. Only peers with inbound rules have to open tunnels.
    pub(super) fn report_port(&self, id: u64) {
        let Some(run) = self.runs.get(&id) else { return };
        let groups = run.routes.groups().iter();
        let inbound = groups.filter(|group| group.direction == Direction::Inbound);
        let opens = |ike: &&str| {
            let peer = self.policy.policy.ikes.get(*ike);
            peer.is_some_and(|peer| peer.inner != InnerAddressSource::Gateway)
        };
        let ikes: BTreeSet<&str> = inbound.map(|group| &*group.peer).filter(opens).collect();
        let locals = &self.context.locals;
        if ikes.is_empty() || locals.iter().all(|local| local.port() == PORT) {
            return;
        }
        let locals: Vec<String> = locals.iter().map(ToString::to_string).collect();
        let ikes: Vec<String> = ikes.into_iter().map(str::to_owned).collect();
        let next = "end the program that uses UDP port 4500, and restart the agent; until then, \
                    programs of the run can open the tunnels, but the peers cannot";
        let label = RunLabel { id, name: run.name.clone() };
        let event = Event::new("ike-port-not-available").field("run", &run.name);
        let event = event.names("ike", &ikes).names("local", &locals).field("next", next);
        let key = format!("ike-port-not-available {}", run.name);
        self.context.log.warn(event.caused_by(EventCause::Run(label)).limited(key));
    }

    fn refuse(&mut self, pair: &Pair, from: SocketAddr, refusal: &IkeRefusal) {
        self.limiter.note_refused(boottime());
        if let Some(at) = self.prepare(pair) {
            self.report_unproved(at, &refusal.failure);
        }
        if let Some(response) = &refusal.response {
            self.send(response, from);
        }
    }

    /// A peer has proved its identity. If it has opened the connection, this one replaces the
    /// earlier one with the same peer.
    pub(super) fn replace_earlier(&mut self, at: usize) {
        let one = &mut self.connections[at];
        let Some(stranger) = one.stranger.take() else { return };
        one.candidates.clear();
        let pair = one.pair.clone();
        self.limiter.note_closed(stranger.from.ip());
        let now = boottime();
        for other in 0..self.connections.len() {
            let one = &self.connections[other];
            if other != at && one.pair == pair && one.stranger.is_none() {
                self.close_one(other, now);
            }
        }
    }

    /// The peers at this address, each with the run that has a tunnel to it. A peer of several runs
    /// is not answered, because it is not known which of them it wants to reach.
    ///
    /// A peer that assigns addresses is not answered either: only the initiator of a connection can
    /// request an address, so in a connection that the peer opens, the run would have none.
    fn pairs_at(&self, from: SocketAddr) -> Vec<Pair> {
        let is_its = |address: &SocketAddr| address.ip() == from.ip();
        let is_answered = |ike: &&str| {
            let peer = self.policy.policy.ikes.get(*ike);
            peer.is_some_and(|peer| peer.inner != InnerAddressSource::Gateway)
                && self.policy.addresses(ike).iter().any(is_its)
        };
        let pairs = self.runs.iter().flat_map(|(id, run)| {
            let ikes = run.routes.peers().filter(is_answered);
            ikes.map(|ike| Pair { run: *id, ike: ike.to_owned() })
        });
        let all: Vec<Pair> = pairs.collect();
        let is_alone = |pair: &&Pair| all.iter().filter(|one| one.ike == pair.ike).count() == 1;
        all.iter().filter(is_alone).take(ACCEPTED_CONFIGS_MAX).cloned().collect()
    }
}
