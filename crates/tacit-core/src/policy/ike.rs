//! Defines the table `[ike.NAME]` of a policy: a peer of an IPsec tunnel.
//!
//! Algorithms have the same names as in strongSwan, so that users can copy the names. tacit does
//! not support weak algorithms: DES, 3DES, MD5, SHA-1, and Diffie-Hellman groups below 2048 bits
//! (RFC 8221, RFC 8247).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::diagnostic::SourcePosition;
use super::map::distinguished::DnAttribute;
use super::target::Target;

/// One `[ike.NAME]`: a gateway or host with which tacit makes tunnels by IKEv2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IkePeer {
    /// Its address, or its name.
    pub host: IkeHost,
    /// Its UDP port.
    pub port: u16,
    /// How both sides prove who they are.
    pub credentials: IkeCredentials,
    /// Who this side claims to be.
    pub local_id: IkeName,
    /// Where the policy has `local-id`.
    pub local_id_position: SourcePosition,
    /// Who the peer must prove to be.
    pub remote_id: IkeName,
    /// The algorithms of the IKE SA, the preferred first; at least one.
    pub proposals: Vec<IkeSuite>,
    /// The algorithms of child SAs as they are written, the preferred first; at least one.
    /// [`esp_offers`](Self::esp_offers) adds the groups.
    pub esp_proposals: Vec<EspSuite>,
    /// Whether new keys of a child SA need a key exchange of their own.
    pub pfs: bool,
    /// How long the keys of the IKE SA are used.
    pub ike_lifetime: Duration,
    /// How long, and for how much data, the keys of a child SA are used.
    pub lifetime: KeyLifetime,
    /// After this time without a packet of the peer, tacit asks whether it is alive.
    pub dpd: Duration,
    /// The addresses of runs inside the tunnel.
    pub inner: InnerAddressSource,
    /// Where the table begins in the policy text.
    pub position: SourcePosition,
}

impl IkePeer {
    /// The port of IKE with NAT traversal, on which ESP in UDP arrives too (RFC 3947).
    pub const PORT_DEFAULT: u16 = 4500;
    /// The default of `ike-lifetime`.
    pub const IKE_LIFETIME_DEFAULT: Duration = Duration::from_secs(4 * 3600);
    /// The default of `dpd`.
    pub const DPD_DEFAULT: Duration = Duration::from_secs(30);
    /// The default of `proposals`, preferred first.
    pub const PROPOSALS_DEFAULT: [&str; 5] = [
        "aes256gcm16-prfsha384-x25519",
        "aes256gcm16-prfsha384-ecp256",
        "aes256gcm16-prfsha384-ecp384",
        "aes128gcm16-prfsha256-ecp256",
        "chacha20poly1305-prfsha256-x25519",
    ];
    /// The default of `esp-proposals`, preferred first.
    pub const ESP_PROPOSALS_DEFAULT: [&str; 3] = ["aes256gcm16", "aes128gcm16", "chacha20poly1305"];

    /// Returns its address and its port; `None` if the policy has its name.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self.host {
            IkeHost::Address(address) => Some(SocketAddr::new(address, self.port)),
            IkeHost::Name(_) => None,
        }
    }

    /// Returns the name that the agent has to resolve, and the port.
    #[must_use]
    pub fn unresolved(&self) -> Option<Target> {
        match &self.host {
            IkeHost::Address(_) => None,
            IkeHost::Name(host) => Some(Target::Name { host: host.clone(), port: self.port }),
        }
    }

    /// Returns the proposals for child SAs. With `pfs`, a proposal without a group is offered with
    /// each group of the proposals for the IKE SA.
    #[must_use]
    pub fn esp_offers(&self) -> Vec<EspSuite> {
        esp_offers(&self.esp_proposals, &self.proposals, self.pfs)
    }

    /// Returns the file of `psk-file`.
    #[must_use]
    pub fn key_file(&self) -> Option<&Path> {
        match &self.credentials {
            IkeCredentials::SharedKey { file, .. } => Some(file),
            IkeCredentials::Certificates { .. } => None,
        }
    }

    /// Whether both are equal, apart from their positions in the text.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        let mut moved = Self {
            local_id_position: other.local_id_position,
            position: other.position,
            ..self.clone()
        };
        if let (
            IkeCredentials::SharedKey { position, .. },
            IkeCredentials::SharedKey { position: of_other, .. },
        ) = (&mut moved.credentials, &other.credentials)
        {
            *position = *of_other;
        }
        moved == *other
    }
}

#[expect(
    clippy::fn_params_excessive_bools,
    reason = "the parameter is the value of the boolean policy key `pfs`"
)]
pub(super) fn esp_offers(esp: &[EspSuite], ike: &[IkeSuite], pfs: bool) -> Vec<EspSuite> {
    let mut groups: Vec<IkeGroup> = Vec::new();
    for suite in ike.iter().filter(|_| pfs) {
        if !groups.contains(&suite.group) {
            groups.push(suite.group);
        }
    }
    let mut offers: Vec<EspSuite> = Vec::new();
    for suite in esp {
        let with = |group: &IkeGroup| EspSuite { group: Some(*group), ..*suite };
        let is_complete = suite.group.is_some() || groups.is_empty();
        let all = if is_complete { vec![*suite] } else { groups.iter().map(with).collect() };
        for offer in all {
            if !offers.contains(&offer) {
                offers.push(offer);
            }
        }
    }
    offers
}

