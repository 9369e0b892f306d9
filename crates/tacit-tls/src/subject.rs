//! Reads the subject and the alternative names of a certificate for identity maps. An identity map
//! assigns an identity to each client.
//!
//! This module never truncates or omits names, because the map may deny a client by one of these
//! names. Instead, this module rejects a certificate that has too many names, or a name that is too
//! long.

use std::net::IpAddr;

use rustls_pki_types::CertificateDer;
use tacit_core::policy::map::distinguished::DnAttribute;
use tacit_core::policy::map::{CertificateName, CertificateSubject};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use super::facts::{NAMES_MAX, NotACertificate};

/// The largest length of a name that is compared.
const NAME_BYTES_MAX: usize = 1024;

/// Reads all names of a certificate, for a client with this address.
///
/// # Errors
/// The bytes are not a certificate, or a name is not text or is too long, or there are too many
/// names.
pub fn read_subject(
    leaf: &CertificateDer<'_>,
    address: Option<IpAddr>,
) -> Result<CertificateSubject, NotACertificate> {
    let (rest, certificate) = X509Certificate::from_der(leaf).map_err(|_| NotACertificate)?;
    let mut names = attributes(certificate.subject(), CertificateName::Subject)?;
    names.append(&mut attributes(certificate.issuer(), CertificateName::Issuer)?);
    let alternatives = certificate.subject_alternative_name().map_err(|_| NotACertificate)?;
    for name in alternatives.iter().flat_map(|extension| &extension.value.general_names) {
        names.extend(alternative(name)?);
    }
    let is_long = |name: &CertificateName| match name {
        CertificateName::Uri(text) | CertificateName::Dns(text) | CertificateName::Email(text) => {
            text.len() > NAME_BYTES_MAX
        }
        CertificateName::Subject(attribute) | CertificateName::Issuer(attribute) => {
            attribute.value.len() > NAME_BYTES_MAX
        }
        CertificateName::Ip(_) => false,
    };
    if !rest.is_empty() || names.len() > NAMES_MAX || names.iter().any(is_long) {
        return Err(NotACertificate);
    }
    Ok(CertificateSubject::new(names, address))
}

fn attributes(
    name: &X509Name<'_>,
    kind: fn(DnAttribute) -> CertificateName,
) -> Result<Vec<CertificateName>, NotACertificate> {
    let one = |attribute: &AttributeTypeAndValue<'_>| {
        let value = attribute.as_str().map_err(|_| NotACertificate)?.to_owned();
        Ok(kind(DnAttribute { oid: attribute.attr_type().to_id_string(), value }))
    };
    name.iter_attributes().map(one).collect()
}

/// Maps cannot contain names of other kinds.
fn alternative(name: &GeneralName<'_>) -> Result<Option<CertificateName>, NotACertificate> {
    Ok(Some(match name {
        GeneralName::URI(text) => CertificateName::Uri((*text).to_owned()),
        GeneralName::DNSName(text) => CertificateName::Dns((*text).to_owned()),
        GeneralName::RFC822Name(text) => CertificateName::Email((*text).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            CertificateName::Ip(address.map_err(|_| NotACertificate)?)
        }
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_certificates::{Ca, LeafKind, damaged_leaf};
    use proptest::prelude::*;
    use tacit_core::policy::IdentityMap;
    use tacit_core::policy::map::Mapped;
    use tacit_core::policy::parse;

    fn map(entries: &str) -> IdentityMap {
        let parsed = parse(&format!("version = 1\n{entries}"));
        parsed.policy.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics)).maps["m"].clone()
    }

    #[test]
    fn every_kind_of_name_can_be_asked_about() {
        let leaf = Ca::new("corp CA").leaf(LeafKind::Valid);
        let subject = read_subject(&leaf.chain[0], "10.7.0.9".parse().ok()).unwrap();
        for (condition, wanted) in [
            ("subject = \"CN=leaf\"", true),
            ("subject = \"CN=leaf, O=*\"", false),
            ("issuer = \"cn=Corp CA\"", true),
            ("dns = \"DB.example\"", true),
            ("dns = \"*.other\"", false),
            ("uri = \"spiffe://example/*\"", true),
            ("ip = \"10.7.0.0/24\"", true),
            ("ip = \"::1\"", true),
            ("email = \"*\"", false),
            ("address = \"10.7.0.0/16\"", true),
            ("address = \"10.8.0.0/16\"", false),
        ] {
            let map = map(&format!("[[map.m]]\n{condition}\nname = \"a\""));
            assert_eq!(matches!(map.find(&subject), Mapped::Entry(_)), wanted, "{condition}");
        }
    }

    #[test]
    fn another_leaf_of_the_same_ca_is_somebody_else() {
        let ca = Ca::new("corp CA");
        let map =
            map("[[map.m]]\nsubject = \"CN=b.example\"\nissuer = \"CN=corp CA\"\nname = \"b\"");
        for (name, wanted) in [("b.example", true), ("a.example", false), ("xb.example", false)] {
            let subject = read_subject(&ca.leaf_of(name).chain[0], None).unwrap();
            assert_eq!(matches!(map.find(&subject), Mapped::Entry(_)), wanted, "{name}");
        }
    }

    #[test]
    fn no_name_hides_behind_many_others_or_a_long_one() {
        let ca = Ca::new("corp CA");
        let names = |count: usize| {
            let names: Vec<_> = (0..count).map(|number| format!("{number}.example")).collect();
            read_subject(&ca.leaf_of_all(&names).chain[0], None)
        };
        // The subject and the issuer have one name each.
        assert!(names(NAMES_MAX - 2).is_ok());
        assert!(names(NAMES_MAX - 1).is_err());
        let long = |bytes: usize| read_subject(&ca.leaf_of(&"x".repeat(bytes)).chain[0], None);
        assert!(long(NAME_BYTES_MAX).is_ok());
        assert!(long(NAME_BYTES_MAX + 1).is_err());
    }

    #[test]
    fn what_is_cut_or_damaged_is_unreadable() {
        let leaf = Ca::new("corp CA").leaf(LeafKind::Valid);
        let der = leaf.chain[0].as_ref();
        for length in 0..der.len() {
            assert!(
                read_subject(&CertificateDer::from(&der[..length]), None).is_err(),
                "at {length}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            changes in prop::collection::vec((0usize..600, any::<u8>()), 1..8),
        ) {
            let map = map("[[map.m]]\nsubject = \"CN=*\"\nuri = \"*\"\nname = \"a\"");
            if let Ok(subject) = read_subject(&damaged_leaf(&changes), None) {
                let _ = map.find(&subject);
            }
        }
    }
}
