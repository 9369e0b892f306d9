//! Netlink: asking the kernel for interfaces, packet rules and sockets, without any program.
//!
//! ```text
//! Message (header, fixed part, attributes) -> Netlink::run -> one send -> an answer a message
//! ```
//!
//! One builder serves all three users: [`route`] (addresses), [`nft`] (packet rules) and [`diag`]
//! (who owns a socket). Attributes are a 16-bit length, a 16-bit type and a payload padded to
//! four bytes, all in host order; what is inside a payload is the user's matter.
//!
//! A refusal names the step and, where the kernel says which attribute it disliked, the part of
//! the message that holds it: "no such file" for a packet rule means nothing until one knows that
//! it was the `socket` expression.
//!
//! A socket may be made in one network namespace and used from another process outside: it stays
//! in the namespace that made it. One at a time uses it (`&mut`): two threads would mix answers.
//!
//! Limits: [`BATCH_BYTES_MAX`] a send, [`REPLY_WAIT`] for an answer.

pub mod diag;
pub mod nft;
pub mod route;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink as families, sockopt,
};

use crate::transparent::set_option;

/// Bytes of messages that one send may carry; the default limit of a socket's buffer is 208 KiB.
pub const BATCH_BYTES_MAX: usize = 192 * 1024;

/// How long an answer may take. The kernel answers within the send or a little later; this only
/// keeps an answer that was lost from stopping the caller for good.
pub const REPLY_WAIT: Duration = Duration::from_secs(5);

/// Bytes of one received datagram; the kernel fills at most 32 KiB in a dump.
const RECEIVE_BYTES: usize = 32 * 1024;

const HEADER_BYTES: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLA_F_NESTED: u16 = 0x8000;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_OFFS: u16 = 2;

/// Which part of the kernel a socket talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subsystem {
    /// Interfaces, addresses and routes.
    Route,
    /// Packet rules.
    Netfilter,
    /// The sockets there are.
    SocketDiagnosis,
}

/// The transport protocols that are captured and looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// A blocking netlink socket.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

/// Why the kernel did not do what it was asked.
#[derive(Debug)]
pub enum Error {
    /// The kernel refused one of the messages; of a batch of packet rules it then did nothing.
    Refused {
        /// What the message was for.
        step: &'static str,
        /// The part of the message that was refused, if the kernel said so.
        part: Option<&'static str>,
        /// The reason.
        error: io::Error,
        /// What the kernel wrote about it, if anything.
        explanation: Option<String>,
    },
    /// The socket itself failed.
    Socket {
        /// The system call.
        call: &'static str,
        /// Its answer.
        error: io::Error,
    },
    /// The caller asked for something that cannot be said; the text says what.
    Invalid(&'static str),
    /// The kernel's answer could not be read; the text says what was wrong with it.
    Malformed(&'static str),
}

impl Error {
    /// The error number behind it.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { error, .. } | Self::Socket { error, .. } => error.raw_os_error(),
            Self::Invalid(_) | Self::Malformed(_) => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { step, part, error, explanation } => {
                write!(f, "the kernel refused: {step}")?;
                if let Some(part) = part {
                    write!(f, ", at its '{part}'")?;
                }
                write!(f, ": {error}")?;
                explanation.as_ref().map_or(Ok(()), |text| write!(f, " ({text})"))
            }
            Self::Socket { call, error } => write!(f, "netlink {call} failed: {error}"),
            Self::Invalid(what) => write!(f, "not asked of the kernel: {what}"),
            Self::Malformed(what) => write!(f, "unreadable netlink answer: {what}"),
        }
    }
}

