//! Implements IKEv2 (RFC 7296), by which two peers authenticate each other and negotiate the keys
//! of a tunnel.
//!
//! In reading order:
//! * [`IkeConfig`]: the settings of the policy for a peer;
//! * [`IkeConnection`]: the exchanges with a peer, as a state machine;
//! * [`IkeGate`]: which first requests of unknown senders become connections;
//! * [`IkeEvent`]: the events that a connection reports, with the keys of tunnels;
//! * [`IkeFailure`]: why an exchange failed, which side has to act, and what to do.
//!
//! Inside, `codec` reads and writes messages, `proposal` chooses algorithms, and `crypto` derives
//! keys and encrypts messages.
//!
//! Built: `IKE_SA_INIT` with cookies and a second group, `IKE_AUTH` with shared keys or signatures
//! and with inner addresses, `CREATE_CHILD_SA` for replacements of both kinds by either side and by
//! both at once, `INFORMATIONAL` with deletion and liveness, NAT detection, fragments of messages
//! (RFC 7383). One child SA at a time. Not built: further child SAs, EAP; a peer that requests them
//! gets a refusal with its reason.

mod auth;
mod codec;
mod config;
mod connection;
mod crypto;
mod failure;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod gate;
mod identity;
mod nat;
mod proposal;
mod signature;

pub use codec::CodecError;
pub use config::{
    ChildConfig, IkeConfig, InitialContact, InnerAddresses, InnerConfig, LocalAuth, PROPOSALS_MAX,
    RemoteAuth,
};
pub use connection::{IkeConnection, IkeEvent, IkePath, IkeRefusal, IkeTransmit};
pub use crypto::{KeGroup, Prf, RandomFailed, RandomSource};
pub use failure::{FailureSide, IkeFailure};
pub use gate::{
    FIRST_REQUEST_BYTES_MAX, GateDecision, HALF_OPEN_MAX, HALF_OPEN_OF_ADDRESS_MAX, IkeGate,
};
pub use identity::IkeIdentity;
pub use proposal::{EspProposal, IkeProposal};
pub use signature::{AuthScheme, AuthSigner, AuthVerifier, CERTIFICATES_MAX, SignedByPeer};
