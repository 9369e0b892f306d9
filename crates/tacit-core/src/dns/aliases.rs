//! Assigns alias addresses to names that programs look up with DNS. An alias is an address from a
//! reserved range. Each alias stands for one name and one of the name's true addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

/// The possible prefix lengths of an alias range for IPv4: at least 256 alias addresses.
pub const ALIAS_BITS_V4: RangeInclusive<u8> = 8..=24;
/// The possible prefix lengths of an alias range for IPv6.
pub const ALIAS_BITS_V6: RangeInclusive<u8> = 16..=112;

/// The address of every run's own loopback interface (100::15) is not an alias address.
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0x15);

/// The settings `aliases` and `alias-ranges` of `[agent]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aliases {
    /// Which names get an alias address.
    pub given: AliasPolicy,
    /// The ranges from which alias addresses are taken.
    pub ranges: AliasRanges,
}

impl Aliases {
    /// Whether an address is reserved for alias addresses.
    #[must_use]
    pub fn reserves(&self, address: IpAddr) -> bool {
        self.given != AliasPolicy::Never && self.ranges.contains(address)
    }
}

/// Which names get alias addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AliasPolicy {
    /// Names with an address that belongs to another name or that a rule by address may match.
    #[default]
    Conflict,
    /// All names.
    Always,
    /// No names. An address may then have several names, and the strictest of their rules decides.
    Never,
}

/// The networks for the alias addresses, one of each address family.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AliasRanges {
    v4: Ipv4Addr,
    v4_bits: u8,
    v6: Ipv6Addr,
    v6_bits: u8,
}

impl Default for AliasRanges {
    /// 198.18.0.0/15 (RFC 2544), twice as many as a run may have names, and 100::/64 (RFC 6666).
    fn default() -> Self {
        Self {
            v4: Ipv4Addr::new(198, 18, 0, 0),
            v4_bits: 15,
            v6: Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0),
            v6_bits: 64,
        }
    }
}

impl AliasRanges {
    /// Replaces the network of one address family. `network` has no bits set after the first
    /// `bits`, which are within [`ALIAS_BITS_V4`] or [`ALIAS_BITS_V6`].
    #[must_use]
    pub fn with(self, network: IpAddr, bits: u8) -> Self {
        match network {
            IpAddr::V4(v4) => Self { v4, v4_bits: bits, ..self },
            IpAddr::V6(v6) => Self { v6, v6_bits: bits, ..self },
        }
    }

    /// Whether an address is in a range.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(v4) => v4.to_bits() >> (32 - self.v4_bits) == self.v4_high(),
            IpAddr::V6(v6) => {
                v6.to_bits() >> (128 - self.v6_bits) == self.v6_high() && v6 != OWN_V6
            }
        }
    }

    /// The lowest and the highest address of each range.
    #[must_use]
    pub fn first_and_last(&self) -> [(IpAddr, IpAddr); 2] {
        let v4 = (self.v4.into(), Ipv4Addr::from_bits(self.v4_last()).into());
        let v6 = (self.v6.into(), Ipv6Addr::from_bits(self.v6_last()).into());
        [v4, v6]
    }

    /// Returns the alias address with this number, counted from 1, of the same family as `address`;
    /// `None` if the range is too small.
    pub(super) fn numbered(&self, address: IpAddr, number: u32) -> Option<IpAddr> {
        let alias: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::from_bits(self.v4.to_bits().checked_add(number)?).into(),
            IpAddr::V6(_) => {
                let bits = self.v6.to_bits().checked_add(u128::from(number))?;
                Ipv6Addr::from_bits(bits).into()
            }
        };
        let is_within = match alias {
            IpAddr::V4(v4) => v4.to_bits() <= self.v4_last(),
            IpAddr::V6(v6) => v6.to_bits() <= self.v6_last(),
        };
        is_within.then_some(alias)
    }

    fn v4_high(&self) -> u32 {
        self.v4.to_bits() >> (32 - self.v4_bits)
    }

    fn v6_high(&self) -> u128 {
        self.v6.to_bits() >> (128 - self.v6_bits)
    }

    fn v4_last(&self) -> u32 {
        self.v4.to_bits() | (u32::MAX >> self.v4_bits)
    }

    fn v6_last(&self) -> u128 {
        self.v6.to_bits() | (u128::MAX >> self.v6_bits)
    }
}

impl fmt::Display for AliasRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, {}/{}", self.v4, self.v4_bits, self.v6, self.v6_bits)
    }
}

impl fmt::Debug for AliasRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AliasRanges({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_range_ends_where_its_prefix_does() {
        let ranges = AliasRanges::default();
        for within in ["198.18.0.0", "198.19.255.255", "100::1", "::ffff:198.18.0.1"] {
            assert!(ranges.contains(ip(within)), "{within}");
        }
        for other in ["198.17.255.255", "198.20.0.0", "100::15", "100:0:0:1::"] {
            assert!(!ranges.contains(ip(other)), "{other}");
        }
        let small = ranges.with(ip("10.99.0.0"), 24);
        assert_eq!(small.to_string(), "10.99.0.0/24, 100::/64");
        assert_eq!(small.numbered(ip("1.2.3.4"), 255), Some(ip("10.99.0.255")));
        assert_eq!(small.numbered(ip("1.2.3.4"), 256), None);
        assert_eq!(small.numbered(ip("::1"), 256), Some(ip("100::100")));
    }
}
