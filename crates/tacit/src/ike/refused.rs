//! Handles packets for which there is no tunnel: opens an IKE connection to the peer. Until the
//! tunnel exists, this module records the packets that the agent rejects.
//!
//! `tacit show refused`, `tacit show ike` and the log show these packets. If an `unreachable` route
//! of the kernel rejects a packet, `tacit show` does not list the packet. In this case, the system
//! call of the program fails.

use std::sync::PoisonError;

use tacit_core::flow::Protocol;
use tacit_core::refusal::{Refusal, RefusalKind, RefusalReason, RunLabel};
use tacit_ipsec::packet::IpPacket;

use super::connection::{Pair, PeerConnection};
use super::reports;
use super::thread::{IkeThread, News};
use crate::packet::{Direction, TunId, tunnel_packet};

impl IkeThread {
    /// A program has sent a packet for which there is no tunnel.
    pub(super) fn demand(&mut self, tun: TunId, packet: &IpPacket) {
        let Some((id, run)) = self.runs.iter().find(|(_, run)| run.tun == tun) else { return };
        let Some(packet) = tunnel_packet(Direction::Outbound, packet) else { return };
        let Some(ike) = run.routes.peer_of(&packet) else { return };
        let pair = Pair { run: *id, ike: ike.to_owned() };
        if self.policy.policy.sas.contains_key(&pair.ike) {
            // Its keys are installed, unless something prevents it.
            self.report_manual_drop(&pair, &packet);
            return;
        }
        self.connect(&pair);
        let failed = |one: &&PeerConnection| one.pair == pair && one.open.is_none();
        if let Some(one) = self.connections.iter().find(failed) {
            reports::dropped(&self.context.log, one, &packet);
        }
    }

    /// Packets of a program were refused.
    pub(super) fn note_refused(&mut self, tun: TunId, packet: &IpPacket, count: u64) {
        let Some((id, run)) = self.runs.iter_mut().find(|(_, run)| run.tun == tun) else { return };
        let Some(packet) = tunnel_packet(Direction::Outbound, packet) else { return };
        let Some(ike) = run.routes.peer_of(&packet) else { return };
        let pair = Pair { run: *id, ike: ike.to_owned() };
        let run_label = RunLabel { id: *id, name: run.name.clone() };
        let total = run.refused.entry(pair.ike.clone()).or_default();
        *total = total.saturating_add(count);
        let mut of_peers = self.context.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = of_peers.entry(pair.ike.clone()).or_default();
        *of_peer = of_peer.saturating_add(count);
        drop(of_peers);
        let rule = run.routes.rule_of(&packet).map(str::to_owned);
        self.news = self.news.max(News::Soon);
        let is_it = |one: &&PeerConnection| one.pair == pair && one.stranger.is_none();
        let failure = self.connections.iter().find(is_it).and_then(PeerConnection::failure);
        let refusal = Refusal {
            kind: match packet.protocol {
                Protocol::Tcp => RefusalKind::Connection,
                Protocol::Udp | Protocol::Icmp => RefusalKind::Datagram,
            },
            run: Some(run_label),
            destination: match packet.protocol {
                Protocol::Tcp | Protocol::Udp => packet.remote.to_string(),
                Protocol::Icmp => packet.remote.ip().to_string(),
            },
            program: None,
            why: RefusalReason::NoTunnel,
            rule,
            next: match self.policy.policy.sas.contains_key(&pair.ike) {
                true => self.manual_next(&pair),
                false => next(&pair.ike, failure),
            },
        };
        (self.context.refusals)(refusal, count);
    }
}

/// What makes the tunnel possible.
fn next(ike: &str, failure: Option<&str>) -> String {
    match failure {
        Some(failure) => format!("the tunnel to [ike.{ike}] failed: {failure}"),
        None => format!("`tacit show ike` shows the state of the tunnel to [ike.{ike}]"),
    }
}
