//! Recognises which protocol a peer uses, such as HTTP or an old version of TLS. This module
//! examines only the first bytes that the peer sends.

/// The number of a peer's first bytes that are stored.
pub const FIRST_BYTES_MAX: usize = 16;

/// Returns the name of the plaintext protocol that begins with these bytes, if it is a known one.
#[must_use]
pub fn looks_like_plaintext(first_bytes: &[u8]) -> Option<&'static str> {
    const BEGINNINGS: [(&[u8], &str); 25] = [
        (b"GET ", "HTTP"),
        (b"HEAD ", "HTTP"),
        (b"POST ", "HTTP"),
        (b"PUT ", "HTTP"),
        (b"DELETE ", "HTTP"),
        (b"OPTIONS ", "HTTP"),
        (b"PATCH ", "HTTP"),
        (b"TRACE ", "HTTP"),
        (b"CONNECT ", "HTTP"),
        (b"PRI * HTTP/2", "HTTP"),
        (b"HTTP/1.", "HTTP"),
        // What servers answer to a request that is none: a page without a header.
        (b"<!DOCTYPE ", "HTTP"),
        (b"<!doctype ", "HTTP"),
        (b"<html>", "HTTP"),
        (b"SSH-", "SSH"),
        (b"EHLO ", "SMTP"),
        (b"HELO ", "SMTP"),
        (b"220 ", "SMTP or FTP"),
        (b"220-", "SMTP or FTP"),
        (b"+OK ", "POP3"),
        (b"* OK", "IMAP"),
        (b"PROXY ", "PROXY protocol v1"),
        (b"\r\n\r\n\0\r\nQUIT\n", "PROXY protocol v2"),
        (b"\0\0\0\x08\x04\xd2\x16\x2f", "PostgreSQL (an SSLRequest)"),
        (b"\xff\xfd", "Telnet"),
    ];
    let begins = |(beginning, _): &&(&[u8], &str)| first_bytes.starts_with(beginning);
    BEGINNINGS.iter().find(begins).map(|(_, protocol)| *protocol)
}

/// Returns the version in the peer's first hello, if the bytes contain it.
///
/// A TLS 1.3 hello has the value of TLS 1.2 here, and 1.3 in an extension after these bytes.
#[must_use]
pub fn offered_version(first_bytes: &[u8]) -> Option<&'static str> {
    let version = match first_bytes {
        // An SSL 2.0 CLIENT-HELLO: two bytes of length with the high bit set, type 1, version.
        [length, _, 1, 0, 2, ..] if *length >= 0x80 => return Some("SSL 2.0"),
        [length, _, 1, major, minor, ..] if *length >= 0x80 => (*major, *minor),
        // A record header of 5 bytes, then ClientHello (1) or ServerHello (2), its length, its
        // version.
        [0x16, 3, _, _, _, 1 | 2, _, _, _, major, minor, ..] => (*major, *minor),
        _ => return None,
    };
    match version {
        (3, 0) => Some("SSL 3.0"),
        (3, 1) => Some("TLS 1.0"),
        (3, 2) => Some("TLS 1.1"),
        (3, 3) => Some("TLS 1.2"),
        (3, 4) => Some("TLS 1.3"),
        _ => None,
    }
}
