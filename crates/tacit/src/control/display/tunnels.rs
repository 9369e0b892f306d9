//! Defines the content of `tacit show ike` and `tacit show sa`. The first command shows the IKE
//! connections to the peers of IPsec tunnels. The second command shows the bytes and packets of the
//! tunnels.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use tacit_core::policy::{IkeCredentials, ManualMode};
use tacit_ipsec::esp::{DataLifetime, DataVolume, DropReason, REPLAY_WINDOW};
use tacit_ipsec::ike::{ChildSummary, IkeRole, IkeSummary};
use tacit_ipsec::{EspSpi, ReplayCheck, SaProtocol, TrafficSelector};
use tacit_tls::credentials::LoadedIdentity;

use crate::clock::{self, Rfc3339};
use crate::ike::{
    ChildStatus, IkeState, IkeStatus, ManualStatus, auth_word, proposal_words, protocol_words,
    selector_words,
};
use crate::packet::{PacketStatistics, SaVolume, TunnelStatistics};

use super::VERSION;

/// The connections with peers of tunnels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct IkeDisplay {
    /// The version of this format.
    pub version: u32,
    /// The connections, by run and peer.
    pub connections: Vec<IkeEntry>,
}

/// The connection of a run with a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct IkeEntry {
    /// The number of the run.
    pub run: u64,
    /// The name of the run.
    pub run_name: String,
    /// The name of the peer: `[ike.NAME]`.
    pub ike: String,
    /// Its address.
    pub peer: SocketAddr,
    /// Where the connection stands.
    pub state: IkeState,
    /// The address from which this side sends; `null` between attempts.
    pub outer_local: Option<SocketAddr>,
    /// The side of the IKE SA that this is: `initiator` or `responder`.
    pub role: Option<String>,
    /// The identity that this side proves.
    pub local_identity: String,
    /// The identity that the peer must prove.
    pub expected_identity: String,
    /// The identity that the peer has proved.
    pub identity: Option<String>,
    /// How both sides prove who they are.
    pub auth: IkeAuthDisplay,
    /// The algorithms of the IKE SA, in the words of the policy.
    pub proposal: Option<String>,
    /// The SPIs of the IKE SA in hexadecimal, that of the initiator first.
    pub spis: Vec<String>,
    /// Whether a NAT is in front of this side; `null` between attempts.
    pub behind_nat: Option<bool>,
    /// Whether a NAT is in front of the peer; `null` between attempts.
    pub peer_behind_nat: Option<bool>,
    /// The addresses of the run inside the tunnel.
    pub inner: Vec<IpAddr>,
    /// When it was established, or when the last attempt began.
    pub since: Rfc3339,
    /// How many times the keys of the IKE SA were replaced.
    pub rekeyed: u64,
    /// Seconds until the keys of the IKE SA are replaced, and until they expire.
    pub lifetime: Option<TimeLeft>,
    /// Whether the peer is alive.
    pub liveness: Option<LivenessDisplay>,
    /// The messages of the exchanges.
    pub messages: Option<IkeMessagesDisplay>,
    /// The number of pairs of SAs.
    pub tunnels: usize,
    /// Packets of the run that were refused because there was no tunnel.
    pub refused: u64,
    /// Attempts that have failed since the connection was last established.
    pub failures: u32,
    /// Seconds until the next attempt may begin; `null` if an attempt may begin at once.
    pub retry_in_s: Option<u64>,
    /// Why the last attempt failed, with the next step.
    pub failure: Option<String>,
    /// The side that has to act then: `peer`, `policy`, `both`, `network` or `host`.
    pub failure_side: Option<String>,
}

/// How both sides prove who they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct IkeAuthDisplay {
    /// `shared-key` or `certificates`.
    pub method: String,
    /// The `[identity.NAME]` of this side.
    pub certificate: Option<String>,
    /// The `[trust.NAME]` that checks the peer.
    pub trust: Option<String>,
    /// When the certificate of this side expires.
    pub expires: Option<Rfc3339>,
    /// Days until then; negative if it has expired.
    pub days_left: Option<i64>,
}

/// The rest of a lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TimeLeft {
    /// Seconds until keys are replaced: the soft limit.
    pub rekey_in_s: u64,
    /// Seconds until keys expire: the hard limit.
    pub expires_in_s: u64,
}

/// Whether a peer is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LivenessDisplay {
    /// Seconds since the last authentic message or packet of the peer.
    pub last_received_s: u64,
    /// After this time without one, the peer is asked whether it is alive.
    pub interval_s: u64,
    /// Whether a request waits for its response.
    pub waiting: bool,
}

