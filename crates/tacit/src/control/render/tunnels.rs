//! Formats the output of `tacit show ike` (IKE connections with peers) and `tacit show sa` (tunnels
//! and their counters). The output is a table. With `--wide`, the output is a list of all values of
//! each connection or tunnel.

use tacit_core::printable::printable;

use super::table::{Column, lay_out, list, optional, table};
use super::width::TextWidth;
use super::{Table, bytes};
use crate::control::display::tunnels::{
    DataLeft, DroppedPackets, IkeDisplay, IkeEntry, SaDirection, SaDisplay, SaEntry, TimeLeft,
};

const CONNECTIONS: [Column<IkeEntry>; 9] = [
    ("RUN", |one| one.run_name.clone()),
    ("IKE", |one| one.ike.clone()),
    ("PEER", |one| one.peer.to_string()),
    ("STATE", |one| one.state.word().to_owned()),
    ("IDENTITY", |one| optional(one.identity.as_ref())),
    ("AUTH", |one| one.auth.method.clone()),
    ("INNER", |one| list(&one.inner)),
    ("LEFT", |one| optional(one.lifetime.map(|left| duration(left.expires_in_s)))),
    ("TUNNELS", |one| one.tunnels.to_string()),
];

const TUNNELS: [Column<SaEntry>; 10] = [
    ("RUN", |one| one.run_name.clone()),
    ("NAME", |one| one.name().to_owned()),
    ("HOW", |one| one.how.word().to_owned()),
    ("STATE", |one| state(one).to_owned()),
    ("SPI-IN", |one| one.inbound.spi.clone()),
    ("SPI-OUT", |one| one.outbound.spi.clone()),
    ("REMOTE", |one| first_of(&one.remote)),
    ("IN", |one| bytes(one.inbound.bytes)),
    ("OUT", |one| bytes(one.outbound.bytes)),
    ("LEFT", |one| optional(one.lifetime.map(|left| duration(left.expires_in_s)))),
];

const DROPS: [Column<DroppedPackets>; 2] =
    [("DROPPED", |one| one.reason.clone()), ("PACKETS", |one| one.count.to_string())];

impl Table for IkeDisplay {
    fn text(&self, width: TextWidth) -> String {
        let optional = &["INNER", "AUTH", "IKE", "TUNNELS"];
        let mut text = table(&self.connections, &CONNECTIONS, width.without(optional));
        for one in &self.connections {
            if let Some(failure) = &one.failure {
                let line = format!("{} {}: {failure}", one.run_name, one.ike);
                let line = width.prose(&printable(&line));
                text.push_str(&format!("\n{line}\n"));
            }
        }
        text
    }

    fn wide(&self) -> Option<String> {
        Some(self.connections.iter().map(ike_facts).collect::<Vec<_>>().join("\n"))
    }
}

impl Table for SaDisplay {
    fn text(&self, width: TextWidth) -> String {
        let optional = &["SPI-OUT", "SPI-IN", "HOW"];
        let tunnels = table(&self.tunnels, &TUNNELS, width.without(optional));
        self.with_drops(tunnels, width)
    }

    fn wide(&self) -> Option<String> {
        let tunnels: Vec<_> = self.tunnels.iter().map(sa_facts).collect();
        Some(self.with_drops(tunnels.join("\n"), TextWidth::Whole))
    }
}

impl SaDisplay {
    /// Adds the dropped packets of all tunnels, and of none.
    fn with_drops(&self, text: String, width: TextWidth) -> String {
        text + &dropped_table(&self.drops, width)
    }
}

/// Dropped packets, below an empty line; nothing if there are none.
pub(super) fn dropped_table(drops: &[DroppedPackets], width: TextWidth) -> String {
    if drops.is_empty() { String::new() } else { format!("\n{}", table(drops, &DROPS, width)) }
}

