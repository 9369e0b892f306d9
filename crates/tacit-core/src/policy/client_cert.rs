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
//! The presets `full` and `safcheck` have equal settings, but come from different products. In
//! every preset, a client that sends a certificate must prove that it has the private key.

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
    /// The preset in the policy. `None`: the policy contains each setting separately.
    pub preset: Option<Preset>,
    /// What happens to a client without a certificate.
    pub absent: Absent,
    /// How tacit checks a client certificate.
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

/// How tacit checks a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainCheck {
    /// tacit does not check the certificate (`invalid = "allow"`). The client gets no name.
    Waived,
    /// tacit checks the chain, validity period, usage and revocation of the certificate.
    Made {
        /// The NAME of the table `[trust.NAME]` with the CA certificates.
        trust: String,
        /// What tacit does if the check fails.
        invalid: Invalid,
        /// Where the client's name comes from if the check succeeds.
        name: PeerName,
    },
}

/// What tacit does if the check of a client certificate fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// tacit logs the failure, and continues the connection without a client name.
    Log,
    /// The connection is rejected.
    Deny,
}

/// Where the name of a client comes from, if its certificate is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerName {
    /// The client has no name.
    None,
    /// The certificate contains the name of the client.
    Certificate,
    /// An identity map, `[[map.NAME]]`, gives the client its name. tacit rejects a client that
    /// matches no entry of the map.
    Map(String),
}

/// A combination of client certificate settings that has a name.
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
    /// All presets of `client-cert`.
    pub const ALL: [Self; 6] =
        [Self::Preferred, Self::Required, Self::Full, Self::PassThru, Self::AtFull, Self::SafCheck];

    /// Returns the word for this preset in a policy.
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
    /// Returns how the server treats the client certificate. `None`: it requests no certificate.
    #[must_use]
    pub fn requested(&self) -> Option<&ClientCertPolicy> {
        match self {
            Self::None => None,
            Self::Requested(policy) => Some(policy),
        }
    }

    /// Returns the NAME of the `[trust.NAME]` that verifies certificates. `None`: tacit does not
    /// check certificates.
    #[must_use]
    pub fn trust(&self) -> Option<&str> {
        match &self.requested()?.chain {
            ChainCheck::Made { trust, .. } => Some(trust),
            ChainCheck::Waived => None,
        }
    }

    /// Returns the name of the identity map that gives clients their names. `None`: no map.
    #[must_use]
    pub fn map(&self) -> Option<&str> {
        match &self.requested()?.chain {
            ChainCheck::Made { name: PeerName::Map(map), .. } => Some(map),
            _ => None,
        }
    }
}

/// Writes the name of the preset; without a preset, writes each setting.
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
