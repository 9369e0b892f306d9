//! What a server asks of its clients: settings that do not depend on each other, and names for the
//! combinations in use.
//!
//! ```text
//!   preset      asked  absent  invalid                    name taken from
//!   none        no     -       -                          -
//!   preferred   yes    allow   log: told of and allowed   the certificate
//!   required    yes    deny    deny                       the certificate
//!   full        yes    deny    deny                       a map
//!   passthru    yes    allow   allow: not even looked at  nowhere
//!   at-full     yes    allow   deny                       the certificate
//!   safcheck    yes    deny    deny                       a map
//! ```
//!
//! Whoever shows a certificate proves that he holds its key, whatever the settings.

use std::fmt;

/// What a server asks of its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCert {
    /// No certificate is asked for.
    None,
    /// One is.
    Asked(ClientCertPolicy),
}

/// What follows from the certificate that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertPolicy {
    /// The name of the combination, as the policy has it; `None`: it gives the settings themselves.
    pub preset: Option<Preset>,
    /// Where none comes.
    pub absent: Absent,
    /// Where one comes.
    pub chain: ChainCheck,
}

/// What follows from an absent certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The connection goes on, with nobody's name.
    Allow,
    /// The connection is refused.
    Deny,
}

/// How a certificate is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainCheck {
    /// Not at all: `invalid = "allow"`. It gives nobody a name.
    Waived,
    /// Chain, time, usage and revocation.
    Made {
        /// Name of the trust.
        trust: String,
        /// Where it is not believed.
        invalid: Invalid,
        /// Where it is.
        name: PeerName,
    },
}

/// What follows from a certificate that is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// That is logged, and the connection goes on, with nobody's name.
    Log,
    /// The connection is refused.
    Deny,
}

/// Where the name of a client comes from whose certificate is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerName {
    /// It has none.
    None,
    /// The certificate itself.
    Certificate,
    /// The identity map of that name; who has no name there is refused.
    Map(String),
}

/// A combination with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The module says what they mean.
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

    /// The word the policy uses for it.
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

    /// What it says of an absent certificate.
    #[must_use]
    pub fn absent(self) -> Absent {
        match self {
            Self::Preferred | Self::PassThru | Self::AtFull => Absent::Allow,
            Self::Required | Self::Full | Self::SafCheck => Absent::Deny,
        }
    }
}

impl ClientCert {
    /// What follows from the certificate; `None`: none is asked for.
    #[must_use]
    pub fn asked(&self) -> Option<&ClientCertPolicy> {
        match self {
            Self::None => None,
            Self::Asked(asked) => Some(asked),
        }
    }

    /// Name of the trust whose certificates are believed, if any are looked at.
    #[must_use]
    pub fn trust(&self) -> Option<&str> {
        match &self.asked()?.chain {
            ChainCheck::Made { trust, .. } => Some(trust),
            ChainCheck::Waived => None,
        }
    }

    /// Name of the map that clients must have a name in, if there is one.
    #[must_use]
    pub fn map(&self) -> Option<&str> {
        match &self.asked()?.chain {
            ChainCheck::Made { name: PeerName::Map(map), .. } => Some(map),
            _ => None,
        }
    }
}

/// The preset, or the settings.
impl fmt::Display for ClientCert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(ClientCertPolicy { preset, absent, chain }) = self.asked() else {
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
