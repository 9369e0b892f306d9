//! Defines, parses and encodes the frames of a link between two kernels. Through this link,
//! programs on one kernel use sockets of the other kernel. File descriptors cannot be sent to
//! another kernel. So each socket has its own stream between the kernels. The link copies the bytes
//! of the socket as frames on this stream.
//!
//! ```text
//!   kind (1 byte) | length (2 bytes) | payload
//! ```
//!
//! The first byte of a stream shows whether the link connects two kernels. If it does, the byte is
//! the kind of the first frame, and a kind is never 0. On a link within one kernel, a stream begins
//! with a length of 4 bytes. The first of these bytes is always 0, because the length is small.
//!
//! Limits: [`MESSAGE_BYTES_MAX`] for a message, [`DATA_BYTES_MAX`] for a part of a TCP stream, and
//! [`DATAGRAM_BYTES_MAX`] for a datagram.

use std::fmt;

/// The length of the kind and the length of a frame.
pub const HEADER_BYTES: usize = 3;
/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// The longest part of a TCP stream in one frame. The frame fits into one TLS record. It also has
/// at most 16 KiB, because implementations of vsock lose longer writes.
pub const DATA_BYTES_MAX: usize = 16 * 1024 - HEADER_BYTES;
/// The longest payload of a datagram of IPv4 or IPv6.
pub const DATAGRAM_BYTES_MAX: usize = 65_527;

const MESSAGE: u8 = 1;
const DATA: u8 = 2;
const END: u8 = 3;
const RESET: u8 = 4;
const DATAGRAM: u8 = 5;
const NOTICE: u8 = 6;
const ALIVE: u8 = 7;

/// The largest error number of a kernel.
const ERRNO_MAX: u32 = 4095;
/// The bytes of a notice before the quoted payload.
const NOTICE_HEADER_BYTES: usize = 5;
/// The longest quoted payload of a notice.
pub const QUOTED_BYTES_MAX: usize = 576;

/// A frame of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFrame<'b> {
    /// A request or an answer, as JSON text.
    Message(&'b [u8]),
    /// A part of a TCP stream.
    Data(&'b [u8]),
    /// The sender's direction of the TCP stream has ended in order.
    End,
    /// The TCP connection was reset, with this error number.
    Reset(i32),
    /// A datagram.
    Datagram(&'b [u8]),
    /// An earlier datagram was not delivered.
    Notice(DatagramNotice<'b>),
    /// The sender still exists.
    Alive,
}

/// Why a datagram was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramNotice<'b> {
    /// The reason.
    pub reason: NoticeReason,
    /// The beginning of the payload.
    pub quoted: &'b [u8],
}

/// The reason of a [`DatagramNotice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeReason {
    /// No process listens on the port.
    PortUnreachable,
    /// The host does not answer.
    HostUnreachable,
    /// There is no route.
    NetUnreachable,
    /// A packet filter rejects it.
    Prohibited,
    /// It is longer than this MTU.
    TooBig(u32),
}

/// Why bytes are not frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// There is no such kind.
    UnknownKind(u8),
    /// A frame of this kind cannot have this length.
    WrongLength(u8, u16),
    /// The error number does not exist.
    WrongErrno(u32),
    /// There is no such reason.
    UnknownReason(u8),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the other side of the link sent an invalid frame: ")?;
        match self {
            Self::UnknownKind(kind) => write!(f, "unknown frame kind {kind}"),
            Self::WrongLength(kind, bytes) => {
                write!(f, "a frame of kind {kind} cannot have {bytes} bytes")
            }
            Self::WrongErrno(errno) => write!(f, "unknown error number {errno}"),
            Self::UnknownReason(reason) => {
                write!(f, "unknown reason {reason} for an undelivered datagram")
            }
        }
    }
}

impl std::error::Error for FrameError {}

/// A frame at the beginning of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedFrame<'b> {
    /// The frame.
    pub frame: LinkFrame<'b>,
    /// Its length in the buffer.
    pub bytes: usize,
}

/// Whether a stream with this first byte has frames of this module.
#[must_use]
pub fn begins_frames(first: u8) -> bool {
    first != 0
}

/// Parses the frame at the beginning of `bytes`; `None` if the frame is not complete.
///
/// # Errors
/// The bytes are no frame, which an incomplete one may show already.
pub fn parse(bytes: &[u8]) -> Result<Option<ParsedFrame<'_>>, FrameError> {
    let Some((&[kind, high, low], rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return match bytes.first() {
            Some(kind) => lengths(*kind).map(|_| None),
            None => Ok(None),
        };
    };
    let length = u16::from_be_bytes([high, low]);
    let bytes = usize::from(length);
    if !lengths(kind)?.contains(&bytes) {
        return Err(FrameError::WrongLength(kind, length));
    }
    let Some(payload) = rest.get(..bytes) else { return Ok(None) };
    let frame = match kind {
        MESSAGE => LinkFrame::Message(payload),
        DATA => LinkFrame::Data(payload),
        END => LinkFrame::End,
        RESET => LinkFrame::Reset(errno(payload)?),
        DATAGRAM => LinkFrame::Datagram(payload),
        NOTICE => LinkFrame::Notice(notice(payload)?),
        _ => LinkFrame::Alive,
    };
    Ok(Some(ParsedFrame { frame, bytes: HEADER_BYTES + bytes }))
}

