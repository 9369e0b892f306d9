//! Writes the metrics of IPsec tunnels.

use std::collections::BTreeMap;

use super::exposition::{Kind, Page};
use crate::control::display::tunnels::IkeDisplay;
use crate::ike::{IkeState, RefusedByPeer};
use crate::packet::{PacketStatistics, SaVolume};

/// Writes all of them.
pub(super) fn write(page: &mut Page, ike: &IkeDisplay, packets: &PacketStatistics) {
    connections(page, ike);
    let PacketStatistics { inbound, outbound, drops, .. } = packets;
    let both = [("inbound", inbound), ("outbound", outbound)];
    let mut family = page.family(
        "tacit_tunnel_packets_total",
        Kind::Counter,
        "Packets that IPsec tunnels have transferred for programs, by direction.",
    );
    for (direction, SaVolume { packets, .. }) in both {
        family.sample(&[("direction", direction)], *packets as f64);
    }
    let mut family = page.family(
        "tacit_tunnel_bytes_total",
        Kind::Counter,
        "Bytes of packets that IPsec tunnels have transferred for programs, by direction.",
    );
    for (direction, SaVolume { bytes, .. }) in both {
        family.sample(&[("direction", direction)], *bytes as f64);
    }
    let mut family = page.family(
        "tacit_tunnel_dropped_total",
        Kind::Counter,
        "Dropped packets of IPsec tunnels, by reason.",
    );
    for (reason, count) in drops {
        family.sample(&[("reason", reason.name())], *count as f64);
    }
}

/// Writes the packets that were refused because there was no tunnel.
pub(super) fn refused(page: &mut Page, ike: &IkeDisplay, refused: &RefusedByPeer) {
    // Alert rules can watch a series only if it also exists while its value is zero.
    let mut counts: BTreeMap<&str, u64> =
        ike.connections.iter().map(|one| (one.ike.as_str(), 0)).collect();
    counts.extend(refused.iter().map(|(ike, count)| (ike.as_str(), *count)));
    let mut family = page.family(
        "tacit_tunnel_refused_total",
        Kind::Counter,
        "Packets that tacit refused because it had no IPsec tunnel to the peer. Counted for \
         each peer.",
    );
    for (ike, count) in counts {
        family.sample(&[("ike", ike)], count as f64);
    }
}

fn connections(page: &mut Page, ike: &IkeDisplay) {
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for one in &ike.connections {
        // Alert rules can watch a series only if it also exists while its value is zero.
        for state in IkeState::ALL {
            let count = counts.entry((&one.ike, state.word())).or_default();
            *count += u64::from(state == one.state);
        }
    }
    let mut family =
        page.family("tacit_ike_connections", Kind::Gauge, "IKE connections, by peer and state.");
    for ((ike, state), count) in counts {
        family.sample(&[("ike", ike), ("state", state)], count as f64);
    }
}
