//! Sends and receives file descriptors over UNIX sockets. Also lists the file descriptors that this
//! process has inherited, and takes ownership of inherited descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::FileType;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// The largest number of descriptors in one message. The kernel's own limit (`SCM_MAX_FD`) is 253.
pub const DESCRIPTORS_PER_MESSAGE_MAX: usize = 64;

/// The number of the first descriptor of socket activation, `SD_LISTEN_FDS_START`.
pub const ACTIVATION_FIRST: RawFd = 3;

/// Takes ownership of the inherited descriptors `first .. first + count`.
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
            // SAFETY: it is open (fcntl succeeded), and by contract of this function no other code
            // in this process owns it: the parent left it for us.
            Ok(unsafe { OwnedFd::from_raw_fd(raw) })
        })
        .collect()
}

/// Duplicates a descriptor that this process was started with; its number stays open, so that
/// processes started from here inherit it.
///
/// # Errors
/// The number is not an open descriptor.
pub fn duplicate_inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the number is only read by fcntl, which fails on one that is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    Ok(rustix::io::fcntl_dupfd_cloexec(borrowed, 3)?)
}

/// A descriptor that a program started by this process would inherit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inheritable {
    /// Its number.
    pub number: RawFd,
    /// What it is.
    pub kind: DescriptorKind,
}

/// The kind of a descriptor, as far as it decides which process may inherit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorKind {
    /// A socket.
    Socket(SocketKind),
    /// A directory; it stays in the mount namespace that it was opened in.
    Directory,
    /// An io_uring. The sockets that its operations create belong to the network namespace of the
    /// process that created the ring.
    IoUring,
    /// Anything else.
    Other,
}

/// The properties of a socket that decide which process may inherit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketKind {
    /// Whether data leaves through the socket into a network. Such a socket stays in the network
    /// namespace in which it was created, whatever the namespace of its user. False for UNIX and
    /// netlink sockets.
    pub leads_out: bool,
    /// The socket's own address, if it is an IP address.
    pub local: Option<SocketAddr>,
    /// The address of the other end, if the socket is connected.
    pub peer: Option<SocketAddr>,
}

/// Lists all open descriptors that are not close-on-exec. Before this process has opened a
/// descriptor, these are the descriptors that it has inherited.
///
/// # Errors
/// `/proc` cannot be read.
pub fn inheritable() -> io::Result<Vec<Inheritable>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // SAFETY: the number is only looked at by system calls, which fail if it is not open.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let flags = rustix::io::fcntl_getfd(descriptor);
        if flags.is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC)) {
            found.push(Inheritable { number, kind: kind(descriptor) });
        }
    }
    found.sort_unstable_by_key(|one| one.number);
    Ok(found)
}

fn kind(descriptor: BorrowedFd<'_>) -> DescriptorKind {
    if let Some(socket) = socket_kind(descriptor) {
        return DescriptorKind::Socket(socket);
    }
    let data = rustix::fs::fstat(descriptor);
    if data.is_ok_and(|data| FileType::from_raw_mode(data.st_mode).is_dir()) {
        return DescriptorKind::Directory;
    }
    // No file can have this name, because the path of a file begins with `/`.
    let name = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    let is_ring = name.is_ok_and(|name| name.as_os_str() == "anon_inode:[io_uring]");
    if is_ring { DescriptorKind::IoUring } else { DescriptorKind::Other }
}

fn socket_kind(descriptor: BorrowedFd<'_>) -> Option<SocketKind> {
    let family = rustix::net::sockopt::socket_domain(descriptor).ok()?;
    let ip = |address| SocketAddr::try_from(address).ok();
    Some(SocketKind {
        leads_out: ![AddressFamily::UNIX, AddressFamily::NETLINK].contains(&family),
        local: rustix::net::getsockname(descriptor).ok().and_then(ip),
        peer: rustix::net::getpeername(descriptor).ok().flatten().and_then(ip),
    })
}

/// Sends bytes and descriptors in one message; at least one byte.
///
/// # Errors
/// There are too many descriptors, or the error of `sendmsg`.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send_with(socket, bytes, descriptors, SendFlags::NOSIGNAL)
}

/// The same without waiting for room, also on a blocking socket.
///
/// # Errors
/// The error of `sendmsg`; `WouldBlock` if there is no room.
pub fn send_now(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    send_with(socket, bytes, descriptors, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_with(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_MESSAGE_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the message has too many descriptors",
        ));
    }
    Ok(rustix::net::sendmsg(socket, &[io::IoSlice::new(bytes)], &mut control, flags)?)
}

/// The bytes and descriptors of a received message.
#[derive(Debug)]
pub struct ReceivedDescriptors {
    /// The number of bytes that were written to the buffer.
    pub bytes: usize,
    /// The received descriptors, all close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

/// Receives bytes, and the descriptors that were sent with them.
///
/// # Errors
/// The error of `recvmsg`.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<ReceivedDescriptors> {
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
    Ok(ReceivedDescriptors { bytes: message.bytes, descriptors })
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
        let ReceivedDescriptors { bytes: count, mut descriptors } =
            receive(&far, &mut bytes).unwrap();
        assert_eq!((count, descriptors.len()), (1, 1));
        let mut received = UnixStream::from(descriptors.remove(0));
        received.write_all(b"through").unwrap();
        drop(received);
        let mut text = String::new();
        kept.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn what_exec_leaves_open_is_found_and_what_it_is() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let find = |number| inheritable().unwrap().into_iter().find(|one| one.number == number);
        assert_eq!(find(client.as_raw_fd()), None, "closed by exec");
        let kept = rustix::io::dup(&client).unwrap();
        let DescriptorKind::Socket(found) = find(kept.as_raw_fd()).unwrap().kind else {
            panic!("a socket")
        };
        assert!(found.leads_out);
        assert_eq!(found.local, client.local_addr().ok());
        assert_eq!(found.peer, listener.local_addr().ok());
        let unix = rustix::io::dup(&UnixStream::pair().unwrap().0).unwrap();
        let kind = find(unix.as_raw_fd()).unwrap().kind;
        assert!(matches!(kind, DescriptorKind::Socket(SocketKind { leads_out: false, .. })));
        let kind_of = |path: &str| {
            let kept = rustix::io::dup(std::fs::File::open(path).unwrap()).unwrap();
            find(kept.as_raw_fd()).unwrap().kind
        };
        assert_eq!(kind_of("/dev/null"), DescriptorKind::Other);
        assert_eq!(kind_of("/"), DescriptorKind::Directory);
    }

    #[test]
    fn a_number_that_is_not_open_is_an_error() {
        assert!(take_inherited(1_000_000, 1).is_err());
        assert!(duplicate_inherited(1_000_000).is_err());
    }
}
