//! Where a rule connects to.

use std::fmt;

use crate::flow::Address;

/// Where a rule connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An address that needs no resolver.
    Address(Address),
    /// A host name, resolved again and again.
    Name {
        /// Lower case, no final dot.
        host: String,
        /// Its port.
        port: u16,
    },
}

impl Target {
    /// Whether bytes sent there cannot leave this host.
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
