//! Sends netlink requests of one or more messages, and receives the kernel's answer to each
//! message.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::Timeout;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink as families, sockopt,
};

use super::error::Error;
use super::message::{NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NetlinkRequest, answers};
use crate::option::{OptionName, set_option};

/// The largest size of the messages of one send. The default limit of a socket's buffer is 208 KiB.
pub const BATCH_BYTES_MAX: usize = 192 * 1024;

/// The same limit for a socket after [`Netlink::allow_large_batches`], which the rules of a host
/// need: 131,072 elements of filters with ranges of IPv6 addresses, and all other contents, fit.
pub const LARGE_BATCH_BYTES_MAX: usize = 40 * 1024 * 1024;

/// How long to wait for an answer. The kernel usually answers during the send or shortly after it.
/// The limit prevents a caller from waiting forever if an answer is lost.
pub const REPLY_WAIT: Duration = Duration::from_secs(5);

/// The buffer size for one received datagram. The kernel uses at most 32 KiB in a dump.
const RECEIVE_BYTES: usize = 32 * 1024;

/// The part of the kernel to which a socket sends requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subsystem {
    /// Interfaces, addresses and routes.
    Route,
    /// nftables rules.
    Netfilter,
    /// The sockets of the namespace.
    SocketDiagnosis,
}

/// A blocking netlink socket.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    batch_bytes_max: usize,
}

/// The number of messages that answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyCount {
    One,
    /// Any number of messages, followed by a message that marks the end.
    Many,
    /// The same; if the kernel changed meanwhile what it reports, that is an error (`EINTR`).
    ManyUnbroken,
}

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The error of `socket` or `setsockopt`.
    pub fn open(subsystem: Subsystem) -> io::Result<Self> {
        let protocol = match subsystem {
            Subsystem::Route => None,
            Subsystem::Netfilter => Some(families::NETFILTER),
            Subsystem::SocketDiagnosis => Some(families::SOCK_DIAG),
        };
        let family = AddressFamily::NETLINK;
        let kind = SocketType::RAW;
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?;
        for name in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
            set_option(socket.as_fd(), OptionName { level: libc::SOL_NETLINK, name }, 1)?;
        }
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(REPLY_WAIT))?;
        // The system may limit this size. It has room for the answers to the largest batch.
        sockopt::set_socket_recv_buffer_size(&socket, 4 * BATCH_BYTES_MAX)?;
        sockopt::set_socket_send_buffer_size(&socket, 4 * BATCH_BYTES_MAX)?;
        Ok(Self::adopt(socket))
    }

    /// Uses a socket that [`Netlink::open`] has created, in this process or in another one.
    #[must_use]
    pub fn adopt(socket: OwnedFd) -> Self {
        // Unread answers to an earlier owner of the socket must not match our sequence numbers. So
        // they start at an arbitrary value.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let [.., a, b, c, d] = (now.tv_sec ^ (now.tv_nsec << 8)).to_be_bytes();
        let sequence = u32::from_be_bytes([a, b, c, d]);
        Self { socket, sequence, batch_bytes_max: BATCH_BYTES_MAX }
    }

    /// Raises the limit of one send to [`LARGE_BATCH_BYTES_MAX`].
    ///
    /// # Errors
    /// The error of `setsockopt`: it needs `CAP_NET_ADMIN` over the host.
    pub fn allow_large_batches(&mut self) -> io::Result<()> {
        let bytes = i32::try_from(LARGE_BATCH_BYTES_MAX).unwrap_or(i32::MAX);
        for name in [libc::SO_SNDBUFFORCE, libc::SO_RCVBUFFORCE] {
            set_option(self.as_fd(), OptionName { level: libc::SOL_SOCKET, name }, bytes)?;
        }
        self.batch_bytes_max = LARGE_BATCH_BYTES_MAX;
        Ok(())
    }

    /// Returns the socket itself.
    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Creates a socket whose first message has a known sequence number, so that a test can write
    /// the answer in advance.
    #[cfg(feature = "fuzz")]
    pub(super) fn from_first(socket: OwnedFd) -> Self {
        Self { socket, sequence: 0, batch_bytes_max: BATCH_BYTES_MAX }
    }

    /// Sends the messages with one call, and waits until the kernel has handled them. Returns the
    /// first refusal as the error.
    pub(super) fn run(&mut self, mut messages: Vec<NetlinkRequest>) -> Result<(), Error> {
        // The kernel handles the messages in order, and reports every refusal. So the
        // acknowledgement of the last message suffices.
        let last = messages.iter().rposition(NetlinkRequest::wants_answer).unwrap_or(0);
        messages.iter_mut().take(last).for_each(NetlinkRequest::want_no_answer);
        let sent = self.send(messages)?;
        let mut waiting = sent.iter().filter(|message| message.wants_answer()).count();
        let mut refusal = None;
        loop {
            // The kernel has handled all messages when the send returns. Any answer after a refusal
            // or after the last acknowledgement (a refusal of the whole batch) is therefore in the
            // queue already.
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
                    return Err(Error::Malformed("the kernel's answer is not an acknowledgement"));
                }
                waiting = waiting.saturating_sub(usize::from(message.wants_answer()));
                refusal = refusal.or_else(|| message.verdict(&answer).err());
            }
        }
        refusal.map_or(Ok(()), Err)
    }

    /// Sends one request, and calls `each` with the payload of each answer, until the last answer.
    pub(super) fn ask(
        &mut self,
        question: NetlinkRequest,
        wanted: ReplyCount,
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
                if wanted == ReplyCount::ManyUnbroken && answer.flags & NLM_F_DUMP_INTR != 0 {
                    let error = io::Error::from_raw_os_error(libc::EINTR);
                    return Err(Error::Socket { call: "recv", error });
                }
                match answer.kind {
                    NLMSG_ERROR => return question.verdict(&answer),
                    NLMSG_DONE => return Ok(()),
                    _ => each(answer.payload)?,
                }
                if wanted == ReplyCount::One {
                    return Ok(());
                }
            }
        }
    }

    fn send(&mut self, mut messages: Vec<NetlinkRequest>) -> Result<Vec<NetlinkRequest>, Error> {
        let mut bytes = Vec::new();
        for message in &mut messages {
            self.sequence = self.sequence.wrapping_add(1);
            message.seal(self.sequence);
            bytes.extend_from_slice(&message.bytes);
        }
        if bytes.len() > self.batch_bytes_max {
            return Err(Error::Invalid("the request is too large for one send call"));
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
            return Err(Error::Malformed("the kernel's answer is larger than the receive buffer"));
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
        let big = NetlinkRequest::new("", 1, 0).fixed(&vec![0; BATCH_BYTES_MAX]);
        assert!(matches!(netlink.run(vec![big]), Err(Error::Invalid(_))));
    }
}
