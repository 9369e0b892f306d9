//! Writes the TLS parameters of a client into a PROXY protocol header (HAProxy's
//! `proxy-protocol.txt`, section 2.2).
//!
//! The header reports the client certificate and its common name only if tacit has verified this
//! certificate. The reason is that some servers ignore the result of the verification (the field
//! `verify`).
//!
//! Limit: [`VALUE_BYTES_MAX`] for each text value, such as a name. A longer value is omitted and
//! not truncated, because a truncated name may be the name of another client.

/// The largest length of a text, so that headers stay within the limits of readers.
pub const VALUE_BYTES_MAX: usize = 512;

/// The TLS parameters of a client's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyTls {
    /// The version, such as `TLSv1.3`.
    pub version: String,
    /// The name of the cipher suite in IANA's registry.
    pub cipher: String,
    /// The negotiated ALPN protocol.
    pub alpn: Option<String>,
    /// The host name that the client sent as SNI.
    pub authority: Option<String>,
    /// The client's certificate, if it was verified.
    pub certificate: Option<ClientVerification>,
}

/// A client's certificate that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientVerification {
    /// The common name of its subject.
    pub common_name: Option<String>,
    /// Whether the certificate was presented on this connection, and not on an earlier one whose
    /// session is resumed.
    pub is_of_connection: bool,
}

impl ProxyTls {
    /// Appends the TLVs.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_text(out, TYPE_ALPN, self.alpn.as_deref());
        put_text(out, TYPE_AUTHORITY, self.authority.as_deref());
        let (client, verify) = match &self.certificate {
            None => (CLIENT_SSL, NOT_VERIFIED),
            Some(ClientVerification { is_of_connection: false, .. }) => {
                (CLIENT_SSL | CERT_SESSION, 0)
            }
            Some(ClientVerification { is_of_connection: true, .. }) => {
                (CLIENT_SSL | CERT_CONNECTION | CERT_SESSION, 0)
            }
        };
        let mut value = vec![client];
        value.extend_from_slice(&verify.to_be_bytes());
        put_text(&mut value, SUBTYPE_VERSION, Some(&self.version));
        let name = self.certificate.as_ref().and_then(|one| one.common_name.as_deref());
        put_text(&mut value, SUBTYPE_COMMON_NAME, name);
        put_text(&mut value, SUBTYPE_CIPHER, Some(&self.cipher));
        put(out, TYPE_SSL, &value);
    }
}

fn put_text(out: &mut Vec<u8>, kind: u8, text: Option<&str>) {
    if let Some(text) = text.filter(|text| text.len() <= VALUE_BYTES_MAX) {
        put(out, kind, text.as_bytes());
    }
}

/// Appends a type, two bytes of length, and a value. All values together are a few short texts.
fn put(out: &mut Vec<u8>, kind: u8, value: &[u8]) {
    let Ok(length) = u16::try_from(value.len()) else { return };
    out.push(kind);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(value);
}

const TYPE_ALPN: u8 = 0x01;
const TYPE_AUTHORITY: u8 = 0x02;
const TYPE_SSL: u8 = 0x20;
const SUBTYPE_VERSION: u8 = 0x21;
const SUBTYPE_COMMON_NAME: u8 = 0x22;
const SUBTYPE_CIPHER: u8 = 0x23;
const CLIENT_SSL: u8 = 0x01;
const CERT_CONNECTION: u8 = 0x02;
const CERT_SESSION: u8 = 0x04;
/// A value other than 0: OpenSSL's number for "unspecified", which readers display.
const NOT_VERIFIED: u32 = 1;
