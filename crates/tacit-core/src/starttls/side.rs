//! Who is who in a dialogue.

/// One end of a dialogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StarttlsSide {
    /// Away from the program: the end that gets TLS.
    Peer,
    /// The program on this host, which stays in clear.
    Program,
}

impl StarttlsSide {
    /// The end across.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Peer => Self::Program,
            Self::Program => Self::Peer,
        }
    }
}

/// Which side of the handshake tacit takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StarttlsRole {
    /// The peer is a client, the program a server.
    Server,
    /// The peer is a server, the program a client.
    Client,
}
