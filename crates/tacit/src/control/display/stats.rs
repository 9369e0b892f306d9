//! Defines the content of `tacit show stats`: how many packets of tunnels each thread has
//! processed, and the kernel's counters of UDP datagrams.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::VERSION;
use super::tunnels::{DroppedPackets, dropped};
use crate::clock::Rfc3339;
use crate::net::udp_counters::UdpCounters;
use crate::packet::{PacketStatistics, PacketVolume, Traffic};

/// Counters since the start of the agent, or of an interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StatsDisplay {
    /// The version of this format.
    pub version: u32,
    /// When the agent, or the interval, began.
    pub since: Rfc3339,
    /// When the counters were read.
    pub until: Rfc3339,
    /// The length of this time, in seconds.
    pub interval_s: f64,
    /// Inner packets, by the thread that has processed them and by IP version: all six rows.
    pub packets: Vec<PacketRow>,
    /// How many of the received packets are fragments.
    pub fragments_received: u64,
    /// How many of the sent packets are fragments.
    pub fragments_sent: u64,
    /// ESP packets that were sent in fragments, because they exceed the MTU of the path.
    pub esp_fragmented: u64,
    /// The datagrams of the network namespace of the agent, by IP version.
    pub udp: Vec<UdpRow>,
    /// Dropped packets by reason, without the reasons that did not occur.
    pub drops: Vec<DroppedPackets>,
}

/// The threads that process packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessedBy {
    /// A thread on the CPU of an engine.
    Engine,
    /// A thread on other CPUs, because the engine was saturated.
    Spilled,
    /// A thread on other CPUs, because there is no engine.
    General,
}

/// Packets of one IP version that one kind of thread has processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PacketRow {
    /// The kind of thread.
    pub by: ProcessedBy,
    /// 4 or 6.
    pub ip_version: u8,
    /// Packets that were received and delivered.
    pub packets_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Packets that were sent.
    pub packets_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
}

/// Datagrams of one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UdpRow {
    /// 4 or 6.
    pub ip_version: u8,
    /// The counters.
    #[serde(flatten)]
    pub counters: UdpCounters,
}

impl ProcessedBy {
    /// The word in displays.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Spilled => "spilled",
            Self::General => "general",
        }
    }
}

impl StatsDisplay {
    /// Formats counters.
    #[must_use]
    pub fn new(since: SystemTime, packets: &PacketStatistics, udp: [UdpCounters; 2]) -> Self {
        let until = SystemTime::now();
        let second = packets.received_second;
        let first = |by| rows(by, packets.received, packets.sent);
        let none = |by| rows(by, Traffic::default(), Traffic::default());
        let by_kind = if packets.has_engine() {
            let spilled = rows(ProcessedBy::Spilled, second, Traffic::default());
            [first(ProcessedBy::Engine), spilled, none(ProcessedBy::General)]
        } else {
            let both = packets.received.plus(second);
            let general = rows(ProcessedBy::General, both, packets.sent);
            [none(ProcessedBy::Engine), none(ProcessedBy::Spilled), general]
        };
        let [v4, v6] = udp;
        let mut drops = dropped(&packets.drops);
        if packets.queue.drops > 0 {
            let reason = "receive-queue".to_owned();
            drops.push(DroppedPackets { reason, count: packets.queue.drops });
        }
        Self {
            version: VERSION,
            since: Rfc3339(since),
            until: Rfc3339(until),
            interval_s: seconds(since, until),
            packets: by_kind.concat(),
            fragments_received: packets.received.fragments.wrapping_add(second.fragments),
            fragments_sent: packets.sent.fragments,
            esp_fragmented: packets.fragmented,
            udp: vec![
                UdpRow { ip_version: 4, counters: v4 },
                UdpRow { ip_version: 6, counters: v6 },
            ],
            drops,
        }
    }