impl std::error::Error for Error {}

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Whatever `socket` or `setsockopt` answer.
    pub fn open(subsystem: Subsystem) -> io::Result<Self> {
        let protocol = match subsystem {
            Subsystem::Route => None,
            Subsystem::Netfilter => Some(families::NETFILTER),
            Subsystem::SocketDiagnosis => Some(families::SOCK_DIAG),
        };
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?;
        set_option(socket.as_fd(), libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1)?;
        set_option(socket.as_fd(), libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(REPLY_WAIT))?;
        // Capped by the system; room for the answers to the largest batch.
        sockopt::set_socket_recv_buffer_size(&socket, 4 * BATCH_BYTES_MAX)?;
        sockopt::set_socket_send_buffer_size(&socket, 4 * BATCH_BYTES_MAX)?;
        Ok(Self::adopt(socket))
    }

    /// Takes a socket that [`Netlink::open`] made, here or in another process.
    #[must_use]
    pub fn adopt(socket: OwnedFd) -> Self {
        // Another holder's unread answers must not look like ours: start anywhere.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let [.., a, b, c, d] = (now.tv_sec ^ (now.tv_nsec << 8)).to_be_bytes();
        Self { socket, sequence: u32::from_be_bytes([a, b, c, d]) }
    }

    /// Gives the descriptor back, for sending it to another process.
    #[must_use]
    pub fn into_descriptor(self) -> OwnedFd {
        self.socket
    }

    /// Sends the messages at once and waits for the answer to each that asks for one; the first
    /// refusal is the result.
    pub(crate) fn run(&mut self, messages: Vec<Message>) -> Result<(), Error> {
        let sent = self.send(messages)?;
        let mut waiting = sent.iter().filter(|message| message.wants_answer()).count();
        let mut refusal = None;
        loop {
            // The kernel has handled all when the send returns. What follows a refusal or the
            // last acknowledgement (a refusal of the batch as a whole) is there already.
            let settled = waiting == 0 || refusal.is_some();
            let flags = if settled { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
            let received = match self.receive(flags) {
                Err(error) if settled && error.errno() == Some(libc::EAGAIN) => break,
                received => received?,
            };
            for answer in answers(&received) {
                let answer = answer?;
                let Some(message) = sent.iter().find(|sent| sent.sequence() == answer.sequence)
                else {
                    continue;
                };
                if answer.kind != NLMSG_ERROR {
                    return Err(Error::Malformed("an answer that is no acknowledgement"));
                }
                waiting = waiting.saturating_sub(usize::from(message.wants_answer()));
                refusal = refusal.or_else(|| message.verdict(&answer).err());
            }
        }
        refusal.map_or(Ok(()), Err)
    }

    /// Sends one question and hands the payload of each answer to `each`, until the end.
    pub(crate) fn ask(
        &mut self,
        question: Message,
        dump: bool,
        mut each: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let sent = self.send(vec![question])?;
        let Some(question) = sent.first() else { return Ok(()) };
        loop {
            let received = self.receive(RecvFlags::empty())?;
            for answer in answers(&received) {
                let answer = answer?;
                if answer.sequence != question.sequence() {
                    continue;
                }
                match answer.kind {
                    NLMSG_ERROR => return question.verdict(&answer),
                    NLMSG_DONE => return Ok(()),
                    _ => each(answer.payload)?,
                }
                if !dump {
                    return Ok(());
                }
            }
        }
    }

    fn send(&mut self, mut messages: Vec<Message>) -> Result<Vec<Message>, Error> {
        let mut bytes = Vec::new();
        for message in &mut messages {
            self.sequence = self.sequence.wrapping_add(1);
            message.seal(self.sequence);
            bytes.extend_from_slice(&message.bytes);
        }
        if bytes.len() > BATCH_BYTES_MAX {
            return Err(Error::Invalid("more than one send may carry"));
        }
        rustix::net::send(&self.socket, &bytes, SendFlags::empty())
            .map_err(|errno| Error::Socket { call: "send", error: errno.into() })?;
        Ok(messages)
    }

    fn receive(&self, flags: RecvFlags) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; RECEIVE_BYTES];
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.socket, &mut bytes[..], flags | RecvFlags::TRUNC)
        });
        let (_, length) =
            received.map_err(|errno| Error::Socket { call: "recv", error: errno.into() })?;
        if length > bytes.len() {
            return Err(Error::Malformed("longer than the kernel promises"));
        }
        bytes.truncate(length);
        Ok(bytes)
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// One message being written, with the names of its parts for a refusal.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    bytes: Vec<u8>,
    step: &'static str,
    parts: Vec<(usize, &'static str)>,
}