/// All facts of a connection.
fn ike_facts(one: &IkeEntry) -> String {
    let auth = &one.auth;
    let nat = one.behind_nat.zip(one.peer_behind_nat).map(|sides| match sides {
        (false, false) => "none",
        (true, false) => "a NAT in front of this host",
        (false, true) => "a NAT in front of the peer",
        (true, true) => "a NAT in front of each host",
    });
    let failed = |side: &String| {
        format!(
            "{failures} failed attempts; to find the cause, check: {side}",
            failures = one.failures
        )
    };
    let liveness = one.liveness.map(|live| {
        let waiting =
            if live.waiting { "; tacit is waiting for the response to a request" } else { "" };
        let ago = duration(live.last_received_s);
        let interval = duration(live.interval_s);
        format!(
            "last message or packet received {ago} ago; tacit checks the peer after {interval} of \
             silence{waiting}"
        )
    });
    let message_ids =
        one.messages.map(|ids| format!("{}, {}", ids.next_request, ids.expected_request));
    let fragments = one.messages.map(|sent| match sent.fragmentation {
        true => format!("{} sent, {} received", sent.fragments_sent, sent.fragments_received),
        false => "not supported by the peer".to_owned(),
    });
    let certificate = auth.certificate.as_ref().map(|name| {
        let days = auth.days_left.map(|days| format!(", {days} days left")).unwrap_or_default();
        format!("identity {name}, expires {}{days}", optional(auth.expires))
    });
    facts(&[
        ("run", one.run_name.clone()),
        ("ike", one.ike.clone()),
        ("state", one.state.word().to_owned()),
        ("since", one.since.to_string()),
        ("peer", one.peer.to_string()),
        ("local", optional(one.outer_local)),
        ("role", optional(one.role.as_ref())),
        ("NAT", optional(nat)),
        ("local identity", one.local_identity.clone()),
        ("identity of the peer", optional(one.identity.as_ref())),
        ("expected identity", one.expected_identity.clone()),
        ("authentication", auth.method.clone()),
        ("certificate", optional(certificate)),
        ("trust", optional(auth.trust.as_ref())),
        ("algorithms", optional(one.proposal.as_ref())),
        ("SPIs", list(&one.spis)),
        ("inner addresses", list(&one.inner)),
        ("lifetime", optional(one.lifetime.as_ref().map(time_left))),
        ("keys replaced", one.rekeyed.to_string()),
        ("liveness", optional(liveness)),
        ("message IDs (own, peer)", optional(message_ids)),
        ("requests repeated", optional(one.messages.map(|sent| sent.retransmitted))),
        ("fragments", optional(fragments)),
        ("tunnels", one.tunnels.to_string()),
        ("packets refused", one.refused.to_string()),
        ("failed", optional(one.failure_side.as_ref().map(failed))),
        ("next attempt", optional(one.retry_in_s.map(|left| format!("in {}", duration(left))))),
        ("reason", optional(one.failure.as_ref())),
    ])
}

/// All facts of a pair of SAs.
fn sa_facts(one: &SaEntry) -> String {
    let window = match one.replay_window {
        0 => "none: replayed packets are accepted".to_owned(),
        numbers => numbers.to_string(),
    };
    let volume = |way: &SaDirection| {
        let SaDirection { spi, packets, bytes, dummies } = way;
        format!("SPI {spi}, {packets} packets, {bytes} bytes, {dummies} dummy packets")
    };
    let sequence = if one.extended_sequence { "64 bits (ESN)" } else { "32 bits" };
    let drops: Vec<_> =
        one.drops.iter().map(|drop| format!("{} {}", drop.count, drop.reason)).collect();
    facts(&[
        ("run", one.run_name.clone()),
        (if one.ike.is_some() { "ike" } else { "sa" }, one.name().to_owned()),
        ("keys", one.how.word().to_owned()),
        ("state", state(one).to_owned()),
        ("since", format!("{} ({})", one.since, duration(one.age_s))),
        ("peer", one.peer.clone()),
        ("local", optional(one.outer_local.as_ref())),
        ("protocol", one.protocol.clone()),
        ("encapsulation", one.encapsulation.clone()),
        ("mode", one.mode.clone()),
        ("algorithms", one.proposal.clone()),
        ("sequence numbers", sequence.to_owned()),
        ("replay window", window),
        ("local selectors", list(&one.local)),
        ("remote selectors", list(&one.remote)),
        ("inbound", volume(&one.inbound)),
        ("outbound", volume(&one.outbound)),
        ("lifetime", optional(one.lifetime.as_ref().map(time_left))),
        ("replaced after", data_left(&one.soft)),
        ("expires after", data_left(&one.hard)),
        ("keys replaced", one.rekeyed.to_string()),
        ("dropped", drops.join(", ")),
    ])
}

fn facts(facts: &[(&str, String)]) -> String {
    let row = |(name, value): &(&str, String)| {
        let value = if value.is_empty() { "-" } else { value };
        vec![(*name).to_owned(), value.to_owned()]
    };
    lay_out(&facts.iter().map(row).collect::<Vec<_>>(), TextWidth::Whole)
}

fn state(one: &SaEntry) -> &'static str {
    match (one.is_sending, one.is_ending) {
        (_, true) => "ending",
        (true, false) => "sending",
        (false, false) => "receiving",
    }
}

fn time_left(left: &TimeLeft) -> String {
    let TimeLeft { rekey_in_s, expires_in_s } = *left;
    format!("rekeyed in {}, expires in {}", duration(rekey_in_s), duration(expires_in_s))
}

fn data_left(left: &DataLeft) -> String {
    let DataLeft { bytes, packets } = *left;
    let bytes = bytes.map(|bytes| format!("{bytes} bytes"));
    let packets = packets.map(|packets| format!("{packets} packets"));
    let both: Vec<_> = bytes.into_iter().chain(packets).collect();
    if both.is_empty() { "no data limit".to_owned() } else { both.join(", ") }
}

/// The first item of a list, and how many others there are.
fn first_of(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first, others @ ..] => format!("{first} +{}", others.len()),
    }
}

/// Seconds in the two largest units.
fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_their_two_largest_units() {
        let all = [59, 60, 3_599, 3_600, 86_399, 90_000].map(duration);
        assert_eq!(all, ["59s", "1m00s", "59m59s", "1h00m", "23h59m", "1d01h"]);
    }

    #[test]
    fn a_list_shows_its_first_item_and_the_number_of_others() {
        let items = ["10.2.0.0/24", "fd00:2::/64", "::1"].map(str::to_owned);
        assert_eq!(first_of(&items), "10.2.0.0/24 +2");
        assert_eq!(first_of(&items[..1]), "10.2.0.0/24");
    }
}