/// The messages of the exchanges with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct IkeMessagesDisplay {
    /// The message ID of the next request of this side.
    pub next_request: u32,
    /// The message ID of the next request of the peer.
    pub expected_request: u32,
    /// Requests that were sent again.
    pub retransmitted: u64,
    /// Whether both sides join fragments (RFC 7383).
    pub fragmentation: bool,
    /// Fragments that were sent.
    pub fragments_sent: u64,
    /// Fragments that were received.
    pub fragments_received: u64,
}

/// The SAs of tunnels, and the packets that were dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SaDisplay {
    /// The version of this format.
    pub version: u32,
    /// The pairs of SAs, by run and peer.
    pub tunnels: Vec<SaEntry>,
    /// Dropped packets by reason, without the reasons that never occurred.
    pub drops: Vec<DroppedPackets>,
    /// IKE messages that were received.
    pub ike_messages: u64,
    /// Keepalives that were received.
    pub keepalives: u64,
    /// Packets that wait for their tunnel.
    pub held: u64,
}

/// Where the keys of SAs come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SaKeySource {
    /// IKE has negotiated them.
    Ike,
    /// They are in files.
    Manual,
}

impl SaKeySource {
    /// The word in displays.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ike => "ike",
            Self::Manual => "manual",
        }
    }
}

/// A pair of SAs: one for each direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SaEntry {
    /// The number of the run.
    pub run: u64,
    /// The name of the run.
    pub run_name: String,
    /// Where the keys come from.
    pub how: SaKeySource,
    /// The name of the peer in `[ike.NAME]`; `null`: the SAs are manual.
    pub ike: Option<String>,
    /// The name of the peer in `[sa.NAME]`; `null`: the SAs are those of IKE.
    pub sa: Option<String>,
    /// Its address, with its port if there is one.
    pub peer: String,
    /// The address from which this side sends, with its port if there is one.
    pub outer_local: Option<String>,
    /// How packets are protected: `esp` or `ah`.
    pub protocol: String,
    /// What packets are sent in: `udp` (RFC 3948) or `none`.
    pub encapsulation: String,
    /// What packets contain: `tunnel` (whole IP packets) or `transport` (what follows the IP
    /// header).
    pub mode: String,
    /// Whether packets are sent with it; otherwise another one has replaced it, or will be used
    /// soon.
    pub is_sending: bool,
    /// Whether it is deleted soon, because another one has replaced it.
    pub is_ending: bool,
    /// Its algorithms, in the words of the policy.
    pub proposal: String,
    /// Whether sequence numbers have 64 bits (RFC 4303 section 2.2.1).
    pub extended_sequence: bool,
    /// How many sequence numbers behind the highest are accepted; 0: numbers are not checked.
    pub replay_window: u64,
    /// The traffic selectors of this side.
    pub local: Vec<String>,
    /// The traffic selectors of the peer.
    pub remote: Vec<String>,
    /// When it was installed.
    pub since: Rfc3339,
    /// Seconds since then.
    pub age_s: u64,
    /// How many pairs of SAs it has replaced, one after the other.
    pub rekeyed: u64,
    /// The rest of its time.
    pub lifetime: Option<TimeLeft>,
    /// The data that it protects until it is replaced.
    pub soft: DataLeft,
    /// The data that it protects until it expires.
    pub hard: DataLeft,
    /// Received packets.
    pub inbound: SaDirection,
    /// Sent packets.
    pub outbound: SaDirection,
    /// Its dropped packets by reason, without the reasons that never occurred.
    pub drops: Vec<DroppedPackets>,
}

/// The rest of a limit for data, in the direction that has used more of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DataLeft {
    /// Bytes of inner packets; `null`: no limit.
    pub bytes: Option<u64>,
    /// Packets; `null`: no limit.
    pub packets: Option<u64>,
}

/// What one SA has processed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SaDirection {
    /// Its SPI in hexadecimal.
    pub spi: String,
    /// Inner packets.
    pub packets: u64,
    /// The bytes of these packets.
    pub bytes: u64,
    /// Dummy packets.
    pub dummies: u64,
}

/// Packets that were dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DroppedPackets {
    /// The reason.
    pub reason: String,
    /// Their number.
    pub count: u64,
}

/// `tacit show ike`. `identities` are those of the policy, by name.
#[must_use]
pub fn ike(
    statuses: &[IkeStatus],
    identities: &BTreeMap<String, Arc<LoadedIdentity>>,
) -> IkeDisplay {
    let now = clock::boottime();
    let mut connections: Vec<IkeEntry> =
        statuses.iter().map(|status| ike_entry(status, identities, now)).collect();
    connections.sort_by(|a, b| (a.run, &a.ike).cmp(&(b.run, &b.ike)));
    IkeDisplay { version: VERSION, connections }
}

