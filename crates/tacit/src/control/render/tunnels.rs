//! Formats the tables of `tacit show ike` (connections with peers of tunnels) and of `tacit show
//! sa` (keys and counters of tunnels).

use super::Table;
use super::table::{Column, list, optional, table};
use crate::control::display::tunnels::{DroppedPackets, IkeDisplay, IkeEntry, SaDisplay, SaEntry};

const CONNECTIONS: [Column<IkeEntry>; 10] = [
    ("RUN", |one| one.run_name.clone()),
    ("IKE", |one| one.ike.clone()),
    ("PEER", |one| one.peer.to_string()),
    ("STATE", |one| one.state.word().to_owned()),
    ("SINCE", |one| one.since.to_string()),
    ("IDENTITY", |one| optional(one.identity.as_ref())),
    ("ALGORITHMS", |one| optional(one.proposal.as_ref())),
    ("INNER", |one| list(&one.inner)),
    ("REKEYED", |one| one.rekeyed.to_string()),
    ("TUNNELS", |one| one.tunnels.to_string()),
];

const TUNNELS: [Column<SaEntry>; 10] = [
    ("RUN", |one| one.run_name.clone()),
    ("IKE", |one| one.ike.clone()),
    ("PEER", |one| one.peer.to_string()),
    ("SENDS", |one| if one.is_sending { "yes" } else { "no" }.to_owned()),
    ("SPI-IN", |one| one.inbound.spi.clone()),
    ("PACKETS-IN", |one| one.inbound.packets.to_string()),
    ("BYTES-IN", |one| one.inbound.bytes.to_string()),
    ("SPI-OUT", |one| one.outbound.spi.clone()),
    ("PACKETS-OUT", |one| one.outbound.packets.to_string()),
    ("BYTES-OUT", |one| one.outbound.bytes.to_string()),
];

const DROPS: [Column<DroppedPackets>; 2] =
    [("DROPPED", |one| one.reason.clone()), ("PACKETS", |one| one.count.to_string())];

impl Table for IkeDisplay {
    fn text(&self) -> String {
        let mut text = table(&self.connections, &CONNECTIONS);
        for one in &self.connections {
            if let Some(failure) = &one.failure {
                let line = format!("{} {}: {failure}", one.run_name, one.ike);
                text.push_str(&format!("\n{}\n", tacit_core::printable::printable(&line)));
            }
        }
        text
    }
}

impl Table for SaDisplay {
    fn text(&self) -> String {
        let tunnels = table(&self.tunnels, &TUNNELS);
        if self.drops.is_empty() {
            return tunnels;
        }
        format!("{tunnels}\n{}", table(&self.drops, &DROPS))
    }
}
