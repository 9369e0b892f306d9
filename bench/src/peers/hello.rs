//! Parses the first messages of a TLS server, to determine the negotiated version and cipher suite
//! (RFC 8446, section 4.1.3; RFC 5246, section 7.4).

use std::fmt::{self, Display, Formatter};

const RECORD_HANDSHAKE: u8 = 22;
const SERVER_HELLO: u8 = 2;
const CERTIFICATE: u8 = 11;
const SERVER_KEY_EXCHANGE: u8 = 12;
const EXTENSION_PRE_SHARED_KEY: u16 = 41;
const EXTENSION_SUPPORTED_VERSIONS: u16 = 43;
const EXTENSION_KEY_SHARE: u16 = 51;
const TLS12: u16 = 0x0303;
const TLS13: u16 = 0x0304;
/// The random of a HelloRetryRequest, which asks for another key share (RFC 8446, section 4.1.3).
const RETRY_RANDOM: [u8; 8] = [0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11];

/// What the server negotiated.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerHello {
    version: u16,
    suite: u16,
    /// The group of the key exchange; `None` in a resumed session of TLS 1.2.
    group: Option<u16>,
    /// Whether the server sent a HelloRetryRequest, which costs a round trip.
    retried: bool,
    /// Whether the server resumed a session.
    pub(super) resumed: bool,
}

impl ServerHello {
    /// Parses the first flight; `None` unless it starts with a complete ServerHello of TLS 1.3 or
    /// 1.2.
    pub(super) fn parse(stream: &[u8]) -> Option<Self> {
        let flight = handshake(stream);
        let mut rest = &flight[..];
        let first = message(&mut rest).filter(|first| first.kind == SERVER_HELLO)?;
        let mut hello = Self::hello(first.body)?;
        if hello.version == TLS12 {
            hello.resumed = true;
            while let Some(Message { kind, mut body }) = message(&mut rest) {
                match kind {
                    CERTIFICATE => hello.resumed = false,
                    // The curve type `named_curve`, then the group.
                    SERVER_KEY_EXCHANGE if take(&mut body, 1)? == [3] => {
                        hello.group = number(&mut body);
                    }
                    _ => {}
                }
            }
        }
        Some(hello)
    }

    fn hello(mut rest: &[u8]) -> Option<Self> {
        let legacy = number(&mut rest)?;
        let retried = take(&mut rest, 32)?.starts_with(&RETRY_RANDOM);
        let session = take(&mut rest, 1)?[0];
        take(&mut rest, usize::from(session))?;
        let suite = number(&mut rest)?;
        take(&mut rest, 1)?;
        let length = number(&mut rest).unwrap_or(0);
        let mut extensions = take(&mut rest, usize::from(length))?;
        let mut version = None;
        let mut group = None;
        let mut resumed = false;
        while !extensions.is_empty() {
            let kind = number(&mut extensions)?;
            let length = number(&mut extensions)?;
            let mut body = take(&mut extensions, usize::from(length))?;
            match kind {
                EXTENSION_SUPPORTED_VERSIONS => version = number(&mut body),
                EXTENSION_KEY_SHARE => group = number(&mut body),
                EXTENSION_PRE_SHARED_KEY => resumed = true,
                _ => {}
            }
        }
        match version {
            Some(TLS13) => group.is_some().then_some(TLS13),
            None => Some(legacy).filter(|legacy| *legacy == TLS12),
            Some(_) => None,
        }
        .map(|version| Self { version, suite, group, retried, resumed })
    }
}

impl Display for ServerHello {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(if self.version == TLS13 { "TLS 1.3, " } else { "TLS 1.2, " })?;
        match self.suite {
            0x1301 | 0xc02b => f.write_str("AES-128-GCM")?,
            0x1302 | 0xc02c => f.write_str("AES-256-GCM")?,
            0x1303 | 0xcca9 => f.write_str("ChaCha20-Poly1305")?,
            other => write!(f, "suite {other:#06x}")?,
        }
        match self.group {
            Some(0x001d) => f.write_str(", X25519")?,
            Some(0x0017) => f.write_str(", P-256")?,
            Some(0x11ec) => f.write_str(", X25519MLKEM768")?,
            Some(other) => write!(f, ", group {other:#06x}")?,
            None => {}
        }
        f.write_str(if self.resumed { ", resumed" } else { "" })?;
        f.write_str(if self.retried { " after a retry" } else { "" })
    }
}

