//! Receives data from sockets, together with the sender's address and control messages
//! (`IP_RECVORIGDSTADDR`, `IP_RECVERR`). Also sends data with control messages.
//!
//! The kernel, not the C library, defines the layout of control messages. So this module encodes
//! and parses control messages itself.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::option::OptionName;

/// The result of [`receive`], without the bytes themselves.
pub(crate) struct ReceivedMessage<const CONTROL: usize = CONTROL_BYTES> {
    /// The number of bytes in the buffer.
    pub(crate) bytes: usize,
    /// The flags that the kernel returned, such as `MSG_TRUNC`.
    pub(crate) flags: libc::c_int,
    name: [u8; NAME_BYTES],
    control: [u8; CONTROL],
    control_bytes: usize,
}

/// Receives one message; `flags` are those of `recvmsg`.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: libc::c_int,
) -> io::Result<ReceivedMessage> {
    receive_with(socket, buffer, flags)
}

/// The same as [`receive`], with this much room for control messages.
pub(crate) fn receive_with<const CONTROL: usize>(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: libc::c_int,
) -> io::Result<ReceivedMessage<CONTROL>> {
    let mut name = [0; NAME_BYTES];
    let mut control = [0; CONTROL];
    let mut space = [IoSliceMut::new(buffer)];
    let mut message = MaybeUninit::<libc::msghdr>::zeroed();
    let header = message.as_mut_ptr();
    // SAFETY: every bit pattern of zeros is a valid msghdr; the pointers and lengths put into it
    // are those of live, writable objects that outlive the call. IoSliceMut is an iovec.
    let header = unsafe { &mut *header };
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = libc::socklen_t::try_from(NAME_BYTES).unwrap_or(0);
    header.msg_iov = space.as_mut_ptr().cast();
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = CONTROL as _;
    // SAFETY: the header was filled above and describes memory that lives here.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), header, flags) };
    let bytes = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    #[allow(
        clippy::useless_conversion,
        reason = "the type of `msg_controllen` differs between C libraries"
    )]
    let control_bytes = usize::try_from(header.msg_controllen).unwrap_or(0);
    Ok(ReceivedMessage { bytes, flags: header.msg_flags, name, control, control_bytes })
}

/// A control message of a message to send.
pub(crate) struct ControlItem<'a> {
    /// Its level and type.
    pub(crate) kind: OptionName,
    /// Its content.
    pub(crate) data: &'a [u8],
}

/// Sends one message to an address, with at most [`ITEMS_MAX`] control messages.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    payload: &[u8],
    to: SocketAddr,
    items: &[ControlItem<'_>],
) -> io::Result<()> {
    let (name, name_bytes) = name_of(to);
    // Like a `cmsghdr`, the array begins at a multiple of its length field.
    let mut control = [0_usize; ITEMS_MAX * ITEM_WORDS_MAX];
    let mut control_words = 0;
    for item in items {
        let space = control.get_mut(control_words..).unwrap_or_default();
        control_words += write_item(space, item).ok_or(io::ErrorKind::InvalidInput)?;
    }
    let mut message = MaybeUninit::<libc::msghdr>::zeroed();
    let mut parts = [IoSlice::new(payload)];
    // SAFETY: every bit pattern of zeros is a valid msghdr.
    let header = unsafe { message.assume_init_mut() };
    // The kernel only reads all this, although the structure has pointers to writable memory.
    header.msg_name = name.as_ptr().cast_mut().cast();
    header.msg_namelen = name_bytes;
    header.msg_iov = parts.as_mut_ptr().cast();
    header.msg_iovlen = 1;
    if !items.is_empty() {
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = (control_words * size_of::<usize>()) as _;
    }
    // SAFETY: the header was filled above and describes memory that lives here. IoSlice is an
    // iovec.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), header, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends one message as [`send`] does. Waits for a short time if the socket's buffer is full.
pub(crate) fn send_waiting(
    socket: BorrowedFd<'_>,
    payload: &[u8],
    to: SocketAddr,
    items: &[ControlItem<'_>],
) -> io::Result<()> {
    match send(socket, payload, to, items) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let wait = Timespec::try_from(ROOM_WAIT).map_err(|_| io::ErrorKind::InvalidInput)?;
            poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&wait))?;
            send(socket, payload, to, items)
        }
        result => result,
    }
}

/// Writes a `cmsghdr` and its data. Returns how many words they take; `None`: there is no room.
fn write_item(space: &mut [usize], item: &ControlItem<'_>) -> Option<usize> {
    let word_bytes = size_of::<usize>();
    let head_words = 1 + 8_usize.div_ceil(word_bytes);
    let data_words = item.data.len().div_ceil(word_bytes);
    let (head, rest) = space.split_at_mut_checked(head_words)?;
    let (length, kind) = head.split_first_mut()?;
    *length = head_words * word_bytes + item.data.len();
    let mut number = [0; 8];
    number[..4].copy_from_slice(&item.kind.level.to_ne_bytes());
    number[4..].copy_from_slice(&item.kind.name.to_ne_bytes());
    copy_words(kind, &number);
    copy_words(rest.get_mut(..data_words)?, item.data);
    Some(head_words + data_words)
}