impl Message {
    pub(crate) fn new(step: &'static str, kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
        Self { bytes, step, parts: Vec::new() }
    }

    /// Appends the fixed part that precedes the attributes.
    pub(crate) fn fixed(mut self, part: &[u8]) -> Self {
        self.bytes.extend_from_slice(part);
        self.pad();
        self
    }

    pub(crate) fn attribute(&mut self, kind: u16, payload: &[u8]) {
        self.nest_as(kind, |message| message.bytes.extend_from_slice(payload));
    }

    /// A number in network order, as nftables wants every one of them.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    pub(crate) fn text(&mut self, kind: u16, text: &str) {
        self.nest_as(kind, |message| {
            message.bytes.extend_from_slice(text.as_bytes());
            message.bytes.push(0);
        });
    }

    /// An attribute that holds attributes.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.nest_as(kind | NLA_F_NESTED, fill);
    }

    /// Names what is appended from here on, until the next name.
    pub(crate) fn part(&mut self, name: &'static str) {
        self.parts.push((self.bytes.len(), name));
    }

    #[cfg(test)]
    pub(crate) fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    fn nest_as(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        fill(self);
        // The callers stay far below 64 KiB; the kernel refuses the message if one does not.
        let length = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn seal(&mut self, sequence: u32) {
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    }

    fn sequence(&self) -> u32 {
        read_u32(&self.bytes, 8).unwrap_or(0)
    }

    fn wants_answer(&self) -> bool {
        read_u16(&self.bytes, 6).unwrap_or(0) & NLM_F_ACK != 0
    }

    fn verdict(&self, answer: &Answer<'_>) -> Result<(), Error> {
        let number = read_u32(answer.payload, 0).ok_or(Error::Malformed("no error number"))?;
        let errno = number.cast_signed().wrapping_neg();
        if errno == 0 {
            return Ok(());
        }
        let (offset, explanation) = extended(answer);
        let part = offset.and_then(|offset| {
            // Names stand where their part begins, and an offset may be that of its first inner
            // attribute: the last name at or before it is the one.
            self.parts.iter().rev().find(|(start, _)| *start <= offset).map(|(_, name)| *name)
        });
        let error = io::Error::from_raw_os_error(errno);
        Err(Error::Refused { step: self.step, part, error, explanation })
    }
}

struct Answer<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    payload: &'a [u8],
}

fn answers(mut bytes: &[u8]) -> impl Iterator<Item = Result<Answer<'_>, Error>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let length = read_u32(bytes, 0).and_then(|length| usize::try_from(length).ok());
        let (Some(length), Some(kind), Some(flags), Some(sequence)) =
            (length, read_u16(bytes, 4), read_u16(bytes, 6), read_u32(bytes, 8))
        else {
            bytes = &[];
            return Some(Err(Error::Malformed("a header cut short")));
        };
        let Some(payload) = bytes.get(HEADER_BYTES..length) else {
            bytes = &[];
            return Some(Err(Error::Malformed("a length beyond the end")));
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(Answer { kind, flags, sequence, payload }))
    })
}

/// The offset of the refused attribute and the kernel's own words, where it gives them.
fn extended(answer: &Answer<'_>) -> (Option<usize>, Option<String>) {
    if answer.flags & NLM_F_ACK_TLVS == 0 {
        return (None, None);
    }
    // After the error number stands the refused message: its header alone if capped.
    let echoed = if answer.flags & NLM_F_CAPPED != 0 {
        HEADER_BYTES
    } else {
        read_u32(answer.payload, 4).and_then(|length| usize::try_from(length).ok()).unwrap_or(0)
    };
    let mut found = (None, None);
    for (kind, value) in attributes(answer.payload.get(4 + echoed..).unwrap_or_default()) {
        match kind {
            NLMSGERR_ATTR_MSG => {
                let text = String::from_utf8_lossy(value);
                found.1 = Some(text.trim_end_matches('\0').to_owned());
            }
            NLMSGERR_ATTR_OFFS => {
                found.0 = read_u32(value, 0).and_then(|offset| usize::try_from(offset).ok());
            }
            _ => {}
        }
    }
    found
}

