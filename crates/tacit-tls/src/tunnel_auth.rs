//! Authenticates both peers of an IPsec tunnel with certificates. This module creates and verifies
//! the signatures of IKEv2 (RFC 7427). It uses the certificates of the `[identity]` and `[trust]`
//! tables of the policy.
//!
//! The peer's certificate chain gets the same checks as the chain of a TLS server. If the
//! certificate has an extended key usage, the usage must include serverAuth.

use std::net::IpAddr;
use std::sync::Arc;

use aws_lc_rs::digest;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tacit_core::policy::Verify;
use webpki::EndEntityCert;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::check::PeerChain;
use crate::credentials::{LoadedIdentity, LoadedTrust, error_of};
use crate::dry_run;
use crate::signer::Scheme;
use crate::verify::{ServerCheck, algorithms};

/// What a peer has sent to prove who it is.
#[derive(Clone, Copy, Debug)]
pub struct TunnelProof<'a> {
    /// Its certificates in DER, its own first.
    pub certificates: &'a [&'a [u8]],
    /// Who it claims to be.
    pub name: TunnelPeerName<'a>,
    /// How it signed.
    pub scheme: Scheme,
    /// What it signed.
    pub message: &'a [u8],
    /// The signature.
    pub signature: &'a [u8],
}

/// A name that a peer's certificate must have: in its subjectAltName, or as its subject.
#[derive(Clone, Copy, Debug)]
pub enum TunnelPeerName<'a> {
    /// A host name.
    Host(&'a str),
    /// An IP address.
    Address(IpAddr),
    /// An e-mail address: user@host.
    Email(&'a str),
    /// A distinguished name in DER: the subject, byte by byte.
    Subject(&'a [u8]),
}

/// The certificates of a peer that was trusted, to check them again.
#[derive(Clone, Debug)]
pub struct TunnelPeerChain {
    chain: Arc<PeerChain>,
    /// The name that the certificate must have; `None`: another kind of name, which does not change
    /// with the time.
    name: Option<ServerName<'static>>,
}

impl TunnelPeerChain {
    /// Checks the chain and the name again: certificates expire, and CRLs change. A CRL that is out
    /// of date since does not matter.
    ///
    /// # Errors
    /// Why the peer is not trusted any more, in one line.
    pub fn check_again(&self, trust: &LoadedTrust, now: UnixTime) -> Result<(), String> {
        let check = match self.name {
            Some(_) => ServerCheck::full(trust),
            None => ServerCheck::chain(trust),
        };
        let check = check.map_err(|error| error.to_string())?;
        let result = check.check_open(&self.chain, self.name.as_slice(), now);
        match result.is_trusted() {
            true => Ok(()),
            false => {
                Err(result.reason().unwrap_or("the peer did not send a certificate").to_owned())
            }
        }
    }

    /// Returns when the next certificate of the chain expires after `now`, both in unix seconds.
    #[must_use]
    pub fn next_end(&self, now: i64) -> Option<i64> {
        self.chain.next_end(now)
    }
}

/// Checks the chain, the name and the signature of a peer. Returns what is needed to check the
/// chain again.
///
/// # Errors
/// What is wrong, in one line.
pub fn verify_tunnel_peer(
    trust: &LoadedTrust,
    proof: &TunnelProof<'_>,
    now: UnixTime,
) -> Result<TunnelPeerChain, String> {
    let chain: Vec<CertificateDer<'_>> =
        proof.certificates.iter().map(|der| CertificateDer::from(*der)).collect();
    let Some(leaf) = chain.first() else {
        return Err("the peer has sent no certificate".to_owned());
    };
    let server_name = match proof.name {
        TunnelPeerName::Host(name) => Some(name.to_owned()),
        TunnelPeerName::Address(address) => Some(address.to_string()),
        TunnelPeerName::Email(_) | TunnelPeerName::Subject(_) => None,
    };
    let name = server_name.clone().and_then(|name| ServerName::try_from(name).ok());
    let trust_name = trust.name.clone();
    let verify = match server_name {
        Some(name) => Verify::Full { trust: trust_name, server_name: Some(name) },
        None => Verify::Chain { trust: trust_name, server_name: None },
    };
    let run = dry_run::server(&verify, Some(trust), &chain, &[], now);
    run.map_err(|error| error.to_string())?.mapped?;
    if let TunnelPeerName::Email(name) = proof.name
        && !certificate_has_name(leaf, proof.name)
    {
        return Err(format!(
            "the subjectAltName of the peer's certificate does not contain {name}"
        ));
    }
    if let TunnelPeerName::Subject(subject) = proof.name
        && subject_of(leaf).as_deref() != Some(subject)
    {
        return Err(
            "the subject of the peer's certificate differs from the identity that the peer claims"
                .to_owned(),
        );
    }
    verify_signature(leaf, proof)?;
    let chain = Arc::new(PeerChain::new(leaf, chain.get(1..).unwrap_or_default(), None));
    Ok(TunnelPeerChain { chain, name })
}

/// Returns the subject of a certificate in DER; `None` if the certificate cannot be read.
#[must_use]
pub fn subject_of(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(certificate.subject().as_raw().to_vec())
}

/// Whether a certificate in DER has the name in its subjectAltName, or as its subject.
#[must_use]
pub fn certificate_has_name(certificate: &[u8], wanted: TunnelPeerName<'_>) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
    if let TunnelPeerName::Subject(subject) = wanted {
        return certificate.subject().as_raw() == subject;
    }
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return false };
    names.value.general_names.iter().any(|name| match (name, wanted) {
        (GeneralName::DNSName(name), TunnelPeerName::Host(host)) => is_for_host(name, host),
        (GeneralName::RFC822Name(name), TunnelPeerName::Email(email)) => {
            name.eq_ignore_ascii_case(email)
        }
        (GeneralName::IPAddress(bytes), TunnelPeerName::Address(IpAddr::V4(address))) => {
            *bytes == address.octets()
        }
        (GeneralName::IPAddress(bytes), TunnelPeerName::Address(IpAddr::V6(address))) => {
            *bytes == address.octets()
        }
        _ => false,
    })
}

/// Whether a DNS name of a certificate is the name of the host. A `*` stands for the first label.
fn is_for_host(name: &str, host: &str) -> bool {
    let below = |parent: &str| {
        host.split_once('.').is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(parent))
    };
    name.eq_ignore_ascii_case(host) || name.strip_prefix("*.").is_some_and(below)
}