/// Copies bytes into words, in the order of the memory.
fn copy_words(words: &mut [usize], bytes: &[u8]) {
    for (word, part) in words.iter_mut().zip(bytes.chunks(size_of::<usize>())) {
        let mut all = [0; size_of::<usize>()];
        all[..part.len()].copy_from_slice(part);
        *word = usize::from_ne_bytes(all);
    }
}

/// Builds a `sockaddr_in` or `sockaddr_in6`. Returns it with its length.
pub(crate) fn name_of(address: SocketAddr) -> ([u8; NAME_BYTES], libc::socklen_t) {
    let mut name = [0; NAME_BYTES];
    name[2..4].copy_from_slice(&address.port().to_be_bytes());
    let (family, bytes) = match address {
        SocketAddr::V4(address) => {
            name[4..8].copy_from_slice(&address.ip().octets());
            (libc::AF_INET, size_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(address) => {
            name[8..24].copy_from_slice(&address.ip().octets());
            name[24..].copy_from_slice(&address.scope_id().to_ne_bytes());
            (libc::AF_INET6, NAME_BYTES)
        }
    };
    name[..2].copy_from_slice(&u16::try_from(family).unwrap_or(0).to_ne_bytes());
    (name, libc::socklen_t::try_from(bytes).unwrap_or(0))
}

impl<const CONTROL: usize> ReceivedMessage<CONTROL> {
    /// Returns the sender of the message.
    pub(crate) fn source(&self) -> Option<SocketAddr> {
        ip_address(&self.name)
    }

    /// Returns the first control message with one of these levels and types.
    pub(crate) fn item(&self, wanted: &[OptionName]) -> Option<&[u8]> {
        self.items().find(|(kind, _)| wanted.contains(kind)).map(|(_, data)| data)
    }

    /// Returns the control messages.
    pub(crate) fn items(&self) -> impl Iterator<Item = ReceivedItem<'_>> {
        let mut rest = self.control.get(..self.control_bytes).unwrap_or_default();
        std::iter::from_fn(move || {
            let (item, after) = split_item(rest)?;
            rest = after;
            Some(item)
        })
    }
}

/// A received control message: its level and type, and its content.
type ReceivedItem<'a> = (OptionName, &'a [u8]);

/// Splits control messages after the first one.
fn split_item(control: &[u8]) -> Option<(ReceivedItem<'_>, &[u8])> {
    let length = usize::from_ne_bytes(*control.first_chunk()?);
    let (level, rest_of_head) = control.get(size_of::<usize>()..)?.split_first_chunk::<4>()?;
    let (kind, _) = rest_of_head.split_first_chunk::<4>()?;
    let kind = OptionName {
        level: libc::c_int::from_ne_bytes(*level),
        name: libc::c_int::from_ne_bytes(*kind),
    };
    let data = control.get(size_of::<usize>() + 8..length)?;
    let after = control.get(length.next_multiple_of(size_of::<usize>())..).unwrap_or_default();
    Some(((kind, data), after))
}

/// Parses a `sockaddr_in` or `sockaddr_in6`; other bytes may follow it.
pub(crate) fn ip_address(bytes: &[u8]) -> Option<SocketAddr> {
    let (family, rest) = bytes.split_first_chunk::<2>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(*port);
    match libc::c_int::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => {
            Some(SocketAddrV4::new(Ipv4Addr::from(*rest.first_chunk::<4>()?), port).into())
        }
        libc::AF_INET6 => {
            let (_flow_label, rest) = rest.split_first_chunk::<4>()?;
            let (ip, rest) = rest.split_first_chunk::<16>()?;
            let scope = u32::from_ne_bytes(*rest.first_chunk::<4>()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(*ip), port, 0, scope).into())
        }
        _ => None,
    }
}

/// The size of a `sockaddr_in6`.
pub(crate) const NAME_BYTES: usize = 28;
/// Room for the control messages: an error with the address of the reporting host, or one address.
const CONTROL_BYTES: usize = 128;
/// The largest number of control messages of a message to send.
const ITEMS_MAX: usize = 2;
/// The longest `cmsghdr` with its content, in words: an `in6_pktinfo`.
const ITEM_WORDS_MAX: usize = 5;
/// How long a call waits for room in a full socket buffer before it drops a message.
const ROOM_WAIT: Duration = Duration::from_millis(10);
