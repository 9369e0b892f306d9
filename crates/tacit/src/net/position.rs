//! Defines the position of a socket in its connection: downstream (accepted by the agent) or
//! upstream (connected by the agent).

/// One of the two sockets of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The accepted socket.
    Downstream,
    /// The dialled socket.
    Upstream,
}

impl Position {
    /// The other position.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Downstream => Self::Upstream,
            Self::Upstream => Self::Downstream,
        }
    }
}