/// The attributes of a payload, by type and value; ends at the first that cannot be.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(read_u16(bytes, 0)?);
        let kind = read_u16(bytes, 2)? & !NLA_F_NESTED;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod testing {
    use super::Message;

    /// The bytes that a text of hexadecimal digits spells; blanks are for the eye.
    pub(super) fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
        let pairs = digits.as_chunks::<2>().0;
        pairs.iter().map(|[high, low]| u8::try_from(high << 4 | low).unwrap()).collect()
    }

    /// The message as it is sent, with sequence number 0.
    pub(super) fn sealed(message: &Message) -> Vec<u8> {
        let mut message = message.clone();
        message.seal(0);
        message.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(flags: u16, payload: &str) -> Error {
        let mut message = Message::new("a step", 1, NLM_F_ACK).fixed(&[0; 4]);
        message.part("first");
        message.be32(1, 0);
        message.part("second");
        message.nest(2, |inside| inside.be32(3, 0));
        let payload = testing::bytes(payload);
        let answer = Answer { kind: NLMSG_ERROR, flags, sequence: 0, payload: &payload };
        message.verdict(&answer).unwrap_err()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_refusal_names_the_step_the_part_and_the_kernels_words() {
        // -ENOENT; the refused header; offset 28, inside the second part; "no".
        let header = "24000000 0100 0500 00000000 00000000";
        let tlvs = "0800 0200 1c000000 0700 0100 6e6f00 00";
        let capped = refusal(NLM_F_CAPPED | NLM_F_ACK_TLVS, &format!("feffffff {header} {tlvs}"));
        let text = "the kernel refused: a step, at its 'second': No such file or directory \
                    (os error 2) (no)";
        assert_eq!(capped.to_string(), text);
        // Not capped: the whole refused message of 36 bytes stands before the attributes.
        let whole = format!("feffffff {header} {} {tlvs}", "00".repeat(20));
        assert_eq!(refusal(NLM_F_ACK_TLVS, &whole).to_string(), text);
        let bare = refusal(NLM_F_CAPPED, &format!("ffffffff {header}"));
        assert_eq!(
            bare.to_string(),
            "the kernel refused: a step: Operation not permitted (os error 1)"
        );
        assert_eq!(bare.errno(), Some(libc::EPERM));
    }

    #[test]
    fn attributes_are_padded_and_nested() {
        let mut message = Message::new("", 1, 0);
        message.nest(1, |inside| inside.text(2, "abcd"));
        message.be32(3, 1);
        let body = &message.bytes[HEADER_BYTES..];
        let read: Vec<_> = attributes(body).collect();
        assert_eq!(read.len(), 2);
        assert_eq!(read[1], (3, &[0, 0, 0, 1][..]));
        let inner: Vec<_> = attributes(read[0].1).collect();
        assert_eq!(inner, [(2, &b"abcd\0"[..])]);
        assert_eq!(read[0].1.len(), 12, "the padding of the last inner attribute is counted");
    }

    #[test]
    fn answers_cut_short_are_errors() {
        assert!(matches!(answers(&[1, 0, 0]).next(), Some(Err(_))));
        let mut long = vec![0; HEADER_BYTES];
        long[0..4].copy_from_slice(&64_u32.to_ne_bytes());
        assert!(matches!(answers(&long).next(), Some(Err(_))));
        long[0..4].copy_from_slice(&8_u32.to_ne_bytes());
        assert!(matches!(answers(&long).next(), Some(Err(_))));
        assert!(answers(&[]).next().is_none());
    }

    #[test]
    fn a_send_has_a_limit() {
        let mut netlink = Netlink::open(Subsystem::Route).unwrap();
        let big = Message::new("", 1, 0).fixed(&vec![0; BATCH_BYTES_MAX]);
        assert!(matches!(netlink.run(vec![big]), Err(Error::Invalid(_))));
    }
}
