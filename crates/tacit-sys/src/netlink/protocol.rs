//! Defines the transport protocols (TCP and UDP), for nftables rules and for requests to the kernel
//! about sockets.

/// The transport protocols of nftables rules and socket queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl IpProtocol {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}
