//! Implements IKEv2 (RFC 7296): two peers authenticate each other, and negotiate the keys of a
//! tunnel.
//!
//! In reading order:
//! * [`IkeConfig`]: the settings of the policy for a peer;
//! * [`IkeConnection`]: the exchanges with a peer, as a state machine;
//! * [`IkeLimiter`]: decides which requests of unknown senders tacit accepts;
//! * [`IkeEvent`]: the events that a connection reports, with the keys of tunnels;
//! * [`IkeFailure`]: the cause of a failure, which side must act, and what to do.
//!
//! `codec` reads and writes messages, `proposal` chooses algorithms, and `crypto` encrypts
//! messages.
//!
//! Supported: cookies, inner addresses, NAT detection, fragments (RFC 7383), rekeying by either
//! side, and authentication by pre-shared keys or by signatures. Not supported: several child SAs
//! at a time, and EAP. tacit refuses requests for the features that are not supported, and reports
//! the reason.

mod auth;
mod codec;
mod config;
mod connection;
mod crypto;
mod distinguished_name;
mod failure;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod identity;
mod limiter;
mod nat;
mod proposal;
mod signature;

pub use codec::{CodecError, IkeRoute};
pub use config::{
    ChildConfig, IkeConfig, InitialContact, InnerAddresses, InnerConfig, LocalAuth, PROPOSALS_MAX,
    RemoteAuth,
};
pub use connection::{
    ACCEPTED_CONFIGS_MAX, ChildSummary, IkeConnection, IkeEvent, IkePath, IkeRefusal, IkeRole,
    IkeSaKeys, IkeSummary, IkeTraffic, IkeTransmit, UNANSWERED, UnansweredRequest,
};
pub use crypto::{KeGroup, Prf, RandomFailed, RandomSource};
pub use failure::{FailureSide, IkeFailure};
pub use identity::IkeIdentity;
pub use limiter::{
    FIRST_REQUEST_BYTES_MAX, FirstRequestDecision, HALF_OPEN_MAX, HALF_OPEN_OF_ADDRESS_MAX,
    IkeLimiter, network,
};
pub use proposal::{EspProposal, IkeProposal};
pub use signature::{AuthScheme, AuthSigner, AuthVerifier, CERTIFICATES_MAX, SignedByPeer};
