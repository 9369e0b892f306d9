//! Defines the type [`IpVersion`], with the kernel's constants for IPv4 and IPv6.

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
    /// Both versions.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the version of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Returns the position of the version in [`Self::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::V4 => 0,
            Self::V6 => 1,
        }
    }

    /// Returns the unspecified address, which stands for all addresses of this host.
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

/// The versions of IP that the kernel supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpSupport {
    /// Only IPv4: IPv6 is switched off.
    V4Only,
    /// IPv4 and IPv6.
    V4AndV6,
}
