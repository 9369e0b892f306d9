//! Detects whether the first bytes of a stream are the beginning of a TLS connection.

/// The types of a handshake record and of a ClientHello (RFC 8446, sections 5.1 and 4).
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
/// The longest fragment of a record.
const FRAGMENT_BYTES_MAX: usize = 1 << 14;
/// The smallest length of a ClientHello: a version, a random and four lists.
const CLIENT_HELLO_BYTES_MIN: usize = 38;

/// Whether these are the first bytes of a ClientHello in its record. Fewer than nine bytes do not
/// count, because no client sends so few. Other handshake records do not count either.
#[must_use]
pub fn begins_client_hello(bytes: &[u8]) -> bool {
    let [HANDSHAKE, 3, 0..=4, high, low, CLIENT_HELLO, first, second, third, ..] = *bytes else {
        return false;
    };
    let fragment = usize::from(u16::from_be_bytes([high, low]));
    let hello = u32::from_be_bytes([0, first, second, third]) as usize;
    (4..=FRAGMENT_BYTES_MAX).contains(&fragment) && hello >= CLIENT_HELLO_BYTES_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_hello_is_known_by_its_first_bytes_and_nothing_else_is() {
        for version in 0..=4 {
            assert!(begins_client_hello(&[22, 3, version, 2, 0, 1, 0, 1, 252, 3, 3]));
        }
        // A ClientHello may be longer than its first record.
        assert!(begins_client_hello(&[22, 3, 1, 0, 64, 1, 0, 7, 0]));
        for other in [
            &b"GET / HTTP/1.1\r\n"[..],
            &[],
            &[22],
            &[22, 3, 1],
            &[22, 3, 1, 2, 0, 1, 0, 1],
            &[22, 3, 1, 2, 0, 2, 0, 1, 252],
            &[22, 3, 9, 2, 0, 1, 0, 1, 252],
            &[23, 3, 3, 2, 0, 1, 0, 1, 252],
            &[22, 3, 1, 255, 255, 1, 0, 1, 252],
            &[22, 3, 1, 2, 0, 1, 0, 0, 3],
        ] {
            assert!(!begins_client_hello(other), "{other:?}");
        }
    }
}
