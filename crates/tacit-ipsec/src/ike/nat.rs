//! Detects a NAT between the peers (RFC 7296 section 2.23).
//!
//! Each peer sends a hash of its own address (source) and a hash of the other peer's address
//! (destination). tacit compares both hashes with the addresses of the received packet. If the
//! destination hash differs, there is a NAT in front of tacit. If the source hash differs, there is
//! a NAT in front of the peer.
//!
//! If IKE negotiates the keys, tacit always sends ESP inside UDP. Other implementations send ESP
//! inside UDP only if they detect a NAT. So tacit sends a source hash that matches no address, and
//! every peer detects a NAT.

use std::net::{IpAddr, SocketAddr};

use aws_lc_rs::digest;

use super::codec::{IkePayload, NotifyPayload, notify};
use super::crypto::{CryptoFailed, IkeSpis, RandomSource, random_array};

/// The notifications of one message. `spis` are those of its header.
pub(super) fn payloads(
    spis: IkeSpis,
    remote: SocketAddr,
    random: &mut dyn RandomSource,
) -> Result<[IkePayload; 2], CryptoFailed> {
    let source = random_array::<HASH_BYTES>(random)?;
    let destination = hash(spis, remote);
    Ok([
        IkePayload::Notify(NotifyPayload::new(notify::NAT_DETECTION_SOURCE_IP, source)),
        IkePayload::Notify(NotifyPayload::new(notify::NAT_DETECTION_DESTINATION_IP, destination)),
    ])
}

/// Reports whether a NAT is in front of this side: the peer sends to another address than that from
/// which this side sends. A peer without NAT detection counts as none.
pub(super) fn is_translated(payloads: &[IkePayload], spis: IkeSpis, local: SocketAddr) -> bool {
    // In a first request the peer computed the hash before there was an SPI of the responder.
    let first = IkeSpis { responder: 0, ..spis };
    let expected = [hash(spis, local), hash(first, local)];
    let mut hashes = payloads.iter().filter_map(|payload| match payload {
        IkePayload::Notify(one) if one.kind == notify::NAT_DETECTION_DESTINATION_IP => {
            Some(&one.data)
        }
        _ => None,
    });
    hashes.next().is_some_and(|hash| !expected.contains(hash))
}

/// Reports whether a NAT is in front of the peer: its message has arrived from another address than
/// that from which the peer sends. A peer without NAT detection counts as none.
pub(super) fn is_peer_translated(
    payloads: &[IkePayload],
    spis: IkeSpis,
    remote: SocketAddr,
) -> bool {
    let first = IkeSpis { responder: 0, ..spis };
    let expected = [hash(spis, remote), hash(first, remote)];
    let hashes = payloads.iter().filter_map(|payload| match payload {
        IkePayload::Notify(one) if one.kind == notify::NAT_DETECTION_SOURCE_IP => Some(&one.data),
        _ => None,
    });
    // A peer with several addresses sends the hash of each.
    hashes.map(|hash| expected.contains(hash)).reduce(|one, other| one || other) == Some(false)
}

/// SHA-1 of SPIs, address and port. It detects changes by accident, and protects nothing.
fn hash(spis: IkeSpis, address: SocketAddr) -> Vec<u8> {
    let mut bytes = [spis.initiator.to_be_bytes(), spis.responder.to_be_bytes()].concat();
    match address.ip() {
        IpAddr::V4(address) => bytes.extend(address.octets()),
        IpAddr::V6(address) => bytes.extend(address.octets()),
    }
    bytes.extend(address.port().to_be_bytes());
    digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &bytes).as_ref().to_vec()
}

const HASH_BYTES: usize = 20;
