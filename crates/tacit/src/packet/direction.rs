//! Defines [`Direction`]: where a packet of a tunnel goes.

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the TUN device to the peer.
    Outbound,
    /// From the peer to the TUN device.
    Inbound,
}
