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
mod message;
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
#[cfg(test)]
use message::testing;
use message::{Message, NLM_F_ACK, NLMSG_DONE, NLMSG_ERROR, answers, attributes, read_u32};

/// Bytes of messages that one send may carry; the default limit of a socket's buffer is 208 KiB.
pub const BATCH_BYTES_MAX: usize = 192 * 1024;

/// How long an answer may take. The kernel answers within the send or a little later; this only
/// keeps an answer that was lost from stopping the caller for good.
pub const REPLY_WAIT: Duration = Duration::from_secs(5);

/// Bytes of one received datagram; the kernel fills at most 32 KiB in a dump.
const RECEIVE_BYTES: usize = 32 * 1024;

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

    /// Sends the messages at once and waits for the answer to each that asks for one; the first
    /// refusal is the result.
    fn run(&mut self, messages: Vec<Message>) -> Result<(), Error> {
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
    fn ask(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_has_a_limit() {
        let mut netlink = Netlink::open(Subsystem::Route).unwrap();
        let big = Message::new("", 1, 0).fixed(&vec![0; BATCH_BYTES_MAX]);
        assert!(matches!(netlink.run(vec![big]), Err(Error::Invalid(_))));
    }
}
