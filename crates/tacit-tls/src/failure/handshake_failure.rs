//! Defines the description of a failed handshake: the kind of failure, which side must act, and
//! what to do.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tacit_core::failure_kind::FailureKind;

/// The role of tacit in a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandshakeRole {
    /// tacit is the server; the peer is a client.
    Server,
    /// tacit is the client; the peer is a server.
    Client,
}

impl HandshakeRole {
    /// Returns the word for the peer.
    #[must_use]
    pub fn peer(self) -> &'static str {
        match self {
            Self::Server => "client",
            Self::Client => "server",
        }
    }

    /// Returns the extended key usage of the certificates that tacit sends in this role (RFC 5280
    /// section 4.2.1.12).
    #[must_use]
    pub fn usage(self) -> &'static str {
        match self {
            Self::Server => "serverAuth",
            Self::Client => "clientAuth",
        }
    }

    /// Returns the extended key usage of the certificates that peers send.
    #[must_use]
    pub fn peer_usage(self) -> &'static str {
        match self {
            Self::Server => Self::Client.usage(),
            Self::Client => Self::Server.usage(),
        }
    }
}

/// The party that has to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Party {
    /// The operator of the peer.
    Peer,
    /// The operator of this host, who is responsible for certificates, clock and randomness.
    Us,
    /// The author of the policy.
    Policy,
    /// The operator of the network.
    Network,
}

/// A failed handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HandshakeFailure {
    /// The kind of the failure.
    pub kind: FailureKind,
    /// The party that has to act.
    pub party: Party,
    /// The description in one line, with the fix.
    pub message: String,
}

impl fmt::Display for HandshakeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for HandshakeFailure {}

impl HandshakeFailure {
    /// Describes that the peer closed the connection before the handshake was complete.
    #[must_use]
    pub fn closed(role: HandshakeRole) -> Self {
        let peer = role.peer();
        let message = format!(
            "during the handshake, the {peer} closed the connection without an alert: read the \
             {peer}'s log, and check that the {peer} uses TLS on this port"
        );
        failure(FailureKind("peer-closed"), Party::Peer, message)
    }

    /// Describes that the handshake took longer than the rule allows.
    #[must_use]
    pub fn timed_out(role: HandshakeRole, after: Duration) -> Self {
        let peer = role.peer();
        let message = format!(
            "the {peer} did not complete the handshake within {after:?}: check that the {peer} \
             uses TLS on this port, or increase `handshake-timeout`"
        );
        failure(FailureKind("handshake-timeout"), Party::Network, message)
    }
}

/// Creates a failure.
pub(super) fn failure(
    kind: FailureKind,
    party: Party,
    message: impl Into<String>,
) -> HandshakeFailure {
    HandshakeFailure { kind, party, message: message.into() }
}
