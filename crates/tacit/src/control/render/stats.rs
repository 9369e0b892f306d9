//! Formats `tacit show stats`: tables of packets, datagrams and dropped packets.

use super::Table;
use super::table::{Column, table};
use super::tunnels::dropped_table;
use super::width::TextWidth;
use crate::control::display::stats::{PacketRow, ProcessedBy, StatsDisplay, UdpRow};

const PACKETS: [Column<PacketRow>; 6] = [
    ("BY", |row| row.by.word().to_owned()),
    ("IP", |row| row.ip_version.to_string()),
    ("RECEIVED", |row| row.packets_received.to_string()),
    ("BYTES", |row| row.bytes_received.to_string()),
    ("SENT", |row| row.packets_sent.to_string()),
    ("BYTES", |row| row.bytes_sent.to_string()),
];

const UDP: [Column<UdpRow>; 5] = [
    ("UDP", |row| row.ip_version.to_string()),
    ("RECEIVED", |row| row.counters.received.to_string()),
    ("NO-PORT", |row| row.counters.no_port.to_string()),
    ("ERRORS", |row| row.counters.errors.to_string()),
    ("SENT", |row| row.counters.sent.to_string()),
];

impl Table for StatsDisplay {
    fn text(&self, width: TextWidth) -> String {
        let Self { since, until, fragments_received, fragments_sent, esp_fragmented, .. } = self;
        let has_engine = self.packets.iter().any(|row| {
            row.by != ProcessedBy::General && (row.packets_received > 0 || row.packets_sent > 0)
        });
        let is_shown = |row: &&PacketRow| has_engine || row.by == ProcessedBy::General;
        let rows: Vec<_> = self.packets.iter().filter(is_shown).copied().collect();
        format!(
            "{}\n{}\nfragments: {fragments_received} received, {fragments_sent} sent; \
             {esp_fragmented} ESP packets sent in fragments\n{}({since} to {until})\n",
            table(&rows, &PACKETS, width),
            table(&self.udp, &UDP, width),
            dropped_table(&self.drops, width),
        )
    }
}
