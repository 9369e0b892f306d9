//! Moves UDP datagrams over a link between two kernels, for example between a virtual machine and
//! its host. A program under `tacit run` runs on one kernel, and only the other kernel has a
//! network. Each kernel has a link server. Both servers use this module to move datagrams between a
//! UDP socket and the stream to the other server:
//!
//! ```text
//!   kernel of the run                           kernel with the network
//!   agent's socket ── server's UDP socket ── stream ── server's UDP socket ── destination
//!                  <── ICMP error ─────────── Notice <── error queue of this socket
//! ```
//!
//! If the stream takes no more bytes, datagrams wait in the UDP socket of the server. The kernel
//! drops datagrams that do not fit into the receive buffer of this socket.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tacit_core::icmp::{self, IcmpError, SentDatagram};
use tacit_core::link_frame::{
    DATAGRAM_BYTES_MAX, DatagramNotice, LinkFrame, NoticeReason, QUOTED_BYTES_MAX,
};
use tacit_sys::datagram::{self, Notice};
use tacit_sys::watch::{READABLE_OR_ERROR, Watched, watch};

use super::LinkStream;
use crate::datagram::icmp_errors::{cause_of, cause_of_notice};

/// The bytes for a stream from which on no further datagrams are read.
const WAITING_BYTES_MAX: usize = 128 * 1024;
/// The maximum number of errors that are read without a pause.
const NOTICES_MAX: usize = 16;

/// The side of a stream on which datagrams are moved.
pub(in crate::link) trait DatagramEnd {
    /// Sends a datagram.
    ///
    /// # Errors
    /// The error of the kernel, which may be about an earlier datagram.
    fn send(&self, payload: &[u8]) -> io::Result<()>;
    /// The UDP socket.
    fn socket(&self) -> &Watched;
    /// Reports that a datagram was not delivered.
    fn report(&self, notice: DatagramNotice<'_>);
}

/// The UDP socket on the side that has the network. It is connected.
pub(in crate::link) struct NetworkEnd(Watched);

impl NetworkEnd {
    /// # Errors
    /// The runtime cannot watch the socket.
    pub(in crate::link) fn new(socket: Arc<OwnedFd>) -> io::Result<Self> {
        watch(socket, READABLE_OR_ERROR).map(Self)
    }
}

impl DatagramEnd for NetworkEnd {
    fn send(&self, payload: &[u8]) -> io::Result<()> {
        datagram::send(self.0.get_ref().as_fd(), payload)
    }

    fn socket(&self) -> &Watched {
        &self.0
    }

    fn report(&self, _: DatagramNotice<'_>) {}
}

/// The end of a mirrored pair on the side without network.
pub(in crate::link) struct MirrorEnd<E> {
    socket: Watched,
    program: SocketAddr,
    destination: SocketAddr,
    /// Sends a packet to the socket of the agent.
    send_error: E,
}

impl<E: Fn(&[u8])> MirrorEnd<E> {
    /// `send_error` sends a complete ICMP packet.
    ///
    /// # Errors
    /// The runtime cannot watch the socket.
    pub(in crate::link) fn new(
        socket: OwnedFd,
        program: SocketAddr,
        destination: SocketAddr,
        send_error: E,
    ) -> io::Result<Self> {
        let socket = watch(Arc::new(socket), READABLE_OR_ERROR)?;
        Ok(Self { socket, program, destination, send_error })
    }
}

impl<E: Fn(&[u8])> DatagramEnd for MirrorEnd<E> {
    fn send(&self, payload: &[u8]) -> io::Result<()> {
        datagram::send(self.socket.get_ref().as_fd(), payload)
    }

    fn socket(&self) -> &Watched {
        &self.socket
    }

