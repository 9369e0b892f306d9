//! Determines which lines belong to one FTP reply.

/// The state of the reply that is being received.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyTracker {
    /// The code of a multi-line reply, until its last line.
    open: Option<u16>,
}

/// The position of a line in its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyPart {
    /// A single-line reply with this code.
    Whole(u16),
    /// The first of several lines.
    First(u16),
    /// A line between the first and the last.
    Middle(u16),
    /// The last of several lines.
    Last(u16),
    /// A line that is not part of a reply.
    Stray,
}

impl ReplyPart {
    /// Returns the code of the reply that this line completes.
    pub(super) fn complete(self) -> Option<u16> {
        match self {
            Self::Whole(code) | Self::Last(code) => Some(code),
            Self::First(_) | Self::Middle(_) | Self::Stray => None,
        }
    }
}

impl ReplyTracker {
    /// Classifies the next line (RFC 959 section 4.2).
    pub(super) fn take(&mut self, line: &[u8]) -> ReplyPart {
        let code = line.first_chunk::<3>().filter(|code| code.iter().all(u8::is_ascii_digit));
        let code =
            code.map(|code| code.iter().fold(0, |n, digit| n * 10 + u16::from(digit - b'0')));
        let after = line.get(3);
        match (self.open, code) {
            (Some(open), Some(code)) if code == open && after.is_none_or(|byte| *byte == b' ') => {
                self.open = None;
                ReplyPart::Last(code)
            }
            (Some(open), _) => ReplyPart::Middle(open),
            (None, Some(code)) if after == Some(&b'-') => {
                self.open = Some(code);
                ReplyPart::First(code)
            }
            (None, Some(code)) if after.is_none_or(|byte| *byte == b' ') => ReplyPart::Whole(code),
            (None, _) => ReplyPart::Stray,
        }
    }
}
