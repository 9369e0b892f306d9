//! Accepts IKE connections that peers open to this host, as the responder.
//!
//! Several peers of the policy may have the same address, for example a gateway with two tunnels.
//! When the sender has proved its identity, this module assigns the connection to the peer with
//! this identity. Until then, the connection counts as a connection of a *stranger*.
//!
//! Limits: [`STRANGERS_MAX`] connections of strangers, and [`ACCEPTED_CONFIGS_MAX`] peers, for each
//! address.

use std::net::SocketAddr;
use std::sync::Arc;

use tacit_core::policy::InnerAddressSource;
use tacit_ipsec::ike::{
    ACCEPTED_CONFIGS_MAX, FirstRequestDecision, IkeConfig, IkeConnection, IkePath, IkeRefusal,
};

use super::connection::{Candidate, Pair, PeerConnection};
use super::kernel::{KernelRandom, local};
use super::thread::IkeThread;
use crate::clock::boottime;

/// The largest number of connections that strangers at one address have opened. It is higher than
/// the number of first requests that are accepted without a cookie: those can have a forged
/// address, and must leave room for the peer.
const STRANGERS_MAX: usize = 8;

impl IkeThread {
    /// Handles the first message of a peer that opens a connection itself.
    pub(super) fn answer_first(&mut self, from: SocketAddr, message: &[u8]) {
        let now = boottime();
        match self.limiter.check(now, from, message, &mut KernelRandom) {
            Ok(FirstRequestDecision::Accept) => {}
            Ok(FirstRequestDecision::Respond(response)) => return self.send(&response, from),
            Ok(FirstRequestDecision::Drop) | Err(_) => return,
        }
        let of_strangers = self.connections.iter().filter(|one| one.stranger == Some(from.ip()));
        if of_strangers.count() >= STRANGERS_MAX {
            return;
        }
        let pairs = self.pairs_at(from);
        let candidates: Vec<Candidate> =
            pairs.iter().filter_map(|pair| self.candidate(pair)).collect();
        let Some(first) = candidates.first() else { return };
        let pair = first.pair.clone();
        let configs: Vec<Arc<IkeConfig>> =
            candidates.iter().map(|one| Arc::clone(&one.settings.config)).collect();
        let path = IkePath { local: local(&self.context.locals, from), remote: from };
        match IkeConnection::accept(&configs, path, Box::new(KernelRandom), now, message) {
            Ok(connection) => self.add_stranger(from, connection, candidates),
            Err(refusal) => self.refuse(&pair, from, &refusal),
        }
    }

    /// Adds the connection of a stranger, which may be any of these.
    fn add_stranger(
        &mut self,
        from: SocketAddr,
        connection: IkeConnection,
        candidates: Vec<Candidate>,
    ) {
        let is_it = |one: &&Candidate| Arc::ptr_eq(&one.settings.config, connection.config());
        let Some(candidate) = candidates.iter().find(is_it).cloned() else { return };
        let mut one = PeerConnection::new(candidate);
        one.remote = from;
        one.stranger = Some(from.ip());
        one.candidates = candidates;
        one.begin(connection);
        self.limiter.note_opened(from.ip());
        self.connections.push(one);
        self.drain(self.connections.len() - 1);
    }

    fn refuse(&mut self, pair: &Pair, from: SocketAddr, refusal: &IkeRefusal) {
        if let Some(at) = self.prepare(pair) {
            self.report_failure(at, &refusal.failure);
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
        self.limiter.note_closed(stranger);
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
            let ikes = run.routes.ikes().filter(is_answered);
            ikes.map(|ike| Pair { run: *id, ike: ike.to_owned() })
        });
        let all: Vec<Pair> = pairs.collect();
        let is_alone = |pair: &&Pair| all.iter().filter(|one| one.ike == pair.ike).count() == 1;
        all.iter().filter(is_alone).take(ACCEPTED_CONFIGS_MAX).cloned().collect()
    }
}
