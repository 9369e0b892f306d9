//! Which flows a rule is about.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::flow::{Direction, Protocol};

/// The conditions of a rule; all must hold. An empty list is no condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selectors {
    /// Who opens the connection.
    pub direction: Direction,
    /// Transport.
    pub protocol: Protocol,
    /// The near address.
    pub local: Vec<AddressSelector>,
    /// The near port.
    pub local_ports: Vec<RangeInclusive<u16>>,
    /// The far address.
    pub remote: Vec<AddressSelector>,
    /// The far port.
    pub remote_ports: Vec<RangeInclusive<u16>>,
    /// Executables. A label, not a boundary: an unknown owner matches only if the rule is a deny.
    pub program: Vec<PathBuf>,
    /// User names or numbers; an unknown owner as above.
    pub user: Vec<String>,
}

/// One way to name addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AddressSelector {
    /// One address, or all that share a prefix.
    Prefix {
        /// Bits after the prefix are zero.
        network: IpAddr,
        /// Bits of the prefix.
        length: u8,
    },
    /// All from the first to the last, inclusive, of one family.
    Range {
        /// The lowest.
        first: IpAddr,
        /// The highest.
        last: IpAddr,
    },
    /// A host name the program asked for; `*.` before it stands for one or more labels.
    Name {
        /// Lower case, no final dot, without the `*.`.
        host: String,
        /// Whether it was written with `*.`.
        wildcard: bool,
    },
}

impl fmt::Display for AddressSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix { network, length: 32 } if network.is_ipv4() => network.fmt(f),
            Self::Prefix { network, length: 128 } => network.fmt(f),
            Self::Prefix { network, length } => write!(f, "{network}/{length}"),
            Self::Range { first, last } => write!(f, "{first}-{last}"),
            Self::Name { host, wildcard: false } => f.write_str(host),
            Self::Name { host, wildcard: true } => write!(f, "*.{host}"),
        }
    }
}
