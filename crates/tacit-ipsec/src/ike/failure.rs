//! Defines [`IkeFailure`], the description of a failure of IKE. The description is for operators:
//! the kind of failure, the side that must act, and what to do.

use std::fmt;

use super::codec::{CodecError, notify};
use super::crypto::{CryptoFailed, RandomFailed};

/// The side that has to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureSide {
    /// The operator of the peer.
    Peer,
    /// The author of the policy of this side.
    Policy,
    /// The operators of both sides have to compare their settings.
    Both,
    /// The operator of the network between both.
    Network,
    /// The operator of this host.
    Host,
}

impl FailureSide {
    /// The word in displays and logs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Policy => "policy",
            Self::Both => "both",
            Self::Network => "network",
            Self::Host => "host",
        }
    }
}

/// Why an IKE SA or a child SA was not made or has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IkeFailure {
    /// The kind of the failure, for counters and logs. It is in kebab-case and never changes.
    pub kind: &'static str,
    /// The side that has to act.
    pub side: FailureSide,
    /// The description in one line, with the fix.
    pub message: String,
}

impl fmt::Display for IkeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for IkeFailure {}

impl IkeFailure {
    /// A failure. `cargo xtask tidy` finds the kind after this function's name, and compares it
    /// with tacit-messages(7).
    pub fn new(kind: &'static str, side: FailureSide, message: impl Into<String>) -> Self {
        Self { kind, side, message: message.into() }
    }

    /// An authenticated peer, or in `IKE_SA_INIT` the sender of an answer, broke the protocol.
    pub(crate) fn protocol(what: impl fmt::Display) -> Self {
        let message = format!("the peer violated the IKE protocol: {what}; read the peer's log");
        Self::new("peer-protocol-error", FailureSide::Peer, message)
    }

    /// The peer answers no request.
    pub(crate) fn no_answer(message: &str) -> Self {
        let message = format!(
            "{message}: check that the peer runs, that its address and port are right, and that \
             no firewall drops UDP port 4500"
        );
        Self::new("peer-does-not-answer", FailureSide::Network, message)
    }

    /// The peer has answered the first request, but does not answer the second one.
    pub(crate) fn no_answer_to_auth() -> Self {
        let message = "the peer has answered the first request (IKE_SA_INIT), but does not answer \
                       the second one (IKE_AUTH): check in the peer's log whether IKE_AUTH \
                       arrives. If it arrives, compare the identities and the shared keys (or \
                       certificates) on both sides. Otherwise, check that no firewall or NAT \
                       drops long UDP datagrams or IP fragments";
        Self::new("peer-does-not-answer", FailureSide::Both, message)
    }

    /// The peer answers no request over an established IKE SA.
    pub(crate) fn no_answer_over_sa() -> Self {
        let mut failure =
            Self::no_answer("the peer does not answer tacit's requests over the IKE SA");
        // A peer may drop a connection without a message (RFC 7296 section 2.4).
        failure.message.push_str(
            ". If the peer answers a new connection, the network has failed meanwhile, or the peer \
             has dropped this connection without a message: the peer has restarted, or another \
             agent or host has connected with the same identity",
        );
        failure
    }

    /// The peer refused with a notification (RFC 7296 section 3.10.1).
    pub(crate) fn refused(kind: u16, request: &str) -> Self {
        let reply = notify::name(kind);
        let (side, step) = match kind {
            notify::NO_PROPOSAL_CHOSEN => (
                FailureSide::Both,
                "the two sides have no proposal in common; compare the algorithms, key lengths and \
                 groups of both sides",
            ),
            notify::AUTHENTICATION_FAILED => (
                FailureSide::Both,
                "compare the identities and the shared keys (or certificates) on both sides",
            ),
            notify::TS_UNACCEPTABLE => (
                FailureSide::Both,
                "the peer does not accept a tunnel for the addresses, protocols and ports of the \
                 rule, or cannot install the tunnel; read the peer's log",
            ),
            notify::INVALID_MAJOR_VERSION => {
                (FailureSide::Peer, "enable IKEv2 on the peer; tacit does not support IKEv1")
            }
            notify::INTERNAL_ADDRESS_FAILURE | notify::FAILED_CP_REQUIRED => (
                FailureSide::Both,
                "the peer assigned no inner address (the address inside the tunnel); check the \
                 peer's address pool, and whether tacit's policy requests an inner address",
            ),
            notify::NO_ADDITIONAL_SAS => (
                FailureSide::Peer,
                "the peer allows no additional child SA (keys of a tunnel), but rekeying needs a \
                 second child SA; enable rekeying on the peer",
            ),
            _ => (FailureSide::Peer, "read the peer's log"),
        };
        let message = format!("the peer refused {request} with the reply {reply}: {step}");
        Self::new("peer-refused", side, message)
    }

    /// A random number or the cryptographic library failed, or the peer's public value is wrong.
    pub(crate) fn crypto(failed: CryptoFailed) -> Self {
        match failed {
            CryptoFailed::Random => {
                Self::new("no-randomness", FailureSide::Host, "the kernel returned no random bytes")
            }
            CryptoFailed::PublicValue => {
                Self::protocol("the peer's public value is not valid in the key exchange group")
            }
            CryptoFailed::Integrity => {
                Self::protocol("the integrity check value of a message is wrong")
            }
            CryptoFailed::Library => Self::new(
                "crypto-library",
                FailureSide::Host,
                "the cryptographic library rejected a key",
            ),
        }
    }
}

impl From<CryptoFailed> for IkeFailure {
    fn from(failed: CryptoFailed) -> Self {
        Self::crypto(failed)
    }
}

impl From<RandomFailed> for IkeFailure {
    fn from(failed: RandomFailed) -> Self {
        Self::crypto(failed.into())
    }
}

impl From<CodecError> for IkeFailure {
    fn from(error: CodecError) -> Self {
        Self::protocol(error)
    }
}
