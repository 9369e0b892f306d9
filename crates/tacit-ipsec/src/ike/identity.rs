//! Defines [`IkeIdentity`]: the name that a peer claims, and proves by its AUTH payload (RFC 7296
//! section 3.5).

use std::fmt;
use std::net::IpAddr;

use super::codec::IdPayload;
use super::distinguished_name;

/// The identity of a side.
#[derive(Clone, Debug)]
pub enum IkeIdentity {
    /// `ID_IPV4_ADDR` or `ID_IPV6_ADDR`.
    Address(IpAddr),
    /// `ID_FQDN`: a host name. Letters of both cases are equal.
    Fqdn(String),
    /// `ID_RFC822_ADDR`: user@host. Letters of both cases are equal.
    UserFqdn(String),
    /// `ID_DER_ASN1_DN`: a distinguished name in DER. Names with the same attributes are equal.
    DistinguishedName(Vec<u8>),
    /// `ID_KEY_ID`: bytes with a meaning that both sides know.
    KeyId(Vec<u8>),
}

impl IkeIdentity {
    /// Returns a distinguished name with these attributes: dotted object identifiers and texts.
    /// Returns `None` if an identifier is wrong, or the name is too long.
    #[must_use]
    pub fn of_attributes(attributes: &[(&str, &str)]) -> Option<Self> {
        distinguished_name::encode(attributes).map(Self::DistinguishedName)
    }

    pub(crate) fn to_payload(&self) -> IdPayload {
        let (kind, data) = match self {
            Self::Address(IpAddr::V4(address)) => (ID_IPV4, address.octets().to_vec()),
            Self::Address(IpAddr::V6(address)) => (ID_IPV6, address.octets().to_vec()),
            Self::Fqdn(name) => (ID_FQDN, name.clone().into_bytes()),
            Self::UserFqdn(name) => (ID_USER_FQDN, name.clone().into_bytes()),
            Self::DistinguishedName(name) => (ID_DN, name.clone()),
            Self::KeyId(id) => (ID_KEY, id.clone()),
        };
        IdPayload { kind, data }
    }

    /// Reads an identity. Returns `None` if its type is unknown or its data does not fit.
    pub(crate) fn from_payload(payload: &IdPayload) -> Option<Self> {
        let data = &payload.data;
        let text = || {
            let text = String::from_utf8(data.clone()).ok()?;
            (text.len() <= NAME_BYTES_MAX && text.chars().all(|c| c.is_ascii_graphic()))
                .then_some(text)
        };
        Some(match payload.kind {
            ID_IPV4 => Self::Address(<[u8; 4]>::try_from(data.as_slice()).ok()?.into()),
            ID_IPV6 => Self::Address(<[u8; 16]>::try_from(data.as_slice()).ok()?.into()),
            ID_FQDN => Self::Fqdn(text()?),
            ID_USER_FQDN => Self::UserFqdn(text()?),
            ID_DN => Self::DistinguishedName(data.clone()),
            ID_KEY => Self::KeyId(data.clone()),
            _ => return None,
        })
    }
}

impl PartialEq for IkeIdentity {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Address(mine), Self::Address(its)) => mine == its,
            (Self::Fqdn(mine), Self::Fqdn(its)) | (Self::UserFqdn(mine), Self::UserFqdn(its)) => {
                mine.eq_ignore_ascii_case(its)
            }
            (Self::DistinguishedName(mine), Self::DistinguishedName(its)) => {
                distinguished_name::are_equal(mine, its)
            }
            (Self::KeyId(mine), Self::KeyId(its)) => mine == its,
            _ => false,
        }
    }
}

impl Eq for IkeIdentity {}

impl fmt::Display for IkeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Fqdn(name) | Self::UserFqdn(name) => f.write_str(name),
            Self::DistinguishedName(bytes) => match distinguished_name::show(bytes) {
                Some(text) => f.write_str(&text),
                None => write!(f, "dn:{}", Hex(bytes)),
            },
            Self::KeyId(bytes) => write!(f, "key-id:{}", Hex(bytes)),
        }
    }
}

/// Bytes in hexadecimal, cut to a length that a log line can have.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(64).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

const ID_IPV4: u8 = 1;
const ID_FQDN: u8 = 2;
const ID_USER_FQDN: u8 = 3;
const ID_IPV6: u8 = 5;
const ID_DN: u8 = 9;
const ID_KEY: u8 = 11;
/// The longest name that is read.
const NAME_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_survive_the_wire_and_differ_by_type() {
        let every = [
            IkeIdentity::Address([10, 0, 0, 1].into()),
            IkeIdentity::Address("fd00::1".parse().unwrap()),
            IkeIdentity::Fqdn("gw.example".to_owned()),
            IkeIdentity::UserFqdn("a@gw.example".to_owned()),
            IkeIdentity::DistinguishedName(vec![0x30, 0]),
            IkeIdentity::KeyId(vec![0x30, 0]),
        ];
        for (at, identity) in every.iter().enumerate() {
            let again = IkeIdentity::from_payload(&identity.to_payload()).unwrap();
            for (other_at, other) in every.iter().enumerate() {
                assert_eq!(again == *other, at == other_at, "{again} {other}");
            }
        }
        let upper = IkeIdentity::Fqdn("GW.example".to_owned());
        assert_eq!(upper, every[2]);
    }

    #[test]
    fn names_with_control_characters_are_refused() {
        for data in [&b"a\nb"[..], b"a\0", &[0xff], &[b'a'; 256]] {
            let payload = IdPayload { kind: ID_FQDN, data: data.to_vec() };
            assert_eq!(IkeIdentity::from_payload(&payload), None);
        }
    }
}