/// Where a peer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IkeHost {
    /// Its IP address.
    Address(IpAddr),
    /// Its host name in lower case, which the agent resolves.
    Name(String),
}

impl IkeHost {
    /// Returns the default of `remote-id`.
    #[must_use]
    pub fn identity(&self) -> IkeName {
        match self {
            Self::Address(address) => IkeName::Address(*address),
            Self::Name(name) => IkeName::Fqdn(name.clone()),
        }
    }
}

impl fmt::Display for IkeHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// How both sides of a tunnel prove who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IkeCredentials {
    /// `psk-file`: with a key that both sides know.
    SharedKey {
        /// The file that contains the key.
        file: PathBuf,
        /// Where the policy names the file.
        position: SourcePosition,
    },
    /// `identity` and `trust`: with certificates.
    Certificates {
        /// The name of the identity that tacit presents.
        identity: String,
        /// The name of the trust for the peer's certificate.
        trust: String,
    },
}

/// A name that a side of a tunnel claims, and proves (RFC 7296 section 3.5).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IkeName {
    /// An IP address.
    Address(IpAddr),
    /// A host name, in lower case.
    Fqdn(String),
    /// `user@host`.
    UserFqdn(String),
    /// A distinguished name; its attributes in the order of the certificate.
    DistinguishedName(Vec<DnAttribute>),
}

impl fmt::Display for IkeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Fqdn(name) | Self::UserFqdn(name) => f.write_str(name),
            Self::DistinguishedName(attributes) => {
                attributes.iter().enumerate().try_for_each(|(at, attribute)| {
                    write!(f, "{}{attribute}", if at == 0 { "" } else { ", " })
                })
            }
        }
    }
}

/// How long keys of a child SA are used; what is reached first decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLifetime {
    /// The time.
    pub time: Duration,
    /// The bytes of the inner packets; `None`: only the limit of the cipher.
    pub bytes: Option<u64>,
    /// The packets; `None`: only the limit of the cipher.
    pub packets: Option<u64>,
}

impl KeyLifetime {
    /// The default of `lifetime`.
    pub const TIME_DEFAULT: Duration = Duration::from_secs(3600);
}

/// Where the addresses of runs inside a tunnel come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InnerAddressSource {
    /// The policy: one address, or one of each family.
    Policy(Vec<IpAddr>),
    /// The peer assigns them (RFC 7296 section 2.19).
    Gateway,
}

/// The algorithms of an IKE SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IkeSuite {
    /// How messages are encrypted.
    pub cipher: TunnelCipher,
    /// The hash of the function from which keys are derived.
    pub prf: Sha2,
    /// The group of the key exchange.
    pub group: IkeGroup,
}

impl fmt::Display for IkeSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cipher, prf, group } = self;
        write!(f, "{cipher}-prf{}-{}", prf.word(), group.word())
    }
}

/// The algorithms of a child SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EspSuite {
    /// How packets are encrypted.
    pub cipher: TunnelCipher,
    /// The group of the key exchange when keys are replaced, if there is one.
    pub group: Option<IkeGroup>,
}

impl fmt::Display for EspSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cipher)?;
        self.group.map_or(Ok(()), |group| write!(f, "-{}", group.word()))
    }
}

/// A cipher of tunnels, with the integrity that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelCipher {
    /// AES-128-GCM with a tag of 16 bytes.
    Aes128Gcm16,
    /// AES-256-GCM with a tag of 16 bytes.
    Aes256Gcm16,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
    /// AES-128-CBC with an HMAC.
    Aes128Cbc(Sha2),
    /// AES-256-CBC with an HMAC.
    Aes256Cbc(Sha2),
}

impl fmt::Display for TunnelCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aes128Gcm16 => f.write_str("aes128gcm16"),
            Self::Aes256Gcm16 => f.write_str("aes256gcm16"),
            Self::ChaCha20Poly1305 => f.write_str("chacha20poly1305"),
            Self::Aes128Cbc(hash) => write!(f, "aes128-{}", hash.word()),
            Self::Aes256Cbc(hash) => write!(f, "aes256-{}", hash.word()),
        }
    }
}

/// A hash of the SHA-2 family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sha2 {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Sha2 {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// Returns the word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }
}

/// A group of the key exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IkeGroup {
    /// Curve25519 (RFC 8031).
    X25519,
    /// The curve P-256 (RFC 5903).
    P256,
    /// The curve P-384 (RFC 5903).
    P384,
    /// The group of integers with 2048 bits (RFC 3526).
    Modp2048,
}

impl IkeGroup {
    /// All groups.
    pub const ALL: [Self; 4] = [Self::X25519, Self::P256, Self::P384, Self::Modp2048];

    /// Returns the word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::X25519 => "x25519",
            Self::P256 => "ecp256",
            Self::P384 => "ecp384",
            Self::Modp2048 => "modp2048",
        }
    }
}

/// The most proposals for one SA, after groups are added.
pub const IKE_PROPOSALS_MAX: usize = 16;
