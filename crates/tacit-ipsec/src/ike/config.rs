//! Defines [`IkeConfig`]: the settings for one peer, from the policy.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::identity::IkeIdentity;
use super::proposal::{EspProposal, IkeProposal};
use super::signature::{AuthSigner, AuthVerifier};
use crate::secret::SecretBytes;
use crate::selector::TrafficSelector;

/// How to communicate with one peer.
#[derive(Clone, Debug)]
pub struct IkeConfig {
    /// The identity of this side.
    pub local: IkeIdentity,
    /// The identity that the peer must prove.
    pub remote: IkeIdentity,
    /// How this side proves its identity.
    pub local_auth: LocalAuth,
    /// How the peer must prove its identity.
    pub remote_auth: RemoteAuth,
    /// The algorithms of the IKE SA, the preferred first. At most [`PROPOSALS_MAX`] are used.
    pub proposals: Vec<IkeProposal>,
    /// The tunnel.
    pub child: ChildConfig,
    /// Who assigns inner addresses.
    pub inner: InnerConfig,
    /// What the initiator says about earlier IKE SAs.
    pub initial_contact: InitialContact,
    /// How long the keys of the IKE SA are used.
    pub lifetime: Duration,
    /// After this time without a packet from the peer, this side asks whether it is alive.
    pub liveness: Duration,
}

/// The tunnel that both sides agree on.
#[derive(Clone, Debug)]
pub struct ChildConfig {
    /// The algorithms, the preferred first. At most [`PROPOSALS_MAX`] are used.
    pub proposals: Vec<EspProposal>,
    /// The end of this side.
    pub local: Vec<TrafficSelector>,
    /// The end of the peer.
    pub remote: Vec<TrafficSelector>,
    /// How long keys are used. The data path asks for new keys earlier if it has sent too many
    /// packets or bytes.
    pub lifetime: Duration,
}

/// Who assigns inner addresses (RFC 7296 section 2.19).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InnerConfig {
    /// The policies of both sides have them.
    Static,
    /// This side requests an address and resolvers from the peer, for IPv4 and IPv6. Its end of the
    /// tunnel is offered as in the policy, and the peer narrows it to the address.
    Request,
    /// This side assigns these to a peer that requests them.
    Assign(InnerAddresses),
}

/// Whether an initiator asserts that its IKE SA is the only one between both identities (RFC 7296
/// section 2.4). The peer then deletes all others, which a crash may have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialContact {
    /// It is the only one.
    Assert,
    /// There are or may be others, which continue.
    Omit,
}

/// Inner addresses of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InnerAddresses {
    /// The addresses of the peer, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// Its resolvers. At most eight are read.
    pub resolvers: Vec<IpAddr>,
}

/// How this side proves its identity.
#[derive(Clone, Debug)]
pub enum LocalAuth {
    /// With a key that both sides know.
    SharedKey(SecretBytes),
    /// With a signature (RFC 7427).
    Signature(Arc<dyn AuthSigner>),
}

/// How the peer must prove its identity.
#[derive(Clone, Debug)]
pub enum RemoteAuth {
    /// With a key that both sides know.
    SharedKey(SecretBytes),
    /// With a signature (RFC 7427).
    Signature(Arc<dyn AuthVerifier>),
}

/// The most proposals that are offered.
pub const PROPOSALS_MAX: usize = 16;
