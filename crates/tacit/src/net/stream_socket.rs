//! Reads and writes one of the two sockets of a connection, and stores bytes that could not be
//! written yet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tacit_sys::socket::{self, OnClose};
use tacit_sys::watch::{Watched, watch};
use tokio::io::Interest;

use super::Security;

/// How long valid bytes may take to reach a peer before its connection is reset.
pub const DELIVERY_WAIT_MAX: Duration = Duration::from_secs(5);
/// The interval of checks whether they have reached the peer.
const DELIVERY_POLL: Duration = Duration::from_millis(5);

/// The events for which the runtime watches; `PRIORITY` is urgent data.
const WATCHED: Interest = Interest::READABLE.add(Interest::WRITABLE).add(Interest::PRIORITY);

/// A connected socket with its readiness.
///
/// A socket in clear is reset when it is dropped, unless [`StreamSocket::end_in_order`] was called.
/// Otherwise its peer could not distinguish a truncated stream from a complete one. A TLS stream
/// has `close_notify` for this purpose.
#[derive(Debug)]
pub struct StreamSocket {
    watched: Watched,
    security: Security,
}

/// A socket that no runtime watches: it has just been accepted, or is being passed to another
/// thread.
#[derive(Debug)]
pub struct DetachedSocket {
    socket: Arc<OwnedFd>,
    security: Security,
}

impl DetachedSocket {
    /// Uses a socket in the same way as [`StreamSocket::new`].
    #[must_use]
    pub fn new(socket: OwnedFd, security: Security) -> Self {
        Self { socket: Arc::new(socket), security }
    }

    /// Registers the socket with the runtime of the calling thread. Data that has arrived before
    /// counts as arriving now.
    ///
    /// # Errors
    /// The socket cannot be registered, because there are too many.
    pub fn watch(self) -> io::Result<StreamSocket> {
        Ok(StreamSocket { watched: watch(self.socket, WATCHED)?, security: self.security })
    }
}

impl StreamSocket {
    /// Uses a connected, non-blocking socket. A clear socket must have reset-on-close set, by its
    /// listener or before it was dialled.
    ///
    /// # Errors
    /// The socket cannot be registered, because there are too many.
    pub fn new(socket: OwnedFd, security: Security) -> io::Result<Self> {
        DetachedSocket::new(socket, security).watch()
    }

    /// Unregisters the socket from its runtime, so that another one can register it. The socket
    /// itself and its displays do not change.
    #[must_use]
    pub fn park(self) -> DetachedSocket {
        DetachedSocket { socket: self.watched.into_inner(), security: self.security }
    }

    /// Waits until the socket is connected. On loopback it is connected within `connect`.
    ///
    /// # Errors
    /// The error of the connection.
    pub async fn wait_connected(&self) -> io::Result<()> {
        if !socket::is_connected(self.fd())? {
            self.writable().await?;
            socket::take_error(self.fd())?;
        }
        Ok(())
    }

    /// Sets how the bytes of the socket are protected from now on. The listener does not determine
    /// this: it may serve rules of both kinds, or may have been opened for another policy.
    pub fn set_security(&mut self, security: Security) {
        if self.security != security {
            let on_close = match security {
                Security::Clear => OnClose::Reset,
                Security::Tls => OnClose::Finish,
            };
            // If this fails, the socket is broken already, and the next read returns the error.
            let _ = socket::set_on_close(self.fd(), on_close);
            self.security = security;
        }
    }

    /// The socket, for displays: it does not keep the connection open.
    #[must_use]
    pub fn downgrade(&self) -> Weak<OwnedFd> {
        Arc::downgrade(self.watched.get_ref())
    }

