//! Parses lines and numbered replies of SMTP and FTP.
//!
//! A received line may end with CR LF or with LF. A forwarded line always ends with CR LF. A CR or
//! NUL elsewhere is an error. Otherwise, two programs could split the same bytes into different
//! commands.

use super::machine::StarttlsError;
use super::side::StarttlsSide;

/// The largest length of a line: an AUTH command that contains its response (RFC 4954 section 4).
pub(super) const LINE_BYTES_MAX: usize = 12 * 1024;
/// The largest length of a reply with all its lines.
pub(super) const REPLY_BYTES_MAX: usize = 16 * 1024;

/// Takes the first line without its end; `None` if it is incomplete.
pub(super) fn take_line(
    input: &mut Vec<u8>,
    from: StarttlsSide,
) -> Result<Option<Vec<u8>>, StarttlsError> {
    let end = input.iter().position(|byte| *byte == b'\n');
    if end.unwrap_or(input.len()) > LINE_BYTES_MAX {
        return Err(StarttlsError::TooLong(from, "a line"));
    }
    let Some(end) = end else { return Ok(None) };
    let mut line: Vec<u8> = input.drain(..=end).collect();
    line.pop();
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    if line.iter().any(|byte| matches!(byte, b'\r' | 0)) {
        return Err(StarttlsError::ProtocolViolation(from, "a line contains CR or NUL"));
    }
    Ok(Some(line))
}

/// Returns the command of a line in capital letters.
pub(super) fn verb(line: &[u8]) -> String {
    let word = line.split(|byte| matches!(byte, b' ' | b'\t')).next().unwrap_or_default();
    String::from_utf8_lossy(word).to_ascii_uppercase()
}

/// Returns the text after the command, which may be empty.
pub(super) fn argument(line: &[u8]) -> &[u8] {
    let at = line.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    line.get(at..).unwrap_or_default().trim_ascii()
}

/// A complete reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerReply {
    /// Its code.
    pub(super) code: u16,
    /// The lines as received, without their ends; at least one.
    pub(super) lines: Vec<Vec<u8>>,
}

impl ServerReply {
    /// Appends the reply as it was received.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for line in &self.lines {
            out.extend_from_slice(line);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Returns the texts of its lines, without the code.
    pub(super) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.lines.iter().map(|line| match number(line) {
            Some(_) => line.get(4..).unwrap_or_default(),
            None => line.as_slice(),
        })
    }
}

/// Collects the lines of a reply (RFC 5321 section 4.2.1, RFC 959 section 4.2).
#[derive(Debug, Default)]
pub(super) struct ReplyReader {
    lines: Vec<Vec<u8>>,
    bytes: usize,
}

impl ReplyReader {
    /// Takes lines until a reply is complete; `None` if it is incomplete.
    pub(super) fn take(
        &mut self,
        input: &mut Vec<u8>,
        from: StarttlsSide,
    ) -> Result<Option<ServerReply>, StarttlsError> {
        while let Some(line) = take_line(input, from)? {
            self.bytes += line.len() + 2;
            if self.bytes > REPLY_BYTES_MAX {
                return Err(StarttlsError::TooLong(from, "a reply"));
            }
            let first = self.lines.first().unwrap_or(&line);
            let Some(code) = number(first) else {
                return Err(StarttlsError::ProtocolViolation(
                    from,
                    "a reply does not begin with a number",
                ));
            };
            let is_last = number(&line) == Some(code) && line.get(3) != Some(&b'-');
            self.lines.push(line);
            if is_last {
                let Self { lines, .. } = std::mem::take(self);
                return Ok(Some(ServerReply { code, lines }));
            }
        }
        Ok(None)
    }

    /// Whether there is no incomplete reply.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// Parses the code at the beginning of a line: three digits, followed by a space, a hyphen or the
/// end.
fn number(line: &[u8]) -> Option<u16> {
    let (digits, rest) = line.split_first_chunk::<3>()?;
    if !digits.iter().all(u8::is_ascii_digit) || !matches!(rest.first(), None | Some(b' ' | b'-')) {
        return None;
    }
    Some(digits.iter().fold(0, |number, digit| number * 10 + u16::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(text: &str) -> Result<Option<ServerReply>, StarttlsError> {
        ReplyReader::default().take(&mut text.as_bytes().to_vec(), StarttlsSide::Program)
    }

    #[test]
    fn a_reply_ends_with_its_own_number_and_a_space() {
        let whole = "250-one\r\n250-two\r\n250 three\r\n";
        let read = reply(whole).unwrap().unwrap();
        assert_eq!((read.code, read.lines.len()), (250, 3));
        let mut again = Vec::new();
        read.write(&mut again);
        assert_eq!(again, whole.as_bytes());
        assert_eq!(read.texts().collect::<Vec<_>>(), [&b"one"[..], b"two", b"three"]);
        assert_eq!(reply("220\r\n").unwrap().unwrap().code, 220);
        // RFC 959 section 4.2: the lines between may have any content, including other numbers.
        let ftp = reply("211-features\r\n AUTH TLS\r\n212 no\r\n211 end\r\n").unwrap().unwrap();
        assert_eq!(ftp.lines.len(), 4);
        assert_eq!(ftp.texts().nth(1), Some(&b" AUTH TLS"[..]));
        assert_eq!(reply("250-one\r\n250").unwrap(), None);
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let garbled = |text| {
            matches!(reply(text), Err(StarttlsError::ProtocolViolation(StarttlsSide::Program, _)))
        };
        assert!(garbled("hello\r\n") && garbled("22 x\r\n") && garbled("2200 x\r\n"));
        assert!(garbled("220 a\rb\r\n") && garbled("220 a\0\r\n"));
        let long = "250-x\r\n".repeat(REPLY_BYTES_MAX / 7 + 1);
        assert!(matches!(reply(&long), Err(StarttlsError::TooLong(..))));
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        assert!(matches!(reply(&long), Err(StarttlsError::TooLong(..))));
    }

    #[test]
    fn a_line_is_a_command_and_an_argument() {
        assert_eq!(verb(b"ehlo mail.example"), "EHLO");
        assert_eq!(argument(b"ehlo \t mail.example "), b"mail.example");
        assert_eq!((verb(b"QUIT").as_str(), argument(b"QUIT")), ("QUIT", &b""[..]));
    }
}