fn ike_entry(
    status: &IkeStatus,
    identities: &BTreeMap<String, Arc<LoadedIdentity>>,
    now: Instant,
) -> IkeEntry {
    let summary = status.summary.as_ref();
    let spis = summary.and_then(|summary| summary.spis);
    let found = summary.filter(|one| one.spis.is_some());
    let peer = &status.settings;
    IkeEntry {
        run: status.run,
        run_name: status.run_name.clone(),
        ike: status.ike.clone(),
        peer: status.peer,
        state: status.state,
        outer_local: summary.map(|summary| summary.path.local),
        role: summary.map(|summary| role_word(summary.role).to_owned()),
        local_identity: peer.local_id.to_string(),
        expected_identity: peer.remote_id.to_string(),
        identity: status.identity.clone(),
        auth: auth(&peer.credentials, identities),
        proposal: status.proposal.map(proposal_words),
        spis: spis.into_iter().flat_map(|(a, b)| [a, b]).map(|spi| format!("{spi:016x}")).collect(),
        behind_nat: found.map(|one| one.is_behind_nat),
        peer_behind_nat: found.map(|one| one.is_peer_behind_nat),
        inner: status.inner.clone(),
        since: Rfc3339(status.since),
        rekeyed: status.rekeyed,
        lifetime: summary.and_then(|summary| ike_time_left(summary, now)),
        liveness: summary.map(|summary| LivenessDisplay {
            last_received_s: now.saturating_duration_since(summary.last_received_at).as_secs(),
            interval_s: peer.dpd.as_secs(),
            waiting: summary.is_waiting,
        }),
        messages: summary.map(messages),
        tunnels: status.children.len(),
        refused: status.refused,
        failures: status.failures,
        retry_in_s: status.retry_at.map(|at| seconds_until(at, now)).filter(|left| *left > 0),
        failure: status.failure.clone(),
        failure_side: status.failure_side.map(|side| side.word().to_owned()),
    }
}

fn role_word(role: IkeRole) -> &'static str {
    match role {
        IkeRole::Initiator => "initiator",
        IkeRole::Responder => "responder",
    }
}

fn auth(
    credentials: &IkeCredentials,
    identities: &BTreeMap<String, Arc<LoadedIdentity>>,
) -> IkeAuthDisplay {
    let names = match credentials {
        IkeCredentials::SharedKey { .. } => None,
        IkeCredentials::Certificates { identity, trust } => Some((identity, trust)),
    };
    let facts = names.and_then(|(identity, _)| identities.get(identity)).map(|one| &one.facts);
    IkeAuthDisplay {
        method: auth_word(credentials).to_owned(),
        certificate: names.map(|(identity, _)| identity.clone()),
        trust: names.map(|(_, trust)| trust.clone()),
        expires: facts.map(|facts| Rfc3339::of_unix_s(facts.not_after)),
        days_left: facts.map(|facts| facts.days_left(clock::now_unix_s())),
    }
}

fn ike_time_left(summary: &IkeSummary, now: Instant) -> Option<TimeLeft> {
    let (rekey, expiry) = summary.rekey_at.zip(summary.expires_at)?;
    Some(TimeLeft {
        rekey_in_s: seconds_until(rekey, now),
        expires_in_s: seconds_until(expiry, now),
    })
}

fn messages(summary: &IkeSummary) -> IkeMessagesDisplay {
    IkeMessagesDisplay {
        next_request: summary.next_request,
        expected_request: summary.expected_request,
        retransmitted: summary.traffic.retransmitted,
        fragmentation: summary.has_fragments,
        fragments_sent: summary.traffic.fragments_sent,
        fragments_received: summary.traffic.fragments_received,
    }
}

/// `tacit show sa`. SAs of connections that end meanwhile are left out.
#[must_use]
pub fn sa(
    statuses: &[IkeStatus],
    manual: &[ManualStatus],
    statistics: &PacketStatistics,
) -> SaDisplay {
    let now = clock::boottime();
    let mut tunnels: Vec<SaEntry> = Vec::new();
    for status in statuses {
        for child in &status.children {
            let Some(found) = statistics_of(child, statistics) else { continue };
            tunnels.push(negotiated_entry(status, child, found, now));
        }
    }
    let of_manual = |status: &ManualStatus| {
        statistics_of(&status.child, statistics).map(|found| manual_entry(status, found))
    };
    tunnels.extend(manual.iter().filter_map(of_manual));
    let order = |one: &SaEntry| (one.run, one.name().to_owned());
    tunnels.sort_by_key(order);
    SaDisplay {
        version: VERSION,
        tunnels,
        drops: dropped(&statistics.drops),
        ike_messages: statistics.ike_messages,
        keepalives: statistics.keepalives,
        held: statistics.held,
    }
}

fn statistics_of<'a>(
    child: &ChildStatus,
    statistics: &'a PacketStatistics,
) -> Option<&'a TunnelStatistics> {
    statistics.tunnels.iter().find(|one| one.inbound_spi == child.inbound)
}

