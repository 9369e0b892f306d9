//! What the two ends say to each other. The client leads; all numbers are big-endian.
//!
//! ```text
//! client: "TW", version, kind, two numbers of 8 bytes; then by kind:
//!   exchange  REQUEST REPLY   requests and replies of these sizes in turn, until the client ends
//!   out       0 0             the client sends a stream; the server answers with its length
//!   in        BYTES WATCHED   the server sends a stream of that length
//!   in-for    MS WATCHED      the server sends a stream for so many milliseconds
//! a stream: blocks of LENGTH (8 bytes) and as many bytes; a block of none ends it; where WATCHED
//!           is 1, COUNT (8 bytes) and as many samples of the sender's socket follow
//! ```
//! After a stream the client may ask for something else. A reply repeats the first bytes of its
//! request, at most eight, which count: whoever mixes up or loses bytes on the way is found out.
//! The bytes are not compared beyond that.

/// Bytes of what a client begins with.
pub(super) const HEADER_BYTES: usize = 20;
/// The longest request or reply.
pub(super) const MESSAGE_BYTES_MAX: u64 = 16 << 20;
/// The longest stream.
pub(super) const STREAM_BYTES_MAX: u64 = 1 << 40;
/// The longest stream in milliseconds: a day.
pub(super) const STREAM_MS_MAX: u64 = 86_400_000;
/// Bytes of a block; all but the last are as long.
pub(super) const BLOCK_BYTES: usize = 256 * 1024;
/// How many bytes of a request come back in its reply.
pub(super) const NUMBER_BYTES: usize = 8;

const MAGIC: [u8; 3] = [b'T', b'W', 1];

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Requests and replies.
    Exchange { request_bytes: u64, reply_bytes: u64 },
    /// A stream to the server.
    Out,
    /// A stream of so many bytes from the server.
    In { bytes: u64, watched: bool },
    /// A stream from the server for so long.
    InFor { ms: u64, watched: bool },
}

impl Wish {
    /// What a client sends.
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let (kind, first, second) = match self {
            Self::Exchange { request_bytes, reply_bytes } => (1, request_bytes, reply_bytes),
            Self::Out => (2, 0, 0),
            Self::In { bytes, watched } => (3, bytes, watched.into()),
            Self::InFor { ms, watched } => (4, ms, watched.into()),
        };
        let mut header = [0; HEADER_BYTES];
        header[..3].copy_from_slice(&MAGIC);
        header[3] = kind;
        header[4..12].copy_from_slice(&first.to_be_bytes());
        header[12..].copy_from_slice(&second.to_be_bytes());
        header
    }

    /// What a server understands; `None` if it is nothing, or too much.
    pub(super) fn decode(header: &[u8; HEADER_BYTES]) -> Option<Self> {
        let number = |at: usize| header.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
        let (first, second) = (number(4)?, number(12)?);
        let message = 1..=MESSAGE_BYTES_MAX;
        match header[3] {
            _ if header[..3] != MAGIC => None,
            1 if message.contains(&first) && message.contains(&second) => {
                Some(Self::Exchange { request_bytes: first, reply_bytes: second })
            }
            2 if (first, second) == (0, 0) => Some(Self::Out),
            3 if first <= STREAM_BYTES_MAX && second <= 1 => {
                Some(Self::In { bytes: first, watched: second == 1 })
            }
            4 if first <= STREAM_MS_MAX && second <= 1 => {
                Some(Self::InFor { ms: first, watched: second == 1 })
            }
            _ => None,
        }
    }
}

/// How many bytes of a request its reply repeats.
pub(super) fn repeated_bytes(request: usize, reply: usize) -> usize {
    NUMBER_BYTES.min(request).min(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_survive_the_wire() {
        for wish in [
            Wish::Exchange { request_bytes: 100, reply_bytes: MESSAGE_BYTES_MAX },
            Wish::Out,
            Wish::In { bytes: 20_000_000, watched: false },
            Wish::InFor { ms: 10_000, watched: true },
        ] {
            assert_eq!(Wish::decode(&wish.encode()), Some(wish));
        }
    }

    #[test]
    fn nonsense_and_greed_are_refused() {
        let good = Wish::Exchange { request_bytes: 1, reply_bytes: 1 };
        let changed = |at: usize, to: u8| {
            let mut header = good.encode();
            header[at] = to;
            Wish::decode(&header)
        };
        assert_eq!(changed(19, 1), Some(good));
        for (at, to) in [(0, b'G'), (2, 2), (3, 0), (3, 5), (3, 2), (11, 0), (8, 2), (12, 1)] {
            assert_eq!(changed(at, to), None, "{at} {to}");
        }
        let zero = Wish::Exchange { request_bytes: 0, reply_bytes: 1 };
        assert_eq!(Wish::decode(&zero.encode()), None);
        let long = Wish::InFor { ms: STREAM_MS_MAX + 1, watched: false };
        assert_eq!(Wish::decode(&long.encode()), None);
        let mut twice = Wish::In { bytes: 1, watched: true }.encode();
        twice[HEADER_BYTES - 1] = 2;
        assert_eq!(Wish::decode(&twice), None);
    }

    #[test]
    fn short_messages_repeat_what_fits() {
        assert_eq!(repeated_bytes(1, 1_000_000), 1);
        assert_eq!(repeated_bytes(500, 500), 8);
    }
}
