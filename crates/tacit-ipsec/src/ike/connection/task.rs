//! Defines the reasons for which an IKE SA sends a request, such as replacing keys.

use crate::ike::crypto::{KeySecret, Nonces};

/// What this side wants to request when the IKE SA has no outstanding request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Replace the child SA with this inbound SPI.
    RekeyChild(u32),
    /// Make a child SA, because there is none.
    CreateChild,
    /// Replace the IKE SA.
    RekeyIke,
    /// Delete the child SA with this inbound SPI.
    DeleteChild(u32),
    /// Delete the IKE SA.
    DeleteIke,
    /// Ask whether the peer is alive (RFC 7296 section 2.4).
    Liveness,
}

/// The request that was sent.
#[derive(Debug)]
pub(super) enum Task {
    Auth { child_spi: u32 },
    Child(ChildTask),
    RekeyIke(RekeyTask),
    DeleteChild { spi: u32 },
    DeleteIke,
    Liveness,
}

/// A request for a child SA.
#[derive(Debug)]
pub(super) struct ChildTask {
    /// The inbound SPI of the child SA that is replaced, if any.
    pub(super) old: Option<u32>,
    /// The inbound SPI of the new one.
    pub(super) spi: u32,
    pub(super) nonce: Vec<u8>,
    pub(super) secret: Option<KeySecret>,
    /// The child SA that the peer made meanwhile to replace the same one.
    pub(super) collision: Option<ChildCollision>,
    /// What the peer has deleted meanwhile, by its inbound SPIs; the new child SA may be among
    /// them, if the response is late. At most [`DELETED_MAX`].
    pub(super) deleted: Vec<u32>,
}

/// A child SA of the peer that replaces the one that this side is replacing.
#[derive(Clone, Debug)]
pub(super) struct ChildCollision {
    pub(super) nonces: Nonces,
    /// Its inbound SPI.
    pub(super) spi: u32,
}

/// A request that replaces the IKE SA.
#[derive(Debug)]
pub(super) struct RekeyTask {
    /// The SPI of this side in the new IKE SA.
    pub(super) spi: u64,
    pub(super) nonce: Vec<u8>,
    pub(super) secret: KeySecret,
    /// The IKE SA that the peer made meanwhile.
    pub(super) collision: Option<IkeCollision>,
}

/// An IKE SA of the peer that replaces the one that this side is replacing.
#[derive(Clone, Debug)]
pub(super) struct IkeCollision {
    pub(super) nonces: Nonces,
    /// The SPI of this side.
    pub(super) spi: u64,
}

/// Whether the exchange of this side made the redundant SA when both sides have replaced the same
/// SA: it is the exchange with the lowest of the four nonces (RFC 7296 section 2.8.1).
pub(super) fn own_is_redundant(own: &Nonces, peers: &Nonces) -> bool {
    let lowest = |nonces: &Nonces| nonces.initiator.clone().min(nonces.responder.clone());
    lowest(own) < lowest(peers)
}

/// The most deleted SPIs that are noted during a request.
pub(super) const DELETED_MAX: usize = 8;
