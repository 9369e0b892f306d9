//! The names a certificate is made for, checked when the command line is read.
//!
//! A leaf's name is four things at once: common name, subject alternative name, file name and, with
//! its odd characters replaced, a bare key of the policy. So it is held to what all four can be.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use rcgen::SanType;
use rustls_pki_types::DnsName;

/// RFC 5280 appendix A.1, `ub-common-name`.
const COMMON_NAME_CHARS_MAX: usize = 64;

/// A subject alternative name: what a peer is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum San {
    /// A host name; the first label may be `*`.
    Dns(rcgen::string::Ia5String),
    /// An address.
    Ip(IpAddr),
}

impl San {
    pub(super) fn into_rcgen(self) -> SanType {
        match self {
            Self::Dns(name) => SanType::DnsName(name),
            Self::Ip(address) => SanType::IpAddress(address),
        }
    }
}

impl FromStr for San {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        let host = text.strip_prefix("*.").unwrap_or(text);
        if DnsName::try_from(host).is_err() {
            return Err("neither a host name nor an IP address; \
                        international names are written in their xn-- form"
                .into());
        }
        let lower = text.to_ascii_lowercase();
        lower.try_into().map(Self::Dns).map_err(|_| "not ASCII".into())
    }
}

/// The name of a leaf: a [`San`] that can be a file name too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeafName {
    text: String,
    san: San,
}

impl LeafName {
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn san(&self) -> San {
        self.san.clone()
    }

    /// A word that needs no quotes in a policy: `10.0.0.7` is `10-0-0-7`.
    pub(super) fn bare_key(&self) -> String {
        let bare = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        self.text.chars().map(bare).collect()
    }
}

impl FromStr for LeafName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = parse_common_name(text)?.to_ascii_lowercase();
        if text == "ca" {
            return Err("ca.pem and ca.key are the CA's own; choose another name".into());
        }
        if text.starts_with('*') {
            return Err("a wildcard is not a file name; pass it with --san".into());
        }
        let san = text.parse()?;
        Ok(Self { text, san })
    }
}

impl fmt::Display for LeafName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// A common name that every reader of certificates takes.
pub(super) fn parse_common_name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.chars().any(char::is_control) {
        return Err("must be one line and not empty".into());
    }
    if text.chars().count() > COMMON_NAME_CHARS_MAX {
        return Err(format!("longer than {COMMON_NAME_CHARS_MAX} characters"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_files_or_hosts_are_refused() {
        for bad in ["", "../x", "a/b", "ca", "CA", "-x", "*.corp", "a b", "straße", "a..b"] {
            assert!(bad.parse::<LeafName>().is_err(), "{bad:?} was accepted");
        }
        assert!("x".repeat(65).parse::<LeafName>().is_err());
    }

    #[test]
    fn a_name_is_a_host_or_an_address() {
        assert_eq!("::1".parse::<LeafName>().unwrap().san(), San::Ip("::1".parse().unwrap()));
        let web: LeafName = "Web.Corp.Example".parse().unwrap();
        assert_eq!(web.san(), "web.corp.example".parse().unwrap());
        assert_eq!(web.bare_key(), "web-corp-example");
        assert!("*.corp.example".parse::<San>().is_ok());
    }
}
