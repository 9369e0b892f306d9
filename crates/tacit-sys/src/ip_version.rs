//! The type [`IpVersion`], and the kernel's constants that differ between IPv4 and IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::net::AddressFamily;

/// A version of the Internet Protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpVersion {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The version of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The address that stands for all of this host's own.
    #[must_use]
    pub fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Self::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    pub(crate) fn address_family(self) -> AddressFamily {
        match self {
            Self::V4 => AddressFamily::INET,
            Self::V6 => AddressFamily::INET6,
        }
    }
}

/// Which versions a kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpSupport {
    /// IPv6 is switched off.
    V4Only,
    /// Both.
    V4AndV6,
}
