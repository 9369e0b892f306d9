//! The ServerHello of TLS 1.3, as far as it says what was negotiated (RFC 8446, section 4.1.3).

use std::fmt::{self, Display, Formatter};

const RECORD_HANDSHAKE: u8 = 22;
const SERVER_HELLO: u8 = 2;
const EXTENSION_PRE_SHARED_KEY: u16 = 41;
const EXTENSION_SUPPORTED_VERSIONS: u16 = 43;
const EXTENSION_KEY_SHARE: u16 = 51;
const TLS13: u16 = 0x0304;
/// How the random of a hello begins that asks the client to try again with another group.
const RETRY_RANDOM: [u8; 8] = [0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11];

/// What the server chose.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerHello {
    suite: u16,
    group: u16,
    /// It asked for a second hello, which costs a round trip.
    retried: bool,
    /// It took up an earlier session instead of proving itself anew.
    pub(super) resumed: bool,
}

impl ServerHello {
    /// Reads the first record of a stream; none unless it is the hello of TLS 1.3.
    pub(super) fn parse(stream: &[u8]) -> Option<Self> {
        let mut rest = stream;
        if take(&mut rest, 1)? != [RECORD_HANDSHAKE] {
            return None;
        }
        take(&mut rest, 4)?;
        if take(&mut rest, 1)? != [SERVER_HELLO] {
            return None;
        }
        take(&mut rest, 3 + 2)?;
        let retried = take(&mut rest, 32)?.starts_with(&RETRY_RANDOM);
        let session = take(&mut rest, 1)?[0];
        take(&mut rest, usize::from(session))?;
        let suite = number(&mut rest)?;
        take(&mut rest, 1)?;
        let length = number(&mut rest)?;
        let mut extensions = take(&mut rest, usize::from(length))?;
        let [mut version, mut group] = [None, None];
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
        (version == Some(TLS13)).then_some(Self { suite, group: group?, retried, resumed })
    }
}

impl Display for ServerHello {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("TLS 1.3, ")?;
        match self.suite {
            0x1301 => f.write_str("AES-128-GCM")?,
            0x1302 => f.write_str("AES-256-GCM")?,
            0x1303 => f.write_str("ChaCha20-Poly1305")?,
            other => write!(f, "suite {other:#06x}")?,
        }
        match self.group {
            0x001d => f.write_str(", X25519")?,
            0x0017 => f.write_str(", P-256")?,
            0x11ec => f.write_str(", X25519MLKEM768")?,
            other => write!(f, ", group {other:#06x}")?,
        }
        f.write_str(if self.retried { " after a retry" } else { "" })
    }
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
        let mut body = vec![2, 0, 0, 0, 3, 3];
        body.extend([9; 32]);
        body.extend([2, 0xaa, 0xbb]);
        body.extend(suite.to_be_bytes());
        body.extend([0, 0, 16]);
        body.extend([0, 43, 0, 2]);
        body.extend(version.to_be_bytes());
        body.extend([0, 51, 0, 6]);
        body.extend(group.to_be_bytes());
        body.extend([0, 2, 7, 7]);
        let mut record = vec![22, 3, 3, 0, 0];
        record.extend(body);
        record
    }

    #[test]
    fn suite_and_group_are_read() {
        let said = |bytes: &[u8]| ServerHello::parse(bytes).map(|hello| hello.to_string());
        let usual = hello(TLS13, 0x1301, 0x1d);
        assert_eq!(said(&usual).unwrap(), "TLS 1.3, AES-128-GCM, X25519");
        let mut retry = hello(TLS13, 0x1302, 0x17);
        retry[11..19].copy_from_slice(&RETRY_RANDOM);
        assert_eq!(said(&retry).unwrap(), "TLS 1.3, AES-256-GCM, P-256 after a retry");
        assert!(!ServerHello::parse(&usual).unwrap().resumed);
        let strange = said(&hello(TLS13, 0x1399, 0x9999)).unwrap();
        assert_eq!(strange, "TLS 1.3, suite 0x1399, group 0x9999");
    }

    #[test]
    fn a_session_taken_up_again_is_noticed() {
        let mut resumed = hello(TLS13, 0x1301, 0x1d);
        resumed[EXTENSIONS_LENGTH] += 6;
        resumed.extend([0, 41, 0, 2, 0, 0]);
        assert!(ServerHello::parse(&resumed).unwrap().resumed);
    }

    #[test]
    fn anything_else_is_not_a_hello() {
        let usual = hello(TLS13, 0x1301, 0x1d);
        assert_eq!(ServerHello::parse(&hello(0x0303, 0x1301, 0x1d)), None);
        assert_eq!(ServerHello::parse(b"HTTP/1.1 400 Bad Request\r\n\r\n"), None);
        for length in 0..usual.len() {
            assert_eq!(ServerHello::parse(&usual[..length]), None, "{length}");
        }
    }
}
