//! Receives several UDP datagrams with one system call (`recvmmsg`), and forwards all of them with
//! another system call (`sendmmsg`).
//!
//! ```text
//! DatagramQueue::receive(socket)          returns up to 16 datagrams, each with its source
//!                receive(..) < 16         means that the receive queue is empty
//!                send(socket, 0..n, to)   sends all datagrams with one call
//! ```
//!
//! A [`DatagramQueue`] is a buffer for [`DATAGRAMS_MAX`] datagrams of the largest size. The kernel
//! provides memory only for the parts of the buffer that were used.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::datagram::{self, PAYLOAD_BYTES_MAX};
use crate::message::{NAME_BYTES, ip_address, name_of};

/// The largest number of datagrams that a queue holds.
pub const DATAGRAMS_MAX: usize = 16;

/// The distance between two datagrams. It is no multiple of the size of a page, because the
/// beginnings of all datagrams would then compete for the same lines of the CPU's caches.
const SLOT_BYTES: usize = PAYLOAD_BYTES_MAX + 1 + 576;

/// Datagrams that were received.
#[derive(Debug)]
pub struct DatagramQueue {
    space: Vec<u8>,
    names: [[u8; NAME_BYTES]; DATAGRAMS_MAX],
    lengths: [usize; DATAGRAMS_MAX],
}

impl Default for DatagramQueue {
    fn default() -> Self {
        Self {
            space: vec![0; SLOT_BYTES * DATAGRAMS_MAX],
            names: [[0; NAME_BYTES]; DATAGRAMS_MAX],
            lengths: [0; DATAGRAMS_MAX],
        }
    }
}

impl DatagramQueue {
    /// Receives the datagrams that wait in a non-blocking socket, in place of earlier ones, and
    /// returns their number. If it is less than [`DATAGRAMS_MAX`], no datagram waits any more. The
    /// kernel reports an error that arrives meanwhile with the next event of the socket.
    ///
    /// # Errors
    /// `WouldBlock` if there is no datagram; the error of an earlier datagram; another error of
    /// `recvmmsg`.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; DATAGRAMS_MAX];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::zeroed() }; DATAGRAMS_MAX];
        let slots = self.space.chunks_exact_mut(SLOT_BYTES).zip(&mut self.names);
        for ((part, header), (slot, name)) in parts.iter_mut().zip(&mut headers).zip(slots) {
            let space = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            // SAFETY: every bit pattern of zeros is a valid mmsghdr.
            let header = unsafe { header.assume_init_mut() };
            header.msg_hdr.msg_iov = part.write(space);
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = name.as_mut_ptr().cast();
            header.msg_hdr.msg_namelen = libc::socklen_t::try_from(NAME_BYTES).unwrap_or(0);
        }
        let first = headers.as_mut_ptr().cast();
        let count = libc::c_uint::try_from(DATAGRAMS_MAX).unwrap_or(0);
        let none = std::ptr::null_mut();
        // SAFETY: the headers were filled above, and describe parts of `self` that are live,
        // writable and disjoint.
        let received = unsafe {
            libc::recvmmsg(socket.as_raw_fd(), first, count, libc::MSG_DONTWAIT as _, none)
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        for (header, length) in headers.iter().zip(&mut self.lengths).take(received) {
            // SAFETY: it was zeroed, and the kernel has written numbers into it.
            let header = unsafe { header.assume_init_ref() };
            *length = usize::try_from(header.msg_len).unwrap_or(0).min(SLOT_BYTES);
        }
        Ok(received)
    }

    /// Returns the payload of a received datagram.
    #[must_use]
    pub fn payload(&self, number: usize) -> &[u8] {
        let start = number * SLOT_BYTES;
        let length = self.lengths.get(number).copied().unwrap_or(0);
        self.space.get(start..start + length).unwrap_or_default()
    }

    /// Returns the address from which a datagram was received.
    #[must_use]
    pub fn source(&self, number: usize) -> Option<SocketAddr> {
        ip_address(self.names.get(number)?)
    }