fn verify_signature(leaf: &CertificateDer<'_>, proof: &TunnelProof<'_>) -> Result<(), String> {
    let certificate = EndEntityCert::try_from(leaf)
        .map_err(|error| format!("the peer's certificate: {}", error_of(error)))?;
    let mapping = algorithms().mapping;
    let of_scheme = mapping.iter().find(|(scheme, _)| *scheme == proof.scheme);
    let fits = |algorithm: &&dyn rustls_pki_types::SignatureVerificationAlgorithm| {
        certificate.verify_signature(*algorithm, proof.message, proof.signature).is_ok()
    };
    if of_scheme.is_some_and(|(_, known)| known.iter().any(fits)) {
        return Ok(());
    }
    Err("the peer's signature does not match its certificate".to_owned())
}

/// Signs with the key of an identity.
///
/// # Errors
/// The key does not support the scheme, or the signer refuses or cannot be reached.
pub fn sign_tunnel_auth(
    identity: &LoadedIdentity,
    scheme: Scheme,
    message: &[u8],
) -> Result<Vec<u8>, String> {
    let signer = identity.certified_key.key.choose_scheme(&[scheme]);
    let signer = signer.ok_or_else(|| format!("the private key does not support {scheme:?}"))?;
    signer.sign(message).map_err(|error| error.to_string())
}

/// Whether the key of an identity supports a scheme.
#[must_use]
pub fn supports_scheme(identity: &LoadedIdentity, scheme: Scheme) -> bool {
    identity.certified_key.key.choose_scheme(&[scheme]).is_some()
}

