//! Descriptors that come from other processes: inherited by number, or sent over a UNIX socket.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Descriptors one message may carry; the kernel's own limit (`SCM_MAX_FD`) is 253.
pub const DESCRIPTORS_PER_MESSAGE_MAX: usize = 64;

/// First descriptor of socket activation, `SD_LISTEN_FDS_START`.
pub const ACTIVATION_FIRST: RawFd = 3;

/// Takes ownership of descriptors `first .. first + count` that this process was started with.
///
/// Call once, before any other descriptor is opened: at the very start of `main`.
///
/// # Errors
/// One of the numbers is not an open descriptor.
pub fn take_inherited(first: RawFd, count: usize) -> io::Result<Vec<OwnedFd>> {
    let count = RawFd::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
    (first..first.saturating_add(count))
        .map(|raw| {
            // SAFETY: the number is only looked at by fcntl, which fails on one that is not open.
            let borrowed = unsafe { BorrowedFd::borrow_raw(raw) };
            rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)?;
            // SAFETY: it is open (fcntl said so), and by contract of this function nobody in this
            // process owns it: the parent left it for us.
            Ok(unsafe { OwnedFd::from_raw_fd(raw) })
        })
        .collect()
}

/// Sends bytes and descriptors in one message; at least one byte.
///
/// # Errors
/// Too many descriptors, or whatever `sendmsg` answers.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_MESSAGE_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let sent =
        rustix::net::sendmsg(socket, &[io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    Ok(sent?)
}

/// Receives bytes and the descriptors that came with them, close-on-exec.
///
/// # Errors
/// Whatever `recvmsg` answers.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_MESSAGE_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(
        socket,
        &mut [io::IoSliceMut::new(bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            descriptors.extend(received);
        }
    }
    Ok((message.bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_arrives_with_its_bytes() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut kept, given) = UnixStream::pair().unwrap();
        send(&near, b"x", &[given.as_fd()]).unwrap();
        drop(given);
        let mut bytes = [0; 8];
        let (count, mut descriptors) = receive(&far, &mut bytes).unwrap();
        assert_eq!((count, descriptors.len()), (1, 1));
        let mut received = UnixStream::from(descriptors.remove(0));
        received.write_all(b"through").unwrap();
        drop(received);
        let mut text = String::new();
        kept.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn a_number_that_is_not_open_is_an_error() {
        assert!(take_inherited(1_000_000, 1).is_err());
    }
}
