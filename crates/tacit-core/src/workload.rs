//! Encodes and decodes the protocol of `tacit workload`, a load generator with a client and a
//! server.
//!
//! The client sends commands. All numbers are big-endian:
//!
//! ```text
//! A command consists of "TW", the version, the kind, and two numbers of 8 bytes. These are the
//! kinds and their numbers:
//!   exchange  REQUEST REPLY   requests of REQUEST bytes and replies of REPLY bytes, until the
//!                             client closes the connection
//!   out       0 0             the client sends a stream; the server replies with the number of
//!                             bytes in this stream
//!   in        BYTES SAMPLED   the server sends a stream of BYTES
//!   in-for    MS SAMPLED      the server sends a stream for MS milliseconds
//! A stream consists of blocks: LENGTH (8 bytes), then LENGTH bytes. LENGTH 0 ends the stream.
//! If SAMPLED is 1, the server sends COUNT (8 bytes) and COUNT samples of its TCP state after the
//! stream.
//! ```
//!
//! After a stream the client may send another command. In an exchange, each request begins with a
//! sequence number (eight bytes), and its reply contains the same number. So the client detects a
//! proxy that reorders or loses bytes.
//!
//! The programs in `bench/inprocess` also use this protocol. These programs call a TLS library
//! directly. This module does no I/O.

/// The length of a request header.
pub const HEADER_BYTES: usize = 20;
/// The largest length of a request or reply.
pub const MESSAGE_BYTES_MAX: u64 = 16 << 20;
/// The largest length of a stream.
pub const STREAM_BYTES_MAX: u64 = 1 << 40;
/// The longest duration of a stream in milliseconds: a day.
pub const STREAM_MS_MAX: u64 = 86_400_000;
/// The length of a block. Only the last block of a stream may be shorter.
pub const BLOCK_BYTES: usize = 256 * 1024;
/// The number of bytes of a request that its reply repeats.
pub const NUMBER_BYTES: usize = 8;

const MAGIC: [u8; 3] = [b'T', b'W', 1];

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadRequest {
    /// Requests and replies.
    Exchange {
        /// Bytes of each request.
        request_bytes: u64,
        /// Bytes of each reply.
        reply_bytes: u64,
    },
    /// A stream to the server.
    Out,
    /// A stream of a given length from the server.
    In {
        /// Bytes of the stream.
        bytes: u64,
        /// Whether samples of the sender's socket follow the stream.
        sampling: Sampling,
    },
    /// A stream of a given duration from the server.
    InFor {
        /// Milliseconds of the stream.
        ms: u64,
        /// Whether samples of the sender's socket follow the stream.
        sampling: Sampling,
    },
}

/// Whether the sender of a stream samples its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// No sample is taken or sent.
    Off,
    /// Samples follow the stream.
    On,
}

impl Sampling {
    fn encode(self) -> u64 {
        match self {
            Self::Off => 0,
            Self::On => 1,
        }
    }

    fn decode(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Off),
            1 => Some(Self::On),
            _ => None,
        }
    }
}

impl WorkloadRequest {
    /// Writes a request header.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        match self {
            Self::Exchange { request_bytes, reply_bytes } => header(1, request_bytes, reply_bytes),
            Self::Out => header(2, 0, 0),
            Self::In { bytes, sampling } => header(3, bytes, sampling.encode()),
            Self::InFor { ms, sampling } => header(4, ms, sampling.encode()),
        }
    }

    /// Parses a request header; `None` if it is invalid or exceeds the limits above.
    #[must_use]
    pub fn decode(header: &[u8; HEADER_BYTES]) -> Option<Self> {
        let [m0, m1, m2, kind, numbers @ ..] = *header;
        if [m0, m1, m2] != MAGIC {
            return None;
        }
        let first = u64::from_be_bytes(*numbers.first_chunk()?);
        let second = u64::from_be_bytes(*numbers.last_chunk()?);
        let message = 1..=MESSAGE_BYTES_MAX;
        match kind {
            1 if message.contains(&first) && message.contains(&second) => {
                Some(Self::Exchange { request_bytes: first, reply_bytes: second })
            }
            2 if first == 0 && second == 0 => Some(Self::Out),
            3 if first <= STREAM_BYTES_MAX => {
                Some(Self::In { bytes: first, sampling: Sampling::decode(second)? })
            }
            4 if first <= STREAM_MS_MAX => {
                Some(Self::InFor { ms: first, sampling: Sampling::decode(second)? })
            }
            _ => None,
        }
    }
}

fn header(kind: u8, first: u64, second: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..3].copy_from_slice(&MAGIC);
    header[3] = kind;
    header[4..12].copy_from_slice(&first.to_be_bytes());
    header[12..].copy_from_slice(&second.to_be_bytes());
    header
}

/// Returns the number of bytes of a request that its reply repeats.
#[must_use]
pub fn repeated_bytes(request: usize, reply: usize) -> usize {
    NUMBER_BYTES.min(request).min(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_wire() {
        for request in [
            WorkloadRequest::Exchange { request_bytes: 100, reply_bytes: MESSAGE_BYTES_MAX },
            WorkloadRequest::Out,
            WorkloadRequest::In { bytes: 20_000_000, sampling: Sampling::Off },
            WorkloadRequest::InFor { ms: 10_000, sampling: Sampling::On },
        ] {
            assert_eq!(WorkloadRequest::decode(&request.encode()), Some(request));
        }
    }

    #[test]
    fn what_is_no_request_or_beyond_a_limit_is_refused() {
        let good = WorkloadRequest::Exchange { request_bytes: 1, reply_bytes: 1 };
        let changed = |at: usize, to: u8| {
            let mut header = good.encode();
            header[at] = to;
            WorkloadRequest::decode(&header)
        };
        assert_eq!(changed(19, 1), Some(good));
        for (at, to) in [(0, b'G'), (2, 2), (3, 0), (3, 5), (3, 2), (11, 0), (8, 2), (12, 1)] {
            assert_eq!(changed(at, to), None, "{at} {to}");
        }
        let zero = WorkloadRequest::Exchange { request_bytes: 0, reply_bytes: 1 };
        assert_eq!(WorkloadRequest::decode(&zero.encode()), None);
        let long = WorkloadRequest::InFor { ms: STREAM_MS_MAX + 1, sampling: Sampling::Off };
        assert_eq!(WorkloadRequest::decode(&long.encode()), None);
        let mut twice = WorkloadRequest::In { bytes: 1, sampling: Sampling::On }.encode();
        twice[HEADER_BYTES - 1] = 2;
        assert_eq!(WorkloadRequest::decode(&twice), None);
    }

    #[test]
    fn short_messages_repeat_what_fits() {
        assert_eq!(repeated_bytes(1, 1_000_000), 1);
        assert_eq!(repeated_bytes(500, 500), 8);
    }
}