/// Returns the SHA-1 hashes of the keys of a trust's anchors, by which a peer chooses its
/// certificate (RFC 7296 section 3.7). Empty if there are more than `max`.
#[must_use]
pub fn authority_hashes(trust: &LoadedTrust, max: usize) -> Vec<[u8; 20]> {
    let roots = &trust.roots.roots;
    if roots.len() > max {
        return Vec::new();
    }
    let hash = |key: &[u8]| {
        // The anchor has the content of the sequence, and the hash is that of the whole.
        let whole = [&sequence_header(key.len())[..], key].concat();
        let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &whole);
        let mut bytes = [0; 20];
        bytes.copy_from_slice(hash.as_ref());
        bytes
    };
    roots.iter().map(|root| hash(&root.subject_public_key_info)).collect()
}

/// The header of a DER sequence with a content of so many bytes.
fn sequence_header(length: usize) -> Vec<u8> {
    let bytes = length.to_be_bytes();
    let used = &bytes[bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len() - 1)..];
    match used {
        [short] if *short < 0x80 => vec![0x30, *short],
        long => {
            // A length has at most eight bytes.
            let count = u8::try_from(long.len()).unwrap_or(u8::MAX);
            [&[0x30, 0x80 | count], long].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use rustls_pki_types::UnixTime;
    use tacit_core::policy::{FilePositions, Identity, SourcePosition};

    use super::*;
    use crate::credentials::load_identity;
    use crate::signer::KeyProvider;
    use crate::test_certificates::{Ca, Directory, Leaf, LeafKind, NAME, SanType};

    fn loaded(leaf: &Leaf) -> LoadedIdentity {
        let directory = Directory::new();
        directory.write("cert.pem", &leaf.cert_pem, 0o600);
        directory.write("key.pem", &leaf.key_pem, 0o600);
        let identity = Identity {
            cert: PathBuf::from("cert.pem"),
            key: PathBuf::from("key.pem"),
            position: SourcePosition::default(),
            file_positions: FilePositions::default(),
        };
        load_identity("gw", &identity, directory.path(), &KeyProvider::local()).unwrap()
    }

    fn check(ca: &Ca, leaf: &Leaf, name: TunnelPeerName<'_>) -> Result<(), String> {
        verified(ca, leaf, name).map(drop)
    }

    fn verified(ca: &Ca, leaf: &Leaf, name: TunnelPeerName<'_>) -> Result<TunnelPeerChain, String> {
        let identity = loaded(leaf);
        let message = b"octets";
        let scheme = Scheme::ECDSA_NISTP256_SHA256;
        let signature = sign_tunnel_auth(&identity, scheme, message).unwrap();
        let trust = LoadedTrust::of_roots("corp", ca.roots());
        let certificates: Vec<&[u8]> = leaf.chain.iter().map(AsRef::as_ref).collect();
        let signature = &signature;
        let certificates = &certificates;
        let proof = TunnelProof { certificates, name, scheme, message, signature };
        let changed = TunnelProof { message: b"octet5", ..proof };
        assert!(verify_tunnel_peer(&trust, &changed, UnixTime::now()).is_err());
        verify_tunnel_peer(&trust, &proof, UnixTime::now())
    }

    #[test]
    fn a_peer_needs_a_trusted_chain_its_name_and_its_key() {
        let ca = Ca::new("corp");
        let leaf = ca.leaf(LeafKind::Valid);
        assert_eq!(check(&ca, &leaf, TunnelPeerName::Host(NAME)), Ok(()));
        assert!(check(&ca, &leaf, TunnelPeerName::Host("other.example")).is_err());
        assert!(check(&ca, &leaf, TunnelPeerName::Address([192, 0, 2, 1].into())).is_err());
        assert!(check(&ca, &leaf, TunnelPeerName::Email("db@db.example")).is_err());
        let subject = subject_of(&leaf.chain[0]).unwrap();
        assert_eq!(check(&ca, &leaf, TunnelPeerName::Subject(&subject)), Ok(()));
        assert!(check(&ca, &leaf, TunnelPeerName::Subject(&subject[1..])).is_err());
        assert!(check(&Ca::new("other"), &leaf, TunnelPeerName::Subject(&subject)).is_err());
        assert!(check(&Ca::new("other"), &leaf, TunnelPeerName::Host(NAME)).is_err());
        let user = ca.leaf_made(|params| {
            let email = "db@db.example".try_into().unwrap();
            params.subject_alt_names = vec![SanType::Rfc822Name(email)];
        });
        assert_eq!(check(&ca, &user, TunnelPeerName::Email("DB@db.example")), Ok(()));
        assert!(check(&ca, &user, TunnelPeerName::Email("eve@db.example")).is_err());
    }

    #[test]
    fn a_certificate_has_the_names_of_its_subject_alt_name_and_its_subject() {
        let leaf = Ca::new("corp").leaf_made(|params| {
            params.subject_alt_names = vec![
                SanType::DnsName("GW.example".try_into().unwrap()),
                SanType::DnsName("*.corp.example".try_into().unwrap()),
                SanType::Rfc822Name("gw@corp.example".try_into().unwrap()),
                SanType::IpAddress([192, 0, 2, 1].into()),
                SanType::IpAddress([0xfd00, 0, 0, 0, 0, 0, 0, 1].into()),
            ];
        });
        let has = |name: TunnelPeerName<'_>| certificate_has_name(&leaf.chain[0], name);
        for (name, wanted) in [
            ("gw.example", true),
            ("a.corp.example", true),
            ("corp.example", false),
            ("b.a.corp.example", false),
            ("other.example", false),
            ("gw@corp.example", false),
        ] {
            assert_eq!(has(TunnelPeerName::Host(name)), wanted, "{name}");
        }
        assert!(has(TunnelPeerName::Email("GW@corp.example")));
        assert!(!has(TunnelPeerName::Email("gw.example")));
        for (address, wanted) in [("192.0.2.1", true), ("fd00::1", true), ("fd00::2", false)] {
            assert_eq!(has(TunnelPeerName::Address(address.parse().unwrap())), wanted, "{address}");
        }
        let subject = subject_of(&leaf.chain[0]).unwrap();
        assert!(has(TunnelPeerName::Subject(&subject)));
        assert!(!has(TunnelPeerName::Subject(&subject[1..])));
        assert!(!certificate_has_name(b"no certificate", TunnelPeerName::Host("gw.example")));
    }

    #[test]
    fn a_peer_that_was_trusted_is_not_when_its_certificate_has_expired() {
        let ca = Ca::new("corp");
        let trust = LoadedTrust::of_roots("corp", ca.roots());
        let end = 4_000_000_000;
        let at =
            |unix_s: i64| UnixTime::since_unix_epoch(Duration::from_secs(unix_s.unsigned_abs()));
        let host = verified(&ca, &ca.leaf_until(end), TunnelPeerName::Host(NAME)).unwrap();
        assert_eq!(host.next_end(end - 9), Some(end));
        assert_eq!(host.check_again(&trust, at(end - 9)), Ok(()));
        assert!(host.check_again(&trust, at(end + 1)).unwrap_err().contains("expired"));
        let other = LoadedTrust::of_roots("corp", Ca::new("corp").roots());
        assert!(host.check_again(&other, at(end - 9)).is_err());
        let user = ca.leaf_made(|params| {
            let email = "db@db.example".try_into().unwrap();
            params.subject_alt_names = vec![SanType::Rfc822Name(email)];
        });
        let user = verified(&ca, &user, TunnelPeerName::Email("db@db.example")).unwrap();
        assert_eq!(user.check_again(&trust, UnixTime::now()), Ok(()));
        assert!(user.check_again(&trust, at(end + 1_000_000_000)).is_err());
    }

    #[test]
    fn the_hash_of_an_anchor_is_that_of_its_whole_key() {
        let ca = Ca::new("corp");
        let trust = LoadedTrust::of_roots("corp", ca.roots());
        let der = ca.der();
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, certificate.public_key().raw);
        assert_eq!(authority_hashes(&trust, 32), [<[u8; 20]>::try_from(hash.as_ref()).unwrap()]);
        assert!(authority_hashes(&trust, 0).is_empty());
        for (length, header) in
            [(5, vec![0x30, 5]), (200, vec![0x30, 0x81, 200]), (294, vec![0x30, 0x82, 1, 38])]
        {
            assert_eq!(sequence_header(length), header);
        }
    }
}
