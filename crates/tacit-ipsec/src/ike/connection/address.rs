//! Requests and assigns inner addresses (the addresses inside a tunnel). The requests and the
//! addresses are sent in configuration payloads (RFC 7296 sections 2.19 and 3.15).

use std::net::IpAddr;

use crate::ike::codec::{ConfigAttribute, ConfigKind, ConfigPayload, IkePayload};
use crate::ike::config::{InnerAddresses, InnerConfig};

/// The request of a side that wants addresses.
pub(super) fn request(config: &InnerConfig) -> Option<IkePayload> {
    (*config == InnerConfig::Request).then(|| {
        let kinds = [IP4_ADDRESS, IP4_DNS, IP6_ADDRESS, IP6_DNS];
        let empty = |kind| ConfigAttribute { kind, value: Vec::new() };
        let attributes = kinds.map(empty).to_vec();
        IkePayload::Config(ConfigPayload { kind: ConfigKind::Request, attributes })
    })
}

/// The addresses of a reply, if this side has requested them.
pub(super) fn assigned(config: &InnerConfig, payloads: &[IkePayload]) -> Option<InnerAddresses> {
    let reply = find(payloads, ConfigKind::Reply).filter(|_| *config == InnerConfig::Request)?;
    let mut inner = InnerAddresses::default();
    for ConfigAttribute { kind, value } in &reply.attributes {
        let Some(address) = address(*kind, value).filter(is_unicast) else { continue };
        let is_address = matches!(*kind, IP4_ADDRESS | IP6_ADDRESS);
        let list = if is_address { &mut inner.addresses } else { &mut inner.resolvers };
        let has_family = list.iter().any(|one| one.is_ipv4() == address.is_ipv4());
        if list.len() < LIST_MAX && !(is_address && has_family) {
            list.push(address);
        }
    }
    Some(inner)
}

/// The reply to a request, if this side assigns addresses. Without it, a peer that needs an address
/// ends the connection, and one that does not continues.
pub(super) fn answer(config: &InnerConfig, payloads: &[IkePayload]) -> Option<IkePayload> {
    let request = find(payloads, ConfigKind::Request)?;
    let InnerConfig::Assign(inner) = config else { return None };
    let is_requested = |kind| request.attributes.iter().any(|one| one.kind == kind);
    let attribute = |address: &IpAddr, v4, v6| match address {
        IpAddr::V4(address) => ConfigAttribute { kind: v4, value: address.octets().to_vec() },
        IpAddr::V6(address) => {
            let prefix: &[u8] = if v6 == IP6_ADDRESS { &[128] } else { &[] };
            ConfigAttribute { kind: v6, value: [&address.octets(), prefix].concat() }
        }
    };
    let addresses = inner.addresses.iter().map(|one| attribute(one, IP4_ADDRESS, IP6_ADDRESS));
    let resolvers = inner.resolvers.iter().map(|one| attribute(one, IP4_DNS, IP6_DNS));
    let attributes = addresses.chain(resolvers).filter(|one| is_requested(one.kind)).collect();
    Some(IkePayload::Config(ConfigPayload { kind: ConfigKind::Reply, attributes }))
}

fn find(payloads: &[IkePayload], kind: ConfigKind) -> Option<&ConfigPayload> {
    payloads.iter().find_map(|payload| match payload {
        IkePayload::Config(config) if config.kind == kind => Some(config),
        _ => None,
    })
}

/// The address of an attribute. `INTERNAL_IP6_ADDRESS` has the length of a prefix after it.
fn address(kind: u16, value: &[u8]) -> Option<IpAddr> {
    match kind {
        IP4_ADDRESS | IP4_DNS => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        IP6_ADDRESS if value.len() == 17 => {
            value.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes))
        }
        IP6_DNS => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

/// Whether hosts can have this address, and use it outside of themselves. An interface with
/// another address cannot be set up.
fn is_unicast(address: &IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || is_broadcast)
}

const IP4_ADDRESS: u16 = 1;
const IP4_DNS: u16 = 3;
const IP6_ADDRESS: u16 = 8;
const IP6_DNS: u16 = 10;
/// The most addresses, and the most resolvers, of a reply.
const LIST_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_assigns_only_addresses_that_hosts_can_have() {
        let v6 = |text: &str| {
            let address: std::net::Ipv6Addr = text.parse().unwrap();
            ConfigAttribute { kind: IP6_ADDRESS, value: [&address.octets()[..], &[128]].concat() }
        };
        let v4 = |value: [u8; 4]| ConfigAttribute { kind: IP4_ADDRESS, value: value.to_vec() };
        let bad4 = [[0; 4], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]].map(v4);
        let bad6 = ["::", "::1", "ff02::1"].map(v6);
        let good = [v4([10, 1, 0, 1]), v6("fd01::1")];
        let attributes = bad4.into_iter().chain(bad6).chain(good).collect();
        let reply = ConfigPayload { kind: ConfigKind::Reply, attributes };
        let inner = assigned(&InnerConfig::Request, &[IkePayload::Config(reply)]).unwrap();
        let expected: Vec<IpAddr> = ["10.1.0.1", "fd01::1"].map(|one| one.parse().unwrap()).into();
        assert_eq!(inner.addresses, expected);
    }
}
