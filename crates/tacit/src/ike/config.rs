//! Converts a policy table `[ike.NAME]` to the configuration of an IKE connection. The table
//! describes a peer. This module also lists the flows that may use the tunnel to this peer. The
//! list comes from the policy rules that use the peer.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tacit_core::flow::{Direction, Protocol};
use tacit_core::policy::{
    EspSuite, IkeCredentials, IkeGroup, IkeName, IkePeer, IkeSuite, InnerAddressSource,
    KeyLifetime, Policy, Sha2, TunnelCipher, TunnelGroup, TunnelPrefix, TunnelRoutes,
};
use tacit_ipsec::esp::{DataLifetime, DataVolume};
use tacit_ipsec::ike::{
    ChildConfig, EspProposal, IkeConfig, IkeIdentity, IkeProposal, InitialContact, InnerConfig,
    KeGroup, LocalAuth, Prf, RemoteAuth,
};
use tacit_ipsec::{Cipher, IntegrityHash, TrafficSelector};
use tacit_tls::tunnel_auth::subject_of;

use super::IkePolicy;
use super::certificates::{IdentitySigner, TrustVerifier};
use crate::ledger::Account;
use crate::packet::{FlowOpener, TunnelFlow};

/// How both sides prove who they are.
pub(super) struct Authentication {
    local: LocalAuth,
    remote: RemoteAuth,
    verifier: Option<Arc<TrustVerifier>>,
}

impl Authentication {
    /// Checks the certificates of the peer; `None`: both sides know a key.
    pub(super) fn verifier(&self) -> Option<Arc<TrustVerifier>> {
        self.verifier.clone()
    }

    /// That of a peer; `None`: its key or a certificate was not read.
    pub(super) fn of(policy: &IkePolicy, ike: &str, peer: &IkePeer) -> Option<Self> {
        match &peer.credentials {
            IkeCredentials::SharedKey { .. } => {
                let key = policy.shared_keys.get(ike)?;
                let local = LocalAuth::SharedKey(key.clone());
                let remote = RemoteAuth::SharedKey(key.clone());
                Some(Self { local, remote, verifier: None })
            }
            IkeCredentials::Certificates { identity, trust } => {
                let identity = policy.identities.get(identity)?;
                let trust = policy.trusts.get(trust)?;
                let signer = IdentitySigner(Arc::clone(identity));
                let verifier = Arc::new(TrustVerifier::new(Arc::clone(trust)));
                let remote = Arc::clone(&verifier);
                Some(Self {
                    local: LocalAuth::Signature(Arc::new(signer)),
                    remote: RemoteAuth::Signature(remote),
                    verifier: Some(verifier),
                })
            }
        }
    }
}

/// The configuration for a peer, which is one of `peers`.
pub(super) fn ike_config(
    peers: &BTreeMap<String, IkePeer>,
    ike: &str,
    peer: &IkePeer,
    routes: &TunnelRoutes,
    authentication: Authentication,
) -> IkeConfig {
    let (inner, local, initial_contact) = match &peer.inner {
        InnerAddressSource::Policy(addresses) => {
            let local = addresses.iter().map(|address| (*address, *address));
            (InnerConfig::Static, selectors(local), initial_contact(peers, ike, peer))
        }
        InnerAddressSource::Gateway => {
            let all: [(IpAddr, IpAddr); 2] = [
                (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::BROADCAST.into()),
                (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::from_bits(u128::MAX).into()),
            ];
            let remote = routes.remotes(ike);
            let has = |all: &(IpAddr, IpAddr)| {
                remote.iter().any(|(first, _)| first.is_ipv4() == all.0.is_ipv4())
            };
            let local = all.into_iter().filter(has);
            (InnerConfig::Request, selectors(local), InitialContact::Omit)
        }
    };
    let child = ChildConfig {
        proposals: peer.esp_offers().iter().map(esp_proposal).collect(),
        local,
        remote: selectors(routes.remotes(ike).iter().copied()),
        lifetime: peer.lifetime.time,
    };
    IkeConfig {
        local: identity(&peer.local_id),
        remote: identity(&peer.remote_id),
        local_auth: authentication.local,
        remote_auth: authentication.remote,
        proposals: peer.proposals.iter().map(ike_proposal).collect(),
        child,
        inner,
        initial_contact,
        lifetime: peer.ike_lifetime,
        liveness: peer.dpd,
    }
}

