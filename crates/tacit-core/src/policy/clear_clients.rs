//! Defines the settings of a server rule whose clients migrate to TLS. During the migration, some
//! clients use TLS, and others connect in clear.
//!
//! ```text
//! accept = "both"                         the first byte of a client decides: TLS or clear
//! clear-sources = ["10.1.0.0/16"]         these clients use no TLS; all others use TLS
//! clear-until = "2027-01-31T00:00:00Z"    from then on all clients must use TLS
//! ```
//!
//! In some protocols, the server sends first. Then tacit cannot wait for the client's first byte.
//! So the rule must list the clients that do not use TLS yet (`clear-sources`).

use std::net::IpAddr;

use jiff::Timestamp;

use super::selector::AddressSelector;

/// The setting `accept = "both"` of a server rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClearClients {
    /// Addresses of clients in clear; empty: the first byte of each client decides.
    pub sources: Vec<AddressSelector>,
    /// When the rule requires TLS of all clients; `None`: never.
    pub until: Option<Timestamp>,
}

/// The protocol that a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientProtocol {
    /// TLS from the first byte.
    Tls,
    /// The protocol of the server, without TLS.
    Clear,
    /// The first byte decides.
    Detect,
}

/// The content type of a handshake record (RFC 8446 section 5.1): the first byte of a client that
/// uses TLS.
const HANDSHAKE: u8 = 22;

impl ClearClients {
    /// Determines the protocol of a client by its address, at a time in seconds since 1970. A
    /// client without an IP address must use TLS.
    #[must_use]
    pub fn protocol_of(&self, client: Option<IpAddr>, unix_s: i64) -> ClientProtocol {
        if client.is_none() || self.until.is_some_and(|until| until.as_second() <= unix_s) {
            return ClientProtocol::Tls;
        }
        if self.sources.is_empty() {
            return ClientProtocol::Detect;
        }
        match self.sources.iter().any(|source| source.matches(client, &[])) {
            true => ClientProtocol::Clear,
            false => ClientProtocol::Tls,
        }
    }
}

impl ClientProtocol {
    /// Determines the protocol of a client by its first byte.
    #[must_use]
    pub fn of_first_byte(byte: u8) -> Self {
        if byte == HANDSHAKE { Self::Tls } else { Self::Clear }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(sources: &[&str]) -> ClearClients {
        let network = |text: &&str| AddressSelector::network(text.parse().unwrap(), 16);
        let until = Some(Timestamp::from_second(1_000).unwrap());
        ClearClients { sources: sources.iter().map(network).collect(), until }
    }

    #[test]
    fn the_first_byte_decides_until_the_end() {
        let clients = listed(&[]);
        let client = Some(IpAddr::from([10, 1, 2, 3]));
        assert_eq!(clients.protocol_of(client, 999), ClientProtocol::Detect);
        assert_eq!(clients.protocol_of(client, 1_000), ClientProtocol::Tls);
        assert_eq!(clients.protocol_of(None, 0), ClientProtocol::Tls);
    }

    #[test]
    fn only_listed_sources_are_in_clear() {
        let clients = listed(&["10.1.0.0", "2001:db8::"]);
        for (address, expected) in [
            ("10.1.2.3", ClientProtocol::Clear),
            ("::ffff:10.1.2.3", ClientProtocol::Clear),
            ("10.2.2.3", ClientProtocol::Tls),
            ("2001:db8::5", ClientProtocol::Clear),
            ("2002:db8::5", ClientProtocol::Tls),
        ] {
            let client: IpAddr = address.parse().unwrap();
            assert_eq!(clients.protocol_of(Some(client.to_canonical()), 0), expected, "{address}");
        }
    }

    #[test]
    fn a_handshake_record_is_tls() {
        assert_eq!(ClientProtocol::of_first_byte(22), ClientProtocol::Tls);
        for byte in (0..=u8::MAX).filter(|byte| *byte != 22) {
            assert_eq!(ClientProtocol::of_first_byte(byte), ClientProtocol::Clear, "{byte}");
        }
    }
}
