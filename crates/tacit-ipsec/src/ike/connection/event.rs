//! Defines the events that an IKE connection reports, and the datagrams that it sends.

use std::net::SocketAddr;

use crate::child::{ChildSa, EspSpi};
use crate::ike::config::InnerAddresses;
use crate::ike::failure::IkeFailure;
use crate::ike::identity::IkeIdentity;
use crate::ike::proposal::IkeProposal;

/// What a connection reports to its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IkeEvent {
    /// Both sides have proved who they are.
    Established {
        /// The identity of the peer.
        peer: IkeIdentity,
        /// The algorithms of the IKE SA.
        proposal: IkeProposal,
    },
    /// The initiator has no other IKE SA between both identities: the user abandons the older ones
    /// with [`IkeConnection::abandon`](super::IkeConnection::abandon) (RFC 7296 section 2.4). The
    /// event follows [`Established`](Self::Established).
    InitialContact,
    /// The peer has assigned these addresses. The event precedes that of the child SA.
    AddressesAssigned(InnerAddresses),
    /// The IKE SA has new keys.
    Rekeyed,
    /// Packets of this child SA may arrive from now on. Packets are sent with it after
    /// [`ChildActive`](Self::ChildActive).
    ChildInstalled(Box<ChildSa>),
    /// Packets are sent with the child SA that has this inbound SPI, and no longer with another.
    ChildActive(EspSpi),
    /// The child SA with this inbound SPI is deleted.
    ChildRemoved(EspSpi),
    /// A child SA or new keys were not agreed on; the IKE SA continues. Before
    /// [`Established`](Self::Established): an answer that may be forged refuses the first request
    /// or AUTH, or does not prove the identity of the peer. This side waits a limited time for
    /// another answer.
    ExchangeFailed(IkeFailure),
    /// The peer has not answered a request of this initiator for
    /// [`UNANSWERED`](super::UNANSWERED). This side repeats the request. The event occurs at most
    /// once for each kind of request, before [`Established`](Self::Established).
    Unanswered(UnansweredRequest),
    /// The peer is behind a NAT, and has this address from now on: messages and packets are sent to
    /// it (RFC 7296 section 2.23).
    PeerMoved(SocketAddr),
    /// The connection has ended because of a failure. Its child SAs were reported as removed.
    Failed(IkeFailure),
    /// The connection has ended as one of both sides requested.
    Closed,
}

/// A request of the initiator that the peer does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnansweredRequest {
    /// The first request, `IKE_SA_INIT`.
    Init,
    /// The second request, `IKE_AUTH`. The answer to the first request may be forged.
    Auth {
        /// The length of the longest datagram of the request.
        datagram_bytes_max: usize,
    },
}

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IkeTransmit {
    /// An IKE message. On port 4500 the non-ESP marker precedes it (RFC 3948 section 2.2).
    Message(Vec<u8>),
    /// The byte 0xff alone, which keeps the mapping of a NAT (RFC 3948 section 2.3). No marker
    /// precedes it.
    Keepalive,
}
