//! Defines [`ManualTunnel`]: the manual SAs (security associations) between a run and a peer. The
//! keys of manual SAs come from files, not from IKE. This module also creates the SAs.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use tacit_core::policy::{ManualMode, ManualProtection, ManualSa, Policy, TunnelRoutes};
use tacit_ipsec::{
    ChildSa, DirectionKeys, EspSpi, KeyOrigin, ManualKeys, ReplayCheck, SaKeys, SaMode, SaProtocol,
    TrafficSelector, UnderlayEnds,
};
use tacit_sys::raw_ip::RawProtocol;

use super::config::{cipher, flows, hash, selectors};
use super::connection::Pair;
use super::status::ChildStatus;
use crate::ledger::Account;
use crate::packet::{RawKind, TunId, TunnelAccounts, TunnelPackets};
use crate::random;

/// The most packets of an SA (RFC 4303 section 3.3.3).
const PACKETS_MAX: u64 = (1 << 32) - 1;

/// The SAs of a run and a peer in `[sa.NAME]`.
pub(super) struct ManualTunnel {
    pub(super) pair: Pair,
    pub(super) run_name: String,
    pub(super) tun: TunId,
    pub(super) settings: ManualSa,
    pub(super) keys: ManualKeys,
    pub(super) spi: EspSpi,
    pub(super) status: ChildStatus,
    pub(super) local: SocketAddr,
    /// What was logged about its end.
    pub(super) logged: Option<SaEnd>,
}

/// How near the end of the sequence numbers is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SaEnd {
    /// The last sixteenth of them has begun.
    Near,
    /// None is left.
    Reached,
}

impl SaEnd {
    /// How near the end is after this number of packets, in the last sixteenth.
    pub(super) fn after(sent: u64) -> Self {
        if sent >= PACKETS_MAX { Self::Reached } else { Self::Near }
    }
}

/// Manual SAs, as `tacit show sa` prints them.
#[derive(Clone, Debug)]
pub struct ManualStatus {
    /// The number of the run.
    pub run: u64,
    /// Its name.
    pub run_name: String,
    /// The name of the peer: `[sa.NAME]`.
    pub sa: String,
    /// The address of the peer, with its port if there is one.
    pub peer: String,
    /// The address from which this side sends, with its port if there is one.
    pub local: String,
    /// The word for what packets are sent in.
    pub encapsulation: &'static str,
    /// Whether packets that arrive again are dropped.
    pub replay: ReplayCheck,
    /// What packets contain.
    pub mode: ManualMode,
    /// The SAs.
    pub child: ChildStatus,
}

/// What the policy says about the SAs of a run.
pub(super) struct WantedSas {
    pub(super) run_name: String,
    pub(super) tun: TunId,
    pub(super) settings: ManualSa,
    pub(super) keys: ManualKeys,
    pub(super) packets: TunnelPackets,
}

impl WantedSas {
    /// Whether the same SAs fulfil it.
    pub(super) fn has_same_keys(&self, one: &ManualTunnel) -> bool {
        self.tun == one.tun && self.settings.same(&one.settings) && self.keys == one.keys
    }
}

/// The packets that the rules permit.
pub(super) fn packets(
    routes: &Arc<TunnelRoutes>,
    name: &str,
    settings: &ManualSa,
    accounts: &[(String, Arc<Account>)],
) -> TunnelPackets {
    let local: Vec<TrafficSelector> =
        selectors(settings.inner.iter().map(|address| (*address, *address)));
    let remote = selectors(routes.remotes(name).iter().copied());
    TunnelPackets {
        local,
        remote,
        flows: flows(routes, name, &settings.inner),
        accounts: TunnelAccounts::new(routes, name, accounts),
    }
}

/// Whether packets that arrive again are dropped.
pub(super) fn replay_check(settings: &ManualSa) -> ReplayCheck {
    if settings.anti_replay { ReplayCheck::On } else { ReplayCheck::Off }
}

/// The SAs with their keys.
///
/// # Errors
/// Why they cannot be used.
pub(super) fn child(
    settings: &ManualSa,
    keys: &ManualKeys,
    packets: &TunnelPackets,
) -> Result<ChildSa, String> {
    let mut nonce = [0; 8];
    random::fill(&mut nonce).map_err(|error| error.to_string())?;
    let sa_keys = |spi: u32, keys: &DirectionKeys| {
        let DirectionKeys { encryption, integrity } = keys.clone();
        let spi = EspSpi::new(spi)
            .ok_or_else(|| format!("the SPI {spi} is reserved: use a number of at least 256"))?;
        Ok::<_, String>(SaKeys { spi, encryption, integrity })
    };
    Ok(ChildSa {
        protocol: protocol(settings),
        mode: match settings.mode {
            ManualMode::Tunnel => SaMode::Tunnel,
            ManualMode::Transport { local } => {
                SaMode::Transport { local, remote: settings.peer.ip() }
            }
        },
        origin: KeyOrigin::Manual { nonce, replay: replay_check(settings) },
        has_extended_sequence: false,
        inbound: sa_keys(settings.spi_in, &keys.inbound)?,
        outbound: sa_keys(settings.spi_out, &keys.outbound)?,
        local: packets.local.clone(),
        remote: packets.remote.clone(),
    })
}

/// How packets are protected, and in what they are sent.
fn protocol(settings: &ManualSa) -> SaProtocol {
    let ends = |local| UnderlayEnds { local, remote: settings.peer.ip() };
    match settings.protection {
        ManualProtection::EspInUdp(with) => SaProtocol::EspInUdp(cipher(with)),
        ManualProtection::Esp { cipher: with, local } => SaProtocol::Esp(cipher(with), ends(local)),
        ManualProtection::Ah { hash: of, local } => SaProtocol::Ah(hash(of), ends(local)),
    }
}

/// The raw socket that manual SAs need; `None`: they are in UDP.
#[must_use]
pub fn raw_kind(sa: &ManualSa) -> Option<RawKind> {
    let protocol = match sa.protection {
        ManualProtection::EspInUdp(_) => return None,
        ManualProtection::Esp { .. } => RawProtocol::Esp,
        ManualProtection::Ah { .. } => RawProtocol::Ah,
    };
    Some(RawKind::of(protocol, sa.peer.ip()))
}

/// The raw sockets that the manual SAs of a policy need.
#[must_use]
pub fn raw_kinds(policy: &Policy) -> BTreeSet<RawKind> {
    policy.sas.values().filter_map(raw_kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_sa_ends_with_its_last_sequence_number() {
        assert_eq!(SaEnd::after(PACKETS_MAX - 1), SaEnd::Near);
        assert_eq!(SaEnd::after(PACKETS_MAX), SaEnd::Reached);
        // Each end is logged once, in this order.
        assert!(None < Some(SaEnd::Near) && SaEnd::Near < SaEnd::Reached);
    }
}