    /// Sends received datagrams, on a connected socket or to an address. Returns how many were
    /// sent, which is at least one. If it is not all, the next call fails with the reason, or
    /// sends the rest.
    ///
    /// # Errors
    /// The first datagram was not sent: `WouldBlock` if the socket's buffer is full; the error of
    /// an earlier datagram; another error of `sendmmsg`.
    pub fn send(
        &self,
        socket: BorrowedFd<'_>,
        which: Range<usize>,
        to: Option<SocketAddr>,
    ) -> io::Result<usize> {
        if which.len() == 1 {
            // This costs less than a call for several.
            let payload = self.payload(which.start);
            return match to {
                Some(to) => datagram::send_to(socket, payload, to),
                None => datagram::send(socket, payload),
            }
            .map(|()| 1);
        }
        let name = to.map(name_of);
        let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; DATAGRAMS_MAX];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::zeroed() }; DATAGRAMS_MAX];
        let mut count = 0;
        for ((part, header), number) in parts.iter_mut().zip(&mut headers).zip(which) {
            let payload = self.payload(number);
            // The kernel only reads all this, although the structures have pointers to writable
            // memory.
            let base = payload.as_ptr().cast_mut().cast();
            let payload = libc::iovec { iov_base: base, iov_len: payload.len() };
            // SAFETY: every bit pattern of zeros is a valid mmsghdr.
            let header = unsafe { header.assume_init_mut() };
            header.msg_hdr.msg_iov = part.write(payload);
            header.msg_hdr.msg_iovlen = 1;
            if let Some((name, name_bytes)) = &name {
                header.msg_hdr.msg_name = name.as_ptr().cast_mut().cast();
                header.msg_hdr.msg_namelen = *name_bytes;
            }
            count += 1;
        }
        let first = headers.as_mut_ptr().cast();
        // SAFETY: the first `count` headers were filled above, and describe live memory.
        let sent =
            unsafe { libc::sendmmsg(socket.as_raw_fd(), first, count, libc::MSG_NOSIGNAL as _) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use crate::datagram::{AnswerSources, dial_unconnected};

    fn numbered(number: usize) -> Vec<u8> {
        vec![u8::try_from(number).unwrap(); number * 100]
    }

    #[test]
    fn all_datagrams_that_wait_are_received_and_sent_on() {
        let [sender, middle, receiver] = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        middle.set_nonblocking(true).unwrap();
        let [from, to] = [&sender, &receiver].map(|one| one.local_addr().unwrap());
        let mut queue = DatagramQueue::default();
        for size in [3, DATAGRAMS_MAX, DATAGRAMS_MAX + 2] {
            for number in 0..size {
                sender.send_to(&numbered(number), middle.local_addr().unwrap()).unwrap();
            }
            let mut expected = 0;
            loop {
                let received = match queue.receive(middle.as_fd()) {
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        break;
                    }
                    Ok(received) => received,
                };
                for number in 0..received {
                    assert_eq!(queue.payload(number), numbered(expected));
                    assert_eq!(queue.source(number), Some(from));
                    expected += 1;
                }
                let sent = queue.send(middle.as_fd(), 0..received, Some(to)).unwrap();
                assert_eq!(sent, received);
                if received < DATAGRAMS_MAX {
                    break;
                }
            }
            assert_eq!(expected, size);
            for number in 0..size {
                let mut space = [0; 4096];
                let length = receiver.recv(&mut space).unwrap();
                assert_eq!(space[..length], numbered(number));
            }
        }
    }

    #[test]
    fn the_largest_datagram_fits() {
        let sender = UdpSocket::bind("[::1]:0").unwrap();
        let receiver = UdpSocket::bind("[::1]:0").unwrap();
        receiver.set_nonblocking(true).unwrap();
        let payload = vec![7; 65_527];
        sender.send_to(&payload, receiver.local_addr().unwrap()).unwrap();
        let mut queue = DatagramQueue::default();
        assert_eq!(queue.receive(receiver.as_fd()).unwrap(), 1);
        assert_eq!(queue.payload(0), payload);
    }

    #[test]
    fn an_error_of_an_earlier_datagram_is_reported_before_the_next_is_sent() {
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = dial_unconnected(closed, AnswerSources::Destination).unwrap();
        let feeder = UdpSocket::bind("127.0.0.1:0").unwrap();
        let fed = UdpSocket::bind("127.0.0.1:0").unwrap();
        fed.set_nonblocking(true).unwrap();
        let mut queue = DatagramQueue::default();
        for _ in 0..3 {
            feeder.send_to(b"x", fed.local_addr().unwrap()).unwrap();
        }
        assert_eq!(queue.receive(fed.as_fd()).unwrap(), 3);
        // The error of the first one stops the call before the second one.
        assert_eq!(queue.send(socket.as_fd(), 0..3, Some(closed)).unwrap(), 1);
        let mut buffer = [0; 64];
        let notice = datagram::take_notice(socket.as_fd(), &mut buffer).unwrap().unwrap();
        assert_eq!(notice.destination, Some(closed));
    }
}
