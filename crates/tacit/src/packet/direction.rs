//! Defines [`Direction`]: whether a packet enters or leaves a tunnel.

/// Whether a packet enters or leaves a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the TUN device to the peer.
    Outbound,
    /// From the peer to the TUN device.
    Inbound,
}