    /// The socket itself.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watched.get_ref().as_fd()
    }

    /// Waits until the socket may be readable, then calls `read`, which returns the number of bytes
    /// that it requested. After a short read the readiness is cleared, which saves the read that
    /// would return `WouldBlock`. The end of the stream is recorded separately and is not lost.
    /// After urgent data has arrived, a short read does not clear the readiness: a read stops at
    /// urgent data even if more data follows.
    ///
    /// # Errors
    /// The error of `read`, but never `WouldBlock`.
    pub fn poll_read(
        &self,
        cx: &mut Context<'_>,
        asked_bytes: usize,
        mut read: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.watched.poll_read_ready(cx))?;
            match read(self.fd()) {
                Ok(count) => {
                    if count < asked_bytes && !self.has_urgent_data() {
                        ready.clear_ready();
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Whether urgent data has ever come; no system call.
    fn has_urgent_data(&self) -> bool {
        self.watched.try_io(Interest::PRIORITY, |_| Ok(())).is_ok()
    }

    /// Waits for a reset by the peer while the socket is not read: a read would return the reset
    /// only after all data. The readiness for writing reports it. Clearing this readiness loses
    /// nothing, because a writer tries to write before it waits.
    pub fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            match ready!(self.watched.poll_write_ready(cx)) {
                Ok(mut ready) if !ready.ready().is_write_closed() => ready.clear_ready(),
                // Both directions have ended. This is an orderly end unless the socket holds an
                // error.
                Ok(_) => match socket::take_error(self.fd()) {
                    Ok(()) => return Poll::Pending,
                    Err(error) => return Poll::Ready(error),
                },
                Err(error) => return Poll::Ready(error),
            }
        }
    }

    /// Reads the available data.
    ///
    /// # Errors
    /// The error of the read.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let requested = buffer.len();
        std::future::poll_fn(|cx| {
            self.poll_read(cx, requested, |fd| socket::read(fd, &mut *buffer))
        })
        .await
    }

    /// Reads what has arrived by now; `None`: nothing.
    ///
    /// # Errors
    /// The error of the read.
    pub fn read_now(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match socket::read(self.fd(), buffer) {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether all that was written to it has reached the other side's kernel.
    #[must_use]
    pub fn is_delivered(&self) -> bool {
        socket::unacknowledged_bytes(self.fd()).unwrap_or(0) == 0
    }

    /// Reads the available data and appends it to a buffer, as much as fits into its free capacity.
    ///
    /// # Errors
    /// The error of the read.
    pub async fn read_onto(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_read_onto(cx, buffer)).await
    }

    fn poll_read_onto(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let requested = buffer.capacity() - buffer.len();
        self.poll_read(cx, requested, |fd| socket::read_onto(fd, buffer))
    }

    /// The same as [`StreamSocket::read_onto`] for data that has already arrived: it does not wait.
    /// The end of the stream and a reset are left for the next reader.
    ///
    /// # Errors
    /// The error of the read.
    pub async fn read_arrived(&self, buffer: &mut Vec<u8>) -> io::Result<()> {
        std::future::poll_fn(|cx| {
            let Poll::Ready(ready) = self.watched.poll_read_ready(cx) else {
                return Poll::Ready(Ok(()));
            };
            if ready?.ready().is_read_closed() {
                return Poll::Ready(Ok(()));
            }
            match self.poll_read_onto(cx, buffer) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(_)) | Poll::Pending => Poll::Ready(Ok(())),
            }
        })
        .await
    }

    /// Waits until the socket takes bytes.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn writable(&self) -> io::Result<()> {
        self.watched.writable().await?.clear_ready();
        Ok(())
    }

    /// Ends the stream in our direction. The peer reads the queued data and then an end of file.
    ///
    /// # Errors
    /// The error of `shutdown`.
    pub fn shutdown_write(&self) -> io::Result<()> {
        socket::shutdown_write(self.fd())
    }

    /// After this call, dropping the socket ends the stream in order.
    pub fn end_in_order(&self) {
        if self.security == Security::Clear {
            // If the peer has closed already, there is nothing to report to it.
            let _ = socket::set_on_close(self.fd(), OnClose::Finish);
        }
    }

    /// After this call, dropping the socket resets the connection.
    pub fn reset(&self) {
        // If the peer has closed already, there is nothing to report to it.
        let _ = socket::set_on_close(self.fd(), OnClose::Reset);
    }

    /// Waits until the peer's kernel has the data that was written so far. This is needed before a
    /// reset, which drops queued data, because this data is valid.
    async fn delivered(&self) {
        while socket::unacknowledged_bytes(self.fd()).is_ok_and(|bytes| bytes > 0) {
            tokio::time::sleep(DELIVERY_POLL).await;
        }
    }
}

