//! Defines [`ChildSa`]: the keys and settings of an IPsec tunnel. IKE negotiates these keys and
//! settings, or the operator configures them (manual keys, in files). The module `esp` uses them to
//! encrypt packets.

use std::net::IpAddr;

use crate::cipher::{Cipher, IntegrityHash};
use crate::secret::SecretBytes;
use crate::selector::TrafficSelector;

/// The SPI of an ESP or AH SA: the number by which its receiver finds the keys. Values below 256
/// are reserved (RFC 4303 section 2.1, RFC 4302 section 2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EspSpi(u32);

impl EspSpi {
    /// Returns an SPI, unless the number is reserved.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (number >= 256).then_some(Self(number))
    }

    /// Returns the number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The keys of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaKeys {
    /// The SPI in the packets of this direction; their receiver has chosen it.
    pub spi: EspSpi,
    /// The encryption key, followed by the salt: `key_bytes() + salt_bytes()` of the cipher; empty
    /// for AH.
    pub encryption: SecretBytes,
    /// The integrity key: `integrity_key_bytes()` of the cipher, or `key_bytes()` of the hash for
    /// AH; empty for an AEAD.
    pub integrity: SecretBytes,
}

/// Where the keys of a pair of SAs come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrigin {
    /// IKE has negotiated them: no other SA has had them before.
    Ike,
    /// They are in files. After a restart, the sequence numbers begin again with the same keys.
    Manual {
        /// Random bytes, so that no IV is used twice with the same key: each SA has others.
        nonce: [u8; 8],
        /// Whether packets that arrive again are dropped. If so, the peer must not restart without
        /// this side (RFC 4303 section 2.2).
        replay: ReplayCheck,
    },
}

/// Whether an SA drops packets that arrive again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayCheck {
    /// Yes.
    On,
    /// No: any sequence number is accepted.
    Off,
}

impl KeyOrigin {
    /// Returns what makes the IVs of an SA different from those of others with the same keys.
    pub(crate) fn nonce(self) -> [u8; 8] {
        match self {
            Self::Ike => [0; 8],
            Self::Manual { nonce, .. } => nonce,
        }
    }

    /// Returns whether packets that arrive again are dropped.
    #[must_use]
    pub fn replay(self) -> ReplayCheck {
        match self {
            Self::Ike => ReplayCheck::On,
            Self::Manual { replay, .. } => replay,
        }
    }
}

/// The keys of manual SAs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManualKeys {
    /// The keys of packets that tacit receives.
    pub inbound: DirectionKeys,
    /// The keys of packets that tacit sends.
    pub outbound: DirectionKeys,
}

/// The keys of one direction of manual SAs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectionKeys {
    /// The key of the cipher; empty for AH.
    pub encryption: SecretBytes,
    /// The key of the HMAC.
    pub integrity: SecretBytes,
}

/// How packets are protected, and what they are sent in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaProtocol {
    /// ESP in UDP (RFC 3948).
    EspInUdp(Cipher),
    /// ESP as an IP protocol of its own (RFC 4303).
    Esp(Cipher, UnderlayEnds),
    /// AH (RFC 4302): packets are authenticated, and not encrypted.
    Ah(IntegrityHash, UnderlayEnds),
}

/// The addresses of both hosts, between which the packets of an SA without UDP are sent. Both have
/// the same IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderlayEnds {
    /// The address of this host.
    pub local: IpAddr,
    /// The address of the peer.
    pub remote: IpAddr,
}

impl SaProtocol {
    /// Returns how packets are encrypted; AH does not encrypt them.
    #[must_use]
    pub fn cipher(self) -> Option<Cipher> {
        match self {
            Self::EspInUdp(cipher) | Self::Esp(cipher, _) => Some(cipher),
            Self::Ah(..) => None,
        }
    }

    /// Returns the ends of the underlay, if packets are sent without UDP.
    #[must_use]
    pub fn ends(self) -> Option<UnderlayEnds> {
        match self {
            Self::EspInUdp(_) => None,
            Self::Esp(_, ends) | Self::Ah(_, ends) => Some(ends),
        }
    }
}

/// What the packets of an SA contain (RFC 4303 section 3.1, RFC 4302 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaMode {
    /// Whole IP packets.
    Tunnel,
    /// Only what follows the IP header, whose addresses are those of the underlay.
    Transport {
        /// The address of this side.
        local: IpAddr,
        /// The address of the peer, of the same IP version.
        remote: IpAddr,
    },
}

/// A pair of SAs (RFC 7296 section 1.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildSa {
    /// How both directions are protected.
    pub protocol: SaProtocol,
    /// Where the keys come from.
    pub origin: KeyOrigin,
    /// What packets contain.
    pub mode: SaMode,
    /// Whether sequence numbers have 64 bits (RFC 4303 section 2.2.1).
    pub has_extended_sequence: bool,
    /// Packets that tacit receives.
    pub inbound: SaKeys,
    /// Packets that tacit sends.
    pub outbound: SaKeys,
    /// The end of tacit: sources of what it sends, destinations of what it receives.
    pub local: Vec<TrafficSelector>,
    /// The end of the peer.
    pub remote: Vec<TrafficSelector>,
}
