//! Defines [`IkeStatus`]: the content of displays about one IKE connection.

use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tacit_ipsec::EspSpi;
use tacit_ipsec::ike::IkeProposal;

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
    /// The inbound SPIs of its child SAs; the last one is used for sending.
    pub children: Vec<EspSpi>,
    /// Why the last attempt failed.
    pub failure: Option<String>,
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