/// Whether earlier connections are those of a dead agent: no other run has the inner address. The
/// peer cannot distinguish the tunnels of two `[ike.NAME]` with the same identities, and would drop
/// that of the other one (RFC 7296 section 2.4).
fn initial_contact(peers: &BTreeMap<String, IkePeer>, ike: &str, peer: &IkePeer) -> InitialContact {
    let identities =
        |one: &IkePeer| (one.host.clone(), one.port, one.local_id.clone(), one.remote_id.clone());
    let is_same =
        |(name, other): (&String, &IkePeer)| name != ike && identities(other) == identities(peer);
    if peers.iter().any(is_same) { InitialContact::Omit } else { InitialContact::Assert }
}

/// The flows that the rules permit in the tunnel with a peer.
pub(super) fn flows(routes: &TunnelRoutes, ike: &str, inner: &[IpAddr]) -> Vec<TunnelFlow> {
    let groups = routes.groups().iter().filter(|group| group.peer == ike);
    groups
        .flat_map(|group| group.prefixes.iter().filter_map(|prefix| flow(group, prefix, inner)))
        .collect()
}

fn flow(group: &TunnelGroup, prefix: &TunnelPrefix, inner: &[IpAddr]) -> Option<TunnelFlow> {
    let is_v4 = prefix.network.is_ipv4();
    let own = inner.iter().copied().find(|address| address.is_ipv4() == is_v4)?;
    let protocol = match group.protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Icmp if is_v4 => 1,
        Protocol::Icmp => 58,
    };
    let ports = |range: &Option<std::ops::RangeInclusive<u16>>| {
        range.as_ref().map_or((0, u16::MAX), |range| (*range.start(), *range.end()))
    };
    Some(TunnelFlow {
        local: TrafficSelector::new(protocol, ports(&group.local_ports), (own, own))?,
        remote: TrafficSelector::new(protocol, ports(&group.remote_ports), span(prefix))?,
        opened_by: match group.direction {
            Direction::Outbound => FlowOpener::Local,
            Direction::Inbound => FlowOpener::Remote,
        },
    })
}

/// The accounts of the packets of all rules with `ipsec`.
pub(super) fn accounts(policy: &Policy) -> Vec<(String, Arc<Account>)> {
    let rules = policy.rules.iter().filter(|rule| rule.ipsec().is_some());
    rules.map(|rule| (rule.name.clone(), Account::packets_of(&rule.name))).collect()
}

/// How much data the keys of a child SA protect. New ones are requested at nine tenths of it.
pub(super) fn data_lifetime(lifetime: &KeyLifetime) -> DataLifetime {
    let hard = DataVolume {
        packets: lifetime.packets.unwrap_or(u64::MAX),
        bytes: lifetime.bytes.unwrap_or(u64::MAX),
    };
    let soft = |most: u64| if most == u64::MAX { most } else { most - most / 10 };
    DataLifetime { soft: DataVolume { packets: soft(hard.packets), bytes: soft(hard.bytes) }, hard }
}

/// The first and the last address of a prefix.
fn span(prefix: &TunnelPrefix) -> (IpAddr, IpAddr) {
    let length = u32::from(prefix.length);
    match prefix.network {
        IpAddr::V4(first) => {
            let hosts = u32::MAX.checked_shr(length).unwrap_or(0);
            (first.into(), Ipv4Addr::from_bits(first.to_bits() | hosts).into())
        }
        IpAddr::V6(first) => {
            let hosts = u128::MAX.checked_shr(length).unwrap_or(0);
            (first.into(), Ipv6Addr::from_bits(first.to_bits() | hosts).into())
        }
    }
}

pub(super) fn selectors(ranges: impl Iterator<Item = (IpAddr, IpAddr)>) -> Vec<TrafficSelector> {
    ranges.filter_map(|(first, last)| TrafficSelector::of_addresses(first, last)).collect()
}

fn identity(name: &IkeName) -> IkeIdentity {
    match name {
        IkeName::Address(address) => IkeIdentity::Address(*address),
        IkeName::Fqdn(name) => IkeIdentity::Fqdn(name.clone()),
        IkeName::UserFqdn(name) => IkeIdentity::UserFqdn(name.clone()),
        IkeName::DistinguishedName(attributes) => {
            let pairs: Vec<_> =
                attributes.iter().map(|one| (one.oid.as_str(), one.value.as_str())).collect();
            // No name is equal to one that cannot be written: its numbers are out of range.
            let none = || IkeIdentity::DistinguishedName(Vec::new());
            IkeIdentity::of_attributes(&pairs).unwrap_or_else(none)
        }
    }
}