/// The lengths that the payload of a kind can have.
fn lengths(kind: u8) -> Result<std::ops::RangeInclusive<usize>, FrameError> {
    Ok(match kind {
        MESSAGE => 1..=MESSAGE_BYTES_MAX,
        DATA => 1..=DATA_BYTES_MAX,
        END | ALIVE => 0..=0,
        RESET => 4..=4,
        DATAGRAM => 0..=DATAGRAM_BYTES_MAX,
        NOTICE => NOTICE_HEADER_BYTES..=NOTICE_HEADER_BYTES + QUOTED_BYTES_MAX,
        other => return Err(FrameError::UnknownKind(other)),
    })
}

fn errno(payload: &[u8]) -> Result<i32, FrameError> {
    let number = payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    match i32::try_from(number) {
        Ok(errno) if (1..=ERRNO_MAX).contains(&number) => Ok(errno),
        _ => Err(FrameError::WrongErrno(number)),
    }
}

fn notice(payload: &[u8]) -> Result<DatagramNotice<'_>, FrameError> {
    let (&[reason, a, b, c, d], quoted) =
        payload.split_first_chunk().unwrap_or((&[0; NOTICE_HEADER_BYTES], &[]));
    let reason = match reason {
        1 => NoticeReason::PortUnreachable,
        2 => NoticeReason::HostUnreachable,
        3 => NoticeReason::NetUnreachable,
        4 => NoticeReason::Prohibited,
        5 => NoticeReason::TooBig(u32::from_be_bytes([a, b, c, d])),
        other => return Err(FrameError::UnknownReason(other)),
    };
    Ok(DatagramNotice { reason, quoted })
}

/// The header of a frame with this many bytes of a TCP stream, at most [`DATA_BYTES_MAX`].
#[must_use]
pub fn data_header(bytes: usize) -> [u8; HEADER_BYTES] {
    let [high, low] = u16::try_from(bytes.min(DATA_BYTES_MAX)).unwrap_or_default().to_be_bytes();
    [DATA, high, low]
}