/// Bytes that a socket did not accept at once. It is empty most of the time, and then uses no
/// memory.
#[derive(Debug, Default)]
pub struct Outgoing {
    waiting: Option<Box<WaitingBytes>>,
}

#[derive(Debug, Default)]
struct WaitingBytes {
    bytes: Vec<u8>,
    written: usize,
}

impl WaitingBytes {
    fn unwritten(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }
}

impl Outgoing {
    /// Starts with bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        let waiting = (!bytes.is_empty()).then(|| Box::new(WaitingBytes { bytes, written: 0 }));
        Self { waiting }
    }

    /// Whether no bytes wait.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.as_ref().is_none_or(|waiting| waiting.bytes.is_empty())
    }

    /// The number of bytes that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.unwritten().len()
    }

    /// Returns the waiting bytes.
    #[must_use]
    pub fn unwritten(&self) -> &[u8] {
        self.waiting.as_ref().map(|waiting| waiting.unwritten()).unwrap_or_default()
    }

    /// Appends bytes. Without bytes, it allocates nothing.
    pub fn append(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.tail().extend_from_slice(bytes);
        }
    }

    /// Appends the bytes that `write` writes, also if it fails. Mostly there are none.
    pub fn append_by<R>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let mut bytes = Vec::new();
        let result = write(&mut bytes);
        self.append(&bytes);
        result
    }

    /// Returns the buffer to which the next bytes to write must be appended. It is allocated here.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.waiting.get_or_insert_default().bytes
    }

    /// Writes until no bytes wait.
    ///
    /// # Errors
    /// The error of the write.
    pub fn poll_flush(
        &mut self,
        socket: &StreamSocket,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_flush_by(socket, cx, socket::write)
    }

    /// Like [`Outgoing::poll_flush`], if the caller ends the stream as soon as no bytes wait: the
    /// end is sent together with the bytes.
    ///
    /// # Errors
    /// The error of the write.
    pub fn poll_flush_last(
        &mut self,
        socket: &StreamSocket,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_flush_by(socket, cx, socket::write_last)
    }

    /// Like [`Outgoing::poll_flush`], with another function that writes.
    pub(crate) fn poll_flush_by(
        &mut self,
        socket: &StreamSocket,
        cx: &mut Context<'_>,
        write: impl Fn(BorrowedFd<'_>, &[u8]) -> io::Result<usize>,
    ) -> Poll<io::Result<()>> {
        while let Some(waiting) = &mut self.waiting
            && !waiting.unwritten().is_empty()
        {
            match write(socket.fd(), waiting.unwritten()) {
                Ok(count) => waiting.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(socket.watched.poll_write_ready(cx))?.clear_ready();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        *self = Self::default();
        Poll::Ready(Ok(()))
    }

    /// Writes until no bytes wait.
    ///
    /// # Errors
    /// The error of the write.
    pub async fn flush(&mut self, socket: &StreamSocket) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_flush(socket, cx)).await
    }

    /// Writes the waiting bytes, and waits until they are delivered, as far as the peer accepts
    /// them.
    pub async fn deliver(&mut self, socket: &StreamSocket) {
        if self.flush(socket).await.is_ok() {
            socket.delivered().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_wait_keep_their_order_and_none_need_no_memory() {
        let mut outgoing = Outgoing::new(Vec::new());
        outgoing.append(&[]);
        assert!(outgoing.waiting.is_none() && outgoing.is_empty());
        outgoing.append(&[1, 2]);
        outgoing.tail().push(3);
        outgoing.append(&[4]);
        assert_eq!(outgoing.unwritten(), [1, 2, 3, 4]);
        assert!(!outgoing.is_empty() && outgoing.len() == 4);
    }
}
