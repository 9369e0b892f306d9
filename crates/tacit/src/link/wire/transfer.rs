//! Moves the bytes between a TCP socket and a stream to another kernel.
//!
//! ```text
//!   socket ── read ───────> Data, End, Reset ──> stream
//!   socket <── write ────── Data, End, Reset <── stream
//! ```
//!
//! Both directions end independently. If the socket is reset, this side sends a `Reset` frame with
//! the error number. The other side may send `Reset`, or the stream may end without
//! [`LinkFrame::End`]. In both cases, this side first writes all earlier bytes, and then resets the
//! socket.
//!
//! Backpressure: while bytes wait to be written to the socket, this side does not read the stream.
//! While bytes wait to be written to the stream, this side does not read the socket.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tacit_core::link_frame::{DATA_BYTES_MAX, LinkFrame};

use super::LinkStream;
use super::bulk::{BATCH_FRAMES_MAX, BulkError, Received};
use crate::net::stream_socket::{DELIVERY_WAIT_MAX, Outgoing, StreamSocket};

/// How long the reset of a socket may take to reach the other side.
const RESET_WAIT_MAX: Duration = Duration::from_secs(5);
/// After a larger batch, other streams of the thread take their turns.
const TURN_BYTES_MAX: usize = 2 * DATA_BYTES_MAX;

/// Moves bytes until both directions have ended, then closes both sides accordingly.
pub(in crate::link) async fn run(stream: LinkStream, socket: StreamSocket) -> StreamFate {
    // Until the end is known, the kernel resets the socket if this process ends.
    socket.reset();
    let mut transfer = Transfer {
        stream,
        socket,
        reads_much: false,
        to_socket: Outgoing::default(),
        sending: Direction::Open,
        receiving: Direction::Open,
    };
    let end = poll_fn(|cx| transfer.poll(cx)).await;
    let fate = match end {
        TransferEnd::Lost => StreamFate::Lost,
        TransferEnd::Orderly | TransferEnd::Socket(_) | TransferEnd::Reset => StreamFate::Ended,
    };
    transfer.finish(end).await;
    fate
}

/// What has become of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::link) enum StreamFate {
    /// It has ended with its socket.
    Ended,
    /// It has failed, so the socket was reset.
    Lost,
}

/// The state of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// More bytes may arrive.
    Open,
    /// Its last bytes are being written.
    Ending,
    /// It has ended.
    Done,
}

/// How a transfer ends.
enum TransferEnd {
    /// Both directions have ended in order.
    Orderly,
    /// The socket has failed.
    Socket(io::Error),
    /// The other side has reported a reset.
    Reset,
    /// The stream has failed.
    Lost,
}

impl From<BulkError> for TransferEnd {
    fn from(error: BulkError) -> Self {
        match error {
            BulkError::Socket(error) => Self::Socket(error),
            BulkError::Stream => Self::Lost,
        }
    }
}

struct Transfer {
    stream: LinkStream,
    socket: StreamSocket,
    /// Whether the last read from the socket filled a frame.
    reads_much: bool,
    to_socket: Outgoing,
    sending: Direction,
    receiving: Direction,
}

impl Transfer {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TransferEnd> {
        let sending = self.poll_sending(cx);
        let receiving = self.poll_receiving(cx);
        match (sending, receiving) {
            (Poll::Ready(Err(end)), _) | (_, Poll::Ready(Err(end))) => Poll::Ready(end),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(TransferEnd::Orderly),
            _ => match self.poll_after_end(cx) {
                Poll::Ready(end) => Poll::Ready(end),
                Poll::Pending => self.poll_reset(cx),
            },
        }
    }

    /// Detects a reset by the other side, and the loss of the stream, after the other side has
    /// ended its direction.
    fn poll_after_end(&mut self, cx: &mut Context<'_>) -> Poll<TransferEnd> {
        if self.receiving != Direction::Done {
            return Poll::Pending;
        }
        match ready!(self.stream.poll_frame(cx, |_| ())) {
            // No other frame may follow.
            Ok(Some(())) => Poll::Ready(TransferEnd::Reset),
            Ok(None) | Err(_) => Poll::Ready(TransferEnd::Lost),
        }
    }

    /// Detects a reset of the socket while the socket is not read.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<TransferEnd> {
        if self.stream.is_flushed() && self.sending == Direction::Open {
            return Poll::Pending;
        }
        self.socket.poll_reset(cx).map(TransferEnd::Socket)
    }

    fn poll_sending(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TransferEnd>> {
        loop {
            let flushed = ready!(self.stream.poll_flush(cx));
            flushed.map_err(|_| TransferEnd::Lost)?;
            match self.sending {
                Direction::Open => {}
                Direction::Ending | Direction::Done => {
                    self.sending = Direction::Done;
                    return Poll::Ready(Ok(()));
                }
            }
            let frames = if self.reads_much { BATCH_FRAMES_MAX } else { 1 };
            let sent = self.stream.poll_send_from(cx, &self.socket, frames);
            let count = ready!(sent).map_err(TransferEnd::from)?;
            if count == 0 {
                self.sending = Direction::Ending;
                self.stream.push(LinkFrame::End).map_err(|_| TransferEnd::Lost)?;
            }
            self.reads_much = count >= DATA_BYTES_MAX;
            if count == BATCH_FRAMES_MAX * DATA_BYTES_MAX {
                // Other streams of the thread take their turns.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    fn poll_receiving(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TransferEnd>> {
        loop {
            let flushed = ready!(self.to_socket.poll_flush(&self.socket, cx));
            flushed.map_err(TransferEnd::Socket)?;
            match self.receiving {
                Direction::Open => {}
                Direction::Ending => {
                    self.socket.shutdown_write().map_err(TransferEnd::Socket)?;
                    self.receiving = Direction::Done;
                    return Poll::Ready(Ok(()));
                }
                Direction::Done => return Poll::Ready(Ok(())),
            }
            let delivered = self.stream.poll_deliver(cx, &self.socket, &mut self.to_socket);
            match ready!(delivered).map_err(TransferEnd::from)? {
                Some(Received::Bytes(count)) if count > TURN_BYTES_MAX => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Received::Bytes(_)) => {}
                Some(Received::End) => self.receiving = Direction::Ending,
                Some(Received::Reset) => return Poll::Ready(Err(TransferEnd::Reset)),
                None => return Poll::Ready(Err(TransferEnd::Lost)),
            }
        }
    }

    async fn finish(mut self, end: TransferEnd) {
        match end {
            TransferEnd::Orderly => {
                self.socket.end_in_order();
                self.stream.close().await;
            }
            TransferEnd::Socket(error) => {
                self.socket.reset();
                let errno = error.raw_os_error().unwrap_or(ECONNRESET);
                // If the stream has failed too, its other side resets its socket for that reason.
                let sent = self.stream.send(LinkFrame::Reset(errno));
                if tokio::time::timeout(RESET_WAIT_MAX, sent).await.is_ok_and(|sent| sent.is_ok()) {
                    self.stream.close().await;
                }
            }
            TransferEnd::Reset | TransferEnd::Lost => {
                let delivered = self.to_socket.deliver(&self.socket);
                let _ = tokio::time::timeout(DELIVERY_WAIT_MAX, delivered).await;
                self.socket.reset();
            }
        }
    }
}

const ECONNRESET: i32 = rustix::io::Errno::CONNRESET.raw_os_error();
