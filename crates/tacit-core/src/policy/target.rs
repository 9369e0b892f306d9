//! Defines the targets of a forwarding rule: the addresses or names to which the agent connects.
//! Also defines the order in which the agent tries the targets.

use std::fmt;

use crate::flow::Address;

/// The largest number of targets of one rule.
pub const TARGETS_MAX: usize = 16;

/// The targets of the connections of a forwarding rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The targets: at least one, at most [`TARGETS_MAX`], without duplicates.
    pub targets: Vec<Target>,
    /// Which target a connection tries first.
    pub order: TargetOrder,
}

/// Which of several targets a connection tries first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetOrder {
    /// The first target in the list that is not down.
    #[default]
    First,
    /// The next target for each connection.
    RoundRobin,
}

impl TargetOrder {
    /// Returns the word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::RoundRobin => "round-robin",
        }
    }
}

/// A destination that a connection can be dialled to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An address that needs no resolver.
    Address(Address),
    /// A host name, which is resolved repeatedly.
    Name {
        /// The name in lower case, without a final dot.
        host: String,
        /// Its port.
        port: u16,
    },
}

impl Target {
    /// Returns what the certificate of a TLS server at this target must match: the name or the IP
    /// address; `None` for a UNIX socket.
    #[must_use]
    pub fn host(&self) -> Option<String> {
        match self {
            Self::Name { host, .. } => Some(host.clone()),
            Self::Address(address) => address.ip().map(|ip| ip.to_string()),
        }
    }

    /// Whether bytes sent to this target cannot leave this host.
    #[must_use]
    pub fn stays_on_host(&self) -> bool {
        match self {
            Self::Address(address) => address.stays_on_host(),
            Self::Name { host, .. } => host == "localhost",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}