    fn report(&self, notice: DatagramNotice<'_>) {
        let cause = match notice.reason {
            NoticeReason::PortUnreachable => IcmpError::PortUnreachable,
            NoticeReason::HostUnreachable => IcmpError::HostUnreachable,
            NoticeReason::NetUnreachable => IcmpError::NetUnreachable,
            NoticeReason::Prohibited => IcmpError::Prohibited,
            NoticeReason::TooBig(mtu_bytes) => IcmpError::TooBig { mtu_bytes },
        };
        let Self { program, destination, .. } = *self;
        let sent = SentDatagram { source: program, destination, payload: notice.quoted };
        if let Some(packet) = icmp::error(cause, sent, destination.ip()) {
            (self.send_error)(&packet);
        }
    }
}

/// Moves datagrams until the stream ends.
pub(in crate::link) async fn run(mut stream: LinkStream, end: impl DatagramEnd) {
    // The other side of a stream that has failed sees its end.
    let _ = run_until_failure(&mut stream, &end).await;
    stream.close().await;
}

async fn run_until_failure(stream: &mut LinkStream, end: &impl DatagramEnd) -> io::Result<()> {
    let mut buffer = vec![0; datagram::PAYLOAD_BYTES_MAX];
    loop {
        let is_flushed = stream.is_flushed();
        tokio::select! {
            ready = end.socket().ready(READABLE_OR_ERROR), if is_flushed => {
                let mut ready = ready?;
                if push_datagrams(stream, end, &mut buffer)? {
                    ready.clear_ready();
                }
            }
            step = poll_fn(|cx| poll_stream(stream, end, cx)) => match step? {
                Step::Flushed => {}
                Step::Ended => return Ok(()),
            },
        }
    }
}

/// Sends the datagrams and errors of the socket to the stream. Returns whether nothing is left.
fn push_datagrams(
    stream: &mut LinkStream,
    end: &impl DatagramEnd,
    buffer: &mut [u8],
) -> io::Result<bool> {
    while stream.waiting_bytes() < WAITING_BYTES_MAX {
        match datagram::receive(end.socket().get_ref().as_fd(), buffer) {
            Ok(count) => {
                // Longer ones do not exist.
                let count = count.min(buffer.len()).min(DATAGRAM_BYTES_MAX);
                stream.push(LinkFrame::Datagram(buffer.get(..count).unwrap_or_default()))?;
            }
            Err(error) => {
                // Errors of earlier datagrams make a socket ready too.
                let count = push_notices(stream, end)?;
                if error.kind() == io::ErrorKind::WouldBlock && count == 0 {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// What has happened to a stream.
enum Step {
    /// All bytes were written.
    Flushed,
    /// The other side has ended it.
    Ended,
}

/// Writes what waits, and handles the frames of the other side.
fn poll_stream(
    stream: &mut LinkStream,
    end: &impl DatagramEnd,
    cx: &mut Context<'_>,
) -> Poll<io::Result<Step>> {
    if !stream.is_flushed() && stream.poll_flush(cx)?.is_ready() {
        return Poll::Ready(Ok(Step::Flushed));
    }
    ready!(poll_receiving(stream, end, cx))?;
    Poll::Ready(Ok(Step::Ended))
}

/// Sends the errors in the queue of the socket; returns how many there were.
fn push_notices(stream: &mut LinkStream, end: &impl DatagramEnd) -> io::Result<usize> {
    let mut quoted = [0; QUOTED_BYTES_MAX];
    let socket = end.socket().get_ref().as_fd();
    for number in 0..NOTICES_MAX {
        let Ok(Some(Notice { kind, bytes, .. })) = datagram::take_notice(socket, &mut quoted)
        else {
            return Ok(number);
        };
        if let Some(cause) = cause_of_notice(kind) {
            push_notice(stream, cause, quoted.get(..bytes).unwrap_or(&quoted))?;
        }
    }
    Ok(NOTICES_MAX)
}

fn push_notice(stream: &mut LinkStream, cause: IcmpError, quoted: &[u8]) -> io::Result<()> {
    let reason = match cause {
        IcmpError::PortUnreachable => NoticeReason::PortUnreachable,
        IcmpError::HostUnreachable => NoticeReason::HostUnreachable,
        IcmpError::NetUnreachable => NoticeReason::NetUnreachable,
        IcmpError::Prohibited => NoticeReason::Prohibited,
        IcmpError::TooBig { mtu_bytes } => NoticeReason::TooBig(mtu_bytes),
    };
    let quoted = quoted.get(..QUOTED_BYTES_MAX).unwrap_or(quoted);
    stream.push(LinkFrame::Notice(DatagramNotice { reason, quoted }))
}

/// What a frame of the other side did.
enum Taken {
    Nothing,
    /// The kernel did not send the datagram.
    Failed {
        error: io::Error,
        quoted: Vec<u8>,
    },
    /// It is not for datagrams.
    Invalid,
}

/// Sends the datagrams of the stream, and reports its errors; ready when the stream has ended.
fn poll_receiving(
    stream: &mut LinkStream,
    end: &impl DatagramEnd,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    loop {
        let taken = ready!(stream.poll_frame(cx, |frame| match frame {
            LinkFrame::Datagram(payload) => match end.send(payload) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    let quoted = payload.get(..QUOTED_BYTES_MAX).unwrap_or(payload);
                    Taken::Failed { error, quoted: quoted.to_vec() }
                }
                // As for any UDP socket, a datagram that has no room is dropped.
                _ => Taken::Nothing,
            },
            LinkFrame::Notice(notice) => {
                end.report(notice);
                Taken::Nothing
            }
            LinkFrame::Alive => Taken::Nothing,
            _ => Taken::Invalid,
        }))?;
        match taken {
            Some(Taken::Nothing) => {}
            Some(Taken::Failed { error, quoted }) => {
                // Errors of earlier datagrams are in the queue.
                if push_notices(stream, end)? == 0 {
                    push_notice(stream, cause_of(&error, None), &quoted)?;
                }
                // A peer that only sends must not fill the memory.
                ready!(stream.poll_flush(cx))?;
            }
            Some(Taken::Invalid) => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
            None => return Poll::Ready(Ok(())),
        }
    }
}
