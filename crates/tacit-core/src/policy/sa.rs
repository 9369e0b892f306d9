//! Defines the table `[sa.NAME]` of a policy: a pair of IPsec security associations (SAs) with one
//! peer. Their keys are in files.
//!
//! These SAs are also called manual SAs. Manual SAs use no IKE, so they are never rekeyed. After a
//! restart, the agent uses the same sequence numbers with the same key again. This is safe for
//! AES-CBC with HMAC-SHA2, and for AH, which uses only an HMAC. An AEAD cipher, such as AES-GCM,
//! would use the same nonces again, and would no longer be secure (RFC 4106 section 10). So this
//! table accepts no AEAD cipher.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use super::diagnostic::SourcePosition;
use super::ike::{Sha2, TunnelCipher};

/// One `[sa.NAME]`: a pair of SAs, one for each direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManualSa {
    /// The address of the peer, and the UDP port on which it receives ESP; without UDP, port 0.
    pub peer: SocketAddr,
    /// How packets are protected.
    pub protection: ManualProtection,
    /// The SPI of packets that tacit receives.
    pub spi_in: u32,
    /// The SPI of packets that tacit sends.
    pub spi_out: u32,
    /// The keys of packets that tacit receives.
    pub keys_in: SaKeyFile,
    /// The keys of packets that tacit sends.
    pub keys_out: SaKeyFile,
    /// Whether packets that arrive again are dropped.
    pub anti_replay: bool,
    /// What packets contain.
    pub mode: ManualMode,
    /// The addresses of the run inside the tunnel: one, or one of each family. In transport mode,
    /// the address of this host.
    pub inner: Vec<IpAddr>,
    /// Where the table begins in the policy text.
    pub position: SourcePosition,
}

/// How the packets of manual SAs are protected, and in what they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManualProtection {
    /// ESP in UDP, with AES-CBC and an HMAC.
    EspInUdp(TunnelCipher),
    /// ESP as an IP protocol of its own, with AES-CBC and an HMAC.
    Esp {
        /// The cipher.
        cipher: TunnelCipher,
        /// The address of this host.
        local: IpAddr,
    },
    /// AH, which encrypts nothing.
    Ah {
        /// The hash of the HMAC.
        hash: Sha2,
        /// The address of this host.
        local: IpAddr,
    },
}

impl ManualProtection {
    /// Returns the address of this host, if packets are sent without UDP. This needs raw sockets.
    #[must_use]
    pub fn raw_local(self) -> Option<IpAddr> {
        match self {
            Self::EspInUdp(_) => None,
            Self::Esp { local, .. } | Self::Ah { local, .. } => Some(local),
        }
    }

    /// Returns the word for the protocol in displays.
    #[must_use]
    pub fn protocol(self) -> &'static str {
        match self {
            Self::EspInUdp(_) | Self::Esp { .. } => "esp",
            Self::Ah { .. } => "ah",
        }
    }

    /// Returns the word for what packets are sent in.
    #[must_use]
    pub fn encapsulation(self) -> &'static str {
        match self {
            Self::EspInUdp(_) => "udp",
            Self::Esp { .. } | Self::Ah { .. } => "none",
        }
    }
}

/// What the packets of manual SAs contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManualMode {
    /// Whole IP packets.
    Tunnel,
    /// Only what follows the IP header: packets between this host and the peer.
    Transport {
        /// The address of this host, of the same IP version as that of the peer.
        local: IpAddr,
    },
}

/// A file that contains the keys of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaKeyFile {
    /// Its path.
    pub file: PathBuf,
    /// Where the policy names it.
    pub position: SourcePosition,
}

impl ManualSa {
    /// The port of ESP in UDP (RFC 3948).
    pub const PORT_DEFAULT: u16 = 4500;
    /// The lowest SPI; those below are reserved (RFC 4303 section 2.1).
    pub const SPI_MIN: u32 = 256;

    /// Returns the address of the peer, with its port if there is one.
    #[must_use]
    pub fn peer_words(&self) -> String {
        match self.protection {
            ManualProtection::EspInUdp(_) => self.peer.to_string(),
            _ => self.peer.ip().to_string(),
        }
    }

    /// Returns the files with its keys.
    pub fn key_files(&self) -> impl Iterator<Item = &Path> {
        [&self.keys_in, &self.keys_out].into_iter().map(|keys| keys.file.as_path())
    }

    /// Whether both are equal, apart from their positions in the text.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        let moved =
            |keys: &SaKeyFile, to: &SaKeyFile| SaKeyFile { position: to.position, ..keys.clone() };
        let moved = Self {
            keys_in: moved(&self.keys_in, &other.keys_in),
            keys_out: moved(&self.keys_out, &other.keys_out),
            position: other.position,
            ..self.clone()
        };
        moved == *other
    }
}