/// Joins the handshake messages of the first records.
fn handshake(mut stream: &[u8]) -> Vec<u8> {
    let mut flight = Vec::new();
    while let Some(&[RECORD_HANDSHAKE, _, _, high, low]) = take(&mut stream, 5) {
        let length = usize::from(u16::from_be_bytes([high, low]));
        let there = length.min(stream.len());
        let body = take(&mut stream, there).unwrap_or_default();
        flight.extend_from_slice(body);
    }
    flight
}

/// A handshake message.
struct Message<'a> {
    kind: u8,
    body: &'a [u8],
}

/// Takes the next handshake message. A truncated message counts with the available bytes, except
/// the first: the ServerHello must be complete.
fn message<'a>(rest: &mut &'a [u8]) -> Option<Message<'a>> {
    let &[kind, high, middle, low] = take(rest, 4)? else { return None };
    let length = usize::try_from(u32::from_be_bytes([0, high, middle, low])).ok()?;
    if length > rest.len() && kind == SERVER_HELLO {
        return None;
    }
    let there = length.min(rest.len());
    Some(Message { kind, body: take(rest, there)? })
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

fn number(rest: &mut &[u8]) -> Option<u16> {
    take(rest, 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The low byte of the length of the extensions.
    const EXTENSIONS_LENGTH: usize = 50;

    fn hello(version: u16, suite: u16, group: u16) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 58, 3, 3];
        body.extend([9; 32]);
        body.extend([2, 0xaa, 0xbb]);
        body.extend(suite.to_be_bytes());
        body.extend([0, 0, 16]);
        body.extend([0, 43, 0, 2]);
        body.extend(version.to_be_bytes());
        body.extend([0, 51, 0, 6]);
        body.extend(group.to_be_bytes());
        body.extend([0, 2, 7, 7]);
        record(&body)
    }

    fn record(body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&[22, 3, 3][..], &length, body].concat()
    }

    fn described(bytes: &[u8]) -> Option<String> {
        ServerHello::parse(bytes).map(|hello| hello.to_string())
    }

    #[test]
    fn suite_and_group_are_read() {
        let usual = hello(TLS13, 0x1301, 0x1d);
        assert_eq!(described(&usual).unwrap(), "TLS 1.3, AES-128-GCM, X25519");
        let mut retry = hello(TLS13, 0x1302, 0x17);
        retry[11..19].copy_from_slice(&RETRY_RANDOM);
        assert_eq!(described(&retry).unwrap(), "TLS 1.3, AES-256-GCM, P-256 after a retry");
        let strange = described(&hello(TLS13, 0x1399, 0x9999)).unwrap();
        assert_eq!(strange, "TLS 1.3, suite 0x1399, group 0x9999");
    }

    #[test]
    fn a_resumed_session_is_detected() {
        let usual = hello(TLS13, 0x1301, 0x1d);
        assert!(!ServerHello::parse(&usual).unwrap().resumed);
        let mut body = usual[5..].to_vec();
        // The lengths of the message and of its extensions.
        body[3] += 6;
        body[EXTENSIONS_LENGTH - 5] += 6;
        body.extend([0, 41, 0, 2, 0, 0]);
        assert_eq!(described(&record(&body)).unwrap(), "TLS 1.3, AES-128-GCM, X25519, resumed");
    }

    #[test]
    fn in_tls_1_2_the_group_follows_and_no_certificate_means_resumed() {
        let mut body = vec![2, 0, 0, 38, 3, 3];
        body.extend([9; 32]);
        body.extend([0, 0xc0, 0x2b, 0]);
        let full =
            [record(&body), record(&[11, 0, 0, 2, 1, 1]), record(&[12, 0, 0, 4, 3, 0, 0x1d, 0])];
        assert_eq!(described(&full.concat()).unwrap(), "TLS 1.2, AES-128-GCM, X25519");
        let short = [record(&body), vec![20, 3, 3, 0, 1, 1]];
        assert_eq!(described(&short.concat()).unwrap(), "TLS 1.2, AES-128-GCM, resumed");
    }

    #[test]
    fn anything_else_is_not_a_hello() {
        let usual = hello(TLS13, 0x1301, 0x1d);
        assert_eq!(ServerHello::parse(&hello(0x0302, 0x1301, 0x1d)), None);
        assert_eq!(ServerHello::parse(b"HTTP/1.1 400 Bad Request\r\n\r\n"), None);
        for length in 0..usual.len() {
            assert_eq!(ServerHello::parse(&usual[..length]), None, "{length}");
        }
    }
}
