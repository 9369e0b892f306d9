//! Parses and checks the certificate names on the command line of `tacit ca`.
//!
//! tacit uses a name as common name and as subject alternative name of a certificate. tacit also
//! uses the name as file name and, with some characters replaced, as table name in the policy. So
//! the name must be valid for all four uses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use rcgen::SanType;
use rustls_pki_types::DnsName;

/// RFC 5280 appendix A.1, `ub-common-name`.
const COMMON_NAME_CHARS_MAX: usize = 64;

/// The longest URI, as the SPIFFE ID specification sets it.
const URI_BYTES_MAX: usize = 2048;

/// A subject alternative name, which peers compare with the expected name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum San {
    /// A host name; the first label may be `*`.
    Dns(rcgen::string::Ia5String),
    /// An address.
    Ip(IpAddr),
    /// A URI, such as the identity of a workload: `spiffe://corp.example/web`.
    Uri(rcgen::string::Ia5String),
}

impl San {
    pub(super) fn into_rcgen(self) -> SanType {
        match self {
            Self::Dns(name) => SanType::DnsName(name),
            Self::Ip(address) => SanType::IpAddress(address),
            Self::Uri(uri) => SanType::URI(uri),
        }
    }
}

impl FromStr for San {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Ip(address));
        }
        if let Some((scheme, rest)) = text.split_once("://") {
            return parse_uri(text, scheme, rest);
        }
        if let Some(rest) = text.strip_prefix("urn:").filter(|rest| is_name_of_urn(rest)) {
            return parse_uri(text, "urn", rest);
        }
        let host = text.strip_prefix("*.").unwrap_or(text);
        if DnsName::try_from(host).is_err() {
            return Err("expected a host name, an IP address, or a URI such as \
                        spiffe://corp.example/web or urn:example:web; write an international name \
                        in its xn-- form"
                .into());
        }
        let lower = text.to_ascii_lowercase();
        lower.try_into().map(Self::Dns).map_err(|_| "the name is not ASCII".into())
    }
}

/// Whether a URN has a namespace and a name in it after `urn:` (RFC 8141). Other URIs without an
/// authority are rejected, because `web:8443` would be one.
fn is_name_of_urn(rest: &str) -> bool {
    rest.split_once(':').is_some_and(|(namespace, name)| !namespace.is_empty() && !name.is_empty())
}

/// A URI with a scheme and an authority (RFC 5280 section 4.2.1.6), or a URN.
fn parse_uri(text: &str, scheme: &str, rest: &str) -> Result<San, String> {
    let mut of_scheme = scheme.chars();
    let is_scheme = of_scheme.next().is_some_and(|first| first.is_ascii_alphabetic())
        && of_scheme.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let is_uri = text.chars().all(|c| c.is_ascii_graphic() && !"\"<>\\^`{|}".contains(c));
    if !is_scheme || !is_uri || rest.is_empty() || rest.starts_with('/') {
        return Err("expected a URI such as spiffe://corp.example/web or urn:example:web".into());
    }
    if text.len() > URI_BYTES_MAX {
        return Err(format!("the URI is longer than {URI_BYTES_MAX} bytes"));
    }
    text.try_into().map(San::Uri).map_err(|_| "the URI is not ASCII".into())
}

/// The name of a certificate: a [`San`] that is valid as a file name.
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

    /// The name as a bare key of TOML: `10.0.0.7` becomes `10-0-0-7`.
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
            return Err("`ca` is the name of the CA's own files; use another name".into());
        }
        if text.starts_with('*') {
            return Err(
                "a name with a wildcard cannot be used as a file name: use another name, and add \
                 the wildcard name with --san"
                    .into(),
            );
        }
        match text.parse()? {
            San::Uri(_) => Err(
                "a URI cannot be used as a file name: use another name, and add the URI with --san"
                    .into(),
            ),
            san => Ok(Self { text, san }),
        }
    }
}

impl fmt::Display for LeafName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// Parses a common name that all programs accept.
pub(super) fn parse_common_name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.chars().any(char::is_control) {
        return Err(
            "the name is empty, or contains a control character such as a line break".into()
        );
    }
    if text.chars().count() > COMMON_NAME_CHARS_MAX {
        return Err(format!("the name is longer than {COMMON_NAME_CHARS_MAX} characters"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_files_or_hosts_are_refused() {
        for bad in
            ["", "../x", "a/b", "ca", "CA", "-x", "*.corp", "a b", "straße", "a..b", "spiffe://a/b"]
        {
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

    #[test]
    fn a_uri_has_a_scheme_and_an_authority_or_is_a_urn() {
        for good in [
            "spiffe://corp.example/ns/web",
            "urn+x-1.2://a",
            "https://a:1/b?c=%20#d",
            "urn:x:y",
            "urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        ] {
            assert!(matches!(good.parse(), Ok(San::Uri(_))), "{good}");
        }
        for bad in ["urn:x", "urn::y", "urn:x:", "urn:x:a b", "web:8443", "mailto:a@b.example"] {
            assert!(bad.parse::<San>().is_err(), "{bad} was accepted");
        }
        let long = format!("spiffe://a/{}", "x".repeat(URI_BYTES_MAX));
        for bad in ["://a", "1a://b", "spiffe://", "spiffe:///a", "a://b c", "a://ü", &long] {
            assert!(bad.parse::<San>().is_err(), "{bad} was accepted");
        }
    }
}
