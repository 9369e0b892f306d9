//! Converts encryption algorithms to the names that the policy uses, for `tacit show` and the log.

use std::fmt;
use std::net::IpAddr;

use tacit_core::policy::{IkeCredentials, IkeGroup, IkeSuite, Sha2, TunnelCipher};
use tacit_ipsec::ike::IkeProposal;
use tacit_ipsec::{Cipher, SaProtocol, TrafficSelector};

use super::config::{cipher, group, hash, prf};

/// The words for the algorithms of an IKE SA. They are always those of a proposal of the policy.
#[must_use]
pub(crate) fn proposal_words(proposal: IkeProposal) -> String {
    let found = IkeGroup::ALL.into_iter().find(|one| group(*one) == proposal.group);
    let hash = Sha2::ALL.into_iter().find(|one| prf(*one) == proposal.prf);
    let suite = tunnel_cipher(proposal.cipher).zip(hash).zip(found);
    let suite = suite.map(|((cipher, prf), group)| IkeSuite { cipher, prf, group });
    suite.map_or_else(|| format!("{proposal:?}"), |suite| suite.to_string())
}

fn cipher_words(cipher: Cipher) -> String {
    tunnel_cipher(cipher).map_or_else(|| format!("{cipher:?}"), |cipher| cipher.to_string())
}

/// The words for the algorithms of SAs: with AH, only the hash of the HMAC.
#[must_use]
pub(crate) fn protocol_words(protocol: SaProtocol) -> String {
    match protocol {
        SaProtocol::EspInUdp(cipher) | SaProtocol::Esp(cipher, _) => cipher_words(cipher),
        SaProtocol::Ah(of_sa, _) => {
            let found = Sha2::ALL.into_iter().find(|one| hash(*one) == of_sa);
            found.map_or_else(|| format!("{of_sa:?}"), |hash| hash.word().to_owned())
        }
    }
}

/// The word for how both sides prove who they are.
#[must_use]
pub(crate) fn auth_word(credentials: &IkeCredentials) -> &'static str {
    match credentials {
        IkeCredentials::SharedKey { .. } => "shared-key",
        IkeCredentials::Certificates { .. } => "certificates",
    }
}

/// A traffic selector: addresses, then protocol and ports unless it has all of them.
#[must_use]
pub(crate) fn selector_words(selector: &TrafficSelector) -> String {
    let (first, last) = selector.addresses();
    let addresses = Addresses(first, last).to_string();
    let protocol = match selector.protocol() {
        0 => String::new(),
        1 => " icmp".to_owned(),
        6 => " tcp".to_owned(),
        17 => " udp".to_owned(),
        58 => " icmpv6".to_owned(),
        number => format!(" protocol-{number}"),
    };
    match selector.ports() {
        (0, u16::MAX) => addresses + &protocol,
        (first, last) if first == last => format!("{addresses}{protocol} {first}"),
        (first, last) => format!("{addresses}{protocol} {first}-{last}"),
    }
}

/// A range of addresses: as an address or a prefix if it is one.
struct Addresses(IpAddr, IpAddr);

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(first, last) = self;
        let (low, high, bits) = match (first, last) {
            (IpAddr::V4(low), IpAddr::V4(high)) => {
                (u128::from(low.to_bits()), u128::from(high.to_bits()), 32)
            }
            (low, high) => {
                let bits = |address: &IpAddr| match address {
                    IpAddr::V4(address) => u128::from(address.to_bits()),
                    IpAddr::V6(address) => address.to_bits(),
                };
                (bits(low), bits(high), 128)
            }
        };
        let differing = low ^ high;
        let is_prefix = differing.wrapping_add(1) & differing == 0 && low & differing == 0;
        let length = bits + differing.leading_zeros() - 128;
        match is_prefix {
            true if length == bits => write!(f, "{first}"),
            true => write!(f, "{first}/{length}"),
            false => write!(f, "{first}-{last}"),
        }
    }
}

fn tunnel_cipher(of_sa: Cipher) -> Option<TunnelCipher> {
    let cbc = |make: fn(Sha2) -> TunnelCipher| Sha2::ALL.into_iter().map(make);
    let aead =
        [TunnelCipher::Aes128Gcm16, TunnelCipher::Aes256Gcm16, TunnelCipher::ChaCha20Poly1305];
    let all = cbc(TunnelCipher::Aes128Cbc).chain(cbc(TunnelCipher::Aes256Cbc)).chain(aead);
    all.into_iter().find(|one| cipher(*one) == of_sa)
}

#[cfg(test)]
mod tests {
    use tacit_core::policy::parse;

    use super::*;
    use crate::ike::config::ike_proposal;

    #[test]
    fn a_selector_is_written_as_short_as_possible() {
        let words = |protocol, ports, first: &str, last: &str| {
            let addresses = (first.parse().unwrap(), last.parse().unwrap());
            selector_words(&TrafficSelector::new(protocol, ports, addresses).unwrap())
        };
        let all = (0, u16::MAX);
        assert_eq!(words(0, all, "10.2.0.0", "10.2.0.255"), "10.2.0.0/24");
        assert_eq!(words(0, all, "0.0.0.0", "255.255.255.255"), "0.0.0.0/0");
        assert_eq!(words(6, (80, 80), "10.2.0.1", "10.2.0.1"), "10.2.0.1 tcp 80");
        assert_eq!(words(17, (80, 90), "10.2.0.1", "10.2.0.2"), "10.2.0.1-10.2.0.2 udp 80-90");
        assert_eq!(words(0, all, "10.2.0.1", "10.2.0.4"), "10.2.0.1-10.2.0.4");
        assert_eq!(words(58, all, "fd00:2::", "fd00:2::ffff:ffff:ffff:ffff"), "fd00:2::/64 icmpv6");
        let every = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        assert_eq!(words(50, all, "::", every), "::/0 protocol-50");
    }

    #[test]
    fn the_words_are_those_of_the_policy() {
        let wanted = [
            "aes128gcm16-prfsha256-ecp256",
            "aes256gcm16-prfsha512-x25519",
            "chacha20poly1305-prfsha384-ecp384",
            "aes128-sha256-prfsha512-ecp256",
            "aes256-sha512-prfsha256-x25519",
        ];
        let policy = format!(
            "version = 1\n[ike.a]\npeer = \"192.0.2.1\"\npsk-file = \"a\"\nlocal-id = \
             \"c.example\"\ninner = \"gateway\"\nproposals = {wanted:?}\n"
        );
        let policy = parse(&policy).policy.unwrap();
        let words: Vec<_> = policy.ikes["a"]
            .proposals
            .iter()
            .map(|suite| proposal_words(ike_proposal(suite)))
            .collect();
        assert_eq!(words, wanted);
    }
}