impl SaEntry {
    /// Returns the name of the peer.
    #[must_use]
    pub fn name(&self) -> &str {
        self.ike.as_deref().or(self.sa.as_deref()).unwrap_or_default()
    }
}

fn negotiated_entry(
    status: &IkeStatus,
    child: &ChildStatus,
    found: &TunnelStatistics,
    now: Instant,
) -> SaEntry {
    let summary = status.summary.as_ref();
    let of_child = |one: &&ChildSummary| one.inbound == child.inbound;
    let timers = summary.and_then(|summary| summary.children.iter().find(of_child));
    SaEntry {
        how: SaKeySource::Ike,
        ike: Some(status.ike.clone()),
        outer_local: summary.map(|summary| summary.path.local.to_string()),
        is_sending: status.sending == Some(child.inbound),
        is_ending: timers.is_none_or(|timers| timers.is_ending),
        replay_window: REPLAY_WINDOW,
        lifetime: timers.map(|timers| TimeLeft {
            rekey_in_s: seconds_until(timers.rekey_at, now),
            expires_in_s: seconds_until(timers.expires_at, now),
        }),
        ..entry((status.run, status.run_name.as_str()), status.peer.to_string(), child, found)
    }
}

fn manual_entry(status: &ManualStatus, found: &TunnelStatistics) -> SaEntry {
    let ManualStatus { run, run_name, sa, peer, local, encapsulation, replay, mode, child } =
        status;
    SaEntry {
        sa: Some(sa.clone()),
        outer_local: Some(local.clone()),
        encapsulation: (*encapsulation).to_owned(),
        mode: match mode {
            ManualMode::Tunnel => "tunnel".to_owned(),
            ManualMode::Transport { .. } => "transport".to_owned(),
        },
        replay_window: match replay {
            ReplayCheck::On => REPLAY_WINDOW,
            ReplayCheck::Off => 0,
        },
        ..entry((*run, run_name.as_str()), peer.clone(), child, found)
    }
}

/// What SAs of both kinds have; the rest is that of manual ones.
fn entry(
    (run, run_name): (u64, &str),
    peer: String,
    child: &ChildStatus,
    found: &TunnelStatistics,
) -> SaEntry {
    let words = |list: &[TrafficSelector]| list.iter().map(selector_words).collect();
    let DataLifetime { soft, hard } = child.lifetime;
    SaEntry {
        run,
        run_name: run_name.to_owned(),
        how: SaKeySource::Manual,
        ike: None,
        sa: None,
        peer,
        outer_local: None,
        protocol: match child.protocol {
            SaProtocol::EspInUdp(_) | SaProtocol::Esp(..) => "esp".to_owned(),
            SaProtocol::Ah(..) => "ah".to_owned(),
        },
        encapsulation: "udp".to_owned(),
        mode: "tunnel".to_owned(),
        is_sending: true,
        is_ending: false,
        proposal: protocol_words(child.protocol),
        extended_sequence: child.has_extended_sequence,
        replay_window: 0,
        local: words(&child.local),
        remote: words(&child.remote),
        since: Rfc3339(child.since),
        age_s: SystemTime::now().duration_since(child.since).unwrap_or(Duration::ZERO).as_secs(),
        rekeyed: child.rekeyed,
        lifetime: None,
        soft: data_left(soft, found),
        hard: data_left(hard, found),
        inbound: direction(found.inbound_spi, found.inbound),
        outbound: direction(found.outbound_spi, found.outbound),
        drops: dropped(&found.drops),
    }
}

/// What is left of a limit that applies to each direction.
fn data_left(limit: DataVolume, used: &TunnelStatistics) -> DataLeft {
    let left = |limit: u64, used: u64| (limit != u64::MAX).then(|| limit.saturating_sub(used));
    DataLeft {
        bytes: left(limit.bytes, used.inbound.bytes.max(used.outbound.bytes)),
        packets: left(limit.packets, used.inbound.packets.max(used.outbound.packets)),
    }
}

/// Dropped packets in the words of displays.
pub(super) fn dropped(counts: &[(DropReason, u64)]) -> Vec<DroppedPackets> {
    let of_reason = |(reason, count): &(DropReason, u64)| DroppedPackets {
        reason: reason.name().to_owned(),
        count: *count,
    };
    counts.iter().map(of_reason).collect()
}

fn seconds_until(at: Instant, now: Instant) -> u64 {
    at.saturating_duration_since(now).as_secs()
}

fn direction(spi: EspSpi, volume: SaVolume) -> SaDirection {
    let SaVolume { packets, bytes, dummies } = volume;
    SaDirection { spi: format!("{:08x}", spi.number()), packets, bytes, dummies }
}
