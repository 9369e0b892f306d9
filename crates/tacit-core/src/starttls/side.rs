//! Defines the two ends of a STARTTLS exchange: the peer in the network, and the program on this
//! host.

/// One end of a STARTTLS exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StarttlsSide {
    /// The network side, which gets TLS.
    Peer,
    /// The program on this host, which stays in clear.
    Program,
}

impl StarttlsSide {
    /// The other end.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Peer => Self::Program,
            Self::Program => Self::Peer,
        }
    }
}

/// The TLS role of tacit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StarttlsRole {
    /// The peer is a client, the program a server.
    Server,
    /// The peer is a server, the program a client.
    Client,
}
