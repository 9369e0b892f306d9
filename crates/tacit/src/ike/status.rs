//! Defines [`IkeStatus`]: what `tacit show ike` prints about one IKE connection.

use std::net::{IpAddr, SocketAddr};
use std::time::{Instant, SystemTime};

use serde::{Deserialize, Serialize};
use tacit_core::policy::IkePeer;
use tacit_ipsec::esp::DataLifetime;
use tacit_ipsec::ike::{FailureSide, IkeProposal, IkeSummary};
use tacit_ipsec::{ChildSa, EspSpi, SaProtocol, TrafficSelector};

/// A connection of a run with a peer.
#[derive(Clone, Debug)]
pub struct IkeStatus {
    /// The number of the run.
    pub run: u64,
    /// Its name.
    pub run_name: String,
    /// The name of the peer: `[ike.NAME]`.
    pub ike: String,
    /// The address of the peer.
    pub peer: SocketAddr,
    /// Where it stands.
    pub state: IkeState,
    /// What the policy says about the peer.
    pub settings: IkePeer,
    /// The identity that the peer has proved.
    pub identity: Option<String>,
    /// The algorithms of the IKE SA.
    pub proposal: Option<IkeProposal>,
    /// The addresses of the run inside the tunnel.
    pub inner: Vec<IpAddr>,
    /// When it was established, or when the attempt began.
    pub since: SystemTime,
    /// How many times the keys of the IKE SA were replaced.
    pub rekeyed: u64,
    /// The state of the exchanges; `None` between attempts.
    pub summary: Option<IkeSummary>,
    /// Its child SAs, the newest last.
    pub children: Vec<ChildStatus>,
    /// The inbound SPI of the child SA that is used for sending.
    pub sending: Option<EspSpi>,
    /// Packets of the run that were refused because there was no tunnel.
    pub refused: u64,
    /// Attempts that have failed since it was last established.
    pub failures: u32,
    /// When the next attempt may begin.
    pub retry_at: Option<Instant>,
    /// Why the last attempt failed.
    pub failure: Option<String>,
    /// The side that has to act then.
    pub failure_side: Option<FailureSide>,
}

/// A child SA: the keys of a tunnel, without the keys.
#[derive(Clone, Debug)]
pub struct ChildStatus {
    /// The SPI of packets that this side receives.
    pub inbound: EspSpi,
    /// Its protocol and algorithms.
    pub protocol: SaProtocol,
    /// Whether sequence numbers have 64 bits.
    pub has_extended_sequence: bool,
    /// The end of this side.
    pub local: Vec<TrafficSelector>,
    /// The end of the peer.
    pub remote: Vec<TrafficSelector>,
    /// When it was installed.
    pub since: SystemTime,
    /// How many child SAs of this connection were before it.
    pub rekeyed: u64,
    /// How much data it protects.
    pub lifetime: DataLifetime,
}

impl ChildStatus {
    /// A child SA that is installed now.
    pub(super) fn new(child: &ChildSa, rekeyed: u64, lifetime: DataLifetime) -> Self {
        Self {
            inbound: child.inbound.spi,
            protocol: child.protocol,
            has_extended_sequence: child.has_extended_sequence,
            local: child.local.clone(),
            remote: child.remote.clone(),
            since: SystemTime::now(),
            rekeyed,
            lifetime,
        }
    }
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IkeState {
    /// It is being established.
    Opening,
    /// Both sides have proved who they are.
    Established,
    /// It is being ended.
    Closing,
    /// The last attempt has failed.
    Failed,
}

impl IkeState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Opening, Self::Established, Self::Closing, Self::Failed];

    /// The word in displays.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Established => "established",
            Self::Closing => "closing",
            Self::Failed => "failed",
        }
    }
}