/// The identity of this side. A distinguished name is the subject of its certificate, as the CA has
/// written it.
///
/// # Errors
/// The certificate has another subject.
pub(super) fn local_identity(policy: &IkePolicy, peer: &IkePeer) -> Result<IkeIdentity, String> {
    let wanted = identity(&peer.local_id);
    let (IkeIdentity::DistinguishedName(_), IkeCredentials::Certificates { identity: name, .. }) =
        (&wanted, &peer.credentials)
    else {
        return Ok(wanted);
    };
    let certificates = policy.identities.get(name).map(|one| &one.certified_key.cert);
    let leaf = certificates.and_then(|chain| chain.first());
    let subject = leaf.and_then(|leaf| subject_of(leaf)).unwrap_or_default();
    let subject = IkeIdentity::DistinguishedName(subject);
    if subject == wanted {
        return Ok(subject);
    }
    Err(format!(
        "`local-id` is `{wanted}`, but the certificate of identity `{name}` has the subject \
         `{subject}`; fix: set `local-id` to this subject"
    ))
}

pub(super) fn ike_proposal(suite: &IkeSuite) -> IkeProposal {
    let IkeSuite { cipher: with, prf: hash, group: of } = *suite;
    IkeProposal { cipher: cipher(with), prf: prf(hash), group: group(of) }
}

pub(super) fn prf(hash: Sha2) -> Prf {
    match hash {
        Sha2::Sha256 => Prf::HmacSha256,
        Sha2::Sha384 => Prf::HmacSha384,
        Sha2::Sha512 => Prf::HmacSha512,
    }
}

fn esp_proposal(suite: &EspSuite) -> EspProposal {
    EspProposal { cipher: cipher(suite.cipher), pfs: suite.group.map(group) }
}

pub(crate) fn hash(hash: Sha2) -> IntegrityHash {
    match hash {
        Sha2::Sha256 => IntegrityHash::Sha256,
        Sha2::Sha384 => IntegrityHash::Sha384,
        Sha2::Sha512 => IntegrityHash::Sha512,
    }
}

pub(crate) fn cipher(cipher: TunnelCipher) -> Cipher {
    match cipher {
        TunnelCipher::Aes128Gcm16 => Cipher::Aes128Gcm,
        TunnelCipher::Aes256Gcm16 => Cipher::Aes256Gcm,
        TunnelCipher::ChaCha20Poly1305 => Cipher::ChaCha20Poly1305,
        TunnelCipher::Aes128Cbc(with) => Cipher::Aes128Cbc(hash(with)),
        TunnelCipher::Aes256Cbc(with) => Cipher::Aes256Cbc(hash(with)),
    }
}

pub(super) fn group(group: IkeGroup) -> KeGroup {
    match group {
        IkeGroup::X25519 => KeGroup::X25519,
        IkeGroup::P256 => KeGroup::P256,
        IkeGroup::P384 => KeGroup::P384,
        IkeGroup::Modp2048 => KeGroup::Modp2048,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distinguished_name_is_written_in_der() {
        let dn = |text: &str| {
            let text = format!(
                "version = 1\n[ike.a]\npeer = \"192.0.2.1\"\npsk-file = \"psk\"\nlocal-id = \
                 \"{text}\"\ninner = \"gateway\"\n"
            );
            let policy = tacit_core::policy::parse(&text).policy.unwrap();
            identity(&policy.ikes["a"].local_id)
        };
        assert_eq!(dn("C=DE, O=Corp, CN=gw").to_string(), "C=DE, O=Corp, CN=gw");
        assert_eq!(dn("cn=GW"), dn("CN=gw"));
        assert_ne!(dn("O=Corp, CN=gw"), dn("CN=gw, O=Corp"));
        // An identifier that no certificate can have.
        assert_ne!(dn("9.9=gw"), dn("CN=gw"));
    }

    #[test]
    fn only_a_tunnel_that_is_alone_between_its_identities_ends_earlier_ones() {
        let peer = |name: &str, local: &str, inner: &str| {
            format!(
                "[ike.{name}]\npeer = \"192.0.2.1\"\npsk-file = \"psk\"\nlocal-id = \"{local}\"\n\
                 remote-id = \"gw.example\"\ninner = \"{inner}\"\n"
            )
        };
        let text = [
            "version = 1\n".to_owned(),
            peer("first", "branch.example", "10.1.0.1"),
            peer("second", "branch.example", "10.1.0.2"),
            peer("other", "other.example", "10.1.0.3"),
        ]
        .concat();
        let policy = tacit_core::policy::parse(&text).policy.unwrap();
        let contact = |ike: &str| initial_contact(&policy.ikes, ike, &policy.ikes[ike]);
        assert_eq!(contact("first"), InitialContact::Omit);
        assert_eq!(contact("second"), InitialContact::Omit);
        assert_eq!(contact("other"), InitialContact::Assert);
    }
}