/// Appends a frame to a buffer. Returns whether it could be sent: a payload that is too long is
/// not.
#[must_use]
pub fn append(frame: LinkFrame<'_>, out: &mut Vec<u8>) -> bool {
    let mut small = [0; NOTICE_HEADER_BYTES];
    let (kind, first, second): (u8, &[u8], &[u8]) = match frame {
        LinkFrame::Message(text) => (MESSAGE, text, &[]),
        LinkFrame::Data(bytes) => (DATA, bytes, &[]),
        LinkFrame::End => (END, &[], &[]),
        LinkFrame::Reset(errno) => {
            small[..4].copy_from_slice(&errno.unsigned_abs().clamp(1, ERRNO_MAX).to_be_bytes());
            (RESET, &small[..4], &[])
        }
        LinkFrame::Datagram(payload) => (DATAGRAM, payload, &[]),
        LinkFrame::Notice(DatagramNotice { reason, quoted }) => {
            let (number, mtu_bytes) = match reason {
                NoticeReason::PortUnreachable => (1, 0),
                NoticeReason::HostUnreachable => (2, 0),
                NoticeReason::NetUnreachable => (3, 0),
                NoticeReason::Prohibited => (4, 0),
                NoticeReason::TooBig(mtu_bytes) => (5, mtu_bytes),
            };
            let [a, b, c, d] = u32::to_be_bytes(mtu_bytes);
            small = [number, a, b, c, d];
            (NOTICE, &small, quoted.get(..QUOTED_BYTES_MAX).unwrap_or(quoted))
        }
        LinkFrame::Alive => (ALIVE, &[], &[]),
    };
    let bytes = first.len() + second.len();
    let Ok(length) = u16::try_from(bytes) else { return false };
    if !lengths(kind).is_ok_and(|lengths| lengths.contains(&bytes)) {
        return false;
    }
    out.push(kind);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(first);
    out.extend_from_slice(second);
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Frames with their lengths, or the error that ends them.
    fn parse_all(mut bytes: &[u8]) -> (Vec<LinkFrame<'_>>, Option<FrameError>) {
        let mut all = Vec::new();
        loop {
            match parse(bytes) {
                Ok(Some(ParsedFrame { frame, bytes: length })) => {
                    all.push(frame);
                    bytes = &bytes[length..];
                }
                Ok(None) => return (all, None),
                Err(error) => return (all, Some(error)),
            }
        }
    }

    #[test]
    fn a_header_of_data_is_that_of_an_appended_frame() {
        for bytes in [1, 255, 256, DATA_BYTES_MAX] {
            let data = vec![7; bytes];
            let mut frame = Vec::new();
            assert!(append(LinkFrame::Data(&data), &mut frame));
            assert_eq!(frame[..HEADER_BYTES], data_header(bytes));
        }
    }

    #[test]
    fn bytes_that_are_no_frame_are_rejected() {
        let table: [(&[u8], FrameError); 13] = [
            (&[0], FrameError::UnknownKind(0)),
            (&[8, 0, 0], FrameError::UnknownKind(8)),
            (&[MESSAGE, 0, 0], FrameError::WrongLength(MESSAGE, 0)),
            (&[MESSAGE, 0x10, 1], FrameError::WrongLength(MESSAGE, 4097)),
            (&[DATA, 0, 0], FrameError::WrongLength(DATA, 0)),
            (&[DATA, 0x3f, 0xfe], FrameError::WrongLength(DATA, 16_382)),
            (&[END, 0, 1], FrameError::WrongLength(END, 1)),
            (&[ALIVE, 0, 1], FrameError::WrongLength(ALIVE, 1)),
            (&[RESET, 0, 3], FrameError::WrongLength(RESET, 3)),
            (&[RESET, 0, 4, 0, 0, 0, 0], FrameError::WrongErrno(0)),
            (&[RESET, 0, 4, 0, 0, 0x10, 0], FrameError::WrongErrno(4096)),
            (&[NOTICE, 0, 4], FrameError::WrongLength(NOTICE, 4)),
            (&[NOTICE, 0, 5, 6, 0, 0, 0, 0], FrameError::UnknownReason(6)),
        ];
        for (bytes, error) in table {
            assert_eq!(parse(bytes), Err(error), "{bytes:?}");
        }
        assert_eq!(parse(&[DATAGRAM, 0xff, 0xf8]), Err(FrameError::WrongLength(DATAGRAM, 65_528)));
    }

    #[test]
    fn the_first_byte_distinguishes_frames_from_lengths() {
        for kind in MESSAGE..=ALIVE {
            assert!(begins_frames(kind) && parse(&[kind]) == Ok(None));
        }
        assert!(!begins_frames(0));
    }

    #[test]
    fn a_payload_that_is_too_long_is_not_sent() {
        let long = vec![0; 65_536];
        for frame in [
            LinkFrame::Message(&[]),
            LinkFrame::Message(&long[..=MESSAGE_BYTES_MAX]),
            LinkFrame::Data(&long[..=DATA_BYTES_MAX]),
            LinkFrame::Datagram(&long[..=DATAGRAM_BYTES_MAX]),
            LinkFrame::Datagram(&long),
        ] {
            let mut out = Vec::new();
            assert!(!append(frame, &mut out) && out.is_empty());
        }
    }

    fn frames() -> impl Strategy<Value = (u8, Vec<u8>, i32, u32)> {
        (0_u8..11, prop::collection::vec(any::<u8>(), 1..600), 1..=4095_i32, any::<u32>())
    }

    fn frame((kind, bytes, errno, mtu): &(u8, Vec<u8>, i32, u32)) -> LinkFrame<'_> {
        let notice = |reason| {
            let quoted = &bytes[..bytes.len().min(QUOTED_BYTES_MAX)];
            LinkFrame::Notice(DatagramNotice { reason, quoted })
        };
        match kind {
            0 => LinkFrame::Message(bytes),
            1 => LinkFrame::Data(bytes),
            2 => LinkFrame::End,
            3 => LinkFrame::Reset(*errno),
            4 => LinkFrame::Datagram(bytes),
            5 => LinkFrame::Alive,
            6 => notice(NoticeReason::PortUnreachable),
            7 => notice(NoticeReason::HostUnreachable),
            8 => notice(NoticeReason::NetUnreachable),
            9 => notice(NoticeReason::Prohibited),
            _ => notice(NoticeReason::TooBig(*mtu)),
        }
    }

    proptest! {
        #[test]
        fn every_frame_and_every_split_is_parsed_as_it_was_sent(
            sent in prop::collection::vec(frames(), 1..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let wanted: Vec<_> = sent.iter().map(frame).collect();
            let mut bytes = Vec::new();
            prop_assert!(wanted.iter().all(|one| append(*one, &mut bytes)));
            prop_assert_eq!(parse_all(&bytes), (wanted.clone(), None));
            let (part, error) = parse_all(&bytes[..cut.index(bytes.len())]);
            prop_assert!(error.is_none() && wanted.starts_with(&part));
        }

        #[test]
        fn arbitrary_bytes_are_parsed_without_a_panic(bytes: Vec<u8>) {
            for frame in parse_all(&bytes).0 {
                let mut again = Vec::new();
                prop_assert!(append(frame, &mut again));
                prop_assert_eq!(parse(&again).unwrap().unwrap().frame, frame);
            }
        }
    }
}