    /// Returns the counters of the time since an earlier display. If the agent has been started
    /// again since then, these are all its counters.
    #[must_use]
    pub fn minus(&self, before: &Self) -> Self {
        if before.since != self.since {
            return self.clone();
        }
        let mut rest = self.clone();
        rest.since = before.until;
        rest.interval_s = seconds(before.until.0, self.until.0);
        let subtract = |from: &mut u64, before: u64| *from = from.saturating_sub(before);
        for (row, before) in rest.packets.iter_mut().zip(&before.packets) {
            subtract(&mut row.packets_received, before.packets_received);
            subtract(&mut row.bytes_received, before.bytes_received);
            subtract(&mut row.packets_sent, before.packets_sent);
            subtract(&mut row.bytes_sent, before.bytes_sent);
        }
        subtract(&mut rest.fragments_received, before.fragments_received);
        subtract(&mut rest.fragments_sent, before.fragments_sent);
        subtract(&mut rest.esp_fragmented, before.esp_fragmented);
        for (row, before) in rest.udp.iter_mut().zip(&before.udp) {
            subtract(&mut row.counters.received, before.counters.received);
            subtract(&mut row.counters.no_port, before.counters.no_port);
            subtract(&mut row.counters.errors, before.counters.errors);
            subtract(&mut row.counters.sent, before.counters.sent);
        }
        for drop in &mut rest.drops {
            let same = before.drops.iter().find(|earlier| earlier.reason == drop.reason);
            subtract(&mut drop.count, same.map_or(0, |same| same.count));
        }
        rest.drops.retain(|drop| drop.count > 0);
        rest
    }
}

fn rows(by: ProcessedBy, received: Traffic, sent: Traffic) -> [PacketRow; 2] {
    let row = |ip_version, received: PacketVolume, sent: PacketVolume| PacketRow {
        by,
        ip_version,
        packets_received: received.packets,
        bytes_received: received.bytes,
        packets_sent: sent.packets,
        bytes_sent: sent.bytes,
    };
    [row(4, received.v4, sent.v4), row(6, received.v6, sent.v6)]
}

fn seconds(since: SystemTime, until: SystemTime) -> f64 {
    let length = until.duration_since(since).unwrap_or(Duration::ZERO);
    (length.as_secs_f64() * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use tacit_ipsec::esp::DropReason;

    fn volume(packets: u64) -> PacketVolume {
        PacketVolume { packets, bytes: packets * 100 }
    }

    fn statistics(more: u64) -> PacketStatistics {
        PacketStatistics {
            sent: Traffic { v4: volume(10 + more), v6: volume(20), fragments: 1 },
            received: Traffic { v4: volume(1), v6: volume(2 + more), fragments: 2 },
            received_second: Traffic { v4: volume(30), v6: volume(0), fragments: 3 + more },
            drops: vec![(DropReason::Replayed, 4), (DropReason::NoSa, 5 + more)],
            ..PacketStatistics::default()
        }
    }

    #[test]
    fn both_threads_without_an_engine_are_general() {
        let udp = [UdpCounters::default(); 2];
        let shown = StatsDisplay::new(SystemTime::UNIX_EPOCH, &statistics(0), udp);
        assert_eq!(shown.packets.len(), 6);
        let row = |by, ip_version, [packets_received, packets_sent]: [u64; 2]| PacketRow {
            by,
            ip_version,
            packets_received,
            bytes_received: packets_received * 100,
            packets_sent,
            bytes_sent: packets_sent * 100,
        };
        let general = ProcessedBy::General;
        assert_eq!(shown.packets[4..], [row(general, 4, [31, 10]), row(general, 6, [2, 20])]);
        assert!(shown.packets[..4].iter().all(|row| row.packets_received == 0));
        assert_eq!((shown.fragments_received, shown.fragments_sent), (5, 1));
    }

    #[test]
    fn an_interval_has_the_difference_and_a_new_agent_all_its_counters() {
        let udp = |sent| [UdpCounters { sent, ..UdpCounters::default() }; 2];
        let show = |since, more| StatsDisplay::new(since, &statistics(more), udp(7 + more));
        let before = show(SystemTime::UNIX_EPOCH, 0);
        let after = show(SystemTime::UNIX_EPOCH, 3);
        let interval = after.minus(&before);
        assert_eq!((interval.since, interval.until), (before.until, after.until));
        assert_eq!((interval.packets[4].packets_sent, interval.packets[4].bytes_sent), (3, 300));
        assert_eq!(interval.packets[5].packets_received, 3);
        assert_eq!((interval.fragments_received, interval.udp[1].counters.sent), (3, 3));
        let drops = [DroppedPackets { reason: "no-sa".to_owned(), count: 3 }];
        assert_eq!(interval.drops, drops);
        let restarted = show(SystemTime::UNIX_EPOCH + Duration::from_secs(1), 0);
        assert_eq!(restarted.minus(&after), restarted);
    }
}
