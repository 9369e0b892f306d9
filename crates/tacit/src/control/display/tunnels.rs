//! Defines the content of `tacit show ike` and `tacit show sa`: connections with peers of IPsec
//! tunnels, and the bytes and packets of the tunnels.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use tacit_ipsec::EspSpi;

use crate::clock::Rfc3339;
use crate::ike::{IkeState, IkeStatus, proposal_words};
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
    /// The identity that the peer has proved.
    pub identity: Option<String>,
    /// The algorithms of the IKE SA, in the words of the policy.
    pub proposal: Option<String>,
    /// The addresses of the run inside the tunnel.
    pub inner: Vec<IpAddr>,
    /// When it was established, or when the last attempt began.
    pub since: Rfc3339,
    /// How many times the keys of the IKE SA were replaced.
    pub rekeyed: u64,
    /// The number of pairs of SAs.
    pub tunnels: usize,
    /// Why the last attempt failed, with the next step.
    pub failure: Option<String>,
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

/// A pair of SAs: one for each direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SaEntry {
    /// The number of the run.
    pub run: u64,
    /// The name of the run.
    pub run_name: String,
    /// The name of the peer: `[ike.NAME]`.
    pub ike: String,
    /// Its address.
    pub peer: SocketAddr,
    /// Whether packets are sent with it; otherwise another one has replaced it, or will be used
    /// soon.
    pub is_sending: bool,
    /// Received packets.
    pub inbound: SaDirection,
    /// Sent packets.
    pub outbound: SaDirection,
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

/// `tacit show ike`.
#[must_use]
pub fn ike(statuses: &[IkeStatus]) -> IkeDisplay {
    let mut connections: Vec<IkeEntry> = statuses.iter().map(ike_entry).collect();
    connections.sort_by(|a, b| (a.run, &a.ike).cmp(&(b.run, &b.ike)));
    IkeDisplay { version: VERSION, connections }
}

fn ike_entry(status: &IkeStatus) -> IkeEntry {
    IkeEntry {
        run: status.run,
        run_name: status.run_name.clone(),
        ike: status.ike.clone(),
        peer: status.peer,
        state: status.state,
        identity: status.identity.clone(),
        proposal: status.proposal.map(proposal_words),
        inner: status.inner.clone(),
        since: Rfc3339(status.since),
        rekeyed: status.rekeyed,
        tunnels: status.children.len(),
        failure: status.failure.clone(),
    }
}

/// `tacit show sa`. SAs of connections that end meanwhile are left out.
#[must_use]
pub fn sa(statuses: &[IkeStatus], statistics: &PacketStatistics) -> SaDisplay {
    let mut tunnels: Vec<SaEntry> = Vec::new();
    for status in statuses {
        for spi in &status.children {
            let of_child = |one: &&TunnelStatistics| one.inbound_spi == *spi;
            let Some(found) = statistics.tunnels.iter().find(of_child) else { continue };
            tunnels.push(SaEntry {
                run: status.run,
                run_name: status.run_name.clone(),
                ike: status.ike.clone(),
                peer: status.peer,
                is_sending: status.children.last() == Some(spi),
                inbound: direction(found.inbound_spi, found.inbound),
                outbound: direction(found.outbound_spi, found.outbound),
            });
        }
    }
    tunnels.sort_by(|a, b| (a.run, &a.ike).cmp(&(b.run, &b.ike)));
    let drops = statistics
        .drops
        .iter()
        .map(|(reason, count)| DroppedPackets { reason: reason.name().to_owned(), count: *count });
    SaDisplay {
        version: VERSION,
        tunnels,
        drops: drops.collect(),
        ike_messages: statistics.ike_messages,
        keepalives: statistics.keepalives,
        held: statistics.held,
    }
}

fn direction(spi: EspSpi, volume: SaVolume) -> SaDirection {
    let SaVolume { packets, bytes, dummies } = volume;
    SaDirection { spi: format!("{:08x}", spi.number()), packets, bytes, dummies }
}
