//! Defines how a server rule treats client certificates. A preset, such as `required`, is a
//! combination of settings:
//!
//! ```text
//!   preset      requests a    if there    if it is         the client's
//!               certificate   is none     invalid          name is from
//!   none        no            -           -                -
//!   preferred   yes           allow       log, allow       the certificate
//!   required    yes           deny        deny             the certificate
//!   full        yes           deny        deny             an identity map
//!   passthru    yes           allow       not checked      (no name)
//!   at-full     yes           allow       deny             the certificate
//!   safcheck    yes           deny        deny             an identity map
//! ```
//!
//! The presets `full` and `safcheck` are equal; each is the word of another product. In every
//! preset, a client that sends a certificate must prove that it has the private key.

use std::fmt;

/// Whether and how a server authenticates its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCert {
    /// The server requests no certificate.
    None,
    /// The server requests a certificate.
    Requested(ClientCertPolicy),
}

/// How the server treats the certificate that it requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertPolicy {
    /// The preset that the policy names; `None`: the policy sets each setting separately.
    pub preset: Option<Preset>,
    /// What happens to a client without a certificate.
    pub absent: Absent,
    /// How a certificate is checked.
    pub chain: ChainCheck,
}

/// What happens to a client without a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The connection continues, without a client name.
    Allow,
    /// The connection is rejected.
    Deny,
}

/// How a certificate is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainCheck {
    /// It is not checked: `invalid = "allow"`. The client gets no name.
    Waived,
    /// Its chain, validity period, usage and revocation are checked.
    Made {
        /// The name of the trust.
        trust: String,
        /// What happens if the check fails.
        invalid: Invalid,
        /// The source of the client's name if the check succeeds.
        name: PeerName,
    },
}

/// What happens to a client with a certificate that fails its check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The failure is logged, and the connection continues without a client name.
    Log,
    /// The connection is rejected.
    Deny,
}

/// The source of the name of a client with a trusted certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerName {
    /// The client has no name.
    None,
    /// The name is from the certificate.
    Certificate,
    /// The name is from the identity map with this name. A client without a name in the map is
    /// rejected.
    Map(String),
}

/// A named combination of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The module documentation describes them.
pub enum Preset {
    Preferred,
    Required,
    Full,
    PassThru,
    AtFull,
    SafCheck,
}

impl Preset {
    /// Every preset.
    pub const ALL: [Self; 6] =
        [Self::Preferred, Self::Required, Self::Full, Self::PassThru, Self::AtFull, Self::SafCheck];

    /// Returns the word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Preferred => "preferred",
            Self::Required => "required",
            Self::Full => "full",
            Self::PassThru => "passthru",
            Self::AtFull => "at-full",
            Self::SafCheck => "safcheck",
        }
    }

    /// Returns what happens to a client without a certificate.
    #[must_use]
    pub fn absent(self) -> Absent {
        match self {
            Self::Preferred | Self::PassThru | Self::AtFull => Absent::Allow,
            Self::Required | Self::Full | Self::SafCheck => Absent::Deny,
        }
    }
}

impl ClientCert {
    /// Returns how the requested certificate is treated; `None`: none is requested.
    #[must_use]
    pub fn requested(&self) -> Option<&ClientCertPolicy> {
        match self {
            Self::None => None,
            Self::Requested(policy) => Some(policy),
        }
    }

    /// Returns the name of the trust against which certificates are checked, if they are checked.
    #[must_use]
    pub fn trust(&self) -> Option<&str> {
        match &self.requested()?.chain {
            ChainCheck::Made { trust, .. } => Some(trust),
            ChainCheck::Waived => None,
        }
    }

    /// Returns the name of the identity map in which clients must have a name, if any.
    #[must_use]
    pub fn map(&self) -> Option<&str> {
        match &self.requested()?.chain {
            ChainCheck::Made { name: PeerName::Map(map), .. } => Some(map),
            _ => None,
        }
    }
}

/// Writes the preset, or the settings.
impl fmt::Display for ClientCert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(ClientCertPolicy { preset, absent, chain }) = self.requested() else {
            return f.write_str("none");
        };
        if let Some(preset) = preset {
            return f.write_str(preset.word());
        }
        let absent = match absent {
            Absent::Allow => "allow",
            Absent::Deny => "deny",
        };
        let (invalid, identity) = match chain {
            ChainCheck::Waived => ("allow", "none"),
            ChainCheck::Made { invalid, name, .. } => (
                match invalid {
                    Invalid::Log => "log",
                    Invalid::Deny => "deny",
                },
                match name {
                    PeerName::None => "none",
                    PeerName::Certificate => "name",
                    PeerName::Map(_) => "map",
                },
            ),
        };
        write!(f, "absent={absent},invalid={invalid},identity={identity}")
    }
}
