//! Explains how the policy rules treat single packets, for `tacit explain --packet`. These are
//! packets of a host under `tacit agent --host`, or packets inside tunnels.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tacit_core::policy::filter::{CaptureFileError, FilterPacket, PacketPath, captured_packets};
use tacit_core::policy::{PacketExplainer, PacketExplanation, Policy};

/// The longest capture file.
const CAPTURE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The decisions about packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PacketAnswers {
    /// One for each packet, in order.
    pub(super) packets: Vec<PacketExplanation>,
}

impl PacketAnswers {
    pub(super) fn text(&self) -> String {
        let lines = self.packets.iter().map(|packet| format!("{packet}\n"));
        lines.collect()
    }
}

/// Explains a packet that is described by text, or the packets of a capture file; `way` is the way
/// of the packets of a file, such as `in eth0`.
///
/// # Errors
/// The description of a packet is wrong, or the file cannot be read.
pub(super) fn explain(
    policy: &Policy,
    packet: &str,
    way: Option<&str>,
    unix_s: i64,
) -> Result<PacketAnswers, String> {
    let explainer = PacketExplainer::new(policy, unix_s);
    let packets = match (FilterPacket::parse(packet), Path::new(packet)) {
        (Ok(packet), _) => vec![packet],
        (Err(_), file) if file.is_file() => of_file(file, way)?,
        (Err(error), _) => {
            return Err(format!(
                "`{packet}` is neither a packet nor a file: {error}\n    \
                 fix: describe a packet, such as \"in eth0 tcp 192.0.2.7:40000 > 10.0.0.1:22 \
                 syn\", or give the path of a pcap file"
            ));
        }
    };
    let unknown = packets.first().and_then(|one| one.path.tunnel());
    if let Some(peer) = unknown.filter(|peer| !policy.has_tunnel_peer(peer)) {
        return Err(format!(
            "there is no [ike.{peer}] or [sa.{peer}] in the policy\n    \
             fix: use the name of a table [ike.NAME] or [sa.NAME] of the policy"
        ));
    }
    Ok(PacketAnswers { packets: packets.iter().map(|one| explainer.explain(one)).collect() })
}

fn of_file(file: &Path, way: Option<&str>) -> Result<Vec<FilterPacket>, String> {
    let way = way.ok_or(
        "a pcap file does not record how its packets pass through the host\n    fix: add \
                         --way \"in eth0\", --way \"out eth0\" or --way \"routed eth0 eth1\"",
    )?;
    let path = path_of(way).ok_or_else(|| {
        format!(
            "--way cannot be `{way}`\n    \
             fix: write \"in eth0\", \"out eth0\", \"routed eth0 eth1\", \"from-tunnel NAME\" or \
             \"to-tunnel NAME\""
        )
    })?;
    let failed = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", file.display());
    let size = std::fs::metadata(file).map_err(|error| failed(&error))?.len();
    if size > CAPTURE_BYTES_MAX {
        return Err(failed(&format!(
            "the file has {size} bytes; the limit is {CAPTURE_BYTES_MAX} bytes"
        )));
    }
    let bytes = std::fs::read(file).map_err(|error| failed(&error))?;
    captured_packets(&bytes, &path).map_err(|error: CaptureFileError| failed(&error))
}

fn path_of(way: &str) -> Option<PacketPath> {
    let words: Vec<&str> = way.split_ascii_whitespace().collect();
    match *words.as_slice() {
        ["in", interface] => Some(PacketPath::In(interface.to_owned())),
        ["out", interface] => Some(PacketPath::Out(interface.to_owned())),
        ["from-tunnel", ike] => Some(PacketPath::FromTunnel(ike.to_owned())),
        ["to-tunnel", ike] => Some(PacketPath::ToTunnel(ike.to_owned())),
        ["routed", received, sent] => {
            Some(PacketPath::Routed { received: received.to_owned(), sent: sent.to_owned() })
        }
        _ => None,
    }
}
