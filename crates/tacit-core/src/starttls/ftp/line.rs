//! Splits the bytes of an FTP control connection into lines.
//!
//! A control connection is a Telnet stream (RFC 959 section 5.3.1). A Telnet command begins with
//! the byte IAC (255). This module removes Telnet commands and does not answer them (RFC 854). Two
//! IAC bytes are not a command, but stand for one data byte 255. This module keeps both bytes,
//! because tacit forwards the line to the other end, which also expects two bytes.

/// The largest length of a line without its end: a command and a path of 4,096 doubled bytes.
pub const LINE_BYTES_MAX: usize = 8448;
/// The largest number of pending bytes of one side. Above it, the side is not read.
pub(super) const HELD_BYTES_MAX: usize = 64 * 1024;

const IAC: u8 = 255;
const DONT: u8 = 254;
const WILL: u8 = 251;
const SE: u8 = 240;

/// A line is longer than [`LINE_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Unparsed input of one side.
#[derive(Debug, Default)]
pub(super) struct LineBuffer {
    bytes: Vec<u8>,
    /// Bytes before this offset were taken. They are removed when more input arrives, because
    /// removing them after each line would move all other bytes each time.
    begin: usize,
    telnet: Telnet,
    /// No line end before this offset.
    searched: usize,
}

/// The state of the Telnet parser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Telnet {
    #[default]
    Data,
    Command,
    Option,
}

impl LineBuffer {
    /// Appends received bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.begin);
        self.searched -= std::mem::take(&mut self.begin);
        for &byte in bytes {
            self.telnet = match (self.telnet, byte) {
                (Telnet::Data, IAC) => Telnet::Command,
                (Telnet::Command, IAC) => {
                    self.bytes.extend([IAC, IAC]);
                    Telnet::Data
                }
                (Telnet::Command, WILL..=DONT) => Telnet::Option,
                (Telnet::Command, SE..WILL) | (Telnet::Option, _) => Telnet::Data,
                // After IAC this byte is data. The byte of the command itself was urgent and has
                // been removed.
                (Telnet::Data | Telnet::Command, _) => {
                    self.bytes.push(byte);
                    Telnet::Data
                }
            };
        }
    }

    /// Whether so many bytes are pending that no more may be read.
    pub(super) fn is_full(&self) -> bool {
        self.waiting().len() >= HELD_BYTES_MAX
    }

    /// Whether no bytes are pending, not even a part of a line.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting().is_empty() && self.telnet == Telnet::Data
    }

    /// Whether a complete line is pending.
    pub(super) fn has_line(&self) -> bool {
        self.waiting().contains(&b'\n')
    }

    /// Drops all pending bytes.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the first line without its end, and does not remove it; `None` if it is incomplete.
    pub(super) fn peek(&mut self) -> Result<Option<&[u8]>, TooLong> {
        let Some(end) = self.end() else {
            return if self.waiting().len() > LINE_BYTES_MAX { Err(TooLong) } else { Ok(None) };
        };
        let line = trimmed(self.bytes.get(self.begin..end).unwrap_or_default());
        if line.len() > LINE_BYTES_MAX { Err(TooLong) } else { Ok(Some(line)) }
    }

    /// Takes the first line without its end.
    pub(super) fn pop(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let line = self.peek()?.map(<[u8]>::to_vec);
        if line.is_some() {
            self.searched += 1;
            self.begin = self.searched;
        }
        Ok(line)
    }

    fn waiting(&self) -> &[u8] {
        self.bytes.get(self.begin..).unwrap_or_default()
    }

    /// Finds the end of the first line, and stores the search position.
    fn end(&mut self) -> Option<usize> {
        let rest = self.bytes.get(self.searched..).unwrap_or_default();
        match rest.iter().position(|byte| *byte == b'\n') {
            Some(at) => {
                self.searched += at;
                Some(self.searched)
            }
            None => {
                self.searched = self.bytes.len();
                None
            }
        }
    }
}

/// Returns the line without its CR and without the rest of a Synch at its beginning.
fn trimmed(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let begin = line.iter().position(|byte| *byte < SE).unwrap_or(line.len());
    match line.get(..begin).is_some_and(|left| left.iter().all(|byte| *byte != IAC)) {
        true => line.get(begin..).unwrap_or_default(),
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = LineBuffer::default();
        lines.push(bytes);
        std::iter::from_fn(|| lines.pop().unwrap()).collect()
    }

    #[test]
    fn lines_end_in_lf_and_may_come_with_a_cr() {
        assert_eq!(lines(b"USER a\r\nPASS b\nQU"), [&b"USER a"[..], b"PASS b"]);
    }

    #[test]
    fn telnet_commands_are_no_part_of_a_line() {
        for input in [
            &b"\xff\xf4\xff\xf2ABOR\r\n"[..],
            // The urgent byte is read separately: either the first IAC or the DM.
            b"\xf4\xff\xf2ABOR\r\n",
            b"\xff\xf4\xffABOR\r\n",
            b"\xff\xfb\x0aAB\xff\xfd\x01OR\r\n",
        ] {
            assert_eq!(lines(input), [b"ABOR"], "{input:?}");
        }
        assert_eq!(lines(b"RETR \xff\xffname\r\n"), [b"RETR \xff\xffname"]);
    }

    #[test]
    fn a_line_has_a_limit_whether_or_not_it_has_an_end() {
        let mut whole = vec![b'a'; LINE_BYTES_MAX];
        whole.extend(b"\r\n");
        assert_eq!(lines(&whole).len(), 1);
        for end in [&b""[..], b"\n"] {
            let mut lines = LineBuffer::default();
            lines.push(&[vec![b'a'; LINE_BYTES_MAX + 1], end.to_vec()].concat());
            assert_eq!(lines.pop(), Err(TooLong));
        }
    }
}
