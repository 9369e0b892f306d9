//! Copies the SYN packets of programs under `tacit run` to the agent. A *held* SYN is a packet that
//! the kernel drops after the copy. The agent connects to the destination of the SYN, and then
//! sends the SYN again. There are two methods to copy SYN packets:
//!
//! ```text
//! nfnetlink_log   the default: an nftables rule copies each held SYN
//! packet socket   if the kernel has no nfnetlink_log: receives each SYN on `lo`, also SYNs that
//!                 are not held
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};

use crate::netlink::nflog::{self, LogCause, LoggedPacket};
pub use crate::netlink::nft::Copies;
use crate::netlink::nft::{AGENT_MARK, RELEASE_MARK, SYN_LOG_GROUP};
use crate::netlink::route::LO;
use crate::option::{attach_filter, bind_to_interface};
use crate::packet_filter::Target::{Next, To};
use crate::packet_filter::{
    ACK, AND, ETHERTYPE_V4, ETHERTYPE_V6, JUMP_EQUAL, LOAD_BYTE, LOAD_BYTE_BEHIND_X,
    LOAD_HEADER_LENGTH, LOAD_WORD, MARK, PACKET_HOST, PACKET_TYPE, PROTOCOL, RETURN, SYN,
    Statement, TCP, assemble, go, jump, next,
};

/// Opens the socket that receives the copies, in the network namespace of the calling thread.
///
/// # Errors
/// The error of the kernel.
pub(crate) fn open(copies: Copies) -> io::Result<OwnedFd> {
    match copies {
        Copies::OfRule => nflog::open(SYN_LOG_GROUP).map_err(|error| match error.errno() {
            Some(libc::EBUSY) => io::Error::from_raw_os_error(libc::EBUSY),
            _ => io::Error::other(error.to_string()),
        }),
        Copies::OfInterface => packet_socket(),
    }
}

fn packet_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol the socket receives nothing until the filter is attached.
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
    attach_filter(socket.as_fd(), &mut assemble(STATEMENTS))?;
    bind_to_interface(socket.as_fd(), LO)?;
    Ok(socket)
}

/// The socket that receives the copies, for its reader.
#[derive(Debug)]
pub struct SynLog {
    socket: Arc<OwnedFd>,
    copies: Copies,
}

impl SynLog {
    /// Uses a socket that was created inside the namespace.
    ///
    /// # Errors
    /// The error of `getsockopt`.
    pub fn adopt(socket: OwnedFd) -> io::Result<Self> {
        let copies = match sockopt::socket_domain(&socket)? {
            AddressFamily::PACKET => Copies::OfInterface,
            _ => Copies::OfRule,
        };
        Ok(Self { socket: Arc::new(socket), copies })
    }

    /// Returns the source of the copies.
    #[must_use]
    pub fn copies(&self) -> Copies {
        self.copies
    }

    /// Returns the socket, so that the caller can wait for it.
    #[must_use]
    pub fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Receives the next copy; `None` if the message contains none.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; `ENOBUFS` ([`nflog::is_overrun`]) if copies were lost;
    /// otherwise the error of the kernel.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<LoggedPacket<'b>>> {
        match self.copies {
            Copies::OfRule => {
                let bytes = nflog::receive(self.socket.as_fd(), buffer)?;
                // The kernel sends each packet in a report of its own.
                Ok(nflog::packets(buffer.get(..bytes).unwrap_or_default()).next())
            }
            Copies::OfInterface => {
                let (bytes, _) =
                    rustix::net::recv(&*self.socket, &mut *buffer, RecvFlags::empty())?;
                let packet = buffer.get(..bytes);
                Ok(packet.map(|packet| LoggedPacket { packet, cause: LogCause::Opens }))
            }
        }
    }
}

impl AsFd for SynLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A position in the filter to which conditions jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    V6,
    Flags,
    Drop,
}

/// The filter that keeps the headers of SYNs that arrive on the interface and that the agent has
/// not sent.
const STATEMENTS: &[Statement<Place>] = &[
    next(LOAD_WORD, PACKET_TYPE),
    jump(JUMP_EQUAL, PACKET_HOST, Next, To(Place::Drop)),
    next(LOAD_WORD, MARK),
    jump(JUMP_EQUAL, AGENT_MARK, To(Place::Drop), Next),
    jump(JUMP_EQUAL, RELEASE_MARK, To(Place::Drop), Next),
    next(LOAD_WORD, PROTOCOL),
    jump(JUMP_EQUAL, ETHERTYPE_V4, Next, To(Place::V6)),
    next(LOAD_BYTE, 9),
    jump(JUMP_EQUAL, TCP, Next, To(Place::Drop)),
    next(LOAD_HEADER_LENGTH, 0),
    next(LOAD_BYTE_BEHIND_X, 13),
    go(Place::Flags),
    jump(JUMP_EQUAL, ETHERTYPE_V6, Next, To(Place::Drop)).at(Place::V6),
    next(LOAD_BYTE, 6),
    jump(JUMP_EQUAL, TCP, Next, To(Place::Drop)),
    next(LOAD_BYTE, 53),
    next(AND, SYN | ACK).at(Place::Flags),
    jump(JUMP_EQUAL, SYN, Next, To(Place::Drop)),
    next(RETURN, nflog::PACKET_BYTES_KEPT),
    next(RETURN, 0).at(Place::Drop),
];
