//! How the lines of a reply hang together.

/// The reply that is coming.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyTracker {
    /// The code of a reply of several lines, until its last one.
    open: Option<u16>,
}

/// What a line is of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyPart {
    /// The whole of it, with its code.
    Whole(u16),
    /// The first of several.
    First(u16),
    /// One between.
    Middle(u16),
    /// The last of several.
    Last(u16),
    /// Of none.
    Stray,
}

impl ReplyPart {
    /// The code of a reply that is complete with this.
    pub(super) fn complete(self) -> Option<u16> {
        match self {
            Self::Whole(code) | Self::Last(code) => Some(code),
            Self::First(_) | Self::Middle(_) | Self::Stray => None,
        }
    }
}

impl ReplyTracker {
    /// Says what the next line is (RFC 959 section 4.2).
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
